"""Minutes: what the workers did in each minute of the last day. Its cost is bounded: the table has one row for a minute, and no query
looks at tasks that have ended."""

from __future__ import annotations

from typing import Any, NamedTuple

from onward.core.task import State
from onward.core.usage import Usage
from onward.store.shared.database import OverDatabase

MINUTE_S = 60

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

    def with_end(self, state: State, took: float, usage: Usage | None) -> Minute:
        """The same with one more task that has ended, so many seconds after its submit."""
        return self._replace(
            completed=self.completed + (state == State.COMPLETED),
            failed=self.failed + (state == State.FAILED),
            cancelled=self.cancelled + (state == State.CANCELLED),
            seconds=self.seconds + took,
            slowest=max(self.slowest, took),
            cost=self.cost + ((usage.cost_usd or 0.0) if usage is not None else 0.0),
        )

    def to_add(self) -> dict[str, Any]:
        """The values of the statement `add_minute`."""
        fields = self._asdict()
        del fields["waiting"]
        return fields | {"most": MAX_WAITING}

    def drops_before(self) -> int | None:
        """The minute before which an addition to this one drops minutes; None where it drops none."""
        return None if self.minute % DROP_EVERY_MINUTES else self.minute - KEPT_MINUTES


class Minutes(OverDatabase):
    """The minutes of the last day."""

    async def add(self, minute: Minute) -> None:
        """Add what a worker did in a minute, with the number of tasks that wait now; and drop minutes that are too old, now and then."""
        await self._db.write("add_minute", **minute.to_add())
        if (before := minute.drops_before()) is not None:
            await self._db.write("drop_minutes", before=before)

    async def since(self, minute: int) -> list[Minute]:
        """The minutes from this one on, in order. A minute in which no worker did anything has no row."""
        return [Minute(*row) for row in await self._db.fetch("minutes", since=minute, most=KEPT_MINUTES + 60)]
