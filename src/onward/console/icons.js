// Icons: a few strokes each, drawn for this console, on a grid of 20.

import { svg } from "./dom.js";

const PATHS = {
  overview: "M3.500 3.500h5.500v7H3.500zM11 3.500h5.500v4H11zM11 9.500h5.500v7H11zM3.500 12.500h5.500v4H3.500z",
  tasks: "M4 5h2M4 10h2M4 15h2M9 5h7M9 10h7M9 15h7",
  inbox: "M3 11l2.5-6.5h9L17 11v5H3zM3 11h4l1.2 2h3.6L13 11h4",
  queues: "M3 5h14M3 10h10M3 15h6M16 8v7m0 0l-2.5-2.5M16 15l2.5-2.5",
  workers: "M3 4h14v5H3zM3 11h14v5H3zM6 6.500h.01M6 13.500h.01",
  schedules: "M10 3.500a6.500 6.500 0 100 13 6.500 6.500 0 000-13zM10 6.500V10l2.500 1.500",
  intakes: "M3 10h9m0 0L8.500 6.500M12 10l-3.500 3.500M12 3.500h5v13h-5",
  deliveries: "M3 10l14-6-5 13-3-5.500zM9 11.500L17 4",
  usage: "M4 16V9M8.500 16V4M13 16v-5M17 16V7",
  system: "M10 7.200a2.800 2.800 0 100 5.600 2.800 2.800 0 000-5.600zM10 3v2M10 15v2M3 10h2M15 10h2M5 5l1.500 1.500M13.500 13.500L15 15M15 5l-1.500 1.500M6.500 13.500L5 15",
  plus: "M10 4v12M4 10h12",
  search: "M9 4a5 5 0 100 10A5 5 0 009 4zM13 13l4 4",
  close: "M5 5l10 10M15 5L5 15",
  down: "M6 8l4 4 4-4",
  right: "M8 6l4 4-4 4",
  left: "M12 6l-4 4 4 4",
  more: "M5 10h.01M10 10h.01M15 10h.01",
  sun: "M10 7a3 3 0 100 6 3 3 0 000-6zM10 2.500V4M10 16v1.500M2.500 10H4M16 10h1.500M4.700 4.700l1 1M14.300 14.300l1 1M15.300 4.700l-1 1M5.700 14.300l-1 1",
  moon: "M16 12.500A6.500 6.500 0 017.500 4a6.500 6.500 0 108.500 8.500z",
  auto: "M10 3.500a6.500 6.500 0 100 13zM10 3.500a6.500 6.500 0 010 13",
  check: "M4.500 10.500l3.500 3.500 7.500-8",
  warn: "M10 3.500l7.500 13h-15zM10 8.500v3.500M10 14.300h.01",
  copy: "M7 7V4h9v9h-3M4 7h9v9H4z",
  save: "M10 3.500V12m0 0l-3.500-3.500M10 12l3.500-3.500M4 16.500h12",
  pause: "M7 5v10M13 5v10",
  play: "M6.500 4.500l9 5.500-9 5.500z",
  stop: "M5.500 5.500h9v9h-9z",
  fork: "M6 4v12M6 10c0-3 7-1 7-6M4.500 4h3M11.500 4h3",
  message: "M3.500 4.500h13v9H9L5.500 17v-3.500h-2z",
  up: "M10 16V5m0 0L5.500 9.500M10 5l4.500 4.500",
  coin: "M10 3.500a6.500 6.500 0 100 13 6.500 6.500 0 000-13zM12 7.500c-3-1.500-5 .8-2 2.200 3 1.300 1.500 4-2 2.600M10 6v8",
  file: "M5 3h7l3.500 3.500V17H5zM12 3v4h3.500",
  person: "M10 10a3.500 3.500 0 100-7 3.500 3.500 0 000 7zM3.500 17a6.500 6.500 0 0113 0",
  key: "M13 4a3.500 3.500 0 11-3 5.200L4 15v2h3v-2h2v-2l1.500-1.500",
  filter: "M3 5h14l-5.500 6v5l-3-1.500V11z",
};

/** An icon of 16 by 16 pixels. Screen readers skip it and read the text beside it. */
export function icon(name, size = 16) {
  return svg("svg", { class: "icon", viewBox: "0 0 20 20", width: size, height: size, "aria-hidden": "true" }, svg("path", { d: PATHS[name] || "" }));
}
