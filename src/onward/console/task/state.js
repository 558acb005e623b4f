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
      const data = await context.ask("/state");
      if (!signal.aborted) put(root, drawn(data));
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      put(root, error.status === 404 || error.status === 409 || error.status === 422 ? empty("No state", "Agents have a goal, a plan and facts; this task has none.") : failure(error, read));
    }
  }
  let due = 0;
  live.on(`task:${context.id}`, () => (clearTimeout(due), (due = setTimeout(() => !signal.aborted && read(), 400))), signal);
  await read();
}

function drawn(agentState) {
  const required = agentState.constraints?.human_in_the_loop?.required_for_risk_levels || [];
  return h(
    "div",
    { class: "cols" },
    h(
      "div",
      { class: "stack" },
      card("Goal", h("p", { class: "text" }, safe(agentState.goal))),
      card("Plan", agentState.plan.length ? h("ol", { class: "plan" }, agentState.plan.map((step) => h("li", { class: "text" }, safe(step)))) : none("No plan yet.")),
      agentState.open_questions.length ? card("Open questions", h("ul", { class: "plan" }, agentState.open_questions.map((question) => h("li", { class: "text" }, safe(question))))) : null,
      agentState.risk_flags.length || required.length ? card("Risks", h("div", { class: "row" }, agentState.risk_flags.map((flag) => badge(line(flag, 60), "warn")), required.length ? h("span", { class: "faint" }, `Needs approval: ${required.map((level) => line(level, 40)).join(", ")}`) : null)) : null,
    ),
    h(
      "div",
      { class: "stack" },
      card("Facts", agentState.known_facts.length ? facts(agentState.known_facts) : none("No facts yet.")),
      card("Full state", value(agentState, { name: "state", first: 600, label: "State" })),
    ),
  );
}

const none = (text) => h("p", { class: "faint" }, text);
const card = (title, ...children) => h("section", { class: "card" }, h("header", null, h("h2", null, title)), h("div", { class: "body" }, children));

function facts(list) {
  return table(
    [
      { name: "Fact", cell: (fact) => h("bdi", null, line(fact.key, 80)) },
      { name: "Value", cell: (fact) => (typeof fact.value === "object" || String(fact.value).length > 200 ? value(fact.value, { first: 400, label: "Value" }) : h("bdi", null, brief(fact.value, 220))) },
      { name: "Source", cell: (fact) => h("span", { class: "faint" }, line(fact.source, 60)) },
    ],
    list,
    { label: "Facts" },
  );
}
