"""Sagas: a block whose finished steps are undone, in reverse, when it fails, is cancelled or runs out of time.

The journal marks where a block begins, where it was given up (with the reason), and where it was completed or undone.
Each undo is a step with retries of its own; one that fails for good is recorded, and the others still run. A block that is
tried again after an undo is another round: its steps run anew, under new keys.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple, Self

from onward.core import record as r
from onward.core import wire
from onward.core.control import Cancel
from onward.engine.context.host import Call
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.replay import failure_of, grown, shrunk
from onward.engine.shift.scope import SCOPE, part_name
from onward.engine.shift.steps import Steps
from onward.errors import StepFailed


class _Owed(NamedTuple):
    seq: int
    key: str
    call: Call
    value: Any


class Saga:
    """`async with ctx.saga():`"""

    def __init__(self, pen: ShiftJournal, steps: Steps, name: str, *, whole: bool = False) -> None:
        self._pen, self._steps, self._name, self._whole = pen, steps, part_name(name), whole
        self._owed: list[_Owed] = []

    def owe(self, seq: int, key: str, call: Call, value: Any) -> None:
        """A step with an undo was done."""
        self._owed.append(_Owed(seq, key, call, value))

    async def __aenter__(self) -> Self:
        pen, outer = self._pen, SCOPE.get()
        local = outer.next(self._name)
        self._outer, self._key = outer, outer.prefix + local
        if pen.next(outer, self._key, frozenset({r.SAGA})) is None:
            await pen.may_go_on()
            pen.mention(r.SAGA, self._key, {})
        pen.sagas = grown(pen.sagas, self._key)
        round_ = pen.replay.round(self._key)
        self._scope = outer.below(local if round_ == 1 else f"{local}@{round_}", self)
        after = pen.replay.peek(self._key)
        if after is not None and after.kind == r.UNDOING and after.key == self._key:
            pen.aborts[self._scope.path] = after.data["error"]
        SCOPE.set(self._scope)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        SCOPE.set(self._outer)
        if self._pen.leaving(error):
            return
        reason = error or self._given_up()
        if reason is None:
            await self._complete()
            return
        await self._undo(reason)
        if error is None:
            raise reason

    def _given_up(self) -> BaseException | None:
        """The block came to its end, but the journal says that it was given up, or is to be."""
        pen = self._pen
        if self._scope.path in pen.aborts:
            return pen.stop or failure_of(self._key, pen.aborts[self._scope.path])
        after = pen.replay.peek(self._key)
        if pen.stop is not None and (after is None or after.kind != r.SAGA_DONE):
            return pen.stop
        return None

    async def _complete(self) -> None:
        if self._whole:  # a message may still come before the task's result is written, and then the block goes on
            return
        if self._pen.next(self._outer, self._key, frozenset({r.SAGA_DONE})) is None:
            await self._pen.until_told()
            self._pen.mention(r.SAGA_DONE, self._key, {})
        self._pen.sagas = shrunk(self._pen.sagas, self._key)
        if self._outer.saga is not None:  # a larger block around it may still have to undo all of it
            for owed in self._owed:
                self._outer.saga.owe(*owed)

    async def _undo(self, error: BaseException) -> None:
        pen = self._pen
        if pen.next(self._outer, self._key, frozenset({r.UNDOING})) is None:
            told = (
                {"type": "Cancelled", "message": "cancelled"} if isinstance(error, Cancel) else wire.error_value(error)
            )
            await pen.until_told()
            await pen.append(r.UNDOING, self._key, wire.encode({"error": told}))
        pen.aborts.pop(self._scope.path, None)
        undone: list[str] = []
        not_undone: list[str] = []
        SCOPE.set(self._scope.below("undo"))
        try:
            for owed in sorted(self._owed, key=lambda one: one.seq, reverse=True):
                (undone if await self._undo_one(owed) else not_undone).append(owed.key)
        finally:
            SCOPE.set(self._outer)
        if pen.next(self._outer, self._key, frozenset({r.UNDONE})) is None:
            pen.mention(r.UNDONE, self._key, {"undone": undone, "not_undone": not_undone})
        pen.sagas = shrunk(pen.sagas, self._key)
        pen.undone += undone
        pen.not_undone += not_undone

    async def _undo_one(self, owed: _Owed) -> bool:
        try:
            await self._steps.run(owed.call.as_undo(owed.value))
        except StepFailed:
            return False
        return True
