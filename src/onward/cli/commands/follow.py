"""follow: show a task until it ends or waits for a person. Stopping early does not affect the task."""

from __future__ import annotations

import asyncio
import contextlib
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence

from rich.live import Live

from onward.cli.args import connect
from onward.cli.commands.tasks import open_waits, situation, waits_json
from onward.cli.output.screen import Screen, format_line
from onward.cli.output.text import safe, short
from onward.cli.output.timeline import LineRenderer
from onward.cli.output.tree import Tree
from onward.cli.output.tree_view import MAX_FINAL_LINES, Frame, TreeView
from onward.core.journal.open_waits import Open
from onward.core.journal.reader import fields
from onward.core.record import CHILD, DOUBTED, HANDED_BACK, PARKED, QUARANTINED, Record
from onward.core.task import ASKS_A_PERSON, HEARS, NEEDS_A_PERSON, Reason, State, Task
from onward.errors import Forbidden, OnwardError, ResultTimeout, TaskCancelled, TaskFailed
from onward.service.serialize import record_json, task_json
from onward.store.port.paging import journal_pages

WAITS_FOR_A_PERSON = 5
MAX_WAIT_CHARS = 200
"""Characters of an approval or a question that an error shows; `onward approvals` shows it whole."""

MAX_TREE_TASKS = 50
"""Tasks of a tree that are read and shown."""

POLL_S = 0.5
"""Time between two looks at the state of a task."""

NOTICE_S = 2.0
"""Time after which the user is told that no worker has the handler; then, between two looks at the tasks below."""


class WaitsForPerson(OnwardError):
    """The task that the command waits for waits for a person."""

    code = "waits_for_a_person"
    status = 409
    exit_status = WAITS_FOR_A_PERSON

    def __init__(self, task: Task, waits: Sequence[Open] = ()) -> None:
        self.task_id = task.task_id
        super().__init__(f"task {task.task_id} ({task.task}) {_person_needed(task, waits)}")


def _person_needed(task: Task, waits: Sequence[Open]) -> str:
    """The commands that a person can type."""
    if task.reason in NEEDS_A_PERSON or not waits:
        return (
            f"is {task.reason} and waits for a person; "
            f"`onward show {task.task_id[-8:]}` tells why, `onward resume {task.task_id[-8:]}` lets it go on"
        )
    for_people = [wait for wait in waits if wait.reason in ASKS_A_PERSON]
    return "waits for a person: " + "; ".join(
        f"{short(wait.words, MAX_WAIT_CHARS)}: `{wait.command}`" for wait in for_people
    )


def exit_status(task: Task) -> int:
    """The exit status of a command that waited for this task."""
    if task.reason in ASKS_A_PERSON:
        return WAITS_FOR_A_PERSON
    return 0 if task.state is State.COMPLETED else 1


async def until_settled(backend: connect.Backend, task_id: str, timeout: float | None) -> Task:
    """Wait until the task ends or waits for a person. Raises ResultTimeout."""
    try:
        async with asyncio.timeout(
            None if timeout is None else timeout + POLL_S
        ):  # a server that is away does not answer in time
            return await _until_settled(backend, task_id, timeout)
    except TimeoutError:
        task = await backend.get(task_id)
        raise ResultTimeout(task_id, timeout or 0, task.state, task.reason or "") from None


async def _until_settled(backend: connect.Backend, task_id: str, timeout: float | None) -> Task:
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = POLL_S if end is None else min(POLL_S, max(0.0, end - time.monotonic()))
        try:
            await backend.wait(task_id, left)
            return await backend.get_patiently(task_id)
        except ResultTimeout:
            task = await backend.get_patiently(task_id)
        if task.ended or task.reason in ASKS_A_PERSON:
            return task
        if end is not None and time.monotonic() >= end:
            raise ResultTimeout(task_id, timeout or 0, task.state, task.reason or "")


async def follow(args: Namespace) -> int:
    """`onward follow`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        task = await backend.get(await connect.resolve_task_id(backend, args.id))
        return await watch(screen, backend, task, None)


async def watch(screen: Screen, backend: connect.Backend, task: Task, timeout: float | None) -> int:
    """Show the records of a task as they come. Returns the exit status."""
    task_id = task.task_id
    view = (
        _JsonView(screen)
        if screen.json
        else _TreeView(screen, backend, task)
        if screen.live
        else _LineView(screen, task_id)
    )
    try:
        async with asyncio.timeout(timeout), view.shown(), notices(screen, backend, task_id):
            async for record in _records(backend, task_id):
                view.record(record)
    except TimeoutError:
        task = await backend.get(task_id)
        raise ResultTimeout(task_id, timeout or 0, task.state, task.reason or "") from None
    except asyncio.CancelledError:
        screen.aside(f"no longer following; task {task_id} goes on: onward follow {task_id[-8:]}")
        raise
    task = await backend.get_patiently(task_id)
    view.end(task, await person_waits(backend, task))
    return exit_status(task)


async def person_waits(backend: connect.Backend, task: Task) -> list[Open]:
    """The open waits of a task that waits for a person; empty for any other task."""
    return await open_waits(backend, task) if task.reason in ASKS_A_PERSON else []


@contextlib.asynccontextmanager
async def notices(screen: Screen, backend: connect.Backend, task_id: str) -> AsyncIterator[None]:
    """While the block waits, tell the user if no worker has the handler, and if a task below waits for a person."""

    async def watch_task() -> None:
        news, failing = _News(backend, task_id), False
        while True:
            await asyncio.sleep(NOTICE_S)
            try:
                sentences = await news.read()
            except OnwardError as error:
                sentences = [] if failing else [f"no notices about this task for now: {safe(error)}"]
                failing = True
            else:
                sentences = [f"the {backend.kind} answers again", *sentences] if failing else sentences
                failing = False
            for sentence in sentences:
                screen.aside((sentence, "yellow"))

    watching = asyncio.ensure_future(watch_task())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


class _News:
    """Finds out that no worker has the handler of a task, and that tasks below it wait for a person. The journal of the task above
    does not say so; theirs do."""

    def __init__(self, backend: connect.Backend, task_id: str) -> None:
        self._backend, self._task_id = backend, task_id
        self._workers_checked = False
        self._seen: dict[tuple[str, float], list[Open]] = {}
        """The waits of each task, by its id and last change, so that a journal is read only after a change."""
        self._printed: set[str] = set()

    async def read(self) -> list[str]:
        """The sentences that are new. The workers are checked only once."""
        task = await self._backend.get(self._task_id)
        sentences = await self._below(task)
        if not self._workers_checked and task.state is State.PENDING and not await _has_worker(self._backend, task):
            sentences.append(
                f"no worker is running that does {safe(task.task)!r}: start one with onward worker MODULE:APP"
            )
        self._workers_checked = True
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._printed]
        self._printed.update(new)
        return new

    async def _below(self, task: Task) -> list[str]:
        if task.reason != Reason.CHILD:
            return []
        sentences: list[str] = []
        for wait in await self._waits(task):
            if wait.kind != CHILD or not isinstance(child_id := wait.payload.get("child"), str):
                continue
            child = await self._backend.get(child_id)
            if child.reason in ASKS_A_PERSON:
                sentences.append(safe(str(WaitsForPerson(child, await self._waits(child)))))
            sentences += await self._below(child)
        return sentences

    async def _waits(self, task: Task) -> list[Open]:
        version = (task.task_id, task.updated_at)
        if version not in self._seen:
            self._seen[version] = await open_waits(self._backend, task)
        return self._seen[version]


async def _has_worker(backend: connect.Backend, task: Task) -> bool:
    """Whether a live worker takes tasks of this handler and queue; True where the caller may not see the workers."""
    try:
        workers = await connect.everything(backend.workers)
    except Forbidden:
        return True
    return any(
        worker.alive and task.task in worker.handlers and (not worker.queues or task.queue in worker.queues)
        for worker in workers
    )


async def _records(backend: connect.Backend, task_id: str) -> AsyncIterator[Record]:
    """All records, as they come, until the task ends or waits for a person."""
    async with contextlib.aclosing(await backend.tail(task_id)) as tail:  # type: ignore[type-var]
        async for record in tail:
            yield record
            if _may_need_person(record):
                task = await backend.get_patiently(task_id)
                if task.reason in ASKS_A_PERSON and task.updated_at <= record.at:
                    return


def _may_need_person(record: Record) -> bool:
    """Whether this record ends a shift in a way that may need a person."""
    if record.kind != HANDED_BACK:
        return record.kind in {PARKED, QUARANTINED, DOUBTED}
    return fields(record).get("reason") in ASKS_A_PERSON


class _View:
    """Shows the records of a task."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """The block in which records come."""
        yield

    def record(self, record: Record) -> None:
        """Show one more record."""
        raise NotImplementedError

    def end(self, task: Task, waits: Sequence[Open]) -> None:
        """Print the result. Raises if the task failed, was cancelled, or waits for a person."""
        if task.state is State.FAILED:
            raise TaskFailed(task.task_id, task.task, task.error or {}, task.partial)
        if task.state is State.CANCELLED:
            raise TaskCancelled(task.task_id, task.task)
        if task.reason in ASKS_A_PERSON:
            raise WaitsForPerson(task, waits)
        if task.result is not None:
            self._screen.value(task.result)


class _JsonView(_View):
    """Prints a JSON line for each record, then one for the task."""

    def record(self, record: Record) -> None:
        self._screen.line(record_json(record))

    def end(self, task: Task, waits: Sequence[Open]) -> None:
        self._screen.line(task_json(task) | (waits_json(waits) if waits else {}))


class _LineView(_View):
    """Prints lines of text."""

    def __init__(self, screen: Screen, task_id: str) -> None:
        super().__init__(screen)
        self._lines = LineRenderer(task_id)

    def record(self, record: Record) -> None:
        for line in self._lines.render(record):
            shown = format_line(self._screen.out, line, self._lines.began or record.at)
            self._screen.out.print(shown, soft_wrap=True)


class _TreeView(_View):
    """Draws a tree on a terminal, with the tasks below, and updates it."""

    def __init__(self, screen: Screen, backend: connect.Backend, task: Task) -> None:
        super().__init__(screen)
        self._backend = backend
        self._tree = Tree(task.task_id, task.task)
        _set_state(self._tree, task)
        self._view = TreeView(screen.out, self._tree)
        self._live = Live(Frame(self._view), console=screen.out, refresh_per_second=8, transient=True)

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        polling = asyncio.ensure_future(self._poll())
        self._live.start()
        try:
            yield
            with contextlib.suppress(OnwardError):
                await self._update()
        finally:
            self._live.stop()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            for line in self._view.lines(MAX_FINAL_LINES, moving=False):
                self._screen.out.print(line, soft_wrap=True)

    def record(self, record: Record) -> None:
        self._tree.read(record)

    async def _poll(self) -> None:
        """Keep the states of the tasks, and the tasks below, up to date."""
        while True:
            with contextlib.suppress(OnwardError):
                await self._update()
            await asyncio.sleep(POLL_S)

    async def _update(self) -> None:
        """Read the state of the task and of the tasks below, at most MAX_TREE_TASKS."""
        seen, queue = 0, [self._tree]
        while queue and seen < MAX_TREE_TASKS:
            tree = queue.pop(0)
            seen += 1
            if not tree.ended:
                _set_state(tree, await self._backend.get(tree.task_id))
            await self._find_children(tree)
            for child in tree.children:
                await self._read(child)
            queue += tree.children

    async def _find_children(self, tree: Tree) -> None:
        known = {child.task_id for child in tree.children}
        if tree.children_started <= len(known):
            return
        children, _ = await self._backend.list(parent=tree.task_id, limit=MAX_TREE_TASKS)
        for task in reversed(children):
            if task.task_id not in known:
                child = Tree(task.task_id, task.task)
                _set_state(child, task)
                tree.add_child(child, task.created_at)

    async def _read(self, tree: Tree) -> None:
        if tree.ended:
            return
        async for page in journal_pages(self._backend.journal, tree.task_id, tree.seq):
            for record in page:
                tree.read(record)


def _set_state(tree: Tree, task: Task) -> None:
    tree.state = task.state.value
    waits = [wait for wait in tree.lines.open_waits.open if wait.kind != CHILD]
    quiet = task.ended or task.state is State.RUNNING or task.reason in {Reason.CHILD, Reason.ASLEEP}
    tree.why = "" if quiet or (task.reason in HEARS and waits) else situation(task, time.time())
