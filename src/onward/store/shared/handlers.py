"""Handlers that workers have registered."""

from __future__ import annotations

from collections.abc import Sequence

from onward.store.shared.database import OverDatabase


class Handlers(OverDatabase):
    """Handlers of all workers, by name."""

    async def register(self, handlers: Sequence[tuple[str, bytes]]) -> None:
        """Store names of handlers, and the description of each."""
        # Sorted: two workers that register the same handlers lock their rows in one order.
        await self._db.write_many("offer", [{"name": name, "schema": schema} for name, schema in sorted(handlers)])

    async def registered(self) -> dict[str, bytes]:
        """The descriptions of all handlers that were ever registered, by name."""
        return {row[0]: row[1] for row in await self._db.fetch("offered")}
