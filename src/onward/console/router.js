// The router: `#/tasks/ID?tab=state`. The hash is never sent to a server: a deep link works after a reload under any prefix and behind
// any proxy, and a page can never have the same path as an API route.

let leave = new AbortController();
let shown = null;
let table = [];
let into = null;
let onArrive = () => {};
let onError = () => {};

/** A link to a page, for `href`. */
export function link(path, query) {
  const text = toQuery(query);
  return `#${path}${text ? `?${text}` : ""}`;
}

function toQuery(query) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    for (const item of [value].flat()) if (item !== null && item !== undefined && item !== "" && item !== false) params.append(name, item);
  }
  return params.toString();
}

/** Go to a page. With `replace`, the back button skips this page. */
export function go(path, query, { replace = false } = {}) {
  const where = link(path, query);
  if (where === location.hash) return;
  if (replace) {
    history.replaceState(null, "", where);
    arrive();
  } else location.hash = where;
}

/** The current path and query; `all(name)` is the list of all values of a name. */
export function here() {
  const [path, query] = location.hash.replace(/^#/, "").split(/\?(.*)/s);
  const params = new URLSearchParams(query || "");
  return { path: path || "/", one: (name) => params.get(name) || "", all: (name) => params.getAll(name), text: params.toString() };
}

/** Start. `pages`: [{path: "/tasks/:id", load, …}]; `page` is the element that they are shown in. */
export function start(pages, page, hooks) {
  [table, into, onArrive, onError] = [pages, page, hooks.onArrive, hooks.onError];
  addEventListener("hashchange", arrive);
  arrive();
}

/** Start to load the module of the current page, before the caller is known. */
export function ahead(pages) {
  table = pages;
  match(here().path)?.row.load().catch(() => {});
}

/** Show the current page again from the beginning. */
export function again() {
  shown = null;
  arrive();
}

/** A decoded part of a path; a malformed one stays as it is. */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function match(path) {
  for (const row of table) {
    const names = [];
    const pattern = row.path.replace(/:(\w+)/g, (_, name) => (names.push(name), "([^/]+)"));
    const groups = new RegExp(`^${pattern}$`).exec(path);
    if (groups) return { row, params: Object.fromEntries(names.map((name, i) => [name, decode(groups[i + 1])])) };
  }
  return null;
}

async function arrive() {
  const place = here();
  if (place.path === "/") {
    history.replaceState(null, "", link(table[0].path));
    return arrive();
  }
  if (shown?.path === place.path && shown.view?.changed) {
    shown.view.changed(place);
    onArrive(shown.row, place);
    return undefined;
  }
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const matched = match(place.path);
  const mine = { path: place.path, row: matched?.row || null, view: null };
  shown = mine;
  onArrive(mine.row, place);
  if (!matched) return onError(into, null);
  try {
    const module = await matched.row.load();
    if (signal.aborted) return undefined;
    into.replaceChildren();
    into.scrollTop = 0;
    mine.view = (await module.show(into, { ...place, ...matched.params, signal })) || null;
  } catch (error) {
    if (!signal.aborted && error.name !== "AbortError") onError(into, error);
  }
  return undefined;
}
