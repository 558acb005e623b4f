"""Quotas of tenants, and how many tasks each tenant has."""

from __future__ import annotations

from collections.abc import Sequence

from onward.core.audit import AuditEvent
from onward.store.shared.audit import Audit
from onward.store.shared.database import Connection, Database, OverDatabase


class TenantQuotas(OverDatabase):
    """The quotas that were given to tenants, by tenant."""

    def __init__(self, database: Database, audit: Audit) -> None:
        super().__init__(database)
        self._audit = audit

    async def all(self) -> dict[str, bytes]:
        """The quotas of all tenants that have some of their own, as JSON."""
        return dict([tuple(row) for row in await self._db.fetch("tenant_quotas")])

    async def set(self, tenant: str, quota: bytes | None, event: AuditEvent) -> None:
        """Give a tenant these quotas, or with None those of the settings, and add the audit event, in one transaction."""

        async def job(connection: Connection) -> None:
            if quota is None:
                await connection.run("reset_tenant_quota", tenant=tenant)
            else:
                await connection.run("set_tenant_quota", tenant=tenant, quota=quota)
            await self._audit.append_within(connection, event)

        await self._db.transact(job)

    async def tenants(self, after: str, limit: int) -> list[str]:
        """Tenants with a key, a session or quotas of their own, by name, after a name."""
        return [row[0] for row in await self._db.fetch("tenants", after=after, limit=limit)]

    async def depth(self, turn_groups: Sequence[str]) -> dict[str, int]:
        """How many tasks with these turn groups are unfinished and held by no worker, by queue."""
        return dict([tuple(row) for row in await self._db.fetch("tenant_depth", turn_groups=list(turn_groups))])
