// Live: one stream for the whole console, `/api/progress?all=true`, read with fetch so that the key goes along as a header. It is
// cut while nobody looks at the tab, and comes back by itself.
//
// Topics:  "task"   an update of any task      "task:ID"  of one
//          "text:ID" what its model is saying  "reset"    a stream has begun: what you show may be old, read it again
//          "status" how the stream is          — `on(topic, listener, signal)` until the signal says stop.

import { address, headers, problem } from "./api.js";

const SILENCE = 25_000; // the server breaks silence every 10 s: after this the line is dead
const LONGEST = 15_000;

const listeners = new Map();
const followed = new Map();
const covered = new Set();
let reading = null;
let wait = 500;
let timer = 0;

/** How the stream is: "live", "connecting", "paused" (nobody looks), "cut" (with a sentence why). */
export const status = { is: "connecting", why: "" };

/** Hear of a topic until `signal` is aborted. */
export function on(topic, listener, signal) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(listener);
  signal?.addEventListener("abort", () => listeners.get(topic)?.delete(listener), { once: true });
}

/** Have the stream tell of this task as well, also when it is none of the newest. */
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

/** Begin, and begin again, with another key perhaps. */
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
    }, 3000); // who only glances elsewhere loses nothing
  }
});

function tell(topic, value) {
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
  tell("status", status);
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
    const response = await fetch(where, { headers: headers({ Accept: "text/event-stream" }), signal: mine.signal, cache: "no-store", credentials: "omit" });
    if (!response.ok) throw await problem(response);
    wait = 500;
    await events(response.body, (name, data) => {
      if (name === "") alive();
      else hear(name, data);
    });
    if (!mine.signal.aborted) later("The server ended the stream.");
  } catch (error) {
    if (reading !== mine) return;
    if (error.status === 401) set("cut", "Sign in to see what happens.");
    else if (error.status === 404 && followed.size) (followed.clear(), restart()); // one of them is gone
    else if (!document.hidden) later(error.status ? error.message : "The line to the server is cut.", error.retryAfter);
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

function hear(name, data) {
  if (name === "reset" && data.reason === "begin") {
    covered.clear();
    for (const id of Object.keys(data.tasks || {})) covered.add(id);
    set("live");
    tell("reset", data);
  } else if (name === "text") {
    tell(`text:${data.task_id}`, data);
  } else if (name === "message") {
    covered.add(data.task_id);
    tell(`task:${data.task_id}`, data);
    tell("task", data);
  } else if (name === "reset" && data.task_id) {
    tell(`task:${data.task_id}`, data);
  }
}

/** Read server-sent events; each comment or piece of the line is told as the event "". */
async function events(body, told) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    told("", null);
    left += value;
    for (let end = left.indexOf("\n\n"); end >= 0; end = left.indexOf("\n\n")) {
      one(left.slice(0, end), told);
      left = left.slice(end + 2);
    }
  }
}

function one(block, told) {
  let name = "message";
  const data = [];
  for (const row of block.split("\n")) {
    const [field, value] = [row.slice(0, row.indexOf(":")), row.slice(row.indexOf(":") + 1).replace(/^ /, "")];
    if (field === "event") name = value;
    else if (field === "data") data.push(value);
  }
  if (data.length) told(name, JSON.parse(data.join("\n")));
}
