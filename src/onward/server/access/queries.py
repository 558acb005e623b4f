"""The part of the door that only looks: what a console, or a person at a terminal, wants to see beside the tasks themselves.

A part of `Door`, in a file of its own because that one is long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core.caller import ADMIN, READ, SUBMIT
from onward.core.task import SAME, Tasks
from onward.core.views import Acted, HandlerView, Health, RecordView, Timeline, TurnView, UsageReport
from onward.server.access.base import AccessBase
from onward.server.access.errors import NotForTenants
from onward.service.forks import ForkPlan
from onward.service.timeline import Turn

Handlers = list[HandlerView]
Turns = list[TurnView]


class Queries(AccessBase):
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

    async def children(self, task_id: str, limit: int = 100, cursor: str | None = None) -> tuple[Tasks, str | None]:
        """The children of a task, newest first, and the cursor for the next page."""
        await self._own(READ, task_id)
        return await self.service.list(parent=task_id, limit=limit, cursor=cursor, whose=self.caller.sees)

    async def count(self, *, tenant: str | None = None, **which: Any) -> tuple[int, bool]:
        """How many tasks such a list has, and whether there may be more."""
        self.need(READ)
        return await self.service.count(whose=self._whose(tenant), **which)

    async def act(
        self, action: str, count: int, *, priority: int | None = None, tenant: str | None = None, **which: Any
    ) -> Acted:
        """Cancel, resume, pause, prioritize or prune all tasks that such a list has. Raises MoreMatch when they are far more than `count`. One
        entry in the audit, where there are any."""
        self.need(ADMIN if action == "prune" else SUBMIT)
        whose, many = self._whose(tenant), self.service.bulk
        ids = await many.find(action, count, priority=priority, whose=whose, **which)
        if not ids:
            return Acted(0, 0, ())
        said = {name: value for name, value in which.items() if value}
        about = {"filter": said, "tasks": len(ids), "priority": priority}
        deed = self._deed(f"{action}_many", "tasks", self.caller.tenant, **about)
        await self.service.audit.write_down(deed)
        return await many.act(action, ids, priority)

    async def fork_plan(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> ForkPlan:  # noqa: A002
        """What a fork would come to; nothing is made. Raises CannotFork."""
        self.need(SUBMIT)
        await self._own(READ, task_id)
        return await self.service.forks.plan(task_id, at, input=input)

    async def usage(self, by: str, since: float | None = None, until: float | None = None) -> UsageReport:
        """What models took, in groups, of all tasks that the caller sees."""
        self.need(READ)
        return await self.service.usage(by, since=since, until=until, whose=self.caller.sees)

    async def system(self, settings: Mapping[str, Any], version: str) -> Health:
        """The database, the settings and the versions, and whether all is well."""
        self._place(ADMIN, "the system")
        return await self.service.health.look(settings, version)

    async def handlers(self) -> Handlers:
        """What can be asked for, by name: the same for every tenant."""
        self.need(READ)
        return await self.service.handlers.list()

    async def timeline(self, task_id: str, after: int = 0) -> Timeline:
        """How a task came to where it is, as a waterfall."""
        await self._own(READ, task_id)
        return await self.service.timelines.timeline(task_id, after)

    async def record(self, task_id: str, seq: int) -> RecordView:
        """One record, with what went in and what came out. Raises NotFound."""
        await self._own(READ, task_id)
        return await self.service.timelines.record(task_id, seq)

    async def turns(self, task_id: str, after: int = 0, limit: int = 100) -> Turns:
        """The turns of an agent, in order."""
        await self._own(READ, task_id)
        return await self.service.timelines.turns(task_id, after, limit)

    async def turn(self, task_id: str, number: int) -> Turn:
        """What its model saw and said in one of them. Raises NotFound."""
        await self._own(READ, task_id)
        return await self.service.timelines.turn(task_id, number)
