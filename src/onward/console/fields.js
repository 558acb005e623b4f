// Form fields: each has a label tied to it, a hint, and a place for its error. `field.input` is the input element.

import { h, put, unique } from "./dom.js";

/** A labelled field around any input. */
export function field(name, input, { hint, required } = {}) {
  const id = unique("field");
  input.id = id;
  const trouble = h("span", { class: "field-trouble", id: `${id}-trouble`, role: "alert" });
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  const box = h("div", { class: "field" }, h("label", { for: id }, name, required && h("span", { class: "need", title: "required" }, " *")), input, hint && h("span", { class: "hint", id: `${id}-hint` }, hint), trouble);
  box.input = input;
  box.trouble = (text) => {
    put(trouble, text || "");
    input.setAttribute("aria-invalid", text ? "true" : "false");
  };
  return box;
}

export const text = (name, props = {}, more) => field(name, h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...props }), more);
export const numeric = (name, props = {}, more) => field(name, h("input", { type: "number", step: "any", inputmode: "decimal", ...props }), more);
export const area = (name, props = {}, more) => field(name, h("textarea", { rows: 4, spellcheck: "false", ...props }), more);

/** A choice: options are [value, text] or strings. */
export function choice(name, options, props = {}, more) {
  return field(name, select(options, props), more);
}

/** A bare select. */
export function select(options, { value, ...props } = {}) {
  return h("select", props, options.map((option) => {
    const [is, text] = Array.isArray(option) ? option : [option, option];
    return h("option", { value: is, selected: is === value }, text);
  }));
}

/** A checkbox. */
export function tick(name, props = {}, { hint } = {}) {
  const id = unique("field");
  const input = h("input", { type: "checkbox", id, ...props });
  const box = h("div", { class: "field tick" }, input, h("label", { for: id }, name, hint && h("span", { class: "hint" }, hint)));
  box.input = input;
  return box;
}
