// Lists of one task: its records, its children, and the deliveries of its events.

import { get } from "../api.js";
import { h, put } from "../dom.js";
import * as live from "../live.js";
import { go, here, link } from "../router.js";
import { age, badge, busy, button, chip, clock, empty, failure, table } from "../ui.js";
import { value } from "../values.js";
import { at, brief, briefField, count, line, number, safe, short, span, standing } from "../words.js";

const PAGE = 200;

/** All records, the newest first. */
export async function events(root, context, signal) {
  put(root, busy());
  let after = Number(here().one("from")) ? Math.max(0, Number(here().one("from")) - 1) : null;
  let last = false; // whether the newest records are shown
  const body = h("div", { class: "stack" });
  async function read() {
    try {
      const end = context.chart.seq();
      const start = after ?? Math.max(0, end - PAGE);
      const { records, next } = await context.ask("/events", { after: start, limit: PAGE });
      if (signal.aborted) return;
      last = next === null;
      put(body, bar(start, records, next), records.length ? h("div", { class: "events", role: "list" }, records.toReversed().map(row)) : empty("No records here"));
      if (!root.contains(body)) put(root, body);
    } catch (error) {
      if (error.name !== "AbortError" && !signal.aborted) put(root, failure(error, read));
    }
  }
  function bar(start, records, next) {
    const shown = records.length ? `Records ${number(records[0].seq)} to ${number(records[records.length - 1].seq)}` : "";
    const to = (from) => () => ((after = from), read());
    return h("div", { class: "row" }, h("span", { class: "faint grow" }, shown), button("Newest", to(null), { small: true, kind: "quiet", disabled: after === null }), button("", to(next ?? 0), { icon: "left", title: "Later", small: true, disabled: next === null }), button("", to(Math.max(0, start - PAGE)), { icon: "right", title: "Earlier", small: true, disabled: start === 0 }), button("First", to(0), { small: true, kind: "quiet", disabled: start === 0 }));
  }
  let due = 0;
  live.on(`task:${context.id}`, () => (clearTimeout(due), (due = setTimeout(() => !signal.aborted && last && after === null && read(), 400))), signal);
  await read();
}

function row(record) {
  const more = h("div", { class: "event-more", hidden: true });
  const toggle = () => {
    if (!more.firstChild) put(more, value(record.data, { name: `record-${record.seq}`, label: `Record ${record.seq}` }));
    more.hidden = !more.hidden;
    opener.setAttribute("aria-expanded", String(!more.hidden));
  };
  const opener = h("button", { type: "button", class: "event", "aria-expanded": "false", onclick: toggle }, h("span", { class: "num faint" }, number(record.seq)), clock(record.at), h("span", { class: "event-kind" }, safe(record.kind)), h("bdi", { class: "clip" }, line(record.key, 80)), h("bdi", { class: "clip faint" }, record.data?.erased === true ? "(erased)" : brief(record.data, 160)));
  return h("div", { role: "listitem" }, opener, more);
}

/** The children of the task. */
export async function children(root, context, signal) {
  put(root, busy());
  async function read() {
    try {
      const page = await get("/api/tasks", { brief: true, parent: context.id, limit: 200 }, { signal });
      const rows = page.tasks;
      if (signal.aborted) return;
      const states = new Map();
      for (const task of rows) states.set(standing(task).word, (states.get(standing(task).word) || 0) + 1);
      put(
        root,
        rows.length > 1 && h("p", { class: "faint children-sum" }, `${count(rows.length, "child", "children")}${page.next ? " are shown" : ""}: ${[...states].map(([word, n]) => `${number(n)} ${word}`).join(", ")}`),
        table(
          [
            { name: "State", cell: (task) => chip(task, { why: true }) },
            { name: "Task", cell: (task) => [h("b", null, line(task.task, 80)), h("div", { class: "faint clip brief" }, briefField(task, "input", 120))] },
            { name: "Created", class: "tight", cell: (task) => age(task.created_at) },
            { name: "Took", class: "end", cell: (task) => (task.finished_at ? span(at(task.finished_at) - at(task.created_at)) : "") },
            { name: "Id", class: "tight", cell: (task) => h("a", { class: "mono", href: link(`/tasks/${encodeURIComponent(task.task_id)}`) }, short(task.task_id)) },
          ],
          rows,
          { label: "Children", href: (task) => link(`/tasks/${encodeURIComponent(task.task_id)}`), none: empty("No children", "Tasks that this task starts appear here.") },
        ),
        page.next && h("p", null, button("Show all", () => go("/tasks", { parent: context.id }))),
      );
    } catch (error) {
      if (error.name !== "AbortError" && !signal.aborted) put(root, failure(error, read));
    }
  }
  let due = 0;
  live.on("task", () => (clearTimeout(due), (due = setTimeout(() => !signal.aborted && read(), 800))), signal);
  await read();
}

const TONES = { delivered: "good", dead: "bad", pending: "idle", waiting: "idle", failed: "bad" };

/** The deliveries of its events. */
export async function deliveries(root, context, signal) {
  put(root, busy());
  try {
    const { deliveries: rows } = await get("/api/deliveries", { task_id: context.id }, { signal });
    put(
      root,
      table(
        [
          { name: "State", cell: (delivery) => badge(safe(delivery.state), TONES[delivery.state] || "idle") },
          { name: "Event", cell: (delivery) => safe(delivery.type) },
          { name: "To", cell: (delivery) => h("bdi", null, line(delivery.sink, 80)) },
          { name: "Attempts", class: "end", cell: (delivery) => number(delivery.attempts) },
          { name: "Last response", cell: (delivery) => h("bdi", { class: "faint" }, line(delivery.said || "", 120)) },
          { name: "When", class: "tight", cell: (delivery) => age(delivery.done_at || delivery.due_at || delivery.at) },
        ],
        rows,
        { label: "Deliveries", none: empty("No deliveries", "No subscription covers this task.") },
      ),
    );
  } catch (error) {
    if (error.name !== "AbortError") put(root, error.status === 403 ? empty("Not allowed", "Deliveries need a key with the scope admin.") : failure(error));
  }
}
