"""`async with ctx.lock(name) as lock:` A block that one task at a time is in, with a token for the resource that it protects.

The journal has `lock.awaited` where the task had to wait, `lock.taken` with the token of each shift that entered the block, and
`lock.released` where the block was left. The token is durable before the block begins. A later shift that comes to the block
takes the lock again, with a new token: the worker of the shift before, taken for dead, may still be in a step, and the resource
tells the two apart by their tokens alone. A shift that replays past a block that was left takes no lock.

The record `lock.released` frees the lock in the same commit. So a crash before it leaves the task in the block, with the lock, and a
crash after it leaves neither.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from onward.coordinate.tasks import TaskLocks
from onward.core import record as r
from onward.core import wire
from onward.core.crash import crashpoint
from onward.core.lock import Busy, Fence, LockRequest, check_lock_name
from onward.core.task import NEVER
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.replay import Known
from onward.engine.shift.scope import SCOPE, Scope, refuse_overlap
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.waits import Waits
from onward.errors import LockTimeout, TooManyLocks, UsageError

ENTRIES = frozenset({r.LOCK_AWAITED, r.LOCK_TAKEN})


class HeldLock:
    """A lock inside its block."""

    __slots__ = ("name", "token")

    def __init__(self, name: str, token: int) -> None:
        self.name: str = name
        self.token: int = Fence(token)
        """A number that grows each time the lock is taken. Send it with each write, and let the resource refuse a smaller one."""


class LockBlock:
    """`async with ctx.lock(name):`"""

    _scope: Scope
    _key: str
    _left = False
    """Whether the journal has the end of the block."""

    def __init__(
        self,
        services: WorkerServices,
        journal: ShiftJournal,
        waits: Waits,
        task_id: str,
        name: str,
        timeout: float | None,
    ) -> None:
        self._services, self._journal, self._waits = services, journal, waits
        self._task_id, self._name, self._timeout = task_id, check_lock_name(name), timeout

    @property
    def _locks(self) -> TaskLocks:
        return self._services.locks

    async def __aenter__(self) -> HeldLock:
        journal, scope = self._journal, SCOPE.get()
        if scope.key is not None:
            refuse_overlap(f"lock {self._name}", scope.key)
        _refuse_nested(scope, self._name)
        key = scope.prefix + scope.next_name(f"lock {self._name}")
        self._scope, self._key = scope, key
        known = journal.next(scope, key, ENTRIES)
        if known is not None and (expired := known.data.get("expired")):
            raise LockTimeout(self._name, expired["timeout"], expired["holder"])
        if known is not None and "refused" in known.data:
            raise TooManyLocks(known.data["refused"])
        if known is not None and known.data.get("left"):
            self._left, token = True, known.data["token"]
        else:
            scope.key, scope.reported = key, True
            try:
                token = await self._enter(known)
            finally:
                scope.key = None
        scope.locks = (*scope.locks, self._name)
        return HeldLock(self._name, token)

    async def _enter(self, known: Known | None) -> int:
        """Take the lock, with a new token; the record of it is durable. A task that was in the block before waits for as long as it takes:
        its `timeout` was for the first time."""
        journal, again = self._journal, known is not None and "token" in known.data
        if known is not None and again:
            if not journal.writes:
                return int(known.data["token"])
            await journal.ensure_may_reenter()
        else:
            await journal.ensure_may_continue()
        journal.hold.locks = True
        try:
            token = await self._take(known, timeout=None if again else self._timeout)
        except TooManyLocks as error:
            if known is None:
                journal.enqueue(r.LOCK_AWAITED, self._key, {"lock": self._name})
            journal.enqueue(r.LOCK_LEFT, self._key, {"refused": str(error)})
            raise
        crashpoint("lock.taken")
        data = {"lock": self._name, "token": token}
        await journal.append(r.LOCK_TAKEN, self._key, wire.encode(data))
        return token

    async def _take(self, known: Known | None, timeout: float | None) -> int:
        journal, services = self._journal, self._services
        until = NEVER if known is None or timeout is None else known.data.get("until", NEVER)
        waits = known is not None and known.kind == r.LOCK_AWAITED and "token" not in known.data
        request = self._request()
        while True:
            calls = journal.replay.mail.last_call
            taken = await journal.retry_store(lambda: self._locks.take(request))
            if not isinstance(taken, Busy):
                return taken.token
            if not waits:
                until = NEVER if timeout is None else services.now() + timeout
                data: dict[str, Any] = {"lock": self._name, "holder": taken.holder}
                journal.enqueue(r.LOCK_AWAITED, self._key, data | ({} if until == NEVER else {"until": until}))
                waits = True
            if until <= services.now():
                raise await self._expire(timeout or 0.0, taken)
            poll = self._locks.poll_s(taken)
            await self._waits.until_called(journal.hold.seq, min(until, services.now() + poll), calls)

    async def _expire(self, timeout: float, busy: Busy) -> LockTimeout:
        """The error of a lock that was not free in time. The record leaves the line."""
        holder = busy.holder if busy.holds else f"{busy.holder}, which waits for it first,"
        self._journal.enqueue(r.LOCK_LEFT, self._key, {"expired": {"timeout": timeout, "holder": holder}})
        return LockTimeout(self._name, timeout, holder)

    def _request(self) -> LockRequest:
        tenant, owner = self._journal.tenant or "", f"{self._task_id} {self._key}"
        return LockRequest(
            tenant, self._name, owner, self._task_id, self._task_id, self._key, outside=self._locks.outside
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        journal, scope = self._journal, self._scope
        if self._name in scope.locks:
            scope.locks = tuple(name for name in scope.locks if name != self._name)
        if journal.is_shift_exit(error) or journal.ended_by is not None:
            return
        known = journal.next(scope, self._key, frozenset({r.LOCK_LEFT}))
        if known is not None:
            return
        if error is None:
            await journal.wait_for_replay()
        await journal.append(r.LOCK_LEFT, self._key, b"{}" if error is None else b'{"failed":true}')
        await self._locks.left(self._request())


def _refuse_nested(scope: Scope, name: str) -> None:
    """Raise UsageError for a lock that a block around this place holds: the task would wait for itself."""
    at: Scope | None = scope
    while at is not None:
        if name in at.locks:
            raise UsageError(
                f"this task is in a block of lock {name!r} already; leave that block first, or do both parts in one block"
            )
        at = at.outer
