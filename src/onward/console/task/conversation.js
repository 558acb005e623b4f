// The conversation of an agent: the exact messages that its model received in a turn, its reply, and the text that it is generating now.

import { h, put } from "../dom.js";
import * as live from "../live.js";
import { here } from "../router.js";
import { busy, empty, failure } from "../ui.js";
import { value } from "../values.js";
import { compact, count, ENDED, line, money, moment, number, safe, span } from "../words.js";

const ROLES = { system: "Instructions", user: "User", assistant: "Model", tool: "Tool" };
const LONG = 1500;

export async function conversation(root, context, signal) {
  const body = h("div", { class: "talk" });
  const picker = h("div", { class: "talk-turns", role: "listbox", "aria-label": "Turns", tabindex: "0", onkeydown: moved });
  const now = h("div", { class: "talk" });
  put(root, busy());
  let turns = [];
  let chosen = 0;
  let drawn = 0;

  async function read() {
    try {
      turns = [];
      for (let after = 0; after !== null; ) {
        const page = await context.ask("/turns", { limit: 1000, after });
        turns.push(...page.turns);
        after = page.next;
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      turns = [];
      if (error.status !== 404) return put(root, failure(error, read));
    }
    if (signal.aborted) return undefined;
    if (!turns.length && !texts.size) return put(root, empty("No model was called", "For tasks of agents, the conversation with the model appears here."));
    if (!root.contains(picker)) put(root, h("div", { class: "talk-split" }, picker, h("div", { class: "stack" }, body, now)));
    const last = turns.length ? turns[turns.length - 1].turn : 0;
    const wanted = Number(here().one("turn")) || (chosen && chosen < drawnLast ? chosen : last);
    drawnLast = last;
    list();
    await take(turns.some((turn) => turn.turn === wanted) ? wanted : last);
    speak();
    return undefined;
  }
  let drawnLast = 0;

  function list() {
    put(
      picker,
      turns.map((turn) =>
        h("div", { class: ["talk-turn", turn.turn === chosen && "chosen"], role: "option", "aria-selected": String(turn.turn === chosen), data: { turn: String(turn.turn) }, onclick: () => context.moveTo({ turn: turn.turn, tab: "conversation" }) || take(turn.turn) }, h("span", { class: "talk-number" }, number(turn.turn)), h("span", { class: "clip" }, line(turn.text || (turn.tools || []).join(", ") || "…", 100)), h("span", { class: "faint num" }, `${compact(turn.input_tokens)} → ${compact(turn.output_tokens)}`)),
      ),
    );
  }

  async function take(number) {
    chosen = number;
    for (const item of picker.children) {
      const on = item.dataset.turn === String(number);
      item.classList.toggle("chosen", on);
      item.setAttribute("aria-selected", String(on));
    }
    if (!number) return put(body);
    if (drawn === number) return undefined;
    const main = root.closest("main");
    const first = drawn === 0 && !ENDED.has(context.data.task.state) && !here().one("turn");
    const below = first || (drawn > 0 && main.scrollTop + main.clientHeight >= main.scrollHeight - 40);
    try {
      const turn = await context.ask(`/turns/${number}`);
      if (chosen !== number || signal.aborted) return undefined;
      drawn = number;
      const names = new Map([...turn.messages, turn.reply].flatMap((message) => (message.tool_calls || []).map((item) => [item.id, item.function?.name])));
      put(body, about(turn), turn.messages.map((message) => bubble(message, names)), bubble(turn.reply, names, true));
      if (below) main.scrollTop = main.scrollHeight; // keep the end in view if it was in view
    } catch (error) {
      if (error.name !== "AbortError") put(body, failure(error));
    }
    return undefined;
  }

  function moved(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!step || !turns.length) return;
    event.preventDefault();
    const i = turns.findIndex((turn) => turn.turn === chosen);
    take(turns[Math.max(0, Math.min(turns.length - 1, i + step))].turn);
    picker.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
  }

  // ── the text that is being generated ──

  const texts = new Map();
  function speak() {
    const open = [...texts].filter(([name]) => !turns.some((turn) => turn.turn === Number(name.split(":")[0])));
    put(now, open.map(([name, text]) => h("div", { class: "bubble assistant speaking" }, h("header", null, `Model, turn ${name.split(":")[0]}`, h("span", { class: "spinner" })), h("pre", { class: "text" }, safe(text)))));
    const main = root.closest("main");
    if (open.length && main.scrollHeight - main.scrollTop - main.clientHeight < 160) main.scrollTop = main.scrollHeight;
  }
  live.on(
    `text:${context.id}`,
    (piece) => {
      const name = `${piece.turn}:${piece.attempt}`;
      if (piece.withdrawn) texts.delete(name);
      else {
        // A later attempt replaces the earlier ones of its turn, also when the stream was cut and their withdrawal was missed.
        for (const other of [...texts.keys()]) if (other.startsWith(`${piece.turn}:`) && other !== name) texts.delete(other);
        texts.set(name, (texts.get(name) || "").slice(0, piece.offset) + piece.text);
      }
      if (!root.contains(picker)) read();
      else speak();
    },
    signal,
  );
  live.on("reset", () => (texts.clear(), root.contains(picker) && speak()), signal); // the server sends unfinished text again
  let due = 0;
  live.on(`task:${context.id}`, () => (clearTimeout(due), (due = setTimeout(() => !signal.aborted && read(), 300))), signal);
  await read();
}

function about(turn) {
  return h("p", { class: "faint" }, [`Turn ${number(turn.turn)}`, safe(turn.model), moment(turn.at), turn.took_s === null ? "" : span(turn.took_s), `${compact(turn.input_tokens)} tokens in, ${compact(turn.output_tokens)} out`, money(turn.cost_usd), `${count(turn.messages.length, "message")} sent`].filter(Boolean).join(" · "));
}

function bubble(message, names, latest = false) {
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

