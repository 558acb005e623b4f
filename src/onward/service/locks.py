"""Lists locks, and takes them from holders that are stuck. A part of the service."""

from __future__ import annotations

import contextlib
import json

from onward.coordinate.port import Coordinator
from onward.coordinate.store import call_next
from onward.core.audit import AuditEvent
from onward.core.caller import ANYBODY, Caller
from onward.core.lock import Lock, LockRequest, check_lock_name
from onward.core.views import Check
from onward.errors import BadSetting, CoordinatorUnavailable, NotFound, UsageError
from onward.store.port.core import Store

MAX_PAGE = 1_000
"""Locks in one page of a listing."""

MAX_REASON_CHARS = 1_000

LockList = list[Lock]
Checks = list[Check]
"""Names for list types in a class whose method `list` hides the builtin."""


class Locks:
    """The locks of tasks, and those that programs hold with the store as their coordinator."""

    def __init__(self, store: Store, coordinator: Coordinator | None = None) -> None:
        self._store, self._coordinator = store, coordinator

    async def list(
        self, whose: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> tuple[LockList, str | None]:
        """Locks that are held or waited for, by tenant and name, and the cursor for the next page (None at the end). `whose` is a tenant; "" for locks without a tenant,
        None for all."""
        if not 1 <= limit <= MAX_PAGE:
            raise BadSetting("limit", limit, f"between 1 and {MAX_PAGE}")
        page = await self._store.locks.list(whose, limit, _place(cursor))
        return page, json.dumps([page[-1].tenant or "", page[-1].name]) if len(page) == limit else None

    async def release(self, name: str, *, reason: str, tenant: str | None = None, by: Caller = ANYBODY) -> Lock:
        """Take a lock from its holder, and let the next one in; the audit log has who did so, and why. The holder is not stopped: it goes
        on with its token, which is smaller than that of the next one. Raises NotFound where no one holds the lock."""
        check_lock_name(name)
        if not isinstance(reason, str) or not 0 < len(reason.strip()) <= MAX_REASON_CHARS:
            raise UsageError(f"give a reason of 1 to {MAX_REASON_CHARS} characters: the audit log keeps it")
        held = await self._store.locks.get(tenant or "", name)
        if held is None or held.holder is None:
            raise NotFound(f"no one holds a lock {name!r}; `onward locks` lists the locks that are held")
        data = {"reason": reason, "holder": held.holder.holder, "token": held.token}
        event = AuditEvent("release_lock", name, tenant, by.id, by.name, data)
        released = await self._store.locks.release(tenant or "", name, event)
        if released is None:
            raise NotFound(f"no one holds a lock {name!r} any more; it was released just now")
        label, _, outside, owner = released
        if outside and self._coordinator is not None:
            with contextlib.suppress(CoordinatorUnavailable):
                await self._coordinator.free(LockRequest(tenant or "", name, owner, label))
        await call_next(self._store)
        return held

    async def checks(self) -> Checks:
        """For `onward doctor`: whether a coordinator outside of the store answers."""
        if self._coordinator is None:
            return []
        try:
            return [Check("coordinator", True, await self._coordinator.check())]
        except CoordinatorUnavailable as error:
            return [Check("coordinator", False, str(error))]


def _place(cursor: str | None) -> tuple[str, str]:
    """The tenant and name that a cursor stands for. Raises BadSetting."""
    if cursor is None:
        return "", ""
    try:
        tenant, name = json.loads(cursor)
    except ValueError:
        tenant = name = None
    if not isinstance(tenant, str) or not isinstance(name, str):
        raise BadSetting("cursor", cursor[:80], "the `next` of the page before")
    return tenant, name
