"""Checks of code against journals: what would become of living tasks if this code were deployed, and whether a finished task
would be done the same way again."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from onward.artifacts.keeper import Artifacts
from onward.core import wire
from onward.core.task import State, Task
from onward.engine.check.dry_run import DryRunResult, StoreAccess, dry_run
from onward.engine.handlers import Handler
from onward.engine.shift.threads import Threads
from onward.errors import OnwardError, TaskNotFound, UnknownTask
from onward.store.port.core import Store
from onward.store.port.paging import whole_journal

TASKS_PER_PAGE = 1000
HANDLER_TIMEOUT_S = 5.0
"""Seconds for the handler's own code, which has nothing to wait for."""

MAX_HANGING_TASKS = 2
"""Tasks of one handler that may hang before the other tasks of it are not tried."""

Progress = Callable[[int, int], None]
"""Called with how many tasks were checked, and of how many."""

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
    """What would become of a task, with the reason."""

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


def show_no_progress(done: int, of: int) -> None:
    """Shows no progress."""


class Checker:
    """Checks the handlers of an app against the journals of a store. It only reads."""

    def __init__(
        self, store: Store, handlers: Mapping[str, Handler], artifacts: Artifacts, timeout_s: float = HANDLER_TIMEOUT_S
    ) -> None:
        self._store, self._handlers, self._timeout_s = store, handlers, timeout_s
        self._access = StoreAccess(store, artifacts)
        self._threads = Threads()

    # ── before a deploy ──────────────────────────────────────────────────────────────────────────────────────────

    async def check(self, progress: Progress) -> list[Finding]:
        """A finding for every unfinished task, the newest first."""
        ids = await self._unfinished()
        findings: list[Finding] = []
        hung: collections.Counter[str] = collections.Counter()
        for done, task_id in enumerate(ids):
            progress(done, len(ids))
            task = await self._store.get(task_id)
            if task is None or task.ended:  # it ended since
                continue
            finding = await self._check_task(task, skip=hung[task.task] >= MAX_HANGING_TASKS)
            findings.append(finding)
            hung[task.task] += finding.verdict is Verdict.HANGS
        progress(len(ids), len(ids))
        return findings

    async def _unfinished(self) -> list[str]:
        """The ids of all unfinished tasks. Each state is listed twice: a task that changes its state can be missed by one list."""
        ids: set[str] = set()
        for state in _OPEN * 2:
            async for task in self._list_tasks(state):
                ids.add(task.task_id)
        return sorted(ids, reverse=True)

    async def _list_tasks(self, state: State) -> AsyncIterator[Task]:
        before: str | None = None
        while page := await self._store.listing.list(
            state=state, task=None, queue=None, limit=TASKS_PER_PAGE, before=before
        ):
            for task in page:
                yield task
            before = page[-1].task_id

    async def _check_task(self, task: Task, *, skip: bool) -> Finding:
        def finding(verdict: Verdict, detail: str) -> Finding:
            return Finding(task.task_id, task.task, task.state, task.reason, verdict, detail)

        if task.task not in self._handlers:
            return finding(Verdict.UNKNOWN, f"this app has no handler {task.task!r}")
        if skip:
            return finding(Verdict.HANGS, "not tried: other tasks of this handler hang")
        return finding(*_judge(await self._dry_run(task), self._timeout_s))

    async def _dry_run(self, task: Task) -> DryRunResult:
        records = await whole_journal(self._store.journal, task.task_id)
        kept = [record for record in records if not record.dropped]  # a checkpoint after them stands for the others
        return await dry_run(self._handlers[task.task], task, kept, self._threads, self._access, self._timeout_s)

    # ── one task, whole ──────────────────────────────────────────────────────────────────────────────────────────

    async def replay(self, task_id: str) -> Replayed:
        """Whether the code, run over the whole journal of a task, does what the journal says."""
        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        if task.task not in self._handlers:
            raise UnknownTask(task.task, sorted(self._handlers))
        disagreement, detail = _compare(task, await self._dry_run(task), self._timeout_s)
        return Replayed(task.task_id, task.task, task.state, not disagreement, disagreement or detail)


def _judge(outcome: DryRunResult, timeout_s: float) -> tuple[Verdict, str]:
    if outcome.parks:
        return Verdict.PARKS, outcome.parks
    if outcome.hangs:
        return Verdict.HANGS, f"the handler's own code was not through after {timeout_s:g} s"
    if outcome.error is not None and (outcome.unread or not outcome.begun):
        return Verdict.RAISES, _describe_error(outcome)
    if outcome.new:
        return Verdict.FINE, f"goes on with {outcome.new!r}"
    return (
        Verdict.FINE,
        "comes to its end" if outcome.error is None else f"raises {_format_error(outcome.error)}, at its end",
    )


def _describe_error(outcome: DryRunResult) -> str:
    assert outcome.error is not None
    what = f"the handler raises {_format_error(outcome.error)}"
    if not outcome.begun:
        return f"the handler does not take the input: {outcome.error}"
    return f"{what} before it asks for step {outcome.unread!r}, which the journal has"


def _compare(task: Task, outcome: DryRunResult, timeout_s: float) -> tuple[str, str]:
    """The first disagreement, or an empty string; and the detail to show when there is none."""
    verdict, detail = _judge(outcome, timeout_s)
    if verdict is not Verdict.FINE:
        return detail, ""
    if not task.ended:
        return "", f"as far as it has come; it {detail}"
    if task.state is State.CANCELLED or (task.error or {}).get("type") in {"DeadlineExceeded", "Expired"}:
        return "", "as far as it came before it was ended from outside"
    if outcome.new:
        return f"the code asks for step {outcome.new!r} where the journal has come to its end", ""
    if task.state is State.COMPLETED:
        return _compare_result(task, outcome), "it returns the same result"
    return _compare_error(task, outcome), "it fails with the same error"


def _compare_result(task: Task, outcome: DryRunResult) -> str:
    if outcome.error is not None:
        return f"the handler raises {_format_error(outcome.error)} where the task completed"
    try:
        result = wire.decode(wire.encode(outcome.result, "the result of the task"))
    except OnwardError as error:
        return f"{error}, where the task completed"
    if result != task.result:
        return f"the handler returns {_shorten(result)} where the task has the result {_shorten(task.result)}"
    return ""


def _compare_error(task: Task, outcome: DryRunResult) -> str:
    recorded = task.error or {}
    error = outcome.error
    if error is None:
        try:
            wire.encode(outcome.result, "the result of the task")
        except OnwardError as unfit:
            error = unfit
        else:
            return f"the handler returns {_shorten(outcome.result)} where the task failed: {recorded.get('message')}"
    raised = wire.error_value(error)
    with_attempt = f"{raised['message']} (attempt {task.attempt} of the task)"
    if recorded.get("type") == raised["type"] and recorded.get("message") in {raised["message"], with_attempt}:
        return ""
    return f"the handler raises {_format_error(error)} where the task failed with {recorded.get('type')}: {recorded.get('message')}"


def _format_error(error: BaseException) -> str:
    value = wire.error_value(error)
    return f"{value['type']}: {value['message']}"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
