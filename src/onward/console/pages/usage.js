// Usage and cost: what models took, by agent, model, key or day. A price that nobody knows is said to be unknown, and is never zero.

import { get } from "../api.js";
import { add, h } from "../dom.js";
import { icon } from "../icons.js";
import { may } from "../me.js";
import { kept, redraw, segments, tile, tiles } from "../parts.js";
import { link } from "../router.js";
import { button, empty, heading, table } from "../ui.js";
import { saved } from "../values.js";
import { compact, count, line, money, number, safe } from "../words.js";

const BY = [["agent", "Agent"], ["model", "Model"], ["key", "Key"], ["day", "Day"]];
const SPANS = [["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"], ["all", "All"]];
const SECONDS = { "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400 };
const TALL = 160; // pixels of the highest day
const MEASURES = [["usd", "Cost"], ["tokens", "Tokens"], ["calls", "Calls"]];

export async function show(root, place) {
  const { signal } = place;
  let at = place;
  const [switches, numbers, chart, rows] = [h("div", { class: "bar-row" }), h("div"), h("div"), h("div", { class: "stacked" })];
  let shown = [];
  let names = new Map();
  add(root, heading("Usage and cost", "What models took", button("Save as CSV", () => saved(new Blob([csv(shown)], { type: "text/csv" }), `usage-by-${chosen(at).by}.csv`), { icon: "save" })), switches, numbers, chart, rows);
  const turned = () => redraw(switches, chosen(at), () => switched(chosen(at)));
  turned();
  const again = await kept(async () => {
    const now = chosen(at);
    const since = SECONDS[now.span] ? new Date(Math.floor(Date.now() / 60_000) * 60_000 - SECONDS[now.span] * 1000).toISOString() : null;
    const found = await get("/api/usage", { by: now.by, since }, { signal });
    names = now.by === "key" ? await named(names, signal) : names;
    shown = sorted(found.rows.map((row) => ({ ...row, group: now.by === "key" ? names.get(row.group) || row.group : row.group })), now);
    redraw(numbers, [shown, now.by], () => totals(shown, now));
    redraw(chart, [shown, now], () => drawn(shown, now));
    redraw(rows, [shown, now.by, found.complete], () => [!found.complete && h("p", { class: "note bar-row" }, icon("warn"), "There are more tasks than the 10,000 newest, which are counted here. Choose a shorter time."), listed(shown, now)]);
  }, signal, { gap: 4000, every: 30_000 });
  return {
    changed(next) {
      at = next;
      turned();
      again();
    },
  };
}

/** What keys are called, for who may know it. */
async function named(known, signal) {
  if (known.size || !may("admin")) return known;
  const found = await get("/api/keys", {}, { signal });
  return new Map(found.keys.map((key) => [key.id, key.name]));
}

function chosen(place) {
  const one = (name, all, otherwise) => (all.some(([value]) => value === place.one(name)) ? place.one(name) : otherwise);
  return { by: one("by", BY, "agent"), span: one("span", SPANS, "7d"), measure: one("measure", MEASURES, "usd") };
}

const tokens = (row) => row.tokens_in + row.tokens_out;
const of = (row, measure) => (measure === "tokens" ? tokens(row) : row[measure]);

function sorted(rows, { by, measure }) {
  const copy = [...rows];
  if (by === "day") return copy.sort((a, b) => String(a.group).localeCompare(String(b.group)));
  return copy.sort((a, b) => of(b, measure) - of(a, measure) || tokens(b) - tokens(a));
}

function switched(now) {
  const keep = { by: now.by, span: now.span, measure: now.measure };
  return h("div", { class: "row" }, segments("By", BY, now.by, "/usage", keep, "by"), segments("How long", SPANS, now.span, "/usage", keep, "span"), h("span", { class: "grow" }), segments("What is drawn", MEASURES, now.measure, "/usage", keep, "measure"));
}

const sum = (rows, name) => rows.reduce((all, row) => all + row[name], 0);

/** What did not tell all: calls of a model, tasks of anything else. */
const of_ = (n, by) => count(n, by === "model" ? "call" : "task");

function totals(rows, now) {
  const whole = { usd: sum(rows, "usd"), unknown: sum(rows, "unknown") };
  return tiles(
    tile("Cost", said(whole, "usd"), { note: whole.unknown ? `${of_(whole.unknown, now.by)} of unknown price` : "all prices are known", tone: whole.unknown ? "warn" : "" }),
    tile("Tokens in", compact(sum(rows, "tokens_in")), { note: "what models read" }),
    tile("Tokens out", compact(sum(rows, "tokens_out")), { note: "what they wrote" }),
    tile("Calls", compact(sum(rows, "calls")), { note: "questions to models" }),
    tile("Tasks", compact(sum(rows, "tasks")), { note: now.by === "day" ? `on ${count(rows.length, "day")}` : `of ${count(rows.length, now.by)}` }),
  );
}

/** Whether nothing of a row's cost is known. */
const priceless = (row) => row.unknown > 0 && !row.usd;

function said(row, measure) {
  if (measure === "usd") return priceless(row) ? "unknown" : `${row.unknown ? "≥ " : ""}${money(row.usd)}`;
  return compact(of(row, measure));
}

function drawn(rows, now) {
  if (!rows.length) return empty("No model was asked", now.span === "all" ? "Agents that ask models show up here." : "Not in this time. Look at a longer one.");
  return h("section", { class: "card chart", "aria-label": `${MEASURES.find(([one]) => one === now.measure)[1]} by ${now.by}` }, now.by === "day" ? columns(rows, now.measure) : bars(rows.slice(0, 12), now.measure));
}

function bars(rows, measure) {
  const top = Math.max(...rows.map((row) => (measure === "usd" && priceless(row) ? 0 : of(row, measure) || 0)), 0);
  return h("ol", { class: "bars" }, rows.map((row) => {
    const none = measure === "usd" && priceless(row);
    return h("li", null, h("span", { class: "bars-name clip", title: safe(row.group) }, title(row)), h("span", { class: ["bars-track", none && "unknown"] }, !none && h("i", { style: { width: `${top ? Math.max(0.5, (of(row, measure) / top) * 100) : 0}%` } })), h("span", { class: ["bars-figure num", none && "faint"] }, said(row, measure)));
  }));
}

const title = (row) => (row.group === "" ? h("span", { class: "faint" }, "(none)") : line(row.group, 60));

/** Days as columns; the table below says the same. */
function columns(rows, measure) {
  const days = filled(rows);
  const known = (row) => !(measure === "usd" && row.calls && priceless(row));
  const top = Math.max(...days.map((row) => (known(row) ? of(row, measure) || 0 : 0)), 0) || 1;
  const every = Math.ceil(days.length / 15);
  return h(
    "ol",
    { class: "days", tabindex: "0", "aria-label": "Columns, one a day" },
    days.map((row, i) =>
      h(
        "li",
        { title: `${row.group}: ${row.calls ? said(row, measure) : "nothing"}` },
        h("span", { class: ["day-figure num", days.length > 15 && "few"] }, row.calls ? said(row, measure) : ""),
        h("i", { class: ["day-bar", !known(row) && "unknown"], style: { height: `${known(row) ? Math.max(row.calls ? 3 : 1, (of(row, measure) / top) * TALL) : 36}px` } }),
        h("span", { class: "day-name" }, (days.length - 1 - i) % every === 0 ? dated(row.group) : "\u00a0"),
      ),
    ),
  );
}

const dated = (day) => new Date(`${String(day).slice(0, 10)}T12:00:00`).toLocaleDateString(undefined, { month: "short", day: "numeric" });

/** Every day from the first to the last, also those on which nothing was asked. */
function filled(rows) {
  const days = rows.filter((row) => /^\d{4}-\d\d-\d\d/.test(String(row.group)));
  if (!days.length) return rows;
  const known = new Map(days.map((row) => [String(row.group).slice(0, 10), row]));
  const [first, last] = [Date.parse([...known.keys()].sort()[0]), Date.parse([...known.keys()].sort().at(-1))];
  const all = [];
  for (let day = Math.max(first, last - 89 * 86_400_000); day <= last; day += 86_400_000) {
    const name = new Date(day).toISOString().slice(0, 10);
    all.push(known.get(name) || { group: name, tasks: 0, calls: 0, tokens_in: 0, tokens_out: 0, usd: 0, unknown: 0 });
  }
  return all;
}

function listed(rows, now) {
  if (!rows.length) return null;
  const name = BY.find(([one]) => one === now.by)[1];
  return table(
    [
      { name, cell: (row) => (now.by === "agent" && row.group ? h("a", { href: link("/tasks", { name: row.group }) }, line(row.group, 80)) : title(row)) },
      { name: "Tasks", class: "end", cell: (row) => number(row.tasks) },
      { name: "Calls", class: "end", cell: (row) => number(row.calls) },
      { name: "Tokens in", class: "end", cell: (row) => number(row.tokens_in) },
      { name: "Tokens out", class: "end", cell: (row) => number(row.tokens_out) },
      { name: "Cost", class: "end", cell: (row) => (priceless(row) ? h("span", { class: "tone-warn toned", title: "The price of this model is in no table" }, "unknown") : said(row, "usd")) },
      { name: "Unknown price", class: "end", cell: (row) => (row.unknown ? of_(row.unknown, now.by) : h("span", { class: "faint" }, "–")) },
    ],
    now.by === "day" ? [...rows].reverse() : rows,
    { label: `Usage by ${now.by}` },
  );
}

/** As a file for a spreadsheet. A text that a spreadsheet would take for a formula is made harmless. */
function csv(rows) {
  const cell = (one) => (one === null || one === undefined ? "" : `"${String(one).replace(/^([=+\-@\t\r])/, "'$1").replaceAll('"', '""')}"`);
  return ["group,tasks,calls,tokens_in,tokens_out,usd,unknown", ...rows.map((row) => [cell(row.group), row.tasks, row.calls, row.tokens_in, row.tokens_out, priceless(row) ? "" : row.usd, row.unknown].join(","))].join("\r\n");
}

