// Live updates: one stream for the whole console, `/api/progress?all=true`, read with fetch so that the key can be sent as a header.
// It is closed while the tab is hidden, and reconnects by itself.
//
// Topics:  "task"   an update of any task      "task:ID"  of one
//          "text:ID" text of its model         "reset"    a stream has begun: data on the page may be old, read it again
//          "status" the status of the stream   `on(topic, listener, signal)` listens until the signal is aborted.

import { address, headers, problem } from "./api.js";

const SILENCE = 25_000; // ms; the server sends something every 10 s: after this time the connection is dead
const LONGEST = 15_000;

const listeners = new Map();
const followed = new Map();
const covered = new Set();
let reading = null;
let wait = 500;
let timer = 0;

/** The status of the stream: "live", "connecting", "paused" (the tab is hidden), "cut" (with the reason in a sentence). */
export const status = { is: "connecting", why: "" };

/** Listen to a topic until `signal` is aborted. */
export function on(topic, listener, signal) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(listener);
  signal?.addEventListener("abort", () => listeners.get(topic)?.delete(listener), { once: true });
}

/** Include this task in the stream, even if it is not one of the newest. */
export function follow(id, signal) {
  followed.set(id, (followed.get(id) || 0) + 1);
  if (status.is === "live" && !covered.has(id)) restart();
  signal.addEventListener(
    "abort",
    () => {
      const left = (followed.get(id) || 1) - 1;
      if (left) followed.set(id, left);
      else followed.delete(id);
    },
    { once: true },
  );
}

/** Start the stream, or start it again, perhaps with another key. */
export function restart() {
  clearTimeout(timer);
  reading?.abort();
  if (document.hidden) set("paused");
  else read();
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) {
    if (status.is !== "live") restart();
  } else {
    timer = setTimeout(() => {
      reading?.abort();
      set("paused");
    }, 3000); // a short look at another tab does not close the stream
  }
});

function publish(topic, value) {
  for (const listener of [...(listeners.get(topic) || [])]) {
    try {
      listener(value);
    } catch (error) {
      console.error(error);
    }
  }
}

function set(is, why = "") {
  Object.assign(status, { is, why });
  publish("status", status);
}

async function read() {
  const mine = new AbortController();
  reading = mine;
  set("connecting");
  let dead = 0;
  const alive = () => {
    clearTimeout(dead);
    dead = setTimeout(() => mine.abort(), SILENCE);
  };
  try {
    alive();
    const where = address("/api/progress", { all: "true", task_id: [...followed.keys()] });
    const response = await fetch(where, { headers: headers({ Accept: "text/event-stream" }), signal: mine.signal, cache: "no-store", credentials: "same-origin" });
    if (!response.ok) throw await problem(response);
    wait = 500;
    await events(response.body, (name, data) => {
      if (name === "") alive();
      else receive(name, data);
    });
    if (!mine.signal.aborted) later("The server ended the stream.");
  } catch (error) {
    if (reading !== mine) return;
    if (error.status === 401) set("cut", "Sign in to see updates.");
    else if (error.status === 404 && followed.size) (followed.clear(), restart()); // one of the followed tasks was pruned
    else if (!document.hidden) later(error.status ? error.message : "The connection to the server is lost.", error.retryAfter);
  } finally {
    clearTimeout(dead);
  }
}

function later(why, seconds) {
  set("cut", why);
  clearTimeout(timer);
  timer = setTimeout(restart, seconds ? seconds * 1000 : wait * (0.75 + Math.random() / 2));
  wait = Math.min(wait * 2, LONGEST);
}

function receive(name, data) {
  if (name === "reset" && data.reason === "begin") {
    covered.clear();
    for (const id of Object.keys(data.tasks || {})) covered.add(id);
    set("live");
    publish("reset", data);
  } else if (name === "text") {
    publish(`text:${data.task_id}`, data);
  } else if (name === "message") {
    covered.add(data.task_id);
    publish(`task:${data.task_id}`, data);
    publish("task", data);
  } else if (name === "reset" && data.task_id) {
    publish(`task:${data.task_id}`, data);
  }
}

/** Read server-sent events; each chunk that arrives also calls `emit` with the event "". */
async function events(body, emit) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    emit("", null);
    left += value;
    for (let end = left.indexOf("\n\n"); end >= 0; end = left.indexOf("\n\n")) {
      parseEvent(left.slice(0, end), emit);
      left = left.slice(end + 2);
    }
  }
}

function parseEvent(block, emit) {
  let name = "message";
  const data = [];
  for (const row of block.split("\n")) {
    const [field, value] = [row.slice(0, row.indexOf(":")), row.slice(row.indexOf(":") + 1).replace(/^ /, "")];
    if (field === "event") name = value;
    else if (field === "data") data.push(value);
  }
  if (data.length) emit(name, JSON.parse(data.join("\n")));
}
