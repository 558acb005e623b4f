// Small parts of pages. Each is a function that returns an element; state is kept only in that element.

import { add, h, put, unique } from "./dom.js";
import { icon } from "./icons.js";
import { link } from "./router.js";
import { about, at, count, ENDED, exactly, line, moment, number, safe, short, standing } from "./words.js";

/** A button. `kind`: "main", "danger", "quiet" or nothing. */
export function button(text, onclick, { kind = "", icon: name, title, disabled, small, type = "button", ...more } = {}) {
  return h("button", { type, class: ["button", kind, small && "small", !text && "bare"], onclick, title, disabled, "aria-label": text ? null : title, ...more }, name && icon(name), text && h("span", null, text));
}

/** The state of a task: a dot, a word, and with `why` the reason why it does not go on. */
export function chip(task, { why = false } = {}) {
  const { word, tone } = standing(task);
  return h("span", { class: "standing" }, badge(word, tone), why && whyLine(task));
}

const MAX_BEHIND = 1000; // the server counts no further
const TIMED = new Set(["asleep", "delayed", "retrying", "quota"]);

/** Why a task does not go on, without what its chip says already, and since or until when. */
export function whyLine(task) {
  const { text = "", since, until, behind, subject, detail, more } = task.why || {};
  const shown = line([subject, detail].filter(Boolean).join(": "), 160);
  const others = more ? `and ${count(more, "more wait")}` : "";
  const when = ENDED.has(task.state) ? null : TIMED.has(task.reason) && until ? ["until ", clock(until)] : task.state === "running" || (since && !behind) ? [age(since, { ago: false })] : null;
  const parts = [shown, behind ? `behind ${count(behind, "other")}${behind >= MAX_BEHIND ? " or more" : ""}` : "", others, when].filter((part) => part && part.length);
  if (!parts.length) return null;
  return h("span", { class: "why", title: safe(text) }, parts.map((part, i) => [i ? " · " : "", part]));
}

/** A word in a tone: "idle", "run", "wait", "warn", "good", "bad", "undo". */
export function badge(word, tone = "idle") {
  return h("span", { class: ["chip", `tone-${tone}`] }, h("i", { class: "dot" }), word);
}

/** A label NAME:VALUE, as a link to all tasks that have it. */
export function tag(name, value) {
  return h("a", { class: "tag", href: link("/tasks", { label: `${name}:${value}` }), title: `${safe(name)}: ${safe(value)}` }, h("b", null, line(name, 24)), line(value, 32));
}

/** How long ago, kept up to date; the exact time is its title. */
export function age(time, { ago = true } = {}) {
  const t = at(time);
  if (t === null) return h("span", { class: "faint" }, "–");
  return h("time", { datetime: new Date(t * 1000).toISOString(), title: exactly(t), data: { age: String(t), ago: ago ? "1" : "" } }, aged(t, ago));
}

/** A clock time; the exact time is its title. */
export function clock(time) {
  const t = at(time);
  return t === null ? h("span", { class: "faint" }, "–") : h("time", { datetime: new Date(t * 1000).toISOString(), title: exactly(t) }, moment(t));
}

function aged(t, ago) {
  const seconds = Date.now() / 1000 - t;
  if (seconds < -1) return `in ${about(-seconds)}`;
  return ago ? (seconds < 2 ? "now" : `${about(seconds)} ago`) : about(seconds);
}

/** Once a second: all ages on the page. */
export function tick() {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("time[data-age]")) {
    const text = aged(Number(element.dataset.age), element.dataset.ago === "1");
    if (element.textContent !== text) element.textContent = text;
  }
}

/** A link to a task: the end of its id. */
export function taskLink(id, text) {
  return h("a", { class: "mono", href: link(`/tasks/${encodeURIComponent(id)}`), title: id }, text || short(id));
}

/** A message for an empty list: what would be here, and what to do. */
export function empty(title, text, ...more) {
  return h("div", { class: "empty" }, h("h2", null, title), text && h("p", null, withCode(text)), more);
}

/** A text of ours, with the parts between backticks as code. */
const withCode = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", null, part) : part));

/** How long the oldest of the tasks waits that could run. */
export const oldestNote = (waiting, oldest) => (oldest ? `the oldest for ${about(oldest)}` : waiting ? "none of them is due" : "no task waits");

/** An error, with a button to try again. */
export function failure(error, again) {
  return h("div", { class: "failure", role: "alert" }, icon("warn"), h("p", null, error?.message ? safe(error.message) : "Something went wrong."), again && button("Try again", again, { small: true }));
}

/** A sign that something is loading. */
export function busy(text = "Loading") {
  return h("div", { class: "busy", role: "status" }, h("span", { class: "spinner" }), text);
}

/** A table. `columns`: [{name, cell(row), class, wide}]; `rows`; `key(row)`; `open(row)` makes rows links for mouse and keyboard. */
export function table(columns, rows, { label, href, none } = {}) {
  if (!rows.length && none) return none;
  const drawn = (row) => h("tr", { onclick: href && ((event) => followed(event, href(row))), class: href && "open" }, columns.map((column) => h("td", { class: column.class, "data-name": column.name }, column.cell(row))));
  const body = h("tbody");
  const head = h("thead", null, h("tr", null, columns.map((column) => h("th", { scope: "col", class: column.class }, column.name))));
  return someOf(h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": label }, h("table", { class: "table" }, head, body)), body, rows, drawn, MAX_ROWS);
}

const MAX_ROWS = 100; // of a table that are drawn at first, and with each click

/** Draw the first items of a list into `body`, a part of `element`. A button below draws more of them; `redraw` keeps their number. */
export function someOf(element, body, items, drawn, step) {
  add(body, items.slice(0, step).map(drawn));
  if (items.length <= step && !items.cut) return element;
  const foot = h("p", { class: "more-row row" });
  const all = h("div", { class: "some-of" }, element, foot);
  all.shown = Math.min(step, items.length);
  all.show = (shown) => {
    add(body, items.slice(all.shown, shown).map(drawn));
    all.shown = Math.max(all.shown, Math.min(shown, items.length));
    const rest = items.length - all.shown;
    put(foot, h("span", { class: "faint" }, `${number(all.shown)} of ${number(items.length)}${items.cut ? "; the command line lists more" : ""}`), rest > 0 && button(`Show ${number(Math.min(step, rest))} more`, () => all.show(all.shown + step), { small: true, data: { key: "more" } }));
  };
  all.show(all.shown);
  return all;
}

function followed(event, where) {
  if (event.target.closest("a, button, input, label") || getSelection()?.toString()) return;
  if (event.metaKey || event.ctrlKey) open(where, "_blank", "noopener");
  else location.hash = where;
}

/** Names and values, side by side. */
export function facts(rows) {
  const some = rows.filter((row) => row && row[1] !== null && row[1] !== undefined && row[1] !== "");
  return some.length ? h("dl", { class: "facts" }, some.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])) : null;
}

/** How much of a limit is spent; without a limit, only the amount. */
export function meter(name, spent, limit, { say = number, reserved = 0 } = {}) {
  const part = limit ? Math.min(1, (spent || 0) / limit) : 0;
  const held = limit ? Math.min(1 - part, (reserved || 0) / limit) : 0;
  const tone = part >= 1 ? "bad" : part >= 0.8 ? "warn" : "run";
  const text = spent === null || spent === undefined ? "unknown" : say(spent);
  return h(
    "div",
    { class: "meter" },
    h("div", { class: "meter-name" }, h("span", null, name), h("span", { class: "num" }, text, limit ? h("span", { class: "faint" }, ` of ${say(limit)}`) : null)),
    limit
      ? h("div", { class: "bar", role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": limit, "aria-valuenow": spent || 0, "aria-valuetext": `${text} of ${say(limit)}` }, h("i", { class: `tone-${tone}`, style: { width: `${part * 100}%` } }), h("i", { class: "held", style: { width: `${held * 100}%` } }))
      : null,
  );
}

/** Tabs: [{id, name, count, show(root)}]; `chosen(id)` is called when the user selects another. Returns {element, take(id)}. */
export function tabs(list, { label, chosen } = {}) {
  const group = unique("tabs");
  const panel = h("div", { class: "tab-panel", role: "tabpanel", id: `${group}-panel`, tabindex: "-1" });
  const buttons = list.map((item) => h("button", { type: "button", role: "tab", id: `${group}-${item.id}`, "aria-controls": panel.id, class: "tab", onclick: () => take(item.id, true), onkeydown: moved }, item.name, h("span", { class: "tab-count" })));
  let current = null;
  function moved(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const offered = buttons.filter((item) => !item.hidden);
    const next = offered[(offered.indexOf(event.target) + step + offered.length) % offered.length];
    next.focus();
    next.click();
  }
  function take(id, tell = false) {
    const tab = list.find((item) => item.id === id) || list[0];
    if (current?.id === tab.id) return;
    current?.leave?.abort();
    const leave = new AbortController();
    current = { id: tab.id, leave };
    buttons.forEach((item, i) => {
      item.setAttribute("aria-selected", String(list[i] === tab));
      item.tabIndex = list[i] === tab ? 0 : -1;
      if (list[i] === tab) item.hidden = false;
    });
    panel.setAttribute("aria-labelledby", `${group}-${tab.id}`);
    put(panel);
    buttons[list.indexOf(tab)].scrollIntoView({ block: "nearest", inline: "nearest" });
    tab.show(panel, leave.signal);
    if (tell) chosen?.(tab.id);
  }
  const counts = (id, n) => {
    const at = list.findIndex((item) => item.id === id);
    if (at >= 0) buttons[at].querySelector(".tab-count").textContent = n ? number(n) : "";
  };
  /** Offer a tab, or not; the one that is shown stays. */
  const offer = (id, offered) => {
    const at = list.findIndex((item) => item.id === id);
    if (at >= 0) buttons[at].hidden = !offered && current?.id !== id;
  };
  return { offer, element: h("div", { class: "tabs" }, h("div", { class: "tab-list", role: "tablist", "aria-label": label }, buttons), panel), take, counts, stop: () => current?.leave?.abort() };
}

/** Buttons for the newer and the older page of a list. */
export function pager({ next, before, onnext, onbefore, text }) {
  return h("nav", { class: "pager", "aria-label": "Pages" }, h("span", { class: "faint" }, text), button("", onbefore, { icon: "left", title: "Newer", disabled: !before, small: true }), button("", onnext, { icon: "right", title: "Older", disabled: !next, small: true }));
}

/** A button that opens a list of actions: [{text, icon, act, danger, disabled, title}], null is a line between. */
export function menu(text, items, { icon: name, title, kind = "", small, align = "end" } = {}) {
  const id = unique("menu");
  const list = h("div", { class: ["menu-list", align], role: "menu", id, hidden: true });
  const opener = button(text, toggle, { icon: name, title, kind, small, "aria-haspopup": "menu", "aria-expanded": "false", "aria-controls": id });
  const box = h("div", { class: "menu", onkeydown: keys, onfocusout: (event) => !box.contains(event.relatedTarget) && shut() }, opener, list);
  function toggle() {
    if (!list.hidden) return shut();
    put(list, (typeof items === "function" ? items() : items).map((item) => (item?.info ? h("div", { class: "menu-info", role: "menuitem", "aria-disabled": "true" }, item.info) : item ? h("button", { type: "button", role: "menuitem", class: ["menu-item", item.danger && "danger"], disabled: item.disabled, title: item.title, onclick: () => (shut(), opener.focus(), item.act()) }, item.icon && icon(item.icon), h("span", null, item.text)) : h("hr"))));
    list.hidden = false;
    opener.setAttribute("aria-expanded", "true");
    list.querySelector("button:not(:disabled)")?.focus();
    return undefined;
  }
  function shut() {
    list.hidden = true;
    opener.setAttribute("aria-expanded", "false");
  }
  function keys(event) {
    if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      shut();
      opener.focus();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || list.hidden) return;
    event.preventDefault();
    const all = [...list.querySelectorAll("button:not(:disabled)")];
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length]?.focus();
  }
  return box;
}

/** The heading of a page: its title, a line below it, and its actions. */
export function heading(title, text, ...actions) {
  return h("header", { class: "page-head" }, h("div", null, h("h1", null, title), text && h("p", { class: "faint" }, text)), add(h("div", { class: "actions" }), actions));
}
