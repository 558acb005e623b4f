"""Quotas of others on SQLite."""

from __future__ import annotations

from typing import Any

from onward.core.quota import FIRST_PAUSE_S, MAX_PAUSE_S, Shut
from onward.store.sqlite.execute import first, run


class SqliteQuotas:
    """See `Quotas` for what each verb promises."""

    _reading: Any
    _writing: Any

    async def shut(self, name: str) -> Shut | None:
        found = await self._reading(lambda c: first(c, "quota_of", name=name))
        return None if found is None else Shut(*found)

    async def shut_for(self, name: str, seconds: float | None, why: str) -> Shut:
        asked = {"name": name, "seconds": seconds, "why": why, "first": FIRST_PAUSE_S, "cap": MAX_PAUSE_S}
        (row,) = await self._writing(lambda c: list(run(c, "shut_quota", **asked)))
        return Shut(*row)

    async def reopen(self, name: str, until: float) -> None:
        await self._writing(lambda c: run(c, "reopen_quota", name=name, until=until))
