"""Quotas of others, in the store: what is used up, and until when. A part of the Store's contract."""

from __future__ import annotations

from typing import Protocol

from onward.core.quota import Shut


class Quotas(Protocol):
    """What every Store keeps about the quotas of others. The promises of all verbs of the Store hold here too."""

    async def shut(self, name: str) -> Shut | None:
        """What is known of this: None when it was never used up, or answered since."""
        ...

    async def shut_for(self, name: str, seconds: float | None, why: str) -> Shut:
        """It is used up: for so many seconds from now, and not shorter than somebody else was told. Without a time: for a
        while, and, when it was used up before and has not answered since, for twice as long as then."""
        ...

    async def reopen(self, name: str, until: float) -> None:
        """It answers again. Nothing happens when somebody was told another time meanwhile."""
        ...
