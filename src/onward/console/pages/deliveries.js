// Deliveries of events: their attempts and responses, send again; and the subscriptions.

import { get, part, post, remove } from "../api.js";
import { attempt, dialog, toast } from "../dialog.js";
import { add, h } from "../dom.js";
import { area, text } from "../fields.js";
import { icon } from "../icons.js";
import { may } from "../me.js";
import { keepUpdated, redraw, secret, segments, where } from "../parts.js";
import { go, link } from "../router.js";
import { age, badge, button, clock, empty, heading, pager, table, tabs, taskLink } from "../ui.js";
import { at, count, line, number, safe, short } from "../words.js";

const STATES = [["", "All"], ["pending", "Pending"], ["failed", "Failed"], ["delivered", "Delivered"]];
const TONES = { pending: "run", delivered: "good", failed: "bad" };
const LIMIT = 50;

export async function show(root, place) {
  const { signal } = place;
  let here = place;
  const head = heading("Deliveries", "Events that are sent to other systems, and the subscriptions to them", may("admin") && button("Subscribe…", () => subscribe(() => view.again()), { icon: "plus" }));
  const view = { again: () => {} };
  const parts = tabs(
    [
      { id: "deliveries", name: "Deliveries", show: (panel, stop) => events(panel, stop) },
      { id: "subscriptions", name: "Subscriptions", show: (panel, stop) => heard(panel, stop) },
    ],
    { label: "Deliveries", chosen: (id) => go("/deliveries", { tab: id === "deliveries" ? null : id }, { replace: true }) },
  );
  add(root, head, parts.element);
  signal.addEventListener("abort", parts.stop, { once: true });

  async function events(panel, stop) {
    const [bar, box] = [h("div", { class: "bar-row" }), h("div", { class: "stacked" })];
    add(panel, bar, box);
    await guarded(panel, async () => {
      view.again = await keepUpdated(async () => {
        const chosen = { state: here.one("state"), task: here.one("task"), subscription: here.one("subscription"), cursor: here.one("cursor") };
        redraw(bar, chosen, () => filters(chosen));
        const page = await get("/api/deliveries", { ...chosen, limit: LIMIT }, { signal: stop });
        redraw(box, [page, chosen], () => [deliveries(page.deliveries, chosen, view.again), turn(page, chosen)]);
      }, stop, { gap: 1500, every: 4000 });
    });
  }

  async function heard(panel, stop) {
    const box = h("div", { class: "stacked" });
    add(panel, box);
    await guarded(panel, async () => {
      view.again = await keepUpdated(async () => {
        const page = await get("/api/subscriptions", { limit: 500 }, { signal: stop });
        redraw(box, page, () => subscriptions(page.subscriptions, view.again));
      }, stop, { gap: 5000, every: 15_000 });
    });
  }

  parts.take(place.one("tab") || "deliveries");
  return {
    changed(next) {
      here = next;
      parts.take(next.one("tab") || "deliveries");
      view.again();
    },
  };
}

async function guarded(panel, doing) {
  try {
    await doing();
  } catch (error) {
    if (error.name !== "AbortError") add(panel, h("p", { class: "failure", role: "alert" }, icon("warn"), h("span", null, safe(error.message))));
  }
}

// ── deliveries ───────────────────────────────────────────────────────────────────────────────────────────────────────

function filters(chosen) {
  const kept_ = { task: chosen.task, subscription: chosen.subscription };
  const only = (name, text_) => chosen[name] && h("a", { class: "tag only", href: link("/deliveries", { ...chosen, cursor: null, [name]: null }), title: "Remove this filter" }, h("b", null, name), line(text_, 40), " ×");
  return h("div", { class: "row" }, segments("Filter by state", STATES, chosen.state, "/deliveries", kept_, "state"), only("task", short(chosen.task)), only("subscription", short(chosen.subscription)));
}

function deliveries(rows, chosen, again) {
  const columns = [
    { name: "State", class: "tight", cell: state },
    { name: "Event", cell: (delivery) => h("span", { class: "two" }, h("b", null, line(delivery.type, 60)), h("span", { class: "faint" }, taskLink(delivery.task_id), ` · record ${number(delivery.seq)}`)) },
    { name: "To", class: "to", cell: (delivery) => (delivery.sink ? where(delivery.sink) : h("span", { class: "faint" }, "a removed receiver")) },
    { name: "Attempts", class: "end", cell: (delivery) => number(delivery.attempts) },
    { name: "Response", class: "answer", cell: (delivery) => (delivery.said ? h("span", { title: safe(delivery.said) }, line(delivery.said, 160)) : h("span", { class: "faint" }, "none yet")) },
    { name: "When", cell: (delivery) => when(delivery) },
    may("admin") && { name: "", class: "tight end", cell: (delivery) => delivery.state !== "pending" && button("Send again", () => attempt(() => post(`/api/deliveries/${part(delivery.id)}/redeliver`), "It will be sent again").then(again), { small: true, data: { key: `again:${delivery.id}` }, "aria-label": `Send ${line(delivery.type, 60)} of ${short(delivery.task_id)} again` }) },
  ].filter(Boolean);
  const none = chosen.state || chosen.task || chosen.subscription ? empty("No delivery matches", "Remove a filter to see more.") : empty("No deliveries yet", "Events are sent to subscriptions, and to the webhook that a task was submitted with.");
  return table(columns, rows, { label: "Deliveries", none });
}

function state(delivery) {
  if (delivery.sending) return badge("sending", "run");
  if (delivery.state === "pending") return delivery.attempts ? badge("retrying", "warn") : at(delivery.due_at) > Date.now() / 1000 + 5 ? badge("delayed", "warn") : badge("pending", "run");
  return badge(delivery.state, TONES[delivery.state]);
}

function when(delivery) {
  if (delivery.state === "pending") return h("span", { class: "two" }, h("span", null, "next try ", delivery.due_at ? age(delivery.due_at) : "soon"), h("span", { class: "faint" }, "created ", age(delivery.at)));
  return h("span", { class: "two" }, age(delivery.done_at || delivery.at), h("span", { class: "faint" }, clock(delivery.done_at || delivery.at)));
}

function turn(page, chosen) {
  if (!page.next && !chosen.cursor) return null;
  return pager({ next: page.next, before: chosen.cursor, onnext: () => go("/deliveries", { ...chosen, cursor: page.next }), onbefore: () => history.back(), text: "newest first" });
}

// ── subscriptions ────────────────────────────────────────────────────────────────────────────────────────────────────

function subscriptions(rows, again) {
  const columns = [
    { name: "State", class: "tight", cell: (subscription) => (subscription.disabled ? badge("disabled", "bad") : badge("active", "good")) },
    { name: "To", class: "to", cell: (subscription) => h("span", { class: "two" }, where(subscription.sink), subscription.disabled && h("span", { class: "tone-bad toned" }, line(subscription.disabled, 200))) },
    { name: "Events", cell: (subscription) => h("span", { class: "row" }, subscription.types.slice(0, 8).map((type) => h("span", { class: "tag" }, line(type, 60))), subscription.types.length > 8 && h("span", { class: "faint" }, `and ${subscription.types.length - 8} more`)) },
    { name: "Tenant", cell: (subscription) => (subscription.tenant === null ? "all" : subscription.tenant === "" ? "none" : line(subscription.tenant, 60)) },
    { name: "Dropped", class: "end", cell: (subscription) => (subscription.dropped ? h("span", { class: "tone-bad toned", title: "Too many events were waiting" }, number(subscription.dropped)) : "0") },
    { name: "Created", cell: (subscription) => age(subscription.created_at) },
    { name: "", class: "tight end", cell: (subscription) => h("span", { class: "row nowrap" }, h("a", { class: "button small quiet", href: link("/deliveries", { subscription: subscription.id }) }, "Deliveries"), may("admin") && button("Remove…", () => gone(subscription, again), { small: true, kind: "quiet", data: { key: `gone:${subscription.id}` }, "aria-label": `Remove the subscription to ${line(subscription.sink, 80)}` })) },
  ];
  return table(columns, rows, { label: "Subscriptions", none: empty("No subscriptions", "A subscription sends signed events to a URL.") });
}

function gone(subscription, again) {
  dialog("Remove this subscription?", {
    text: `${safe(subscription.sink)} receives no more events. Pending deliveries are not sent.`,
    name: "Remove",
    kind: "danger",
    act: async () => {
      await remove(`/api/subscriptions/${part(subscription.id)}`);
      toast("Removed", { tone: "good" });
      again();
    },
  });
}

async function subscribe(again) {
  const url = text("URL", { type: "url", placeholder: "https://example.com/hook" }, { required: true });
  const types = area("Events", { rows: 3, value: "task.completed\ntask.failed" }, { hint: "One per line; task.* means all events of tasks, * means all events." });
  const made = await dialog("Subscribe", {
    text: "From now on these events are sent to this URL, signed. A delivery that fails is retried.",
    fields: [url, types],
    name: "Subscribe",
    act: () => post("/api/subscriptions", { url: url.input.value.trim(), types: types.input.value.split(/[\s,]+/).filter(Boolean) }),
  });
  if (!made) return;
  again();
  await dialog("Keep the secret", { text: `It signs the deliveries to ${safe(made.sink)}, of ${count(made.types.length, "event type")}. It is not shown again.`, fields: [secret(made.secret, "The secret")], cancel: "I have saved it" });
}
