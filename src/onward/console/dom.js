// The only way to put something on the page: `h` makes elements, and anything that is not an element becomes a text node. Text from
// agents, tools and people may be hostile; here it can only become text, and text that can be seen: `safe` shows invisible and
// direction-changing characters as escapes. No module uses innerHTML (the headers of the server forbid it too, with Trusted Types).

import { safe } from "./words.js";

const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate", "disabled", "hidden"]);
const ADDRESSES = new Set(["href", "src"]);

/** An element. `props`: `class` (string or list), `style` (an object), `data` (an object), `onclick` … (functions), `ref` (called with
 *  the element), and attributes; null and false are left out. Children: elements, strings, numbers, lists of them; null and false are
 *  left out. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG elements. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) set(element, name, value);
  add(element, children);
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "ref") value(element);
  else if (name.startsWith("on")) element.addEventListener(name.slice(2), value); // a string is not a listener: this throws
  else if (name === "class") element.setAttribute("class", [value].flat(Infinity).filter(Boolean).join(" "));
  else if (name === "style") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
  else if (name === "data") Object.assign(element.dataset, value);
  else if (PROPERTIES.has(name)) element[name] = value;
  else if (ADDRESSES.has(name)) element.setAttribute(name, address(String(value)));
  else if (name === "srcdoc") throw new Error("srcdoc is not allowed");
  else element.setAttribute(name, value === true ? "" : safe(value));
}

/** The URL, if it only navigates: within the console, to a file or blob of ours, or to the web; otherwise "#". */
function address(text) {
  return /^(#|blob:|https?:\/\/|console\/)/.test(text) ? text : "#";
}

/** Add children to an element. */
export function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    element.append(child instanceof Node ? child : document.createTextNode(safe(child)));
  }
  return element;
}

/** Replace the children of an element. */
export function put(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

let numbers = 0;

/** An id that is unique on the page: to tie labels to inputs. */
export function unique(prefix = "id") {
  numbers += 1;
  return `${prefix}-${numbers}`;
}
