"""The way from arguments to an open app, and from a shortened id to a whole one."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

from onward.app import Onward
from onward.cli.loading import load
from onward.errors import TaskNotFound, UsageError
from onward.service import Service
from onward.store.port import Store
from onward.store.sqlite import SqliteStore
from onward.store.sqlite_file import MEMORY

WHOLE = 26
"""The length of an id."""

PAGE = 1000
RECENT = 10_000
"""How many tasks, newest first, are searched for an id that ends in what was given."""


def app_of(args: Namespace) -> Onward:
    """The app that was named, or one without handlers on the database that was named."""
    target = getattr(args, "app", None)
    return load(target, args.db) if target else Onward(args.db)


@contextlib.asynccontextmanager
async def opened(args: Namespace) -> AsyncIterator[Onward]:
    """An open app, for a command that only looks at or steers what is there. A SQLite file that does not exist is not made
    by looking at it: it has no tasks."""
    app = app_of(args)
    if missing(app.store):
        app = Onward(f"sqlite://{MEMORY}")
    async with app:
        yield app


def missing(store: Store) -> bool:
    """Whether this is a file that could be there and is not."""
    if not isinstance(store, SqliteStore) or store.path == MEMORY:
        return False
    path = Path(store.path)
    return not path.exists() and path.parent.is_dir()


async def whole_id(service: Service, given: str) -> str:
    """The id that is meant: an id, or the first or last characters of exactly one."""
    wanted = given.strip().lower()
    if not wanted.isascii() or not wanted.isalnum():
        raise TaskNotFound(given)
    if len(wanted) >= WHOLE:
        return wanted
    found = {*await _beginning(service, wanted), *await _ending(service, wanted)}
    if not found:
        raise TaskNotFound(given)
    if len(found) > 1:
        some = ", ".join(sorted(found)[:3])
        raise UsageError(
            f"{given!r} fits more than one task ({some}{', …' if len(found) > 3 else ''}); give more of the id"
        )
    return found.pop()


async def _beginning(service: Service, wanted: str) -> list[str]:
    """Ids sort as text, so those with this beginning come right below its end ("~" is behind every character of an id)."""
    page, _ = await service.list(cursor=f"{wanted}~", limit=4)
    return [task.task_id for task in page if task.task_id.startswith(wanted)]


async def _ending(service: Service, wanted: str) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    for _ in range(RECENT // PAGE):
        page, cursor = await service.list(cursor=cursor, limit=PAGE)
        found += [task.task_id for task in page if task.task_id.endswith(wanted)]
        if cursor is None or len(found) > 3:
            break
    return found
