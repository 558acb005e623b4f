"""queues, workers, stats: the state of the whole cluster; pause, unpause and drain queues."""

from __future__ import annotations

import asyncio
import math
import time
from argparse import Namespace
from collections.abc import Sequence

from rich.text import Text

from onward.cli.args import connect
from onward.cli.args.parser import FOREVER
from onward.cli.output.screen import Screen, facts, indented
from onward.cli.output.table import Column, fixed, number
from onward.cli.output.text import age, count, safe, span
from onward.core.durations import seconds
from onward.core.task import Reason
from onward.core.view_json import to_json
from onward.core.views import CodeVersion, Queue
from onward.errors import ResultTimeout
from onward.service.cluster import READY
from onward.service.serialize import queue_json, stats_json, worker_json

QUEUES = (
    Column("QUEUE"),
    fixed("STATE"),
    number("WAITING"),
    number("RUNNING"),
    number("OLDEST", drop=1),
    Column("", drop=2),
)
WORKERS = (
    fixed("ID"),
    Column("HOST, PID", drop=2),
    number("RUNNING"),
    number("RATE", drop=3),
    fixed("LEASE"),
    Column("QUEUES", drop=1),
    Column("HANDLERS"),
)

VERSIONS = (
    Column("VERSION"),
    fixed("STARTED", drop=2),
    number("WORKERS"),
    number("RUNNING"),
    number("WAITING"),
    number("PARKED"),
    Column("", drop=1),
)

DRAIN_POLL_S = 0.2
"""Time between two looks at a queue that drains."""


async def queues(args: Namespace) -> int:
    """`onward queues`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        snapshots = await connect.everything(backend.queues)
    document = {"queues": [queue_json(queue) for queue in snapshots]}
    empty = "no unfinished tasks, and no queue is paused or has a limit"
    return screen.table(document, QUEUES, [queue_cells(queue) for queue in snapshots], empty)


def queue_cells(queue: Queue) -> tuple[Text, ...]:
    """The row of a queue. Its last cell counts the tasks that are neither ready nor running, by reason."""
    others = {reason: n for reason, n in queue.reasons.items() if reason not in READY and reason != Reason.RUNNING}
    words = ", ".join(f"{n:,} {safe(reason).replace('_', ' ')}" for reason, n in sorted(others.items()))
    return (
        Text(safe(queue.name)),
        Text("paused", "yellow") if queue.paused else Text("open", "dim"),
        Text(f"{queue.waiting:,}"),
        Text(f"{queue.running:,}" + ("" if queue.limit is None else f" of {queue.limit:,}")),
        Text("" if queue.oldest_s is None else age(queue.oldest_s), "dim"),
        Text(words, "dim"),
    )


async def pause(args: Namespace) -> int:
    """`onward queues pause`."""
    screen = Screen(args)
    async with connect.open_backend(args, create=True) as backend:  # works also before the first submit
        queue = await backend.pause_queue(args.name)
    running = (
        f"; {count(queue.running, 'task')} of it {'goes' if queue.running == 1 else 'go'} on" if queue.running else ""
    )
    return _print_change(screen, queue, f"is paused until: onward queues unpause {safe(queue.name)}{running}")


async def unpause(args: Namespace) -> int:
    """`onward queues unpause`."""
    screen = Screen(args)
    async with connect.open_backend(args, create=True) as backend:  # works also before the first submit
        queue = await backend.unpause_queue(args.name)
    return _print_change(screen, queue, f"goes on; {count(queue.waiting, 'task')} waiting")


async def drain(args: Namespace) -> int:
    """`onward queues drain`."""
    screen = Screen(args)
    timeout = math.inf if args.wait in (None, FOREVER) else seconds(args.wait, "--wait")
    async with connect.open_backend(args, create=True) as backend:
        queue = await backend.pause_queue(args.name)
        end = time.monotonic() + timeout
        while args.wait is not None and queue.running and time.monotonic() < end:
            await asyncio.sleep(DRAIN_POLL_S)
            queue = await backend.queue(args.name)
    still = f"{count(queue.running, 'task')} of it still {'runs' if queue.running == 1 else 'run'}"
    rest = still if queue.running else "none of its tasks runs any more"
    _print_change(screen, queue, f"is paused, and {rest}; `onward queues unpause {safe(queue.name)}` lets it go on")
    return ResultTimeout.exit_status if args.wait is not None and queue.running else 0


def _print_change(screen: Screen, queue: Queue, change: str) -> int:
    if screen.json:
        screen.document(queue_json(queue))
    else:
        screen.say(f"queue {safe(queue.name)} {change}")
    return 0


async def workers(args: Namespace) -> int:
    """`onward workers`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        views = await connect.everything(backend.workers)
    length = 26 if screen.out.width >= connect.FULL_ID_WIDTH else 8
    rows = [
        (
            Text(worker.id[-length:]),
            Text(safe(f"{worker.host} {worker.pid}")),
            Text(f"{worker.running:,} of {worker.slots:,}"),
            Text(f"{worker.rate:.1f}/s"),
            Text(f"{span(worker.lease_s)} left") if worker.alive else Text(f"ended {age(-worker.lease_s)} ago", "red"),
            Text(safe(", ".join(worker.queues)) or "all", "dim"),
            Text(safe(", ".join(worker.handlers)), "dim"),
        )
        for worker in views
    ]
    document = {"workers": [worker_json(worker) for worker in views]}
    return screen.table(document, WORKERS, rows, "no workers; start one with `onward worker MODULE:APP`")


async def versions(args: Namespace) -> int:
    """`onward versions`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        views = await backend.versions()
    now = time.time()
    rows = [
        (
            Text(safe(view.version) or "not recorded"),
            Text("" if view.started_at is None else f"{age(now - view.started_at)} ago", "dim"),
            Text(f"{view.workers:,}"),
            *[Text(f"{tasks:,}") for tasks in (view.running, view.waiting, view.parked)],
            _advice(view, views),
        )
        for view in views
    ]
    document = {"versions": [to_json(view) for view in views]}
    return screen.table(document, VERSIONS, rows, "no workers, and no unfinished task was ever started")


def _advice(view: CodeVersion, views: Sequence[CodeVersion]) -> Text:
    """What the tasks of a version need. A version that no begun task needs may be the one that was just deployed, or the only one that has
    some handlers, so the advice does not say that its workers can go."""
    if view.parked:
        return Text("parked tasks need this code, or other code that fits them; then: onward resume", "yellow")
    others_live = any(other.workers for other in views if other is not view)
    if not view.workers:
        return Text(
            "other code goes on with its tasks" if others_live else "no worker lives: onward worker MODULE:APP", "dim"
        )
    if not others_live:
        return Text("")
    newest = max(views, key=lambda other: other.started_at or 0) is view and view.started_at is not None
    head = "newest: its workers started last; " if newest else ""
    if view.running or view.waiting:
        return Text(f"{head}onward check with the other code says whether its tasks need it", "dim")
    return Text(f"{head}no task that has begun needs it", "dim" if newest else "green")


async def stats(args: Namespace) -> int:
    """`onward stats`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        figures = await backend.stats()
    if screen.json:
        screen.document(stats_json(figures))
        return 0
    about = "" if figures.exact else " or about that"
    people = count(figures.people, "task")
    screen.block(
        indented(
            facts(
                [
                    *[(state, f"{n:,}{about if state == 'completed' else ''}") for state, n in figures.states.items()],
                    ("reasons", ", ".join(f"{n:,} {safe(name)}" for name, n in figures.reasons.items()) or None),
                    ("people", f"{people} {'waits' if figures.people == 1 else 'wait'} for a person"),
                    ("workers", f"{figures.workers:,} with {count(figures.slots, 'slot')}, {figures.rate:.1f} tasks/s"),
                ]
            )
        )
    )
    return 0
