"""The entrance: what every verb of the door goes through before it does anything. See `server/access/service.py` for which of them is for what."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from onward.core.audit import AuditEvent
from onward.core.caller import ADMIN, READ, SUBMIT, Caller
from onward.core.task import Task
from onward.core.views import Ask
from onward.errors import Forbidden
from onward.server.access.errors import NotForTenants, OwnCall
from onward.service.service import Service
from onward.service.submission import named


class AccessBase:
    """Who asks, and what is looked at before anything is done."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.service, self.caller = service, caller

    def need(self, scope: str) -> None:
        """Raises Forbidden when the caller may not do what this scope is for."""
        if scope not in self.caller.scopes:
            raise Forbidden(scope, self.caller.name)

    def need_any(self, scopes: Sequence[str]) -> None:
        """Raises Forbidden when the caller has none of these scopes."""
        if self.caller.scopes.isdisjoint(scopes):
            raise Forbidden(scopes[0], self.caller.name)

    async def _own(self, scope: str, task_id: str) -> Task:
        """A task that this caller may touch in this way. Raises Forbidden, and TaskNotFound for a foreign one too."""
        self.need(scope)
        return await self.service.get(task_id, self.caller.sees)

    async def _ask(self, scope: str, ask_id: str) -> Ask:
        """A question or approval of a task that this caller may touch in this way. Raises Forbidden, and NotFound."""
        self.need(scope)
        return await self.service.messages.ask(ask_id, self.caller.sees)

    async def _decides(self, task: Task) -> None:
        """Raises OwnCall where an agent would decide, with its own key, on what it has a part in."""
        agent = self.caller.agent
        if agent is not None and await self.service.keys.concerns(agent, task.task_id):
            raise OwnCall(task.task_id, agent, self.caller.name)

    def _place(self, scope: str, what: str) -> None:
        """What belongs to no tenant. Raises Forbidden for a caller of one."""
        self.need(scope)
        if self.caller.tenant is not None:
            raise NotForTenants(what, self.caller.tenant, self.caller.name)

    def _deed(self, action: str, subject: str, tenant: str | None, **data: Any) -> AuditEvent:
        said = {name: value for name, value in data.items() if value is not None and value is not False}
        return AuditEvent(action, subject, tenant, self.caller.key, self.caller.name, said)

    async def _steers(self, action: str, task_id: str, **data: Any) -> Task:
        """A task that this caller may steer; what it does is written down."""
        task = await self._own(SUBMIT, task_id)
        await self.service.audit.write_down(self._deed(action, task_id, task.tenant, **data))
        return task

    async def _runs(self, action: str, subject: str, **data: Any) -> None:
        """The same for what belongs to no tenant."""
        self._place(ADMIN, named("a name", subject))
        await self.service.audit.write_down(self._deed(action, subject, None, **data))

    async def _tells(self, action: str, subject: str, **data: Any) -> None:
        """What is done about what goes out is written down."""
        await self.service.audit.write_down(self._deed(action, subject, self.caller.tenant, **data))

    def shown(self, task: Task) -> Task:
        """A task as this caller may see it: whoever may not look is told where it stands, and not what is in it."""
        if READ in self.caller.scopes:
            return task
        return dataclasses.replace(task, input=None, result=None, error=None, labels={}, usage=None)
