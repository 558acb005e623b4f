// The last hour or day on a time axis: small charts of columns, one for each figure. The newest piece is on the right, and not over yet.

import { h } from "./dom.js";
import { at, compact, count, moment, money, number, span } from "./words.js";

const CHARTS = [
  { name: "Throughput", tone: "run", of: (point, minutes) => (point.completed + point.failed + point.cancelled) / minutes, unit: "tasks/min", say: (n) => `${number(Math.round(n * 10) / 10)} tasks/min`, sum: (points) => count(ended(points), "task ended", "tasks ended") },
  { name: "Failures", tone: "bad", of: (point) => point.failed, unit: "tasks", say: (n) => count(n, "task failed", "tasks failed"), sum: (points) => `${number(total(points, "failed"))} of ${count(ended(points), "task")}` },
  { name: "Submit to end", tone: "wait", of: (point) => point.mean_s, more: (point) => point.slowest_s, unit: "s", say: (n) => span(n), sum: (points) => `mean ${span(mean(points))}, slowest ${span(Math.max(...points.map((point) => point.slowest_s || 0)))}`, none: (points) => !ended(points) },
  { name: "Waiting to be started", tone: "idle", of: (point) => point.waiting, unit: "tasks", say: (n) => `${count(n, "task")}${n >= 10_000 ? " or more" : ""}`, sum: (points) => `at most ${compact(Math.max(0, ...points.map((point) => point.waiting || 0)))}` },
  { name: "Cost of ended tasks", tone: "model", of: (point) => point.cost_usd, unit: "$", say: money, sum: (points) => money(total(points, "cost_usd")) },
];

const total = (points, name) => points.reduce((sum, point) => sum + point[name], 0);
const ended = (points) => total(points, "completed") + total(points, "failed") + total(points, "cancelled");
const mean = (points) => points.reduce((sum, point) => sum + (point.mean_s || 0) * (point.completed + point.failed + point.cancelled), 0) / (ended(points) || 1);

/** All charts of `/api/history`. */
export function charts({ step_s: step, points }, phrase) {
  return h("div", { class: "history" }, CHARTS.map((chart) => drawn(chart, points, step, phrase)));
}

function drawn(chart, points, step, phrase) {
  const values = points.map((point) => chart.of(point, step / 60));
  const tops = points.map((point, i) => Math.max(values[i] || 0, chart.more?.(point) || 0));
  const top = Math.max(...tops);
  const summary = chart.none?.(points) ? "no task ended" : chart.sum(points);
  const high = (n) => `${top ? Math.max(n ? 3 : 0, (n / top) * 100) : 0}%`;
  return h(
    "figure",
    { class: ["history-chart", `tone-${chart.tone}`] },
    h("figcaption", null, h("b", null, chart.name), h("span", { class: "faint" }, summary)),
    h(
      "div",
      { class: "history-columns", role: "img", "aria-label": `${chart.name} in ${phrase}: ${summary}${top ? `; at most ${chart.say(top)} at once` : ""}` },
      points.map((point, i) => h("span", { title: `${moment(point.at, { seconds: false })}: ${values[i] === null ? "no figure" : chart.say(values[i])}${chart.more && point.slowest_s !== null ? `, slowest ${span(point.slowest_s)}` : ""}` }, chart.more && h("i", { class: "more", style: { height: high(tops[i]) } }), h("i", { style: { height: high(values[i] || 0) } }))),
      top > 0 && h("span", { class: "history-top" }, chart.say(top)),
    ),
    h("div", { class: "history-axis faint", "aria-hidden": "true" }, h("span", null, moment(at(points[0].at), { seconds: false })), h("span", null, moment(at(points[points.length >> 1].at), { seconds: false })), h("span", null, "now")),
  );
}
