// The conversation of an agent: the exact messages that its model received in a turn, its reply, and the text that it is generating now.

import { h, put } from "../dom.js";
import * as live from "../live.js";
import { here } from "../router.js";
import { busy, empty, failure } from "../ui.js";
import { compact, count, ENDED, line, money, moment, number, safe, span } from "../words.js";
import { bubble, calledTools } from "./messages.js";
import { waitingLines } from "./waiting.js";

export async function conversation(root, context, signal) {
  const body = h("div", { class: "talk" });
  const picker = h("div", { class: "talk-turns", role: "listbox", "aria-label": "Turns", tabindex: "0", onkeydown: moved });
  const now = h("div", { class: "talk" });
  const open = h("div", { class: "talk" });
  const drawOpen = () => put(open, waitingLines(context.waiting.items()));
  context.onWaiting(drawOpen, signal);
  drawOpen();
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
    if (!root.contains(picker)) put(root, h("div", { class: "talk-split" }, picker, h("div", { class: "stack" }, body, now, open)));
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
      const names = calledTools([...turn.messages, turn.reply]);
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
    const unfinished = [...texts].filter(([name]) => !turns.some((turn) => turn.turn === Number(name.split(":")[0])));
    put(now, unfinished.map(([name, text]) => h("div", { class: "bubble assistant speaking" }, h("header", null, `Model, turn ${name.split(":")[0]}`, h("span", { class: "spinner" })), h("pre", { class: "text" }, safe(text)))));
    const main = root.closest("main");
    if (unfinished.length && main.scrollHeight - main.scrollTop - main.clientHeight < 160) main.scrollTop = main.scrollHeight;
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
