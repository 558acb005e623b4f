"""Quotas of others on PostgreSQL."""

from __future__ import annotations

from typing import Any

from onward.core.quota import FIRST_PAUSE_S, MAX_PAUSE_S, Shut


class PostgresQuotas:
    """See `Quotas` for what each verb promises."""

    _fetch: Any
    _execute: Any

    async def shut(self, name: str) -> Shut | None:
        found = await self._fetch("quota_of", name=name)
        return Shut(*found[0]) if found else None

    async def shut_for(self, name: str, seconds: float | None, why: str) -> Shut:
        (row,) = await self._fetch(
            "shut_quota", name=name, seconds=seconds, why=why, first=FIRST_PAUSE_S, cap=MAX_PAUSE_S
        )
        return Shut(*row)

    async def reopen(self, name: str, until: float) -> None:
        await self._execute("reopen_quota", name=name, until=until)
