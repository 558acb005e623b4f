"""ShiftJournal: how one shift reads and writes the journal of its task, and whether it still may.

All calls of a handler on its context come through here. A call that the journal knows gets the recorded result. A new one is
appended under the shift's hold. An event that ends the shift (another worker, a cancel, a stop of the worker, a record of the
journal) is raised here, and raised again at each further call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from onward.core import record as r
from onward.core import wire
from onward.core.control import Cancel, Control, Fenced, Park
from onward.engine.shift.ports import JournalWriter
from onward.engine.shift.replay import Known, Replay, failure_of
from onward.engine.shift.scope import SCOPE, Scope, refuse_overlap
from onward.engine.shift.services import WorkerServices
from onward.engine.worker.lease import Lease
from onward.errors import DeadlineExceeded, OnwardError, StoreUnavailable
from onward.store.writer import MAX_UNSAVED_BYTES, Hold

T = TypeVar("T")
log = logging.getLogger("onward.shift")

MAX_IDLE_TURNS = 100
"""Turns of the event loop in which no branch reads a record, after which the replay counts as finished."""


class ShiftJournal:
    """The journal of one shift: the only object that appends records for it."""

    writes: bool = True
    """Whether records can be written at all; a dry run only reads."""
    fast_path: bool = True
    """Whether the next step is new and may begin, by all fields below: the one flag that every step checks."""
    interruption: Control | OnwardError | None = None
    """Why the worker or the deadline ends the shift, from outside of the handler."""
    ended_by: Control | None = None
    """The exception with which this shift has ended. Each further call on the context raises it again."""
    recorded_stop: Control | OnwardError | None = None
    """The exception for a cancel or deadline that the journal has. It is raised where the journal ends."""
    task: asyncio.Task[Any] | None = None
    sagas: AbstractSet[str] = frozenset()
    """The keys of open sagas."""
    undone: Sequence[str] = ()
    """The steps that sagas of this shift have undone."""
    not_undone: Sequence[str] = ()
    """The steps that sagas of this shift could not undo."""
    unfit: str = ""
    """Why other code may go on with a task that fails here: this handler does not take its input, or could not read its partial result."""
    transacting = False
    """Whether the next number belongs to the record of a transaction, which the store writes: no other record may take it."""
    _replay_settled = False
    """Whether no branch reads more of the journal before something new begins."""

    def __init__(self, services: WorkerServices, hold: Hold, tenant: str | None = None) -> None:
        self.services: WorkerServices = services
        self.hold: Hold = hold
        self.tenant: str | None = tenant
        self.replay: Replay = Replay()
        self.writer: JournalWriter = services.writer
        self.lease: Lease = services.lease
        self.monotonic: Callable[[], float] = services.clock.monotonic
        self.aborts: dict[str, dict[str, Any]] = {}
        """Sagas that the journal knows as being undone, by the path of their scope, and the error that they failed with."""

    def load(self, replay: Replay, allowed: float | None) -> None:
        """Begin with the records that the journal has. `allowed` is the task's deadline in seconds."""
        self.replay, self.sagas = replay, replay.open_sagas
        if replay.stop:
            self.recorded_stop = Cancel("cancelled") if replay.stop == r.CANCEL else DeadlineExceeded(allowed or 0.0)
        self.fast_path = replay.exhausted and self.recorded_stop is None

    def secret_value(self, name: str) -> str:
        """The value of a secret, for results that name it. Raises SecretMissing."""
        return self.services.secrets.value_for(name, self.tenant)

    # ── reading and writing ──────────────────────────────────────────────────────────────────────────────────────

    def next(self, scope: Scope, key: str, kinds: frozenset[str], mark: str = "") -> Known | None:
        """The record that the journal has in this place, or None when the call is new."""
        if self.ended_by is not None:
            raise self.ended_by
        try:
            known = self.replay.next(key, kinds, mark)
            if known is None or not (known.over or "verdict" in known.data):
                if self.aborts and not scope.undoing:
                    self.check_abort(scope)
                if self.replay.unread:
                    self.replay.check_last(key)
                if known is None and self._may_write:
                    for passed in self.replay.pass_marks(scope.path):
                        self.enqueue(r.VERSION, passed, {"void": True})
        except Park as park:
            raise self.end(park) from None
        self.fast_path = self.replay.exhausted and not (self.aborts or self.interruption or self.recorded_stop)
        return known

    @property
    def _may_write(self) -> bool:
        """Whether a record may be written that no code asked for."""
        return self.writes and not (self.transacting or self.interruption or self.recorded_stop)

    async def note(self, kind: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Write a record that belongs to this place of the code, with the next commit. Returns its data, which in a replay are
        the recorded ones."""
        scope = SCOPE.get()
        if scope.key is not None:
            refuse_overlap(name, scope.key)
        key = scope.prefix + scope.next_name(name)
        known = self.next(scope, key, frozenset({kind}))
        if known is not None:
            return known.data
        await self.ensure_may_continue()
        self.enqueue(kind, key, data)
        return data

    async def append(self, kind: str, key: str, data: bytes) -> None:
        """Write a record and wait until it is durable."""
        try:
            await self.writer.append(self.hold, kind, key, data)
        except Fenced as fenced:
            raise self.end(fenced) from None

    def enqueue(self, kind: str, key: str, data: dict[str, Any]) -> int:
        """Write a record with the next commit; returns its number."""
        try:
            self.writer.mention(self.hold, kind, key, wire.encode(data))
        except Fenced as fenced:
            raise self.end(fenced) from None
        return self.hold.seq

    async def flush(self) -> None:
        """Wait until all records so far are durable."""
        try:
            await self.writer.flushed(self.hold)
        except Fenced as fenced:
            raise self.end(fenced) from None

    async def retry_store(self, query: Callable[[], Awaitable[T]]) -> T:
        """The store's answer to a query, however long that takes: an outage is no failure of the task."""
        pause = 0.05
        while True:
            try:
                return await query()
            except StoreUnavailable as error:
                log.warning("task %s: the store does not answer, trying again: %s", self.hold.id, error)
                await self.services.clock.sleep(pause * self.services.rng.uniform(0.5, 1))
                pause = min(pause * 2, 1.0)

    # ── whether the shift may continue ───────────────────────────────────────────────────────────────────────────

    async def ensure_may_continue(self) -> None:
        """Raise the reason why nothing new may begin, or wait for the replay, the lease and the writer until it may."""
        if self.ended_by is not None:
            raise self.ended_by
        if isinstance(self.interruption, Control):
            raise self.end(self.interruption)
        if self.interruption is not None:
            raise self.interruption
        if self.recorded_stop is not None and not SCOPE.get().undoing:
            raise self.recorded_stop
        if self.replay.unread and not self._replay_settled:
            await self.wait_for_replay()
            await self.ensure_may_continue()
        if not self.lease.holds():
            await self.lease.until_held()
            await self.ensure_may_continue()
        if self.hold.unsaved > MAX_UNSAVED_BYTES:
            await self.flush()
            await self.ensure_may_continue()

    async def ensure_may_reenter(self) -> None:
        """The same for a block that an earlier shift was in: the records of the block are still to be replayed, and steps of it may have to
        be undone."""
        if self.ended_by is not None:
            raise self.ended_by
        if self.interruption is not None:
            raise self.end(self.interruption) if isinstance(self.interruption, Control) else self.interruption
        if not self.lease.holds():
            await self.lease.until_held()
            await self.ensure_may_reenter()

    async def wait_for_replay(self) -> None:
        """Wait until no branch reads the journal any more: nothing new begins before, because a branch may still find that the
        code was changed. (A branch that waits for another one, or for its turn, is not waited for.)"""
        idle, unread = 0, self.replay.unread
        while unread and idle < MAX_IDLE_TURNS and not self._replay_settled and self.ended_by is None:
            await asyncio.sleep(0)
            idle = idle + 1 if self.replay.unread == unread else 0
            unread = self.replay.unread
        self._replay_settled = self._replay_settled or idle >= MAX_IDLE_TURNS

    def run_check(self, check: Callable[..., None], *args: Any) -> None:
        """Call a check of the replay. The shift ends here when code and journal disagree."""
        try:
            check(*args)
        except Park as park:
            raise self.end(park) from None

    def check_abort(self, scope: Scope) -> None:
        """Raise when the journal says that a saga around this place was being undone: nothing new begins in it."""
        at: Scope | None = scope
        while at is not None:
            if at.path in self.aborts:
                raise self.recorded_stop or failure_of(at.path, self.aborts[at.path])
            at = at.outer

    def is_shift_exit(self, error: BaseException | None) -> bool:
        """Whether this exception only carries the handler out of the shift: nothing has gone wrong with the task."""
        if isinstance(error, Control):
            return not isinstance(error, Cancel)
        if isinstance(error, asyncio.CancelledError):
            return self.interruption is not None or (self.task is not None and bool(self.task.cancelling()))
        return False

    # ── the end of the shift ─────────────────────────────────────────────────────────────────────────────────────

    def interrupt(self, why: Control | OnwardError) -> None:
        """End the shift at its next step, for a reason from outside of the handler."""
        self.interruption = self.interruption or why
        self.fast_path = False

    def end(self, control: Control) -> Control:
        """End the shift. Returns the exception to raise; a handler that catches it gets it again at its next call."""
        self.ended_by = self.ended_by or control
        self.fast_path = False
        return self.ended_by

    def drop_tracebacks(self) -> None:
        """Break reference cycles when the shift is over. A kept exception holds the frames that it came through, and they hold
        the shift: each task that goes to sleep would stay in memory until the garbage collector finds the cycle."""
        for kept in (self.ended_by, self.interruption, self.recorded_stop):
            if kept is not None:
                kept.__traceback__ = kept.__context__ = None
