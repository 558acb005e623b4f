// Items that wait for a person: what they show, and the buttons that decide them. The inbox and the page of a task use them.

import { get, part, post } from "./api.js";
import { dialog } from "./dialog.js";
import { h, put } from "./dom.js";
import { area } from "./fields.js";
import { icon } from "./icons.js";
import { may, mine } from "./me.js";
import { arguments_, argumentsView, changed } from "./pages/arguments.js";
import { readOnly } from "./parts.js";
import { go, link } from "./router.js";
import { lastTurn } from "./task/messages.js";
import { age, badge, button, clock, tag, taskLink } from "./ui.js";
import { copyable, value } from "./values.js";
import { at, line, number, safe } from "./words.js";

export const KINDS = {
  approval: { word: "approval", tone: "wait", drawing: "check" },
  question: { word: "question", tone: "run", drawing: "message" },
  doubt: { word: "in doubt", tone: "bad", drawing: "warn" },
  budget: { word: "budget spent", tone: "wait", drawing: "coin" },
  parked: { word: "parked", tone: "bad", drawing: "pause" },
  quarantined: { word: "quarantined", tone: "bad", drawing: "stop" },
};

export const shownAsk = (ask) => ({ ...ask, title: ask.tool || ask.text || ask.task, since: ask.asked_at, until: ask.expires_at });

export function doubt(task, doubt_) {
  return { id: `${doubt_.task_id}.${doubt_.seq}`, kind: "doubt", task_id: doubt_.task_id, task: task.task, title: doubt_.step, since: task.updated_at, until: null, about: task, doubt: doubt_ };
}

/** An item of a list with all of its values, and an approval with the turn that asked for it. */
export async function completed(item, signal) {
  const path = `/api/${item.kind}s/${part(item.id)}`;
  const [ask, asked] = await Promise.all([
    item.left_out?.length ? get(path, {}, { signal }).then(shownAsk) : item,
    item.kind === "approval" ? get(`${path}/turn`, {}, { signal }) : null,
  ]);
  return { ...ask, asked };
}

/** An item to decide, with its context: why it was asked, what it would do, and the buttons. `done(item, text, stays)` is called after a
 *  decision; an item that `stays` needs more votes. */
export function askView(item, done, signal, { context: wanted = true, level = "h2" } = {}) {
  const kind = KINDS[item.kind];
  const context = h("div", { class: "ask-context" });
  const body = { approval, question, doubt: doubted }[item.kind] || held;
  const made = h(
    "article",
    { class: "ask", "aria-label": line(item.title, 120), data: { ask: item.id } },
    h("header", { class: "ask-head" }, h("div", { class: "row" }, badge(kind.word, kind.tone), item.risk && h("span", { class: ["risk", item.risk === "read" ? "tone-idle" : "tone-bad"] }, icon("warn", 13), `risk: ${line(item.risk, 40)}`), h("span", { class: "grow" }), h("span", { class: "faint" }, "since ", age(item.since, { ago: false }))), h(level, { class: "ask-title" }, item.tool ? ["Call ", h("code", null, line(item.tool, 200)), "?"] : h("bdi", null, safe(item.text ?? item.title.slice(0, 2000)))), wanted && whose(item)),
    item.kind === "approval" && reasons(item),
    body(item, done),
    wanted && context,
  );
  if (wanted) surroundings(context, item, signal);
  return made;
}

const EFFECTS = {
  read: "It only reads.",
  idempotent: "If it is repeated after a crash, nothing more changes.",
  once: "It must not happen twice: after a crash a person is asked whether it happened.",
};

/** Why the model wants it, in its own words, and what the tool does. */
function reasons(ask) {
  const { turn, reason } = ask.asked || {};
  const effect = EFFECTS[ask.effect];
  if (!turn && !ask.description && !effect) return null;
  const talk = turn && h("a", { href: link(`/tasks/${part(ask.task_id)}`, { tab: "conversation", turn }) }, `turn ${number(turn)}`);
  return h(
    "dl",
    { class: "ask-why" },
    turn && [h("dt", null, "Why"), h("dd", null, reason?.trim() ? [h("pre", { class: "text", tabindex: "0", role: "region", "aria-label": "Words of the model" }, safe(reason.trim())), h("span", { class: "faint" }, "the model, in ", talk)] : h("span", { class: "faint" }, "The model gave no reason in ", talk, "."))],
    (ask.description || effect) && [h("dt", null, "Does"), h("dd", null, ask.description && h("p", { class: "text" }, safe(ask.description)), effect && h("p", { class: "faint" }, effect))],
  );
}

function whose(item) {
  const until = at(item.until);
  return h("p", { class: "ask-whose" }, h("span", null, "asked by "), h("b", null, line(item.task, 60)), " ", taskLink(item.task_id), until !== null && [h("span", null, " · expires "), age(until), " (", clock(until), ")", item.kind === "approval" ? `, and is then ${item.default === "approve" ? "approved" : "denied"}` : ""]);
}

/** The last turn, and the input and labels of the task, so that a person does not decide on a call without its context. */
async function surroundings(box, item, signal) {
  const turn = item.asked?.turn;
  const [task, last] = await Promise.all([
    (!item.about?.left_out && item.about) || get(`/api/tasks/${part(item.task_id)}`, {}, { signal }).catch(() => null),
    turn ? get(`/api/tasks/${part(item.task_id)}/turns/${turn}`, {}, { signal }).catch(() => null) : null,
  ]);
  if (!task) return;
  const labels = Object.entries(task.labels || {});
  put(
    box,
    last && [h("h3", null, "The last turn"), lastTurn(last)],
    h("h3", null, "Input of the task"),
    value(task.input, { name: `${item.task_id}-input`, first: 1200, label: "Input of the task" }),
    labels.length > 0 && h("div", { class: "row" }, labels.slice(0, 12).map(([name, value_]) => tag(name, value_))),
  );
}

/** The row of buttons; a note for a key without the scope. */
function deeds(scope, ...buttons) {
  return may(scope) ? h("footer", { class: "ask-deeds" }, buttons) : readOnly(`${mine()} may read this, but not decide it.`);
}

function approval(ask, done) {
  const always = h("input", { type: "checkbox", id: `always-${ask.id}` });
  const decide = async (decision, more, text) => {
    const answer = await post(`/api/approvals/${part(ask.id)}`, { decision, digest: ask.digest, ...more });
    if (answer.decided) done(ask, text);
    else done(ask, `Your vote counts: ${answer.votes} of ${answer.needed} for ${line(ask.title, 60)}`, true);
  };
  const yes = () => pressed(box, () => decide("approve", always.checked ? { always: true } : {}, `Approved: ${line(ask.title, 60)}`));
  const no = () => denied(ask, decide);
  const other = () => changed(ask, (given) => decide("approve", { arguments: given, ...(always.checked ? { always: true } : {}) }, `Approved with other arguments: ${line(ask.title, 60)}`));
  const changes = ask.tool && (!ask.rule || (ask.rule.asker && ask.rule.votes === 1)); // otherwise the server refuses other arguments
  const trouble = h("p", { class: "form-trouble", role: "alert" });
  const box = h(
    "div",
    { class: "ask-body" },
    ask.tool ? [argumentsView(ask), ask.data.metadata && value(ask.data.metadata, { name: `${ask.id}-metadata`, label: "Metadata" })] : ask.data !== null && ask.data !== undefined && (plain(ask.data) ? arguments_(ask.data, ask.id) : value(ask.data, { name: ask.id, label: "Details" })),
    h("p", { class: "faint", title: "SHA-256 of what is shown here. The decision names it, and is refused for anything else." }, "Digest ", copyable(ask.digest, ask.digest.slice(0, 16))),
    ask.rule && votes(ask),
    trouble,
    deeds(
      "decide",
      button("Approve", yes, { kind: "main", icon: "check", data: { press: "a" }, title: "Approve (a)" }),
      button("Deny…", no, { icon: "close", data: { press: "d" }, title: "Deny, with a reason (d)" }),
      changes && button("Change…", other, { icon: "file", data: { press: "e" }, title: "Change the arguments, then approve (e)" }),
      ask.tool && !ask.rule && h("label", { class: "always", for: always.id }, always, h("span", null, "always for ", h("code", null, line(ask.tool, 40)), " in this task")),
    ),
  );
  return box;
}

/** The rule of an approval, who voted, and how many votes are missing. */
function votes(ask) {
  const { rule } = ask;
  const yes = new Set(ask.votes.filter((vote) => vote.decision === "approve").map((vote) => vote.voter)).size;
  const who = rule.approvers.length ? rule.approvers.map((name) => line(name, 100)).join(", ") : "any person or key with the scope decide";
  return h(
    "div",
    { class: "ask-votes", "aria-label": "Votes" },
    h("p", null, h("b", null, `${yes} of ${rule.votes}`), ` ${rule.votes === 1 ? "vote" : "votes"} so far. May decide: `, h("bdi", null, who), rule.asker ? "" : "; not who asked for it", "."),
    ask.votes.length > 0 && h("ul", null, ask.votes.map((vote) => h("li", null, h("bdi", null, line(vote.by || vote.voter, 100)), vote.decision === "approve" ? " approved " : " denied ", age(vote.at), vote.reason && [": ", h("bdi", null, line(vote.reason, 300))]))),
  );
}

const plain = (data) => data && typeof data === "object" && !Array.isArray(data) && Object.keys(data).length > 0;

/** Do it once, with the buttons disabled meanwhile; an error is shown beside them. */
async function pressed(box, doing) {
  const all = [...box.querySelectorAll(".ask-deeds button")];
  const trouble = box.querySelector(".form-trouble");
  put(trouble);
  all.forEach((button_) => (button_.disabled = true));
  try {
    await doing();
  } catch (error) {
    put(trouble, safe(error.message));
    all.forEach((button_) => (button_.disabled = false));
  }
}

function denied(ask, decide) {
  const reason = area("Reason", { rows: 3, placeholder: "What is wrong with it? The agent reads this.", maxlength: 10_000, spellcheck: "true" }, { hint: "Optional." });
  dialog(`Deny ${line(ask.title, 60)}?`, { fields: [reason], name: "Deny", kind: "danger", act: () => decide("deny", { reason: reason.input.value.trim() }, `Denied: ${line(ask.title, 60)}`) });
}

function question(ask, done) {
  const trouble = h("p", { class: "form-trouble", role: "alert" });
  const send = (answer) => pressed(box, async () => {
    await post(`/api/questions/${part(ask.id)}`, { answer });
    done(ask, `Answered: ${line(String(answer), 60)}`);
  });
  const free = area("Your answer", { rows: 3, spellcheck: "true", onkeydown: (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && submit() }, { hint: "Ctrl+Enter sends it." });
  const submit = () => free.input.value.trim() && send(free.input.value.trim());
  const box = h(
    "div",
    { class: "ask-body" },
    ask.data !== null && ask.data !== undefined && value(ask.data, { label: "Details" }),
    may("decide") ? (ask.choices.length ? h("div", { class: "choices ask-deeds", role: "group", "aria-label": "Answers" }, ask.choices.map((choice) => button(line(choice, 200), () => send(choice), { class: "button choice" }))) : [free, h("footer", { class: "ask-deeds" }, button("Answer", submit, { kind: "main", icon: "message" }))]) : [ask.choices.length > 0 && h("ul", { class: "offered" }, ask.choices.map((choice) => h("li", null, line(choice, 200)))), readOnly(`${mine()} may read this, but not answer it.`)],
    trouble,
  );
  return box;
}

const VERDICTS = [
  ["happened", "It happened", "check", "The task continues with the result that you enter."],
  ["not_happened", "It did not happen", "right", "The step runs again."],
  ["nothing_happened", "Nothing happened", "right", "After a restore: neither this nor any later effect happened. They run."],
  ["undo", "Undo it", "left", "Its undo runs, and the step fails."],
];

function doubted(item, done) {
  const resolve = async (verdict, word, more = {}) => {
    await post(`/api/tasks/${part(item.task_id)}/resolve`, { verdict, step: item.doubt.step, ...more });
    done(item, `${word}: ${line(item.doubt.step, 60)}`);
  };
  const act = { happened: () => happened(item, resolve), not_happened: () => sure(item, "not_happened", "It did not happen", "The step runs again now. Be sure that it did not happen; otherwise it would happen twice.", resolve), nothing_happened: () => sure(item, "nothing_happened", "Nothing happened", "The step runs now, and the task asks no more about effects since the backup. Be sure that none of them happened; otherwise they would happen twice.", resolve), undo: () => sure(item, "undo", "Undo it", "The undo of the step runs, and the step fails. Choose this if you cannot tell whether it happened, and if undoing does no harm when it did not.", resolve) };
  return h(
    "div",
    { class: "ask-body" },
    h("p", null, "This effect began, and it is not known whether it finished: ", h("bdi", null, safe(String(item.doubt.reason).slice(0, 2000))), /[.!?]$/.test(item.doubt.reason) ? "" : "."),
    h("p", { class: "faint" }, "It is never repeated silently. Check the system that it would have changed, then say what happened."),
    may("decide") ? h("div", { class: "verdicts" }, VERDICTS.map(([verdict, word, drawing, text]) => h("button", { type: "button", class: "verdict", onclick: act[verdict], data: { verdict } }, icon(drawing), h("b", null, word), h("span", { class: "faint" }, text)))) : readOnly(`${mine()} may read this, but not decide it.`),
  );
}

function happened(item, resolve) {
  const result = area("Result", { rows: 5, placeholder: "null" }, { hint: "The value that the step would have returned, as JSON. Leave it empty for null." });
  dialog(`${line(item.doubt.step, 60)} happened`, {
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

function sure(item, verdict, name, text, resolve) {
  dialog(`${line(item.doubt.step, 60)}: ${name.toLowerCase()}?`, { text, name, kind: "danger", act: () => resolve(verdict, name) });
}

/** A task that waits for a person: its budget is spent, or it is parked or quarantined. */
function held(item, done) {
  const words = {
    budget: "The task has spent its budget. It continues when the budget is raised.",
    parked: "The task could not continue, and waits for a person. Its timeline shows the reason.",
    quarantined: "The workers of this task died again and again, so no worker takes it until it is resumed.",
  };
  const trouble = h("p", { class: "form-trouble", role: "alert" });
  const open = button("Open the task", () => go(`/tasks/${part(item.task_id)}`), { kind: item.kind === "budget" ? "main" : "", icon: "right" });
  const resume = async () => {
    await post(`/api/tasks/${part(item.task_id)}/resume`);
    done(item, `Resumed: ${line(item.task, 60)}`);
  };
  const box = h("div", { class: "ask-body" }, h("p", null, words[item.kind]), item.about.why?.text && h("p", { class: "faint" }, line(item.about.why.text, 300)), item.about.error && value(item.about.error, { label: "Error" }), trouble, h("footer", { class: "ask-deeds" }, item.kind !== "budget" && may("submit") && button("Resume", () => pressed(box, resume), { kind: "main", icon: "play", data: { press: "r" } }), open));
  return box;
}
