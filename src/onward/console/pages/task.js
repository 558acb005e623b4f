// One task: its status as a sentence, its budget, its actions; and tabs for everything else.

import { get, part } from "../api.js";
import { h, put } from "../dom.js";
import { icon } from "../icons.js";
import * as live from "../live.js";
import { may, setTitle } from "../me.js";
import { go, here, link } from "../router.js";
import { actions } from "../task/actions.js";
import { artifacts } from "../task/artifacts.js";
import { conversation } from "../task/conversation.js";
import { children, deliveries, events } from "../task/lists.js";
import { panel } from "../task/panel.js";
import { sentence } from "../task/sentence.js";
import { state } from "../task/state.js";
import { waiting } from "../task/waiting.js";
import { timeline } from "../timeline.js";
import { age, badge, chip, meter, tabs, tag, taskLink } from "../ui.js";
import { copyable } from "../values.js";
import { at, compact, ENDED, line, money, number, safe, short, span } from "../words.js";

const FIRST = 20; // records in which an agent writes its first state

export async function show(root, place) {
  const { id, signal } = place;
  const path = `/api/tasks/${part(id)}`;
  const ask = (more, query) => get(`${path}${more}`, query, { signal });
  const [task, waterfall] = await Promise.all([ask(""), ask("/timeline")]);
  const data = { task, budget: null, progress: null, hasState: false, delivers: false };
  setTitle(`${line(task.task, 60)} ${short(id)}`);

  const head = h("header", { class: "task-head" });
  const chart = timeline({ pick: picked, signal });
  const side = h("aside", { class: "side", "aria-label": "Details" });
  let due = 0; // the timer of the next read
  let busy = false;
  const waits = new Set(); // called when the items that wait for a person change
  const context = { onWaiting: (changed, stop) => (waits.add(changed), stop.addEventListener("abort", () => waits.delete(changed), { once: true })), id, path, ask, signal, data, chart, refresh: () => refresh(true) };
  context.waiting = waiting(context, () => waits.forEach((changed) => changed()));
  const shown = tabs(
    [
      { id: "timeline", name: "Timeline", show: (root) => root.append(h("div", { class: "split" }, chart.element, side)) },
      { id: "conversation", name: "Conversation", show: (root, stop) => conversation(root, context, stop) },
      { id: "state", name: "State", show: (root, stop) => state(root, context, stop) },
      { id: "artifacts", name: "Artifacts", show: (root, stop) => artifacts(root, context, stop) },
      { id: "events", name: "Events", show: (root, stop) => events(root, context, stop) },
      { id: "children", name: "Children", show: (root, stop) => children(root, context, stop) },
      { id: "deliveries", name: "Deliveries", show: (root, stop) => deliveries(root, context, stop) },
    ],
    { label: "Parts of this task", chosen: (tab) => moveTo({ tab: tab === "timeline" ? null : tab }) },
  );
  signal.addEventListener("abort", shown.stop, { once: true });
  put(root, head, context.waiting.element, shown.element);
  chart.take(waterfall);
  shown.take(place.one("tab") || "timeline");
  draw();
  if (place.one("step")) chart.choose(Number(place.one("step")));
  else picked(null);
  if (waterfall.more) refresh(true);
  live.follow(id, signal);
  live.on(`task:${id}`, heard, signal);
  live.on("reset", () => refresh(), signal);
  const slow = setInterval(() => !document.hidden && refresh(), 15_000); // for what the stream does not report: the position in a queue
  signal.addEventListener("abort", () => clearInterval(slow), { once: true });
  more();

  // ── updates ──

  function heard(update) {
    if (update.total_step || update.step) data.progress = { step: update.step, total: update.total_step, message: update.message };
    refresh();
  }

  function refresh(at_once = false) {
    if (signal.aborted) return;
    clearTimeout(due);
    due = setTimeout(read, at_once ? 0 : 200);
  }

  async function read() {
    if (busy) return refresh();
    busy = true;
    try {
      const after = chart.seq();
      const was = data.task.state;
      const [task, more] = await Promise.all([ask(""), ask("/timeline", { after })]);
      data.task = task;
      chart.take({ ...more, after });
      if (more.more) refresh(true);
      if (ENDED.has(was) && !ENDED.has(task.state)) live.restart(); // an ended task was no longer in the stream
      await Promise.all([spent(), context.waiting.read()]);
      draw();
    } catch (error) {
      if (error.name !== "AbortError") console.warn(error.message);
    } finally {
      busy = false;
    }
    return undefined;
  }

  /** Data that is read once, after the page is drawn. */
  async function more() {
    await Promise.allSettled([
      context.waiting.read(),
      spent(),
      ask("/events", { limit: FIRST }).then(({ records }) => (data.hasState = records.some((record) => record.kind === "state.patched"))),
      may("admin") && get("/api/deliveries", { task_id: id, limit: 1 }, { signal }).then(({ deliveries: sent }) => (data.delivers = sent.length > 0)),
      ask("/events", { after: Math.max(0, chart.seq() - 100), limit: 100 }).then(({ records }) => {
        const last = records.reverse().find((record) => record.kind === "progress" && record.data && (record.data.total || record.data.step));
        if (last && !data.progress) data.progress = { step: last.data.step, total: last.data.total, message: last.data.message };
      }),
    ]);
    if (!signal.aborted) draw();
  }

  async function spent() {
    const spends = data.task.usage || data.task.reason === "budget" || chart.bars().some((bar) => bar.kind === "model" || bar.kind === "child");
    if (data.budget === false || !spends) return; // most tasks have no budget
    const budget = await ask("/budget", { or_empty: true }).catch(() => null);
    if (budget) data.budget = Object.keys(budget.meters).length ? budget : false;
  }

  // ── the head ──

  function draw() {
    const { task } = data;
    const several = (kind) => chart.bars().filter((bar) => bar.kind === kind).length;
    shown.counts("conversation", several("turn"));
    shown.counts("children", several("child"));
    shown.counts("events", chart.seq());
    const made = chart.marks().filter((mark) => mark.kind === "artifact").length;
    shown.counts("artifacts", made);
    // A tab without anything in it is not offered: most tasks are no agents, and have no children.
    for (const [id, offered] of [["conversation", several("turn")], ["state", data.hasState], ["artifacts", made], ["children", several("child")], ["deliveries", data.delivers]]) shown.offer(id, Boolean(offered));
    const menus = head.querySelector(".menu-list:not([hidden])");
    if (menus) return; // a menu is open
    put(
      head,
      h("nav", { class: "crumbs", "aria-label": "Breadcrumbs" }, h("a", { href: link("/tasks") }, "Tasks"), icon("right", 14), task.parent && [taskLink(task.parent), icon("right", 14)], h("span", null, copyable(task.task_id, short(task.task_id)))),
      h("div", { class: "page-head" }, h("div", null, h("h1", { class: "task-title" }, h("bdi", null, line(task.task, 120)), chip(task), task.erased && badge("erased", "idle")), h("p", { class: "sentence" }, sentence(task, chart, data))), h("div", { class: "actions" }, actions(context))),
      progress(),
      h("div", { class: "meters" }, metersOf(data)),
      h(
        "div",
        { class: "meta" },
        fact("created", age(task.created_at)),
        task.finished_at && fact("took", span(at(task.finished_at) - at(task.created_at))),
        task.deadline_at && fact("deadline", age(task.deadline_at)),
        task.attempt > 1 && fact("attempt", number(task.attempt)),
        fact("queue", h("a", { href: link("/tasks", { queue: task.queue }) }, safe(task.queue))),
        task.priority !== 0 && fact("priority", number(task.priority)),
        task.worker && fact("worker", h("span", { class: "mono" }, short(task.worker))),
        task.key && fact("key", h("span", { class: "mono" }, line(task.key, 60))),
        task.tenant && fact("tenant", safe(task.tenant)),
        task.usage?.calls > 0 && fact("model calls", number((task.usage.with_children || task.usage).calls)),
        task.group && fact("group", line(task.group, 60)),
        Object.entries(task.labels || {}).map(([name, value]) => tag(name, value)),
      ),
    );
  }

  function progress() {
    const { step, total, message } = data.progress || {};
    if (ENDED.has(data.task.state) || !total) return null;
    return h("div", { class: "progress" }, meter(line(message || "Progress", 100), step, total, { say: number }));
  }

  // ── the panel ──

  function picked(bar) {
    if (bar) moveTo({ step: bar.seq });
    panel(side, bar, context, () => (moveTo({ step: null }), picked(null)));
    if (bar && matchMedia("(max-width: 1000px)").matches) side.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  function moveTo(change) {
    const now = here();
    if (now.path !== place.path) return;
    const query = { tab: now.one("tab"), step: now.one("step"), turn: now.one("turn"), ...change };
    go(place.path, query, { replace: true });
  }
  context.moveTo = moveTo;

  return {
    changed(place) {
      shown.take(place.one("tab") || "timeline");
    },
  };
}

const fact = (name, value) => h("span", { class: "fact" }, h("span", { class: "faint" }, name), value);

function metersOf({ task, budget }) {
  const usage = task.usage?.with_children || task.usage;
  const limits = budget?.meters || {};
  const some = (name, kind, spent, say) => (limits[kind]?.limit ? meter(name, limits[kind].spent, limits[kind].limit, { say, reserved: limits[kind].reserved }) : spent === undefined ? null : meter(name, spent, null, { say }));
  const tokens = usage ? (usage.input_tokens === null ? null : usage.input_tokens + usage.output_tokens) : undefined;
  return [
    some("Steps", "steps", undefined, number),
    some("Tokens", "llm_tokens", tokens, compact),
    some("Cost", "cost_usd", usage ? usage.cost_usd : undefined, money),
    some("Time", "wall_time", undefined, span),
  ];
}

