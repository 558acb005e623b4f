"""The pen: how one shift writes its task's journal, and whether it still may.

Everything that a handler does through its context goes by here: what the journal knows is handed out, what is new is
appended under the shift's hold, and whatever ends the shift (another worker, a cancel, a stop, the journal's own word) is
raised here, once and then again at every further call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from onward.core import record as r
from onward.core import wire
from onward.core.control import Cancel, Control, Fenced, Park
from onward.engine.shift.replay import Known, Replay, failure_of
from onward.engine.shift.scope import SCOPE, Scope, refuse
from onward.engine.shift.services import WorkerServices
from onward.errors import DeadlineExceeded, OnwardError, StoreUnavailable
from onward.store.writer import MAX_UNSAVED_BYTES, Hold

T = TypeVar("T")
log = logging.getLogger("onward.shift")

STILL = 100
"""Turns of the loop in which no branch was told anything from the journal, after which it is taken as told."""


class ShiftJournal:
    """The one hand that writes for a shift."""

    plain = True
    """Whether the next step is new and may begin, for all that stands below: the one thing that every step asks."""
    why: Control | OnwardError | None = None
    """What the worker or the clock had to say from outside."""
    ended_by: Control | None = None
    stop: Control | OnwardError | None = None
    """What the journal's own request for an end raises, where the journal ends."""
    task: asyncio.Task[Any] | None = None
    sagas: AbstractSet[str] = frozenset()
    """Sagas that are open."""
    transacting = False
    """Whether the next number belongs to the record of a transaction, which is written elsewhere: nothing else may take it."""
    _told = False
    """Whether nothing more of the journal can be told before something new begins."""

    def __init__(self, desk: WorkerServices, hold: Hold) -> None:
        self.desk, self.hold, self.replay = desk, hold, Replay()
        self.writer, self.lease = desk.writer, desk.lease
        self.monotonic = desk.clock.monotonic
        self.aborts: dict[str, dict[str, Any]] = {}
        """Sagas that the journal knows as being undone, by the path of their scope, and the error that they died of."""
        self.undone: list[str] = []
        self.not_undone: list[str] = []

    def read(self, replay: Replay, allowed: float | None) -> None:
        """Begin with what the journal has."""
        self.replay, self.sagas = replay, replay.open_sagas
        if replay.stop:
            self.stop = Cancel("cancelled") if replay.stop == r.CANCEL else DeadlineExceeded(allowed or 0.0)
        self.plain = replay.told and self.stop is None

    # ── may we go on ─────────────────────────────────────────────────────────────────────────────────────────────

    def tell(self, why: Control | OnwardError) -> None:
        """Something from outside ends the shift at its next step."""
        self.why = self.why or why
        self.plain = False

    def end(self, control: Control) -> Control:
        """From here on the context is dead: whatever the handler does with this exception, it gets it again."""
        self.ended_by = self.ended_by or control
        self.plain = False
        return self.ended_by

    def forget(self) -> None:
        """The shift is over. An exception that is kept holds the frames it came through, and they hold us: without this, every
        task that goes to sleep would stay in memory until the collector finds the circle."""
        for kept in (self.ended_by, self.why, self.stop):
            if kept is not None:
                kept.__traceback__ = kept.__context__ = None

    async def may_go_on(self) -> None:
        """Raise what speaks against it, or wait for the lease."""
        if self.ended_by is not None:
            raise self.ended_by
        if isinstance(self.why, Control):
            raise self.end(self.why)
        if self.why is not None:
            raise self.why
        if self.stop is not None and not SCOPE.get().undoing:
            raise self.stop
        if self.replay.unread and not self._told:
            await self.until_told()
            await self.may_go_on()
        if not self.lease.holds():
            await self.lease.until_held()
            await self.may_go_on()
        if self.hold.unsaved > MAX_UNSAVED_BYTES:
            await self.flushed()
            await self.may_go_on()

    def leaving(self, error: BaseException | None) -> bool:
        """Whether this exception only carries the handler out of the shift: nothing has gone wrong with the task."""
        if isinstance(error, Control):
            return not isinstance(error, Cancel)
        if isinstance(error, asyncio.CancelledError):
            return self.why is not None or (self.task is not None and bool(self.task.cancelling()))
        return False

    def check_abort(self, scope: Scope) -> None:
        """The journal says that a saga around this place was being undone: nothing new begins in it."""
        at: Scope | None = scope
        while at is not None:
            if at.path in self.aborts:
                raise self.stop or failure_of(at.path, self.aborts[at.path])
            at = at.up

    async def until_told(self) -> None:
        """Nothing new begins while other branches are still being told what the journal has of them: one of them may find
        that the code was changed. (A branch that waits for another, or for its turn, is not waited for.)"""
        still, unread = 0, self.replay.unread
        while unread and still < STILL and not self._told and self.ended_by is None:
            await asyncio.sleep(0)
            still = still + 1 if self.replay.unread == unread else 0
            unread = self.replay.unread
        self._told = self._told or still >= STILL

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """An answer of the store, however long it takes: an outage is no failure of the task."""
        pause = 0.05
        while True:
            try:
                return await ask()
            except StoreUnavailable as error:
                log.warning("task %s: the store does not answer, trying again: %s", self.hold.id, error)
                await self.desk.clock.sleep(pause * self.desk.rng.uniform(0.5, 1))
                pause = min(pause * 2, 1.0)

    # ── reading and writing ──────────────────────────────────────────────────────────────────────────────────────

    def next(self, scope: Scope, key: str, kinds: frozenset[str], mark: str = "") -> Known | None:
        """What the journal has in this place, or None when it is new."""
        if self.ended_by is not None:
            raise self.ended_by
        try:
            known = self.replay.next(key, kinds, mark)
            if known is None or not (known.over or "verdict" in known.data):
                if self.aborts and not scope.undoing:
                    self.check_abort(scope)
                if self.replay.unread:
                    self.replay.check_last(key)
        except Park as park:
            raise self.end(park) from None
        self.plain = self.replay.told and not (self.aborts or self.why or self.stop)
        return known

    async def note(self, kind: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Write a record that belongs to this place of the code, with the next commit; what it says, now or from before."""
        scope = SCOPE.get()
        if scope.key is not None:
            refuse(name, scope.key)
        key = scope.prefix + scope.next(name)
        known = self.next(scope, key, frozenset({kind}))
        if known is not None:
            return known.data
        await self.may_go_on()
        self.mention(kind, key, data)
        return data

    def check(self, check: Callable[..., None], *args: Any) -> None:
        """Compare something else with the journal; the shift ends here when they disagree."""
        try:
            check(*args)
        except Park as park:
            raise self.end(park) from None

    async def flushed(self) -> None:
        """Until all that was written is durable."""
        try:
            await self.writer.flushed(self.hold)
        except Fenced as fenced:
            raise self.end(fenced) from None

    async def append(self, kind: str, key: str, data: bytes) -> None:
        """Write a record, durably."""
        try:
            await self.writer.append(self.hold, kind, key, data)
        except Fenced as fenced:
            raise self.end(fenced) from None

    def mention(self, kind: str, key: str, data: dict[str, Any]) -> int:
        """Write a record with the next commit; its number."""
        try:
            self.writer.mention(self.hold, kind, key, wire.encode(data))
        except Fenced as fenced:
            raise self.end(fenced) from None
        return self.hold.seq
