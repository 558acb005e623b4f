"""Reads for a tenant, on a database whose tables have row-level security (`onward migrate --roles`).

A read is a transaction of its own: it begins with the role of tenants and with the name of the tenant in the setting `onward.tenant`, and
both end with it. So nothing stays in the session, and a transaction pooler in between changes nothing. The policies of the role
(`roles.py`) show rows of that tenant only, and none without the setting.

These reads have connections of their own: the server plans a prepared statement anew whenever the role of its session has changed.
Writes keep the rights of the process. Every write of a tenant's request follows a read of the same row.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Any

from onward.errors import StoreUnavailable
from onward.store.postgres.pool import Pool
from onward.store.postgres.roles import QUEUE_VIEW
from onward.store.postgres.session import SET_LOCAL, Loan

OF_ALL_TENANTS = frozenset(
    {
        "ahead",
        "data_keys",
        "data_keys_of",
        "depth",
        "has_keys",
        "limits",
        "now",
        "offered",
        "parents",
        "quota_of",
        "size",
        "submitted",
        "tenant_depth",
        "tenant_quotas",
        "workers",
    }
)
"""Statements that read for all tenants, for every caller. They count tasks, read tables without tenants, fill a cache of the process
(`tenant_quotas`), or look for an id or key that was just refused as taken (`submitted`, `parents`). None returns the content of a task."""

_QUEUE = re.compile(r"\bonward_queue\b")

LOOK_EVERY_S = 60.0
"""Seconds after which a process looks again whether the tables have row-level security, while they have none."""

# The role that the policy of tenants on the table of tasks is for.
FIND_ROLE = """
SELECT r.rolname, pg_has_role(r.oid, 'MEMBER') AS member
FROM pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS o(oid) JOIN pg_roles r ON r.oid = o.oid
WHERE p.polrelid = to_regclass('onward_tasks') AND p.polname = 'onward_tenant_rows'
"""


class TenantReads:
    """Whether and how this process reads for one tenant. One per store."""

    def __init__(self) -> None:
        self.role: str | None = None
        """The role of tenants; None while the tables have no row-level security, as far as is known."""
        self._member = False
        self._look_at = 0.0
        self._looking = asyncio.Lock()

    async def find(self, connection: Callable[[], Loan]) -> None:
        """Look for the role, with the rights of this process. A read that comes meanwhile waits here for the answer: before it, no read for a
        tenant may begin."""
        async with self._looking:
            if not self.wants_look:
                return
            async with connection() as session:
                row = await session.fetchrow(FIND_ROLE)
            self.role, self._member = (None, False) if row is None else tuple(row)
            self._look_at = asyncio.get_running_loop().time() + LOOK_EVERY_S

    @property
    def wants_look(self) -> bool:
        """Whether to look for the role: it is not known yet, or this process could not become it."""
        return not self._member and asyncio.get_running_loop().time() >= self._look_at

    def loan(self, pool: Pool, where: str, tenant: str, *, pooled: bool) -> TenantLoan:
        """A connection for the time of an `async with` block, which sees rows of this tenant. Raises StoreUnavailable where the user of
        this process may not become the role of tenants."""
        if self.role is None or not self._member:
            self._look_at = 0.0
            raise StoreUnavailable(
                f"{where} has row-level security, and the user of this process may not become the role {self.role}, with which it reads "
                f"for tenants; connect as a member of the server's role, or run GRANT {self.role} TO this user"
            )
        return TenantLoan(pool, where, begin(self.role, tenant) + (SET_LOCAL if pooled else ""))


def begin(role: str, tenant: str) -> str:
    """The beginning of a read for a tenant, in one message. The name of the tenant is written in hexadecimal digits, so that no quote in
    it can end the string, whatever the settings of the server."""
    value = f"convert_from(decode('{tenant.encode().hex()}', 'hex'), 'UTF8')"
    return f"BEGIN READ ONLY; SET LOCAL ROLE \"{role}\"; SELECT set_config('onward.tenant', {value}, true);"


class _TenantSession:
    """A connection that reads the view of the queue instead of the queue, to which tenants have no right."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *values: Any) -> Any:
        return await self._connection.fetch(_of_tenant(sql), *values)

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        return await self._connection.fetchrow(_of_tenant(sql), *values)


@functools.lru_cache(maxsize=1000)
def _of_tenant(sql: str) -> str:
    return _QUEUE.sub(QUEUE_VIEW, sql)


class TenantLoan(Loan):
    """A connection with the rights of one tenant, for the time of a block."""

    __slots__ = ("_begin_sql",)

    def __init__(self, pool: Pool, where: str, begin: str) -> None:
        super().__init__(pool, where, pooled=True)
        self._begin_sql = begin

    async def __aenter__(self) -> Any:
        return _TenantSession(await super().__aenter__())

    async def _begin(self) -> None:
        await self._connection.execute(self._begin_sql)

    async def _end(self, *, failed: bool) -> None:  # noqa: ARG002 -- both end alike
        await self._connection.execute("ROLLBACK")  # it has only read: that ends it as well as a commit
