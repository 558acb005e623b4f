// Where a task stands, as a sentence.

import { h } from "../dom.js";
import { link } from "../router.js";
import { age, taskLink } from "../ui.js";
import { at, ENDED, line, moment, safe, short, span } from "../words.js";

/** Text and elements. */
export function sentence(task, chart, found) {
  if (ENDED.has(task.state)) return ended(task);
  const open = chart.open();
  const doubt = open.find((bar) => bar.state === "in_doubt");
  if (doubt) return ["Nobody knows whether ", name(doubt.name), " happened: ", line(doubt.text, 160), ". ", inbox("Decide it")];
  if (task.state === "running") return running(task, open);
  const wait = open.find((bar) => ["approval", "question"].includes(bar.kind)) || open.find((bar) => bar.state === "waiting");
  if (task.reason === "budget") return [budget(task), " Raise it, and the task goes on where it stopped."];
  if (wait && ["approval", "question", "signal", "child", "asleep", "retrying"].includes(task.reason)) return waiting(task, wait, open);
  return why(task, found);
}

function budget(task) {
  const text = line((task.why?.text || "").replace(/^waits for budget: /, ""), 240);
  return text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "The budget is spent.";
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
      return ["Waits for somebody to approve ", name(bar.name || bar.text), since, until, ". ", inbox("Decide it")];
    case "question":
      return ["Asks: ", h("bdi", null, line(bar.text, 200)), since, until, ". ", inbox("Answer it")];
    case "sleep":
      return ["Asleep", since, until, "."];
    case "child": {
      const all = open.filter((one) => one.kind === "child" && one.child_id);
      return ["Waits for ", all.slice(0, 3).map((one, i) => [i ? ", " : "", name(one.name), " ", taskLink(one.child_id)]), all.length > 3 ? ` and ${all.length - 3} more` : "", since, "."];
    }
    case "retry":
      return [`Attempt ${bar.attempt} failed`, bar.text ? ` (${line(bar.text, 160)})` : "", `; tried again at ${moment(bar.until)}.`];
    default:
      return ["Waits for ", name(bar.name || "a signal"), since, until, "."];
  }
}

const WHY = { queued: "In the queue, ready to be started.", delayed: "Not to be started yet.", paused: "Paused: nobody goes on with it until it is resumed.", parked: "Parked: its code cannot go on with what was recorded. Look at the last event, then resume it.", quarantined: "In quarantine: it broke its workers too often. Resume it once the cause is gone.", cancelling: "On its way to its end: what is owed is undone first.", quota: "Waits until a quota of somebody else's is there again." };

function why(task) {
  const text = task.why?.behind ? `Behind ${task.why.behind} others` : task.reason === "queued" ? "" : task.why?.text;
  const due = task.due_at && ["delayed", "retrying", "quota"].includes(task.reason) ? [" Due ", age(task.due_at), "."] : "";
  return [WHY[task.reason] || `${safe(task.state)}.`, text ? ` ${line(text, 200)}.` : "", due];
}

const name = (text) => h("bdi", { class: "said" }, line(text, 120));
const inbox = (text) => h("a", { href: link("/inbox") }, text);
