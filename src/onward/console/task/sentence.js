// The status of a task, as a sentence.

import { h } from "../dom.js";
import { age, taskLink } from "../ui.js";
import { at, count, ENDED, line, moment, safe, short, span } from "../words.js";

/** A list of strings and elements. */
export function sentence(task, chart, data) {
  if (ENDED.has(task.state)) return ended(task);
  const open = chart.open();
  const doubt = open.find((bar) => bar.state === "in_doubt");
  if (doubt) return ["In doubt: it is not known whether ", name(doubt.name), " happened: ", line(doubt.text, 160), "."];
  if (task.state === "running") return running(task, open);
  const wait = open.find((bar) => ["approval", "question"].includes(bar.kind)) || open.find((bar) => bar.state === "waiting");
  if (task.reason === "budget") return [budget(task), " Raise the budget to continue the task."];
  if (wait && ["approval", "question", "signal", "child", "asleep", "retrying"].includes(task.reason)) return waiting(task, wait, open);
  return why(task, data);
}

function budget(task) {
  const { subject, detail } = task.why || {};
  if (!detail) return "The budget is spent.";
  return line(subject ? `The budget has not enough ${subject} for the next call: ${detail}.` : `The budget is spent: ${detail}.`, 300);
}

function ended(task) {
  const took = span(at(task.finished_at) - at(task.created_at));
  const attempts = task.attempt > 1 ? `, in attempt ${task.attempt}` : "";
  if (task.state === "completed") return [`Completed after ${took}${attempts}, `, age(task.finished_at), "."];
  if (task.state === "cancelled") return ["Cancelled ", age(task.finished_at), "."];
  return [`Failed after ${took}${attempts}: `, h("span", { class: "bad-text" }, line(`${task.error?.type || "Error"}: ${task.error?.message || ""}`, 300))];
}

function running(task, open) {
  const now = open.filter((bar) => bar.state === "running" && bar.kind !== "turn").slice(-3);
  const who = task.worker ? [" on worker ", h("span", { class: "mono" }, short(task.worker))] : "";
  if (!now.length) return ["Running", who, "."];
  return ["Running ", now.map((bar, i) => [i ? ", " : "", name(bar.kind === "model" ? "the model" : bar.name)]), " since ", age(now[now.length - 1].start, { ago: false }), who, "."];
}

function waiting(task, bar, open) {
  const since = [", since ", age(bar.start, { ago: false })];
  const until = bar.until ? `, until ${moment(bar.until)}` : "";
  switch (bar.kind) {
    case "approval":
      return ["Waits for approval of ", name(bar.name || bar.text), since, until, "."];
    case "question":
      return ["Asks: ", h("bdi", null, line(bar.text, 200)), since, until, "."];
    case "sleep":
      return ["Asleep", since, until, "."];
    case "child": {
      const all = open.filter((child) => child.kind === "child" && child.child_id);
      return ["Waits for ", all.slice(0, 3).map((child, i) => [i ? ", " : "", name(child.name), " ", taskLink(child.child_id)]), all.length > 3 ? ` and ${all.length - 3} more` : "", since, "."];
    }
    case "retry":
      return [`Attempt ${bar.attempt} failed`, bar.text ? ` (${line(bar.text, 160)})` : "", `; the next attempt is at ${moment(bar.until)}.`];
    default:
      return ["Waits for ", name(bar.name || "a signal"), since, until, "."];
  }
}

const WHY = { queued: "Queued and ready to start.", delayed: "Delayed: it starts later.", paused: "Paused until it is resumed.", parked: "Parked: the code cannot continue from the journal. See the last event, then resume the task.", quarantined: "Quarantined: its workers died too often. Resume it when the cause is fixed.", cancelling: "Being cancelled: finished saga steps are undone first.", quota: "Waits for the quota of a provider." };

function why(task) {
  const { behind, detail } = task.why || {};
  const text = behind ? `Behind ${count(behind, "other task")}` : detail;
  const due = task.due_at && ["delayed", "retrying", "quota"].includes(task.reason) ? [" Due ", age(task.due_at), "."] : "";
  return [WHY[task.reason] || `${safe(task.state)}.`, text ? ` ${text[0].toUpperCase()}${line(text.slice(1), 200)}.` : "", due];
}

const name = (text) => h("bdi", { class: "said" }, line(text, 120));
