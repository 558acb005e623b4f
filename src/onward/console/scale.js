// The scale of a timeline: maps times to positions between 0 and 1. Times in which no worker ran the task (in a queue, asleep, waiting
// for a person) can be folded: with a night between two steps, the steps would be too narrow to see.

const FOLD = 0.05; // a folded time is at most as wide as this part of the work

/** `shifts`: [[start, end]]. Without work there is nothing to fold. */
export function scale(from, until, shifts, folded) {
  const end = Math.max(until, from + 0.001);
  const work = merged(shifts, from, end);
  const active = work.reduce((sum, [a, b]) => sum + b - a, 0);
  const times = [from];
  const places = [0];
  const gaps = [];
  const step = (to, idle) => {
    const last = times[times.length - 1];
    if (to <= last) return;
    const long = to - last;
    const wide = folded && idle && active > 0 ? Math.min(long, active * FOLD) : long;
    if (idle && wide < long) gaps.push([last, to]);
    times.push(to);
    places.push(places[places.length - 1] + wide);
  };
  for (const [a, b] of work) {
    step(a, true);
    step(b, false);
  }
  step(end, true);
  const whole = places[places.length - 1];
  const find = (list, value) => {
    let [low, high] = [0, list.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (list[middle] <= value) low = middle;
      else high = middle;
    }
    return low;
  };
  const across = (a, b, value) => {
    const i = find(a, value);
    const part = a[i + 1] === a[i] ? 0 : (value - a[i]) / (a[i + 1] - a[i]);
    return b[i] + Math.max(0, Math.min(1, part)) * (b[i + 1] - b[i]);
  };
  return {
    at: (time) => across(times, places, time) / whole,
    time: (place) => across(places, times, place * whole),
    gaps,
    perSecond: 1 / whole,
    work: folded && gaps.length ? work : [[from, end]],
    from,
    end,
  };
}

/** The factor by which folding shortens the timeline: 1 is not at all. */
export function foldable(from, until, shifts) {
  const work = merged(shifts, from, until).reduce((sum, [a, b]) => sum + b - a, 0);
  return work > 0 ? (until - from) / work : 1;
}

function merged(intervals, from, end) {
  const result = [];
  for (const [a, b] of intervals.map(([a, b]) => [Math.max(a, from), Math.min(b, end)]).sort((first, second) => first[0] - second[0])) {
    const last = result[result.length - 1];
    if (last && a <= last[1]) last[1] = Math.max(last[1], b);
    else if (b >= a) result.push([a, b]);
  }
  return result;
}

/** Round times for an axis, about `apart` pixels from one another: [[time, text]]. */
export function ticks(scale, width, view, apart = 110) {
  const seconds = (apart / width) * (view[1] - view[0]) / scale.perSecond;
  const step = nice(seconds);
  const result = [];
  const [low, high] = [scale.time(Math.max(0, view[0])), scale.time(Math.min(1, view[1]))];
  for (const [a, b] of scale.work) {
    for (let n = Math.ceil((Math.max(a, low) - scale.from) / step - 1e-9); ; n += 1) {
      const time = scale.from + n * step;
      if (time > Math.min(b, high) || result.length > 60) break;
      result.push([time, offset(n * step, step)]);
    }
  }
  return result;
}

const NICE = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000];

const nice = (seconds) => NICE.find((step) => step >= seconds) || NICE[NICE.length - 1];

function offset(seconds, step) {
  if (seconds === 0) return "0";
  if (step < 1) return step < 0.1 || seconds < 1 ? (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(3).replace(/0+$/, "").replace(/\.$/, "")} s`) : `${seconds.toFixed(1)} s`;
  if (step < 60) return seconds < 60 ? `${Math.round(seconds)} s` : `${Math.floor(seconds / 60)} m ${Math.round(seconds % 60)} s`;
  if (step < 3600) return seconds < 3600 ? `${Math.round(seconds / 60)} m` : `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} m`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}
