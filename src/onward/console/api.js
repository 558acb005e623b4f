// The API, as everybody else uses it. `get` and `post` answer with JSON or throw a Problem, which has a sentence for people. A key
// is kept in sessionStorage (it is gone with the tab) and is only ever sent as a header, never in an address.

const KEY = "onward.key";

/** What the server refused, or why it could not be asked. `message` is a sentence. */
export class Problem extends Error {
  constructor(status, code, message, more = {}) {
    super(message);
    Object.assign(this, { status, code, more, retryAfter: more.retryAfter });
  }
}

/** Who hears that a key is wanted (the shell shows the sign-in then). */
export const door = { wanted: () => {} };

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  clear: () => sessionStorage.removeItem(KEY),
};

/** The address of a call: relative to the page, so that it holds under any prefix. Lists in a query are repeated names. */
export function address(path, query) {
  const found = new URL(path.replace(/^\//, ""), location.origin + location.pathname);
  for (const [name, value] of Object.entries(query || {})) {
    for (const one of [value].flat()) if (one !== null && one !== undefined && one !== "") found.searchParams.append(name, one);
  }
  return found;
}

/** Headers of every request. */
export function headers(more = {}) {
  return key.get() ? { ...more, Authorization: `Bearer ${key.get()}` } : more;
}

/** Ask, and get the response as it is. Throws Problem. */
export async function ask(method, path, { query, body, signal, more } = {}) {
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      signal,
      headers: headers({ Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...more }),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
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
  let told = {};
  try {
    told = await response.json();
  } catch {
    // not from us: a proxy, perhaps
  }
  const text = told.detail || told.title || `The server answered with ${response.status}.`;
  const found = new Problem(response.status, told.code || "", sentence(text), { ...told, retryAfter: Number(response.headers.get("Retry-After")) || undefined });
  if (response.status === 401) door.wanted(found);
  return found;
}

/** As a sentence: our errors begin small and end without a stop, as they do in a terminal. */
export function sentence(text) {
  const said = String(text).trim();
  const whole = said.charAt(0).toUpperCase() + said.slice(1);
  return /[.!?…]$/.test(whole) ? whole : `${whole}.`;
}

async function json(method, path, options) {
  const response = await ask(method, path, options);
  return response.status === 204 ? null : response.json();
}

export const get = (path, query, options = {}) => json("GET", path, { ...options, query });
export const post = (path, body = {}, options = {}) => json("POST", path, { ...options, body });
export const remove = (path, options = {}) => json("DELETE", path, options);

/** A part of a path. */
export const part = (text) => encodeURIComponent(text);

/** 128 random bits as text: an idempotency key. (`crypto.randomUUID` is only there over HTTPS or on this machine.) */
export function random() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
