"""top: workers, queues, running tasks and tasks that wait for people, drawn again every few seconds.

A terminal shows it on a separate screen until the user types q; --once, --json and a pipe get one frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from onward.cli.args import connect
from onward.cli.commands.cluster import queue_cells
from onward.cli.output.screen import Screen, has_unicode, state_text
from onward.cli.output.table import Column, fixed, number, table
from onward.cli.output.text import age, clock, count, safe, short
from onward.core.durations import seconds
from onward.core.journal.explain import Explanation
from onward.core.task import ASKS_A_PERSON, Reason, State, Task
from onward.core.views import Queue, Stats, WorkerView
from onward.errors import OnwardError
from onward.service.serialize import iso, queue_json, stats_json, why_json, worker_json

TWO_COLUMNS_WIDTH = 140
"""Columns of a terminal from which on the tables stand side by side."""

QUIT = "Ctrl-C quits" if os.name == "nt" else "q quits"

MAX_TASKS = 50
"""Tasks of each kind that a frame reads."""

MAX_RATES = 24
"""Rates that the curve shows."""

PLAIN_WIDTH = 100
"""Columns of a frame without a terminal."""

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
    """A task that waits for a person, and the command to type."""

    task_id: str
    task: str
    reason: str
    since: float
    text: str
    command: str


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The data of one frame."""

    at: float
    where: str
    environment: str
    stats: Stats
    queues: list[Queue]
    workers: list[WorkerView]
    running: list[Task]
    explanations: dict[str, Explanation]
    people: list[Wait]

    def json(self) -> dict[str, Any]:
        """The snapshot as JSON."""
        return {
            "at": iso(self.at),
            "database": self.where,
            "environment": self.environment,
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
                    "why": why_json(self.explanations[task.task_id]),
                }
                for task in self.running
            ],
            "people": [dataclasses.asdict(wait) | {"since": iso(wait.since)} for wait in self.people],
        }


async def top(args: Namespace) -> int:
    """`onward top`."""
    screen, every = Screen(args), seconds(args.every, "--every")
    async with connect.open_backend(args) as backend:
        if screen.json:
            screen.document((await take_snapshot(backend)).json())
        elif args.once or not screen.live:
            width = screen.out.width if sys.stdout.isatty() else PLAIN_WIDTH
            for line in frame(screen.out, await take_snapshot(backend), width, 10_000, []):
                screen.out.print(line, soft_wrap=True)
        else:
            await _watch(screen, backend, max(every, 0.2))
    return 0


async def take_snapshot(backend: connect.Backend) -> Snapshot:
    """Read the data of a frame."""
    running, explanations, _ = await backend.list_explained(state=State.RUNNING, limit=MAX_TASKS)
    return Snapshot(
        at=time.time(),
        where=backend.where,
        environment=await backend.environment(),
        stats=await backend.stats(),
        queues=await backend.queues(),
        workers=await backend.workers(),
        running=running,
        explanations=explanations,
        people=await _person_waits(backend),
    )


async def _person_waits(backend: connect.Backend) -> list[Wait]:
    """The tasks that wait for a person, the longest waiting first."""
    asks = [
        Wait(
            ask.task_id,
            ask.task,
            ask.kind,
            ask.asked_at,
            ask.text,
            f"onward {'approve' if ask.kind == 'approval' else 'answer'} {connect.short_ask_id(ask.id)}",
        )
        for ask in await backend.asks(limit=MAX_TASKS)
    ]
    others = [
        Wait(task.task_id, task.task, reason, task.updated_at, words, f"onward {verb} {task.task_id[-8:]}")
        for reason, (words, verb) in _ACTIONS.items()
        for task in (await backend.list(reason=reason, limit=MAX_TASKS))[0]
    ]
    return sorted([*asks, *others], key=lambda wait: wait.since)


_ACTIONS = {
    Reason.IN_DOUBT: ("in doubt: did it happen?", "resolve"),
    Reason.BUDGET: ("its budget is spent", "budget"),
    Reason.PARKED: ("parked: code and journal disagree", "show"),
    Reason.QUARANTINED: ("quarantined: it took its workers down", "show"),
}
assert _ACTIONS.keys() | {Reason.APPROVAL, Reason.QUESTION} == ASKS_A_PERSON


# ── the frame ────────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(console: Console, snapshot: Snapshot, width: int, height: int, rates: Sequence[float]) -> list[Text]:
    """The lines of a frame, at most `width` wide and `height` high."""
    head = _head(console, snapshot, width, rates)
    room = height - len(head)
    if width >= TWO_COLUMNS_WIDTH:
        half = (width - 4) // 2
        left = _stacked([_queues(snapshot), _workers(snapshot)], half, room)
        right = _stacked([_people_rows(snapshot), _running(snapshot)], half, room)
        return [*head, *_beside(left, right, half)]
    return [
        *head,
        *_stacked([_people_rows(snapshot), _queues(snapshot), _workers(snapshot), _running(snapshot)], width, room),
    ]


def _head(console: Console, snapshot: Snapshot, width: int, rates: Sequence[float]) -> list[Text]:
    stats, alive = snapshot.stats, sum(worker.alive for worker in snapshot.workers)
    environment = f"  {safe(snapshot.environment)}" if snapshot.environment else ""
    first = Text.assemble(("onward top", "bold"), (environment, "bold"), (f"  {safe(snapshot.where)}", "dim"))
    at = clock(snapshot.at)
    first.truncate(width - len(at) - 2, overflow="ellipsis")
    first.pad_right(width - first.cell_len - len(at))
    first.append(at, "dim")
    running = stats.states[State.RUNNING]
    second = Text.assemble(
        (count(alive, "worker"), "" if alive else "bold red"),
        f" · {running:,} of {count(stats.slots, 'slot')} busy  ",
        meter(console, running, stats.slots, 12),
        f"  {stats.rate:.1f} tasks/s  ",
        (curve(console, rates), "cyan"),
    )
    third = Text()
    for state, tasks in stats.states.items():
        third.append_text(state_text(State(state)) if tasks else Text(state, "dim"))
        third.append(f" {tasks:,}", "bold" if tasks else "dim").append("   ")
    if not stats.exact:
        third.append("(or about that)", "dim")
    for line in (second, third):
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return [first, second, third]


def meter(console: Console, part: float, whole: float, width: int) -> Text:
    """A bar of `width` columns, filled to part / whole."""
    full = 0 if whole <= 0 else round(width * min(1.0, part / whole))
    full = max(full, 1) if part > 0 else full
    on, off = ("━", "─") if has_unicode(console) else ("=", "-")
    return Text.assemble((on * full, "cyan"), (off * (width - full), "bright_black"))


def curve(console: Console, rates: Sequence[float]) -> str:
    """The last rates as a curve of one line; empty if all are zero or the console has no Unicode."""
    if not has_unicode(console) or not any(rates):
        return ""
    highest = max(rates)
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * rate / highest))] for rate in rates)


Section = tuple[Sequence[Column], Sequence[Sequence[Text]], str]
"""Columns, rows, and the command that lists all of them."""


def _people_rows(snapshot: Snapshot) -> Section:
    rows = [
        (
            Text(safe(wait.command), "bold magenta"),
            Text(safe(wait.task)),
            Text(age(snapshot.at - wait.since), "dim"),
            Text(short(wait.text, 200), "dim"),
        )
        for wait in snapshot.people
    ]
    return PEOPLE, rows, "onward approvals · onward questions · onward list --state waiting"


def _queues(snapshot: Snapshot) -> Section:
    return QUEUES, [queue_cells(queue) for queue in snapshot.queues], "onward queues"


def _workers(snapshot: Snapshot) -> Section:
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
        for worker in snapshot.workers
    ]
    return WORKERS, rows, "onward workers"


def _running(snapshot: Snapshot) -> Section:
    rows = [
        (
            Text(task.task_id[-8:], "cyan"),
            Text(safe(task.task)),
            Text(safe(task.queue), "dim"),
            Text(age(snapshot.at - task.created_at), "dim"),
            Text(safe((task.worker or "")[-8:]), "dim"),
            Text(_activity(why, snapshot.at) if (why := snapshot.explanations.get(task.task_id)) else "", "dim"),
        )
        for task in snapshot.running
    ]
    return RUNNING, rows, "onward list --state running"


def _activity(explanation: Explanation, now: float) -> str:
    since = explanation.since
    return safe(explanation.text) + ("" if since is None else f", {age(now - since)}")


def _stacked(sections: Sequence[Section], width: int, room: int) -> list[Text]:
    """The tables one below the other. They share the height equally; lines that one does not need go to the others."""
    shown = [section for section in sections if section[1]]
    if not shown:
        return [Text(), Text("no unfinished tasks: onward submit NAME INPUT", "dim")]
    shares = _shares([len(rows) for _, rows, _ in shown], room - 2 * len(shown))
    lines: list[Text] = []
    for (columns, rows, more), share in zip(shown, shares, strict=True):
        if share < 1:
            continue
        cut = len(rows) > share
        lines += [Text(), *table(width, columns, rows[: share - 1 if cut else share])]
        if cut:
            note = Text(f"{len(rows) - share + 1:,} more: {more}", "dim")
            note.truncate(width, overflow="ellipsis")
            lines.append(note)
    return lines


def _shares(row_counts: Sequence[int], room: int) -> list[int]:
    """The number of lines for each table: equal, but no more than its rows."""
    shares = [0] * len(row_counts)
    for _ in range(max(room, 0)):
        unfilled = [index for index, rows in enumerate(row_counts) if shares[index] < rows]
        if not unfilled:
            break
        shares[min(unfilled, key=lambda index: shares[index])] += 1
    return shares


def _beside(left: list[Text], right: list[Text], half: int) -> list[Text]:
    lines = []
    for index in range(max(len(left), len(right))):
        line = left[index].copy() if index < len(left) else Text()
        line.pad_right(half - line.cell_len + 4)
        lines.append(line.append_text(right[index]) if index < len(right) else line)
    return lines


# ── the live screen ──────────────────────────────────────────────────────────────────────────────────────────────────


class _Page:
    """Draws the last snapshot in the current size of the terminal."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.rates: list[float] = []
        self.error = ""

    def __rich_console__(self, console: Console, _: object) -> Iterator[Text]:
        width, height = console.width, console.height
        foot = Text(self.error or QUIT, "red" if self.error else "dim", no_wrap=True, overflow="ellipsis")
        lines = [] if self.snapshot is None else frame(console, self.snapshot, width, height - 1, self.rates)
        lines = [*lines[: height - 1], *[Text()] * (height - 1 - len(lines)), foot]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        yield Text("\n", no_wrap=True, overflow="ignore", end="").join(lines)


async def _watch(screen: Screen, backend: connect.Backend, every: float) -> None:
    page, quit_, resized = _Page(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    with _quit_key(quit_), _on_resize(resized), Live(page, console=screen.out, screen=True, auto_refresh=False) as live:
        while not quit_.is_set():
            await _update(backend, page)
            live.refresh()
            end = loop.time() + every
            while not quit_.is_set() and (left := end - loop.time()) > 0:
                resized.clear()
                await _wait_any(left, quit_, resized)
                live.refresh() if resized.is_set() else None


async def _update(backend: connect.Backend, page: _Page) -> None:
    """Take a snapshot. While the database cannot be reached, the last one stays, with the error."""
    try:
        page.snapshot, page.error = await take_snapshot(backend), ""
        page.rates = [*page.rates, page.snapshot.stats.rate][-MAX_RATES:]
    except OnwardError as error:
        page.error = short(f"{error}; tried again shortly · {QUIT}", 400)


async def _wait_any(timeout: float, *events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


@contextlib.contextmanager
def _on_resize(resized: asyncio.Event) -> Iterator[None]:
    """Set the event when the terminal gets another size. Windows has no signal for it: the next frame has the new size."""
    if not hasattr(signal, "SIGWINCH"):
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _quit_key(quit_: asyncio.Event) -> Iterator[None]:
    """Set the event when the user types q. Restores the terminal at the end. On Windows Ctrl-C ends it."""
    try:
        import termios  # noqa: PLC0415 -- not on Windows
        import tty  # noqa: PLC0415
    except ImportError:
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def on_key() -> None:
        if not (typed := os.read(stdin, 64)) or b"q" in typed.lower():
            quit_.set()

    tty.setcbreak(stdin)
    loop.add_reader(stdin, on_key)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
