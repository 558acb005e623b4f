// Parts that several pages share: keeping a page up to date, tiles, switches, bars.

import { h, put } from "./dom.js";
import { icon } from "./icons.js";
import { on } from "./live.js";
import { link } from "./router.js";
import { button } from "./ui.js";
import { compact, safe } from "./words.js";

/** Keep a page up to date: `load` runs now (its error goes to the page), after each update of a task, but at most every `gap` ms (less
 *  often if it takes long), and every `every` ms for changes that the stream does not report. It never runs twice at once, nor while
 *  the tab is hidden. Returns a function that runs it at once. */
export async function keepUpdated(load, signal, { gap = 1000, every = 0 } = {}) {
  let [running, wanted, forced, last, timer, took] = [true, false, false, Date.now(), 0, 0];
  async function run() {
    timer = 0;
    if (signal.aborted) return;
    [running, wanted, last] = [true, false, Date.now()];
    try {
      await load();
    } catch (error) {
      if (error.name !== "AbortError" && !error.status && error.code !== "unreachable") console.error(error); // the status in the top bar shows connection errors
    }
    [running, took] = [false, Date.now() - last];
    if (wanted) (forced ? now : soon)();
  }
  /** At once: after a click. */
  function now() {
    forced = running;
    wanted ||= running;
    if (!running) (clearTimeout(timer), run());
  }
  function soon() {
    if (running || document.hidden) wanted = true;
    else if (!timer) timer = setTimeout(run, Math.max(60, Math.max(gap, 4 * took) - (Date.now() - last)));
  }
  on("task", soon, signal);
  on("reset", soon, signal);
  document.addEventListener("visibilitychange", () => wanted && soon(), { signal });
  const clock = every ? setInterval(soon, every) : 0;
  signal.addEventListener("abort", () => (clearInterval(clock), clearTimeout(timer)), { once: true });
  try {
    await load();
  } finally {
    running = false;
  }
  if (wanted) soon();
  return now;
}

/** Draw `make()` into `box`, only if `what` has changed. The focus stays on the element with the same `data-key`, and nothing is drawn
 *  while a menu is open. */
export function redraw(box, what, make) {
  const now = JSON.stringify(what);
  if (box.drawn === now) return;
  if (box.querySelector("[aria-expanded='true']")) return;
  const at = box.contains(document.activeElement) ? document.activeElement.closest("[data-key]")?.dataset.key : null;
  const places = [...box.querySelectorAll(".table-box")].map((element) => element.scrollLeft);
  const shown = [...box.querySelectorAll(".some-of")].map((element) => element.shown);
  box.drawn = now;
  put(box, make());
  [...box.querySelectorAll(".some-of")].forEach((element, i) => element.show(shown[i] || 0));
  [...box.querySelectorAll(".table-box")].forEach((element, i) => (element.scrollLeft = places[i] || 0));
  if (at) [...box.querySelectorAll("[data-key]")].find((element) => element.dataset.key === at)?.focus({ preventScroll: true });
}

/** A number with its name above and a note below. */
export function tile(name, figure, { note, tone, href, drawing } = {}) {
  return h(href ? "a" : "div", { class: ["tile", tone && `tone-${tone}`], href }, h("span", { class: "tile-name" }, drawing && icon(drawing, 15), name), h("span", { class: "tile-figure num" }, figure), h("span", { class: "tile-note" }, note || "\u00a0"));
}

/** Tiles in a row. */
export const tiles = (...all) => h("div", { class: "tiles" }, all);

/** A choice of a few values, as links, so that each has a URL: [[value, word], …]. */
export function segments(label, options, chosen, path, query, name) {
  return h("nav", { class: "segments", "aria-label": label }, options.map(([value, word]) => h("a", { href: link(path, { ...query, [name]: value }), "aria-current": value === chosen ? "true" : null }, word)));
}

/** A section of a page with a heading. */
export function section(title, { text, actions, id } = {}, ...body) {
  return h("section", { class: "part", id }, h("header", { class: "part-head" }, h("div", null, h("h2", null, title), text && h("p", { class: "faint" }, text)), actions && h("div", { class: "actions" }, actions)), body);
}

/** A row of thin bars, the newest on the right: a number since the page was opened. */
export function spark(numbers, { label, most } = {}) {
  const top = Math.max(most || 0, ...numbers, 1);
  return h("span", { class: "spark", role: "img", "aria-label": label }, numbers.map((n) => h("i", { style: { height: `${Math.max(n ? 8 : 2, (n / top) * 100)}%` }, class: n ? null : "none" })));
}

/** Parts of a whole, as a bar: [[part, tone], …]. */
export function share(parts, whole) {
  return h("span", { class: "bar", "aria-hidden": "true" }, parts.map(([part, tone]) => h("i", { class: `tone-${tone}`, style: { width: `${whole ? Math.min(100, (part / whole) * 100) : 0}%` } })));
}

/** A secret that is shown only once, with a button to copy it. */
export function secret(text, label) {
  const field = h("input", { type: "text", readonly: true, value: text, "aria-label": label, class: "mono secret", onfocus: (event) => event.target.select() });
  const copy = button("Copy", null, { icon: "copy" });
  copy.addEventListener("click", async () => {
    field.focus();
    field.select();
    try {
      await navigator.clipboard.writeText(text);
      put(copy, icon("check"), h("span", null, "Copied"));
    } catch {
      document.execCommand("copy"); // without HTTPS this is the only way
    }
  });
  return h("div", { class: "secret-row" }, field, copy);
}

/** A note for a key that may read but not act. */
export function readOnly(text) {
  return h("p", { class: "note" }, icon("key"), text);
}

/** A rate: 2.5 tasks/s, 12 tasks/min. */
export function rate(perSecond, unit = "tasks") {
  if (!perSecond) return `0 ${unit}/min`;
  if (perSecond >= 1) return `${compact(Math.round(perSecond * 10) / 10)} ${unit}/s`;
  return `${Math.max(0.1, Math.round(perSecond * 600) / 10)} ${unit}/min`;
}

/** A foreign URL as text, with its host emphasised. */
export function where(url) {
  const match = /^(https?:\/\/)([^/?#]+)(.*)$/s.exec(String(url));
  return match ? h("span", { class: "where mono", title: safe(url) }, h("b", null, safe(match[2])), safe(match[3])) : h("span", { class: "where mono" }, safe(url));
}

