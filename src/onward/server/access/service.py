"""The door: the verbs of the service, as one caller may use them.

Every way in (HTTP, WebSocket, MCP) goes through here and nowhere else, so that what a caller may do is decided in one place:
the scope that a verb needs, and whose task it is about. A task of another tenant is as unknown as one that does not exist.

A new verb goes through one of the five: `_own` for a task, `_ask` for a question or an approval, `_decides` where it is decided,
`_place` for what belongs to no tenant, `need` with `caller.sees` for lists. What steers, decides or runs the place is written
down in the audit: decisions, budgets and keys together with what they change; the rest right before it is done, so that an
entry says what was asked for, and the journal what came of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from onward.core import wire
from onward.core.caller import ADMIN, DECIDE, READ, SUBMIT
from onward.core.durations import Duration
from onward.core.record import Record
from onward.core.task import SAME, Task
from onward.core.views import Ask, Delivery, Doubt, Key, Queue, Schedule, Spent, Stats, Subscription, WorkerView
from onward.errors import NoState
from onward.server.access.errors import NotForTenants
from onward.server.access.queries import Queries
from onward.service.audit import Entries
from onward.service.keys import KeyList, NewKey
from onward.service.submission import SubmitRequest
from onward.service.subscriptions import Deliveries, Heard

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef, StatePatch

Asks = list[Ask]
Refs = list["ArtifactRef"]
Records = list[Record]
Schedules = list[Schedule]
Doubts = list[Doubt]
Queues = list[Queue]
Workers = list[WorkerView]


class AuthorizedService(Queries):
    """All that one caller may ask."""

    # ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str) -> Task:
        """The task, with its usage. Raises TaskNotFound."""
        return await self.service.usage_reports.of(await self._own(READ, task_id))

    async def wait(self, task_id: str, timeout: float) -> Task:
        """The task once it has ended. Raises ResultTimeout."""
        await self._own(READ, task_id)
        return await self.service.wait(task_id, timeout)

    async def journal(self, task_id: str, after: int = 0, limit: int = 1000) -> Records:
        """Records after a number."""
        await self._own(READ, task_id)
        return await self.service.journal(task_id, after, limit)

    async def tail(self, task_id: str, after: int = 0) -> AsyncIterator[Record]:
        """Every record after a number, as it comes, until the task has ended."""
        await self._own(READ, task_id)
        return self.service.tail(task_id, after)

    async def state(self, task_id: str) -> AgentState:
        """What an agent knows. Raises NoState."""
        await self._own(READ, task_id)
        return await self.service.agent_states.get(task_id)

    async def artifacts(self, task_id: str) -> Refs:
        """What a task has left behind."""
        await self._own(READ, task_id)
        return await self.service.artifacts.of(task_id)

    async def artifact(self, task_id: str, artifact_id: str) -> bytes:
        """The bytes of an artifact. Raises ArtifactNotFound."""
        await self._own(READ, task_id)
        return await self.service.artifacts.read(task_id, artifact_id)

    async def budget(self, task_id: str) -> Spent:
        """The budget that a task spends from, and what of it is gone."""
        await self._own(READ, task_id)
        return await self.service.budgets.get(task_id)

    async def asks(self, kind: str | None = None) -> Asks:
        """Questions and approvals that wait for people, the oldest first."""
        self.need(READ)
        return await self.service.messages.asks(kind, self.caller.sees)

    async def asks_of(self, task_id: str) -> Asks:
        """What a task asks of people, and, where it waits for its children, what those below it ask."""
        return await self.service.messages.asks_of(await self._own(READ, task_id))

    async def ask(self, ask_id: str) -> Ask:
        """One of them, answered or not. Raises NotFound."""
        return await self._ask(READ, ask_id)

    async def doubts(self, task_id: str) -> Doubts:
        """The effects of a task of which nobody knows whether they happened."""
        await self._own(READ, task_id)
        return await self.service.messages.doubts(task_id)

    async def schedules(self) -> Schedules:
        """All schedules, by name: what they submit has no tenant, so no tenant has any."""
        self.need(READ)
        return [] if self.caller.tenant is not None else await self.service.schedules.list()

    # ── ask for work, and steer it ───────────────────────────────────────────────────────────────────────────────

    async def submit(self, wishes: Sequence[SubmitRequest], *, after: str | None = None) -> Sequence[str]:
        """The ids of the tasks, after the commit. All or none."""
        self.need(SUBMIT)
        own = self.caller
        wishes = [wish._replace(tenant=own.tenant, agent=own.agent, by=own.key, parent=None) for wish in wishes]
        if after is not None:
            await self._own(SUBMIT, after)
            wishes = [await self.service.agent_states.after(after, wish) for wish in wishes]
        return await self.service.submit(wishes)

    async def cancel(self, task_id: str) -> Task:
        """End the task wherever it stands."""
        await self._steers("cancel", task_id)
        return self.shown(await self.service.cancel(task_id))

    async def prune(self, task_id: str) -> int:
        """Forget an ended task and all that it started; how many tasks that were."""
        task = await self._own(ADMIN, task_id)
        await self.service.audit.write_down(self._deed("prune", task_id, task.tenant))
        return await self.service.pruner.prune(task_id)

    async def pause(self, task_id: str) -> Task:
        """Let nobody go on with the task until it is resumed."""
        await self._steers("pause", task_id)
        return self.shown(await self.service.pause(task_id))

    async def resume(self, task_id: str) -> Task:
        """Go on with a failed, parked, quarantined or paused task."""
        await self._steers("resume", task_id)
        return self.shown(await self.service.resume(task_id))

    async def prioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a task; higher goes first."""
        await self._steers("prioritize", task_id, priority=priority)
        return self.shown(await self.service.prioritize(task_id, priority))

    async def fork(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> str:  # noqa: A002
        """The id of a new task that begins with records 1…`at` of another. Raises CannotFork."""
        await self._steers(
            "fork", task_id, at=at, input=None if input is SAME else wire.fingerprint(input, "the input")
        )
        return await self.service.forks.fork(task_id, at, input=input, agent=self.caller.agent)

    async def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: A002
        """Send a signal to a task; with `id`, twice is once."""
        await self._own(SUBMIT, task_id)
        await self.service.messages.signal(task_id, name, value, id=id)

    async def message(self, task_id: str, text: str, *, id: str | None = None) -> Task:  # noqa: A002
        """Say something to a task under way; with `id`, twice is once. Raises StateConflict."""
        await self._own(SUBMIT, task_id)
        await self.service.messages.message(task_id, text, id=id)
        return self.shown(await self.service.get(task_id))

    async def patch(
        self,
        task_id: str,
        change: StatePatch | dict[str, Any],
        *,
        id: str | None = None,  # noqa: A002 -- as for a signal
    ) -> AgentState | None:
        """Change the state of a task; what it is now, for who may read it and when it has begun one. Raises StateConflict, NoState."""
        await self._own(SUBMIT, task_id)
        await self.service.agent_states.patch(task_id, change, by=self.caller.name, id=id)
        if READ not in self.caller.scopes:
            return None
        try:
            return await self.service.agent_states.get(task_id)
        except NoState:
            return None

    # ── decide ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, question_id: str, answer: Any) -> Ask:
        """Answer a question. Raises AlreadyDecided (AskExpired), Withdrawn."""
        ask, task = await self._deciding(question_id)
        deed = self._deed("answer", ask.id, task.tenant, answer=wire.fingerprint(answer, "the answer"))
        await self.service.messages.answer(question_id, answer, deed=deed)
        return ask

    async def decide(
        self,
        approval_id: str,
        decision: str,
        *,
        reason: str = "",
        arguments: dict[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,  # noqa: A002 -- the word for it at every door
    ) -> Ask:
        """Approve or deny, once. Raises AlreadyDecided (AskExpired), StaleDecision, Withdrawn."""
        ask, task = await self._deciding(approval_id)
        changed = None if arguments is None else wire.fingerprint(arguments, "the arguments")
        deed = self._deed(decision, ask.id, task.tenant, hash=ask.hash, arguments=changed, always=always)
        await self.service.messages.decide(
            approval_id,
            decision,
            reason=reason,
            by=self.caller.name,
            arguments=arguments,
            always=always,
            hash=hash,
            deed=deed,
        )
        return ask

    async def _deciding(self, ask_id: str) -> tuple[Ask, Task]:
        """A question or approval that this caller may decide, and its task."""
        ask = await self._ask(DECIDE, ask_id)
        task = await self._own(DECIDE, ask.task_id)
        await self._decides(task)
        return ask, task

    async def resolve(self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None) -> Task:
        """Say what became of an effect in doubt."""
        task = await self._own(DECIDE, task_id)
        await self._decides(task)
        deed = self._deed("resolve", task_id, task.tenant, verdict=verdict, step=step)
        await self.service.messages.resolve(task_id, verdict, result, step=step, deed=deed)
        return self.shown(await self.service.get(task_id))

    async def raise_budget(self, task_id: str, **limits: Any) -> Spent:
        """Set limits of the budget that a task spends from."""
        task = await self._own(DECIDE, task_id)
        await self._decides(task)
        told = {
            name: limit if isinstance(limit, int | float) else str(limit) for name, limit in limits.items() if limit
        }
        deed = self._deed("raise_budget", task_id, task.tenant, **told)
        return await self.service.budgets.raise_(task_id, deed=deed, **limits)

    # ── run the place ────────────────────────────────────────────────────────────────────────────────────────────

    async def queues(self) -> Queues:
        """All queues with what is unfinished in them."""
        self._place(READ, "the queues")
        return await self.service.cluster.queues()

    async def pause_queue(self, name: str) -> Queue:
        """Let nobody start anything of a queue until it is unpaused."""
        await self._runs("pause_queue", name)
        return await self.service.cluster.pause_queue(name)

    async def unpause_queue(self, name: str) -> Queue:
        """Let a queue go on."""
        await self._runs("unpause_queue", name)
        return await self.service.cluster.unpause_queue(name)

    async def workers(self) -> Workers:
        """All workers that were not declared dead."""
        self._place(READ, "the workers")
        return await self.service.cluster.workers()

    async def stats(self) -> Stats:
        """How many tasks there are, by state and reason, and what the workers manage."""
        self._place(READ, "the numbers of all tasks")
        return await self.service.cluster.stats()

    async def pause_schedule(self, name: str) -> Schedule:
        """No tick until it is unpaused."""
        await self._runs("pause_schedule", name)
        return await self.service.schedules.pause(name)

    async def unpause_schedule(self, name: str) -> Schedule:
        """Go on with its next tick from now."""
        await self._runs("unpause_schedule", name)
        return await self.service.schedules.unpause(name)

    async def trigger(self, name: str) -> str:
        """Submit the task of a schedule now; its id."""
        await self._runs("trigger", name)
        return await self.service.schedules.trigger(name)

    async def subscribe(self, url: str, types: Sequence[str], *, tenant: str | None = None) -> Subscription:
        """Have events sent to a URL, with the secret that signs them: of one tenant, or of all. A caller of a tenant has those
        of that tenant alone."""
        self.need(ADMIN)
        own = self.caller.tenant
        if own is not None and tenant not in {None, own}:
            raise NotForTenants(f"what happens to tenant {tenant!r:.80}", own, self.caller.name)
        self.service.subscriptions.check(url, types)
        await self._tells("subscribe", url.partition("?")[0], types=list(types))
        return await self.service.subscriptions.make(url, types, tenant=own or tenant)

    async def subscriptions(self, limit: int = 100, cursor: str | None = None) -> tuple[Heard, str | None]:
        """Who hears of the tasks that the caller sees, and the cursor for the next page."""
        self.need(ADMIN)
        return await self.service.subscriptions.list(tenant=self.caller.sees, limit=limit, cursor=cursor)

    async def unsubscribe(self, subscription_id: str) -> None:
        """Tell of nothing more. Raises NotFound."""
        self.need(ADMIN)
        await self.service.subscriptions.get(subscription_id, tenant=self.caller.sees)
        await self._tells("unsubscribe", subscription_id)
        await self.service.subscriptions.remove(subscription_id, tenant=self.caller.sees)

    async def deliveries(self, **asked: Any) -> tuple[Deliveries, str | None]:
        """Events on their way out, newest first, and the cursor for the next page."""
        self.need(ADMIN)
        return await self.service.subscriptions.deliveries(tenant=self.caller.sees, **asked)

    async def redeliver(self, delivery_id: str) -> Delivery:
        """Send an event again now. Raises NotFound and NotSentAgain."""
        self.need(ADMIN)
        await self.service.subscriptions.delivery(delivery_id, tenant=self.caller.sees)
        await self._tells("redeliver", delivery_id)
        return await self.service.subscriptions.redeliver(delivery_id, tenant=self.caller.sees)

    def measures(self) -> None:
        """Raises Forbidden for whoever may not see the numbers of all tenants together."""
        self._place(ADMIN, "the metrics")

    async def keys(self) -> KeyList:
        """All keys; for a caller of a tenant, those of the tenant."""
        self.need(ADMIN)
        return await self.service.keys.list(self.caller.sees)

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tenant: str | None = None,
        agent: str | None = None,
        expires: Duration | None = None,
    ) -> NewKey:
        """Make a key; a caller of a tenant makes keys of that tenant alone."""
        self.need(ADMIN)
        own = self.caller.tenant
        if own is not None and tenant not in {None, own}:
            raise NotForTenants(f"a key of tenant {tenant!r:.80}", own, self.caller.name)
        return await self.service.keys.create(
            name, scopes, tenant=own or tenant, agent=agent, expires=expires, by=self.caller
        )

    async def revoke_key(self, key_id: str) -> Key:
        """Let a key open nothing any more, within two seconds. Raises NotFound."""
        self.need(ADMIN)
        return await self.service.keys.revoke(key_id, whose=self.caller.sees, by=self.caller)

    async def audit(self, after: int = 0, limit: int = 100, before: int | None = None) -> Entries:
        """Who did what, in order, or before a number, the newest first; for a caller of a tenant, what was done to what is the
        tenant's."""
        self.need(ADMIN)
        return await self.service.audit.list(after, limit, self.caller.sees, before)
