// The overview: the main numbers, items that wait for a person, and problems.

import { get, part } from "../api.js";
import { add, h } from "../dom.js";
import { charts } from "../history.js";
import { icon } from "../icons.js";
import { may, me } from "../me.js";
import { keepUpdated, rate, redraw, section, segments, tile, tiles } from "../parts.js";
import { link } from "../router.js";
import { age, badge, chip, empty, heading, oldestNote } from "../ui.js";
import { about, at, compact, count, line, money, number, safe, briefField } from "../words.js";
import { gathered } from "./inbox.js";

const DAY = 86_400;
const WAITING = ["queued", "cancelling", "delayed", "quota"]; // reasons of tasks that wait in a queue
const COSTLY = 30_000; // ms for which the usage of today is reused: it is a sum over many tasks

const SPANS = { hour: "the last hour", day: "the last day" };

export async function show(root, place) {
  const { signal } = place;
  const axis = place.one("span") === "day" ? "day" : "hour";
  const [numbers, lately, people, attention, recent, strip] = [h("div"), h("div"), h("div"), h("div"), h("div"), h("div")];
  const tenant = Boolean(me.tenant);
  add(
    root,
    heading("Overview", tenant ? `Tenant ${line(me.tenant, 60)}` : "The current state"),
    numbers,
    may("admin") && !tenant && section("Over time", { actions: segments("Time axis", [["hour", "Hour"], ["day", "Day"]], axis, "/overview", {}, "span") }, lately),
    h("div", { class: "halves" }, h("div", { class: "stack" }, section("Waiting for a person", { actions: h("a", { href: "#/inbox" }, "Inbox") }, people), section("Needs attention", {}, attention)), h("div", { class: "stack" }, !tenant && section("Workers", { actions: h("a", { href: "#/queues" }, "Queues and workers") }, strip), section("Newest tasks", { actions: h("a", { href: "#/tasks" }, "All tasks") }, recent))),
  );
  const known = { usage: null, at: 0, axis };
  await keepUpdated(async () => {
    const data = await all(signal, known);
    redraw(numbers, [data.stats, data.usage, Math.floor(Date.now() / 10_000)], () => figures(data));
    if (data.history) redraw(lately, data.history, () => charts(data.history, SPANS[axis]));
    redraw(people, data.asks.slice(0, 6).map((item) => item.id).concat(data.asks.length), () => waiting(data.asks));
    redraw(attention, concerns(data).map((item) => [item.text, item.note]), () => looks(concerns(data)));
    redraw(recent, data.tasks.map((item) => [item.task_id, item.state, item.reason]), () => newest(data.tasks));
    if (!tenant) redraw(strip, data.workers.map((item) => [item.id, item.running, item.alive]), () => crew(data.workers));
  }, signal, { gap: 2000, every: 10_000 });
}

/** Everything that this key may read; the rest is left out. */
async function all(signal, known) {
  const ask = (path, query, otherwise) => get(path, query, { signal }).catch((error) => {
    if (error.name === "AbortError" || error.status === 401 || error.status === 0) throw error;
    return otherwise;
  });
  const today = new Date(new Date().setHours(0, 0, 0, 0)).toISOString();
  const place = !me.tenant;
  const admin = may("admin");
  const [stats, queues, workers, recent, failed, asks, sent, heard, usage, schedules, intakes, history] = await Promise.all([
    place ? ask("/api/stats", {}, null) : null,
    place ? ask("/api/queues", {}, { queues: [] }) : { queues: [] },
    place ? ask("/api/workers", {}, { workers: [] }) : { workers: [] },
    ask("/api/tasks", { brief: true, limit: 8 }, { tasks: [] }),
    ask("/api/tasks", { brief: true, state: "failed", limit: 20 }, { tasks: [] }),
    gathered(signal),
    admin ? ask("/api/deliveries", { state: "failed", limit: 20 }, { deliveries: [] }) : { deliveries: [] },
    admin ? ask("/api/subscriptions", { limit: 200 }, { subscriptions: [] }) : { subscriptions: [] },
    Date.now() - known.at < COSTLY ? known.usage : ask("/api/usage", { by: "model", since: today }, null),
    ask("/api/schedules", {}, { schedules: [] }),
    ask("/api/intakes", {}, { intakes: [] }),
    place && admin ? ask("/api/history", { span: known.axis }, null) : null,
  ]);
  if (usage !== known.usage) Object.assign(known, { usage, at: Date.now() });
  return { stats, queues: queues.queues, workers: workers.workers, tasks: recent.tasks, failed: failed.tasks, asks, sent: sent.deliveries, heard: heard.subscriptions, usage: usage?.rows || null, schedules: schedules.schedules, intakes: intakes.intakes, history };
}

function figures({ stats, queues, usage, asks, failed }) {
  const oldest = Math.max(0, ...queues.map((item) => item.oldest_s || 0));
  const waiting = WAITING.reduce((sum, reason) => sum + (stats?.reasons[reason] || 0), 0);
  const lately = failed.filter((task) => Date.now() / 1000 - at(task.finished_at || task.updated_at) < DAY).length;
  return tiles(
    stats && tile("Running", compact(stats.states.running || 0), { note: `on ${count(stats.workers, "worker")}${stats.rate ? `, ${rate(stats.rate)} done` : ""}`, href: link("/tasks", { state: "running" }), drawing: "play" }),
    stats && tile("Waiting", compact(waiting), { note: oldestNote(waiting, oldest), tone: oldest > 300 ? "wait" : "", href: "#/queues", drawing: "queues" }),
    tile("Waiting for a person", compact(new Set(asks.map((item) => item.task_id)).size), { note: asks[0]?.until ? ["the first expires ", age(asks[0].until)] : asks.length ? "none of them expires" : "nothing is open", tone: asks.length ? "wait" : "", href: "#/inbox", drawing: "inbox" }),
    tile("Failed", failed.length >= 20 && lately >= 20 ? "20+" : String(lately), { note: "in the last 24 hours", tone: lately ? "bad" : "", href: link("/tasks", { state: "failed" }), drawing: "warn" }),
    usage && spent(usage),
  );
}

function spent(rows) {
  const sum = (name) => rows.reduce((all, row) => all + row[name], 0);
  const [usd, unknown] = [sum("usd"), sum("unknown")];
  return tile("Cost today", unknown && !usd ? "unknown" : `${unknown ? "≥ " : ""}${money(usd)}`, { note: unknown ? `${count(unknown, "call")} of unknown price` : `${compact(sum("tokens_in") + sum("tokens_out"))} tokens`, href: link("/usage", { by: "model", span: "24h" }), drawing: "coin" });
}

const lead = (content) => h("span", { class: "lead" }, content);

function waiting(asks) {
  if (!asks.length) return h("p", { class: "calm" }, icon("check"), "No approvals or questions are waiting.");
  return h("ul", { class: "rows" }, asks.slice(0, 6).map((item) => h("li", null, h("a", { href: link("/inbox", { id: item.id }) }, lead(badge({ approval: "approval", question: "question", doubt: "in doubt", budget: "budget" }[item.kind] || item.kind, item.kind === "doubt" || item.kind === "parked" || item.kind === "quarantined" ? "bad" : item.kind === "question" ? "run" : "wait")), h("span", { class: "clip grow" }, line(item.title, 120)), h("span", { class: "faint" }, item.until ? age(item.until) : age(item.since))))));
}

/** Problems and possible problems, the worst first. */
function concerns({ queues, workers, failed, sent, heard, schedules, stats, intakes }) {
  const problems = [];
  const say = (tone, text, note, href) => problems.push({ tone, text, note, href });
  const alive = workers.filter((worker) => worker.alive);
  if (stats && !alive.length) say("bad", "No worker is running", "tasks wait until one starts", "#/queues");
  for (const worker of workers.filter((candidate) => !candidate.alive)) say("bad", `Worker ${line(worker.host, 40)}:${worker.pid} sends no heartbeat`, "other workers take over its tasks", "#/queues");
  for (const queue of queues) {
    const served = alive.some((worker) => !worker.queues.length || worker.queues.includes(queue.name));
    if (queue.paused) say("wait", `Queue ${line(queue.name, 40)} is paused`, queue.waiting ? `${count(queue.waiting, "task waits", "tasks wait")}` : "no task waits", "#/queues");
    else if (alive.length && !served && queue.waiting) say("bad", `No worker serves ${line(queue.name, 40)}`, count(queue.waiting, "task waits", "tasks wait"), "#/queues");
    else if (queue.oldest_s > 300) say("wait", `Queue ${line(queue.name, 40)} is behind`, `the oldest waits for ${about(queue.oldest_s)}`, "#/queues");
  }
  for (const subscription of heard.filter((candidate) => candidate.disabled)) say("bad", `The subscription of ${line(subscription.sink, 60)} is disabled`, line(subscription.disabled, 80), "#/deliveries?tab=subscriptions");
  if (sent.length) say("bad", `${sent.length >= 20 ? "20 or more" : number(sent.length)} ${sent.length === 1 ? "delivery" : "deliveries"} failed`, line(sent[0].said || "", 80), "#/deliveries?state=failed");
  for (const intake of intakes.filter((candidate) => candidate.source && ["silent", "away", "waiting"].includes(candidate.state))) say(intake.state === "waiting" ? "wait" : "bad", `Intake ${line(intake.name, 40)} is ${intake.state}`, intake.state === "silent" ? "no process receives its messages" : line(intake.detail, 80), "#/intakes");
  for (const intake of intakes.filter((candidate) => candidate.dead)) say("wait", `Intake ${line(intake.name, 40)} has ${count(intake.dead, "dead letter")}`, "messages that could not become tasks", `#/intakes?intake=${encodeURIComponent(intake.name)}`);
  for (const schedule of schedules.filter((candidate) => candidate.paused)) say("idle", `Schedule ${line(schedule.name, 40)} is paused`, "", "#/schedules");
  const names = new Map();
  for (const task of failed.filter((candidate) => Date.now() / 1000 - at(candidate.finished_at || candidate.updated_at) < DAY)) names.set(task.task, [...(names.get(task.task) || []), task]);
  for (const [name, tasks] of names) say("bad", `${line(name, 40)} failed${tasks.length > 1 ? ` ${number(tasks.length)} times` : ""}`, line(tasks[0].error?.message || "", 90), tasks.length === 1 ? link(`/tasks/${part(tasks[0].task_id)}`) : link("/tasks", { name, state: "failed" }));
  const order = { bad: 0, wait: 1, idle: 2 };
  return problems.sort((a, b) => order[a.tone] - order[b.tone]).slice(0, 12);
}

function looks(list) {
  if (!list.length) return h("p", { class: "calm" }, icon("check"), "No problems found.");
  return h("ul", { class: "rows" }, list.map((problem) => h("li", null, h("a", { href: problem.href }, h("i", { class: ["dot", `tone-${problem.tone}`] }), h("span", { class: "two grow" }, h("span", { class: "clip" }, problem.text), problem.note && h("span", { class: "faint clip" }, problem.note)), icon("right")))));
}

function newest(tasks) {
  if (!tasks.length) return h("div", { class: "card" }, empty("No tasks yet", "Submitted tasks appear here.", may("submit") && h("a", { class: "button main", href: "#/new" }, "New task")));
  return h("ul", { class: "rows" }, tasks.map((task) => h("li", null, h("a", { href: link(`/tasks/${part(task.task_id)}`) }, lead(chip(task)), h("span", { class: "clip grow" }, h("b", null, line(task.task, 40)), " ", h("span", { class: "faint" }, briefField(task, "input", 80))), h("span", { class: "faint" }, age(task.created_at, { ago: false }))))));
}

function crew(workers) {
  if (!workers.length) return h("p", { class: "calm bad" }, icon("warn"), "No worker is running.");
  return h("ul", { class: "crew" }, workers.slice(0, 60).map((worker) => h("li", { class: worker.alive ? null : "tone-bad", title: `${safe(worker.host)}:${worker.pid} · ${worker.running} of ${worker.slots} slots` }, h("span", { class: "clip mono" }, `${line(worker.host, 24)}:${worker.pid}`), h("span", { class: "bar" }, h("i", { class: worker.alive ? "tone-run" : "tone-bad", style: { width: `${worker.alive ? (worker.running / worker.slots) * 100 : 100}%` } })), h("span", { class: "faint num" }, worker.alive ? `${compact(worker.running)}/${compact(worker.slots)}` : "no heartbeat"))));
}

