// The shell: navigation, top bar, sign-in, keyboard shortcuts. Pages are in pages/; pages.js explains how to add one.

import { address, auth, get, key, post } from "./api.js";
import { h, put } from "./dom.js";
import { dialog } from "./dialog.js";
import { icon } from "./icons.js";
import * as live from "./live.js";
import { may, me, setTitle, shortName } from "./me.js";
import { pages } from "./pages.js";
import * as router from "./router.js";
import { badge, button, empty, failure, menu, tick } from "./ui.js";
import { compact, line } from "./words.js";

const THEMES = { auto: ["auto", "System theme"], light: ["sun", "Light"], dark: ["moon", "Dark"] };

const main = h("main", { id: "page", tabindex: "-1" });
const rail = h("nav", { class: "rail", "aria-label": "Pages" });
const search = h("input", { type: "search", id: "search", placeholder: "Search tasks", "aria-label": "Search tasks: name, id, key, label or input", autocomplete: "off", spellcheck: "false", maxlength: 200 });
const environment = h("span", { class: "environment", hidden: true, title: "The setting environment of this server" });
const lamp = h("span", { class: "lamp", role: "status" });
const account = h("span", { class: "account" });
const newTask = h("span");

function shell() {
  put(
    document.getElementById("app"),
    h("a", { class: "skip", href: "#page", onclick: (event) => (event.preventDefault(), main.focus()) }, "Skip to content"),
    h(
      "header",
      { class: "top" },
      h("a", { class: "brand", href: "#/tasks", "aria-label": "Onward: tasks" }, h("img", { src: "console/mark.svg", alt: "", width: 22, height: 22 }), h("span", null, "Onward")),
      h("form", { class: "search", role: "search", onsubmit: submitSearch }, icon("search"), search, h("kbd", null, "/")),
      h("div", { class: "top-end" }, environment, lamp, account, theme(), newTask),
    ),
    rail,
    main,
    signView,
  );
}

// ── navigation ───────────────────────────────────────────────────────────────────────────────────────────────────────

let stats = null;
let current = null;

function drawRail() {
  const items = pages.filter((page) => page.nav && (!page.shown || page.shown()));
  put(
    rail,
    items.map((page) => {
      const n = stats && page.count ? page.count(stats) : 0;
      const on = current === page || current?.within === page.path;
      return h("a", { href: router.link(page.path), "aria-current": on ? "page" : null, title: page.title }, icon(page.icon, 18), h("span", { class: "rail-name" }, page.nav), n ? h("span", { class: ["rail-count", page.tone && `tone-${page.tone}`] }, compact(n)) : null);
    }),
    me.version && h("span", { class: "rail-foot faint" }, me.version),
  );
}

function onArrive(page, place) {
  current = page;
  setTitle(page ? page.title : "");
  if (place.path === "/tasks") search.value = place.one("q");
  drawRail();
}

function failed(root, error) {
  if (error?.status === 401) return; // the sign-in is shown
  if (!error) put(root, empty("Page not found", "The address may be from another version of Onward."), h("p", { class: "center" }, h("a", { href: "#/tasks" }, "Go to the tasks")));
  else put(root, failure(error, () => router.again()));
}

function submitSearch(event) {
  event.preventDefault();
  const place = router.here();
  const kept = place.path === "/tasks" ? Object.fromEntries([...new URLSearchParams(place.text).keys()].map((name) => [name, place.all(name)])) : {};
  router.go("/tasks", { ...kept, q: search.value.trim(), cursor: null });
}

let searching = 0;
search.addEventListener("input", () => {
  clearTimeout(searching);
  if (router.here().path === "/tasks") searching = setTimeout(() => search.form.requestSubmit(), 250);
});

// ── the numbers in the navigation, and the connection status ────────────────────────────────────────────────────────────────────────────

let countedAt = 0;
let pending = 0;

/** Read the numbers again, at most every two seconds. */
function refreshCounts() {
  clearTimeout(pending);
  pending = setTimeout(async () => {
    countedAt = Date.now();
    try {
      stats = await (me.tenant ? openAsks() : may("admin") ? get("/api/stats") : Promise.all([get("/api/stats"), openAsks()]).then(([all, { people }]) => ({ ...all, people })));
      drawRail();
    } catch {
      // the key may not read them, or the server is away: show no numbers
    }
  }, Math.max(50, 2000 - (Date.now() - countedAt)));
}

/** The open approvals and questions that the caller may see. `/api/stats` counts those of all tenants. */
async function openAsks() {
  const [{ approvals }, { questions }] = await Promise.all([get("/api/approvals"), get("/api/questions")]);
  return { states: {}, people: approvals.length + questions.length };
}

const STATUSES = { live: ["good", "Live"], connecting: ["idle", "Connecting"], paused: ["idle", "Paused"], cut: ["bad", "Offline"] };

function drawStatus({ is, why }) {
  const [tone, word] = STATUSES[is];
  lamp.title = why || { live: "Updates are shown as they happen.", paused: "Updates are paused while this tab is hidden." }[is] || "";
  put(lamp, badge(word, tone));
  lamp.dataset.is = is;
}

// ── theme ────────────────────────────────────────────────────────────────────────────────────────────────────────────

function theme() {
  const is = () => document.documentElement.dataset.theme || "auto";
  const box = h("span");
  const draw = () => put(box, menu("", Object.entries(THEMES).map(([name, [drawing, text]]) => ({ text: text + (is() === name ? " ✓" : ""), icon: drawing, act: () => take(name) })), { icon: THEMES[is()][0], title: "Theme", kind: "quiet" }));
  function take(name) {
    document.documentElement.dataset.theme = name;
    localStorage.setItem("onward.theme", name);
    draw();
  }
  draw();
  return box;
}

// ── signing in ───────────────────────────────────────────────────────────────────────────────────────────────────────

let signing = false;
const trouble = h("p", { class: "form-trouble", role: "alert" });
const keyField = h("input", { type: "password", "aria-label": "Key", placeholder: "onw_…", autocomplete: "off", spellcheck: "false" });
const provider = h("div", { class: "sign-in-provider" });
const keyButton = button("Sign in", null, { type: "submit", kind: "main" });
const signView = h(
  "section",
  { class: "sign-in", hidden: true, "aria-label": "Sign in" },
  h("form", { onsubmit: submitKey }, h("img", { src: "console/mark.svg", alt: "", width: 40, height: 40 }), h("h1", null, "Sign in"), provider, keyField, trouble, keyButton, h("p", { class: "hint" }, "The key is kept in this tab only, until the tab is closed.")),
);

/** Offer the identity provider that the server named, or say how to get a key. */
function drawProvider(name) {
  keyButton.classList.toggle("main", !name); // one main button
  if (name) {
    const page = location.hash.slice(1);
    const where = address("/api/sign-in", { next: /^\/[!-~]{0,499}$/.test(page) ? page : "/" });
    put(provider, h("a", { class: "button main", href: where.href }, `Sign in with ${name}`), h("p", { class: "faint" }, "Or use a key:"));
  } else {
    put(provider, h("p", { class: "faint" }, "This server needs a key. Create one with ", h("code", null, "onward keys create"), "."));
  }
}

/** Ask for a key, or offer the identity provider. Afterwards the page is shown again. */
function signIn(problem) {
  if (problem?.more.sign_in || !signing) drawProvider(problem?.more.sign_in);
  if (signing) return;
  signing = true;
  put(trouble, key.get() ? "This key is no longer valid." : me.person ? "Your session has ended. Sign in again." : "");
  key.clear();
  shown();
  keyField.value = "";
  (provider.querySelector("a") || keyField).focus();
}

async function signOut() {
  if (me.session) {
    try {
      await post("/api/sign-out");
    } catch (error) {
      if (error.status !== 401) return void dialog("Not signed out", { text: error.message, cancel: "Close" }); // 401: the session has ended already
    }
  }
  key.clear();
  location.reload();
}

/** Show either the sign-in or everything else. */
function shown() {
  for (const child of document.getElementById("app").children) child.hidden = (child === signView) !== signing;
}

async function submitKey(event) {
  event.preventDefault();
  if (!keyField.value.trim()) return;
  key.set(keyField.value.trim());
  try {
    await loadCaller();
  } catch (error) {
    key.clear();
    put(trouble, error.status === 401 ? "The server does not know this key." : error.message);
    return;
  }
  signing = false;
  shown();
  live.restart();
  router.again();
}

async function loadCaller() {
  Object.assign(me, await get("/api/whoami"));
  environment.hidden = !me.environment;
  put(environment, line(me.environment || "", 40));
  const who = me.person ? [me.roles.join(", "), me.tenant && `tenant ${line(me.tenant, 60)}`].filter(Boolean).join(" · ") : "";
  const about = me.person ? [{ info: `Roles: ${me.roles.join(", ") || "none"}` }, me.tenant && { info: `Tenant: ${line(me.tenant, 60)}` }].filter(Boolean) : [{ info: `Scopes: ${me.scopes.join(", ")}` }];
  put(account, (key.get() || me.person) && menu(line(shortName() || "key", 40), [...about, { text: "Sign out", act: signOut }], { icon: me.person ? "person" : "key", title: me.person ? `${line(me.name, 200)}: ${who}` : "Your key", kind: "quiet" }), me.person && h("span", { class: "roles faint" }, who));
  put(newTask, may("submit") && button("New task", () => router.go("/new"), { kind: "main", icon: "plus", title: "New task (n)", class: "button main new" }));
  drawRail();
}

// ── the keyboard ─────────────────────────────────────────────────────────────────────────────────────────────────────

const KEYS = [["/", "search"], ["j  k", "down, up in a list"], ["Enter", "open"], ["a  d  e", "in the inbox: approve, deny, change arguments"], ["n", "new task"], ["g", "go to the tasks"], ["?", "this help"], ["Esc", "close"]];

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || signing) return;
  if (event.target.closest("input, textarea, select, dialog")) {
    if (event.key === "Escape" && event.target === search) search.blur();
    return;
  }
  if (event.key === "/") (event.preventDefault(), search.focus(), search.select());
  else if (event.key === "n" && may("submit")) router.go("/new");
  else if (event.key === "g") router.go("/tasks");
  else if (event.key === "?") dialog("Keys", { fields: [h("dl", { class: "facts keys" }, KEYS.map(([keys, action]) => [h("dt", null, h("kbd", null, keys)), h("dd", null, action)]))], cancel: "Close" });
});

// ── begin ────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function begin() {
  shell();
  auth.onKeyNeeded = signIn;
  setInterval(tick, 1000);
  live.on("status", drawStatus);
  live.on("task", refreshCounts);
  live.on("reset", refreshCounts);
  drawStatus(live.status);
  router.ahead(pages); // loads its modules while `/api/whoami` is on the way
  try {
    await loadCaller();
  } catch {
    // the sign-in is shown, or the page shows the error
  }
  if (!signing) live.restart();
  router.start(pages, main, { onArrive, onError: failed });
}

begin();
