"""Transactional steps: the user's writes in the store's own database and the record of the step, in one commit.

    await ctx.transaction(pay, invoice)               a function that gets a connection; its result is recorded
    async with ctx.transaction() as connection: …     a block; the results of its statements are recorded

After a crash the function is not called again. The code of a block does run again, as a `with` cannot skip it, but its
connection answers from the record and sends nothing. A transaction that fails is rolled back and recorded, and raises StepFailed,
now and in every replay. Its time is bounded: on SQLite all other writers wait for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from types import TracebackType
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.control import Control, Doubt, Fenced
from onward.core.crash import crashpoint
from onward.core.record import Entry
from onward.core.result_types import result_type
from onward.engine.context.arguments import is_async
from onward.engine.context.call import Call
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.replay import DID_NOT_HAPPEN, Known
from onward.engine.shift.scope import IN_STEP, SCOPE, Scope
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.steps import Steps
from onward.engine.shift.waits import Waits
from onward.errors import StepTimeout, StoreUnavailable, UsageError

LEASE_PARTS = 3
"""A transaction may take the time of a lease divided by this."""


class Transaction:
    """One step in a transaction: `run()`, or a block."""

    def __init__(self, services: WorkerServices, journal: ShiftJournal, steps: Steps, waits: Waits, call: Call) -> None:
        self._services, self._journal, self._steps, self._waits, self._call = services, journal, steps, waits, call
        self._at: float | None = None
        """The time of the record of this step."""

    # ── a function ───────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> Any:
        """Call the function, so that it counts once; returns its result."""
        if not is_async(self._call.function):
            raise UsageError(f"ctx.transaction takes an async function, and {self._call.name!r} is a plain one")
        scope = SCOPE.get()
        known = await self._begin(scope)
        if known is not None:
            return self._steps.replay_result(scope, self._call, known)
        result_type(self._call.function)  # may import pydantic, which takes long: before the transaction is open
        attempt = 1
        IN_STEP.set(True)
        try:
            while True:
                try:
                    return await self._attempt(scope, attempt)
                except Control:
                    raise
                except BaseException as error:
                    if self._journal.is_shift_exit(error):
                        raise
                    attempt = await self._steps.handle_failure(scope, self._call, attempt, error)
        finally:
            scope.key = None
            IN_STEP.set(False)

    async def _attempt(self, scope: Scope, attempt: int) -> Any:
        results: list[Any] = []

        async def body(connection: Any) -> Entry:
            self._check_stopped()
            value = await self._call.function(connection, *self._call.args, **self._call.kwargs)
            value, data = self._steps.encode_result(scope, self._call, attempt, value)
            results[:] = [value]
            return self._entry(scope, data)

        await self._transact(scope, body)
        return results[0]

    # ── a block ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Any:
        self._scope = SCOPE.get()
        known = await self._begin(self._scope)
        if known is not None:
            self._work = None
            return RecordingConnection(None, self._steps.replay_result(self._scope, self._call, known))
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        self._block_left: asyncio.Future[None] = loop.create_future()
        self._connection = RecordingConnection(None, [])

        async def body(connection: Any) -> Entry:
            self._check_stopped()
            self._connection = RecordingConnection(connection, [])
            opened.set_result(None)
            await self._block_left
            if self._connection.error is not None:
                raise self._connection.error
            _, data = self._steps.encode_result(self._scope, self._call, 1, self._connection.results)
            return self._entry(self._scope, data)

        self._work = asyncio.ensure_future(self._transact(self._scope, body))
        await asyncio.wait({self._work, opened}, return_when=asyncio.FIRST_COMPLETED)
        if self._work.done():
            try:
                await self._fail_block(self._work.exception())
            finally:
                self._scope.key = None
        IN_STEP.set(True)
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._work is None:
            return
        try:
            if error is None:
                self._block_left.set_result(None)
            elif not self._work.done():
                self._block_left.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            await asyncio.wait({self._work})
            failed = None if self._work.cancelled() else self._work.exception()
            await self._fail_block(error or failed)
        finally:
            self._scope.key = None
            IN_STEP.set(False)

    async def _fail_block(self, error: BaseException | None) -> None:
        """Record a block that failed as a step that failed. Raises what a replay will raise in the same place; the handler may catch it."""
        if error is None:
            return
        if isinstance(error, Control) or self._journal.is_shift_exit(error):
            raise error
        await self._steps.handle_failure(self._scope, self._call, 1, error)

    # ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self, scope: Scope) -> Known | None:
        if self._waits.active > 1:
            raise UsageError(
                "ctx.transaction cannot run while other branches of a ctx.gather do; make it a step before or after, or "
                "a child task (ctx.submit)"
            )
        known = await self._steps.begin(scope, self._call)
        if known is None and self._is_in_doubt(scope):
            await self._steps.doubt_after_restore(scope, self._call)
        if known is not None and not known.over:
            return await self._apply_verdict(scope, known)
        return known

    def _is_in_doubt(self, scope: Scope) -> bool:
        """Whether this transaction may have been committed in a time that a restore took from the journal, and not from the tables of the
        application."""
        replay = self._journal.replay
        lost = replay.lost
        return lost is not None and not lost.own_tables and replay.may_have_happened(scope.key or "")

    async def _apply_verdict(self, scope: Scope, known: Known) -> Known | None:
        """A transaction was in doubt: record the result that a person gave for it, or begin it (None)."""
        verdict = known.data.get("verdict", {})
        if not verdict:
            why = "a person has to say whether it happened"
            raise self._journal.end(Doubt(known.key, why, self._journal.replay.inbox))
        await self._journal.ensure_may_continue()
        scope.key, scope.started_at, scope.reported = known.key, self._journal.monotonic(), True
        if verdict["name"] in DID_NOT_HAPPEN:
            return None
        try:
            if verdict["name"] == "undo":
                await self._steps.undo_by_verdict(scope, self._call)
            _, data = self._steps.encode_result(scope, self._call, 1, verdict["value"])
            await self._journal.append(r.STEP_DONE, known.key, data)
        finally:
            scope.key = None
        return dataclasses.replace(known, kind=r.STEP_DONE, data=wire.decode(data), over=True)

    def _check_stopped(self) -> None:
        """Raise when the task was paused since the step asked for its connection."""
        if isinstance(self._journal.interruption, Control):
            raise self._journal.end(self._journal.interruption)

    def _entry(self, scope: Scope, data: bytes) -> Entry:
        assert scope.key is not None
        hold = self._journal.hold
        crashpoint("transaction.before")
        self._at = self._services.now()
        return (hold.id, hold.seq + 1, hold.shift, r.STEP_DONE, scope.key, data, self._at)

    async def _transact(self, scope: Scope, body: Any) -> None:
        hold, timeout_s = self._journal.hold, self._journal.lease.duration / LEASE_PARTS
        late = StepTimeout(scope.key or "", timeout_s)
        await self._journal.flush()  # no record is added from here on: the scope is busy and reported
        self._journal.transacting = True
        try:
            written = await self._services.store.transact(body, timeout_s, hold.at)
        except TimeoutError:
            raise late from None
        except StoreUnavailable:
            written = await self._is_written()
            if not written:
                raise
        finally:
            self._journal.transacting = False
        crashpoint("transaction.after")
        if not written and not await self._is_written():
            raise self._journal.end(Fenced())
        hold.seq, hold.at = hold.seq + 1, self._at
        hold.claim = hold.covered = None  # no commit of the writer has this record
        self._services.store.tails.announce()

    async def _is_written(self) -> bool:
        """Whether the record of this step is in the journal, after the answer to its commit was lost."""
        hold = self._journal.hold
        records = await self._journal.retry_store(lambda: self._services.store.journal(hold.id, hold.seq, 1))
        if not records:
            return False
        return (records[0].shift, records[0].kind, records[0].at) == (hold.shift, r.STEP_DONE, self._at)


class RecordingConnection:
    """The connection of a block: it records the results of its statements, or returns the recorded ones."""

    error: Exception | None = None
    """The error of a statement. There is no result to record, so the block fails, whatever it catches."""

    def __init__(self, connection: Any, results: list[Any]) -> None:
        self._connection = connection
        self.results: list[Any] = results

    async def execute(self, sql: str, *args: Any) -> Any:
        """Run a statement."""
        return await self._call("execute", sql, *args)

    async def executemany(self, sql: str, args: Any) -> Any:
        """Run a statement for each set of arguments."""
        return await self._call("executemany", sql, args)

    async def fetch(self, sql: str, *args: Any) -> Any:
        """The rows of a query, each as a dict."""
        return await self._call("fetch", sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        """The first row of a query as a dict, or None."""
        return await self._call("fetchrow", sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """The first value of the first row of a query, or None."""
        return await self._call("fetchval", sql, *args)

    async def _call(self, verb: str, *args: Any) -> Any:
        if self._connection is None:
            if not self.results:
                raise UsageError(
                    "the block asks more of its connection than it did at first; it was changed under this task"
                )
            return self.results.pop(0)
        try:
            result = await getattr(self._connection, verb)(*args)
        except Exception as error:
            self.error = self.error or error
            raise
        if verb == "fetch":
            result = [dict(row) for row in result]
        elif verb == "fetchrow":
            result = None if result is None else dict(result)
        self.results.append(result)
        return result
