"""The part of `AuthorizedService` that reads, for a console or a person at a terminal; and bulk actions on what a list shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from onward.core.caller import ADMIN, READ, SUBMIT
from onward.core.journal.explain import Explanation
from onward.core.page import Page
from onward.core.record import Record
from onward.core.task import SAME, Tasks
from onward.core.views import (
    Acted,
    Ask,
    DeadLetterContent,
    HandlerView,
    Health,
    Intake,
    Queue,
    RecordView,
    Timeline,
    TurnView,
    UsageReport,
)
from onward.server.access.base import AccessBase
from onward.service.audit import Verdict
from onward.service.encryption import EncryptionStatus
from onward.service.forks import ForkPlan
from onward.service.intakes import MAX_BODY_BYTES, DeadLetterList
from onward.service.timeline import Turn
from onward.store.shared.intakes import PAGE_INTAKES
from onward.store.shared.workers import PAGE_HANDLERS

CONTENT_FILTERS = ("text", "labels", "key")
"""Filters by the content of tasks."""

Records = list[Record]
Turns = list[TurnView]


class Queries(AccessBase):
    """The base class of `AuthorizedService` with its queries."""

    def _tenant_filter(self, tenant: str | None) -> str | None:
        """The tenant whose tasks are meant: the named one, if this caller may see it; otherwise all that the caller sees.
        Raises NotForTenants."""
        sees = self.caller.sees
        if tenant is not None and sees is not None and tenant != sees:
            raise self._beyond_tenant(f"the tasks of tenant {tenant!r:.80}", sees)
        return sees if tenant is None else tenant

    async def list(self, *, tenant: str | None = None, **filters: Any) -> tuple[Tasks, str | None]:
        """Tasks, newest first, and the cursor for the next page, as from `Service.list`; with `tenant`, only tasks of that
        tenant."""
        self.need(READ)
        async with self._database_turn():
            return await self.service.list(whose=self._tenant_filter(tenant), **filters)

    async def list_explained(
        self, *, tenant: str | None = None, **filters: Any
    ) -> tuple[Tasks, dict[str, Explanation], str | None]:
        """The same, with an explanation of the state of each task by its id."""
        tasks, cursor = await self.list(tenant=tenant, **filters)
        return tasks, await self.service.explainer.of(tasks), cursor

    async def children(self, task_id: str, limit: int = 100, cursor: str | None = None) -> tuple[Tasks, str | None]:
        """The children of a task, newest first, and the cursor for the next page."""
        await self._own(READ, task_id)
        async with self._database_turn():
            return await self.service.list(parent=task_id, limit=limit, cursor=cursor, whose=self.caller.sees)

    async def count(self, *, tenant: str | None = None, **filters: Any) -> tuple[int, bool]:
        """How many tasks such a list has, and whether there may be more."""
        self.need(READ)
        async with self._database_turn():
            return await self.service.count(whose=self._tenant_filter(tenant), **filters)

    async def act(
        self, action: str, count: int, *, priority: int | None = None, tenant: str | None = None, **filters: Any
    ) -> Acted:
        """Cancel, resume, pause, prioritize or prune all tasks that such a list has. Raises MoreMatch if they are far more than
        `count`. Writes one audit entry if any task matches."""
        self.need(ADMIN if action == "prune" else SUBMIT)
        if any(filters.get(name) for name in CONTENT_FILTERS):
            self.need(READ)  # the number of matches would tell what inputs, keys and labels contain
        await self._check_priority(priority)
        whose, bulk = self._tenant_filter(tenant), self.service.bulk
        ids = await bulk.find(action, count, priority=priority, whose=whose, **filters)
        if not ids:
            return Acted(0, 0, ())
        criteria = {name: value for name, value in filters.items() if value}
        details = {"filter": criteria, "tasks": len(ids), "priority": priority}
        event = self._audit_event(f"{action}_many", "tasks", self.caller.tenant, **details)
        async with self._audited(event):
            return await bulk.act(action, ids, priority, asker=self.caller.principal)

    async def fork_plan(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> ForkPlan:  # noqa: A002
        """The preview of a fork; no task is created. Raises CannotFork."""
        self.need(SUBMIT)
        await self._own(READ, task_id)
        return await self.service.forks.plan(task_id, at, input=input)

    async def fork_places(self, task_id: str) -> Records:
        """The records after which a task can be forked, without their payloads."""
        await self._own(READ, task_id)
        return await self.service.forks.places(task_id)

    async def usage(self, by: str, since: float | None = None, until: float | None = None) -> UsageReport:
        """Model usage in groups, of all tasks that the caller sees."""
        self.need(READ)
        async with self._database_turn():
            return await self.service.usage(by, since=since, until=until, whose=self.caller.sees)

    async def system(self, settings: Mapping[str, Any], version: str) -> Health:
        """The database, the settings and the versions, and the findings of `onward doctor`."""
        self._check_no_tenant(ADMIN, "the system")
        return await self.service.health.look(settings, version)

    async def verify_audit(self, heads: Sequence[str] = ()) -> Verdict:
        """Check every entry of the audit log; with `heads` that were noted before, also that the log still has them."""
        self._check_no_tenant(ADMIN, "the whole audit log")
        return await self.service.audit.verify(heads)

    async def encryption(self) -> EncryptionStatus:
        """Which master keys are in use."""
        self._check_no_tenant(ADMIN, "the encryption")
        return await self.service.encryption.status()

    async def queue(self, name: str) -> Queue:
        """One queue; an unknown one is empty."""
        self._check_no_tenant(READ, "the queues")
        return await self.service.cluster.queue(name)

    async def handlers(self, *, limit: int = PAGE_HANDLERS, cursor: str | None = None) -> Page[HandlerView]:
        """A page of the handlers, by name: the same for every tenant."""
        self.need(READ)
        return await self.service.handlers.page(limit=limit, cursor=cursor)

    async def timeline(self, task_id: str, after: int = 0) -> Timeline:
        """The history of a task as a waterfall."""
        await self._own(READ, task_id)
        return await self.service.timelines.timeline(task_id, after)

    async def record(self, task_id: str, seq: int) -> RecordView:
        """One record, with its input and output. Raises NotFound."""
        await self._own(READ, task_id)
        return await self.service.timelines.record(task_id, seq)

    async def turns(self, task_id: str, after: int = 0, limit: int = 100) -> Turns:
        """The turns of an agent, in order."""
        await self._own(READ, task_id)
        return await self.service.timelines.turns(task_id, after, limit)

    async def turn(self, task_id: str, number: int) -> Turn:
        """The messages that the model received in a turn, and its reply. Raises NotFound."""
        await self._own(READ, task_id)
        return await self.service.timelines.turn(task_id, number)

    async def asks_of_one(self, task_id: str, kind: str, *, cursor: str | None = None) -> Page[Ask]:
        """A page of the open questions or approvals of one task alone."""
        await self._own(READ, task_id)
        async with self._database_turn():
            return await self.service.asks.of_one(task_id, kind, cursor)

    # ── intakes and dead letters ─────────────────────────────────────────────────────────────────────────────────

    async def intakes(self, *, limit: int = PAGE_INTAKES, cursor: str | None = None) -> Page[Intake]:
        """A page of the intakes whose messages the caller sees. A caller with a tenant does not see their processes: those are machines of
        the operator."""
        self.need(READ)
        async with self._database_turn():
            page = await self.service.intakes.page(self.caller.sees, limit=limit, cursor=cursor)
        if self.caller.tenant is None:
            return page
        return Page([dataclasses.replace(intake, detail="", processes=()) for intake in page], page.next)

    async def dead_letters(
        self, intake: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> tuple[DeadLetterList, str | None]:
        """Dead letters, newest first, without their content, and the cursor for the next page."""
        self.need(READ)
        async with self._database_turn():
            return await self.service.dead_letters.list(intake, limit=limit, cursor=cursor, whose=self.caller.sees)

    async def dead_letter(self, letter_id: str, *, most: int = MAX_BODY_BYTES) -> DeadLetterContent:
        """One dead letter with its headers and the first `most` bytes of its body. Raises NotFound."""
        self.need(READ)
        async with self._database_turn():
            return await self.service.dead_letters.get(letter_id, most=most, whose=self.caller.sees)

    async def redrive_letters(
        self,
        letter_id: str | None = None,
        *,
        intake: str | None = None,
        all: bool = False,  # noqa: A002 -- the name in every interface
    ) -> int:
        """Try again one dead letter, those of an intake, or all that the caller sees; how many that were. Raises NotFound."""
        self.need(SUBMIT)
        async with self._database_turn():
            if letter_id is not None:  # a read, which row-level security restricts to the tenant
                await self.service.dead_letters.check_exists(letter_id, self.caller.sees)
            return await self.service.dead_letters.redrive(
                letter_id, intake=intake, all=all, whose=self.caller.sees, by=self.caller
            )

    async def drop_letters(
        self,
        letter_id: str | None = None,
        *,
        intake: str | None = None,
        all: bool = False,  # noqa: A002 -- the name in every interface
    ) -> int:
        """Delete one dead letter, those of an intake, or all that the caller sees; how many that were. Raises NotFound."""
        self.need(ADMIN)
        async with self._database_turn():
            if letter_id is not None:  # a read, which row-level security restricts to the tenant
                await self.service.dead_letters.check_exists(letter_id, self.caller.sees)
            return await self.service.dead_letters.drop(
                letter_id, intake=intake, all=all, whose=self.caller.sees, by=self.caller
            )
