"""migrate and doctor: whether the database, the clock, the workers and the queues are well."""

from __future__ import annotations

import collections
import dataclasses
import time
from argparse import Namespace

from rich.text import Text

from onward.app import Onward
from onward.cli import door
from onward.cli.screen import Screen, indented, sign, verdicts
from onward.cli.text import count, safe
from onward.cli.timeline import Mark
from onward.core.task import ASKS_A_PERSON, State
from onward.errors import SchemaMismatch, StoreUnavailable
from onward.place import Queue
from onward.store.port import WorkerRow
from onward.store.sqlite_file import MEMORY

WRONG = 1
SKEW = 2.0
"""Seconds by which this machine's clock may differ from the database's. Leases do not mind; people who compare times do."""

LOOK = 1000
"""Tasks that are looked at to learn which queues there are and what waits for a person."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `fine` is None for what is neither right nor wrong but worth knowing."""

    name: str
    fine: bool | None
    detail: str


async def migrate(args: Namespace) -> int:
    """`onward migrate`."""
    screen, store = Screen(args), door.app_of(args).store
    try:
        await store.open(migrate=False)
        behind = False
    except SchemaMismatch:
        await store.open(migrate=True)
        behind = True
    try:
        version, _ = await store.version()
    finally:
        await store.close()
    if screen.json:
        screen.document({"database": store.where, "version": version, "migrated": behind})
    else:
        done = "is now up to date" if behind else "was up to date already"
        screen.say(f"{safe(store.where)} {done}: table version {version}")
    return 0


async def doctor(args: Namespace) -> int:
    """`onward doctor`."""
    screen, app = Screen(args), door.app_of(args)
    where, status = app.store.where, 0
    try:
        checks = await _examine(app)
    except StoreUnavailable as error:
        checks, status = [Check("database", False, str(error))], error.exit_status
    if any(check.fine is False for check in checks):
        status = status or WRONG
    if screen.json:
        screen.document(
            {
                "database": where,
                "fine": status == 0,
                "checks": [
                    {"name": check.name, "fine": check.fine is not False, "detail": check.detail} for check in checks
                ],
            }
        )
    else:
        _print(screen, where, checks)
    return status


def _print(screen: Screen, where: str, checks: list[Check]) -> None:
    marks = {True: Mark.DONE, False: Mark.FAILED, None: Mark.NOTE}
    screen.say((safe(where), "bold"))
    grid = verdicts()
    for check in checks:
        mark, style = sign(screen.out, marks[check.fine])
        loud = style if check.fine is False else ""
        grid.add_row(Text(mark, style), Text(safe(check.name), loud), Text(safe(check.detail), loud or "dim"))
    screen.block(indented(grid))


async def _examine(app: Onward) -> list[Check]:
    if door.missing(app.store):
        note = Check(
            "database", None, "the file is not there yet; the first submit, worker or `onward migrate` makes it"
        )
        app = Onward(f"sqlite://{MEMORY}")
        async with app:
            return [note, *(Check(*entry) for entry in await app.store.doctor() if entry[0] == "SQLite library")]
    await app.open(migrate=False)
    try:
        return [
            *(Check(*entry) for entry in await app.store.doctor()),
            await _tables(app),
            await _clock(app),
            await _census(app),
            await _persons(app),
            *await _workers_and_queues(app),
        ]
    finally:
        await app.close()


async def _tables(app: Onward) -> Check:
    there, ours = await app.store.version()
    return Check("tables", there == ours, f"version {there} (this program: {ours})")


async def _clock(app: Onward) -> Check:
    sent = time.time()
    beat = await app.store.beat("", 0.0, 0.0)  # of no worker: it changes nothing, and the answer has the time
    skew = beat.now - (sent + time.time()) / 2
    return Check("clock", abs(skew) <= SKEW, f"{abs(skew):.2f} s {'ahead of' if skew < 0 else 'behind'} the database's")


async def _census(app: Onward) -> Check:
    faults = await app.store.census()
    some = "; ".join(f"{task_id} {fault}" for task_id, fault in faults[:3])
    more = f" and {len(faults) - 3:,} more" if len(faults) > 3 else ""
    return Check("tasks", not faults, f"{some}{more}" if faults else "none is stuck")


async def _persons(app: Onward) -> Check:
    waiting, more = await app.list(state=State.WAITING, limit=LOOK)
    reasons = collections.Counter(str(task.reason) for task in waiting if task.reason in ASKS_A_PERSON)
    if not reasons:
        return Check("people", True, "no task waits for a person")
    number = reasons.total()
    some = f"{number:,} or more tasks wait" if more else f"{count(number, 'task')} {'waits' if number == 1 else 'wait'}"
    told = ", ".join(f"{many:,} {reason}" for reason, many in sorted(reasons.items()))
    return Check("people", None, f"{some} for a person ({told}): onward list --state waiting")


async def _workers_and_queues(app: Onward) -> list[Check]:
    now = time.time()
    rows = await app.store.workers()
    alive = [row for row in rows if row.lease_until > now]
    queues = {queue.name: queue for queue in (await app.service.place.queue("default"), *await app.queues())}
    return [
        _workers(alive, len(rows) - len(alive), sum(queue.waiting for queue in queues.values())),
        *(_queue(queues[name], app.settings.queue_limit) for name in sorted(queues)),
    ]


def _workers(alive: list[WorkerRow], gone: int, waiting: int) -> Check:
    dead = f"; {count(gone, 'lease')} ended and not cleared up yet" if gone else ""
    if not alive:
        asked = f"{count(waiting, 'task')} waiting, and " if waiting else ""
        return Check("workers", False if waiting else None, f"{asked}none is running: onward worker MODULE:APP{dead}")
    slots, rate = sum(row.slots for row in alive), sum(row.rate for row in alive)
    hosts = ", ".join(sorted({f"{row.host} (pid {row.pid})" for row in alive})[:3])
    return Check("workers", True, f"{len(alive)} alive, {count(slots, 'slot')}, {rate:.1f} tasks/s: {hosts}{dead}")


def _queue(queue: Queue, limit: int) -> Check:
    full = f" of {limit:,}; more workers, or a higher ONWARD_QUEUE_LIMIT" if queue.waiting > limit * 0.9 else ""
    told = f"{count(queue.waiting, 'task')} waiting{full}"
    if queue.paused:
        return Check(f"queue {queue.name}", None, f"paused, {told}: onward queues unpause {queue.name}")
    return Check(f"queue {queue.name}", not full, told)
