"""The part of the door that only looks: what a console, or a person at a terminal, wants to see beside the tasks themselves.

A part of `Door`, in a file of its own because that one is long.
"""

from __future__ import annotations

from typing import Any

from onward.core.caller import READ
from onward.core.task import Tasks
from onward.edge.entrance import Entrance
from onward.edge.errors import NotForTenants
from onward.handlers import HandlerView
from onward.journals import RecordView, Timeline, Turn, TurnView

Handlers = list[HandlerView]
Turns = list[TurnView]


class Looking(Entrance):
    """See `Door`."""

    def _whose(self, tenant: str | None) -> str | None:
        """Whose tasks are meant: those of a tenant that was named, where this caller may see them; else all that it sees. Raises
        NotForTenants."""
        sees = self.caller.sees
        if tenant is not None and sees is not None and tenant != sees:
            raise NotForTenants(f"the tasks of tenant {tenant!r:.80}", sees, self.caller.name)
        return sees if tenant is None else tenant

    async def list(self, *, tenant: str | None = None, **which: Any) -> tuple[Tasks, str | None]:
        """Tasks, newest first, and the cursor for the next page, as `Service.list` has it; with `tenant`, those of that one."""
        self.need(READ)
        return await self.service.list(whose=self._whose(tenant), **which)

    async def handlers(self) -> Handlers:
        """What can be asked for, by name: the same for every tenant."""
        self.need(READ)
        return await self.service.handlers.list()

    async def timeline(self, task_id: str, after: int = 0) -> Timeline:
        """How a task came to where it is, as a waterfall."""
        await self._own(READ, task_id)
        return await self.service.journals.timeline(task_id, after)

    async def record(self, task_id: str, seq: int) -> RecordView:
        """One record, with what went in and what came out. Raises NotFound."""
        await self._own(READ, task_id)
        return await self.service.journals.record(task_id, seq)

    async def turns(self, task_id: str, after: int = 0, limit: int = 100) -> Turns:
        """The turns of an agent, in order."""
        await self._own(READ, task_id)
        return await self.service.journals.turns(task_id, after, limit)

    async def turn(self, task_id: str, number: int) -> Turn:
        """What its model saw and said in one of them. Raises NotFound."""
        await self._own(READ, task_id)
        return await self.service.journals.turn(task_id, number)
