"""top: the place at a glance, drawn again every few seconds: workers, queues, what runs, and what waits for people.

A terminal has it on a page of its own until q is typed; --once, --json and a pipe get one frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import termios
import time
import tty
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from onward.app.application import Onward
from onward.cli.args import connect as door
from onward.cli.output.screen import Screen, speaks_unicode, state_text
from onward.cli.output.table import Column, fixed, number, table
from onward.cli.output.text import age, clock, count, safe, short
from onward.core.durations import seconds
from onward.core.journal.explain import Explanation
from onward.core.task import ASKS_A_PERSON, Reason, State, Task
from onward.core.views import Queue, Stats, WorkerView
from onward.errors import OnwardError
from onward.service.cluster import READY
from onward.service.serialize import iso, queue_json, stats_json, why_json, worker_json

SIDE_BY_SIDE = 140
"""Columns from which on there is room for two halves."""

MOST = 50
"""Tasks of a kind that are looked at for one frame."""

KEPT = 24
"""Rates that the little curve shows."""

PLAIN_WIDTH = 100
"""Columns of a frame where there is no terminal."""

PEOPLE = (fixed("WAITS FOR A PERSON"), Column("TASK", drop=2), number("SINCE", drop=1), Column("WHAT", 16))
QUEUES = (
    Column("QUEUE"),
    fixed("STATE", drop=2),
    number("WAITING"),
    number("RUNNING"),
    number("OLDEST"),
    Column("", drop=1),
)
WORKERS = (
    fixed("WORKER"),
    Column("HOST, PID"),
    number("RUNNING"),
    number("RATE"),
    fixed("LEASE"),
    Column("QUEUES", drop=1),
)
RUNNING = (
    fixed("RUNNING"),
    Column("TASK"),
    Column("QUEUE", drop=2),
    number("AGE"),
    fixed("ON WORKER", drop=3),
    Column("", 12),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """Something that waits for a person, and what to type about it."""

    task_id: str
    task: str
    reason: str
    since: float
    text: str
    command: str


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """All that one frame shows."""

    at: float
    where: str
    stats: Stats
    queues: list[Queue]
    workers: list[WorkerView]
    running: list[Task]
    whys: dict[str, Explanation]
    people: list[Wait]

    def json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "at": iso(self.at),
            "database": self.where,
            "stats": stats_json(self.stats),
            "queues": [queue_json(queue) for queue in self.queues],
            "workers": [worker_json(worker) for worker in self.workers],
            "running": [
                {
                    "task_id": task.task_id,
                    "task": task.task,
                    "queue": task.queue,
                    "attempt": task.attempt,
                    "created_at": iso(task.created_at),
                    "worker": task.worker,
                    "why": why_json(self.whys[task.task_id]),
                }
                for task in self.running
            ],
            "people": [dataclasses.asdict(wait) | {"since": iso(wait.since)} for wait in self.people],
        }


async def top(args: Namespace) -> int:
    """`onward top`."""
    screen, every = Screen(args), seconds(args.every, "--every")
    async with door.opened(args) as app:
        if screen.json:
            screen.document((await look(app)).json())
        elif args.once or not screen.live:
            width = screen.out.width if sys.stdout.isatty() else PLAIN_WIDTH
            for line in frame(screen.out, await look(app), width, 10_000, []):
                screen.out.print(line, soft_wrap=True)
        else:
            await _watch(screen, app, max(every, 0.2))
    return 0


async def look(app: Onward) -> Look:
    """What there is to see now."""
    running, _ = await app.list(state=State.RUNNING, limit=MOST)
    return Look(
        at=time.time(),
        where=app.store.where,
        stats=await app.stats(),
        queues=await app.queues(),
        workers=await app.workers(),
        running=running,
        whys=await app.service.explainer.of(running),
        people=await _people(app),
    )


async def _people(app: Onward) -> list[Wait]:
    """The longest waiting first."""
    asks = [
        Wait(
            ask.task_id,
            ask.task,
            ask.kind,
            ask.asked_at,
            ask.text,
            f"onward {'approve' if ask.kind == Reason.APPROVAL else 'answer'} {door.short_ask(ask.id)}",
        )
        for ask in await app.asks()
    ]
    others = [
        Wait(task.task_id, task.task, reason, task.updated_at, words, f"onward {verb} {task.task_id[-8:]}")
        for reason, (words, verb) in _DO.items()
        for task in (await app.list(reason=reason, limit=MOST))[0]
    ]
    return sorted([*asks, *others], key=lambda wait: wait.since)


_DO = {
    Reason.IN_DOUBT: ("in doubt: did it happen?", "resolve"),
    Reason.BUDGET: ("its budget is spent", "budget"),
    Reason.PARKED: ("parked: code and journal disagree", "show"),
    Reason.QUARANTINED: ("quarantined: it took its workers down", "show"),
}
assert _DO.keys() | {Reason.APPROVAL, Reason.QUESTION} == ASKS_A_PERSON


# ── how it looks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(console: Console, seen: Look, width: int, height: int, rates: Sequence[float]) -> list[Text]:
    """All lines of a frame, no wider and no higher than that."""
    head = _head(console, seen, width, rates)
    room = height - len(head)
    if width >= SIDE_BY_SIDE:
        half = (width - 4) // 2
        left = _stacked([_queues(seen), _workers(seen)], half, room)
        right = _stacked([_people_rows(seen), _running(seen)], half, room)
        return [*head, *_beside(left, right, half)]
    return [*head, *_stacked([_people_rows(seen), _queues(seen), _workers(seen), _running(seen)], width, room)]


def _head(console: Console, seen: Look, width: int, rates: Sequence[float]) -> list[Text]:
    stats, alive = seen.stats, sum(worker.alive for worker in seen.workers)
    first = Text.assemble(("onward top", "bold"), (f"  {safe(seen.where)}", "dim"))
    first.truncate(width - 10, overflow="ellipsis")
    first.pad_right(width - first.cell_len - 8)
    first.append(clock(seen.at), "dim")
    running = stats.states[State.RUNNING]
    second = Text.assemble(
        (count(alive, "worker"), "" if alive else "bold red"),
        f" · {running:,} of {count(stats.slots, 'slot')} busy  ",
        meter(console, running, stats.slots, 12),
        f"  {stats.rate:.1f} tasks/s  ",
        (curve(console, rates), "cyan"),
    )
    third = Text()
    for state, many in stats.states.items():
        third.append_text(state_text(State(state)) if many else Text(state, "dim"))
        third.append(f" {many:,}", "bold" if many else "dim").append("   ")
    if not stats.exact:
        third.append("(or about that)", "dim")
    for line in (second, third):
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return [first, second, third]


def meter(console: Console, part: float, whole: float, width: int) -> Text:
    """A bar of so many columns."""
    full = 0 if whole <= 0 else round(width * min(1.0, part / whole))
    full = max(full, 1) if part > 0 else full
    on, off = ("━", "─") if speaks_unicode(console) else ("=", "-")
    return Text.assemble((on * full, "cyan"), (off * (width - full), "bright_black"))


def curve(console: Console, rates: Sequence[float]) -> str:
    """The last rates as a little curve; nothing where there is nothing to see."""
    if not speaks_unicode(console) or not any(rates):
        return ""
    highest = max(rates)
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * rate / highest))] for rate in rates)


Section = tuple[Sequence[Column], Sequence[Sequence[Text]], str]
"""Columns, rows, and the command that lists more."""


def _people_rows(seen: Look) -> Section:
    rows = [
        (
            Text(safe(wait.command), "bold magenta"),
            Text(safe(wait.task)),
            Text(age(seen.at - wait.since), "dim"),
            Text(short(wait.text, 200), "dim"),
        )
        for wait in seen.people
    ]
    return PEOPLE, rows, "onward approvals · onward questions · onward list --state waiting"


def _queues(seen: Look) -> Section:
    rows = [
        (
            Text(safe(queue.name)),
            Text("paused", "yellow") if queue.paused else Text("open", "dim"),
            Text(f"{queue.waiting:,}"),
            Text(f"{queue.running:,}" + ("" if queue.limit is None else f" of {queue.limit:,}")),
            Text("" if queue.oldest_s is None else age(queue.oldest_s), "dim"),
            Text(_others(queue), "dim"),
        )
        for queue in seen.queues
    ]
    return QUEUES, rows, "onward queues"


def _others(queue: Queue) -> str:
    rest = {reason: many for reason, many in queue.reasons.items() if reason not in READY and reason != Reason.RUNNING}
    return ", ".join(f"{many:,} {safe(reason).replace('_', ' ')}" for reason, many in sorted(rest.items()))


def _workers(seen: Look) -> Section:
    rows = [
        (
            Text(worker.id[-8:]),
            Text(safe(f"{worker.host} {worker.pid}"), "dim"),
            Text(f"{worker.running:,} of {worker.slots:,}"),
            Text(f"{worker.rate:.1f}/s"),
            Text(f"{age(worker.lease_s)} left", "dim")
            if worker.alive
            else Text(f"ended {age(-worker.lease_s)} ago", "red"),
            Text(safe(", ".join(worker.queues)) or "all", "dim"),
        )
        for worker in seen.workers
    ]
    return WORKERS, rows, "onward workers"


def _running(seen: Look) -> Section:
    rows = [
        (
            Text(task.task_id[-8:], "cyan"),
            Text(safe(task.task)),
            Text(safe(task.queue), "dim"),
            Text(age(seen.at - task.created_at), "dim"),
            Text(safe((task.worker or "")[-8:]), "dim"),
            Text(_doing(why, seen.at) if (why := seen.whys.get(task.task_id)) else "", "dim"),
        )
        for task in seen.running
    ]
    return RUNNING, rows, "onward list --state running"


def _doing(why: Explanation, now: float) -> str:
    return safe(why.text) + ("" if why.since is None else f", {age(now - why.since)}")


def _stacked(sections: Sequence[Section], width: int, room: int) -> list[Text]:
    """One below the other, each with its fair share of the room: what one does not need, the others have."""
    shown = [section for section in sections if section[1]]
    if not shown:
        return [Text(), Text("nothing is unfinished: onward submit NAME INPUT", "dim")]
    wanted = [len(rows) for _, rows, _ in shown]
    given = _shares(wanted, room - 2 * len(shown))
    lines: list[Text] = []
    for (columns, rows, more), share in zip(shown, given, strict=True):
        if share < 1:
            continue
        cut = len(rows) > share
        lines += [Text(), *table(width, columns, rows[: share - 1 if cut else share])]
        if cut:
            note = Text(f"{len(rows) - share + 1:,} more: {more}", "dim")
            note.truncate(width, overflow="ellipsis")
            lines.append(note)
    return lines


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    given = [0] * len(wanted)
    for _ in range(max(room, 0)):
        hungry = [place for place in range(len(wanted)) if given[place] < wanted[place]]
        if not hungry:
            break
        given[min(hungry, key=lambda place: given[place])] += 1
    return given


def _beside(left: list[Text], right: list[Text], half: int) -> list[Text]:
    lines = []
    for number_ in range(max(len(left), len(right))):
        one = left[number_].copy() if number_ < len(left) else Text()
        one.pad_right(half - one.cell_len + 4)
        lines.append(one.append_text(right[number_]) if number_ < len(right) else one)
    return lines


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Page:
    """What is drawn: the last look, in whatever size the terminal has now."""

    def __init__(self) -> None:
        self.seen: Look | None = None
        self.rates: list[float] = []
        self.trouble = ""

    def __rich_console__(self, console: Console, _: object) -> Iterator[Text]:
        width, height = console.width, console.height
        foot = Text(self.trouble or "q leaves", "red" if self.trouble else "dim", no_wrap=True, overflow="ellipsis")
        lines = [] if self.seen is None else frame(console, self.seen, width, height - 1, self.rates)
        lines = [*lines[: height - 1], *[Text()] * (height - 1 - len(lines)), foot]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        yield Text("\n", no_wrap=True, overflow="ignore", end="").join(lines)


async def _watch(screen: Screen, app: Onward, every: float) -> None:
    page, leave, again = _Page(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    with _keys(leave), Live(page, console=screen.out, screen=True, auto_refresh=False) as live:
        loop.add_signal_handler(signal.SIGWINCH, again.set)
        try:
            while not leave.is_set():
                await _see(app, page)
                live.refresh()
                end = loop.time() + every
                while not leave.is_set() and (left := end - loop.time()) > 0:
                    again.clear()
                    await _first(left, leave, again)
                    live.refresh() if again.is_set() else None
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)


async def _see(app: Onward, page: _Page) -> None:
    """One more look; while the database is away, the last one stays, with a word about it."""
    try:
        page.seen, page.trouble = await look(app), ""
        page.rates = [*page.rates, page.seen.stats.rate][-KEPT:]
    except OnwardError as error:
        page.trouble = short(f"{error}; tried again shortly · q leaves", 400)


async def _first(timeout: float, *events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


@contextlib.contextmanager
def _keys(leave: asyncio.Event) -> Iterator[None]:
    """Hear q as soon as it is typed, and leave the terminal as it was."""
    if not sys.stdin.isatty():
        yield
        return
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def hear() -> None:
        if not (typed := os.read(stdin, 64)) or b"q" in typed.lower():
            leave.set()

    tty.setcbreak(stdin)
    loop.add_reader(stdin, hear)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
