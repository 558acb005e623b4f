// The HTTP API. `get` and `post` return JSON or throw a Problem, which has a sentence for people. A key is kept in sessionStorage
// (until the tab is closed) and is sent only as a header, never in a URL. A person who signed in has a cookie instead, which no script can
// read; it counts only together with the header "Onward-Console", which foreign pages cannot send.

const KEY = "onward.key";

/** An error response, or the reason why there was no response. `message` is a sentence. */
export class Problem extends Error {
  constructor(status, code, message, more = {}) {
    super(message);
    Object.assign(this, { status, code, more, retryAfter: more.retryAfter });
  }
}

/** Called when the server needs a key; the shell then shows the sign-in. */
export const auth = { onKeyNeeded: () => {} };

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  clear: () => sessionStorage.removeItem(KEY),
};

/** The URL of a request: relative to the page, so that it works under any prefix. Lists in a query become repeated names. */
export function address(path, query) {
  const url = new URL(path.replace(/^\//, ""), location.origin + location.pathname);
  for (const [name, value] of Object.entries(query || {})) {
    for (const item of [value].flat()) if (item !== null && item !== undefined && item !== "") url.searchParams.append(name, item);
  }
  return url;
}

/** Headers of every request. */
export function headers(more = {}) {
  const own = { ...more, "Onward-Console": "1" };
  return key.get() ? { ...own, Authorization: `Bearer ${key.get()}` } : own;
}

/** Send a request; returns the response. Throws Problem. */
export async function ask(method, path, { query, body, signal, more } = {}) {
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      signal,
      headers: headers({ Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...more }),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "same-origin",
      referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "unreachable", "The server cannot be reached.");
  }
  if (response.ok) return response;
  throw await problem(response);
}

/** The problem in a response (RFC 9457). */
export async function problem(response) {
  let details = {};
  try {
    details = await response.json();
  } catch {
    // not JSON: from a proxy, perhaps
  }
  const text = details.detail || details.title || `The server answered with ${response.status}.`;
  const error = new Problem(response.status, details.code || "", sentence(text), { ...details, retryAfter: Number(response.headers.get("Retry-After")) || undefined });
  if (response.status === 401) auth.onKeyNeeded(error);
  return error;
}

/** An error as a sentence: our errors begin with a small letter and end without a full stop, as in a terminal. */
export function sentence(text) {
  const trimmed = String(text).trim();
  const capitalized = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?…]$/.test(capitalized) ? capitalized : `${capitalized}.`;
}

async function json(method, path, options) {
  const response = await ask(method, path, options);
  return response.status === 204 ? null : response.json();
}

export const get = (path, query, options = {}) => json("GET", path, { ...options, query });

const MAX_PAGES = 10; // of a thousand items each

/** The items of a list (`name` in the response) of all pages, up to a bound; `cut` of them says whether there are more. */
export async function everyPage(path, name, options = {}) {
  let page = await get(path, {}, options);
  const items = page[name];
  for (let read = 1; page.next && read < MAX_PAGES; read += 1) {
    page = await get(path, { cursor: page.next }, options);
    items.push(...page[name]);
  }
  items.cut = Boolean(page.next);
  return items;
}

export const post = (path, body = {}, options = {}) => json("POST", path, { ...options, body });
export const remove = (path, options = {}) => json("DELETE", path, options);

/** Encode one part of a path. */
export const part = (text) => encodeURIComponent(text);

/** 128 random bits as a string: an idempotency key. (`crypto.randomUUID` exists only over HTTPS or on localhost.) */
export function random() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
