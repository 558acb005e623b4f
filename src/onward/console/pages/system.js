// System: health, keys, sessions of people, quotas of tenants, locks, and the audit log.

import { everyPage, get, part, post } from "../api.js";
import { attempt, dialog, toast } from "../dialog.js";
import { add, h, put } from "../dom.js";
import { choice, text } from "../fields.js";
import { icon } from "../icons.js";
import { may, me } from "../me.js";
import { keepUpdated, redraw, secret, tile, tiles } from "../parts.js";
import { go, link } from "../router.js";
import { age, badge, busy, button, clock, empty, facts, failure, heading, pager, table, tabs, taskLink } from "../ui.js";
import { brief, bytes, count, line, number, safe, short } from "../words.js";

const PAGE = 50;
const SCOPES = [
  ["read", "read everything"],
  ["submit", "submit and control tasks"],
  ["decide", "decide approvals, answer questions"],
  ["admin", "manage keys, queues, schedules and deliveries"],
];
const EXPIRIES = [["", "never"], ["86400", "in a day"], ["604800", "in a week"], ["2592000", "in 30 days"], ["31536000", "in a year"]];

export async function show(root, place) {
  const { signal } = place;
  let at = place;
  const view = { again: () => {} };
  const all = [
    !me.tenant && { id: "health", name: "Health", show: (panel, stop) => shown(panel, stop, wellness) },
    { id: "keys", name: "Keys", show: (panel, stop) => shown(panel, stop, keys) },
    me.person && { id: "sessions", name: "Sessions", show: (panel, stop) => shown(panel, stop, sessions) },
    may("read") && { id: "quotas", name: "Quotas", show: (panel, stop) => shown(panel, stop, quotas) },
    may("read") && { id: "locks", name: "Locks", show: (panel, stop) => shown(panel, stop, locks) },
    { id: "audit", name: "Audit", show: (panel, stop) => shown(panel, stop, audit) },
  ].filter(Boolean);
  const parts = tabs(all, { label: "System", chosen: (id) => go("/system", { tab: id === all[0].id ? null : id }, { replace: true }) });
  add(root, heading("System", "Health, keys, quotas, locks and the audit log"), parts.element);
  signal.addEventListener("abort", parts.stop, { once: true });

  async function shown(panel, stop, tab) {
    const box = h("div");
    put(panel, busy());
    try {
      const load = () => tab(box, stop, () => at, () => view.again());
      if (tab === wellness) (await load(), (view.again = () => attempt(load)));
      else view.again = await keepUpdated(load, stop, { gap: 3000, every: 15_000 });
      put(panel, box);
    } catch (error) {
      if (error.name !== "AbortError") put(panel, failure(error, () => shown(panel, stop, tab)));
    }
  }
  parts.take(place.one("tab") || all[0].id);
  return {
    changed(next) {
      at = next;
      parts.take(next.one("tab") || all[0].id);
      if (next.one("tab")) view.again();
    },
  };
}

// ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Read when the tab is opened, and not again by itself. */
async function wellness(box, signal, _place, again) {
  const health = await get("/api/system", {}, { signal });
  put(box, drawn(health, again));
}

const MARKS = { true: ["check", "good"], false: ["warn", "bad"], null: ["message", "idle"] };
const STORES = { sqlite: "SQLite", postgres: "PostgreSQL" };

function drawn(health, again) {
  const wrong = health.checks.filter((check_) => check_.fine === false).length;
  const old = health.tables < health.tables_wanted;
  const all = Object.values(health.stats.states).reduce((sum, n) => sum + n, 0);
  return [
    tiles(
      tile("Health", wrong ? count(wrong, "problem") : "OK", { note: wrong ? "see the checks below" : `${count(health.checks.length, "check")}, no problem`, tone: wrong ? "bad" : "good" }),
      tile("Store", STORES[health.store] || line(health.store, 20), { note: `${bytes(health.bytes)} for ${health.stats.exact ? "" : "about "}${count(all, "task")}` }),
      tile("Tables", `v${health.tables}`, { note: old ? `this program needs v${health.tables_wanted}: run onward migrate` : health.tables > health.tables_wanted ? `newer than this program's (v${health.tables_wanted}), which works with them` : "up to date", tone: old ? "bad" : "" }),
      tile("Onward", line(health.version, 20), { note: `on Python ${line(health.python, 20)}` }),
    ),
    h(
      "div",
      { class: "grid-2" },
      h("section", { class: "card", "aria-label": "Checks" }, h("header", null, h("h2", null, "Checks"), h("span", { class: "faint grow" }, "the same as ", h("code", null, "onward doctor")), button("Check again", again, { small: true, kind: "quiet" })), h("ul", { class: "findings" }, health.checks.map(check))),
      h("section", { class: "card", "aria-label": "Settings" }, h("header", null, h("h2", null, "Settings"), h("span", { class: "faint" }, "secrets are never shown")), h("div", { class: "body" }, facts([["database", line(health.database, 300)], ["clock", `${Math.abs(health.skew_s).toFixed(3)} s ${health.skew_s < 0 ? "ahead of" : "behind"} the database's`], ...Object.entries(health.settings).filter(([name]) => name !== "db").map(([name, value]) => [h("span", { class: "mono" }, line(name, 60)), value === "" || value === null ? h("span", { class: "faint" }, "none") : h("span", { class: "mono" }, brief(String(value), 300))])]))),
    ),
  ];
}

function check(finding) {
  const [drawing, tone] = MARKS[String(finding.fine)] || MARKS.null;
  return h("li", { class: `tone-${tone}` }, icon(drawing), h("div", null, h("b", null, line(finding.name, 80)), h("div", { class: finding.fine === false ? "toned" : "faint" }, safe(String(finding.detail).slice(0, 1000)))));
}

// ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function keys(box, signal, place, again) {
  const page = { keys: await everyPage("/api/keys", "keys", { signal }) };
  const old = place().one("revoked") === "1";
  const rows = Object.assign([...page.keys].reverse().filter((key) => old || key.valid), { cut: page.keys.cut });
  redraw(box, [page.keys, old], () => [
    h("div", { class: "bar-row row" }, h("p", { class: "faint grow" }, page.keys.length ? "A key allows what its scopes say, and nothing else. The key itself is never shown here." : me.person ? "No key exists yet. People sign in; programs need a key." : "No key exists yet: every program on this machine may do everything. After the first key is created, every request needs a key."), page.keys.some((key) => !key.valid) && h("a", { href: link("/system", { tab: "keys", revoked: old ? null : "1" }) }, old ? "Valid keys only" : `Also show ${count(page.keys.filter((key) => !key.valid).length, "invalid key")}`), button("New key…", () => made(again, page.keys.length === 0 && !me.person), { icon: "plus", kind: "main" })),
    h("div", { class: "stacked" }, keyTable(rows, again, page.keys.length > 0)),
  ]);
}

function keyTable(rows, again, some) {
  const columns = [
    { name: "Name", cell: (key) => h("span", { class: "two" }, h("b", null, line(key.name, 60), key.id === me.key && h("span", { class: "faint" }, " · yours")), h("span", { class: "faint mono" }, safe(key.id))) },
    { name: "State", class: "tight", cell: (key) => (key.valid ? badge("valid", "good") : badge(key.revoked_at ? "revoked" : "expired", "idle")) },
    { name: "Scopes", cell: (key) => h("span", { class: "row" }, key.scopes.map((scope) => h("span", { class: "tag" }, line(scope, 20)))) },
    { name: "For", cell: (key) => (key.agent ? `agent ${line(key.agent, 40)}` : key.tenant ? `tenant ${line(key.tenant, 40)}` : h("span", { class: "faint" }, "all tenants")) },
    { name: "Last used", cell: (key) => (key.last_used_at ? age(key.last_used_at) : h("span", { class: "faint" }, "never")) },
    { name: "Expires", cell: (key) => (key.expires_at ? age(key.expires_at) : h("span", { class: "faint" }, "never")) },
    { name: "Created", cell: (key) => age(key.created_at) },
    { name: "", class: "tight end", cell: (key) => key.valid && button("Revoke…", () => revoke(key, again), { small: true, kind: "quiet", data: { key: `revoke:${key.id}` }, "aria-label": `Revoke key ${line(key.name, 60)}` }) },
  ];
  return table(columns, rows, { label: "Keys", none: some ? empty("No valid key", "Create one with `onward keys create`.") : empty("No keys yet", "") });
}

async function made(again, first) {
  const name = text("Name", { placeholder: "deploy-bot", maxlength: 200 }, { required: true, hint: "Who uses the key. The audit log shows this name." });
  const boxes = SCOPES.map(([scope, says]) => [scope, h("input", { type: "checkbox", id: `scope-${scope}`, value: scope, checked: first || scope === "read" }), says]);
  const scopes = h("fieldset", null, h("legend", null, "Scopes"), boxes.map(([scope, box, says]) => h("label", { class: "field tick", for: box.id }, box, h("span", null, h("b", null, scope), h("span", { class: "hint" }, says)))));
  const tenant = text("Tenant", { placeholder: "all", maxlength: 200, value: me.tenant || "", disabled: Boolean(me.tenant) }, { hint: "With a tenant, the key sees only the tasks of that tenant." });
  const expires = choice("Expires", EXPIRIES, {});
  const trouble = first ? h("p", { class: "note" }, icon("warn"), "This is the first key: from then on every request needs one, also from this page. Give it all scopes; otherwise no other key can be created.") : null;
  const key = await dialog("New key", {
    fields: [trouble, name, scopes, h("div", { class: "pair" }, tenant, expires)],
    name: "Create the key",
    act: () => {
      name.trouble("");
      if (!name.input.value.trim()) {
        name.trouble("Enter a name.");
        throw Object.assign(new Error(""), { name: "AbortError" });
      }
      const wanted = boxes.filter(([, box]) => box.checked).map(([scope]) => scope);
      if (!wanted.length) throw new Error("A key needs at least one scope.");
      return post("/api/keys", { name: name.input.value.trim(), scopes: wanted, ...(me.tenant || !tenant.input.value.trim() ? {} : { tenant: tenant.input.value.trim() }), ...(expires.input.value ? { expires_s: Number(expires.input.value) } : {}) });
    },
  });
  if (!key) return;
  again();
  await dialog("The new key", { text: "Save it in a safe place now. It is not shown again.", fields: [secret(key.token, "The key"), facts([["Name", line(key.name, 60)], ["Scopes", key.scopes.join(", ")], ["Sent as", h("code", null, "Authorization: Bearer …")]])], cancel: "I have saved it" });
}

function revoke(key, again) {
  const own = key.id === me.key;
  dialog(`Revoke ${line(key.name, 60)}?`, {
    text: `Within two seconds, requests with this key are refused everywhere. This cannot be undone.${own ? " This is your own key: you will be signed out." : ""}`,
    name: "Revoke",
    kind: "danger",
    act: async () => {
      await post(`/api/keys/${part(key.id)}/revoke`);
      toast(`Revoked: ${line(key.name, 60)}`, { tone: "good" });
      again();
    },
  });
}

// ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────

async function sessions(box, signal, _place, again) {
  const page = { sessions: await everyPage("/api/sessions", "sessions", { signal }) };
  redraw(box, [page.sessions], () => [
    h("div", { class: "bar-row row" }, h("p", { class: "faint grow" }, "People who are signed in. Their roles are those that the identity provider gave them at sign-in.")),
    h("div", { class: "stacked" }, table(SESSION_COLUMNS(again), Object.assign([...page.sessions].reverse(), { cut: page.sessions.cut }), { label: "Sessions", none: empty("No sessions", "") })),
  ]);
}

const SESSION_COLUMNS = (again) => [
  { name: "Person", cell: (session) => h("span", { class: "two" }, h("b", null, line(session.name, 60), session.id === me.session && h("span", { class: "faint" }, " · yours")), h("span", { class: "faint mono" }, line(session.person, 60))) },
  { name: "Roles", cell: (session) => h("span", { class: "row" }, session.roles.map((role) => h("span", { class: "tag" }, line(role, 20)))) },
  { name: "Tenant", cell: (session) => (session.tenant ? line(session.tenant, 40) : h("span", { class: "faint" }, "none")) },
  { name: "Last used", cell: (session) => age(session.last_used_at) },
  { name: "Ends", cell: (session) => age(session.until) },
  { name: "", class: "tight end", cell: (session) => button("End session…", () => endSession(session, again), { small: true, kind: "quiet", data: { key: `end:${session.id}` }, "aria-label": `End the session of ${line(session.name, 60)}` }) },
];

function endSession(session, again) {
  dialog(`End the session of ${line(session.name, 60)}?`, {
    text: `Within two seconds, requests with this session are refused everywhere. The person can sign in again.${session.id === me.session ? " This is your own session: you will be signed out." : ""}`,
    name: "End the session",
    kind: "danger",
    act: async () => {
      await post(`/api/sessions/${part(session.id)}/revoke`);
      toast(`Ended: the session of ${line(session.name, 60)}`, { tone: "good" });
      again();
    },
  });
}

// ── quotas ───────────────────────────────────────────────────────────────────────────────────────────────────────────

const QUOTAS = {
  requests: "requests a second",
  key_requests: "requests a second, each key",
  streams: "open streams",
  sessions: "MCP sessions",
  queue_share: "% of its fullest queue",
  tasks: "unfinished tasks",
  queues: "queues with unfinished tasks",
  running: "% of the slots of each worker",
  messages: "messages to one task",
  keys: "valid keys",
  subscriptions: "webhook subscriptions",
  priority: "highest priority",
  refused: "refused calls a minute in the audit log, each key",
};

async function quotas(box, signal, place) {
  const after = place().one("after") || "";
  const page = await get("/api/quotas", { after, limit: PAGE }, { signal });
  redraw(box, [page.tenants, after], () => [
    h("p", { class: "faint bar-row" }, "The quotas of each tenant and how much of them it uses. Requests, streams and sessions are those of this server process. ", h("code", null, "onward quotas set TENANT"), " sets a quota for one tenant; the others come from the settings."),
    page.tenants.length ? page.tenants.map(tenant) : h("div", { class: "stacked" }, empty("No tenants", "A key with a tenant makes one. Keys without a tenant have no quotas.")),
    (page.next || after) && pager({ next: Boolean(page.next), before: after, onnext: () => go("/system", { tab: "quotas", after: page.next }), onbefore: () => history.back(), text: "by name" }),
  ]);
}

function tenant(use) {
  const columns = [
    { name: "Quota", cell: (quota) => h("span", { class: "two" }, h("b", null, line(quota.name.replaceAll("_", " "), 40)), h("span", { class: "faint" }, QUOTAS[quota.name] || "")) },
    { name: "Used", class: "end", cell: (quota) => (quota.used === null ? h("span", { class: "faint", title: "This list does not count it" }, "not counted") : number(quota.used)) },
    { name: "Limit", class: "end", cell: (quota) => (quota.limit || quota.name === "priority" ? number(quota.limit) : h("span", { class: "faint" }, "none")) },
    { name: "Source", class: "tight", cell: (quota) => h("span", { class: quota.own ? null : "faint" }, quota.own ? "set for this tenant" : "settings") },
    { name: "", class: "tight", cell: (quota) => (quota.limit && quota.used >= quota.limit && quota.name !== "priority" ? badge("used up", "bad") : null) },
  ];
  return h("div", { class: "stacked quota-tenant" }, h("h2", null, `Tenant ${line(use.tenant, 60)}`), table(columns, use.quotas, { label: `Quotas of ${line(use.tenant, 60)}`, none: empty("No quotas", "") }));
}

// ── locks ────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function locks(box, signal, place) {
  const cursor = place().one("cursor") || null;
  const page = await get("/api/locks", { cursor, limit: PAGE }, { signal });
  redraw(box, [page.locks, cursor], () => [
    h("p", { class: "faint bar-row" }, "Locks that tasks and programs hold or wait for. A holder that is stuck loses its lock with ", h("code", null, "onward locks release NAME"), "; cancel or pause its task first."),
    h("div", { class: "stacked" }, table(LOCKS, page.locks, { label: "Locks", none: empty("No locks are held", "A handler takes one with ctx.lock, a program with app.lock.") })),
    (page.next || cursor) && pager({ next: Boolean(page.next), before: cursor, onnext: () => go("/system", { tab: "locks", cursor: page.next }), onbefore: () => history.back(), text: "by name" }),
  ]);
}

const LOCKS = [
  { name: "Lock", cell: (lock) => h("span", { class: "two" }, h("b", null, line(lock.name, 60)), lock.tenant && h("span", { class: "faint" }, line(lock.tenant, 60))) },
  { name: "Token", class: "end", cell: (lock) => (lock.token === null ? h("span", { class: "faint" }, "–") : number(lock.token)) },
  { name: "Holder", cell: (lock) => (lock.holder ? contender(lock.holder) : badge("free", "good")) },
  { name: "Since", class: "tight", cell: (lock) => (lock.holder ? age(lock.holder.since) : h("span", { class: "faint" }, "–")) },
  { name: "Waiting", class: "end", cell: (lock) => (lock.waiting ? number(lock.waiting) : h("span", { class: "faint" }, "–")) },
  { name: "Next", cell: (lock) => (lock.waiters.length ? contender(lock.waiters[0]) : h("span", { class: "faint" }, "–")) },
  { name: "Coordinator", cell: (lock) => h("span", { class: "faint" }, line(lock.coordinator, 20)) },
];

function contender(holder) {
  return holder.task_id ? taskLink(holder.task_id, short(holder.task_id)) : h("span", { class: "mono" }, line(holder.holder, 60));
}

// ── the audit ────────────────────────────────────────────────────────────────────────────────────────────────────────

async function audit(box, signal, place) {
  const before = Number(place().one("before")) || null;
  const page = await get("/api/audit", { before: before || Number.MAX_SAFE_INTEGER, limit: PAGE }, { signal });
  redraw(box, [page.entries.map((entry) => entry.number), before], () => [h("p", { class: "faint bar-row" }, "Who did what, newest first. Each entry contains the hash of the entry before it: ", h("code", null, "onward audit verify"), " finds missing or changed entries."), h("div", { class: "stacked" }, entries(page.entries)), turn(page, before)]);
}

function entries(rows) {
  const columns = [
    { name: "#", class: "end", cell: (entry) => h("span", { class: "faint" }, number(entry.number)) },
    { name: "When", class: "tight", cell: (entry) => h("span", { class: "two" }, age(entry.at), h("span", { class: "faint" }, clock(entry.at))) },
    { name: "Who", cell: (entry) => (entry.name ? h("span", { title: entry.key || "" }, line(entry.name, 60)) : h("span", { class: "faint" }, "without a key")) },
    { name: "Action", cell: (entry) => h("b", null, line(String(entry.action).replaceAll("_", " "), 60)) },
    { name: "Subject", cell: subject },
    { name: "Details", class: "answer", cell: (entry) => (entry.data && Object.keys(entry.data).length ? h("span", { title: safe(brief(entry.data, 1000)) }, brief(entry.data, 120)) : h("span", { class: "faint" }, "–")) },
    { name: "Hash", cell: (entry) => h("span", { class: "mono faint", title: entry.hash }, entry.hash.split("-").pop().slice(0, 10)) },
  ];
  return table(columns, rows, { label: "Audit", none: empty("No entries yet", "Decisions, control of tasks, and changes to the system are recorded here.") });
}

const TASK = /^[0-9a-z]{26}(?=\.|$)/;

function subject(entry) {
  const task = TASK.exec(entry.subject);
  return task ? taskLink(task[0], short(task[0]) + entry.subject.slice(26)) : h("span", { class: "mono", title: safe(entry.subject) }, line(entry.subject, 60));
}

function turn(page, before) {
  const last = page.entries.at(-1)?.number;
  if (!before && (!last || last <= 1)) return null;
  return pager({ next: last > 1, before, onnext: () => go("/system", { tab: "audit", before: last }), onbefore: () => history.back(), text: "newest first" });
}
