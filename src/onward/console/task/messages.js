// Messages of a conversation with a model, as bubbles.

import { h } from "../dom.js";
import { value } from "../values.js";
import { line, safe } from "../words.js";

const ROLES = { system: "Instructions", user: "User", assistant: "Model", tool: "Tool" };
const LONG = 1500;

/** The names of the tools that these messages call, by the ids of the calls. */
export const calledTools = (messages) => new Map(messages.flatMap((message) => (message.tool_calls || []).map((item) => [item.id, item.function?.name])));

/** The messages since the reply before, and the reply of this turn. */
export function lastTurn(turn) {
  const names = calledTools([...turn.messages, turn.reply]);
  const before = turn.messages.findLastIndex((message) => message.role === "assistant");
  const since = turn.messages.slice(before + 1).filter((message) => message.role !== "system");
  return h("div", { class: "talk" }, since.slice(-LATEST).map((message) => bubble(message, names)), bubble(turn.reply, names, true));
}

const LATEST = 6; // messages of a turn that are shown beside what it asked for

/** One message. */
export function bubble(message, names, latest = false) {
  const text = typeof message.content === "string" ? message.content : message.content ? JSON.stringify(message.content, null, 2) : "";
  const calls = message.tool_calls || [];
  const tool = names.get(message.tool_call_id);
  const who = message.role === "tool" && tool ? line(tool, 80) : ROLES[message.role] || safe(message.role);
  const folded = (message.role === "system" || message.role === "tool") && text.length > 300;
  const body = [text && (text.length > LONG ? value(text, { first: LONG, name: "message", label: who }) : h("pre", { class: "text" }, safe(text))), calls.map(call)];
  return h("div", { class: ["bubble", ROLES[message.role] ? message.role : "other", latest && "latest"] }, folded ? h("details", null, h("summary", null, who, h("span", { class: "faint" }, ` · ${line(text, 120)}`)), body) : [h("header", null, who), body]);
}

function call(toolCall) {
  const { name = "", arguments: given = "" } = toolCall.function || {};
  let shown = given;
  try {
    shown = JSON.parse(given);
  } catch {
    // a model may write arguments that are not JSON
  }
  return h("div", { class: "call" }, h("b", null, "calls ", h("bdi", { class: "mono" }, line(name, 80))), given && value(shown, { first: 800, name: "arguments", label: `Arguments of ${line(name, 80)}` }));
}
