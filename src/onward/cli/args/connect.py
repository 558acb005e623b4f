"""The way from arguments to an open app, and from a shortened id to a whole one: of a task, a question, an approval."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from onward.app.application import Onward
from onward.cli.args.loading import load
from onward.cli.output.text import count, safe
from onward.core.task import Tasks
from onward.core.views import Ask
from onward.errors import NotFound, OnwardError, TaskNotFound, UsageError
from onward.service.service import Service
from onward.store.port.core import Store
from onward.store.sqlite.file import MEMORY
from onward.store.sqlite.store import SqliteStore

WHOLE = 26
"""The length of an id."""

ROOM_FOR_WHOLE_IDS = 100
"""Columns from which on a table has room for whole ids; below it shows their last eight characters."""

PAGE = 1000
SHOWN = 5
"""Candidates that are named for an id that is too short."""

PAGES = 10
"""Pages of tasks that have what was given in them somewhere, newest first, that are searched for an id which ends so."""


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
        sys.stderr.write(
            f"onward: there is no {safe(app.store.where)} yet, so there are no tasks; a worker or a submit makes it, --db or ONWARD_DB names another\n"
        )
        app = Onward(f"sqlite://{MEMORY}")
    async with app:
        yield app


def missing(store: Store) -> bool:
    """Whether this is a file that could be there and is not."""
    if not isinstance(store, SqliteStore) or store.path == MEMORY:
        return False
    path = Path(store.path)
    return not path.exists() and path.parent.is_dir()


class Ambiguous(UsageError):
    """What was given of an id fits more than one thing; `candidates` are their whole ids, at most five."""

    code = "ambiguous"

    def __init__(self, given: str, things: str, candidates: Sequence[tuple[str, str]], *, more: bool = False) -> None:
        self.candidates = [found for found, _ in candidates[:SHOWN]]
        told = ", ".join(f"{found} ({safe(about)})" if about else found for found, about in candidates[:SHOWN])
        rest = ", …" if more or len(candidates) > SHOWN else ""
        super().__init__(f"{given!r:.80} fits more than one {things}: {told}{rest}; give more of the id")


async def whole_id(service: Service, given: str) -> str:
    """The id that is meant: an id, or the first or last characters of exactly one."""
    wanted = given.strip().lower()
    if not wanted.isascii() or not wanted.isalnum():
        raise TaskNotFound(given)
    if len(wanted) >= WHOLE:
        return wanted
    tasks = [*await _beginning(service, wanted), *await _ending(service, wanted)]
    found = {task.task_id: f"{task.task}, {task.state}" for task in tasks}
    if not found:
        raise TaskNotFound(given)
    if len(found) > 1:
        raise Ambiguous(given, "task", sorted(found.items(), reverse=True))
    return next(iter(found))


async def _beginning(service: Service, wanted: str) -> Tasks:
    """Ids sort as text, so those with this beginning come right below its end ("~" is behind every character of an id)."""
    page, _ = await service.list(cursor=f"{wanted}~", limit=SHOWN + 1)
    return [task for task in page if task.task_id.startswith(wanted)]


async def _ending(service: Service, wanted: str) -> Tasks:
    found: Tasks = []
    cursor: str | None = None
    for _ in range(PAGES):
        page, cursor = await service.list(text=wanted, cursor=cursor, limit=PAGE)
        found += [task for task in page if task.task_id.endswith(wanted)]
        if cursor is None or len(found) > SHOWN:
            break
    return found


def one_of(given: str, things: str, found: Sequence[tuple[str, str]], lost: OnwardError) -> str:
    """The id among these that has this beginning or end."""
    wanted = given.strip().lower()
    fits = [one for one in found if wanted and (one[0].lower().startswith(wanted) or one[0].lower().endswith(wanted))]
    fits = [one for one in fits if one[0].lower() == wanted] or fits
    if not fits:
        raise lost
    if len(fits) > 1:
        raise Ambiguous(given, things, fits)
    return fits[0][0]


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
