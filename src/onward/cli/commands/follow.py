"""follow: watch a task until it has ended or waits for a person. Leaving early leaves the task alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence

from rich.live import Live

from onward.app.application import Onward
from onward.cli.args import connect as door
from onward.cli.commands.tasks import situation, standing, waits_json
from onward.cli.output.screen import Screen, story_line
from onward.cli.output.text import safe, short
from onward.cli.output.timeline import Story
from onward.cli.output.tree import Tree
from onward.cli.output.tree_view import MOST, Frame, TreeView
from onward.core.journal.open_waits import Open
from onward.core.record import CHILD, DOUBTED, HANDED_BACK, PARKED, QUARANTINED, Record
from onward.core.task import ASKS_A_PERSON, HEARS, NEEDS_A_PERSON, Reason, State, Task
from onward.errors import OnwardError, ResultTimeout, TaskCancelled, TaskFailed
from onward.service.serialize import payload, record_json, task_json
from onward.store.port.paging import journal_pages

WAITS_FOR_A_PERSON = 5
WORDS = 200
"""Characters of what a task wants that a sentence has; `onward approvals` shows it whole."""

MOST_TASKS = 50
"""Tasks of a tree that are looked at."""

GLANCE = 0.5
"""Seconds between two looks at why a task does not go on."""

PATIENCE = 2.0
"""Seconds after which somebody who waits is told that nobody works."""


class Person(OnwardError):
    """What was waited for does not come before somebody looks."""

    code = "waits_for_a_person"
    status = 409
    exit_status = WAITS_FOR_A_PERSON

    def __init__(self, task: Task, waits: Sequence[Open] = ()) -> None:
        self.task_id = task.task_id
        super().__init__(f"task {task.task_id} ({task.task}) {_why(task, waits)}")


def _why(task: Task, waits: Sequence[Open]) -> str:
    """What a person has to do."""
    if task.reason in NEEDS_A_PERSON or not waits:
        return (
            f"is {task.reason} and waits for a person; "
            f"`onward show {task.task_id[-8:]}` tells why, `onward resume {task.task_id[-8:]}` lets it go on"
        )
    for_people = [one for one in waits if one.reason in ASKS_A_PERSON]
    return "waits for a person: " + "; ".join(f"{short(one.words, WORDS)}: `{one.command}`" for one in for_people)


def exit_status(task: Task) -> int:
    """What a task that was waited for means for a shell."""
    if task.reason in ASKS_A_PERSON:
        return WAITS_FOR_A_PERSON
    return 0 if task.state is State.COMPLETED else 1


async def until_settled(app: Onward, task_id: str, timeout: float | None) -> Task:
    """The task once it has ended or waits for a person. Raises ResultTimeout."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = GLANCE if end is None else min(GLANCE, max(0.0, end - time.monotonic()))
        try:
            return await app.service.wait(task_id, left)
        except ResultTimeout:
            task = await app.get(task_id)
        if task.ended or task.reason in ASKS_A_PERSON:
            return task
        if end is not None and time.monotonic() >= end:
            raise ResultTimeout(task_id, timeout or 0, task.state, task.reason or "")


async def follow(args: Namespace) -> int:
    """`onward follow`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        return await watch(screen, app, await door.whole_id(app.service, args.id), None)


async def watch(screen: Screen, app: Onward, task_id: str, timeout: float | None) -> int:
    """Show what happens to a task; the exit status that it means."""
    task = await app.get(task_id)
    view = (
        _Lines(screen) if screen.json else _Growing(screen, app, task) if screen.live else _Plain(screen, task.task_id)
    )
    try:
        async with asyncio.timeout(timeout), view.shown(), loneliness(screen, app, task_id):
            async for record in _records(app, task_id):
                view.record(record)
    except TimeoutError:
        task = await app.get(task_id)
        raise ResultTimeout(task_id, timeout or 0, task.state, task.reason or "") from None
    except asyncio.CancelledError:
        screen.aside(f"no longer watching; task {task_id} goes on: onward follow {task_id[-8:]}")
        raise
    task = await app.get(task_id)
    view.end(task, await person_waits(app, task))
    return exit_status(task)


async def person_waits(app: Onward, task: Task) -> list[Open]:
    """What a task that waits for a person waits for."""
    return await standing(app.service, task) if task.reason in ASKS_A_PERSON else []


@contextlib.asynccontextmanager
async def loneliness(screen: Screen, app: Onward, task_id: str) -> AsyncIterator[None]:
    """Whoever waits in this block is told when nobody is there to do the task, and when a task below it waits for a person."""

    async def look() -> None:
        await asyncio.sleep(PATIENCE)
        task = await app.get(task_id)
        if task.state is State.PENDING and not await _somebody(app, task):
            screen.aside(
                (
                    f"no worker is running that does {safe(task.task)!r}: start one with onward worker MODULE:APP",
                    "yellow",
                )
            )
        below = _Below(app)
        while True:
            for said in await below.asked(await app.get(task_id)):
                screen.aside((said, "yellow"))
            await asyncio.sleep(PATIENCE)

    looking = asyncio.ensure_future(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


class _Below:
    """What the tasks below one ask of people: their own journals tell it, and not the one that is watched."""

    def __init__(self, app: Onward) -> None:
        self._app = app
        self._seen: dict[tuple[str, float], list[Open]] = {}
        """What each waited for when it came to rest, so that a journal is not read at every look."""
        self._told: set[str] = set()

    async def asked(self, task: Task) -> list[str]:
        """Sentences that were not told yet."""
        new = [one for one in dict.fromkeys(await self._all(task)) if one not in self._told]
        self._told.update(new)
        return new

    async def _all(self, task: Task) -> list[str]:
        if task.reason != Reason.CHILD:
            return []
        said: list[str] = []
        for wait in await self._waits(task):
            if wait.kind != CHILD or not isinstance(child_id := wait.payload.get("child"), str):
                continue
            child = await self._app.get(child_id)
            if child.reason in ASKS_A_PERSON:
                said.append(safe(str(Person(child, await self._waits(child)))))
            said += await self._all(child)
        return said

    async def _waits(self, task: Task) -> list[Open]:
        at = (task.task_id, task.updated_at)
        if at not in self._seen:
            self._seen[at] = await standing(self._app.service, task)
        return self._seen[at]


async def _somebody(app: Onward, task: Task) -> bool:
    """Whether a worker is alive that would take the task."""
    return any(
        task.task in worker.names and (not worker.queues or task.queue in worker.queues)
        for worker in await app.store.workers.list()
        if worker.lease_until > time.time()
    )


async def _records(app: Onward, task_id: str) -> AsyncIterator[Record]:
    """All records, as they come, until the task has ended or waits for a person."""
    async with contextlib.aclosing(app.service.tail(task_id)) as tail:  # type: ignore[type-var]
        async for record in tail:
            yield record
            if _left_to_a_person(record):
                task = await app.get(task_id)
                if task.reason in ASKS_A_PERSON and task.updated_at <= record.at:
                    return


def _left_to_a_person(record: Record) -> bool:
    """Whether this ends a shift in a way that a person may have to do something about."""
    if record.kind != HANDED_BACK:
        return record.kind in {PARKED, QUARANTINED, DOUBTED}
    said = payload(record)
    return isinstance(said, dict) and said.get("reason") in ASKS_A_PERSON


class _View:
    """A way to show records."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """While records come."""
        yield

    def record(self, record: Record) -> None:
        """One more."""
        raise NotImplementedError

    def end(self, task: Task, waits: Sequence[Open]) -> None:
        """The task has ended, or waits for a person."""
        if task.state is State.FAILED:
            raise TaskFailed(task.task_id, task.task, task.error or {}, task.partial)
        if task.state is State.CANCELLED:
            raise TaskCancelled(task.task_id, task.task)
        if task.reason in ASKS_A_PERSON:
            raise Person(task, waits)
        if task.result is not None:
            self._screen.value(task.result)


class _Lines(_View):
    """JSON lines: each record, then the task."""

    def record(self, record: Record) -> None:
        self._screen.line(record_json(record))

    def end(self, task: Task, waits: Sequence[Open]) -> None:
        self._screen.line(task_json(task) | (waits_json(waits) if waits else {}))


class _Plain(_View):
    """A line of text for each thing that happens."""

    def __init__(self, screen: Screen, task_id: str) -> None:
        super().__init__(screen)
        self._story = Story(task_id)

    def record(self, record: Record) -> None:
        for line in self._story.tell(record):
            shown = story_line(self._screen.out, line, self._story.began or record.at)
            self._screen.out.print(shown, soft_wrap=True)


class _Growing(_View):
    """On a terminal: a tree that grows, with all that the task started."""

    def __init__(self, screen: Screen, app: Onward, task: Task) -> None:
        super().__init__(screen)
        self._app = app
        self._tree = Tree(task.task_id, task.task)
        _stands(self._tree, task)
        self._view = TreeView(screen.out, self._tree)
        self._live = Live(Frame(self._view), console=screen.out, refresh_per_second=8, transient=True)

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        glance = asyncio.ensure_future(self._glance())
        self._live.start()
        try:
            yield
            with contextlib.suppress(OnwardError):
                await self._look()
        finally:
            self._live.stop()
            glance.cancel()
            await asyncio.gather(glance, return_exceptions=True)
            for line in self._view.lines(MOST, moving=False):
                self._screen.out.print(line, soft_wrap=True)

    def record(self, record: Record) -> None:
        self._tree.read(record)

    async def _glance(self) -> None:
        """Keep children, and the reasons why tasks do not go on, up to date."""
        while True:
            with contextlib.suppress(OnwardError):
                await self._look()
            await asyncio.sleep(GLANCE)

    async def _look(self) -> None:
        """At the task, and at all below it that has not ended: so many, and no more."""
        seen, line = 0, [self._tree]
        while line and seen < MOST_TASKS:
            tree = line.pop(0)
            seen += 1
            if not tree.ended:
                _stands(tree, await self._app.service.get(tree.task_id))
            await self._find_children(tree)
            for child in tree.children:
                await self._read(child)
            line += tree.children

    async def _find_children(self, tree: Tree) -> None:
        known = {child.task_id for child in tree.children}
        if tree.children_started <= len(known):
            return
        found, _ = await self._app.service.list(parent=tree.task_id, limit=MOST_TASKS)
        for task in reversed(found):
            if task.task_id not in known:
                child = Tree(task.task_id, task.task)
                _stands(child, task)
                tree.has_child(child, task.created_at)

    async def _read(self, tree: Tree) -> None:
        if tree.ended:
            return
        async for page in journal_pages(self._app.service.journal, tree.task_id, tree.seq):
            for record in page:
                tree.read(record)


def _stands(tree: Tree, task: Task) -> None:
    tree.state = task.state.value
    waits = [one for one in tree.story.standing.open if one.kind != CHILD]
    quiet = task.ended or task.state is State.RUNNING or task.reason in {Reason.CHILD, Reason.ASLEEP}
    tree.why = "" if quiet or (task.reason in HEARS and waits) else situation(task, time.time())
