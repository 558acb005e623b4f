// The state of an agent: its goal and plan, facts, open questions, risks.

import { h, put } from "../dom.js";
import * as live from "../live.js";
import { badge, busy, empty, failure, table } from "../ui.js";
import { value } from "../values.js";
import { brief, line, safe } from "../words.js";

export async function state(root, context, signal) {
  put(root, busy());
  async function read() {
    try {
      const found = await context.ask("/state");
      if (!signal.aborted) put(root, drawn(found));
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      put(root, error.status === 404 || error.status === 409 || error.status === 422 ? empty("No state", "Agents have a goal, a plan and facts; this task has none.") : failure(error, read));
    }
  }
  let due = 0;
  live.on(`task:${context.id}`, () => (clearTimeout(due), (due = setTimeout(() => !signal.aborted && read(), 400))), signal);
  await read();
}

function drawn(found) {
  const required = found.constraints?.human_in_the_loop?.required_for_risk_levels || [];
  return h(
    "div",
    { class: "cols" },
    h(
      "div",
      { class: "stack" },
      card("Goal", h("p", { class: "text" }, safe(found.goal))),
      card("Plan", found.plan.length ? h("ol", { class: "plan" }, found.plan.map((one) => h("li", { class: "text" }, safe(one)))) : none("No plan yet.")),
      found.open_questions.length ? card("Open questions", h("ul", { class: "plan" }, found.open_questions.map((one) => h("li", { class: "text" }, safe(one))))) : null,
      found.risk_flags.length || required.length ? card("Risks", h("div", { class: "row" }, found.risk_flags.map((one) => badge(line(one, 60), "warn")), required.length ? h("span", { class: "faint" }, `Needs approval: ${required.map((one) => line(one, 40)).join(", ")}`) : null)) : null,
    ),
    h(
      "div",
      { class: "stack" },
      card("Facts", found.known_facts.length ? facts(found.known_facts) : none("No facts yet.")),
      card("Full state", value(found, { name: "state", first: 600, label: "State" })),
    ),
  );
}

const none = (text) => h("p", { class: "faint" }, text);
const card = (title, ...children) => h("section", { class: "card" }, h("header", null, h("h2", null, title)), h("div", { class: "body" }, children));

function facts(list) {
  return table(
    [
      { name: "Fact", cell: (one) => h("bdi", null, line(one.key, 80)) },
      { name: "Value", cell: (one) => (typeof one.value === "object" || String(one.value).length > 200 ? value(one.value, { first: 400, label: "Value" }) : h("bdi", null, brief(one.value, 220))) },
      { name: "Source", cell: (one) => h("span", { class: "faint" }, line(one.source, 60)) },
    ],
    list,
    { label: "Facts" },
  );
}
