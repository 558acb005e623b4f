// New task: a form made from the input schema of the handler; or the input as JSON.

import { everyPage, get, part, post, random } from "../api.js";
import { h, put } from "../dom.js";
import { toast } from "../dialog.js";
import * as fields from "../fields.js";
import { may, me } from "../me.js";
import { go } from "../router.js";
import * as schema from "../schema.js";
import { badge, button, empty, heading } from "../ui.js";
import { line, safe, short } from "../words.js";

export async function show(root, place) {
  const { signal } = place;
  if (!may("submit")) return void put(root, empty("Not allowed", me.person ? "To submit tasks, a person needs the role operator or admin." : "To submit tasks, a key needs the scope submit."));
  const [handlers, like] = await Promise.all([everyPage("/api/handlers", "handlers", { signal }), place.one("like") ? get(`/api/tasks/${part(place.one("like"))}`, null, { signal }) : null]);
  if (!handlers.length) return void put(root, heading("New task"), empty("No handlers yet", "Start a worker with an app: `onward worker MODULE:APP`. Its handlers appear here."));

  // one idempotency key per intention: a second click, or a retry after a lost connection, submits no second task
  let intention = random();
  let current = null;
  let inputs = null;
  const wanted = place.one("name") || like?.task || handlers[0].name;
  const names = handlers.some((handler) => handler.name === wanted) ? handlers : [...handlers, { name: wanted, schema: {}, kind: "task", doc: "", workers: 0, queue: "default" }];
  const which = fields.choice("Task", names.map((handler) => [handler.name, line(handler.name, 80)]), { value: wanted, onchange: () => take(which.input.value) });
  const doc = h("div", { class: "stack-s" });
  const way = h("div", { class: "ways", role: "group", "aria-label": "Input format" });
  const place_ = h("div");
  const trouble = h("p", { class: "form-trouble", role: "alert" });

  const key = fields.text("Key", { placeholder: "order:4711", maxlength: 512 }, { hint: "Submitting the same key again returns the same task." });
  const priority = fields.numeric("Priority", { value: like?.priority || 0, step: 1 }, { hint: "Tasks with a higher priority go first." });
  const queue = fields.text("Queue", { placeholder: "the queue of the handler", maxlength: 512 });
  const delay = fields.numeric("Delay in seconds", { min: 0, placeholder: "0" });
  const deadline = fields.numeric("Deadline in seconds", { min: 0, placeholder: "none" }, { hint: "After this time the task is ended." });
  const labels = fields.text("Labels", { placeholder: "team:shop, channel:web", value: Object.entries(like?.labels || {}).map((pair) => pair.join(":")).join(", ") });
  const steps = fields.numeric("Maximum steps", { min: 1, step: 1, placeholder: "no limit" });
  const tokens = fields.numeric("Maximum tokens", { min: 1, step: 1, placeholder: "no limit" });
  const cost = fields.numeric("Maximum cost in $", { min: 0, placeholder: "no limit" });

  const send = button("Submit", null, { type: "submit", kind: "main" });
  put(
    root,
    heading("New task"),
    h(
      "form",
      { class: "new-form", novalidate: true, onsubmit: submitted, oninput: () => put(trouble) },
      h("section", { class: "card" }, h("div", { class: "body stack" }, which, doc)),
      h("section", { class: "card" }, h("header", null, h("h2", { class: "grow" }, "Input"), way), h("div", { class: "body" }, place_)),
      h("details", { class: "card more" }, h("summary", null, "Options"), h("div", { class: "body field-grid" }, key, labels, priority, queue, delay, deadline, steps, tokens, cost)),
      trouble,
      h("div", { class: "row" }, send, button("Cancel", () => history.back(), { kind: "quiet" })),
    ),
  );
  take(wanted, like?.input);

  function take(name, value) {
    current = names.find((handler) => handler.name === name);
    put(doc, current.doc && h("p", { class: "faint text" }, line(current.doc, 400)), h("div", { class: "row" }, badge(current.kind, current.kind === "agent" ? "model" : "tool"), current.workers ? badge(`${current.workers} ${current.workers === 1 ? "worker" : "workers"}`, "good") : badge("no worker has this handler now: the task would wait", "wait")));
    as(plain(current.schema) ? "form" : "json", value);
  }

  function as(wanted, value) {
    const spec = formSchema(current);
    const kind = wanted === "form" && value && typeof value === "object" && Object.keys(value).some((name) => !(name in (spec.properties || value))) ? "json" : wanted; // the form would lose these fields
    put(way, ["form", "json"].map((format) => h("button", { type: "button", class: "way", "aria-pressed": String(format === kind), onclick: () => swap(format) }, format === "form" ? "Form" : "JSON")));
    inputs = kind === "form" ? schema.form(spec, current.schema, { name: "Input" }) : schema.raw({ name: "Input", required: true, initial: value ?? sample(current.schema) });
    inputs.kind = kind;
    if (value !== undefined && kind === "form") inputs.set(value);
    put(place_, inputs.element);
  }

  /** Switch between form and JSON, and keep the input as far as it can be parsed. */
  function swap(kind) {
    if (inputs.kind === kind) return;
    let value;
    try {
      value = schema.given(inputs);
    } catch {
      value = undefined;
    }
    as(kind, value);
  }

  async function submitted(event) {
    event.preventDefault();
    put(trouble);
    let body;
    try {
      body = { task: current.name, input: schema.given(inputs) ?? null, ...options() };
    } catch (error) {
      put(trouble, error.message === "" ? "Something is missing." : `Check the input: ${error.message}`);
      root.querySelector('[aria-invalid="true"]')?.focus();
      return;
    }
    send.disabled = true;
    try {
      const made = await post("/api/tasks", body, { more: { "Idempotency-Key": JSON.stringify(key.input.value.trim() || `console:${intention}`) } });
      intention = random();
      toast(`Submitted as ${short(made.task_id)}`, { tone: "good" });
      go(`/tasks/${part(made.task_id)}`);
    } catch (error) {
      if (error.status >= 400) intention = random(); // it was refused: the next try is a new intention
      put(trouble, safe(error.message));
    } finally {
      send.disabled = false;
    }
  }

  function options() {
    const number = (field) => (field.input.value.trim() === "" ? undefined : Number(field.input.value));
    const pairs = labels.input.value.split(",").map((pair) => pair.trim()).filter(Boolean);
    if (pairs.some((pair) => !/^[^:]+:/.test(pair))) throw new Error("labels must be NAME:VALUE, separated by commas.");
    const budget = { max_steps: number(steps), max_llm_tokens: number(tokens), max_cost_usd: number(cost) };
    return {
      priority: number(priority) || 0,
      queue: queue.input.value.trim() || undefined,
      delay_s: number(delay),
      deadline_s: number(deadline),
      labels: pairs.length ? Object.fromEntries(pairs.map((pair) => [pair.slice(0, pair.indexOf(":")), pair.slice(pair.indexOf(":") + 1)])) : undefined,
      budget: Object.values(budget).some((limit) => limit !== undefined) ? budget : undefined,
    };
  }
  return undefined;
}

/** The schema of the form. An agent also takes a whole state to begin with, which a program gives, and JSON can. */
function formSchema({ kind, schema: spec }) {
  if (kind !== "agent" || !spec.properties?.goal || !spec.properties.after) return spec;
  const { goal, after } = spec.properties;
  return { ...spec, properties: { goal, after } };
}

/** Whether a form can be made from this schema. */
const plain = (spec) => Boolean(spec && (spec.type === "object" ? spec.properties : ["string", "number", "integer", "boolean", "array"].includes(spec.type)));

function sample(spec) {
  if (!spec?.properties) return undefined;
  return Object.fromEntries(Object.entries(spec.properties).filter(([, property]) => property.default !== undefined).map(([name, property]) => [name, property.default]));
}
