// The actions for one task. Actions that are not possible now are not shown.

import { get, part, post, remove } from "../api.js";
import { h, put } from "../dom.js";
import { attempt, dialog, toast } from "../dialog.js";
import * as fields from "../fields.js";
import { may } from "../me.js";
import { go } from "../router.js";
import { badge, busy, button, menu } from "../ui.js";
import { count, ENDED, line, number, safe, short } from "../words.js";

const RESUMES = new Set(["parked", "quarantined", "paused"]);

export function actions(context) {
  const { task } = context.data;
  if (!may("submit")) return null;
  const ended = ENDED.has(task.state);
  const resumes = task.state === "failed" || RESUMES.has(task.reason);
  return [
    resumes && button("Resume", () => simple(context, "resume", "The task continues where it stopped."), { kind: "main", icon: "play" }),
    task.reason === "budget" && button("Raise the budget", () => budget(context), { kind: "main", icon: "coin" }),
    !ended && button("Message", () => message(context), { icon: "message" }),
    menu("", [
      !ended && task.reason !== "paused" && { text: "Pause", icon: "pause", act: () => simple(context, "pause", "Paused until it is resumed.") },
      !ended && { text: "Change the priority…", icon: "up", act: () => priority(context) },
      !ended && context.data.budget && { text: "Raise the budget…", icon: "coin", act: () => budget(context) },
      { text: "Fork…", icon: "fork", act: () => forked(context) },
      { text: "Submit again…", icon: "plus", act: () => go("/new", { like: task.task_id }) },
      (!ended || prunes(task)) && null,
      prunes(task) && { text: "Delete…", icon: "stop", danger: true, act: () => forget(context) },
      !ended && { text: "Cancel…", icon: "stop", danger: true, act: () => cancel(context) },
    ].filter((item) => item !== false && item !== undefined), { icon: "more", title: "More" }),
  ];
}

async function simple(context, verb, done) {
  await attempt(() => post(`${context.path}/${verb}`), done);
  context.refresh();
}

async function cancel(context) {
  const done = await dialog("Cancel this task?", { text: "The task and all its children end. Finished saga steps are undone first.", name: "Cancel the task", cancel: "Keep it", kind: "danger", act: () => post(`${context.path}/cancel`) });
  if (done) toast("Cancelled", { tone: "good" });
  context.refresh();
}

const prunes = (task) => ENDED.has(task.state) && !task.parent && may("admin");

async function forget(context) {
  const done = await dialog("Delete this task?", { text: "The task and all tasks that it started are deleted for good: input, result, events, conversations, artifacts, deliveries. The key can be used again afterwards.", name: "Delete the task", cancel: "Keep it", kind: "danger", act: () => remove(context.path) });
  if (!done) return;
  toast(`${count(done.pruned, "task")} deleted`, { tone: "good" });
  go("/tasks");
}

async function message(context) {
  const text = fields.area("Message", { rows: 4, maxlength: 10_000, required: true }, { hint: "An agent reads it before its next turn; other handlers receive it as the signal «message»." });
  const done = await dialog("Send a message to this task", {
    fields: [text],
    name: "Send",
    act: () => {
      if (!text.input.value.trim()) throw new Error("Enter a message.");
      return post(`${context.path}/message`, { text: text.input.value });
    },
  });
  if (done) toast("Sent", { tone: "good" });
  context.refresh();
}

async function priority(context) {
  const input = fields.numeric("Priority", { value: context.data.task.priority, step: 1 }, { hint: "Tasks with a higher priority go first. The default is 0." });
  await dialog("Change the priority", { fields: [input], name: "Change", act: () => post(`${context.path}/priority`, { priority: Number(input.input.value) }) });
  context.refresh();
}

const LIMITS = { steps: ["max_steps", "Steps", 1], llm_tokens: ["max_llm_tokens", "Tokens", 1], cost_usd: ["max_cost_usd", "Cost in $", "any"], wall_time: ["max_wall_time_s", "Seconds", "any"] };

async function budget(context) {
  const { meters, needs = {}, task_id: holder } = await get(`${context.path}/budget`);
  const enough = (kind) => (meters[kind].spent || 0) + (meters[kind].reserved || 0) + Math.max(0, ...Object.values(needs).map((need) => need[kind] || 0));
  const proposed = (kind) => (enough(kind) > meters[kind].limit || meters[kind].spent >= meters[kind].limit ? Math.max(meters[kind].limit * 2, Math.ceil(enough(kind))) : meters[kind].limit);
  const rows = Object.entries(LIMITS).filter(([kind]) => meters[kind]?.limit);
  const inputs = rows.map(([kind, [name, title, step]]) => [name, meters[kind].limit, fields.numeric(title, { value: proposed(kind), min: 0, step }, { hint: `${number(meters[kind].spent)} of ${number(meters[kind].limit)} spent` })]);
  const done = await dialog("Raise the budget", {
    text: holder === context.id ? "All tasks that wait for it continue." : `This is the budget of ${short(holder)}, which this task spends from. All tasks that wait for it continue.`,
    fields: inputs.map(([, , field]) => field),
    name: "Raise",
    act: () => {
      const changed = Object.fromEntries(inputs.filter(([, was, field]) => Number(field.input.value) !== was).map(([name, , field]) => [name, Number(field.input.value)]));
      if (!Object.keys(changed).length) throw new Error("Change one of the limits first.");
      return post(`${context.path}/budget`, changed);
    },
  });
  if (done) toast("The budget was raised", { tone: "good" });
  context.refresh();
}

/** A new task from the first records of this one. The dialog first shows which actions would be repeated. */
export async function forked(context, seq) {
  const { task } = context.data;
  const info = h("div", { class: "stack" }, busy("Checking what would be repeated"));
  const where = fields.numeric("Keep everything up to record", { value: seq ?? context.chart.seq(), min: 1, step: 1 }, { required: true });
  const other = fields.tick("With another input, from the beginning", { checked: false });
  const input = fields.area("Input", { rows: 6, value: JSON.stringify(task.input, null, 2).slice(0, 100_000) });
  input.hidden = true;
  const body = () => (other.input.checked ? { input: parsed(input) } : { at: Number(where.input.value) });
  let newest = 0;
  async function look(first = false) {
    newest += 1;
    const mine = newest;
    input.hidden = !other.input.checked;
    where.hidden = other.input.checked;
    try {
      const plan = await post(`${context.path}/fork`, { ...body(), preview: true });
      if (mine === newest) put(info, preview(plan));
    } catch (error) {
      if (mine !== newest) return;
      const near = (error.more?.near || []).filter((record) => Number.isInteger(record));
      if (first && near.length) take(near[0]);
      else put(info, h("p", { class: "form-trouble" }, safe(error.message)), h("div", { class: "row" }, near.map((record) => button(`Record ${record}`, () => take(record), { small: true }))));
    }
  }
  function take(record) {
    where.input.value = record;
    look();
  }
  where.input.addEventListener("change", () => look());
  other.input.addEventListener("change", () => look());
  look(true);
  const fork = await dialog("Fork this task", { text: "A new task starts with the records of this one, and continues from there. This task does not change.", fields: [where, other, input, info], wide: true, name: "Fork", act: () => post(`${context.path}/fork`, body()) });
  if (fork?.task_id) {
    toast(`Forked as ${short(fork.task_id)}`, { tone: "good" });
    go(`/tasks/${part(fork.task_id)}`);
  }
}

function preview({ keeps, would_repeat: repeats = [], more = 0 }) {
  const sorted = [...repeats].sort((action, b) => Number(b.effect) - Number(action.effect) || action.seq - b.seq);
  const announced = repeats.filter((action) => action.effect).length;
  const title = `${count(repeats.length + more, "action")} of this task would be repeated${announced ? `, ${announced} of them with an effect that must not be repeated silently` : ""}:`;
  return [
    h("p", { class: "faint" }, keeps ? `${count(keeps, "record")} ${keeps === 1 ? "is" : "are"} kept.` : "No record is kept: the task starts from the beginning."),
    repeats.length
      ? h("div", { class: "warn-box", tabindex: "0", role: "region", "aria-label": "Actions that would be repeated" }, h("h3", null, title), h("ul", { class: "plain" }, sorted.slice(0, 100).map((action) => h("li", { class: "row" }, h("span", { class: "mono faint num" }, number(action.seq)), h("bdi", null, line(action.name.replace(/^\[[^\]]*\]|#\d+$/g, ""), 120)), action.kind !== "step" && !action.name.startsWith(action.kind) && h("span", { class: "faint" }, safe(action.kind)), action.effect && badge("effect", "bad")))), repeats.length > 100 && h("p", { class: "faint" }, `and ${number(repeats.length - 100)} more`))
      : h("p", { class: "good-text" }, "No action of this task would be repeated."),
  ];
}

function parsed(field) {
  try {
    return JSON.parse(field.input.value);
  } catch (error) {
    throw new Error(`The input is not JSON: ${error.message}`);
  }
}

