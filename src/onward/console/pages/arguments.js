// The arguments of a tool call, to read and to change. A person approves exactly what is shown here: nothing is left out, and long
// values can be scrolled.

import { dialog } from "../dialog.js";
import { h, put } from "../dom.js";
import { area, field } from "../fields.js";
import { button } from "../ui.js";
import { value } from "../values.js";
import { editable, hides, line, safe } from "../words.js";

const SHORT = 80;

/** The arguments of the call: by name, or all as JSON. */
export function argumentsView(ask) {
  const names = Object.keys(ask.arguments);
  const box = h("div", { class: "arguments" });
  let raw = false;
  function draw() {
    put(
      box,
      h("div", { class: "arguments-head" }, h("h3", null, names.length ? "Arguments" : "No arguments"), names.length > 0 && button(raw ? "By name" : "As JSON", () => ((raw = !raw), draw()), { small: true, kind: "quiet" })),
      names.length > 0 && (raw ? value(ask.arguments, { name: ask.id, first: 20_000, label: "Arguments as JSON" }) : arguments_(ask.arguments, ask.id)),
    );
  }
  draw();
  return box;
}

/** Each argument by its name: short values in a line, long strings as text, nested values as JSON. */
export function arguments_(given, name) {
  return h("dl", { class: "given" }, Object.entries(given).map(([key, value_]) => [h("dt", { title: safe(key) }, line(key, 60)), h("dd", null, shown(value_, `${name}-${key}`, key))]));
}

function shown(value_, name, key) {
  if (value_ === null || typeof value_ === "boolean" || typeof value_ === "number") return h("code", { class: value_ === null || typeof value_ === "boolean" ? "j-word" : "j-n" }, String(value_));
  if (value_ === "") return h("span", { class: "faint" }, "(an empty string)");
  if (typeof value_ === "string" && value_.length <= SHORT && !value_.includes("\n")) return h("bdi", { class: "short-text" }, safe(value_));
  if (typeof value_ === "object" && JSON.stringify(value_).length <= SHORT) return h("code", { class: "short-json" }, safe(JSON.stringify(value_)));
  return value(value_, { name, first: 8000, label: `Argument ${line(key, 60)}` });
}

/** Change the arguments, then call `approve(given)`. Strings are edited as text, other values as JSON; or all of them as JSON. */
export function changed(ask, approve) {
  const before = ask.arguments;
  const box = h("div", { class: "stack" });
  let raw = Object.keys(before).length === 0;
  let parts = [];
  const mode = h("span");
  function draw(now) {
    parts = raw ? [json("Arguments", now, null)] : Object.entries(now).map(([key, given]) => (typeof given === "string" && !hides(given) ? plain(key, given) : json(key, given, key)));
    put(mode, button(raw ? "By name" : "All as JSON", turn, { small: true, kind: "quiet" }));
    put(box, parts.map((part) => part.box), mode);
  }
  function turn() {
    const now = read();
    if (!now) return;
    raw = !raw;
    draw(now);
  }
  function read() {
    const entries = parts.map((part) => part.read());
    if (entries.some((entry) => entry === undefined)) return null;
    return raw ? entries[0].value : Object.fromEntries(entries.map((entry) => [entry.key, entry.value]));
  }
  draw(before);
  return dialog(`Change the arguments of ${line(ask.tool, 60)}`, {
    fields: [box],
    wide: true,
    name: "Approve as changed",
    act: () => {
      const now = read();
      if (!now) throw Object.assign(new Error(""), { name: "AbortError" });
      if (JSON.stringify(now) === JSON.stringify(before)) throw new Error("No argument was changed.");
      return approve(now);
    },
  });
}

function plain(key, given) {
  const long = given.length > SHORT || given.includes("\n");
  const input = long ? h("textarea", { rows: Math.min(12, 2 + given.split("\n").length + Math.floor(given.length / 90)), class: "prose" }) : h("input", { type: "text", autocomplete: "off" });
  input.value = given;
  const box = field(line(key, 60), input);
  return { box, read: () => ({ key, value: input.value }) };
}

function json(name, given, key) {
  const text = editable(given);
  const box = area(line(name, 60), { rows: Math.min(16, text.split("\n").length + 1) }, { hint: "JSON" });
  box.input.value = text;
  const read = () => {
    try {
      const parsed = JSON.parse(box.input.value);
      if (key === null && (!parsed || typeof parsed !== "object" || Array.isArray(parsed))) throw new Error("object");
      box.trouble("");
      return { key, value: parsed };
    } catch {
      box.trouble(key === null ? "Enter one JSON object." : "This is not JSON. A string needs quotes.");
      return undefined;
    }
  };
  return { box, read };
}
