// Tasks: the list with the reason why each task does not go on, and actions for all that match. Filters are in the URL, so that a view
// can be shared; the list is read again when the stream reports a change.

import { get, post } from "../api.js";
import { h, put } from "../dom.js";
import { attempt, dialog, toast } from "../dialog.js";
import * as fields from "../fields.js";
import * as filters from "../filters.js";
import { icon } from "../icons.js";
import * as live from "../live.js";
import { may } from "../me.js";
import { go, here, link } from "../router.js";
import { age, badge, button, chip, empty, failure, menu, pager, tag, taskLink, whyLine } from "../ui.js";
import { at, compact, count, exactly, line, money, number, safe, short, span, standing, briefField } from "../words.js";

const PAGE = 50;
const GROUPED = 4; // children of one task and one name from which on they are one row

const groupOf = (task) => `${task.parent}:${task.task}`;

export async function show(root, place) {
  const { signal } = place;
  const bar = h("div", { class: "filters" });
  const list = h("div", { class: "task-list", role: "list", "aria-label": "Tasks" });
  const foot = h("div");
  const total = h("span", { class: "faint total" });
  put(root, h("header", { class: "page-head" }, h("div", null, h("h1", null, "Tasks ", total)), h("div", { class: "actions" }, actions())), bar, list, foot);

  let seen = [];
  const opened = new Set(); // groups of children that are open
  let before = []; // the cursors of the newer pages
  let reading = null;
  const known = await filters.choices(signal);
  filters.draw(bar, here(), known);

  async function read({ quiet = false } = {}) {
    reading?.abort();
    const mine = (reading = new AbortController());
    signal.addEventListener("abort", () => mine.abort(), { once: true });
    const place = here();
    if (!quiet) list.setAttribute("aria-busy", "true");
    try {
      const page = await get("/api/tasks", { brief: true, ...filters.toQuery(place), limit: PAGE, cursor: place.one("cursor") }, { signal: mine.signal });
      seen = page.tasks;
      draw(page, place);
      counted(place, mine.signal);
    } catch (error) {
      if (error.name !== "AbortError" && error.status !== 401) put(list, failure(error, () => read()));
    } finally {
      if (reading === mine) list.removeAttribute("aria-busy");
    }
  }

  function draw(page, place) {
    const chosen = list.querySelector(".chosen")?.dataset.id;
    const focused = list.contains(document.activeElement);
    list.setAttribute("role", seen.length ? "list" : "region");
    if (!seen.length) put(list, place.one("cursor") ? empty("No more tasks", "The page before this one was the last.") : nothing(place));
    else {
      list.replaceChildren(...rowsOf(place));
    }
    const again = chosen && list.querySelector(`[data-id="${CSS.escape(chosen)}"]`);
    if (again) choose(again, focused);
    put(foot, page.next || before.length ? pager({ next: page.next, before: before.length || place.one("cursor"), text: `${number(seen.length)} shown`, onnext: () => (before.push(place.one("cursor")), turn(page.next)), onbefore: () => turn(before.pop() || "") }) : null);
  }

  /** A row for each task; many children of one task, with one name, are one row that opens. */
  function rowsOf(place) {
    const old = new Map([...list.children].map((element) => [element.dataset.id, element]));
    const groups = new Map();
    for (const task of seen) if (task.parent && !place.one("parent")) groups.set(groupOf(task), [...(groups.get(groupOf(task)) || []), task]);
    return seen.flatMap((task) => {
      const all = groups.get(groupOf(task)) || [];
      if (all.length < GROUPED) return [row(task, old.get(task.task_id))];
      if (all[0] !== task) return [];
      const open = opened.has(groupOf(task));
      return [groupRow(all, open, () => toggle(groupOf(task))), ...(open ? all.map((child) => row(child, old.get(child.task_id))) : [])];
    });
  }

  function toggle(group) {
    if (!opened.delete(group)) opened.add(group);
    list.replaceChildren(...rowsOf(here()));
    list.querySelector(`[data-id="${CSS.escape(group)}"] .cover`)?.focus({ preventScroll: true });
  }

  function turn(cursor) {
    go("/tasks", { ...filters.current(here()), cursor });
    root.scrollTop = 0;
  }

  async function counted(place, signal) {
    if (!filters.any(place)) return put(total);
    try {
      const page = await get("/api/tasks/count", filters.toQuery(place), { signal });
      put(total, `${number(page.count)}${page.capped ? " or more" : ""}`);
    } catch {
      put(total);
    }
    return undefined;
  }

  // ── live: the list is read at most once a second, and only after a change ──
  let due = 0;
  let last = 0;
  const soon = () => {
    if (due || signal.aborted) return;
    due = setTimeout(() => {
      due = 0;
      last = Date.now();
      if (!signal.aborted && !document.hidden) read({ quiet: true });
    }, Math.max(150, 1000 - (Date.now() - last)));
  };
  live.on("task", soon, signal);
  live.on("reset", soon, signal);
  const slow = setInterval(soon, 15_000); // for what the stream does not report: positions in queues
  signal.addEventListener("abort", () => clearInterval(slow), { once: true });

  // ── the keyboard ──
  function choose(row_, focus = true) {
    list.querySelector(".chosen")?.classList.remove("chosen");
    row_.classList.add("chosen");
    if (focus) row_.querySelector(".cover").focus({ preventScroll: true });
    row_.scrollIntoView({ block: "nearest" });
  }
  addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog, [role=menu]")) return;
      const step = { j: 1, k: -1 }[event.key];
      if (!step || !list.children.length) return;
      const rows = [...list.querySelectorAll(".task-row")];
      const now = rows.findIndex((row) => row.classList.contains("chosen"));
      if (rows.length) choose(rows[Math.max(0, Math.min(rows.length - 1, now + step))]);
    },
    { signal },
  );

  await read();
  return {
    changed(place) {
      if (!place.one("cursor")) before = [];
      filters.draw(bar, place, known);
      read();
    },
  };
}

// ── one row ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function row(task, old) {
  const mark = JSON.stringify([task.state, task.reason, task.why, task.updated_at, task.priority, task.usage]);
  if (old?.mark === mark) return old;
  const end = at(task.finished_at);
  const usage = task.usage;
  const labels = Object.entries(task.labels || {});
  const made = h(
    "div",
    { class: ["task-row", old?.classList.contains("chosen") && "chosen"], role: "listitem", data: { id: task.task_id } },
    h("a", { class: "cover", href: link(`/tasks/${encodeURIComponent(task.task_id)}`), "aria-label": `${safe(task.task)} ${short(task.task_id)}, ${task.state}` }),
    h("div", { class: "c-state" }, chip(task), outcome(task)),
    h("div", { class: "c-task" }, h("span", { class: "name clip" }, line(task.task, 80), task.parent && h("span", { class: "faint" }, " · child")), h("span", { class: "brief clip" }, briefField(task, "input", 160))),
    h("div", { class: "c-labels" }, labels.slice(0, 3).map(([name, value]) => tag(name, value)), labels.length > 3 && h("span", { class: "faint" }, `+${labels.length - 3}`)),
    h("div", { class: "c-queue clip faint" }, task.queue === "default" ? "" : safe(task.queue), task.priority ? h("span", { title: "priority" }, ` ${task.priority > 0 ? "↑" : "↓"}${Math.abs(task.priority)}`) : null),
    h("div", { class: "c-spent num" }, usage ? [h("span", null, money(usage.cost_usd)), h("span", { class: "faint" }, `${compact(total(usage))} tok`)] : null),
    h("div", { class: "c-time num" }, age(task.created_at), h("span", { class: "faint", title: end ? `ended ${exactly(end)}` : null }, end ? span(end - at(task.created_at)) : task.attempt > 1 ? `attempt ${task.attempt}` : "")),
    h("div", { class: "c-id mono faint" }, short(task.task_id)),
  );
  made.mark = mark;
  return made;
}

/** Many children of one task as one row. */
function groupRow(all, open, toggle) {
  const states = new Map();
  for (const task of all) states.set(standing(task).word, [(states.get(standing(task).word)?.[0] || 0) + 1, standing(task).tone]);
  const [{ task, parent }] = all;
  return h(
    "div",
    { class: "task-row group", role: "listitem", data: { id: groupOf(all[0]) } },
    h("button", { type: "button", class: "cover", "aria-expanded": String(open), "aria-label": `${count(all.length, "child", "children")} ${safe(task)} of ${short(parent)}`, onclick: toggle }),
    h("div", { class: "c-state" }, h("span", { class: "row" }, [...states].map(([word, [n, tone]]) => badge(`${number(n)} ${word}`, tone)))),
    h("div", { class: "c-task" }, h("span", { class: "name clip" }, icon(open ? "down" : "right", 14), ` ${number(all.length)} × ${line(task, 80)}`), h("span", { class: "brief clip" }, "children of ", taskLink(parent), " · ", h("a", { href: link("/tasks", { parent }) }, "all of them"))),
    h("div", { class: "c-labels" }),
    h("div", { class: "c-queue" }),
    h("div", { class: "c-spent" }),
    h("div", { class: "c-time num" }, age(all[0].created_at)),
    h("div", { class: "c-id" }),
  );
}

const total = (usage) => (usage.input_tokens === null || usage.output_tokens === null ? null : usage.input_tokens + usage.output_tokens);

/** Why the task does not go on, or how it ended, in one line. */
function outcome(task) {
  if (task.state !== "completed") return whyLine(task);
  return h("span", { class: "why" }, briefField(task, "result", 100));
}

function nothing(place) {
  if (filters.any(place)) return empty("No task matches", "Remove a filter, or search for something else.", button("Clear all filters", () => go("/tasks")));
  return empty("No tasks yet", ["Submit one here, with ", h("code", null, "onward submit"), ", or over the API."], may("submit") && h("a", { class: "button main", href: link("/new") }, "New task"));
}

// ── bulk actions ───────────────────────────────────────────────────────────────────────────────────────────────────────

const ACTIONS = {
  cancel: { text: "Cancel", icon: "stop", says: "These tasks and their children end; finished saga steps are undone first. Ended tasks do not change.", danger: true },
  pause: { text: "Pause", icon: "pause", says: "Workers do not continue these tasks until they are resumed." },
  resume: { text: "Resume", icon: "play", says: "Failed, parked, quarantined and paused tasks continue where they stopped." },
  priority: { text: "Change the priority of", icon: "up", says: "Tasks with a higher priority go first." },
  prune: { text: "Delete", icon: "stop", says: "Ended tasks are deleted for good, with all tasks that they started. Other tasks do not change.", danger: true, scope: "admin" },
};

function actions() {
  if (!may("submit")) return null;
  return menu("Bulk actions", () => {
    const some = filters.any(here());
    return Object.entries(ACTIONS).filter(([, action]) => may(action.scope || "submit")).map(([name, action]) => ({ text: `${action.text} all matching…`, icon: action.icon, danger: action.danger, disabled: !some, title: some ? null : "Set a filter first", act: () => all(name, action) }));
  }, { title: "An action for all tasks that match the filters" });
}

async function all(name, action) {
  const place = here();
  const filter = filters.toQuery(place);
  const matching = await attempt(() => get("/api/tasks/count", filter));
  if (!matching) return;
  if (!matching.count) {
    toast("No task matches these filters now.");
    return;
  }
  const n = `${count(matching.count, "task")}${matching.capped ? " or more" : ""}`;
  const priority = name === "priority" ? fields.numeric("Priority", { value: 5, step: 1, required: true }) : null;
  const done = await dialog(`${action.text} ${n}?`, {
    text: action.says,
    fields: [h("div", { class: "row" }, filters.words(place).map((phrase) => h("span", { class: "tag" }, phrase))), priority],
    name: `${action.text} ${n}`,
    cancel: "Keep them as they are",
    kind: action.danger ? "danger" : "main",
    act: () => post("/api/tasks/actions", { action: name, filter, count: matching.count, ...(priority ? { priority: Number(priority.input.value) } : {}) }),
  });
  if (!done) return;
  const refused = done.refused?.length ? ` ${count(done.matched - done.done, "task")} refused: ${done.refused[0].detail}` : "";
  toast(`Done with ${number(done.done)} of ${number(done.matched)}.${refused}`, { tone: refused ? "bad" : "good" });
}

