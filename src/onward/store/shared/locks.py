"""Locks with fencing tokens, in the database itself.

A row stands for a task or a program that holds a lock, or that waits for it. A free lock has no row: the tokens are counted by bucket, not
by lock, so they never go back, and nothing is left to prune. On PostgreSQL each transaction that takes or frees a lock locks the row of
its bucket first, so on both databases one caller at a time decides about a lock.

A task frees its lock in the transaction of the record that says so, or of its end (see `Batch.unlocks`). No transaction locks the queue row
of a task after it has locked a bucket. So the next task in the line gets its message in a transaction of its own, `call_next`. A worker
calls it after it has freed a lock, and every worker now and then.
"""

from __future__ import annotations

import functools
from typing import Any

from onward.core.audit import AuditEvent
from onward.core.lock import (
    MAX_LOCKS_OF_TASK,
    MAX_WAITERS,
    MESSAGE,
    WAITER_TTL_S,
    Busy,
    Lock,
    LockHolder,
    LockRequest,
    Taken,
    bucket_of,
)
from onward.core.task import Message
from onward.errors import TooManyLocks
from onward.store.shared.audit import Audit
from onward.store.shared.database import Connection, Database, OverDatabase, seen_by
from onward.store.shared.tasks import post_message

CALL_AGAIN_S = 30.0
"""Seconds after which the store wakes a task again whose turn it is, and that has not taken the lock."""

MAX_CALLS = 1_000
"""Tasks that one `call_next` tells that it is their turn."""

Outside = list[tuple[str, str, str, str]]
"""A name for a list type in a class whose method `list` hides the builtin."""

SHOWN_WAITERS = 20
"""Waiters of each lock that a listing shows."""


class Locks(OverDatabase):
    """Who holds which lock, and who waits for it."""

    def __init__(self, database: Database, audit: Audit) -> None:
        super().__init__(database)
        self._audit = audit

    async def take(self, request: LockRequest, *, wait: bool = True) -> Taken | Busy:
        """Take a lock that is free, or whose holder is dead, or that this owner holds already: each time with a new token, larger than all
        before it. A lock that others wait for goes to the first of them that could take it. With `wait`, an owner that does not get it
        stands in the line, or keeps its place there. Raises TooManyLocks."""
        if request.ttl_s is not None and (busy := await self._still_busy(request)) is not None:
            return busy
        return await self._db.transact(lambda c: _take(c, request, wait=wait))

    async def _still_busy(self, request: LockRequest) -> Busy | None:
        """Whether a program that waits in the line has to wait on. It is a read: when a lock is free, all that wait for it look, and only the
        first of them has to take turns with others at the counter."""
        lock = {"tenant": request.tenant, "name": request.name, "owner": request.owner}
        rows = await self._db.fetch("lock_still", fresh_s=_waiter_ttl_s(request.ttl_s) / 2, **lock)
        holder, ahead = rows[0] if rows else (None, None)
        if holder is not None:
            return Busy(holder)
        return None if ahead is None else Busy(ahead, holds=False)

    async def renew(self, request: LockRequest, token: int) -> bool:
        """Renew the lease of a program; False when it has ended, or the lock was taken or released since."""
        values = {"tenant": request.tenant, "name": request.name, "owner": request.owner, "token": token}
        return bool(await self._db.write("lock_renew", ttl_s=request.ttl_s, **values))

    async def leave(self, request: LockRequest, token: int | None = None) -> bool:
        """Free a lock that this owner holds with that token, or (None) leave its line; False when it does not any more."""
        return await self._db.transact(lambda c: _leave(c, request, token))

    async def call_next(self) -> list[str]:
        """Send a message to each task whose turn it is, and forget the locks of tasks and programs that are gone. Returns the tasks."""
        await self._db.write("locks_of_the_dead")
        called: list[str] = []
        for tenant, name in await self._db.fetch("lock_lines", limit=MAX_CALLS):
            first = await self._db.fetch("lock_first", tenant=tenant, name=name)
            if first and first[0][1] is not None:
                owner, task_id, place = first[0]
                if await self._db.transact(functools.partial(_call, row=(tenant, name, owner, task_id, place))):
                    called.append(task_id)
        return called

    async def release(self, tenant: str, name: str, event: AuditEvent) -> tuple[str, int, str, str] | None:
        """Take a lock from its holder, a task or a program, and add the audit event. Returns the holder's label, its token, the coordinator
        outside of the database, and the owner; None where no one holds the lock."""

        async def job(connection: Connection) -> Any:
            await connection.lock("lock_bucket", bucket=bucket_of(tenant, name))
            row = await connection.first("lock_release", tenant=tenant, name=name)
            if row is not None:
                await self._audit.append_within(connection, event)
            return row

        row = await self._db.transact(job)
        return None if row is None else (row[0], row[1], row[2], row[3])

    async def list(self, whose: str | None, limit: int, after: tuple[str, str] = ("", "")) -> list[Lock]:
        """Locks that are held or waited for, by tenant and name, after a tenant and name. (See `seen_by` for `whose`.)"""
        place = {"after_tenant": after[0], "after_name": after[1], "limit": limit}
        names = await self._db.fetch("lock_names", **seen_by(whose), **place)
        return [await self._lock(tenant, name, waiting) for tenant, name, waiting in names]

    async def get(self, tenant: str, name: str) -> Lock | None:
        """One lock; None when it is free and no one waits for it."""
        ((waiting, _),) = await self._db.fetch("lock_line", tenant=tenant, name=name)
        lock = await self._lock(tenant, name, waiting)
        return lock if lock.holder is not None or waiting else None

    async def _lock(self, tenant: str, name: str, waiting: int) -> Lock:
        rows = await self._db.fetch("lock_contenders", tenant=tenant, name=name, limit=SHOWN_WAITERS + 1)
        people = [(token, LockHolder(label, task, since, until)) for label, task, token, since, until, _ in rows]
        held = next(((token, holder) for token, holder in people if token is not None), (None, None))
        waiters = tuple(holder for token, holder in people if token is None)[:SHOWN_WAITERS]
        outside = rows[0][5] if rows else ""
        token = None if outside else held[0]  # a coordinator outside of the database counts its own
        return Lock(name, tenant or None, token, held[1], waiters, waiting, outside or "store")

    async def outside(self, limit: int, after: tuple[str, str] = ("", "")) -> Outside:
        """Locks that tasks hold with a coordinator outside of the database: tenant, name, owner and label, in the order of the first two."""
        rows = await self._db.fetch("locks_outside", after_tenant=after[0], after_name=after[1], limit=limit)
        return [(tenant, name, owner, label) for tenant, name, owner, label in rows]


async def _take(connection: Connection, request: LockRequest, *, wait: bool) -> Taken | Busy:
    lock = {"tenant": request.tenant, "name": request.name}
    bucket = bucket_of(request.tenant, request.name)
    await connection.lock("lock_bucket", bucket=bucket)
    mine = await connection.first("lock_row", **lock, owner=request.owner)
    if mine is None and request.task_id is not None:
        (count,) = await connection.first("locks_of_task", id=request.task_id)
        if count >= MAX_LOCKS_OF_TASK:
            raise TooManyLocks(
                f"task {request.task_id} holds or waits for {count} locks, which is the most that a task may"
            )
    values = request._asdict() | {"bucket": bucket}
    busy = await _busy(connection, request)
    if busy is None:
        (token,) = await connection.first("lock_count", bucket=bucket)
        await connection.run("lock_hold", **values | {"token": token})
        return Taken(token)
    if wait:
        waiting, last = await connection.first("lock_line", **lock)
        if mine is None and waiting >= MAX_WAITERS:
            raise TooManyLocks(
                f"{waiting:,} tasks and programs wait for lock {request.name!r} already; `onward locks` shows its holder"
            )
        ttl = None if request.ttl_s is None else _waiter_ttl_s(request.ttl_s)
        await connection.run("lock_wait", **values | {"place": last + 1, "ttl_s": ttl})
    return busy


def _waiter_ttl_s(ttl_s: float | None) -> float:
    return WAITER_TTL_S if ttl_s is None else min(ttl_s, WAITER_TTL_S)


async def _busy(connection: Connection, request: LockRequest) -> Busy | None:
    """Who has the lock, or comes first; None when this owner may take it. A holder that is dead loses it here."""
    lock = {"tenant": request.tenant, "name": request.name}
    holder = await connection.first("lock_holder", **lock)
    if holder is not None:
        owner, label, since, lives = holder
        if owner == request.owner:
            return None
        if lives:
            return Busy(label, since)
    if (ahead := await connection.first("lock_ahead", **lock, owner=request.owner)) is not None:
        return Busy(ahead[0], ahead[1], holds=False)
    if holder is not None:
        tenant, name = request.tenant, request.name
        await connection.run("lock_drop", tenant=tenant, name=name, owner=owner, any_token=True, token=0)
    return None


async def _leave(connection: Connection, request: LockRequest, token: int | None) -> bool:
    await connection.lock("lock_bucket", bucket=bucket_of(request.tenant, request.name))
    values = {"tenant": request.tenant, "name": request.name, "owner": request.owner}
    return await connection.first("lock_drop", any_token=token is None, token=token or 0, **values) is not None


async def _call(connection: Connection, row: tuple[str, str, str, str, int]) -> bool:
    """Tell a task that it is its turn, unless another process has just done so."""
    tenant, name, owner, task_id, place = row
    await connection.lock("lock_rows", ids=[task_id])
    woken = await connection.first("lock_woken", tenant=tenant, name=name, owner=owner, again_s=CALL_AGAIN_S)
    if woken is None:
        return False
    message = Message(f"lock {bucket_of(tenant, name)}.{place}.{woken[0]!r}", MESSAGE, name, None, b"null")
    return await post_message(connection, task_id, message) is not None
