"""locks: list locks, and take them from holders that are stuck."""

from __future__ import annotations

from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed
from onward.cli.output.text import safe
from onward.core.lock import Lock, LockHolder
from onward.core.text import clock, count
from onward.core.view_json import to_json

COLUMNS = (
    Column("LOCK"),
    Column("TENANT", drop=3),
    fixed("TOKEN"),
    Column("HOLDER"),
    fixed("SINCE"),
    fixed("WAITING"),
    Column("NEXT", drop=1),
    Column("COORDINATOR", drop=2),
)


async def list_locks(args: Namespace) -> int:
    """`onward locks`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        locks, cursor = await backend.locks(1000)
        while cursor is not None:
            page, cursor = await backend.locks(1000, cursor)
            locks += page
    empty = "no lock is held: `async with ctx.lock(NAME)` in a handler takes one"
    return screen.table({"locks": [to_json(lock) for lock in locks]}, COLUMNS, [_row(lock) for lock in locks], empty)


async def release(args: Namespace) -> int:
    """`onward locks release`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        lock = await backend.release_lock(args.name, args.reason, args.tenant)
    return screen.table(to_json(lock), COLUMNS, [_row(lock)], "")


def _row(lock: Lock) -> tuple[Text, ...]:
    return (
        Text(safe(lock.name)),
        Text(safe(lock.tenant or "–"), "" if lock.tenant else "dim"),
        Text("–" if lock.token is None else str(lock.token)),
        Text("free" if lock.holder is None else _name(lock.holder)),
        Text("–" if lock.holder is None else clock(lock.holder.since)),
        Text(count(lock.waiting, "waiter") if lock.waiting else "–"),
        Text(_name(lock.waiters[0]) if lock.waiters else "–"),
        Text(lock.coordinator, "dim"),
    )


def _name(holder: LockHolder) -> str:
    """A task by its short id, a program by its name."""
    return f"task {holder.task_id[-8:]}" if holder.task_id else safe(holder.holder)
