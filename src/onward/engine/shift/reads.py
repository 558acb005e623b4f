"""Reads whose records may wait, for handlers whose checkpoint strategy allows it.

A step with `effect="read"` is over when its function is: its record stands in the writer's line, wakes nobody, and is in the
next commit, whosever that is. Whoever dies before runs the read again. Every other step is begun only when all that was read
before it is durable: what it does to the world may depend on it, and a replay has to come to the same place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

from onward.engine.context.host import Call
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.steps import Steps
from onward.engine.shift.waits import Waits
from onward.store.writer import Hold, Writer


class PatientSteps(Steps):
    """The steps of a shift in which reads are written later."""

    def __init__(self, desk: WorkerServices, pen: ShiftJournal, waits: Waits) -> None:
        super().__init__(desk, pen, waits)
        self._later, self._durable = _Later(pen.writer), 0
        self._reads = Steps(desk, pen, waits)
        self._reads._writer = cast("Writer", self._later)

    async def run(self, call: Call) -> Any:
        """The recorded result of the step, or the result of running it now."""
        if call.effect == "read" and call.undo is None:
            return await self._reads.run(call)
        if (last := self._later.last) > self._durable:
            await self._pen.flushed()
            self._durable = max(self._durable, last)  # not before: another branch may wait for the same commit
        return await super().run(call)


class _Later:
    """What a step needs of a writer, for records that nobody waits for."""

    last = 0
    """The number of the last of them."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def append(self, hold: Hold, kind: str, key: str, data: bytes) -> Awaitable[None]:
        self._writer.defer(hold, kind, key, data)
        self.last = hold.seq
        return asyncio.sleep(0)  # a handler that only reads must not keep the loop for itself
