"""The part of the door that only looks: what a console, or a person at a terminal, wants to see beside the tasks themselves.

A part of `Door`, in a file of its own because that one is long.
"""

from __future__ import annotations

from onward.core.caller import READ
from onward.edge.entrance import Entrance
from onward.handlers import HandlerView

Handlers = list[HandlerView]


class Looking(Entrance):
    """See `Door`."""

    async def handlers(self) -> Handlers:
        """What can be asked for, by name: the same for every tenant."""
        self.need(READ)
        return await self.service.handlers.list()
