// Foreign values on the page: JSON and text, as text. A large value is cut; a button shows more of it.

import { h, put } from "./dom.js";
import { attempt, toast } from "./dialog.js";
import { button } from "./ui.js";
import { bytes, safe } from "./words.js";

const FIRST = 4000; // characters that are shown first
const PIECE = 100_000; // characters that are added at once
const MARKS = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g;
const MARKED = 40_000; // a longer value is not coloured

/** A value: a string as text, anything else as coloured JSON. `name` is the file name when it is saved. */
export function value(data, { name = "value", first = FIRST, label = "Value" } = {}) {
  if (data === null || data === undefined) return h("span", { class: "faint" }, "none");
  const plain = typeof data === "string";
  const text = plain ? data : JSON.stringify(data, null, 2);
  const box = h("div", { class: "value", tabindex: "0", role: "region", "aria-label": label });
  let shown = Math.min(text.length, first);
  function draw() {
    const cut = text.slice(0, shown);
    put(box, h("pre", { class: plain ? "text" : "json" }, plain || shown > MARKED ? safe(cut) : colour(cut)), tools());
  }
  function tools() {
    const left = text.length - shown;
    return h(
      "div",
      { class: ["value-tools", left > 0 && "cut"] },
      left > 0 && h("span", { class: "faint" }, `${bytes(shown)} of ${bytes(text.length)}`),
      left > 0 && button("More", () => ((shown += Math.min(left, shown < PIECE ? PIECE : shown)), draw()), { small: true, kind: "quiet" }),
      button("", () => attempt(() => copy(text)), { icon: "copy", title: "Copy", small: true, kind: "quiet" }),
      text.length > 1000 && button("", () => save(new Blob([text], { type: "text/plain" }), `${name}.${plain ? "txt" : "json"}`), { icon: "save", title: "Save as a file", small: true, kind: "quiet" }),
    );
  }
  draw();
  return box;
}

/** Copy a string to the clipboard. Throws if the browser has none for this page (no HTTPS). */
export async function copy(text) {
  if (!navigator.clipboard) throw new Error("This browser has no clipboard for pages without HTTPS.");
  await navigator.clipboard.writeText(text);
  toast("Copied", { tone: "good" });
}

/** Save bytes as a file, with a name that is safe for shells and folders. */
export function save(blob, name) {
  const where = URL.createObjectURL(blob);
  const anchor = h("a", { href: where, download: name.replace(/[^\w.-]+/g, "_").replace(/^\.+/, "").slice(0, 100) || "file" });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(where), 10_000);
}

function colour(text) {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(MARKS)) {
    const kind = match[1] ? (match[2] ? "name" : "str") : match[3] ? "word" : "n";
    parts.push(safe(text.slice(last, match.index)), h("span", { class: `j-${kind}` }, safe(match[1] || match[0])), match[2] || "");
    last = match.index + match[0].length;
  }
  parts.push(safe(text.slice(last)));
  return parts;
}

/** A short string with a button that copies it. */
export function copyable(text, shown) {
  return h("span", { class: "copyable" }, h("span", { class: "mono" }, safe(shown || text)), button("", () => attempt(() => copy(text)), { icon: "copy", title: `Copy ${shown || text}`, small: true, kind: "quiet" }));
}
