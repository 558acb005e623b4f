// Intakes: how messages of brokers come in; and dead letters, the messages that could not become tasks: look, redrive, drop.

import { everyPage, get, part, post } from "../api.js";
import { attempt, dialog, toast } from "../dialog.js";
import { add, h } from "../dom.js";
import { may } from "../me.js";
import { keepUpdated, rate, redraw, section } from "../parts.js";
import { go, link } from "../router.js";
import { age, badge, button, clock, empty, facts, heading, pager, table } from "../ui.js";
import { value } from "../values.js";
import { bytes, count, line, number, safe, short } from "../words.js";

const TONES = { running: "good", waiting: "warn", away: "bad", silent: "bad", stopped: "idle" };
const LIMIT = 50;

export async function show(root, place) {
  const { signal } = place;
  let here = place;
  let again = () => {};
  const boxes = { intakes: h("div", { class: "stacked" }), head: h("div"), letters: h("div", { class: "stacked" }) };
  add(root, heading("Intakes", "Messages of brokers that become tasks"), section("Intakes", {}, boxes.intakes), section("Dead letters", { text: "Messages that could not become tasks. They are kept for 30 days." }, boxes.head, boxes.letters));

  async function load() {
    const chosen = { intake: here.one("intake"), cursor: here.one("cursor") };
    const [intakes, page] = await Promise.all([everyPage("/api/intakes", "intakes", { signal }), get("/api/dead-letters", { ...chosen, limit: LIMIT }, { signal })]);
    const now = Date.now() / 1000;
    redraw(boxes.intakes, [intakes, Math.floor(now / 5)], () => intakeTable(intakes));
    const some = intakes.filter((intake) => !chosen.intake || intake.name === chosen.intake).reduce((all, intake) => all + intake.dead, 0);
    redraw(boxes.head, [chosen, some], () => bar(chosen, some, () => again()));
    redraw(boxes.letters, [page, chosen], () => [letterTable(page.letters, chosen, () => again()), turn(page, chosen)]);
  }

  again = await keepUpdated(load, signal, { gap: 1500, every: 4000 });
  return {
    changed(next) {
      here = next;
      again();
    },
  };
}

// ── intakes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function intakeTable(intakes) {
  const columns = [
    { name: "Intake", cell: (intake) => h("span", { class: "two" }, h("b", null, line(intake.name, 80)), h("span", { class: "faint" }, intake.source ? `${line(intake.source, 80)} → ${line(intake.target, 80)}` : "no process has reported for a week")) },
    { name: "State", cell: (intake) => h("span", { class: "two" }, h("span", null, badge(intake.state, TONES[intake.state])), intake.detail && h("span", { class: "faint clip", title: safe(intake.detail) }, line(intake.detail, 120))) },
    { name: "Processes", cell: processes },
    { name: "Taken", class: "end", cell: (intake) => number(intake.taken) },
    { name: "Rate", class: "end", cell: (intake) => rate(intake.rate, "messages") },
    { name: "Lag", class: "end", cell: (intake) => (intake.lag === null ? h("span", { class: "faint" }, "unknown") : number(intake.lag)) },
    { name: "Dead", class: "end", cell: (intake) => (intake.dead ? h("a", { class: "tone-bad toned", href: link("/intakes", { intake: intake.name }), "aria-label": `${count(intake.dead, "dead letter")} of ${line(intake.name, 60)}` }, number(intake.dead)) : "0") },
    { name: "Seen", class: "tight", cell: (intake) => age(intake.seen_at) },
  ];
  return table(columns, intakes, { label: "Intakes", none: empty("No intakes", "`app.intake(…)` in your code declares one. It appears here when a process with that code receives messages.") });
}

function processes(intake) {
  if (!intake.processes.length) return h("span", { class: "faint" }, "–");
  const states = new Map();
  for (const process of intake.processes) states.set(process.state, (states.get(process.state) || 0) + 1);
  const title = intake.processes.map((process) => `${safe(process.process)}: ${process.state} ${safe(process.detail)}`).join("\n");
  return h("span", { class: "row", title }, [...states].map(([state, n]) => badge(`${number(n)} ${state}`, TONES[state])));
}

// ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────

function bar(chosen, some, again) {
  const whose = chosen.intake ? `of ${line(chosen.intake, 60)}` : "of all intakes";
  const which = chosen.intake ? { intake: chosen.intake } : { all: true };
  return h(
    "div",
    { class: "bar-row" },
    h("div", { class: "row" }, chosen.intake && h("a", { class: "tag only", href: link("/intakes"), title: "Remove this filter" }, h("b", null, "intake"), line(chosen.intake, 40), " ×")),
    some > 0 && h("div", { class: "row" }, may("submit") && button("Redrive all…", () => redriveMany(which, some, whose, again), { icon: "play", small: true, data: { key: "redrive-all" } }), may("admin") && button("Drop all…", () => dropMany(which, some, whose, again), { small: true, kind: "quiet", data: { key: "drop-all" } })),
  );
}

function letterTable(letters, chosen, again) {
  const columns = [
    { name: "Message", cell: (letter) => h("span", { class: "two" }, h("span", { class: "mono", title: safe(letter.id) }, short(letter.id)), h("span", { class: "faint clip", title: safe(letter.identity) }, line(letter.identity, 40))) },
    { name: "Intake", cell: (letter) => line(letter.intake, 60) },
    { name: "State", class: "tight", cell: standing },
    { name: "Reason", class: "answer", cell: (letter) => (letter.erased ? h("span", { class: "faint" }, "erased") : h("span", { title: safe(letter.reason) }, line(letter.reason, 160))) },
    { name: "Tries", class: "end", cell: (letter) => number(letter.attempts) },
    { name: "Size", class: "end", cell: (letter) => bytes(letter.size) },
    { name: "When", class: "tight", cell: (letter) => age(letter.at) },
    { name: "", class: "tight end", cell: (letter) => h("span", { class: "row nowrap" }, actions(letter, again)) },
  ];
  const none = chosen.intake ? empty("No dead letters", "This intake has none.") : empty("No dead letters", "Every message became a task.");
  return table(columns, letters, { label: "Dead letters", none });
}

function standing(letter) {
  if (letter.erased) return badge("erased", "idle");
  return letter.redrive_at ? badge("to be redriven", "run") : badge("dead", "bad");
}

function actions(letter, again) {
  return [
    button("Look", () => look(letter, again), { small: true, kind: "quiet", data: { key: `look:${letter.id}` }, "aria-label": `Look at dead letter ${short(letter.id)}` }),
    may("submit") && !letter.redrive_at && !letter.erased && button("Redrive", () => redriveOne(letter, again), { small: true, data: { key: `redrive:${letter.id}` }, "aria-label": `Redrive dead letter ${short(letter.id)}` }),
    may("admin") && button("Drop…", () => dropOne(letter, again), { small: true, kind: "quiet", data: { key: `drop:${letter.id}` }, "aria-label": `Drop dead letter ${short(letter.id)}` }),
  ];
}

function turn(page, chosen) {
  if (!page.next && !chosen.cursor) return null;
  return pager({ next: page.next, before: chosen.cursor, onnext: () => go("/intakes", { ...chosen, cursor: page.next }), onbefore: () => history.back(), text: "newest first" });
}

/** Show a letter with its headers and its body. */
async function look(letter, again) {
  const whole = await attempt(() => get(`/api/dead-letters/${part(letter.id)}`));
  if (!whole) return;
  const note = whole.left_out.includes("body") ? `The beginning of ${bytes(whole.size)}.` : whole.encoding === "base64" ? "In base 64: these bytes are no text." : "";
  const fields = [
    facts([
      ["Reason", whole.erased ? "erased" : safe(whole.reason)],
      ["Intake", line(whole.intake, 100)],
      ["Tenant", whole.tenant && line(whole.tenant, 100)],
      ["Identity", line(whole.identity, 300)],
      ["Position", line(whole.position, 200)],
      ["Id of the sender", line(whole.sent_id, 200)],
      ["Received", clock(whole.at)],
      ["Tries", number(whole.attempts)],
    ]),
    h("h3", null, "Headers"),
    whole.left_out.includes("headers") ? h("p", { class: "faint" }, "They are too large to be shown.") : value(whole.headers, { name: `headers-${short(whole.id)}`, label: "Headers" }),
    h("h3", null, "Body"),
    note && h("p", { class: "faint" }, note),
    whole.erased ? h("p", { class: "faint" }, "erased") : value(whole.body, { name: `body-${short(whole.id)}`, label: "Body" }),
  ];
  const redrives = may("submit") && !whole.redrive_at && !whole.erased;
  await dialog(`Dead letter ${short(whole.id)}`, { fields, wide: true, cancel: "Close", name: "Redrive", act: redrives ? () => redriveOne(letter, again) : null });
}

async function redriveOne(letter, again) {
  await attempt(() => post("/api/dead-letters/redrive", { id: letter.id }), "Its intake tries it again");
  again();
}

function redriveMany(which, some, whose, again) {
  dialog(`Redrive ${count(some, "dead letter")}?`, {
    text: `The dead letters ${whose} are tried again. One that becomes a task goes from this list; another one stays, with its new reason.`,
    name: "Redrive",
    act: async () => {
      const { letters } = await post("/api/dead-letters/redrive", which);
      toast(`${count(letters, "dead letter")} to be tried again`, { tone: "good" });
      again();
    },
  });
}

function dropOne(letter, again) {
  dialog("Drop this dead letter?", {
    text: "The message is deleted for good and never becomes a task.",
    name: "Drop",
    kind: "danger",
    act: async () => {
      await post("/api/dead-letters/drop", { id: letter.id });
      toast("Dropped", { tone: "good" });
      again();
    },
  });
}

function dropMany(which, some, whose, again) {
  dialog(`Drop ${count(some, "dead letter")}?`, {
    text: `The dead letters ${whose} are deleted for good. These messages never become tasks.`,
    name: `Drop ${count(some, "dead letter")}`,
    kind: "danger",
    act: async () => {
      const { letters } = await post("/api/dead-letters/drop", which);
      toast(`${count(letters, "dead letter")} dropped`, { tone: "good" });
      again();
    },
  });
}
