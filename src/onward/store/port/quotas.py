"""The port of the quotas of outside services: which are used up, and until when."""

from __future__ import annotations

from typing import Protocol

from onward.core.quota import Shut


class Quotas(Protocol):
    """Quotas that were used up, by name."""

    async def get(self, name: str) -> Shut | None:
        """How long this quota is used up; None when it never was, or the service answered since."""
        ...

    async def shut(self, name: str, seconds: float | None, why: str) -> Shut:
        """Record that a quota is used up for so many seconds from now; a longer time that is stored already stays. Without a time the
        pause is short, and twice as long as the one before when the service has not answered since."""
        ...

    async def reopen(self, name: str, until: float) -> None:
        """Record that the service answers again. Nothing happens when another time than `until` was stored meanwhile."""
        ...
