// The inbox: open approvals and questions, the one that expires first on top; effects in doubt; and tasks that wait for a person.
// `#/inbox?id=…` is one of them.

import { get, part } from "../api.js";
import { askView, completed, doubt, KINDS, shownAsk } from "../asks.js";
import { toast } from "../dialog.js";
import { add, h, put } from "../dom.js";
import { icon } from "../icons.js";
import { keepUpdated, redraw } from "../parts.js";
import { go, link } from "../router.js";
import { age, busy, empty, failure, heading } from "../ui.js";
import { at, count, line, number, briefField } from "../words.js";

const OTHERS = ["budget", "parked", "quarantined"];
const MOST = 300; // rows of the list
const UNREAD = 600; // ms in which the next item takes no clicks after the one before was decided
const SOON = 600; // seconds before an approval expires, from which on it is shown as urgent

export async function show(root, place) {
  const { signal } = place;
  const state = { items: [], chosen: place.one("id"), view: null };
  const list = h("div", { class: "inbox-list", role: "listbox", "aria-label": "Items that wait for a person", tabindex: "0" });
  const detail = h("div", { class: "inbox-detail", "aria-live": "polite" });
  const head = h("div");
  const panes = h("div", { class: "inbox" }, list, detail);
  const beside = () => matchMedia("(min-width: 761px)").matches; // there is room for the list and the detail
  add(root, head, panes);

  async function load() {
    state.items = await gathered(signal);
    draw();
  }

  function draw() {
    const { items } = state;
    // The item on display is never replaced by a new one: a click must mean the item that was read.
    if (!state.chosen && beside()) state.chosen = items[0]?.id || "";
    const { chosen } = state;
    const tasks = new Set(items.map((item) => item.task_id)).size;
    redraw(head, [items.length, tasks, items.more], () => heading("Approvals and questions", items.length ? `${items.more ? "more than " : ""}${count(items.length, "item waits", "items wait")} for a person${tasks < items.length ? `, in ${count(tasks, "task")}` : ""}; ${items.more ? "those of the oldest tasks are listed, " : ""}the one that expires first is on top` : ""));
    panes.classList.toggle("none", !items.length && !chosen);
    panes.classList.toggle("one", Boolean(chosen));
    redraw(list, [items.slice(0, MOST).map((item) => [item.id, item.title, item.until]), chosen, items.length], () => [items.slice(0, MOST).map((item) => row(item, item.id === chosen)), items.length > MOST && h("p", { class: "faint center" }, `and ${number(items.length - MOST)} more`)]);
    const selected = items.find((item) => item.id === chosen);
    const view = `${selected ? "open" : chosen ? "closed" : items.length ? "choose" : "none"} ${chosen} ${selected?.votes?.length || 0}`;
    if (view === state.view) return;
    state.view = view;
    if (selected) panel(selected, view);
    else if (chosen) put(detail, back(), empty("This is no longer open", "It was decided, it expired, or its task has ended.", h("a", { href: link(`/tasks/${part(chosen.split(".")[0])}`) }, "Show the task")));
    else put(detail, items.length ? empty("Nothing is selected", "Select an item in the list.") : nothing());
  }

  /** The panel of an item. No one decides before all of it is there: the list may have only a part of it, and not why it was asked. */
  async function panel(item, view) {
    if (item.kind === "approval" || item.left_out?.length) put(detail, back(), busy());
    try {
      const whole = await completed(item, signal);
      if (state.view === view) put(detail, back(), askView(whole, done, signal));
    } catch (error) {
      if (state.view === view && error.name !== "AbortError") put(detail, back(), failure(error, () => panel(item, view)));
    }
  }

  function row(item, on) {
    const kind = KINDS[item.kind];
    const until = at(item.until);
    const soon = until !== null && until - Date.now() / 1000 < SOON;
    return h(
      "a",
      { href: link("/inbox", { id: item.id }), class: "inbox-row", role: "option", "aria-selected": String(on), data: { key: item.id, id: item.id }, id: `ask-${item.id}` },
      h("span", { class: ["inbox-icon", `tone-${kind.tone}`], title: kind.word }, icon(kind.drawing)),
      h("span", { class: "inbox-what" }, h("span", { class: "inbox-title" }, line(item.title, 120)), h("span", { class: "inbox-sub" }, `${kind.word} · ${line(item.task, 60)}`)),
      h("span", { class: ["inbox-when", soon && "tone-bad"] }, until === null ? age(item.since, { ago: false }) : age(until)),
    );
  }

  /** An item was decided: go to the next. An approval that needs more votes stays. */
  function done(item, text, stays = false) {
    if (stays) {
      toast(text, { tone: "good", href: link(`/tasks/${part(item.task_id)}`), more: "Show the task" });
      again();
      return;
    }
    const index = state.items.findIndex((other) => other.id === item.id);
    state.items = Object.assign(state.items.filter((other) => other.id !== item.id), { more: state.items.more });
    toast(text, { tone: "good", href: link(`/tasks/${part(item.task_id)}`), more: "Show the task" });
    const next = state.items[Math.min(index, state.items.length - 1)];
    state.chosen = next && beside() ? next.id : "";
    go("/inbox", { id: state.chosen }, { replace: true });
    draw();
    detail.inert = true; // the second click of a double click must not decide the next item
    setTimeout(() => (detail.inert = false), UNREAD);
    list.focus({ preventScroll: true });
    again();
  }

  function moved(step) {
    const chosen = list.querySelector("[aria-selected='true']")?.dataset.id;
    const index = state.items.findIndex((item) => item.id === chosen);
    const next = state.items[Math.max(0, Math.min(state.items.length - 1, index + step))];
    if (next) go("/inbox", { id: next.id }, { replace: true });
    document.getElementById(`ask-${next?.id}`)?.scrollIntoView({ block: "nearest" });
  }

  addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.target.closest("input, textarea, select, dialog")) return;
      const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
      const arrow = event.key.startsWith("Arrow");
      if (step && (!arrow || list.contains(event.target))) (event.preventDefault(), moved(step));
      else if (!arrow && !event.repeat && !detail.inert && event.key.length === 1 && "ader".includes(event.key)) {
        event.preventDefault(); // otherwise the letter would be typed into the dialog that it opens
        detail.querySelector(`[data-press="${event.key}"]:not(:disabled)`)?.click();
      }
    },
    { signal },
  );

  const again = await keepUpdated(load, signal, { gap: 700, every: 20_000 });
  return {
    changed(next) {
      state.chosen = next.one("id");
      draw();
    },
  };
}

const back = () => h("a", { class: "inbox-back", href: link("/inbox") }, icon("left"), "All");
const nothing = () => empty("No approvals or questions are waiting", "Approvals, questions and effects in doubt appear here.");

// ── open items ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** Everything that waits for a person, the one that expires first on top. `more`: the server has more pages of approvals or questions. */
export async function gathered(signal) {
  const [approvals, questions, doubtful, ...others] = await Promise.all([
    get("/api/approvals", {}, { signal }),
    get("/api/questions", {}, { signal }),
    get("/api/tasks", { brief: true, reason: "in_doubt", limit: 50 }, { signal }),
    ...OTHERS.map((reason) => get("/api/tasks", { brief: true, reason, limit: 50 }, { signal })),
  ]);
  const doubts = await Promise.all(doubtful.tasks.map((task) => get(`/api/tasks/${part(task.task_id)}/doubts`, {}, { signal }).then((page) => page.doubts.map((item) => doubt(task, item)), () => [])));
  const asks = [...approvals.approvals, ...questions.questions].map(shownAsk);
  const held = others.flatMap((page, i) => page.tasks.map((task) => ({ id: task.task_id, kind: OTHERS[i], task_id: task.task_id, task: task.task, title: briefField(task, "input") || task.task, since: task.updated_at, until: null, about: task })));
  const never = Number.MAX_SAFE_INTEGER;
  const items = [...asks, ...doubts.flat(), ...held].sort((a, b) => (at(a.until) ?? never) - (at(b.until) ?? never) || at(a.since) - at(b.since));
  return Object.assign(items, { more: Boolean(approvals.next || questions.next) });
}
