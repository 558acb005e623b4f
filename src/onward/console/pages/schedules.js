// Schedules: their next ticks and last tasks; pause, unpause, trigger now.

import { get, part, post } from "../api.js";
import { attempt, dialog, toast } from "../dialog.js";
import { add, h } from "../dom.js";
import { may, me } from "../me.js";
import { kept, redraw } from "../parts.js";
import { link } from "../router.js";
import { age, badge, button, chip, empty, heading, table } from "../ui.js";
import { at, brief, exactly, line, moment, safe, span } from "../words.js";

const LOOKED = 60; // schedules whose last tasks are read

export async function show(root, { signal }) {
  const box = h("div", { class: "stacked" });
  add(root, heading("Schedules", "Tasks that are submitted at fixed times"), box);
  let again = () => {};

  async function load() {
    const { schedules } = await get("/api/schedules", {}, { signal });
    const last = await Promise.all(schedules.slice(0, LOOKED).map((one) => latest(one, signal)));
    redraw(box, [schedules, last.map((tasks) => tasks.map((task) => [task.task_id, task.state, task.reason]))], () => drawn(schedules, last, () => again()));
  }

  again = await kept(load, signal, { gap: 2000, every: 15_000 });
}

/** The newest tasks of a schedule. */
const latest = (schedule, signal) => get("/api/tasks", { brief: true, label: `schedule:${schedule.name}`, limit: 8 }, { signal }).then((found) => found.tasks, () => []);

function drawn(schedules, last, again) {
  const newest = new Map(schedules.map((one, i) => [one.name, last[i] || []]));
  const runs = may("admin") && !me.tenant;
  const columns = [
    { name: "Schedule", cell: (one) => h("span", { class: "two" }, h("b", null, line(one.name, 80)), h("span", { class: "faint clip", title: safe(brief(one.input, 400)) }, line(one.task, 60), one.input !== null && one.input !== undefined && ` · ${brief(one.input, 60)}`)) },
    { name: "When", cell: rhythm },
    { name: "Next", cell: (one) => (one.paused ? badge("paused", "wait") : one.next_at ? h("span", { class: "two" }, age(one.next_at), h("span", { class: "faint" }, [one.next_at, ...(one.upcoming || []).slice(1, 3)].map((time, i) => [["", ", then ", ", "][i], tick(time)]))) : h("span", { class: "faint" }, "never")) },
    { name: "Last tick", cell: (one) => (one.last_at ? h("span", { class: "two" }, age(one.last_at), h("span", { class: "faint" }, tick(one.last_at))) : h("span", { class: "faint" }, "not yet")) },
    { name: "Last task", cell: (one) => outcome(newest.get(one.name), one) },
    runs && { name: "", class: "tight end", cell: (one) => h("span", { class: "row nowrap" }, button("Trigger now", () => trigger(one, again), { small: true, icon: "play", data: { key: `trigger:${one.name}` }, "aria-label": `Trigger ${line(one.name, 60)} now` }), one.paused ? button("Unpause", () => attempt(() => post(`/api/schedules/${part(one.name)}/unpause`), `${line(one.name, 60)} is unpaused`).then(again), { small: true, data: { key: `pause:${one.name}` }, "aria-label": `Unpause ${line(one.name, 60)}` }) : button("Pause", () => attempt(() => post(`/api/schedules/${part(one.name)}/pause`), `${line(one.name, 60)} is paused`).then(again), { small: true, kind: "quiet", data: { key: `pause:${one.name}` }, "aria-label": `Pause ${line(one.name, 60)}` })) },
  ].filter(Boolean);
  return table(columns, schedules, { label: "Schedules", none: empty("No schedules", "`@app.schedule(…)` in your code defines one. It appears here when a worker with that code starts.") });
}

function rhythm(one) {
  const missed = { once: "of several missed ticks, one task is submitted", all: "a task is submitted for every missed tick", skip: "missed ticks are skipped" }[one.missed] || "";
  return h("span", { class: "two" }, one.cron ? h("code", null, line(one.cron, 60)) : h("span", null, `every ${span(one.every).replace(/ 0+ (s|min|h)$/, "")}`), h("span", { class: "faint", title: missed }, one.cron ? line(one.timezone, 40) : ""));
}

/** A tick, to the minute where it is at a whole one. */
const tick = (time) => h("span", { class: "tick", title: exactly(time) }, moment(time, { seconds: at(time) % 60 !== 0 }));

/** The last task with its state, and those before it as dots. */
function outcome(tasks, schedule) {
  if (!tasks?.length) return h("span", { class: "faint" }, "–");
  const tone = (task) => ({ completed: "good", failed: "bad", running: "run", cancelled: "idle" })[task.state] || "idle";
  return h("span", { class: "two" }, h("a", { href: link(`/tasks/${part(tasks[0].task_id)}`), class: "quiet-link" }, chip(tasks[0])), h("a", { class: "dots", href: link("/tasks", { label: `schedule:${schedule.name}` }), "aria-label": `The last ${tasks.length} tasks of ${line(schedule.name, 60)}`, title: "All tasks of this schedule" }, [...tasks].reverse().map((task) => h("i", { class: ["dot", `tone-${tone(task)}`] }))));
}

function trigger(one, again) {
  dialog(`Trigger ${line(one.name, 60)} now?`, {
    text: `Its task is submitted now. The next tick does not change${one.paused ? ", and the schedule stays paused" : ""}.`,
    name: "Trigger now",
    act: async () => {
      const made = await post(`/api/schedules/${part(one.name)}/trigger`);
      toast("Submitted", { tone: "good", href: link(`/tasks/${part(made.task_id)}`), more: "Show the task" });
      again();
    },
  });
}
