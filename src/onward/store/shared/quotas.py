"""Quotas of outside services that are used up."""

from __future__ import annotations

from onward.core.quota import FIRST_PAUSE_S, MAX_PAUSE_S, Shut
from onward.store.shared.database import OverDatabase


class Quotas(OverDatabase):
    """See `port.quotas.Quotas` for what each verb promises."""

    async def get(self, name: str) -> Shut | None:
        rows = await self._db.fetch("quota_of", name=name)
        return Shut(*rows[0]) if rows else None

    async def shut(self, name: str, seconds: float | None, why: str) -> Shut:
        (row,) = await self._db.write(
            "shut_quota", name=name, seconds=seconds, why=why, first=FIRST_PAUSE_S, cap=MAX_PAUSE_S
        )
        return Shut(*row)

    async def reopen(self, name: str, until: float) -> None:
        await self._db.write("reopen_quota", name=name, until=until)
