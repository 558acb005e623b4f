"""Opens the database or the server that the arguments name, and resolves shortened ids of tasks, questions and approvals."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from onward.app.application import Onward
from onward.cli.args.loading import load
from onward.cli.backend import target
from onward.cli.backend.local import LocalBackend
from onward.cli.output.text import count, safe
from onward.core.page import Page, every_item
from onward.core.task import Tasks
from onward.core.views import Ask
from onward.errors import NotFound, OnwardError, TaskNotFound, UsageError
from onward.store.port.core import Store
from onward.store.sqlite.file import MEMORY
from onward.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from onward.cli.backend.remote import RemoteBackend

T = TypeVar("T")
Backend: TypeAlias = "LocalBackend | RemoteBackend"
"""What the commands ask. mypy holds that both have each verb that a command calls, with these arguments and results."""

ID_LENGTH = 26

FULL_ID_WIDTH = 100
"""Columns of a terminal from which on tables show whole ids; a narrower one gets their last eight characters."""

PAGE_SIZE = 1000
MAX_CANDIDATES = 5
"""Ids that the error about an ambiguous id lists."""

MAX_PAGES = 10
"""Pages that the search for the end of an id reads: tasks that contain the given characters anywhere, newest first."""


@contextlib.asynccontextmanager
async def open_backend(args: Namespace, *, create: bool = False) -> AsyncIterator[Backend]:
    """What a command asks: the server of --url, or the database. With `create`, a SQLite file that does not exist is made."""
    server = target.server(args)
    if server is None:
        async with load_app(args) if create else open_app(args) as app:
            yield LocalBackend(app)
        return
    if getattr(args, "app", None) is not None:
        raise UsageError("--app does not go with a server, which checks values itself; leave out --app, or give --db")
    from onward.cli.backend.remote import open_remote  # noqa: PLC0415 -- an extra

    async with open_remote(server) as remote:
        yield remote


async def everything(read: Callable[..., Awaitable[Page[T]]]) -> list[T]:
    """The items of all pages of a verb of the backend."""
    return await every_item(lambda cursor: read(cursor=cursor))


def load_app(args: Namespace) -> Onward:
    """The app of the argument MODULE:APP, or an app without handlers on the database of --db."""
    target = getattr(args, "app", None)
    return load(target, args.db) if target else Onward(args.db)


@contextlib.asynccontextmanager
async def open_app(args: Namespace) -> AsyncIterator[Onward]:
    """Open the app for a command that reads or changes existing tasks. Such a command does not create a missing SQLite file: it
    finds no tasks."""
    app = load_app(args)
    if file_missing(app.store):
        sys.stderr.write(
            f"onward: there is no {safe(app.store.where)} yet, so there are no tasks; a worker or a submit creates it, --db or ONWARD_DB names another\n"
        )
        app = Onward(f"sqlite://{MEMORY}")
    async with app:
        yield app


def file_missing(store: Store) -> bool:
    """Whether the store is a SQLite file that does not exist yet, in a folder that does."""
    if not isinstance(store, SqliteStore) or store.path == MEMORY:
        return False
    path = Path(store.path)
    return not path.exists() and path.parent.is_dir()


class Ambiguous(UsageError):
    """The given characters match more than one id; `candidates` are the whole ids, at most five."""

    code = "ambiguous"

    def __init__(self, given: str, things: str, candidates: Sequence[tuple[str, str]], *, more: bool = False) -> None:
        listed = candidates[:MAX_CANDIDATES]
        self.candidates = [candidate for candidate, _ in listed]
        names = ", ".join(f"{candidate} ({safe(about)})" if about else candidate for candidate, about in listed)
        rest = ", …" if more or len(candidates) > MAX_CANDIDATES else ""
        super().__init__(f"{given!r:.80} fits more than one {things}: {names}{rest}; give more of the id")


async def resolve_task_id(backend: Backend, given: str) -> str:
    """The whole task id for an id, or for the first or last characters of exactly one."""
    part = given.strip().lower()
    if not part.isascii() or not part.isalnum():
        raise TaskNotFound(given)
    if len(part) >= ID_LENGTH:
        return part
    tasks = [*await _starting_with(backend, part), *await _ending_with(backend, part)]
    matches = {task.task_id: f"{task.task}, {task.state}" for task in tasks}
    if not matches:
        raise TaskNotFound(given)
    if len(matches) > 1:
        raise Ambiguous(given, "task", sorted(matches.items(), reverse=True))
    return next(iter(matches))


async def _starting_with(backend: Backend, part: str) -> Tasks:
    """The newest tasks whose ids start with this. Ids sort as strings, and "~" sorts behind every character of an id."""
    page, _ = await backend.list(cursor=f"{part}~", limit=MAX_CANDIDATES + 1, brief=True)
    return [task for task in page if task.task_id.startswith(part)]


async def _ending_with(backend: Backend, part: str) -> Tasks:
    matches: Tasks = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page, cursor = await backend.list(text=part, cursor=cursor, limit=PAGE_SIZE, brief=True)
        matches += [task for task in page if task.task_id.endswith(part)]
        if cursor is None or len(matches) > MAX_CANDIDATES:
            break
    return matches


def match_id(given: str, things: str, ids: Sequence[tuple[str, str]], not_found: OnwardError) -> str:
    """The only one of these ids that starts or ends with `given`. Each id comes with a few words about it."""
    part = given.strip().lower()
    fits = [pair for pair in ids if part and (pair[0].lower().startswith(part) or pair[0].lower().endswith(part))]
    fits = [pair for pair in fits if pair[0].lower() == part] or fits
    if not fits:
        raise not_found
    if len(fits) > 1:
        raise Ambiguous(given, things, fits)
    return fits[0][0]


# ── questions and approvals ──────────────────────────────────────────────────────────────────────────────────────────


async def resolve_ask(backend: Backend, given: str | None, kind: str, command: str) -> Ask:
    """The question or approval of this id, whose first part may be shortened; or the only open one of the task of this id; or,
    without an id, the only open one of all. The error message uses `command` to say what to type."""
    if given is not None and "." in given:
        task, _, number = given.strip().rpartition(".")
        try:
            task_id = await resolve_task_id(backend, task)
        except TaskNotFound:
            raise NotFound(f"there is no {kind} {given!r}; `onward {kind}s` lists those that are open") from None
        return await backend.ask(f"{task_id}.{number}")
    if given is None:
        asks = await backend.asks(kind)
    else:
        try:
            task_id = await resolve_task_id(backend, given)
        except TaskNotFound:
            raise NotFound(
                f"there is no {kind} {given!r}, and no task of this id; `onward {kind}s` lists those that are open"
            ) from None
        asks = await backend.asks_of_one(task_id, kind)
    if not asks:
        whose = "" if given is None else f" of task {given!r}"
        raise NotFound(f"no {kind}{whose} is open; `onward {kind}s` lists those that are, `onward list` the tasks")
    if len(asks) > 1:
        examples = ", ".join(f"{command} {short_ask_id(ask.id)} ({safe(ask.text):.40})" for ask in asks[:3])
        more = f", … (`onward {kind}s` lists all)" if len(asks) > 3 else ""
        number_of = count(len(asks), kind) if asks.next is None else f"more than {count(len(asks), kind)}"
        raise UsageError(f"{number_of} are open, say which: {examples}{more}")
    return asks[0] if not asks[0].left_out else await backend.ask(asks[0].id)


def short_ask_id(ask_id: str) -> str:
    """The id of a question or an approval with a shortened task id."""
    task, _, number = ask_id.rpartition(".")
    return f"{task[-8:]}.{number}"
