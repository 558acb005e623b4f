// What can be done with one task. What cannot be done just now is not offered.

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
  const { task } = context.found;
  if (!may("submit")) return null;
  const ended = ENDED.has(task.state);
  const resumes = task.state === "failed" || RESUMES.has(task.reason);
  return [
    resumes && button("Resume", () => simple(context, "resume", "It goes on where it stopped."), { kind: "main", icon: "play" }),
    task.reason === "budget" && button("Raise the budget", () => budget(context), { kind: "main", icon: "coin" }),
    !ended && button("Message", () => message(context), { icon: "message" }),
    menu("", [
      !ended && task.reason !== "paused" && { text: "Pause", icon: "pause", act: () => simple(context, "pause", "Paused. Nobody goes on with it until it is resumed.") },
      !ended && { text: "Change the priority…", icon: "up", act: () => priority(context) },
      !ended && context.found.budget && { text: "Raise the budget…", icon: "coin", act: () => budget(context) },
      { text: "Fork…", icon: "fork", act: () => forked(context) },
      { text: "Submit again…", icon: "plus", act: () => go("/new", { like: task.task_id }) },
      (!ended || prunes(task)) && null,
      prunes(task) && { text: "Forget…", icon: "stop", danger: true, act: () => forget(context) },
      !ended && { text: "Cancel…", icon: "stop", danger: true, act: () => cancel(context) },
    ].filter((item) => item !== false && item !== undefined), { icon: "more", title: "More" }),
  ];
}

async function simple(context, verb, done) {
  await attempt(() => post(`${context.path}/${verb}`), done);
  context.refresh();
}

async function cancel(context) {
  const done = await dialog("Cancel this task?", { text: "It ends, and so do all tasks that it started. What a saga owes is undone first.", name: "Cancel the task", cancel: "Keep it", kind: "danger", act: () => post(`${context.path}/cancel`) });
  if (done) toast("Cancelled", { tone: "good" });
  context.refresh();
}

const prunes = (task) => ENDED.has(task.state) && !task.parent && may("admin");

async function forget(context) {
  const done = await dialog("Forget this task?", { text: "It is gone for good, with all tasks that it started: input, result, events, what models were shown, artifacts, deliveries. Its key may then be used again.", name: "Forget the task", cancel: "Keep it", kind: "danger", act: () => remove(context.path) });
  if (!done) return;
  toast(`${count(done.pruned, "task")} forgotten`, { tone: "good" });
  go("/tasks");
}

async function message(context) {
  const text = fields.area("Message", { rows: 4, maxlength: 10_000, required: true }, { hint: "An agent reads it before its next turn; other handlers as the signal «message»." });
  const done = await dialog("Say something to this task", {
    fields: [text],
    name: "Send",
    act: () => {
      if (!text.input.value.trim()) throw new Error("Say something first.");
      return post(`${context.path}/message`, { text: text.input.value });
    },
  });
  if (done) toast("Sent", { tone: "good" });
  context.refresh();
}

async function priority(context) {
  const input = fields.numeric("Priority", { value: context.found.task.priority, step: 1 }, { hint: "Higher goes first. 0 is ordinary." });
  await dialog("Change the priority", { fields: [input], name: "Change", act: () => post(`${context.path}/priority`, { priority: Number(input.input.value) }) });
  context.refresh();
}

const LIMITS = { steps: ["max_steps", "Steps", 1], llm_tokens: ["max_llm_tokens", "Tokens", 1], cost_usd: ["max_cost_usd", "Cost in $", "any"], wall_time: ["max_wall_time_s", "Seconds", "any"] };

async function budget(context) {
  const { meters, needs = {}, task_id: holder } = await get(`${context.path}/budget`);
  const enough = (kind) => (meters[kind].spent || 0) + (meters[kind].reserved || 0) + Math.max(0, ...Object.values(needs).map((one) => one[kind] || 0));
  const proposed = (kind) => (enough(kind) > meters[kind].limit || meters[kind].spent >= meters[kind].limit ? Math.max(meters[kind].limit * 2, Math.ceil(enough(kind))) : meters[kind].limit);
  const rows = Object.entries(LIMITS).filter(([kind]) => meters[kind]?.limit);
  const inputs = rows.map(([kind, [name, title, step]]) => [name, meters[kind].limit, fields.numeric(title, { value: proposed(kind), min: 0, step }, { hint: `${number(meters[kind].spent)} of ${number(meters[kind].limit)} are spent` })]);
  const done = await dialog("Raise the budget", {
    text: holder === context.id ? "All that wait for it go on." : `This is the budget of ${short(holder)}, which this task spends from. All that wait for it go on.`,
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

/** A new task from the first records of this one. First it is told what would happen again. */
export async function forked(context, seq) {
  const { task } = context.found;
  const told = h("div", { class: "stack" }, busy("Looking at what would repeat"));
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
      const found = await post(`${context.path}/fork`, { ...body(), preview: true });
      if (mine === newest) put(told, preview(found));
    } catch (error) {
      if (mine !== newest) return;
      const near = (error.more?.near || []).filter((one) => Number.isInteger(one));
      if (first && near.length) take(near[0]);
      else put(told, h("p", { class: "form-trouble" }, safe(error.message)), h("div", { class: "row" }, near.map((one) => button(`Record ${one}`, () => take(one), { small: true }))));
    }
  }
  function take(record) {
    where.input.value = record;
    look();
  }
  where.input.addEventListener("change", () => look());
  other.input.addEventListener("change", () => look());
  look(true);
  const made = await dialog("Fork this task", { text: "A new task that begins with what this one has recorded, and goes on from there. This one stays as it is.", fields: [where, other, input, told], wide: true, name: "Fork", act: () => post(`${context.path}/fork`, body()) });
  if (made?.task_id) {
    toast(`Forked as ${short(made.task_id)}`, { tone: "good" });
    go(`/tasks/${part(made.task_id)}`);
  }
}

function preview({ keeps, would_repeat: repeats = [] }) {
  const sorted = [...repeats].sort((one, other) => Number(other.effect) - Number(one.effect) || one.seq - other.seq);
  const announced = repeats.filter((one) => one.effect).length;
  const title = `${count(repeats.length, "thing")} that this task did would happen again${announced ? `, ${announced} of them never to be repeated silently` : ""}:`;
  return [
    h("p", { class: "faint" }, keeps ? `${count(keeps, "record")} ${keeps === 1 ? "is" : "are"} kept.` : "Nothing is kept: it begins anew."),
    repeats.length
      ? h("div", { class: "warn-box", tabindex: "0", role: "region", "aria-label": "What would happen again" }, h("h3", null, title), h("ul", { class: "plain" }, sorted.slice(0, 100).map((one) => h("li", { class: "row" }, h("span", { class: "mono faint num" }, number(one.seq)), h("bdi", null, line(one.name.replace(/^\[[^\]]*\]|#\d+$/g, ""), 120)), one.kind !== "step" && !one.name.startsWith(one.kind) && h("span", { class: "faint" }, safe(one.kind)), one.effect && badge("effect", "bad")))), repeats.length > 100 && h("p", { class: "faint" }, `and ${number(repeats.length - 100)} more`))
      : h("p", { class: "good-text" }, "Nothing that this task did would happen again."),
  ];
}

function parsed(field) {
  try {
    return JSON.parse(field.input.value);
  } catch (error) {
    throw new Error(`The input is no JSON: ${error.message}`);
  }
}

