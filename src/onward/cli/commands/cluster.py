"""queues, workers, stats: what the place as a whole is doing, and queues that are paused."""

from __future__ import annotations

import asyncio
import math
import time
from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect as door
from onward.cli.args.parser import FOREVER
from onward.cli.output.screen import Screen, facts, indented
from onward.cli.output.table import Column, fixed, number, print_table
from onward.cli.output.text import age, count, safe, span
from onward.core.durations import seconds
from onward.core.views import Queue, WorkerView
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

GLANCE = 0.2
"""Seconds between two looks at a queue that is drained."""


async def queues(args: Namespace) -> int:
    """`onward queues`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        found = await app.queues()
    if screen.json:
        screen.document({"queues": [queue_json(queue) for queue in found]})
    elif found:
        _print_queues(screen, found)
    else:
        screen.aside("nothing is unfinished, and no queue is paused or has a limit")
    return 0


def _print_queues(screen: Screen, found: list[Queue]) -> None:
    rows = [
        (
            Text(safe(queue.name)),
            Text("paused", "yellow") if queue.paused else Text("open", "dim"),
            Text(f"{queue.waiting:,}"),
            Text(f"{queue.running:,}" + ("" if queue.limit is None else f" of {queue.limit:,}")),
            Text("" if queue.oldest_s is None else age(queue.oldest_s), "dim"),
            Text(_others(queue), "dim"),
        )
        for queue in found
    ]
    print_table(screen.out, QUEUES, rows)


def _others(queue: Queue) -> str:
    rest = {reason: many for reason, many in queue.reasons.items() if reason not in READY and reason != "running"}
    return ", ".join(f"{many:,} {safe(reason).replace('_', ' ')}" for reason, many in sorted(rest.items()))


async def pause(args: Namespace) -> int:
    """`onward queues pause`."""
    screen = Screen(args)
    async with door.app_of(args) as app:  # also where nobody has submitted anything yet
        queue = await app.pause_queue(args.name)
    runs = (
        f"; {count(queue.running, 'task')} of it {'goes' if queue.running == 1 else 'go'} on" if queue.running else ""
    )
    return _changed(screen, queue, f"is paused until: onward queues unpause {safe(queue.name)}{runs}")


async def unpause(args: Namespace) -> int:
    """`onward queues unpause`."""
    screen = Screen(args)
    async with door.app_of(args) as app:  # also where nobody has submitted anything yet
        queue = await app.unpause_queue(args.name)
    return _changed(screen, queue, f"goes on; {count(queue.waiting, 'task')} waiting")


async def drain(args: Namespace) -> int:
    """`onward queues drain`."""
    screen = Screen(args)
    patience = math.inf if args.wait in (None, FOREVER) else seconds(args.wait, "--wait")
    async with door.app_of(args) as app:
        queue = await app.pause_queue(args.name)
        end = time.monotonic() + patience
        while args.wait is not None and queue.running and time.monotonic() < end:
            await asyncio.sleep(GLANCE)
            queue = await app.service.cluster.queue(args.name)
    still = f"{count(queue.running, 'task')} of it still {'runs' if queue.running == 1 else 'run'}"
    what = still if queue.running else "nothing of it runs any more"
    _changed(screen, queue, f"is paused, and {what}; `onward queues unpause {safe(queue.name)}` lets it go on")
    return ResultTimeout.exit_status if args.wait is not None and queue.running else 0


def _changed(screen: Screen, queue: Queue, what: str) -> int:
    if screen.json:
        screen.document(queue_json(queue))
    else:
        screen.say(f"queue {safe(queue.name)} {what}")
    return 0


async def workers(args: Namespace) -> int:
    """`onward workers`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        found = await app.workers()
    if screen.json:
        screen.document({"workers": [worker_json(worker) for worker in found]})
    elif found:
        _print_workers(screen, found)
    else:
        screen.aside("no workers; start one with `onward worker MODULE:APP`")
    return 0


def _print_workers(screen: Screen, found: list[WorkerView]) -> None:
    length = 26 if screen.out.width >= door.ROOM_FOR_WHOLE_IDS else 8
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
        for worker in found
    ]
    print_table(screen.out, WORKERS, rows)


async def stats(args: Namespace) -> int:
    """`onward stats`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        found = await app.stats()
    if screen.json:
        screen.document(stats_json(found))
        return 0
    about = "" if found.exact else " or about that"
    people = count(found.people, "task")
    screen.block(
        indented(
            facts(
                [
                    *[
                        (state, f"{many:,}{about if state == 'completed' else ''}")
                        for state, many in found.states.items()
                    ],
                    ("reasons", ", ".join(f"{many:,} {safe(name)}" for name, many in found.reasons.items()) or None),
                    ("people", f"{people} {'waits' if found.people == 1 else 'wait'} for a person"),
                    ("workers", f"{found.workers:,} with {count(found.slots, 'slot')}, {found.rate:.1f} tasks/s"),
                ]
            )
        )
    )
    return 0
