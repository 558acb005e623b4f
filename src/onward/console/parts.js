// Parts that the pages about the whole place share: keeping a page up to date, tiles, switches, bars.

import { h, put } from "./dom.js";
import { icon } from "./icons.js";
import { on } from "./live.js";
import { link } from "./router.js";
import { button } from "./ui.js";
import { compact, safe } from "./words.js";

/** Keep something up to date: `load` runs now (what it throws is the page's), whenever the stream tells of a task, though not more
 *  often than every `gap` ms and less where it takes long, and every `every` ms for what no stream tells of. Never twice at once, and
 *  not while nobody looks. Returns a function that has it run at once. */
export async function kept(load, signal, { gap = 1000, every = 0 } = {}) {
  let [running, wanted, forced, last, timer, took] = [true, false, false, Date.now(), 0, 0];
  async function run() {
    timer = 0;
    if (signal.aborted) return;
    [running, wanted, last] = [true, false, Date.now()];
    try {
      await load();
    } catch (error) {
      if (error.name !== "AbortError" && !error.status && error.code !== "unreachable") console.error(error); // the lamp tells of the line
    }
    [running, took] = [false, Date.now() - last];
    if (wanted) (forced ? now : soon)();
  }
  /** At once: somebody has pressed something. */
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

/** Draw `make()` into `box`, only when `what` is another than before. The focus stays on what has the same `data-key`, and nothing
 *  moves under somebody who has a menu open. */
export function redraw(box, what, make) {
  const now = JSON.stringify(what);
  if (box.drawn === now) return;
  if (box.querySelector("[aria-expanded='true']")) return;
  const at = box.contains(document.activeElement) ? document.activeElement.closest("[data-key]")?.dataset.key : null;
  const places = [...box.querySelectorAll(".table-box")].map((one) => one.scrollLeft);
  box.drawn = now;
  put(box, make());
  [...box.querySelectorAll(".table-box")].forEach((one, i) => (one.scrollLeft = places[i] || 0));
  if (at) [...box.querySelectorAll("[data-key]")].find((one) => one.dataset.key === at)?.focus({ preventScroll: true });
}

/** A number that matters, with what it is and a word below it. */
export function tile(name, figure, { note, tone, href, drawing } = {}) {
  return h(href ? "a" : "div", { class: ["tile", tone && `tone-${tone}`], href }, h("span", { class: "tile-name" }, drawing && icon(drawing, 15), name), h("span", { class: "tile-figure num" }, figure), h("span", { class: "tile-note" }, note || "\u00a0"));
}

/** Tiles in a row. */
export const tiles = (...all) => h("div", { class: "tiles" }, all);

/** One of a few, as links, so that each has an address: [[value, word], …]. */
export function segments(label, options, chosen, path, query, name) {
  return h("nav", { class: "segments", "aria-label": label }, options.map(([value, word]) => h("a", { href: link(path, { ...query, [name]: value }), "aria-current": value === chosen ? "true" : null }, word)));
}

/** A part of a page with a head. */
export function section(title, { text, actions, id } = {}, ...body) {
  return h("section", { class: "part", id }, h("header", { class: "part-head" }, h("div", null, h("h2", null, title), text && h("p", { class: "faint" }, text)), actions && h("div", { class: "actions" }, actions)), body);
}

/** A line of thin bars, the newest on the right; for how something went since somebody looks. */
export function spark(numbers, { label, most } = {}) {
  const top = Math.max(most || 0, ...numbers, 1);
  return h("span", { class: "spark", role: "img", "aria-label": label }, numbers.map((n) => h("i", { style: { height: `${Math.max(n ? 8 : 2, (n / top) * 100)}%` }, class: n ? null : "none" })));
}

/** A share of a whole, as a bar: [[part, tone], …]. */
export function share(parts, whole) {
  return h("span", { class: "bar", "aria-hidden": "true" }, parts.map(([part, tone]) => h("i", { class: `tone-${tone}`, style: { width: `${whole ? Math.min(100, (part / whole) * 100) : 0}%` } })));
}

/** A secret that is shown this once, with a way to take it along. */
export function secret(text, said) {
  const field = h("input", { type: "text", readonly: true, value: text, "aria-label": said, class: "mono secret", onfocus: (event) => event.target.select() });
  const copy = button("Copy", null, { icon: "copy" });
  copy.addEventListener("click", async () => {
    field.focus();
    field.select();
    try {
      await navigator.clipboard.writeText(text);
      put(copy, icon("check"), h("span", null, "Copied"));
    } catch {
      document.execCommand("copy"); // without HTTPS there is no other way
    }
  });
  return h("div", { class: "secret-row" }, field, copy);
}

/** A word that says nothing can be done with this key, for those whose key is for looking only. */
export function readOnly(text) {
  return h("p", { class: "note" }, icon("key"), text);
}

/** 0.25 / s, 12 / min: as people say rates. */
export function rate(perSecond) {
  if (!perSecond) return "0";
  if (perSecond >= 1) return `${compact(Math.round(perSecond * 10) / 10)} / s`;
  return `${Math.max(0.1, Math.round(perSecond * 600) / 10)} / min`;
}

/** A URL of others as text: the host stands out. */
export function where(url) {
  const found = /^(https?:\/\/)([^/?#]+)(.*)$/s.exec(String(url));
  return found ? h("span", { class: "where mono", title: safe(url) }, h("b", null, safe(found[2])), safe(found[3])) : h("span", { class: "where mono" }, safe(url));
}

