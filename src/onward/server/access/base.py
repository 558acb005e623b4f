"""The checks that every method of `AuthorizedService` makes before it does anything. `server/access/service.py` says which
check is for what."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from onward.artifacts.keeper import BeforeLoad
from onward.core.audit import AuditEvent
from onward.core.caller import ADMIN, READ, SUBMIT, Caller
from onward.core.task import State, Task
from onward.core.views import Ask
from onward.errors import Forbidden, NotForTenants, OnwardError, OwnCall
from onward.service.messages import audit_event
from onward.service.process_use import RateState
from onward.service.service import Service
from onward.service.submission import named
from onward.store.port.tenancy import reads_for

A = TypeVar("A", bound=type)


def reads_for_its_tenant(access: A) -> A:
    """A class decorator: every call of a public method reads for the tenant of the caller (`store/port/tenancy.py`)."""
    for name in dir(access):
        method = getattr(access, name)
        if not name.startswith("_") and inspect.iscoroutinefunction(method):
            setattr(access, name, _reading(method))
    return access


def _reading(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(self: AccessBase, *args: Any, **named_args: Any) -> Any:
        with reads_for(self.caller.tenant):
            return await method(self, *args, **named_args)

    return call


class AccessBase:
    """The caller, and the checks of its rights."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.service, self.caller = service, caller

    # ── quotas of the caller's tenant ────────────────────────────────────────────────────────────────────────────

    def admit(self) -> Awaitable[Sequence[RateState]]:
        """Count a request; the rates that hold for it. Raises QuotaExceeded."""
        return self.service.tenant_quotas.admit(self.caller)

    def count_body(self, size: int) -> None:
        """Count the body of a request: a large one counts as several requests."""
        quotas = self.service.tenant_quotas
        quotas.process.take_body(self.caller, quotas.known(self.caller), size)

    def check_stream(self) -> None:
        """Raises QuotaExceeded if the caller's tenant has as many streams open as it may."""
        quotas = self.service.tenant_quotas
        quotas.process.check_stream(self.caller, quotas.known(self.caller))

    def stream(self) -> contextlib.AbstractContextManager[None]:
        """Count a stream while the block lasts."""
        return self.service.tenant_quotas.process.stream(self.caller)

    def stream_turn(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold the turn of the caller's tenant at making messages of streams."""
        return self.service.tenant_quotas.process.stream_turn(self.caller)

    def _database_turn(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold a turn of the caller's tenant at the database while the block lasts (`ProcessUse.turn`)."""
        return self.service.tenant_quotas.process.turn(self.caller)

    async def _check_priority(self, priority: int | None) -> None:
        """Raises PriorityTooHigh if the caller's tenant may not give this priority."""
        await self.service.tenant_quotas.check_priority(self.caller.tenant, priority)

    # ── rights ───────────────────────────────────────────────────────────────────────────────────────────────────

    def need(self, scope: str) -> None:
        """Raises Forbidden if the caller does not have this scope."""
        if scope not in self.caller.scopes:
            raise self._forbidden(scope)

    def need_any(self, scopes: Sequence[str]) -> None:
        """Raises Forbidden if the caller has none of these scopes."""
        if self.caller.scopes.isdisjoint(scopes):
            raise self._forbidden(scopes[0])

    def _forbidden(self, scope: str) -> Forbidden:
        return Forbidden(scope, self.caller.name, person=self.caller.person is not None)

    def _beyond_tenant(self, subject: str, tenant: str) -> NotForTenants:
        return NotForTenants(subject, tenant, self.caller.name, person=self.caller.person is not None)

    async def _own(self, scope: str, task_id: str, most: int = 0) -> Task:
        """The task, if this caller may use it with this scope; its input and result only where they have at most `most` bytes.
        Raises Forbidden; TaskNotFound also for a task of another tenant."""
        self.need(scope)
        return await self.service.get(task_id, self.caller.sees, most=most)

    async def _own_with_room(self, task_id: str) -> Task:
        """The task, if this caller may send it a message. Raises Forbidden, TaskNotFound, and QuotaExceeded when the task has too many
        messages."""
        task = await self._own(SUBMIT, task_id)
        await self.service.tenant_quotas.check_message(self.caller.tenant, task_id)
        return task

    async def _ask(self, scope: str, ask_id: str, before_load: BeforeLoad | None = None) -> Ask:
        """The question or approval, if this caller may use it with this scope. Raises Forbidden and NotFound."""
        self.need(scope)
        return await self.service.asks.get(ask_id, self.caller.sees, before_load)

    async def _check_own_call(self, task: Task) -> None:
        """Raises OwnCall if an agent, with its own key, would decide on a task in which it takes part."""
        agent = self.caller.agent
        if agent is not None and await self.service.keys.concerns(agent, task.task_id):
            raise OwnCall(task.task_id, agent, self.caller.name)

    def _check_no_tenant(self, scope: str, subject: str) -> None:
        """Check the right to something that belongs to no tenant. Raises Forbidden if the caller has a tenant."""
        self.need(scope)
        if self.caller.tenant is not None:
            raise self._beyond_tenant(subject, self.caller.tenant)

    def _audit_event(self, action: str, subject: str, tenant: str | None, **data: Any) -> AuditEvent:
        return audit_event(self.caller, action, subject, tenant, **data)

    @contextlib.asynccontextmanager
    async def _audited(self, event: AuditEvent, *, changes: bool = True) -> AsyncIterator[None]:
        """Writes the event to the audit log before the block. When the block is refused, or cannot change anything, that counts for
        the key: the log has a bounded number of such calls. Raises QuotaExceeded beyond that number; then the call is not made, and
        the next event says how many calls were left out."""
        process, quota = self.service.tenant_quotas.process, self.service.tenant_quotas.known(self.caller)
        if left_out := process.check_refusals(self.caller, quota):
            event = event._replace(data={**event.data, "calls_left_out": left_out})
        async with self._database_turn():
            await self.service.audit.append(event)
        try:
            yield
        except OnwardError:
            changes = False
            raise
        finally:
            if not changes:
                process.take_refusal(self.caller, quota)

    @contextlib.asynccontextmanager
    async def _audited_task(self, action: str, task_id: str, scope: str = SUBMIT, **data: Any) -> AsyncIterator[Task]:
        """The task, if this caller may control it. Writes the action to the audit log, as `_audited` does."""
        task = await self._own(scope, task_id)
        changes = not task.ended or action in {"fork", "prune"} or (action == "resume" and task.state is State.FAILED)
        async with self._audited(self._audit_event(action, task_id, task.tenant, **data), changes=changes):
            yield task

    async def _audit_system(self, action: str, subject: str, **data: Any) -> None:
        """Checks that the caller may change what belongs to no tenant. Writes the action to the audit log."""
        self._check_no_tenant(ADMIN, named("a name", subject))
        await self.service.audit.append(self._audit_event(action, subject, None, **data))

    def _audited_subscription(
        self, action: str, subject: str, **data: Any
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Writes a change to subscriptions to the audit log, as `_audited` does."""
        return self._audited(self._audit_event(action, subject, self.caller.tenant, **data))

    def shown(self, task: Task) -> Task:
        """The task as this caller may see it: without the scope read, only its state and no content."""
        if READ in self.caller.scopes:
            return task
        return dataclasses.replace(task, input=None, result=None, error=None, labels={}, usage=None)
