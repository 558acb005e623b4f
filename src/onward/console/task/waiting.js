// What a task waits for from a person, with the buttons that decide it: above the tabs of the task, and as a line in its conversation.

import { get } from "../api.js";
import { askView, completed, doubt, shownAsk } from "../asks.js";
import { toast } from "../dialog.js";
import { h, put } from "../dom.js";
import { icon } from "../icons.js";
import { link } from "../router.js";
import { age, button } from "../ui.js";
import { ENDED, line, number } from "../words.js";

const SHOWN = 3; // open items that the page of a task shows; the inbox has all
const UNREAD = 600; // ms in which the cards take no clicks after one was decided

/** `box` shows the open items; `items()` are those that it shows now. `read` looks whether they changed. */
export function waiting(context, changed) {
  const box = h("div", { class: "asks", role: "region", "aria-label": "Waiting for a person", hidden: true });
  const rest = h("p", { class: "faint" });
  const cards = new Map(); // by id and votes: a card that is being read, or typed into, stays as it is
  let shown = "";
  let items = [];
  let reading = false;

  async function read() {
    if (reading || context.signal.aborted) return;
    reading = true;
    try {
      const open = mayWait(context) ? await gathered(context) : [];
      const mark = JSON.stringify(open.map((item) => [item.id, item.votes?.length]));
      if (mark === shown) return;
      const name = (item) => `${item.id} ${item.votes?.length || 0}`;
      const first = open.slice(0, SHOWN);
      const whole = await Promise.all(first.filter((item) => !cards.has(name(item))).map((item) => completed(item, context.signal)));
      const kept = new Set(first.map(name));
      for (const [id, card] of cards) if (!kept.has(id)) (card.remove(), cards.delete(id));
      for (const item of whole) {
        const card = h("div", { class: "card" }, askView(item, done, context.signal, { context: false }));
        cards.set(name(item), card);
        box.insertBefore(card, rest.parentNode === box ? rest : null);
      }
      box.append(rest);
      put(rest, open.length > SHOWN && [`and ${number(open.length - SHOWN)} more: `, h("a", { href: link("/inbox", { id: open[SHOWN].id }) }, "show them in the inbox")]);
      rest.hidden = open.length <= SHOWN;
      box.hidden = !open.length;
      [shown, items] = [mark, open];
      changed();
    } catch (error) {
      if (error.name !== "AbortError") console.warn(error.message); // the next update reads again
    } finally {
      reading = false;
    }
  }

  function done(item, text) {
    toast(text, { tone: "good" });
    box.inert = true; // the second click of a double click must not decide the next item
    setTimeout(() => (box.inert = false), UNREAD);
    context.refresh();
  }

  return { element: box, read, items: () => items };
}

/** Whether the task may wait for a person. The timeline knows: most tasks never do, and cost no request. */
function mayWait({ data, chart }) {
  if (ENDED.has(data.task.state)) return false;
  return ["approval", "question", "in_doubt"].includes(data.task.reason) || chart.open().some((bar) => ["approval", "question"].includes(bar.kind) || bar.state === "in_doubt");
}

async function gathered({ id, signal, ask, data }) {
  const [{ approvals }, { questions }, { doubts }] = await Promise.all([get("/api/approvals", { task_id: id }, { signal }), get("/api/questions", { task_id: id }, { signal }), ask("/doubts")]);
  return [...approvals.map(shownAsk), ...questions.map(shownAsk), ...doubts.map((item) => doubt(data.task, item))];
}

/** The open items at the end of a conversation; a button leads to the card that decides each. */
export function waitingLines(items) {
  return items.map((item) =>
    h(
      "div",
      { class: "bubble waiting" },
      h("header", null, icon("inbox", 14), { approval: "Waits for approval", question: "Waits for an answer", doubt: "In doubt" }[item.kind], h("span", { class: "faint" }, age(item.since, { ago: false }))),
      h("div", { class: "row" }, h("bdi", { class: "grow clip" }, line(item.text || item.title, 200)), button("Decide", () => show(item), { small: true, icon: "up" })),
    ),
  );
}

function show(item) {
  const card = document.querySelector(`.asks [data-ask="${CSS.escape(item.id)}"]`);
  if (!card) location.hash = link("/inbox", { id: item.id });
  else (card.scrollIntoView({ block: "center" }), card.querySelector("button")?.focus({ preventScroll: true }));
}
