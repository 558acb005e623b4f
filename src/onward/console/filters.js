// Filters of the list of tasks: in the URL, as controls, and as query parameters of the API. Values of one filter are combined with
// "or", filters with "and".

import { get } from "./api.js";
import { h, put, unique } from "./dom.js";
import { icon } from "./icons.js";
import { go, here } from "./router.js";
import { badge, button } from "./ui.js";
import { line, REASONS, safe, STATES } from "./words.js";

const NAMES = ["q", "state", "reason", "name", "queue", "label", "tenant", "parent", "age", "since", "until"];
const AGES = { "1h": ["the last hour", 3600], "1d": ["the last day", 86400], "7d": ["the last 7 days", 604800], "30d": ["the last 30 days", 2592000] };

/** The filters in the URL. */
export function current(place) {
  return Object.fromEntries(NAMES.map((name) => [name, place.all(name).filter(Boolean)]).filter(([, all]) => all.length));
}

/** Whether there are filters. */
export const any = (place) => Object.keys(current(place)).length > 0;

/** The filters as query parameters of the API. */
export function toQuery(place) {
  const { age, ...rest } = current(place);
  const range = AGES[age?.[0]];
  if (range) rest.since = [new Date(Date.now() - range[1] * 1000).toISOString()];
  for (const name of ["q", "parent", "tenant", "since", "until"]) if (rest[name]) [rest[name]] = rest[name];
  return rest;
}

/** The filters in words. */
export function words(place) {
  return Object.entries(current(place)).map(([name, all]) => `${name}: ${all.map((value) => (name === "age" ? AGES[value]?.[0] || value : line(value, 60))).join(" or ")}`);
}

/** The values to choose from: names of handlers and of queues. */
export async function choices(signal) {
  const [handlers, queues] = await Promise.all([get("/api/handlers", null, { signal }).catch(() => ({ handlers: [] })), get("/api/queues", null, { signal }).catch(() => ({ queues: [] }))]);
  return { names: handlers.handlers.map((item) => item.name), queues: queues.queues.map((item) => item.name) };
}

/** Draw the controls with the filters of the URL. */
export function draw(bar, place, known) {
  const open = bar.querySelector("details[open]")?.dataset.name;
  const focused = bar.contains(document.activeElement) ? document.activeElement.value : null;
  put(
    bar,
    several(place, "state", "State", Object.entries(STATES).map(([is, { word, tone }]) => [is, badge(word, tone)])),
    several(place, "reason", "Reason", Object.entries(REASONS).map(([is, { word }]) => [is, word])),
    several(place, "name", "Task", toOptions(known.names, place.all("name"))),
    (known.queues.length > 1 || place.one("queue")) && several(place, "queue", "Queue", toOptions(known.queues, place.all("queue"))),
    labels(place),
    several(place, "age", "Created", Object.entries(AGES).map(([is, [text]]) => [is, text]), true),
    ["parent", "tenant", "since", "until"].filter((name) => place.one(name)).map((name) => h("span", { class: "filter-on" }, `${name} ${line(place.one(name), 40)}`, clear(place, name))),
    any(place) && button("Clear", () => go("/tasks"), { kind: "quiet", small: true, icon: "close" }),
  );
  const again = open && bar.querySelector(`details[data-name="${open}"]`);
  if (!again) return;
  again.open = true;
  if (focused) again.querySelector(`input[value="${CSS.escape(focused)}"]`)?.focus();
}

const toOptions = (all, more) => [...new Set([...all, ...more])].sort().map((value) => [value, line(value, 60)]);

function changed(place, name, values) {
  go("/tasks", { ...current(place), [name]: values });
}

function clear(place, name) {
  return button("", () => changed(place, name, []), { icon: "close", title: `Clear ${name}`, kind: "quiet", small: true });
}

function several(place, name, title, options, single = false) {
  const chosen = place.all(name);
  const group = unique("group");
  const body = h(
    "div",
    { class: "filter-list" },
    options.map(([is, shown]) => h("label", { class: "filter-item" }, h("input", { type: single ? "radio" : "checkbox", name: group, value: is, checked: chosen.includes(is), onchange: (event) => changed(here(), name, picked(here().all(name), is, event.target.checked, single)) }), shown)),
    !options.length && h("p", { class: "faint" }, "None yet."),
    single && chosen.length ? h("div", { class: "filter-item" }, button("Any time", () => changed(here(), name, []), { small: true, kind: "quiet" })) : null,
  );
  const text = chosen.length ? h("b", null, chosen.length > 2 ? `${chosen.length} chosen` : chosen.map((value) => (name === "age" ? AGES[value]?.[0] || value : REASONS[value]?.word || line(value, 30))).join(", ")) : null;
  return drop(name, title, text, body);
}

function picked(now, value, on, single) {
  if (single) return on ? [value] : [];
  return on ? [...now, value] : now.filter((other) => other !== value);
}

function labels(place) {
  const input = h("input", { type: "text", placeholder: "team:shop", "aria-label": "Label as NAME:VALUE", maxlength: 200, spellcheck: "false" });
  const trouble = h("p", { class: "form-trouble" });
  const submitted = (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!/^[^:]+:/.test(text)) trouble.textContent = "Enter a label as NAME:VALUE.";
    else changed(here(), "label", [...new Set([...here().all("label"), text])]);
  };
  const now = place.all("label");
  const body = h("div", { class: "filter-list" }, h("form", { class: "row", onsubmit: submitted }, input, button("Add", null, { type: "submit", small: true })), trouble, now.map((label) => h("div", { class: "filter-item" }, h("span", { class: "grow clip" }, safe(label)), button("", () => changed(here(), "label", here().all("label").filter((other) => other !== label)), { icon: "close", title: `Remove ${label}`, kind: "quiet", small: true }))));
  return drop("label", "Label", now.length ? h("b", null, now.map((label) => line(label, 30)).join(", ")) : null, body);
}

/** A button that opens a box below it: a <details> element that closes when the focus leaves it. */
function drop(name, title, text, body) {
  const box = h("details", { class: ["filter", text && "on"], data: { name }, onfocusout: (event) => event.relatedTarget && !box.contains(event.relatedTarget) && (box.open = false), onkeydown: (event) => event.key === "Escape" && ((box.open = false), box.firstChild.focus()) }, h("summary", null, title, text && [": ", text], icon("down", 14)), h("div", { class: "filter-box" }, body));
  return box;
}

addEventListener("pointerdown", (event) => {
  for (const details of document.querySelectorAll("details.filter[open]")) if (!details.contains(event.target)) details.open = false;
});
