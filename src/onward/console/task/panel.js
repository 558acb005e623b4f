// The panel beside the timeline: input, output and error of the selected bar; without a selection, those of the task.

import { part } from "../api.js";
import { h, put } from "../dom.js";
import { go } from "../router.js";
import { label } from "../timeline.js";
import { badge, button, clock, facts, failure, taskLink } from "../ui.js";
import { copyable, value } from "../values.js";
import { bytes, line, moment, number, safe, span } from "../words.js";
import { forked } from "./actions.js";

const TONES = { ok: "good", failed: "bad", killed: "bad", running: "run", waiting: "wait", retried: "bad", in_doubt: "bad", undone: "undo", denied: "bad" };
let latest = 0;

export async function panel(root, bar, context, close) {
  latest += 1;
  const mine = latest;
  if (!bar) return put(root, whole(context.data.task));
  const title = bar.mark ? bar.name : label(bar);
  const top = h("header", null, h("h2", { class: "clip grow", title: safe(title) }, line(title, 80)), button("", close, { icon: "close", title: "Close", kind: "quiet", small: true }));
  const more = h("div", { class: "stack" });
  put(root, h("div", { class: "card" }, top, h("div", { class: "body stack" }, summary(bar, context), more)));
  if (bar.mark) return put(more, h("p", null, safe(bar.text || "")));
  if (bar.kind === "shift" || bar.kind === "queue" || bar.kind === "turn") return put(more, bar.kind === "turn" && button("Show the messages", () => go(`/tasks/${part(context.id)}`, { tab: "conversation", turn: bar.name }), { icon: "message", small: true }));
  try {
    const record = await context.ask(`/records/${bar.last}`);
    if (mine === latest) put(more, recorded(record, bar, context));
  } catch (error) {
    if (mine === latest && error.name !== "AbortError") put(more, failure(error));
  }
  return undefined;
}

function summary(bar, { id }) {
  if (bar.mark) return facts([["at", clock(bar.at)], ["record", number(bar.seq)]]);
  return [
    h("div", { class: "row" }, badge(bar.state === "ok" ? "done" : bar.state.replace("_", " "), TONES[bar.state]), h("span", { class: "faint" }, bar.kind)),
    bar.text && bar.kind !== "model" && !["failed", "retried"].includes(bar.state) && h("p", { class: "text" }, line(bar.text, 400)),
    facts([
      ["began", clock(bar.start)],
      ["took", bar.end ? (bar.end > bar.start ? span(bar.end - bar.start) : null) : "not finished"],
      ["until", bar.until ? moment(bar.until) : null],
      ["attempt", bar.attempt > 1 ? number(bar.attempt) : null],
      ["child", bar.child_id ? taskLink(bar.child_id) : null],
      ["record", h("a", { href: `#/tasks/${part(id)}?tab=events&from=${bar.seq}` }, bar.last > bar.seq ? `${number(bar.seq)} to ${number(bar.last)}` : number(bar.seq))],
    ]),
  ];
}

function recorded(record, bar, context) {
  const name = `${context.id}-${record.seq}`;
  const error = record.error;
  return [
    error && section("Error", h("p", { class: "bad-text text" }, line(`${error.type || "Error"}: ${error.message || ""}`, 600)), error.traceback && value(error.traceback, { name: `${name}-error`, label: "Traceback" })),
    facts([
      ["attempts", record.attempts > 1 ? number(record.attempts) : null],
      ["effect key", record.effect_key ? copyable(record.effect_key) : null],
    ]),
    record.truncated && section(`The beginning (of ${bytes(record.size)})`, value(record.text || "", { name, label: "Record" })),
    !record.truncated && present(record.input) && section("Input", value(record.input, { name: `${name}-input`, label: "Input" })),
    !record.truncated && present(record.output) && section("Output", value(record.output, { name: `${name}-output`, label: "Output" })),
    !record.truncated && !present(record.input) && !present(record.output) && !error && present(record.data) && section("Record", value(record.data, { name, label: "Record" })),
    h("div", { class: "row" }, button("Fork from here", () => forked(context, bar.last), { icon: "fork", small: true, title: "A new task that keeps everything up to this record" })),
  ];
}

const present = (value_) => value_ !== null && value_ !== undefined && !(typeof value_ === "object" && !Object.keys(value_).length);

function whole(task) {
  return h(
    "div",
    { class: "card" },
    h("div", { class: "body stack" }, task.erased ? section("Erased", h("p", { class: "faint" }, "The input and the results of this task were erased: the key that encrypted them was destroyed. Names, times and labels remain.")) : section("Input", value(task.input, { name: `${task.task_id}-input`, first: 1500, label: "Input" })), task.error ? section("Error", h("p", { class: "bad-text text" }, line(`${task.error.type || "Error"}: ${task.error.message || ""}`, 600)), value(task.error, { name: `${task.task_id}-error`, first: 1500, label: "Error" })) : null, task.partial === null || task.partial === undefined ? null : section("Unfinished result", h("p", { class: "faint" }, "The best result that the task had when it failed. It is not complete."), value(task.partial, { name: `${task.task_id}-partial`, first: 3000, label: "Unfinished result" })), task.state === "completed" && !task.erased ? section("Result", value(task.result, { name: `${task.task_id}-result`, first: 3000, label: "Result" })) : null),
  );
}

const section = (title, ...children) => h("section", { class: "sub" }, h("h2", null, title), children);
