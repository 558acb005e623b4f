"""The door: the verbs of the service, as one caller may use them.

Every way in (HTTP, WebSocket, MCP) goes through here and nowhere else, so that what a caller may do is decided in one place:
the scope that a verb needs, and whose task it is about. A task of another tenant is as unknown as one that does not exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from onward.budgets import Spent
from onward.core.caller import ADMIN, DECIDE, READ, SUBMIT, Caller
from onward.core.record import Record
from onward.core.task import Task, Tasks
from onward.errors import Forbidden, NotFound, TaskNotFound
from onward.forks import SAME
from onward.messages import Ask, Doubt
from onward.schedules import Schedule
from onward.service import Service
from onward.subscriptions import Deliveries, Delivery, Subscription
from onward.wishes import Wish

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef

Asks = list[Ask]
Refs = list["ArtifactRef"]
Records = list[Record]
Schedules = list[Schedule]
Doubts = list[Doubt]


class Door:
    """All that one caller may ask."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.service, self.caller = service, caller

    def need(self, scope: str) -> None:
        """Raises Forbidden when the caller may not do what this scope is for."""
        if scope not in self.caller.scopes:
            raise Forbidden(scope, self.caller.name)

    async def _own(self, scope: str, task_id: str) -> Task:
        """A task that this caller may touch in this way. Raises Forbidden, and TaskNotFound for a foreign one too."""
        self.need(scope)
        return await self.service.get(task_id)

    # ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str) -> Task:
        """The task. Raises TaskNotFound."""
        return await self._own(READ, task_id)

    async def list(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> tuple[Tasks, str | None]:
        """Tasks, newest first, and the cursor for the next page."""
        self.need(READ)
        return await self.service.list(state=state, task=task, queue=queue, limit=limit, cursor=cursor)

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
        return await self.service.states.get(task_id)

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
        return await self.service.messages.asks(kind)

    async def ask(self, ask_id: str) -> Ask:
        """One of them, answered or not. Raises NotFound."""
        self.need(READ)
        return await self._ask(ask_id)

    async def doubts(self, task_id: str) -> Doubts:
        """The effects of a task of which nobody knows whether they happened."""
        await self._own(READ, task_id)
        return await self.service.messages.doubts(task_id)

    async def schedules(self) -> Schedules:
        """All schedules, by name."""
        self.need(READ)
        return await self.service.schedules.list()

    # ── ask for work, and steer it ───────────────────────────────────────────────────────────────────────────────

    async def submit(self, wishes: Sequence[Wish], *, after: str | None = None) -> Sequence[str]:
        """The ids of the tasks, after the commit. All or none."""
        self.need(SUBMIT)
        if after is not None:
            await self._own(SUBMIT, after)
            wishes = [wish._replace(input=await self.service.states.after(after, wish.input)) for wish in wishes]
        return await self.service.submit(wishes)

    async def cancel(self, task_id: str) -> Task:
        """End the task wherever it stands."""
        await self._own(SUBMIT, task_id)
        return await self.service.cancel(task_id)

    async def pause(self, task_id: str) -> Task:
        """Let nobody go on with the task until it is resumed."""
        await self._own(SUBMIT, task_id)
        return await self.service.pause(task_id)

    async def resume(self, task_id: str) -> Task:
        """Go on with a failed, parked, quarantined or paused task."""
        await self._own(SUBMIT, task_id)
        return await self.service.resume(task_id)

    async def prioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a task; higher goes first."""
        await self._own(SUBMIT, task_id)
        return await self.service.prioritize(task_id, priority)

    async def fork(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> str:  # noqa: A002
        """The id of a new task that begins with records 1…`at` of another. Raises CannotFork."""
        await self._own(SUBMIT, task_id)
        return await self.service.forks.fork(task_id, at, input=input)

    async def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: A002
        """Send a signal to a task; with `id`, twice is once."""
        await self._own(SUBMIT, task_id)
        await self.service.messages.signal(task_id, name, value, id=id)

    # ── decide ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, question_id: str, answer: Any) -> Ask:
        """Answer a question. Raises AlreadyDecided (AskExpired), Withdrawn."""
        self.need(DECIDE)
        ask = await self._ask(question_id)
        await self.service.messages.answer(question_id, answer)
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
        self.need(DECIDE)
        ask = await self._ask(approval_id)
        await self.service.messages.decide(
            approval_id,
            decision,
            reason=reason,
            by=self.caller.name,
            arguments=arguments,
            always=always,
            hash=hash,
        )
        return ask

    async def resolve(self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None) -> Task:
        """Say what became of an effect in doubt."""
        await self._own(DECIDE, task_id)
        await self.service.messages.resolve(task_id, verdict, result, step=step)
        return await self.service.get(task_id)

    async def raise_budget(self, task_id: str, **limits: Any) -> Spent:
        """Set limits of the budget that a task spends from."""
        await self._own(DECIDE, task_id)
        return await self.service.budgets.raise_(task_id, **limits)

    # ── run the place ────────────────────────────────────────────────────────────────────────────────────────────

    async def pause_schedule(self, name: str) -> Schedule:
        """No tick until it is unpaused."""
        self.need(ADMIN)
        return await self.service.schedules.pause(name)

    async def unpause_schedule(self, name: str) -> Schedule:
        """Go on with its next tick from now."""
        self.need(ADMIN)
        return await self.service.schedules.unpause(name)

    async def trigger(self, name: str) -> str:
        """Submit the task of a schedule now; its id."""
        self.need(ADMIN)
        return await self.service.schedules.trigger(name)

    async def subscribe(self, url: str, types: Sequence[str]) -> Subscription:
        """Have events of the caller's tasks sent to a URL; with the secret that signs them."""
        self.need(ADMIN)
        return await self.service.subscriptions.make(url, types, tenant=self._tenant)

    async def subscriptions(self, limit: int, cursor: str | None) -> tuple[Sequence[Subscription], str | None]:
        """Who hears of the caller's tasks, and the cursor for the next page."""
        self.need(ADMIN)
        return await self.service.subscriptions.list(tenant=self._tenant, limit=limit, cursor=cursor)

    async def unsubscribe(self, subscription_id: str) -> None:
        """Tell of nothing more. Raises NotFound."""
        self.need(ADMIN)
        await self.service.subscriptions.remove(subscription_id, tenant=self._tenant)

    async def deliveries(self, **asked: Any) -> tuple[Deliveries, str | None]:
        """Events on their way out, newest first, and the cursor for the next page."""
        self.need(ADMIN)
        return await self.service.subscriptions.deliveries(tenant=self._tenant, **asked)

    async def redeliver(self, delivery_id: str) -> Delivery:
        """Send an event again now. Raises NotFound."""
        self.need(ADMIN)
        return await self.service.subscriptions.redeliver(delivery_id, tenant=self._tenant)

    @property
    def _tenant(self) -> str:
        """The caller's tenant as subscriptions have it: there, None would be everybody's."""
        return self.caller.tenant or ""

    async def _ask(self, ask_id: str) -> Ask:
        """A question or approval of a task of this tenant. Raises NotFound."""
        ask = await self.service.messages.ask(ask_id)
        try:
            await self.service.get(ask.task_id)
        except TaskNotFound:
            raise NotFound(f"there is no question or approval {ask_id!r}") from None
        return ask
