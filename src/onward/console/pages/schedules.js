// Schedules: their next ticks and last tasks; pause, unpause, trigger now.

import { everyPage, get, part, post } from "../api.js";
import { attempt, dialog, toast } from "../dialog.js";
import { add, h } from "../dom.js";
import { may, me } from "../me.js";
import { keepUpdated, redraw } from "../parts.js";
import { link } from "../router.js";
import { age, badge, button, chip, empty, heading, table } from "../ui.js";
import { at, brief, count, exactly, line, moment, safe, span } from "../words.js";

const LOOKED = 60; // schedules whose last tasks are read

export async function show(root, { signal }) {
  const box = h("div", { class: "stacked" });
  add(root, heading("Schedules", "Tasks that are submitted at fixed times"), box);
  let again = () => {};

  async function load() {
    const schedules = await everyPage("/api/schedules", "schedules", { signal });
    const last = await Promise.all(schedules.slice(0, LOOKED).map((schedule) => latest(schedule, signal)));
    redraw(box, [schedules, last.map((tasks) => tasks.map((task) => [task.task_id, task.state, task.reason]))], () => drawn(schedules, last, () => again()));
  }

  again = await keepUpdated(load, signal, { gap: 2000, every: 15_000 });
}

/** The newest tasks of a schedule. */
const latest = (schedule, signal) => get("/api/tasks", { brief: true, label: `schedule:${schedule.name}`, limit: 8 }, { signal }).then((page) => page.tasks, () => []);

function drawn(schedules, last, again) {
  const newest = new Map(schedules.map((schedule, i) => [schedule.name, last[i]]));
  const runs = may("admin") && !me.tenant;
  const columns = [
    { name: "Schedule", cell: (schedule) => h("span", { class: "two" }, h("b", null, line(schedule.name, 80)), h("span", { class: "faint clip", title: safe(brief(schedule.input, 400)) }, line(schedule.task, 60), schedule.input !== null && schedule.input !== undefined && ` · ${brief(schedule.input, 60)}`)) },
    { name: "When", cell: rhythm },
    { name: "Next", cell: (schedule) => (schedule.paused ? badge("paused", "wait") : schedule.next_at ? h("span", { class: "two" }, age(schedule.next_at), h("span", { class: "faint" }, [schedule.next_at, ...(schedule.upcoming || []).slice(1, 3)].map((time, i) => [["", ", then ", ", "][i], tick(time)]))) : h("span", { class: "faint" }, "never")) },
    { name: "Last tick", cell: (schedule) => (schedule.last_at ? h("span", { class: "two" }, age(schedule.last_at), h("span", { class: "faint" }, tick(schedule.last_at))) : h("span", { class: "faint" }, "not yet")) },
    { name: "Last task", cell: (schedule) => outcome(newest.get(schedule.name), schedule) },
    runs && { name: "", class: "tight end", cell: (schedule) => h("span", { class: "row nowrap" }, button("Trigger now", () => trigger(schedule, again), { small: true, icon: "play", data: { key: `trigger:${schedule.name}` }, "aria-label": `Trigger ${line(schedule.name, 60)} now` }), schedule.paused ? button("Unpause", () => attempt(() => post(`/api/schedules/${part(schedule.name)}/unpause`), `${line(schedule.name, 60)} is unpaused`).then(again), { small: true, data: { key: `pause:${schedule.name}` }, "aria-label": `Unpause ${line(schedule.name, 60)}` }) : button("Pause", () => attempt(() => post(`/api/schedules/${part(schedule.name)}/pause`), `${line(schedule.name, 60)} is paused`).then(again), { small: true, kind: "quiet", data: { key: `pause:${schedule.name}` }, "aria-label": `Pause ${line(schedule.name, 60)}` })) },
  ].filter(Boolean);
  return table(columns, schedules, { label: "Schedules", none: empty("No schedules", "`app.schedule(NAME, TASK, INPUT, cron=…)` in your code defines one. It appears here when a worker or a server with that code starts.") });
}

function rhythm(schedule) {
  const missed = { once: "of several missed ticks, one task is submitted", all: "a task is submitted for every missed tick", skip: "missed ticks are skipped" }[schedule.missed] || "";
  return h("span", { class: "two" }, schedule.cron ? h("code", null, line(schedule.cron, 60)) : h("span", null, `every ${span(schedule.every).replace(/ 0+ (s|min|h)$/, "")}`), h("span", { class: "faint", title: missed }, schedule.cron ? line(schedule.timezone, 40) : ""));
}

/** A tick, to the minute where it is at a whole one. */
const tick = (time) => h("span", { class: "tick", title: exactly(time) }, moment(time, { seconds: at(time) % 60 !== 0 }));

/** The last task with its state, and those before it as dots. */
function outcome(tasks, schedule) {
  if (!tasks) return h("a", { href: link("/tasks", { label: `schedule:${schedule.name}` }) }, "its tasks");
  if (!tasks.length) return h("span", { class: "faint" }, "–");
  const tone = (task) => ({ completed: "good", failed: "bad", running: "run", cancelled: "idle" })[task.state] || "idle";
  return h("span", { class: "two" }, h("a", { href: link(`/tasks/${part(tasks[0].task_id)}`), class: "quiet-link" }, chip(tasks[0])), h("a", { class: "dots", href: link("/tasks", { label: `schedule:${schedule.name}` }), "aria-label": `The last ${count(tasks.length, "task")} of ${line(schedule.name, 60)}`, title: "All tasks of this schedule" }, [...tasks].reverse().map((task) => h("i", { class: ["dot", `tone-${tone(task)}`] }))));
}

function trigger(schedule, again) {
  dialog(`Trigger ${line(schedule.name, 60)} now?`, {
    text: `Its task is submitted now. The next tick does not change${schedule.paused ? ", and the schedule stays paused" : ""}.`,
    name: "Trigger now",
    act: async () => {
      const submitted = await post(`/api/schedules/${part(schedule.name)}/trigger`);
      toast("Submitted", { tone: "good", href: link(`/tasks/${part(submitted.task_id)}`), more: "Show the task" });
      again();
    },
  });
}
