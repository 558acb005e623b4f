"""Transactional steps: the user's writes in the store's own database and the record of the step, in one commit.

    await ctx.transaction(pay, invoice)               a function that gets a connection; its result is kept
    async with ctx.transaction() as connection: …     a block; the answers to its statements are kept

After a crash the function is not called again. A block's code does run again, as a `with` cannot skip it, but its
connection answers from the record and sends nothing. What fails is rolled back and recorded, and raises StepFailed, now and in every
replay. Bounded in time: on SQLite everybody else waits for the writer.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from onward.core import record as r
from onward.core.control import Control, Fenced
from onward.core.crash import crashpoint
from onward.core.record import Entry
from onward.engine.context.arguments import is_async
from onward.engine.context.host import Call
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.replay import Known
from onward.engine.shift.scope import SCOPE, Scope
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.steps import Steps
from onward.engine.shift.waits import Waits
from onward.errors import StepTimeout, StoreUnavailable, UsageError

SHARE = 3
"""A transaction may take one of so many parts of the lease."""


class Transaction:
    """One step in a transaction: `run()`, or a block."""

    def __init__(self, desk: WorkerServices, pen: ShiftJournal, steps: Steps, waits: Waits, call: Call) -> None:
        self._desk, self._pen, self._steps, self._waits, self._call = desk, pen, steps, waits, call
        self._seconds = pen.lease.duration / SHARE
        self._at: float | None = None
        """The time of the record that goes with it."""

    # ── a function ───────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> Any:
        """Call the function once, for good."""
        if not is_async(self._call.function):
            raise UsageError(f"ctx.transaction takes an async function, and {self._call.name!r} is a plain one")
        scope = SCOPE.get()
        known = await self._begin(scope)
        if known is not None:
            return self._steps.recorded(scope, self._call, known)
        attempt = 1
        try:
            while True:
                try:
                    return await self._attempt(scope, attempt)
                except Control:
                    raise
                except BaseException as error:
                    if self._pen.leaving(error):
                        raise
                    attempt = await self._steps.failed(scope, self._call, attempt, error)
        finally:
            scope.key = None

    async def _attempt(self, scope: Scope, attempt: int) -> Any:
        kept: list[Any] = []

        async def body(connection: Any) -> Entry:
            self._check_stopped()
            value = await self._call.function(connection, *self._call.args, **self._call.kwargs)
            value, data = self._steps.kept(scope, self._call, attempt, value)
            kept[:] = [value]
            return self._entry(scope, data)

        await self._transact(scope, body)
        return kept[0]

    # ── a block ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Any:
        self._scope = SCOPE.get()
        known = await self._begin(self._scope)
        if known is not None:
            self._work = None
            return Answers(None, self._steps.recorded(self._scope, self._call, known))
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        self._left: asyncio.Future[None] = loop.create_future()
        self._answers = Answers(None, [])

        async def body(connection: Any) -> Entry:
            self._check_stopped()
            self._answers = Answers(connection, [])
            opened.set_result(None)
            await self._left
            if self._answers.broken is not None:
                raise self._answers.broken
            _, data = self._steps.kept(self._scope, self._call, 1, self._answers.kept)
            return self._entry(self._scope, data)

        self._work = asyncio.ensure_future(self._transact(self._scope, body))
        await asyncio.wait({self._work, opened}, return_when=asyncio.FIRST_COMPLETED)
        if self._work.done():
            try:
                await self._failed(self._work.exception())
            finally:
                self._scope.key = None
        return self._answers

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._work is None:
            return
        try:
            if error is None:
                self._left.set_result(None)
            elif not self._work.done():
                self._left.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            await asyncio.wait({self._work})
            failed = None if self._work.cancelled() else self._work.exception()
            await self._failed(error or failed)
        finally:
            self._scope.key = None

    async def _failed(self, error: BaseException | None) -> None:
        """A block that failed is a step that failed: the handler may get over it, and comes back to the same place. Raises what
        a replay will raise."""
        if error is None:
            return
        if isinstance(error, Control) or self._pen.leaving(error):
            raise error
        await self._steps.failed(self._scope, self._call, 1, error)

    # ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self, scope: Scope) -> Known | None:
        if self._waits.active > 1:
            raise UsageError(
                "ctx.transaction cannot run while other branches of a ctx.gather do; make it a step before or after, or "
                "a child task (ctx.submit)"
            )
        return await self._steps.begin(scope, self._call)

    def _check_stopped(self) -> None:
        """The connection came a while after the step was asked for: the task may have been paused since."""
        if isinstance(self._pen.why, Control):
            raise self._pen.end(self._pen.why)

    def _entry(self, scope: Scope, data: bytes) -> Entry:
        assert scope.key is not None
        hold = self._pen.hold
        crashpoint("transaction.before")
        self._at = self._desk.now()
        return (hold.id, hold.seq + 1, hold.shift, r.STEP_DONE, scope.key, data, self._at)

    async def _transact(self, scope: Scope, body: Any) -> None:
        hold = self._pen.hold
        late = StepTimeout(scope.key or "", self._seconds)
        await (
            self._pen.flushed()
        )  # what was mentioned before; nothing is added from here on: the scope is busy and told
        self._pen.transacting = True
        try:
            written = await self._desk.store.transact(body, self._seconds, hold.at)
        except TimeoutError:
            raise late from None
        except StoreUnavailable:
            written = await self._there()
            if not written:
                raise
        finally:
            self._pen.transacting = False
        crashpoint("transaction.after")
        if not written and not await self._there():
            raise self._pen.end(Fenced())
        hold.seq, hold.at = hold.seq + 1, self._at
        hold.claim = hold.covered = None  # no commit of the writer stands for this record
        self._desk.store.tails.announce()

    async def _there(self) -> bool:
        """Whether a commit whose answer was lost is in the journal, as ours."""
        hold = self._pen.hold
        found = await self._pen.patiently(lambda: self._desk.store.journal(hold.id, hold.seq, 1))
        return bool(found) and (found[0].shift, found[0].kind, found[0].at) == (hold.shift, r.STEP_DONE, self._at)


class Answers:
    """The connection of a block: it keeps what it answers, or answers what was kept."""

    broken: Exception | None = None
    """What a statement died of: there is no answer to keep, so the block cannot get over it, whatever it catches."""

    def __init__(self, connection: Any, kept: list[Any]) -> None:
        self._connection, self.kept = connection, kept

    async def execute(self, sql: str, *args: Any) -> Any:
        """Run a statement."""
        return await self._answer("execute", sql, *args)

    async def executemany(self, sql: str, args: Any) -> Any:
        """Run a statement for each of many."""
        return await self._answer("executemany", sql, args)

    async def fetch(self, sql: str, *args: Any) -> Any:
        """Its rows, each as a dict."""
        return await self._answer("fetch", sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        """Its first row as a dict, or None."""
        return await self._answer("fetchrow", sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """The first value of its first row, or None."""
        return await self._answer("fetchval", sql, *args)

    async def _answer(self, verb: str, *args: Any) -> Any:
        if self._connection is None:
            if not self.kept:
                raise UsageError(
                    "the block asks more of its connection than it did at first; it was changed under this task"
                )
            return self.kept.pop(0)
        try:
            answer = await getattr(self._connection, verb)(*args)
        except Exception as error:
            self.broken = self.broken or error
            raise
        if verb == "fetch":
            answer = [dict(row) for row in answer]
        elif verb == "fetchrow":
            answer = None if answer is None else dict(answer)
        self.kept.append(answer)
        return answer
