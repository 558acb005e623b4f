"""The way from arguments to an open app, and from a shortened id to a whole one: of a task, a question, an approval."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

from onward.app import Onward
from onward.cli.loading import load
from onward.cli.text import count, safe
from onward.errors import NotFound, TaskNotFound, UsageError
from onward.messages import Ask
from onward.service import Service
from onward.store.port import Store
from onward.store.sqlite import SqliteStore
from onward.store.sqlite_file import MEMORY

WHOLE = 26
"""The length of an id."""

ROOM_FOR_WHOLE_IDS = 100
"""Columns from which on a table has room for whole ids; below it shows their last eight characters."""

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


# ── questions and approvals ──────────────────────────────────────────────────────────────────────────────────────────


async def whole_ask(app: Onward, given: str | None, kind: str, command: str) -> Ask:
    """The question or approval that is meant: by its id, whose first part may be shortened; by its task, when that has one
    that is open; without a word, the only one that is open. `command` is for the sentence that says what to do."""
    if given is not None and "." in given:
        task, _, number = given.strip().rpartition(".")
        try:
            task_id = await whole_id(app.service, task)
        except TaskNotFound:
            raise NotFound(f"there is no {kind} {given!r}; `onward {kind}s` lists those that are open") from None
        return await app.service.messages.ask(f"{task_id}.{number}")
    asks = await app.asks(kind)
    if given is not None:
        task_id = await whole_id(app.service, given)
        asks = [ask for ask in asks if ask.task_id == task_id]
    if not asks:
        whose = "" if given is None else f" of task {given!r}"
        raise NotFound(f"no {kind}{whose} is open; `onward {kind}s` lists those that are, `onward list` the tasks")
    if len(asks) > 1:
        some = ", ".join(f"{command} {short_ask(ask.id)} ({safe(ask.text):.40})" for ask in asks[:3])
        more = f", … (`onward {kind}s` lists all)" if len(asks) > 3 else ""
        raise UsageError(f"{count(len(asks), kind)} are open, say which: {some}{more}")
    return asks[0]


def short_ask(ask_id: str) -> str:
    """The id of a question or an approval, short enough to type."""
    task, _, number = ask_id.rpartition(".")
    return f"{task[-8:]}.{number}"
