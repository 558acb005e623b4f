"""Reads whose records may wait, for handlers whose checkpoint strategy allows it.

A step with `effect="read"` is over when its function is: its record is queued in the writer, starts no commit, and is in the
next commit of any task. A worker that dies before that commit runs the read again. Every other step begins only when all reads
before it are durable: its effect may depend on them, and a replay has to come to the same place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from onward.engine.context.call import Call
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.ports import JournalWriter
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.steps import Steps
from onward.engine.shift.waits import Waits
from onward.store.writer import Hold


class DeferringSteps(Steps):
    """The steps of a shift whose reads are recorded later."""

    def __init__(self, services: WorkerServices, journal: ShiftJournal, waits: Waits) -> None:
        super().__init__(services, journal, waits)
        self._deferred, self._durable = _DeferredWriter(journal.writer), 0
        self._reads = Steps(services, journal, waits)
        self._reads._writer = self._deferred

    async def run(self, call: Call) -> Any:
        """The recorded result of the step, or the result of running it now."""
        if call.effect == "read" and call.undo is None:
            return await self._reads.run(call)
        if (last := self._deferred.last) > self._durable:
            await self._journal.flush()
            self._durable = max(self._durable, last)  # not before: another branch may wait for the same commit
        return await super().run(call)


class _DeferredWriter:
    """The part of a writer that a step uses, for records that no caller waits for."""

    last = 0
    """The number of the last of them."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer

    def append(self, hold: Hold, kind: str, key: str, data: bytes) -> Awaitable[None]:
        self._writer.defer(hold, kind, key, data)
        self.last = hold.seq
        return asyncio.sleep(0)  # a handler that only reads must not keep the loop for itself
