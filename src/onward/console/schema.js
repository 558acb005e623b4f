// A form from a JSON schema: types that it knows become fields, anything else an area for JSON. `form(schema)` returns {element, value(),
// set(value)}; `value()` throws an Error with a sentence if the input is not valid. The server checks the input again.

import { h, put, unique } from "./dom.js";
import * as fields from "./fields.js";
import { button } from "./ui.js";
import { editable, line, safe } from "./words.js";

const DEEP = 5;

/** The form, or a part of it, for a schema. */
export function form(schema, above = schema, { name = "Value", required = true, depth = 0 } = {}) {
  const root = schema?.$defs ? schema : above; // pydantic may put definitions into an inner schema
  const spec = resolved(schema, root);
  const options = { name: title(spec, name), required, hint: spec.description && line(spec.description, 300), initial: spec.default };
  if (spec.const !== undefined) return fixed(spec.const);
  if (spec.enum) return choice(spec.enum, options);
  const several = spec.anyOf || spec.oneOf;
  if (several) return union(several, root, options, depth);
  if (depth >= DEEP) return raw(options);
  switch (spec.type) {
    case "string":
      return text(spec, options);
    case "integer":
    case "number":
      return numeric(spec, options);
    case "boolean":
      return tick(options);
    case "array":
      return spec.items && !spec.prefixItems ? list(spec, root, options, depth) : raw(options);
    case "object":
      return spec.properties ? object(spec, root, options, depth) : raw({ ...options, initial: options.initial ?? {} });
    default:
      return raw(options);
  }
}

/** The schema that a `$ref` points to. */
function resolved(schema, root) {
  let spec = schema || {};
  for (let i = 0; spec.$ref && i < 20; i += 1) {
    const target = spec.$ref.replace(/^#\//, "").split("/").reduce((at, name) => at?.[name.replace(/~1/g, "/").replace(/~0/g, "~")], root);
    const { $ref, ...own } = spec;
    spec = { ...(target || {}), ...own };
  }
  return spec.allOf?.length === 1 ? { ...resolved(spec.allOf[0], root), ...spec, allOf: undefined } : spec;
}

const title = (schema, name) => line(schema.title && schema.title.toLowerCase() !== name.toLowerCase().replace(/_/g, " ") ? `${name}` : name, 80);
const absent = Symbol("absent");

function fixed(value) {
  return { element: h("span", { hidden: true }), value: () => value, set: () => {} };
}

function part(field, read, write) {
  return {
    element: field,
    value() {
      field.trouble?.("");
      try {
        return read();
      } catch (error) {
        field.trouble?.(error.message);
        throw error;
      }
    },
    set: write,
  };
}

function text(schema, { name, required, hint, initial }) {
  const long = schema.maxLength > 200 || schema.format === "textarea" || !("maxLength" in schema) && /goal|text|prompt|body|message|description/i.test(name);
  const type = { date: "date", email: "email", uri: "url" }[schema.format] || "text";
  const props = { value: initial ?? "", maxlength: schema.maxLength, placeholder: example(schema) };
  const field = long ? fields.area(name, { ...props, rows: 3 }, { hint, required }) : fields.text(name, { ...props, type }, { hint, required });
  return part(
    field,
    () => {
      const input = field.input.value;
      if (input === "" && !required) return initial === undefined ? absent : initial === "" ? "" : null;
      if (schema.minLength && input.length < schema.minLength) throw new Error(input ? `At least ${schema.minLength} characters.` : "This field is required.");
      if (schema.pattern && !matches(schema.pattern, input)) throw new Error(`It must match ${schema.pattern}.`);
      return input;
    },
    (value) => (field.input.value = value ?? ""),
  );
}

function matches(pattern, input) {
  try {
    return new RegExp(pattern, "u").test(input);
  } catch {
    return true; // not a JavaScript pattern: only the server can check it
  }
}

const example = (schema) => (schema.examples?.length ? `${typeof schema.examples[0] === "object" ? JSON.stringify(schema.examples[0]) : safe(schema.examples[0])}` : null);

function numeric(schema, { name, required, hint, initial }) {
  const whole = schema.type === "integer";
  const field = fields.numeric(name, { value: initial ?? "", step: whole ? 1 : "any", min: schema.minimum, max: schema.maximum, placeholder: example(schema) }, { hint, required });
  return part(
    field,
    () => {
      const input = field.input.value.trim();
      if (input === "") {
        if (required) throw new Error("Enter a number.");
        return absent;
      }
      const number = Number(input);
      if (Number.isNaN(number)) throw new Error("This is not a number.");
      if (whole && !Number.isInteger(number)) throw new Error("Enter a whole number.");
      if (schema.minimum !== undefined && number < schema.minimum) throw new Error(`At least ${schema.minimum}.`);
      if (schema.maximum !== undefined && number > schema.maximum) throw new Error(`At most ${schema.maximum}.`);
      return number;
    },
    (value) => (field.input.value = value ?? ""),
  );
}

function tick({ name, hint, initial, required }) {
  let touched = required; // an untouched box is left out: the handler's default may be true
  const field = fields.tick(name, { checked: initial === true, onchange: () => (touched = true) }, { hint });
  return part(field, () => (touched ? field.input.checked : absent), (value) => ((field.input.checked = value === true), (touched = true)));
}

function choice(options, { name, required, hint, initial }) {
  const list = [...(required && initial === undefined ? [] : initial === undefined ? [["", "–"]] : []), ...options.map((option, i) => [String(i), option === null ? "none" : safe(option)])];
  const at = options.indexOf(initial);
  const field = fields.choice(name, list, { value: at < 0 ? list[0][0] : String(at) }, { hint, required });
  return part(field, () => (field.input.value === "" ? absent : options[Number(field.input.value)]), (value) => (field.input.value = String(options.indexOf(value))));
}

function object(schema, root, { name }, depth) {
  const needed = new Set(schema.required || []);
  const parts = Object.entries(schema.properties).map(([key, node]) => [key, form(node, root, { name: key, required: needed.has(key), depth: depth + 1 })]);
  const inner = parts.map(([, node]) => node.element);
  const element = depth ? h("fieldset", null, h("legend", null, name), inner) : h("div", { class: "stack" }, inner, !inner.length && h("p", { class: "faint" }, "This task takes no input."));
  return {
    element,
    value() {
      const result = {};
      let wrong = null;
      for (const [key, node] of parts) {
        try {
          const value = node.value();
          if (value !== absent) result[key] = value;
        } catch (error) {
          wrong ??= error;
        }
      }
      if (wrong) throw wrong;
      return result;
    },
    set(value) {
      if (value && typeof value === "object") for (const [key, node] of parts) if (key in value) node.set(value[key]);
    },
  };
}

function list(schema, root, { name, hint, initial, required }, depth) {
  const rows = h("div", { class: "stack" });
  const items = [];
  const id = unique("list");
  function more(value) {
    const item = form(schema.items, root, { name: `${name} ${items.length + 1}`, depth: depth + 1 });
    if (value !== undefined) item.set(value);
    const row = h("div", { class: "list-row" }, item.element, button("", () => (items.splice(items.indexOf(item), 1), row.remove()), { icon: "close", title: "Remove", small: true, kind: "quiet" }));
    items.push(item);
    rows.append(row);
  }
  for (const item of Array.isArray(initial) ? initial : []) more(item);
  if (!items.length && required && schema.minItems !== 0) more();
  const element = h("fieldset", { id }, h("legend", null, name), hint && h("span", { class: "hint" }, hint), rows, h("div", null, button("Add", () => more(), { icon: "plus", small: true })));
  return {
    element,
    value: () => (items.length || required ? items.map((item) => item.value()).filter((item) => item !== absent) : absent),
    set(value) {
      items.length = 0;
      put(rows);
      for (const item of Array.isArray(value) ? value : []) more(item);
    },
  };
}

function union(several, root, options, depth) {
  const kinds = several.map((kind) => resolved(kind, root));
  const real = kinds.filter((kind) => kind.type !== "null");
  if (real.length === 1) return form({ ...real[0], default: options.initial === null ? undefined : (options.initial ?? real[0].default), description: options.hint || real[0].description }, root, { name: options.name, required: options.required && kinds.length === 1, depth });
  if (real.every((kind) => kind.const !== undefined)) return choice(real.map((kind) => kind.const), options);
  return raw(options);
}

/** An area for any value, as JSON. */
export function raw({ name, hint, initial, required }) {
  const field = fields.area(name, { rows: 4, value: initial === undefined ? "" : JSON.stringify(initial, null, 2), placeholder: "JSON" }, { hint, required });
  return part(
    field,
    () => {
      const input = field.input.value.trim();
      if (input === "") {
        if (required) throw new Error("Enter JSON: {…}, […], \"text\", 1, true or null.");
        return absent;
      }
      try {
        return JSON.parse(input);
      } catch (error) {
        throw new Error(`This is not JSON: ${error.message}`);
      }
    },
    (value) => (field.input.value = value === undefined ? "" : editable(value)),
  );
}

/** The value of a form; undefined if it was left out. */
export const given = (node) => {
  const value = node.value();
  return value === absent ? undefined : value;
};
