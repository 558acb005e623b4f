// Dialogs and toasts.

import { h, put, unique } from "./dom.js";
import { icon } from "./icons.js";
import { button } from "./ui.js";

/** Show a dialog. `fields`: elements; `act(form)` runs on submit, and an error that it throws is shown. Resolves to the result of `act`,
 *  or to undefined if the dialog was closed. It is a <dialog> element: the focus stays in it and goes back afterwards. */
export function dialog(title, { text, fields = [], act, name = "OK", kind = "main", wide = false, ready = true, cancel = "Cancel" }) {
  return new Promise((resolve) => {
    const [head, trouble] = [unique("dialog"), h("p", { class: "form-trouble", role: "alert" })];
    let result;
    const doing = button(name, null, { kind, type: "submit", disabled: !ready });
    const form = h("form", { method: "dialog", novalidate: true, onsubmit: submitted }, h("div", { class: "dialog-body" }, text && h("p", null, text), fields, trouble), h("footer", null, cancel && button(cancel, () => box.close()), act && doing));
    const box = h(
      "dialog",
      { class: ["dialog", wide && "wide"], "aria-labelledby": head, onclose: closed, onclick: (event) => event.target === box && box.close() },
      h("div", { class: "dialog-box" }, h("header", null, h("h2", { id: head }, title), button("", () => box.close(), { icon: "close", title: "Close", kind: "quiet", small: true })), form),
    );
    box.ready = (yes) => {
      doing.disabled = !yes;
    };
    form.box = box;
    async function submitted(event) {
      event.preventDefault();
      doing.disabled = true;
      put(trouble);
      try {
        result = (await act(form)) ?? true;
        box.close();
      } catch (error) {
        if (error.name !== "AbortError") put(trouble, error.message);
        doing.disabled = false;
      }
    }
    function closed() {
      box.remove();
      resolve(result);
    }
    document.body.append(box);
    box.showModal();
    for (const field of [fields].flat(Infinity)) field?.began?.(box);
    (box.querySelector("[autofocus]") || box.querySelector("input, select, textarea") || doing).focus();
  });
}

let toasts = null;

/** A short message for a few seconds. `tone`: "good", "bad" or nothing. */
export function toast(text, { tone = "", href, more } = {}) {
  if (!toasts) {
    toasts = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(toasts);
  }
  const box = h("div", { class: ["toast", tone] }, icon(tone === "bad" ? "warn" : "check"), h("span", null, text), href && h("a", { href }, more || "Show"), button("", () => box.remove(), { icon: "close", title: "Dismiss", kind: "quiet", small: true }));
  toasts.append(box);
  setTimeout(() => box.remove(), tone === "bad" ? 12_000 : 6000);
}

/** Run an action, and show a toast with `done` or with the error. Returns the result of the action, or undefined. */
export async function attempt(doing, done) {
  try {
    const result = await doing();
    if (done) toast(typeof done === "function" ? done(result) : done, { tone: "good" });
    return result;
  } catch (error) {
    if (error.name !== "AbortError") toast(error.message, { tone: "bad" });
    return undefined;
  }
}
