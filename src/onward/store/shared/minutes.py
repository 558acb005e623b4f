"""Minutes: what the workers did in each minute of the last day. Its cost is bounded: the table has one row for a minute, and no query
looks at tasks that have ended."""

from __future__ import annotations

from typing import NamedTuple

from onward.store.shared.database import OverDatabase

KEPT_MINUTES = 25 * 60
"""Minutes that the table keeps."""

DROP_EVERY_MINUTES = 30
"""Only additions to each such minute drop old ones: a worker that becomes idle sends one statement, and not two."""

MAX_WAITING = 10_000
"""Tasks that wait to be started up to which they are counted."""


class Minute(NamedTuple):
    """What happened in a minute."""

    minute: int
    """Seconds since 1970, divided by 60."""
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    seconds: float = 0.0
    """The sum of the times from the submit to the end, of the tasks that ended."""
    slowest: float = 0.0
    """The longest of them."""
    cost: float = 0.0
    """Dollars that these tasks spent on models, where the price is known."""
    waiting: int = 0
    """The most tasks that waited to be started, as the workers saw it; at most `MAX_WAITING`."""


class Minutes(OverDatabase):
    """The minutes of the last day."""

    async def add(self, minute: Minute) -> None:
        """Add what a worker did in a minute, with the number of tasks that wait now; and drop minutes that are too old, now and then."""
        fields = minute._asdict()
        del fields["waiting"]
        await self._db.write("add_minute", **fields, most=MAX_WAITING)
        if minute.minute % DROP_EVERY_MINUTES == 0:
            await self._db.write("drop_minutes", before=minute.minute - KEPT_MINUTES)

    async def since(self, minute: int) -> list[Minute]:
        """The minutes from this one on, in order. A minute in which no worker did anything has no row."""
        return [Minute(*row) for row in await self._db.fetch("minutes", since=minute, most=KEPT_MINUTES + 60)]
