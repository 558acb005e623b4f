"""Quotas of outside services: which are used up, and until when."""

from __future__ import annotations

from onward.core.quota import FIRST_PAUSE_S, MAX_PAUSE_S, Shut
from onward.store.shared.database import OverDatabase


class Quotas(OverDatabase):
    """Quotas that were used up, by name."""

    async def get(self, name: str) -> Shut | None:
        """How long this quota is used up; None when it never was, or the service answered since."""
        rows = await self._db.fetch("quota_of", name=name)
        return Shut(*rows[0]) if rows else None

    async def shut(self, name: str, seconds: float | None, why: str) -> Shut:
        """Record that a quota is used up for so many seconds from now; a longer time that is stored already stays. Without a time the
        pause is short, and twice as long as the one before when the service has not answered since."""
        (row,) = await self._db.write(
            "shut_quota", name=name, seconds=seconds, why=why, first=FIRST_PAUSE_S, cap=MAX_PAUSE_S
        )
        return Shut(*row)

    async def reopen(self, name: str, until: float) -> None:
        """Record that the service answers again. Nothing happens when another time than `until` was stored meanwhile."""
        await self._db.write("reopen_quota", name=name, until=until)
