"""Code against journals: what would become of living tasks if this code were deployed, and whether a task that was done
would be done the same way again."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from onward.artifacts.keeper import Artifacts
from onward.core import wire
from onward.core.record import Record
from onward.core.task import State, Task
from onward.engine.check.dry_run import Library, Walk, rehearse
from onward.engine.handlers import Handler
from onward.engine.shift.threads import Threads
from onward.errors import OnwardError, TaskNotFound, UnknownTask
from onward.store.port.core import Store

PAGE = 1000
PATIENCE = 5.0
"""Seconds for the code of one handler, which has nothing to wait for."""

HANGS = 2
"""Tasks of one handler that may hang before the rest of them are not tried."""

Progress = Callable[[int, int], None]
"""Told how many tasks have been looked at, and of how many."""

_OPEN = (State.RUNNING, State.PENDING, State.WAITING)


class Verdict(enum.StrEnum):
    """What would become of a task under the code that was checked."""

    FINE = "fine"
    PARKS = "parks"
    RAISES = "raises"
    HANGS = "hangs"
    UNKNOWN = "unknown"


HARMED = frozenset({Verdict.PARKS, Verdict.RAISES, Verdict.HANGS})


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A task and what would become of it, with the reason."""

    task_id: str
    task: str
    state: State
    reason: str | None
    verdict: Verdict
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class Replayed:
    """Whether the code agrees with the journal of a task; where not, the first disagreement."""

    task_id: str
    task: str
    state: State
    agrees: bool
    detail: str


def quietly(done: int, of: int) -> None:
    """No progress is shown."""


class Checker:
    """The handlers of an app, and the journals of a store. Reads, and writes nothing."""

    def __init__(
        self, store: Store, handlers: Mapping[str, Handler], artifacts: Artifacts, patience: float = PATIENCE
    ) -> None:
        self._store, self._handlers, self._patience = store, handlers, patience
        self._library = Library(store, artifacts)
        self._threads = Threads()

    # ── before a deploy ──────────────────────────────────────────────────────────────────────────────────────────

    async def check(self, progress: Progress) -> list[Finding]:
        """A finding for every unfinished task, the newest first."""
        ids = await self._unfinished()
        found: list[Finding] = []
        hung: collections.Counter[str] = collections.Counter()
        for done, task_id in enumerate(ids):
            progress(done, len(ids))
            task = await self._store.get(task_id)
            if task is None or task.ended:  # meanwhile
                continue
            found.append(one := await self._check_one(task, tired=hung[task.task] >= HANGS))
            hung[task.task] += one.verdict is Verdict.HANGS
        progress(len(ids), len(ids))
        return found

    async def _unfinished(self) -> list[str]:
        """Their ids. Looked up twice: a task that goes from one state to another can slip through one look at each."""
        ids: set[str] = set()
        for state in _OPEN * 2:
            async for task in self._pages(state):
                ids.add(task.task_id)
        return sorted(ids, reverse=True)

    async def _pages(self, state: State) -> AsyncIterator[Task]:
        before: str | None = None
        while page := await self._store.listing.list(state=state, task=None, queue=None, limit=PAGE, before=before):
            for task in page:
                yield task
            before = page[-1].task_id

    async def _check_one(self, task: Task, *, tired: bool) -> Finding:
        def finding(verdict: Verdict, detail: str) -> Finding:
            return Finding(task.task_id, task.task, task.state, task.reason, verdict, detail)

        if task.task not in self._handlers:
            return finding(Verdict.UNKNOWN, f"this app has no handler {task.task!r}")
        if tired:
            return finding(Verdict.HANGS, "not tried: other tasks of this handler hang")
        return finding(*_judged(await self._walk(task), self._patience))

    async def _walk(self, task: Task) -> Walk:
        records = await self._journal(task.task_id)
        return await rehearse(self._handlers[task.task], task, records, self._threads, self._library, self._patience)

    async def _journal(self, task_id: str) -> list[Record]:
        records: list[Record] = []
        while page := await self._store.journal(task_id, records[-1].seq if records else 0, PAGE):
            records += page
        return [record for record in records if not record.dropped]  # what a checkpoint after them stands for

    # ── one task, whole ──────────────────────────────────────────────────────────────────────────────────────────

    async def replay(self, task_id: str) -> Replayed:
        """Whether the code, run over the whole journal of a task, does what the journal says that was done."""
        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        if task.task not in self._handlers:
            raise UnknownTask(task.task, sorted(self._handlers))
        disagrees, detail = _compared(task, await self._walk(task), self._patience)
        return Replayed(task.task_id, task.task, task.state, not disagrees, disagrees or detail)


def _judged(walk: Walk, patience: float) -> tuple[Verdict, str]:
    if walk.parks:
        return Verdict.PARKS, walk.parks
    if walk.hangs:
        return Verdict.HANGS, _hangs(patience)
    if walk.error is not None and (walk.left or not walk.begun):
        return Verdict.RAISES, _raises(walk)
    if walk.new:
        return Verdict.FINE, f"goes on with {walk.new!r}"
    return Verdict.FINE, "comes to its end" if walk.error is None else f"raises {_error(walk.error)}, at its end"


def _compared(task: Task, walk: Walk, patience: float) -> tuple[str, str]:
    """The first disagreement, or an empty text; and what to say when there is none."""
    verdict, detail = _judged(walk, patience)
    if verdict is not Verdict.FINE:
        return detail, ""
    if not task.ended:
        return "", f"as far as it has come; it {detail}"
    if task.state is State.CANCELLED or (task.error or {}).get("type") in {"DeadlineExceeded", "Expired"}:
        return "", "as far as it came before it was ended from outside"
    if walk.new:
        return f"the code asks for step {walk.new!r} where the journal has come to its end", ""
    if task.state is State.COMPLETED:
        return _same_result(task, walk), "it returns the same result"
    return _same_error(task, walk), "it fails with the same error"


def _same_result(task: Task, walk: Walk) -> str:
    if walk.error is not None:
        return f"the handler raises {_error(walk.error)} where the task completed"
    try:
        result = wire.decode(wire.encode(walk.result, "the result of the task"))
    except OnwardError as error:
        return f"{error}, where the task completed"
    if result != task.result:
        return f"the handler returns {_short(result)} where the task has the result {_short(task.result)}"
    return ""


def _same_error(task: Task, walk: Walk) -> str:
    recorded = task.error or {}
    error = walk.error
    if error is None:
        try:
            wire.encode(walk.result, "the result of the task")
        except OnwardError as unfit:
            error = unfit
        else:
            return f"the handler returns {_short(walk.result)} where the task failed: {recorded.get('message')}"
    told = wire.error_value(error)
    again = f"{told['message']} (attempt {task.attempt} of the task)"
    if recorded.get("type") == told["type"] and recorded.get("message") in {told["message"], again}:
        return ""
    return f"the handler raises {_error(error)} where the task failed with {recorded.get('type')}: {recorded.get('message')}"


def _hangs(patience: float) -> str:
    return f"the handler's own code was not through after {patience:g} s"


def _raises(walk: Walk) -> str:
    assert walk.error is not None
    what = f"the handler raises {_error(walk.error)}"
    if not walk.begun:
        return f"the handler does not take the input: {walk.error}"
    return f"{what} before it asks for step {walk.left!r}, which the journal has"


def _error(error: BaseException) -> str:
    told = wire.error_value(error)
    return f"{told['type']}: {told['message']}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
