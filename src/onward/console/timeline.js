// The timeline: a journal as a waterfall. The lane on top shows which worker ran the task when, and when it was in a queue; below is a
// row for each turn, step, wait, child and undo. Only visible rows have elements, and these are reused, so that ten thousand rows are
// as fast as ten.

import { h, put } from "./dom.js";
import { foldable, scale, ticks } from "./scale.js";
import { button } from "./ui.js";
import { count, exactly, line, moment, number, safe, short, span } from "./words.js";

const ROW = 26;
const SPARE = 8; // extra rows above and below the visible ones
const RANK = { queue: 0, shift: 1, turn: 2, step: 3, model: 3, tool: 3, undo: 3, retry: 5 };
const LINES = { crash: "bad", resume: "run", cancel: "idle", deadline: "bad", parked: "bad", quarantined: "bad", forked: "run", failed: "bad", undo: "undo", pressure: "warn" };
const MARKS = { crash: "crash, resumed" };
const TROUBLE = new Set(["failed", "killed", "retried", "in_doubt", "denied", "undone"]);
const OPEN = new Set(["running", "waiting", "in_doubt"]);

const laned = (bar) => bar.kind === "queue" || bar.kind === "shift" || (bar.kind === "retry" && !bar.name);

/** `pick(bar)` is called when the user selects a bar. Returns {element, take(data), …}. */
export function timeline({ pick, signal }) {
  const bars = new Map();
  const marks = new Map();
  let about = { from: 0, until: null, seq: 0 };
  let rows = [];
  let chosen = null;
  const opened = new Set(); // groups of children that are open
  let fold = null; // null: automatic
  let view = [0, 1];
  let only = "";
  let trouble = false;
  let now = null;
  let drawn = 0; // a row that was drawn with this number is up to date

  const axis = h("div", { class: "tl-axis" });
  const lane = h("div", { class: "tl-lane" });
  const layer = h("div", { class: "tl-layer", "aria-hidden": "true" });
  const space = h("div", { class: "tl-space" });
  const body = h("div", { class: "tl-rows", tabindex: "0", role: "listbox", "aria-label": "Steps in order", onscroll: () => place(), onkeydown: moved }, space);
  const counts = h("span", { class: "faint tl-count" });
  const filter = h("input", { type: "search", placeholder: "Filter steps", "aria-label": "Filter steps by name", oninput: () => ((only = filter.value.trim().toLowerCase()), arrange(), draw()) });
  const failing = h("input", { type: "checkbox", onchange: () => ((trouble = failing.checked), arrange(), draw()) });
  const folding = h("input", { type: "checkbox", onchange: () => ((fold = folding.checked), (view = [0, 1]), draw()) });
  const foldLabel = h("label", { class: "tl-check", title: "Shorten the times in which no worker ran the task" }, folding, "Fold waits");
  const element = h(
    "section",
    { class: "tl", "aria-label": "Timeline" },
    h("div", { class: "tl-tools" }, filter, h("label", { class: "tl-check" }, failing, "Problems only"), foldLabel, counts, h("span", { class: "grow" }), button("", () => zoom(0.5), { icon: "plus", title: "Zoom in", small: true, kind: "quiet" }), button("Fit", () => ((view = [0, 1]), draw()), { small: true, kind: "quiet" })),
    h("div", { class: "tl-box" }, h("div", { class: "tl-head" }, h("div", { class: "tl-corner faint" }, "Worker"), h("div", { class: "tl-chart" }, axis, lane)), body, layer),
  );
  const pool = [];
  let scaled = null;
  let width = 600;

  // ── data ──

  function take(data) {
    if (!data.after) {
      bars.clear();
      marks.clear();
    }
    for (const [name, bar] of bars) if (bar.end === null) bars.delete(name); // the data has it as it is now
    for (const bar of data.bars) bars.set(`${bar.kind}:${bar.seq}:${bar.attempt}`, bar);
    for (const mark of data.marks) marks.set(`${mark.kind}:${mark.seq}`, mark);
    about = { from: data.from, until: data.until, seq: data.seq };
    const below = body.scrollTop + body.clientHeight >= body.scrollHeight - ROW && rows.length > 0;
    arrange();
    draw();
    if (below && !about.until) body.scrollTop = body.scrollHeight; // keep the end in view if it was in view
    again();
  }

  function arrange() {
    const all = [...bars.values()].sort((a, b) => a.seq - b.seq || (RANK[a.kind] ?? 4) - (RANK[b.kind] ?? 4));
    const shown = all.filter((bar) => !laned(bar));
    const matching = shown.filter((bar) => (!trouble || TROUBLE.has(bar.state)) && (!only || label(bar).toLowerCase().includes(only)));
    rows = grouped(matching, opened);
    put(counts, matching.length === shown.length ? count(shown.length, "row") : `${number(matching.length)} of ${number(shown.length)}`);
  }

  // ── drawing ──

  const end = () => about.until ?? Math.max(Date.now() / 1000, about.from + 0.1);
  const x = (time) => ((scaled.at(time) - view[0]) / (view[1] - view[0])) * width;

  function draw() {
    now = end();
    // the time of children counts as work too
    const shifts = [...bars.values()].filter((bar) => bar.kind === "shift" || bar.kind === "child").map((bar) => [bar.start, bar.end ?? now]);
    const ratio = foldable(about.from, now, shifts);
    foldLabel.hidden = ratio < 1.3;
    const folded = fold ?? ratio > 3;
    folding.checked = folded;
    scaled = scale(about.from, now, shifts, folded);
    width = Math.max(200, body.clientWidth - names());
    space.style.setProperty("height", `${rows.length * ROW}px`);
    element.style.setProperty("--chart", `${width}px`);
    drawn += 1;
    drawAxis();
    drawLane();
    place();
  }

  const names = () => Number.parseFloat(getComputedStyle(element).getPropertyValue("--names")) || 260;

  function drawAxis() {
    put(axis, ticks(scaled, width, view).filter(([time, text]) => x(time) + 7 * text.length < width).map(([time, text]) => h("span", { class: "tl-tick", style: { left: `${x(time)}px` } }, text)));
    const lines = [...marks.values()].filter((mark) => LINES[mark.kind]);
    put(
      layer,
      scaled.gaps.map(([a, b]) => inside(x(a), x(b)) && h("i", { class: "tl-gap", style: { left: `${x(a)}px`, width: `${Math.max(2, x(b) - x(a))}px` } })),
      ticks(scaled, width, view).map(([time]) => h("i", { class: "tl-grid", style: { left: `${x(time)}px` } })),
      lines.map((mark) => inside(x(mark.at), x(mark.at)) && h("i", { class: ["tl-line", `tone-${LINES[mark.kind]}`], style: { left: `${x(mark.at)}px` } })),
    );
    let free = -1e9;
    for (const mark of [...marks.values()].filter((mark) => LINES[mark.kind]).sort((a, b) => a.at - b.at)) {
      const left = x(mark.at);
      if (!inside(left, left)) continue;
      const text = left > free ? MARKS[mark.kind] || mark.kind : "";
      axis.append(h("button", { type: "button", class: ["tl-flag", `tone-${LINES[mark.kind]}`, left > width - 110 && "before"], style: { left: `${left}px` }, title: `${mark.kind}${mark.text ? `: ${safe(mark.text)}` : ""} · ${exactly(mark.at)}`, "aria-label": `${mark.kind} at ${moment(mark.at)}`, onclick: () => pick({ ...mark, mark: true, name: mark.kind, last: mark.seq }) }, h("i"), text));
      if (text) free = left + 16 + text.length * 7;
    }
  }

  function inside(a, b) {
    return b >= -2 && a <= width + 2;
  }

  function drawLane() {
    const buttons = [...bars.values()].filter(laned).map((bar) => {
      const [a, b] = [x(bar.start), x(bar.end ?? now)];
      if (!inside(a, b)) return null;
      const wide = Math.max(2, b - a);
      const text = bar.kind === "shift" ? bar.name : bar.kind === "retry" ? "pause" : "queue";
      return h("button", { type: "button", class: ["tl-shift", bar.kind, bar.state], style: { left: `${a}px`, width: `${wide}px` }, title: `${bar.kind === "shift" ? `worker ${safe(bar.name)}` : bar.kind === "retry" ? "pause before the next attempt" : "in the queue"} · ${span((bar.end ?? now) - bar.start)}${bar.text ? ` · ${safe(bar.text)}` : ""}`, onclick: () => choose(bar) }, wide > 54 ? line(text, 30) : "");
    });
    put(lane, buttons);
  }

  function place() {
    if (!scaled) return;
    const first = Math.max(0, Math.floor(body.scrollTop / ROW) - SPARE);
    const last = Math.min(rows.length, Math.ceil((body.scrollTop + body.clientHeight) / ROW) + SPARE);
    while (pool.length < last - first) {
      const made = row();
      pool.push(made);
      space.append(made.element);
    }
    // by index, so that a row that stays in view keeps its element
    const size = pool.length || 1;
    const used = new Set();
    for (let i = first; i < last; i += 1) {
      const slot = pool[i % size];
      used.add(slot);
      show(slot, i);
    }
    for (const slot of pool) if (!used.has(slot)) slot.element.hidden = true;
  }

  function row() {
    const name = h("span", { class: "tl-text" });
    const more = h("span", { class: "tl-more" });
    const kind = h("i", { class: "tl-kind" });
    const bar = h("i", { class: "tl-bar" });
    const took = h("span", { class: "tl-took" });
    const parts = { name, more, kind, bar, took, index: -1 };
    parts.label = h("div", { class: "tl-name" }, kind, name, more);
    parts.element = h("div", { class: "tl-row", role: "option", onclick: () => choose(rows[parts.index]) }, parts.label, h("div", { class: "tl-chart" }, bar, took));
    return parts;
  }

  function show(parts, i) {
    const bar = rows[i];
    const picked = Boolean(same(bar, chosen));
    if (parts.drawn === drawn && parts.index === i && parts.picked === picked && !parts.element.hidden) return;
    Object.assign(parts, { drawn, picked });
    const open = bar.end === null || bar.end === undefined;
    const [a, b] = [x(bar.start), x(open ? now : bar.end)];
    const wide = Math.max(3, b - a);
    const { element } = parts;
    parts.index = i;
    element.hidden = false;
    element.id = `tl-${bar.kind}-${bar.seq}-${bar.attempt}`;
    element.style.transform = `translateY(${i * ROW}px)`;
    element.className = `tl-row k-${bar.kind} s-${bar.state}${picked ? " chosen" : ""}`;
    element.setAttribute("aria-selected", String(picked));
    element.setAttribute("aria-posinset", i + 1);
    element.setAttribute("aria-setsize", rows.length);
    parts.label.style.paddingLeft = `${10 + Math.min(8, Math.max(0, bar.depth - 1)) * 14}px`;
    parts.name.textContent = label(bar);
    parts.label.title = safe(`${label(bar)}${bar.text ? ` · ${bar.text}` : ""}`);
    parts.more.textContent = bar.attempt > 1 && bar.kind !== "retry" ? `attempt ${bar.attempt}` : bar.kind === "model" ? line(bar.text, 24) : "";
    parts.bar.style.left = `${a}px`;
    parts.bar.style.width = `${wide}px`;
    const text = words(bar, open);
    // after the bar, or before it, or in it: wherever there is room
    const need = text.length * 6.6 + 10;
    const after = width - (a + wide) > need;
    const before = !after && a > need;
    parts.took.textContent = text;
    parts.took.style.left = before ? "auto" : `${after ? Math.max(0, a + wide) + 6 : Math.max(0, a) + 5}px`;
    parts.took.style.right = before ? `${width - a + 6}px` : "auto";
    parts.took.classList.toggle("within", !after && !before);
    parts.took.hidden = !text || !inside(a, a + wide);
  }

  function words(bar, open) {
    if (bar.kind === "children") return bar.text;
    const long = span((open ? now : bar.end) - bar.start);
    if (bar.state === "in_doubt") return "in doubt";
    if (bar.state === "failed") return bar.end > bar.start ? `failed after ${long}` : "failed";
    if (bar.state === "killed") return bar.end > bar.start ? `interrupted after ${long}` : "interrupted";
    if (bar.state === "retried") return "failed, retried";
    if (bar.state === "denied") return "denied";
    if (open && bar.until) return `until ${moment(bar.until)}`;
    if (bar.state === "undone") return `${long}, undone`;
    return !open && bar.end === bar.start ? "" : long;
  }

  // ── selection ──

  const same = (a, b) => a && b && a.kind === b.kind && a.seq === b.seq && a.attempt === b.attempt;

  function choose(bar, tell = true) {
    if (!bar) return;
    if (bar.kind === "children" && tell) {
      if (!opened.delete(bar.group)) opened.add(bar.group);
      arrange();
      draw();
    }
    chosen = bar;
    const i = rows.findIndex((candidate) => same(candidate, bar));
    if (i >= 0) {
      if (i * ROW < body.scrollTop) body.scrollTop = i * ROW;
      else if ((i + 1) * ROW > body.scrollTop + body.clientHeight) body.scrollTop = (i + 1) * ROW - body.clientHeight;
      body.setAttribute("aria-activedescendant", `tl-${bar.kind}-${bar.seq}-${bar.attempt}`);
    }
    place();
    if (tell && bar.kind !== "children") pick(bar);
  }

  function moved(event) {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined || !rows.length || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const i = rows.findIndex((candidate) => same(candidate, chosen));
    choose(rows[Math.max(0, Math.min(rows.length - 1, i < 0 ? (step > 0 ? 0 : rows.length - 1) : i + step))]);
  }

  // ── zoom ──

  function zoom(by, at = 0.5) {
    const wide = Math.min(1, Math.max(1e-5, (view[1] - view[0]) * by));
    const fixed = view[0] + (view[1] - view[0]) * at;
    slide(fixed - wide * at, wide);
  }

  function slide(from, wide) {
    const start = Math.max(0, Math.min(1 - wide, from));
    view = [start, start + wide];
    draw();
  }

  element.addEventListener(
    "wheel",
    (event) => {
      const chart = event.target.closest(".tl-chart, .tl-row");
      if (!chart) return;
      const left = body.getBoundingClientRect().left + names();
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, Math.min(1, (event.clientX - left) / width)));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && view[1] - view[0] < 1) {
        event.preventDefault();
        slide(view[0] + (event.deltaX / width) * (view[1] - view[0]), view[1] - view[0]);
      }
    },
    { passive: false },
  );

  // ── running bars grow ──

  let ticking = 0;
  function again() {
    clearTimeout(ticking);
    if (signal.aborted || about.until) return;
    ticking = setTimeout(() => {
      if (!document.hidden) draw();
      again();
    }, [...bars.values()].some((bar) => bar.state === "running") ? 250 : 1000);
  }
  const watch = new ResizeObserver(() => scaled && draw());
  watch.observe(body);
  signal.addEventListener("abort", () => (clearTimeout(ticking), watch.disconnect()), { once: true });

  return {
    element,
    take,
    choose: (seq) => choose(rows.find((bar) => bar.seq === seq && bar.kind !== "children") || [...bars.values()].find((bar) => bar.seq <= seq && seq <= bar.last && bar.kind !== "shift" && bar.kind !== "turn")),
    seq: () => about.seq,
    open: () => [...bars.values()].filter((bar) => OPEN.has(bar.state) && !laned(bar)),
    bars: () => [...bars.values()],
    marks: () => [...marks.values()],
  };
}

const GROUPED = 6; // children of one name from which on they are one row
const WORDS = { ok: "done", failed: "failed", running: "running", waiting: "waiting" };

/** The rows, with many children of one name as one row, which opens. */
function grouped(bars, opened) {
  const groups = new Map();
  for (const bar of bars) if (bar.kind === "child") groups.set(groupOf(bar), [...(groups.get(groupOf(bar)) || []), bar]);
  const rows = [];
  for (const bar of bars) {
    const all = bar.kind === "child" ? groups.get(groupOf(bar)) : [];
    if (all.length < GROUPED) rows.push(bar);
    else if (all[0] === bar) rows.push(group(all, opened), ...(opened.has(groupOf(bar)) ? all.map((child) => ({ ...child, depth: child.depth + 1 })) : []));
  }
  return rows;
}

const groupOf = (bar) => `${bar.parent}:${bar.name}`;

/** One bar for many children. */
function group(all, opened) {
  const states = new Map();
  for (const bar of all) states.set(bar.state, (states.get(bar.state) || 0) + 1);
  const worst = ["failed", "in_doubt", "running", "waiting"].find((state) => states.has(state)) || "ok";
  const over = all.every((bar) => bar.end !== null && bar.end !== undefined);
  return {
    ...all[0],
    kind: "children",
    group: groupOf(all[0]),
    name: `${opened.has(groupOf(all[0])) ? "▾" : "▸"} ${number(all.length)} × ${all[0].name || "child"}`,
    child_id: null,
    until: null,
    attempt: 1,
    last: Math.max(...all.map((bar) => bar.last)),
    start: Math.min(...all.map((bar) => bar.start)),
    end: over ? Math.max(...all.map((bar) => bar.end)) : null,
    state: worst,
    text: [...states].map(([state, n]) => `${number(n)} ${WORDS[state] || state.replace("_", " ")}`).join(", "),
  };
}

/** The label of a bar. */
export function label(bar) {
  const name = line(bar.name || "", 120);
  switch (bar.kind) {
    case "turn":
      return `Turn ${name}`;
    case "sleep":
      return "sleep";
    case "wait":
      return name ? `wait: ${name}` : "wait";
    case "approval":
      return `approval${name ? `: ${name}` : bar.text ? `: ${line(bar.text, 80)}` : ""}`;
    case "question":
      return `question${bar.text ? `: ${line(bar.text, 80)}` : ""}`;
    case "child":
      return `${name || "child"} ${bar.child_id ? short(bar.child_id) : ""}`;
    case "undo":
      return `undo ${name}`;
    case "retry":
      return `pause before attempt ${bar.attempt + 1}`;
    case "shift":
      return `worker ${name}`;
    default:
      return name || bar.kind;
  }
}
