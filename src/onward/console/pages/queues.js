// Queues and workers: waiting tasks, how long they wait, the workers; pause and unpause.

import { everyPage, get, part, post } from "../api.js";
import { attempt, dialog } from "../dialog.js";
import { add, h, unique } from "../dom.js";
import { may, me } from "../me.js";
import { keepUpdated, rate, redraw, section, share, spark, tile, tiles } from "../parts.js";
import { link } from "../router.js";
import { age, badge, button, empty, heading, oldestNote, someOf, table, taskLink } from "../ui.js";
import { about, briefField, compact, count, line, number, REASONS, safe, short } from "../words.js";

const SAMPLES = 40;
const CARDS = 40; // workers that are shown at first
const HELD = 12; // tasks of a worker that are shown
const NOUNS = { approval: "for approval", question: "for an answer", budget: "for budget", child: "for a child", signal: "for a signal", quota: "for quota", lock: "for a lock" };
const TONES = { queued: "run", cancelling: "idle", delayed: "idle", quota: "warn", retrying: "warn", running: "good" };

export async function show(root, { signal }) {
  const boxes = { numbers: h("div"), queues: h("div"), workers: h("div") };
  const history = new Map();
  add(root, heading("Queues and workers", "Waiting tasks, and the workers that run them"), boxes.numbers, section("Queues", {}, boxes.queues), section("Workers", {}, boxes.workers));
  let again = () => {};

  async function load() {
    const [queues, workers, { tasks }] = await Promise.all([everyPage("/api/queues", "queues", { signal }), everyPage("/api/workers", "workers", { signal }), get("/api/tasks", { brief: true, state: "running", limit: 500 }, { signal })]);
    for (const queue of queues) history.set(queue.name, [...(history.get(queue.name) || []), queue.waiting].slice(-SAMPLES));
    const now = Date.now() / 1000;
    redraw(boxes.numbers, [queues, workers], () => numbers(queues, workers));
    redraw(boxes.queues, [queues.map((queue) => ({ ...queue, oldest_s: Math.round(queue.oldest_s) })), workers.length], () => queueTable(queues, workers, history, now, () => again()));
    redraw(boxes.workers, [workers.map((queue) => ({ ...queue, lease_s: queue.alive })), tasks.map((queue) => queue.task_id), Math.floor(now / 5)], () => workerCards(workers, tasks, now));
  }

  again = await keepUpdated(load, signal, { gap: 1500, every: 4000 });
}

function numbers(queues, workers) {
  const alive = workers.filter((item) => item.alive);
  const sum = (list, name) => list.reduce((all, item) => all + item[name], 0);
  const [slots, running] = [sum(alive, "slots"), sum(queues, "running")];
  const oldest = Math.max(0, ...queues.map((item) => item.oldest_s || 0));
  const paused = queues.filter((item) => item.paused).length;
  const waiting = sum(queues, "waiting");
  return tiles(
    tile("Waiting", compact(waiting), { note: oldestNote(waiting, oldest), tone: oldest > 300 ? "wait" : "" }),
    tile("Running", compact(running), { note: slots ? `of ${count(slots, "slot")}` : "no worker" }),
    tile("Throughput", rate(sum(alive, "rate")), { note: "of all workers together" }),
    tile("Workers", compact(alive.length), { note: workers.length > alive.length ? `and ${workers.length - alive.length} without heartbeat` : paused ? `${count(paused, "queue")} paused` : "all alive", tone: !alive.length || workers.length > alive.length ? "bad" : "" }),
  );
}

// ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────

function queueTable(queues, workers, history, now, again) {
  const alive = workers.filter((worker) => worker.alive);
  const [serveAll, named] = [alive.some((worker) => !worker.queues.length), new Set(alive.flatMap((worker) => worker.queues))];
  const served = (queue) => serveAll || named.has(queue.name);
  const runs = may("admin") && !me.tenant;
  const columns = [
    { name: "Queue", cell: (queue) => h("a", { href: link("/tasks", { queue: queue.name }), class: "strong" }, line(queue.name, 60)) },
    { name: "State", class: "tight", cell: (queue) => standing(queue, served(queue)) },
    { name: "Waiting", class: "end", cell: (queue) => h("span", { class: "depth" }, spark(history.get(queue.name) || [], { label: `waiting tasks since this page was opened: ${number(queue.waiting)} now` }), h("b", null, number(queue.waiting))) },
    { name: "Oldest", class: "end", cell: (queue) => (queue.oldest_s === null ? h("span", { class: "faint" }, "–") : age(now - queue.oldest_s, { ago: false })) },
    { name: "Running", class: "end", cell: running },
    { name: "Its workers do", class: "end", cell: (queue) => rate(queue.rate) },
    { name: "Unfinished", class: "mix-cell", cell: mix },
    runs && { name: "", class: "tight end", cell: (queue) => (queue.paused ? button("Unpause", () => unpaused(queue, again), { icon: "play", small: true, data: { key: `unpause:${queue.name}` }, "aria-label": `Unpause queue ${line(queue.name, 60)}` }) : button("Pause…", () => pause(queue, again), { icon: "pause", small: true, data: { key: `pause:${queue.name}` }, "aria-label": `Pause queue ${line(queue.name, 60)}` })) },
  ].filter(Boolean);
  return h("div", { class: "stacked" }, table(columns, queues, { label: "Queues", none: empty("No queues", "A queue appears here while it has unfinished tasks or a limit, or while a worker names it.") }));
}

function standing(queue, served) {
  if (queue.paused) return queue.running ? badge(`draining: ${number(queue.running)} running`, "wait") : badge("paused", "wait");
  if (!served && queue.waiting + queue.running > 0) return badge("no worker", "bad");
  return queue.limit && queue.running >= queue.limit ? badge("at its limit", "warn") : badge("active", "good");
}

function running(queue) {
  if (!queue.limit) return number(queue.running);
  return h("span", { class: "limited" }, h("span", null, number(queue.running), h("span", { class: "faint" }, ` of ${number(queue.limit)}`)), share([[queue.running, queue.running >= queue.limit ? "warn" : "run"]], queue.limit));
}

/** The unfinished tasks by reason: as a bar, and in words. */
function mix(queue) {
  const reasons = Object.entries(queue.reasons).sort((a, b) => b[1] - a[1]);
  const all = reasons.reduce((sum, [, n]) => sum + n, 0);
  if (!all) return h("span", { class: "faint" }, "none");
  const phrase = (reason) => NOUNS[reason] || REASONS[reason]?.word || reason;
  return h("span", { class: "mix" }, share(reasons.map(([reason, n]) => [n, TONES[reason] || REASONS[reason]?.tone || "idle"]), all), h("span", { class: "mix-words" }, reasons.slice(0, 3).map(([reason, n], i) => [i ? " · " : "", h("a", { href: link("/tasks", { queue: queue.name, reason }) }, `${compact(n)} ${phrase(reason)}`)]), reasons.length > 3 && h("span", { class: "faint", title: reasons.slice(3).map(([reason, n]) => `${n} ${phrase(reason)}`).join(", ") }, ` · ${compact(reasons.slice(3).reduce((sum, [, n]) => sum + n, 0))} other`)));
}

function pause(queue, again) {
  const runs = queue.running ? `${count(queue.running, "running task")} ${queue.running === 1 ? "goes" : "go"} on to the end. ` : "";
  dialog(`Pause ${line(queue.name, 60)}?`, {
    text: `No worker starts tasks of this queue until you unpause it, also after a restart. ${runs}New tasks wait.`,
    name: "Pause",
    act: async () => {
      await post(`/api/queues/${part(queue.name)}/pause`);
      again();
    },
  });
}

const unpaused = (queue, again) => attempt(() => post(`/api/queues/${part(queue.name)}/unpause`), `${line(queue.name, 60)} is unpaused`).then(again);

// ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function workerCards(workers, tasks, now) {
  if (!workers.length) return empty("No worker is running", "Tasks wait until one starts: `onward worker APP`.");
  const held = new Map();
  for (const task of tasks) if (task.worker) held.set(task.worker, [...(held.get(task.worker) || []), task]);
  const versions = new Set(workers.filter((worker) => worker.alive).map((worker) => worker.version));
  const cards = h("div", { class: "workers" });
  return someOf(cards, cards, workers, (worker) => card(worker, held.get(worker.id) || [], versions.size > 1, now), CARDS);
}

function card(worker, tasks, mixed, now) {
  const name = unique("worker");
  return h(
    "article",
    { class: ["card", "worker"], "aria-labelledby": name },
    h("header", null, h("h3", { id: name, class: "mono" }, `${line(worker.host, 40)}:${worker.pid}`), h("span", { class: "faint mono", title: worker.id }, short(worker.id)), h("span", { class: "grow" }), worker.alive ? badge("alive", "good") : badge("no heartbeat", "bad")),
    h(
      "div",
      { class: "body stack" },
      h("div", { class: "meter" }, h("div", { class: "meter-name" }, h("span", null, "Slots"), h("span", { class: "num" }, number(worker.running), h("span", { class: "faint" }, ` of ${number(worker.slots)}`))), h("span", { class: "bar", role: "meter", "aria-label": "Slots in use", "aria-valuemin": 0, "aria-valuemax": worker.slots, "aria-valuenow": worker.running }, h("i", { class: worker.running >= worker.slots ? "tone-warn" : "tone-run", style: { width: `${Math.min(100, (worker.running / worker.slots) * 100)}%` } }))),
      h(
        "dl",
        { class: "facts" },
        h("dt", null, "Lease"),
        h("dd", null, worker.alive ? ["valid for ", about(worker.lease_s), ", renewed by each heartbeat"] : h("span", { class: "tone-bad toned" }, `ended ${about(-worker.lease_s)} ago: no heartbeat since`)),
        h("dt", null, "Uptime"),
        h("dd", null, age(worker.started_at, { ago: false })),
        h("dt", null, "Version"),
        h("dd", null, line(worker.version, 40), mixed && h("span", { class: "tone-warn toned" }, " · other workers have another version")),
        h("dt", null, "Rate"),
        h("dd", null, rate(worker.rate)),
        h("dt", null, "Queues"),
        h("dd", null, worker.queues.length ? worker.queues.map((name_, i) => [i ? ", " : "", h("a", { href: link("/tasks", { queue: name_ }) }, line(name_, 60))]) : "all"),
        h("dt", null, "Handlers"),
        h("dd", null, h("details", null, h("summary", null, count(worker.handlers.length, "handler")), worker.handlers.map((name_) => h("span", { class: "tag", title: safe(name_) }, line(name_, 60))))),
      ),
      tasks.length > 0 && h("ul", { class: "holds", "aria-label": "Tasks of this worker" }, tasks.slice(0, HELD).map((task) => h("li", null, taskLink(task.task_id), h("span", { class: "clip grow" }, line(task.task, 60), " ", h("span", { class: "faint" }, briefField(task, "input", 80))), h("span", { class: "faint" }, age(task.updated_at, { ago: false })))), tasks.length > HELD && h("li", { class: "faint" }, `and ${number(tasks.length - HELD)} more`)),
    ),
  );
}
