"""The service with the rights of one caller.

HTTP, WebSocket and MCP call the service only through this class, so one place decides what a caller may do: by the scope that a
method needs, and by the tenant of the task. A task of another tenant is treated like one that does not exist.

Each method makes one of five checks: `_own` for a task, `_ask` for a question or an approval, `_check_own_call` for a decision,
`_check_no_tenant` for what belongs to no tenant, `need` with `caller.sees` for lists. Actions that control tasks, decide, or
change the system are written to the audit log: decisions, budgets and keys in the same transaction; the others right before the
action. So an audit entry says what was requested, and the journal what happened.

Every call of a caller with a tenant also reads the database with the rights of that tenant, where it has row-level security.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.artifacts.keeper import PAGE_ARTIFACTS, BeforeLoad
from onward.core import wire
from onward.core.asks import AskedIn
from onward.core.caller import ADMIN, DECIDE, READ, SUBMIT
from onward.core.doubts import Doubt, InDoubt
from onward.core.durations import Duration
from onward.core.history import History
from onward.core.lock import Lock
from onward.core.page import Page
from onward.core.record import Record
from onward.core.task import SAME, Task
from onward.core.views import (
    Ask,
    CodeVersion,
    Decided,
    Delivery,
    Key,
    Queue,
    Schedule,
    Session,
    Spent,
    Stats,
    Subscription,
    TenantUse,
    WorkerView,
)
from onward.errors import KeyConflict, NoState
from onward.server.access.base import reads_for_its_tenant
from onward.server.access.queries import Queries
from onward.service.audit import Entries
from onward.service.cluster import PAGE_WORKERS
from onward.service.keys import NewKey
from onward.service.locks import LockList
from onward.service.submission import SubmitRequest
from onward.service.subscriptions import Deliveries, SubscriptionList
from onward.service.tenant_quotas import TenantUses
from onward.store.port.listing import MAX_ASKS, MAX_BYTES, PAGE_BYTES
from onward.store.port.tenancy import each_for
from onward.store.shared.keys import PAGE_KEYS
from onward.store.shared.overview import PAGE_QUEUES
from onward.store.shared.schedules import PAGE_SCHEDULES
from onward.store.shared.sessions import PAGE_SESSIONS

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef, StatePatch

Doubts = list[Doubt]


@reads_for_its_tenant
class AuthorizedService(Queries):
    """Everything that one caller may do."""

    # ── read ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str, *, most: int = MAX_BYTES) -> Task:
        """The task, with its usage; `most` as for `Service.get`. Raises TaskNotFound."""
        return await self.service.usage_reports.of(await self._own(READ, task_id, most))

    async def wait(self, task_id: str, timeout: float, *, most: int = MAX_BYTES) -> Task:
        """The task once it has ended; `most` as for `Service.get`. Raises ResultTimeout."""
        await self._own(READ, task_id)
        return await self.service.wait(task_id, timeout, most=most)

    async def journal(
        self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = MAX_BYTES
    ) -> Page[Record]:
        """Records after a number; `most` as for `Service.journal`."""
        await self._own(READ, task_id)
        async with self._database_turn():
            return await self.service.journal(task_id, after, limit, most)

    async def tail(self, task_id: str, after: int = 0) -> AsyncIterator[Record]:
        """Every record after a number, as it is written, until the task has ended."""
        await self._own(READ, task_id)
        return each_for(self.caller.tenant, self.service.tail(task_id, after))

    async def state(self, task_id: str) -> AgentState:
        """The state of an agent. Raises NoState."""
        await self._own(READ, task_id)
        return await self.service.agent_states.get(task_id)

    async def artifacts(
        self, task_id: str, *, limit: int = PAGE_ARTIFACTS, cursor: str | None = None
    ) -> Page[ArtifactRef]:
        """A page of the artifacts of a task."""
        await self._own(READ, task_id)
        return await self.service.artifacts.page(task_id, limit=limit, cursor=cursor)

    async def artifact(self, task_id: str, artifact_id: str, before_load: BeforeLoad | None = None) -> bytes:
        """The bytes of an artifact. Raises ArtifactNotFound."""
        await self._own(READ, task_id)
        return await self.service.artifacts.read(task_id, artifact_id, before_load)

    async def budget(self, task_id: str) -> Spent:
        """The budget that a task spends from, and how much of it is spent."""
        await self._own(READ, task_id)
        return await self.service.budgets.get(task_id)

    async def asks(self, kind: str | None = None, *, limit: int = MAX_ASKS, cursor: str | None = None) -> Page[Ask]:
        """A page of the open questions and approvals, as from `Asks.list`."""
        self.need(READ)
        async with self._database_turn():
            return await self.service.asks.list(kind, whose=self.caller.sees, limit=limit, cursor=cursor)

    async def asks_of(
        self, task_id: str, *, limit: int = MAX_ASKS, cursor: str | None = None, page_bytes: int = PAGE_BYTES
    ) -> Page[Ask]:
        """The same of a task, and, if it waits for its children, of its descendants. The asks have `page_bytes` together, about."""
        task = await self._own(READ, task_id)
        async with self._database_turn():
            return await self.service.asks.of(task, limit=limit, cursor=cursor, page_bytes=page_bytes)

    async def ask(self, ask_id: str, before_load: BeforeLoad | None = None) -> Ask:
        """One question or approval, answered or not. Raises NotFound."""
        return await self._ask(READ, ask_id, before_load)

    async def asked_in(self, ask_id: str, before_load: BeforeLoad | None = None) -> AskedIn:
        """The turn of the agent that asked for an approval. Raises NotFound."""
        return await self.service.asks.asked_in(await self._ask(READ, ask_id, before_load))

    async def doubts(self, task_id: str) -> Doubts:
        """The effects of a task that are in doubt."""
        await self._own(READ, task_id)
        return await self.service.messages.doubts(task_id)

    async def in_doubt(self, limit: int, after: str = "") -> InDoubt:
        """The effects in doubt of all tasks, and the unfinished tasks that a restore took back."""
        self._check_no_tenant(ADMIN, "the effects in doubt of all tasks")
        return await self.service.messages.in_doubt(limit, after)

    async def schedules(self, *, limit: int = PAGE_SCHEDULES, cursor: str | None = None) -> Page[Schedule]:
        """A page of the schedules, by name. Their tasks have no tenant, so a caller with a tenant sees none."""
        self.need(READ)
        return (
            Page() if self.caller.tenant is not None else await self.service.schedules.page(limit=limit, cursor=cursor)
        )

    # ── submit and control ────────────────────────────────────────────────────────────────────────────────────────

    async def submit(
        self, requests: Sequence[SubmitRequest], *, after: str | None = None, unchecked: bool = False
    ) -> Sequence[str]:
        """The ids of the tasks, after the commit. All or none. `unchecked` also accepts names that no worker has ever had; it is for the
        operator, since such names fill the lists of all tenants."""
        self.need(SUBMIT)
        if unchecked:
            self._check_no_tenant(ADMIN, "tasks without a known handler")
        caller = self.caller
        requests = [
            request._replace(
                tenant=caller.tenant, agent=caller.agent, by=caller.id, parent=None, askers=(caller.principal,)
            )
            for request in requests
        ]
        if after is not None:
            await self._own(SUBMIT, after)
            requests = [await self.service.agent_states.after(after, request) for request in requests]
        async with self._database_turn():
            try:
                return await self.service.submit(requests, unchecked=unchecked)
            except KeyConflict as conflict:
                if READ in caller.scopes:
                    raise
                # field by field, a caller could find out the input of the task
                raise KeyConflict(conflict.key, conflict.task_id, conflict.state) from None

    async def cancel(self, task_id: str) -> Task:
        """Cancel the task and its children, in whatever state they are."""
        async with self._audited_task("cancel", task_id):
            return self.shown(await self.service.cancel(task_id))

    async def prune(self, task_id: str) -> int:
        """Delete an ended task and its descendants; returns how many tasks that were."""
        async with self._audited_task("prune", task_id, ADMIN):
            return await self.service.pruner.prune(task_id)

    async def pause(self, task_id: str) -> Task:
        """Pause the task: no worker goes on with it until it is resumed."""
        async with self._audited_task("pause", task_id):
            return self.shown(await self.service.pause(task_id))

    async def resume(self, task_id: str) -> Task:
        """Resume a failed, parked, quarantined or paused task."""
        async with self._audited_task("resume", task_id):
            return self.shown(await self.service.resume(task_id, self.caller.principal))

    async def prioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a task; higher goes first."""
        self.need(SUBMIT)
        await self._check_priority(priority)
        async with self._audited_task("prioritize", task_id, priority=priority):
            return self.shown(await self.service.prioritize(task_id, priority))

    async def fork(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> str:  # noqa: A002
        """Create a task that begins with records 1…`at` of another; returns its id. Raises CannotFork."""
        changed = None if input is SAME else wire.fingerprint(input, "the input")
        async with self._audited_task("fork", task_id, at=at, input=changed) as task:
            if self.caller.tenant is not None:
                await self.service.tenant_quotas.check_tasks(self.caller.tenant, {task.queue: 1})
            return await self.service.forks.fork(
                task_id, at, input=input, agent=self.caller.agent, asker=self.caller.principal
            )

    async def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: A002
        """Send a signal to a task. Two signals with the same `id` count as one."""
        await self._own_with_room(task_id)
        async with self._database_turn():
            await self.service.messages.signal(task_id, name, value, id=id, asker=self.caller.principal)

    async def message(self, task_id: str, text: str, *, id: str | None = None) -> Task:  # noqa: A002
        """Send a message to an unfinished task. Two messages with the same `id` count as one. Raises StateConflict."""
        await self._own_with_room(task_id)
        async with self._database_turn():
            await self.service.messages.message(task_id, text, id=id, asker=self.caller.principal)
        return self.shown(await self.service.get(task_id))

    async def patch(
        self,
        task_id: str,
        change: StatePatch | dict[str, Any],
        *,
        id: str | None = None,  # noqa: A002 -- as for a signal
    ) -> AgentState | None:
        """Change the state of a task. Returns the new state if the caller may read it and the agent has begun one. Raises
        StateConflict, NoState."""
        await self._own_with_room(task_id)
        await self.service.agent_states.patch(task_id, change, by=self.caller.name, id=id, asker=self.caller.principal)
        if READ not in self.caller.scopes:
            return None
        try:
            return await self.service.agent_states.get(task_id)
        except NoState:
            return None

    # ── decide ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, question_id: str, answer: Any) -> Decided:
        """Answer a question. Raises AlreadyDecided (AskExpired), Withdrawn."""
        await self._check_deciding(question_id)
        return await self.service.messages.answer(question_id, answer, caller=self.caller)

    async def decide(
        self,
        approval_id: str,
        decision: str,
        *,
        reason: str = "",
        arguments: dict[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,  # noqa: A002 -- the name of this field in every API
        digest: str | None = None,
    ) -> Decided:
        """Approve or deny, once; under a rule, vote. Raises AlreadyDecided (AskExpired), StaleDecision, Withdrawn, NotApprover."""
        await self._check_deciding(approval_id)
        return await self.service.messages.decide(
            approval_id,
            decision,
            caller=self.caller,
            reason=reason,
            arguments=arguments,
            always=always,
            hash=hash,
            digest=digest,
        )

    async def _check_deciding(self, ask_id: str) -> None:
        """Check that this caller may decide a question or an approval."""
        ask = await self._ask(DECIDE, ask_id)
        await self._check_own_call(await self._own(DECIDE, ask.task_id))

    async def resolve(self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None) -> Task:
        """Resolve an effect in doubt: say whether it happened."""
        task = await self._own(DECIDE, task_id)
        await self._check_own_call(task)
        await self.service.messages.resolve(task_id, verdict, result, step=step, caller=self.caller)
        return self.shown(await self.service.get(task_id))

    async def raise_budget(self, task_id: str, **limits: Any) -> Spent:
        """Set limits of the budget that a task spends from."""
        task = await self._own(DECIDE, task_id)
        await self._check_own_call(task)
        new_limits = {
            name: limit if isinstance(limit, int | float) else str(limit) for name, limit in limits.items() if limit
        }
        event = self._audit_event("raise_budget", task_id, task.tenant, **new_limits)
        return await self.service.budgets.raise_(task_id, event=event, **limits)

    # ── the system ───────────────────────────────────────────────────────────────────────────────────────────────

    async def queues(self, *, limit: int = PAGE_QUEUES, cursor: str | None = None) -> Page[Queue]:
        """A page of the queues with their unfinished tasks, as far as the caller sees them."""
        self._check_no_tenant(READ, "the queues")
        return await self.service.cluster.queue_page(self.caller.sees, limit=limit, cursor=cursor)

    async def pause_queue(self, name: str) -> Queue:
        """Pause a queue: workers start no task of it until it is unpaused."""
        await self._audit_system("pause_queue", name)
        return await self.service.cluster.pause_queue(name)

    async def unpause_queue(self, name: str) -> Queue:
        """Unpause a queue."""
        await self._audit_system("unpause_queue", name)
        return await self.service.cluster.unpause_queue(name)

    async def workers(self, *, limit: int = PAGE_WORKERS, cursor: str | None = None) -> Page[WorkerView]:
        """A page of the workers that were not declared dead."""
        self._check_no_tenant(READ, "the workers")
        return await self.service.cluster.worker_page(limit=limit, cursor=cursor)

    async def versions(self) -> list[CodeVersion]:
        """The versions of the code, with their workers and tasks."""
        self._check_no_tenant(READ, "the versions of the code")
        return await self.service.cluster.versions()

    async def stats(self) -> Stats:
        """How many tasks there are that the caller sees, by state and reason, and the throughput of the workers."""
        self._check_no_tenant(READ, "the numbers of all tasks")
        return await self.service.cluster.stats(self.caller.sees)

    async def history(self, span: str = "hour") -> History:
        """The last hour or day on a time axis. It has the tasks of all tenants, as the metrics have."""
        self._check_no_tenant(ADMIN, "the history of all tasks")
        return await self.service.cluster.history(span)

    async def pause_schedule(self, name: str) -> Schedule:
        """Pause a schedule: it submits no task until it is unpaused."""
        await self._audit_system("pause_schedule", name)
        return await self.service.schedules.pause(name)

    async def unpause_schedule(self, name: str) -> Schedule:
        """Unpause a schedule: it goes on with its next tick from now."""
        await self._audit_system("unpause_schedule", name)
        return await self.service.schedules.unpause(name)

    async def remove_schedule(self, name: str) -> None:
        """Remove a schedule; its tasks stay."""
        await self._audit_system("remove_schedule", name)
        await self.service.schedules.remove(name)

    async def trigger(self, name: str) -> str:
        """Submit the task of a schedule now; returns its id."""
        await self._audit_system("trigger", name)
        return await self.service.schedules.trigger(name, self.caller.principal)

    async def subscribe(self, url: str, types: Sequence[str], *, tenant: str | None = None) -> Subscription:
        """Subscribe a URL to events of one tenant, or of all; returns it with the secret that signs the deliveries. A caller
        with a tenant gets only events of that tenant."""
        self.need(ADMIN)
        own_tenant = self.caller.tenant
        if own_tenant is not None and tenant not in {None, own_tenant}:
            raise self._beyond_tenant(f"the events of tenant {tenant!r:.80}", own_tenant)
        self.service.subscriptions.check(url, types)
        await self.service.tenant_quotas.check_subscription(own_tenant)
        async with self._audited_subscription("subscribe", url.partition("?")[0], types=list(types)):
            return await self.service.subscriptions.make(url, types, tenant=own_tenant or tenant)

    async def subscriptions(self, limit: int = 100, cursor: str | None = None) -> tuple[SubscriptionList, str | None]:
        """The subscriptions to tasks that the caller sees, and the cursor for the next page."""
        self.need(ADMIN)
        return await self.service.subscriptions.list(tenant=self.caller.sees, limit=limit, cursor=cursor)

    async def unsubscribe(self, subscription_id: str) -> None:
        """Delete a subscription: it receives no more events. Raises NotFound."""
        self.need(ADMIN)
        await self.service.subscriptions.get(subscription_id, tenant=self.caller.sees)
        async with self._audited_subscription("unsubscribe", subscription_id):
            await self.service.subscriptions.remove(subscription_id, tenant=self.caller.sees)

    async def deliveries(self, **filters: Any) -> tuple[Deliveries, str | None]:
        """Deliveries of events, newest first, and the cursor for the next page."""
        self.need(ADMIN)
        return await self.service.subscriptions.deliveries(tenant=self.caller.sees, **filters)

    async def redeliver(self, delivery_id: str) -> Delivery:
        """Send an event again now. Raises NotFound and NotSentAgain."""
        self.need(ADMIN)
        await self.service.subscriptions.delivery(delivery_id, tenant=self.caller.sees)
        async with self._audited_subscription("redeliver", delivery_id):
            return await self.service.subscriptions.redeliver(delivery_id, tenant=self.caller.sees)

    def check_metrics(self) -> None:
        """Raises Forbidden if the caller may not see the numbers of all tenants together."""
        self._check_no_tenant(ADMIN, "the metrics")

    async def keys(self, *, limit: int = PAGE_KEYS, cursor: str | None = None) -> Page[Key]:
        """All keys; for a caller with a tenant, the keys of that tenant."""
        self.need(ADMIN)
        return await self.service.keys.page(self.caller.sees, limit=limit, cursor=cursor)

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tenant: str | None = None,
        agent: str | None = None,
        expires: Duration | None = None,
        owner: str | None = None,
    ) -> NewKey:
        """Create a key. A caller with a tenant creates keys of that tenant only; `owner` as for `Keys.create`."""
        self.need(ADMIN)
        own_tenant = self.caller.tenant
        if own_tenant is not None and tenant not in {None, own_tenant}:
            raise self._beyond_tenant(f"a key of tenant {tenant!r:.80}", own_tenant)
        await self.service.tenant_quotas.check_key(own_tenant)
        created = await self.service.keys.create(
            name, scopes, tenant=own_tenant or tenant, agent=agent, expires=expires, owner=owner, by=self.caller
        )
        secret = self.service.subscriptions.secret_of(created.key.tenant)
        return dataclasses.replace(created, webhook_secret=secret)

    async def revoke_key(self, key_id: str) -> Key:
        """Revoke a key: within two seconds requests with it are refused. Raises NotFound."""
        self.need(ADMIN)
        return await self.service.keys.revoke(key_id, whose=self.caller.sees, by=self.caller)

    async def sessions(self, *, limit: int = PAGE_SESSIONS, cursor: str | None = None) -> Page[Session]:
        """A page of the sessions of people that have not ended; for a caller with a tenant, those of that tenant."""
        self.need(ADMIN)
        return await self.service.sessions.page(self.caller.sees, limit=limit, cursor=cursor)

    async def revoke_session(self, session_id: str) -> Session:
        """End the session of a person: within two seconds requests with it are refused. Raises NotFound."""
        self.need(ADMIN)
        return await self.service.sessions.revoke(session_id, whose=self.caller.sees, by=self.caller)

    async def sign_out(self) -> None:
        """End the caller's own session. For a caller with a key there is nothing to end."""
        await self.service.sessions.sign_out(self.caller)

    async def locks(self, limit: int = 100, cursor: str | None = None) -> tuple[LockList, str | None]:
        """Locks that are held or waited for, and the cursor for the next page; for a caller with a tenant, those of that tenant."""
        self.need(READ)
        return await self.service.locks.list(self.caller.sees, limit=limit, cursor=cursor)

    async def release_lock(self, name: str, reason: str, tenant: str | None = None) -> Lock:
        """Take a lock from its holder, and let the next one in. A caller with a tenant releases locks of that tenant only. Raises
        NotFound."""
        self.need(ADMIN)
        own_tenant = self.caller.tenant
        if own_tenant is not None and tenant not in {None, own_tenant}:
            raise self._beyond_tenant(f"a lock of tenant {tenant!r:.80}", own_tenant)
        return await self.service.locks.release(name, reason=reason, tenant=own_tenant or tenant, by=self.caller)

    async def quotas(self, after: str = "", limit: int = 100) -> TenantUses:
        """The quotas of each tenant and its use of them, by name; for a caller with a tenant, of that tenant."""
        self.need(READ)
        return await self.service.tenant_quotas.list(self.caller.sees, after=after, limit=limit)

    async def set_quota(self, tenant: str, values: Mapping[str, Any]) -> TenantUse:
        """Give a tenant these quotas; its others stay as they are."""
        self._check_no_tenant(ADMIN, "the quotas of tenants")
        return await self.service.tenant_quotas.set(tenant, values, by=self.caller)

    async def reset_quota(self, tenant: str) -> TenantUse:
        """Give a tenant the quotas of the settings again."""
        self._check_no_tenant(ADMIN, "the quotas of tenants")
        return await self.service.tenant_quotas.reset(tenant, by=self.caller)

    async def audit(self, after: int = 0, limit: int = 100, before: int | None = None) -> Entries:
        """Entries of the audit log, in order; with `before`, the newest first. A caller with a tenant sees entries about that
        tenant."""
        self.need(ADMIN)
        return await self.service.audit.list(after, limit, self.caller.sees, before)
