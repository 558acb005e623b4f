// Values as words: durations, ages, sizes, money, states; and foreign text made safe to read.

// Controls, characters without a width, of direction or of no use to a reader, and halves of pairs; not line breaks and tabs.
const BLANK = "(?![\\n\\t])[\\p{C}\\p{Zl}\\p{Zp}\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\ufe00-\\ufe0e\\uffa0\\u{16fe4}\\u{1d159}\\u{e0100}-\\u{e01ef}]";
// U+FE0F asks for the coloured form of the symbol before it, or for a key cap. Anywhere else it shows nothing.
const EMOJI = "\\u00a9\\u00ae\\u203c\\u2049\\u2122\\u2139\\u2190-\\u21ff\\u2300-\\u23ff\\u24c2\\u25a0-\\u27bf\\u2934\\u2935\\u2b00-\\u2bff\\u3030\\u303d\\u3297\\u3299\\u{1f000}-\\u{1faff}";
const HIDDEN = new RegExp(`${BLANK}|(?<![${EMOJI}0-9#*])\\ufe0f|(?<=[0-9#*])\\ufe0f(?!\\u20e3)`, "gu");

/** Text with invisible and direction-changing characters shown as escapes. */
export function safe(value) {
  return String(value).replace(/\r\n?/g, (c) => (c === "\r\n" ? "\n" : "")).replace(HIDDEN, (c) => escaped(c.codePointAt(0)));
}

const escaped = (code) => `\\u${code > 0xffff ? `{${code.toString(16)}}` : code.toString(16).padStart(4, "0")}`;

/** Whether a text has such characters. */
export const hides = (text) => safe(text) !== text;

/** JSON for a person to edit: the same value, with such characters as escapes of JSON. */
export function editable(value) {
  const unit = (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(value, null, 2).replace(HIDDEN, (c) => c.split("").map(unit).join(""));
}

/** One safe line, cut to a length. */
export function line(value, most = 200) {
  const text = String(value).slice(0, most * 2).replace(/\s+/g, " ").trim();
  const shown = safe(text);
  return shown.length > most || String(value).length > most * 2 ? `${shown.slice(0, most - 1)}…` : shown;
}

/** A value in one line: a string as it is, anything else as JSON. */
export function brief(value, most = 200) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return line(value, most);
  return line(peek(value, most), most);
}

/** The input, the result or the error of a task of a list, in one line. */
export const briefField = (task, name, most = 200) => (task.erased ? "(erased)" : task.left_out?.includes(name) ? "(not shown in the list)" : brief(task[name], most));

/** The beginning of a value as JSON, without encoding all of it: inputs may have megabytes. */
function peek(value, most) {
  if (Array.isArray(value)) return `[${value.slice(0, 12).map((item) => peek(item, most)).join(", ")}${value.length > 12 ? ", …" : ""}]`;
  if (value && typeof value === "object") {
    const names = Object.keys(value).slice(0, 12);
    return names.map((name) => `${line(name, 40)}: ${peek(value[name], most)}`).join(", ");
  }
  return typeof value === "string" ? line(value, most) : String(value);
}

/** A duration: 420 ms, 3.2 s, 41 s, 3 min 05 s, 2 h 10 min, 3 d 4 h. */
export function span(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "";
  const s = Math.max(seconds, 0);
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** A duration with one unit: 3 s, 12 min, 2 h, 5 d. */
export function about(seconds) {
  const s = Math.max(Math.round(seconds), 0);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400 * 2) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

const pad = (n) => String(n).padStart(2, "0");

/** Seconds since 1970 from an ISO string or a number; null if there is none. */
export function at(time) {
  if (time === null || time === undefined || time === "") return null;
  if (typeof time === "number") return time;
  const parsed = Date.parse(time);
  return Number.isNaN(parsed) ? null : parsed / 1000;
}

/** A time of day in the browser's locale: 14:03:22, with the date if it is not today. */
export function moment(time, { seconds = true } = {}) {
  const t = at(time);
  if (t === null) return "";
  const date = new Date(t * 1000);
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}${seconds ? `:${pad(date.getSeconds())}` : ""}`;
  if (date.toDateString() === new Date().toDateString()) return clock;
  return `${date.toLocaleDateString(undefined, { month: "short", day: "numeric", year: sameYear(date) ? undefined : "numeric" })} ${clock}`;
}

const sameYear = (date) => date.getFullYear() === new Date().getFullYear();

/** The exact time, local and in UTC: for titles. */
export function exactly(time) {
  const t = at(time);
  return t === null ? "" : `${new Date(t * 1000).toLocaleString()} · ${new Date(t * 1000).toISOString()}`;
}

/** 1,234. */
export function number(n) {
  return n === null || n === undefined ? "" : Number(n).toLocaleString("en-US", { maximumFractionDigits: 2 });
}

/** 987, 12.3k, 4.5M. */
export function compact(n) {
  if (n === null || n === undefined) return "?";
  if (n < 1000) return String(n);
  if (n < 1e6) return `${(n / 1000).toFixed(n < 1e4 ? 1 : 0)}k`;
  return `${(n / 1e6).toFixed(n < 1e7 ? 1 : 0)}M`;
}

/** 512 B, 12 kB, 3.4 MB. */
export function bytes(n) {
  if (n === null || n === undefined) return "";
  if (n < 1000) return `${n} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = n / 1000;
  let i = 0;
  while (value >= 1000 && i < units.length - 1) [value, i] = [value / 1000, i + 1];
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[i]}`;
}

/** $0.0042, $1.25, or "unknown". */
export function money(usd) {
  if (usd === null || usd === undefined) return "unknown";
  if (usd === 0) return "$0";
  return `$${usd < 0.01 ? usd.toFixed(4) : usd < 100 ? usd.toFixed(2) : number(Math.round(usd))}`;
}

/** «1 task», «3 tasks». */
export function count(n, singular, plural = `${singular}s`) {
  return `${number(n)} ${n === 1 ? singular : plural}`;
}

/** The end of an id, short enough to read out. */
export function short(id) {
  return String(id || "").slice(-8);
}

/** States and reasons: the word, and its tone (see `--tone-…` in style.css). */
export const STATES = {
  pending: { word: "pending", tone: "idle" },
  running: { word: "running", tone: "run" },
  waiting: { word: "waiting", tone: "wait" },
  completed: { word: "completed", tone: "good" },
  failed: { word: "failed", tone: "bad" },
  cancelled: { word: "cancelled", tone: "idle" },
};

export const REASONS = {
  queued: { word: "queued", tone: "idle" },
  delayed: { word: "delayed", tone: "idle" },
  running: { word: "running", tone: "run" },
  retrying: { word: "retrying", tone: "warn" },
  cancelling: { word: "cancelling", tone: "idle" },
  asleep: { word: "asleep", tone: "idle" },
  signal: { word: "waits for a signal", tone: "idle" },
  question: { word: "needs an answer", tone: "wait" },
  approval: { word: "needs approval", tone: "wait" },
  child: { word: "waits for a child", tone: "idle" },
  in_doubt: { word: "in doubt", tone: "bad" },
  paused: { word: "paused", tone: "idle" },
  parked: { word: "parked", tone: "bad" },
  quarantined: { word: "quarantined", tone: "bad" },
  quota: { word: "waits for quota", tone: "warn" },
  lock: { word: "waits for a lock", tone: "idle" },
  budget: { word: "budget spent", tone: "wait" },
};

/** The word and tone for the state of a task: by its reason if that says more. */
export function standing(task) {
  if (["completed", "failed", "cancelled"].includes(task.state)) return STATES[task.state];
  return REASONS[task.reason] || STATES[task.state] || { word: String(task.state), tone: "idle" };
}

export const ENDED = new Set(["completed", "failed", "cancelled"]);
