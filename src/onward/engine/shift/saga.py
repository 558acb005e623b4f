"""Sagas: a block whose finished steps are undone, in reverse, when it fails, is cancelled or runs out of time.

The journal marks where a block begins, where it was aborted (with the reason), and where it was completed or undone. Each undo
is a step with retries of its own; an undo that fails for good is recorded, and the others still run. A block that is tried
again after an undo is another round: its steps run anew, under new keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

from onward.core import record as r
from onward.core import wire
from onward.core.control import Cancel
from onward.engine.context.call import Call
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.replay import failure_of, with_name, without_name
from onward.engine.shift.scope import SCOPE, check_saga_name
from onward.errors import StepFailed

RunStep = Callable[[Call], Awaitable[Any]]
"""How a saga runs its undo steps."""


class _OwedUndo(NamedTuple):
    """A finished step that has to be undone when the saga fails."""

    seq: int
    key: str
    call: Call
    value: Any


class Saga:
    """`async with ctx.saga():`"""

    def __init__(self, journal: ShiftJournal, run_step: RunStep, name: str, *, whole: bool = False) -> None:
        self._journal, self._run_step, self._name, self._whole = journal, run_step, check_saga_name(name), whole
        self._owed: list[_OwedUndo] = []

    def owe(self, seq: int, key: str, call: Call, value: Any) -> None:
        """Remember a finished step that has an undo."""
        self._owed.append(_OwedUndo(seq, key, call, value))

    async def __aenter__(self) -> Self:
        journal, outer = self._journal, SCOPE.get()
        name = outer.next_name(self._name)
        self._outer, self._key = outer, outer.prefix + name
        if journal.next(outer, self._key, frozenset({r.SAGA})) is None:
            await journal.ensure_may_continue()
            journal.enqueue(r.SAGA, self._key, {})
        journal.sagas = with_name(journal.sagas, self._key)
        round_ = journal.replay.round(self._key)
        self._scope = outer.inner(name if round_ == 1 else f"{name}@{round_}", self)
        after = journal.replay.peek(self._key)
        if after is not None and after.kind == r.UNDOING and after.key == self._key:
            journal.aborts[self._scope.path] = after.data["error"]
        SCOPE.set(self._scope)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        SCOPE.set(self._outer)
        if self._journal.is_shift_exit(error):
            return
        reason = error or self._recorded_abort()
        if reason is None:
            await self._complete()
            return
        await self._undo(reason)
        if error is None:
            raise reason

    def _recorded_abort(self) -> BaseException | None:
        """Why the block is undone although it came to its end: the journal says that it was aborted, or that the task is to end."""
        journal = self._journal
        if self._scope.path in journal.aborts:
            return journal.recorded_stop or failure_of(self._key, journal.aborts[self._scope.path])
        after = journal.replay.peek(self._key)
        if journal.recorded_stop is not None and (after is None or after.kind != r.SAGA_DONE):
            return journal.recorded_stop
        return None

    async def _complete(self) -> None:
        if self._whole:  # a message may still arrive before the task's result is written, and then the block continues
            return
        if self._journal.next(self._outer, self._key, frozenset({r.SAGA_DONE})) is None:
            await self._journal.wait_for_replay()
            self._journal.enqueue(r.SAGA_DONE, self._key, {})
        self._journal.sagas = without_name(self._journal.sagas, self._key)
        if self._outer.saga is not None:  # the saga around it may still have to undo these steps
            for owed in self._owed:
                self._outer.saga.owe(*owed)

    async def _undo(self, error: BaseException) -> None:
        journal = self._journal
        if journal.next(self._outer, self._key, frozenset({r.UNDOING})) is None:
            cancelled = {"type": "Cancelled", "message": "cancelled"}
            reason = cancelled if isinstance(error, Cancel) else wire.error_value(error)
            await journal.wait_for_replay()
            await journal.append(r.UNDOING, self._key, wire.encode({"error": reason}))
        journal.aborts.pop(self._scope.path, None)
        undone: list[str] = []
        not_undone: list[str] = []
        SCOPE.set(self._scope.inner("undo"))
        try:
            for owed in sorted(self._owed, key=lambda owed: owed.seq, reverse=True):
                (undone if await self._undo_one(owed) else not_undone).append(owed.key)
        finally:
            SCOPE.set(self._outer)
        if journal.next(self._outer, self._key, frozenset({r.UNDONE})) is None:
            journal.enqueue(r.UNDONE, self._key, {"undone": undone, "not_undone": not_undone})
        journal.sagas = without_name(journal.sagas, self._key)
        journal.undone = [*journal.undone, *undone]
        journal.not_undone = [*journal.not_undone, *not_undone]

    async def _undo_one(self, owed: _OwedUndo) -> bool:
        try:
            await self._run_step(owed.call.as_undo(owed.value))
        except StepFailed:
            return False
        return True
