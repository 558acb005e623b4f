// Artifacts: bytes that steps stored. Their names and types come from agents and tools, so they are not trusted: bytes are shown as an
// image only if their first bytes are those of an image, as a blob of that checked type; text as text; anything else as a hex dump.
// Nothing of it is ever run.

import { ask, everyPage, part } from "../api.js";
import { h, put } from "../dom.js";
import { attempt } from "../dialog.js";
import * as live from "../live.js";
import { button, busy, empty, failure } from "../ui.js";
import { save, value } from "../values.js";
import { bytes, line, number } from "../words.js";

const CARDS = 20; // artifacts that are shown at first, and with each click: each loads its bytes
const SMALL = 300_000; // bytes; a smaller artifact is loaded without a click
const MOST = 20_000_000;
const SHOWN = 1_000_000;

export async function artifacts(root, context, signal) {
  put(root, busy());
  const drawn = new Map();
  let shown = CARDS;
  async function read() {
    try {
      const list = await everyPage(`${context.path}/artifacts`, "artifacts", { signal });
      if (signal.aborted) return;
      if (!list.length) {
        put(root, empty("No artifacts", "Files that steps store (a report, a picture, a large output) appear here."));
        return;
      }
      draw(list);
    } catch (error) {
      if (error.name !== "AbortError" && !signal.aborted) put(root, failure(error, read));
    }
  }
  function draw(list) {
    const some = list.slice(0, shown);
    for (const artifact of some) if (!drawn.has(artifact.id)) drawn.set(artifact.id, card(artifact, signal));
    const rest = list.length - some.length;
    const more = () => ((shown += CARDS), draw(list));
    put(root, h("div", { class: "cols" }, some.map((artifact) => drawn.get(artifact.id))), (rest > 0 || list.cut) && h("p", { class: "more-row row" }, h("span", { class: "faint" }, `${number(some.length)} of ${number(list.length)}${list.cut ? "; the command line lists more" : ""}`), rest > 0 && button(`Show ${number(Math.min(CARDS, rest))} more`, more, { small: true })));
  }
  let due = 0;
  live.on(`task:${context.id}`, () => (clearTimeout(due), (due = setTimeout(() => !signal.aborted && read(), 500))), signal);
  await read();
}

function card(artifact, signal) {
  const view = h("div", { class: "body" });
  const name = line(artifact.summary || artifact.type, 120) || "artifact";
  const load = async () => (await ask("GET", `/api/artifacts/${part(artifact.id)}`, { signal, more: { Accept: "*/*" } })).arrayBuffer();
  async function show() {
    put(view, busy());
    try {
      put(view, preview(await load(), name, signal));
    } catch (error) {
      if (error.name !== "AbortError") put(view, failure(error, show));
    }
  }
  if (artifact.bytes <= SMALL) show();
  else put(view, h("div", { class: "row" }, h("span", { class: "faint" }, `${bytes(artifact.bytes)}, not loaded yet`), artifact.bytes <= MOST && button("Show", show, { small: true })));
  return h(
    "section",
    { class: "card artifact" },
    h("header", null, h("h2", { class: "clip grow" }, h("bdi", null, name)), button("", () => attempt(async () => save(new Blob([await load()], { type: "application/octet-stream" }), `${artifact.artifact_id.slice(0, 12)}.bin`)), { icon: "save", title: "Save as a file", small: true, kind: "quiet" })),
    h("p", { class: "artifact-meta faint" }, [line(artifact.type, 60), bytes(artifact.bytes), artifact.step && `from ${line(artifact.step, 60)}`, artifact.artifact_id.slice(0, 8)].filter(Boolean).join(" · ")),
    view,
  );
}

const IMAGES = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46]],
];

function preview(buffer, name, signal) {
  const data = new Uint8Array(buffer);
  if (!data.length) return h("p", { class: "faint" }, "Empty.");
  const type = IMAGES.find(([type, mark]) => mark.every((byte, i) => data[i] === byte) && (type !== "image/webp" || String.fromCharCode(...data.slice(8, 12)) === "WEBP"))?.[0];
  if (type) {
    const where = URL.createObjectURL(new Blob([data], { type }));
    signal.addEventListener("abort", () => URL.revokeObjectURL(where), { once: true });
    const image = h("img", { src: where, alt: name, class: "preview", onerror: () => image.replaceWith(h("p", { class: "faint" }, "It looks like an image, but this browser cannot show it.")) });
    return image;
  }
  const text = readable(data);
  return text === null ? h("pre", { class: "hex", tabindex: "0", role: "region", "aria-label": `Bytes of ${name}` }, dump(data.slice(0, 512)), data.length > 512 ? `\n… ${bytes(data.length)}` : "") : value(json(text) ?? text, { first: 3000, name, label: `Contents of ${name}` });
}

function readable(data) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data.slice(0, SHOWN), { stream: data.length > SHOWN });
    return text.slice(0, 2000).includes("\u0000") ? null : text;
  } catch {
    return null;
  }
}

function json(text) {
  if (!/^\s*[[{]/.test(text) || text.length > 200_000) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function dump(data) {
  const rows = [];
  for (let i = 0; i < data.length; i += 16) {
    const part = [...data.slice(i, i + 16)];
    rows.push(`${i.toString(16).padStart(6, "0")}  ${part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  ${part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")}`);
  }
  return rows.join("\n");
}
