// The inbox: open approvals and questions, the one that expires first on top; effects in doubt; and tasks that wait for a person.
// `#/inbox?id=…` is one of them.

import { get, part, post } from "../api.js";
import { dialog, toast } from "../dialog.js";
import { add, h, put } from "../dom.js";
import { area } from "../fields.js";
import { icon } from "../icons.js";
import { may } from "../me.js";
import { kept, readOnly, redraw } from "../parts.js";
import { go, link } from "../router.js";
import { age, badge, button, clock, empty, heading, tag, taskLink } from "../ui.js";
import { value } from "../values.js";
import { at, count, line, number, safe, told } from "../words.js";
import { arguments_, asked, changed } from "./arguments.js";

const KINDS = {
  approval: { word: "approval", tone: "wait", drawing: "check" },
  question: { word: "question", tone: "run", drawing: "message" },
  doubt: { word: "in doubt", tone: "bad", drawing: "warn" },
  budget: { word: "budget spent", tone: "wait", drawing: "coin" },
  parked: { word: "parked", tone: "bad", drawing: "pause" },
  quarantined: { word: "quarantined", tone: "bad", drawing: "stop" },
};
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
    const tasks = new Set(items.map((one) => one.task_id)).size;
    redraw(head, [items.length, tasks], () => heading("Approvals and questions", items.length ? `${count(items.length, "item waits", "items wait")} for a person${tasks < items.length ? `, in ${count(tasks, "task")}` : ""}; the one that expires first is on top` : ""));
    panes.classList.toggle("none", !items.length && !chosen);
    panes.classList.toggle("one", Boolean(chosen));
    redraw(list, [items.slice(0, MOST).map((one) => [one.id, one.title, one.until]), chosen, items.length], () => [items.slice(0, MOST).map((one) => row(one, one.id === chosen)), items.length > MOST && h("p", { class: "faint center" }, `and ${number(items.length - MOST)} more`)]);
    const found = items.find((one) => one.id === chosen);
    const view = `${found ? "open" : chosen ? "closed" : items.length ? "choose" : "none"} ${chosen}`;
    if (view === state.view) return;
    state.view = view;
    if (found) panel(detail, found, done, signal);
    else if (chosen) put(detail, back(), empty("This is no longer open", "It was decided, it expired, or its task has ended.", h("a", { href: link(`/tasks/${part(chosen.split(".")[0])}`) }, "Show the task")));
    else put(detail, items.length ? empty("Nothing is selected", "Select an item in the list.") : nothing());
  }

  function row(one, on) {
    const kind = KINDS[one.kind];
    const until = at(one.until);
    const soon = until !== null && until - Date.now() / 1000 < SOON;
    return h(
      "a",
      { href: link("/inbox", { id: one.id }), class: "inbox-row", role: "option", "aria-selected": String(on), data: { key: one.id, id: one.id }, id: `ask-${one.id}` },
      h("span", { class: ["inbox-icon", `tone-${kind.tone}`], title: kind.word }, icon(kind.drawing)),
      h("span", { class: "inbox-what" }, h("span", { class: "inbox-title" }, line(one.title, 120)), h("span", { class: "inbox-sub" }, `${kind.word} · ${line(one.task, 60)}`)),
      h("span", { class: ["inbox-when", soon && "tone-bad"] }, until === null ? age(one.since, { ago: false }) : age(until)),
    );
  }

  /** An item was decided: go to the next. */
  function done(one, said) {
    const index = state.items.findIndex((other) => other.id === one.id);
    state.items = state.items.filter((other) => other.id !== one.id);
    toast(said, { tone: "good", href: link(`/tasks/${part(one.task_id)}`), more: "Show the task" });
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
    const index = state.items.findIndex((one) => one.id === chosen);
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

  const again = await kept(load, signal, { gap: 700, every: 20_000 });
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

/** Everything that waits for a person, the one that expires first on top. */
export async function gathered(signal) {
  const [approvals, questions, doubtful, ...others] = await Promise.all([
    get("/api/approvals", {}, { signal }),
    get("/api/questions", {}, { signal }),
    get("/api/tasks", { brief: true, reason: "in_doubt", limit: 50 }, { signal }),
    ...OTHERS.map((reason) => get("/api/tasks", { brief: true, reason, limit: 50 }, { signal })),
  ]);
  const doubts = await Promise.all(doubtful.tasks.map((task) => get(`/api/tasks/${part(task.task_id)}/doubts`, {}, { signal }).then((found) => found.doubts.map((one) => doubt(task, one)), () => [])));
  const asks = [...approvals.approvals, ...questions.questions].map((ask) => ({ ...ask, title: ask.tool || ask.text, since: ask.asked_at, until: ask.expires_at }));
  const held = others.flatMap((found, i) => found.tasks.map((task) => ({ id: task.task_id, kind: OTHERS[i], task_id: task.task_id, task: task.task, title: told(task, "input") || task.task, since: task.updated_at, until: null, about: task })));
  const never = Number.MAX_SAFE_INTEGER;
  return [...asks, ...doubts.flat(), ...held].sort((a, b) => (at(a.until) ?? never) - (at(b.until) ?? never) || at(a.since) - at(b.since));
}

function doubt(task, one) {
  return { id: `${one.task_id}.${one.seq}`, kind: "doubt", task_id: one.task_id, task: task.task, title: one.step, since: task.updated_at, until: null, about: task, doubt: one };
}

// ── one item ─────────────────────────────────────────────────────────────────────────────────────────────────────────

function panel(box, one, done, signal) {
  const kind = KINDS[one.kind];
  const context = h("div", { class: "ask-context" });
  const body = { approval, question, doubt: doubted }[one.kind] || held;
  put(
    box,
    back(),
    h(
      "article",
      { class: "ask", "aria-label": line(one.title, 120), data: { ask: one.id } },
      h("header", { class: "ask-head" }, h("div", { class: "row" }, badge(kind.word, kind.tone), one.risk && h("span", { class: ["risk", one.risk === "read" ? "tone-idle" : "tone-bad"] }, icon("warn", 13), `risk: ${line(one.risk, 40)}`), h("span", { class: "grow" }), h("span", { class: "faint" }, "since ", age(one.since, { ago: false }))), h("h2", { class: "ask-title" }, one.tool ? ["Call ", h("code", null, line(one.tool, 80)), "?"] : h("bdi", null, safe(one.title.slice(0, 2000)))), whose(one)),
      body(one, done),
      context,
    ),
  );
  surroundings(context, one, signal);
}

function whose(one) {
  const until = at(one.until);
  return h("p", { class: "ask-whose" }, h("span", null, "asked by "), h("b", null, line(one.task, 60)), " ", taskLink(one.task_id), until !== null && [h("span", null, " · expires "), age(until), " (", clock(until), ")", one.kind === "approval" ? `, and is then ${one.default === "approve" ? "approved" : "denied"}` : ""]);
}

/** The input and labels of the task, so that a person does not decide on a call without its context. */
async function surroundings(box, one, signal) {
  const task = (!one.about?.left_out && one.about) || (await get(`/api/tasks/${part(one.task_id)}`, {}, { signal }).catch(() => null));
  if (!task) return;
  const labels = Object.entries(task.labels || {});
  put(box, h("h3", null, "Input of the task"), value(task.input, { name: `${one.task_id}-input`, first: 1200, label: "Input of the task" }), labels.length > 0 && h("div", { class: "row" }, labels.slice(0, 12).map(([name, one_]) => tag(name, one_))));
}

/** The row of buttons; a note for a key without the scope. */
function deeds(scope, ...buttons) {
  return may(scope) ? h("footer", { class: "ask-deeds" }, buttons) : readOnly("Your key may read this, but not decide it.");
}

function approval(one, done) {
  const always = h("input", { type: "checkbox", id: `always-${one.id}` });
  const decide = async (decision, more, said) => {
    await post(`/api/approvals/${part(one.id)}`, { decision, hash: one.hash, ...more });
    done(one, said);
  };
  const yes = () => pressed(box, () => decide("approve", always.checked ? { always: true } : {}, `Approved: ${line(one.title, 60)}`));
  const no = () => denied(one, decide);
  const other = () => changed(one, (given) => decide("approve", { arguments: given, ...(always.checked ? { always: true } : {}) }, `Approved with other arguments: ${line(one.title, 60)}`));
  const trouble = h("p", { class: "form-trouble", role: "alert" });
  const box = h(
    "div",
    { class: "ask-body" },
    one.tool ? asked(one) : one.data !== null && one.data !== undefined && (plain(one.data) ? arguments_(one.data, one.id) : value(one.data, { name: one.id, label: "Details" })),
    trouble,
    deeds(
      "decide",
      button("Approve", yes, { kind: "main", icon: "check", data: { press: "a" }, title: "Approve (a)" }),
      button("Deny…", no, { icon: "close", data: { press: "d" }, title: "Deny, with a reason (d)" }),
      one.tool && button("Change…", other, { icon: "file", data: { press: "e" }, title: "Change the arguments, then approve (e)" }),
      one.tool && h("label", { class: "always", for: always.id }, always, h("span", null, "always for ", h("code", null, line(one.tool, 40)), " in this task")),
    ),
  );
  return box;
}

const plain = (data) => data && typeof data === "object" && !Array.isArray(data) && Object.keys(data).length > 0;

/** Do it once, with the buttons disabled meanwhile; an error is shown beside them. */
async function pressed(box, doing) {
  const all = [...box.querySelectorAll(".ask-deeds button")];
  const trouble = box.querySelector(".form-trouble");
  put(trouble);
  all.forEach((one) => (one.disabled = true));
  try {
    await doing();
  } catch (error) {
    put(trouble, safe(error.message));
    all.forEach((one) => (one.disabled = false));
  }
}

function denied(one, decide) {
  const reason = area("Reason", { rows: 3, placeholder: "What is wrong with it? The agent reads this.", maxlength: 10_000, spellcheck: "true" }, { hint: "Optional." });
  dialog(`Deny ${line(one.title, 60)}?`, { fields: [reason], name: "Deny", kind: "danger", act: () => decide("deny", { reason: reason.input.value.trim() }, `Denied: ${line(one.title, 60)}`) });
}

function question(one, done) {
  const trouble = h("p", { class: "form-trouble", role: "alert" });
  const send = (answer) => pressed(box, async () => {
    await post(`/api/questions/${part(one.id)}`, { answer });
    done(one, `Answered: ${line(String(answer), 60)}`);
  });
  const free = area("Your answer", { rows: 3, spellcheck: "true", onkeydown: (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && said() }, { hint: "Ctrl+Enter sends it." });
  const said = () => free.input.value.trim() && send(free.input.value.trim());
  const box = h(
    "div",
    { class: "ask-body" },
    one.data !== null && one.data !== undefined && value(one.data, { label: "Details" }),
    may("decide") ? (one.choices.length ? h("div", { class: "choices ask-deeds", role: "group", "aria-label": "Answers" }, one.choices.map((choice) => button(line(choice, 200), () => send(choice), { class: "button choice" }))) : [free, h("footer", { class: "ask-deeds" }, button("Answer", said, { kind: "main", icon: "message" }))]) : [one.choices.length > 0 && h("ul", { class: "offered" }, one.choices.map((choice) => h("li", null, line(choice, 200)))), readOnly("Your key may read this, but not answer it.")],
    trouble,
  );
  return box;
}

const VERDICTS = [
  ["happened", "It happened", "check", "The task continues with the result that you enter."],
  ["not_happened", "It did not happen", "right", "The step runs again."],
  ["undo", "Undo it", "left", "Its undo runs, and the step fails."],
];

function doubted(one, done) {
  const resolve = async (verdict, word, more = {}) => {
    await post(`/api/tasks/${part(one.task_id)}/resolve`, { verdict, step: one.doubt.step, ...more });
    done(one, `${word}: ${line(one.doubt.step, 60)}`);
  };
  const act = { happened: () => happened(one, resolve), not_happened: () => sure(one, "not_happened", "It did not happen", "The step runs again now. Be sure that it did not happen; otherwise it would happen twice.", resolve), undo: () => sure(one, "undo", "Undo it", "The undo of the step runs, and the step fails. Choose this if you cannot tell whether it happened, and if undoing does no harm when it did not.", resolve) };
  return h(
    "div",
    { class: "ask-body" },
    h("p", null, "This effect began, and it is not known whether it finished: ", h("bdi", null, safe(String(one.doubt.reason).slice(0, 2000))), /[.!?]$/.test(one.doubt.reason) ? "" : "."),
    h("p", { class: "faint" }, "It is never repeated silently. Check the system that it would have changed, then say what happened."),
    may("decide") ? h("div", { class: "verdicts" }, VERDICTS.map(([verdict, word, drawing, text]) => h("button", { type: "button", class: "verdict", onclick: act[verdict], data: { verdict } }, icon(drawing), h("b", null, word), h("span", { class: "faint" }, text)))) : readOnly("Your key may read this, but not decide it."),
  );
}

function happened(one, resolve) {
  const result = area("Result", { rows: 5, placeholder: "null" }, { hint: "The value that the step would have returned, as JSON. Leave it empty for null." });
  dialog(`${line(one.doubt.step, 60)} happened`, {
    text: "The task continues as if the step had returned this value.",
    fields: [result],
    name: "It happened",
    act: () => resolve("happened", "It happened", result.input.value.trim() ? { result: read(result) } : {}),
  });
}

function read(field) {
  try {
    return JSON.parse(field.input.value);
  } catch {
    field.trouble("This is not JSON. A string needs quotes.");
    throw Object.assign(new Error(""), { name: "AbortError" });
  }
}

function sure(one, verdict, name, text, resolve) {
  dialog(`${line(one.doubt.step, 60)}: ${name.toLowerCase()}?`, { text, name, kind: "danger", act: () => resolve(verdict, name) });
}

/** A task that waits for a person: its budget is spent, or it is parked or quarantined. */
function held(one, done) {
  const words = {
    budget: "The task has spent its budget. It continues when the budget is raised.",
    parked: "The task could not continue, and waits for a person. Its timeline shows the reason.",
    quarantined: "The workers of this task died again and again, so no worker takes it until it is resumed.",
  };
  const trouble = h("p", { class: "form-trouble", role: "alert" });
  const open = button("Open the task", () => go(`/tasks/${part(one.task_id)}`), { kind: one.kind === "budget" ? "main" : "", icon: "right" });
  const resume = async () => {
    await post(`/api/tasks/${part(one.task_id)}/resume`);
    done(one, `Resumed: ${line(one.task, 60)}`);
  };
  const box = h("div", { class: "ask-body" }, h("p", null, words[one.kind]), one.about.why?.text && h("p", { class: "faint" }, line(one.about.why.text, 300)), one.about.error && value(one.about.error, { label: "Error" }), trouble, h("footer", { class: "ask-deeds" }, one.kind !== "budget" && may("submit") && button("Resume", () => pressed(box, resume), { kind: "main", icon: "play", data: { press: "r" } }), open));
  return box;
}
