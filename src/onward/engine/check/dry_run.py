"""Dry runs: a handler runs over a journal, and ends where the journal ends.

The journal answers all recorded calls; the first new call ends the run. No step runs and nothing is written, so a dry run is safe
for living tasks, with code that no worker runs yet. It is a shift (the same code that does the task) with a journal that cannot
write. The handler's own code may hang, raise, or end the process, so each dry run has a thread and an event loop of its own, and
a timeout.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, TypeVar, cast

from onward.artifacts.keeper import Artifacts
from onward.core import wire
from onward.core.budget import Budget
from onward.core.clock import Clock, SystemClock
from onward.core.control import Control, Park
from onward.core.record import Record
from onward.core.task import Task
from onward.engine.context.arguments import with_placeholders
from onward.engine.context.secrets import PlaceholderSecrets
from onward.engine.handlers import Handler
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.mail import Message
from onward.engine.shift.replay import Known, Replay
from onward.engine.shift.scope import SCOPE, Scope
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.shift import Shift
from onward.engine.shift.spending import Spending
from onward.engine.shift.threads import Threads
from onward.engine.shift.timeout import CANCEL_GRACE_S, run_with_timeout
from onward.engine.shift.waits import Waits
from onward.errors import OnwardError, UnfitCheckpoint
from onward.store.port.core import Claimed, Store
from onward.store.writer import Hold

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class DryRunResult:
    """How a dry run ended: one of the first four is set, or the handler returned `result`."""

    parks: str = ""
    """Why the task would park."""
    new: str = ""
    """The key of the step, not in the journal, that the task would continue with."""
    error: BaseException | None = None
    hangs: bool = False
    result: Any = None
    unread: str | None = None
    """The key of a step that the journal has and the code had not asked for by then."""
    begun: bool = True
    """Whether the handler accepts the input at all."""


class StoreAccess:
    """What a dry run may read. Queries run on the event loop of the store; a dry run has another."""

    def __init__(self, store: Store, artifacts: Artifacts) -> None:
        self._loop = asyncio.get_running_loop()
        self.store: Store = store
        self.artifacts: Artifacts = artifacts

    async def run(self, query: Coroutine[Any, Any, T]) -> T:
        """The result of a query."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(query, self._loop))


async def dry_run(
    handler: Handler, task: Task, records: Sequence[Record], threads: Threads, access: StoreAccess, seconds: float
) -> DryRunResult:
    """Run the handler over the journal, for at most so many seconds."""
    options = wire.encode({"labels": task.labels} if task.labels else {})
    claimed = Claimed(
        task.task_id, task.task, wire.encode(task.input), options, len(records) + 1, task.attempt, 0, 0.0, 0.0, None, 0
    )
    clock = SystemClock()

    def in_own_loop() -> DryRunResult:
        services = cast("WorkerServices", _DryRunServices(threads, clock, access))
        work = run_with_timeout(DryRun(services, claimed, handler).replay(records), clock, seconds, DryRunTimeout)
        try:
            return cast("DryRunResult", asyncio.run(work))
        except DryRunTimeout:
            return DryRunResult(hangs=True)
        except BaseException as error:  # it ended the event loop
            return DryRunResult(error=error, unread="(any)")

    try:
        # Its own loop ends a handler that awaits; one that blocks its loop is left behind with its thread.
        longest = seconds + 2 * CANCEL_GRACE_S
        return cast("DryRunResult", await run_with_timeout(threads.run(in_own_loop), clock, longest, DryRunTimeout))
    except DryRunTimeout:
        return DryRunResult(hangs=True)


class DryRunTimeout(OnwardError):
    """The handler did not come to an end in its time."""


class ReachedNewStep(Control):
    """The handler came to a call that the journal does not have."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)


class DryRun(Shift):
    """The shift of a dry run."""

    def __init__(self, services: WorkerServices, claimed: Claimed, handler: Handler) -> None:
        super().__init__(services, claimed, handler)
        self._kept: dict[str, bytes] = {}

    def _make_journal(self) -> ShiftJournal:
        return _ReadOnlyJournal(self._services, self.hold)

    def _make_waits(self) -> Waits:
        return _NoNewMessages(self._services, self._journal, self._claimed.id, self._claimed.inbox)

    async def replay(self, records: Sequence[Record]) -> DryRunResult:
        """Run the handler as far as the journal goes."""
        self._journal.task = asyncio.current_task()
        SCOPE.set(self._root)
        try:
            self._journal.load(Replay(records), self._allowed)
        except UnfitCheckpoint as unfit:
            return DryRunResult(parks=str(unfit))
        if self._journal.replay.checkpoint:
            self._begin_at(self._journal.replay.checkpoint)
        self._journal.fast_path = False
        try:
            self._handler.arguments(with_placeholders(wire.decode(self._claimed.input)))
        except BaseException as error:
            return DryRunResult(error=error, unread=self._journal.replay.first_unread(), begun=False)
        try:
            result = await self._call_handler()
            self._check_returned()
            result = self._handler.dump_result(result)
        except BaseException as error:
            return self._result_for(self._exit_cause(error))
        return DryRunResult(result=result)

    def _result_for(self, error: BaseException) -> DryRunResult:
        match error:
            case Park() | UnfitCheckpoint():
                return DryRunResult(parks=str(error))
            case ReachedNewStep():
                return DryRunResult(new=error.key)
            case _:
                return DryRunResult(error=error, unread=self._journal.replay.first_unread())

    # ── the host, without a worker ───────────────────────────────────────────────────────────────────────────────

    def mention(self, data: dict[str, Any]) -> None:
        """Progress is not recorded."""

    def spending(self, budget: Budget) -> Spending:  # noqa: ARG002 -- nothing is spent
        return Spending(self._services, self._journal, {}, Budget())

    async def patches(self) -> list[Any]:
        """Only those that the journal has."""
        return await self._waits.patches(poll=False)

    def keep(self, data: bytes) -> str:
        """Kept in memory, for this dry run."""
        name = wire.content_id(data)
        self._kept[name] = data
        return name

    async def contents(self, ids: Sequence[str], of: str | None = None) -> dict[str, bytes]:
        """The contents that the task keeps, and those that this dry run kept."""
        stored = [name for name in ids if name not in self._kept]
        access = self._access
        contents = await access.run(access.store.contents(of or self.task_id, stored)) if stored else {}
        return contents | {name: self._kept[name] for name in ids if name in self._kept}

    async def read_artifact(self, artifact_id: str, of: str | None = None) -> bytes:
        access = self._access
        return await access.run(access.artifacts.get(of or self.task_id, artifact_id))

    @property
    def _access(self) -> StoreAccess:
        return cast("_DryRunServices", self._services).access


class _DryRunServices:
    """The services of a shift without a worker: a clock, threads, and read access to the store."""

    store = writer = lease = locks = None

    def __init__(self, threads: Threads, clock: Clock, access: StoreAccess) -> None:
        self.threads, self.clock, self.rng = threads, clock, random.Random(0)  # noqa: S311 -- nothing is drawn
        self.access, self.secrets, self.approval_rules = access, PlaceholderSecrets(), ()

    def now(self) -> float:
        return self.clock.now()


class _ReadOnlyJournal(ShiftJournal):
    """Reads, and ends the shift where it would have to write."""

    writes = False

    def __init__(self, services: WorkerServices, hold: Hold) -> None:
        super().__init__(services, hold)
        self.fast_path = False

    def next(self, scope: Scope, key: str, kinds: frozenset[str], mark: str = "") -> Known | None:
        known = super().next(scope, key, kinds, mark)
        self.fast_path = False
        return known

    async def ensure_may_continue(self) -> None:
        scope = SCOPE.get()
        key = scope.prefix + scope.last_name
        if self.ended_by is None:
            await self.wait_for_replay()
        raise self.end(ReachedNewStep(key))

    async def flush(self) -> None:
        """Nothing was written."""

    async def append(self, kind: str, key: str, data: bytes) -> NoReturn:  # noqa: ARG002 -- the signature of ShiftJournal
        raise self.end(ReachedNewStep(key))

    def enqueue(self, kind: str, key: str, data: dict[str, Any]) -> NoReturn:  # noqa: ARG002
        raise self.end(ReachedNewStep(key))


class _NoNewMessages(Waits):
    """Waits of a task that gets no new messages."""

    async def _take_spoken(self, key: str, *, last: bool) -> list[Message]:  # noqa: ARG002 -- the signature of Waits
        return []
