// The pages of the console.
//
// How a page is added: write `pages/NAME.js` that exports
//
//     export async function show(root, place) { … return { changed(place) { … } } }
//
// and add a row below. `root` is the empty <main>; put elements of `h` into it. `place` has the parameters of the path (`place.id` for
// "/tasks/:id"), `place.one("tab")` and `place.all("state")` from the query, and `place.signal`, which is aborted when the user
// leaves the page: pass it to `get(…, {signal})`, `on(topic, listener, signal)` and `addEventListener`, so that nothing is left behind.
// An error is shown as a sentence with a button to try again. With `changed`, the page handles a new query of the same path itself;
// without, it is shown again. `load` is called when the user opens the page, so a page costs nothing before.
//
//     dom.js     h(tag, props, …children): the only way to make elements; the rest is text        words.js  values as words
//     api.js     get, post, remove; Problem with a sentence                                     router.js go, link, here
//     live.js    on("task", …), on("reset", …): the one stream                                  ui.js     chip, table, tabs, meter, …
//     dialog.js  dialog, toast, attempt                  values.js  foreign JSON and text       fields.js labelled inputs
//     style.css  tokens at the top; a page needs few classes of its own
//
// `nav`: its name in the navigation; without it a page is only linked to. `icon` is a name in icons.js. `count(stats)` is the number
// beside it; `stats` is `/api/stats`. `shown()`: whether this key may see it.

import { may, me } from "./me.js";

export const pages = [
  { path: "/overview", title: "Overview", nav: "Overview", icon: "overview", load: () => import("./pages/overview.js") },
  { path: "/tasks", title: "Tasks", nav: "Tasks", icon: "tasks", load: () => import("./pages/tasks.js"), count: (stats) => (stats.states.running || 0) + (stats.states.pending || 0) },
  { path: "/tasks/:id", title: "Task", within: "/tasks", load: () => import("./pages/task.js") },
  { path: "/new", title: "New task", within: "/tasks", load: () => import("./pages/new.js") },
  { path: "/inbox", title: "Approvals and questions", nav: "Inbox", icon: "inbox", load: () => import("./pages/inbox.js"), count: (stats) => stats.people, tone: "wait" },
  { path: "/queues", title: "Queues and workers", nav: "Queues", icon: "queues", load: () => import("./pages/queues.js"), shown: () => !me.tenant },
  { path: "/schedules", title: "Schedules", nav: "Schedules", icon: "schedules", load: () => import("./pages/schedules.js"), shown: () => !me.tenant },
  { path: "/intakes", title: "Intakes", nav: "Intakes", icon: "intakes", load: () => import("./pages/intakes.js") },
  { path: "/deliveries", title: "Deliveries", nav: "Deliveries", icon: "deliveries", load: () => import("./pages/deliveries.js"), shown: () => may("admin") },
  { path: "/usage", title: "Usage and cost", nav: "Usage", icon: "usage", load: () => import("./pages/usage.js") },
  { path: "/system", title: "System", nav: "System", icon: "system", load: () => import("./pages/system.js"), shown: () => may("admin") },
];
