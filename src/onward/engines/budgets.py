"""Budgets of one task on another engine: the workflow of the task has the ledger.

A shift gets the ledger with its first stretch, and returns it with each answer that has changed it. A reservation is durable before its call
begins, like on Onward's own engine: that is one more stretch for each call. A person raises limits by a message to the task. Limits are absolute,
so every reader applies the messages of the inbox in their order, as often as it likes.

Children do not share a budget: two workflows have no transaction over both.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from onward.core import wire as core_wire
from onward.core.audit import AuditEvent
from onward.core.budget import BudgetLedger, Granted
from onward.core.task import OWN_ID_PREFIX, Message
from onward.engines import wire
from onward.errors import UsageError
from onward.store.port.core import Sent, Store

_LIMITS = ("max_steps", "max_wall_time", "max_llm_tokens", "max_cost_usd")


class Inbox(Protocol):
    """The messages of tasks of the engine."""

    async def messages(self, task_id: str, after: int) -> list[Message]:
        """The messages of a task after a number."""
        ...

    async def send(self, task_id: str, message: Message) -> Sent:
        """Send a message to a task."""
        ...


class LedgerWriter(Protocol):
    """Writes the ledger of one task."""

    def save_ledger(self, ledger: str) -> None:
        """The next answer has this ledger."""
        ...

    async def ledger_saved(self) -> None:
        """Wait until the ledger is durable. Raises Fenced."""
        ...


class SessionBudgets:
    """The ledger of the task of one shift. It has the verb of `BudgetLedgers`."""

    def __init__(self, engine: Inbox, task_id: str, ledger: str, writer: LedgerWriter) -> None:
        self._engine, self._task_id, self._writer = engine, task_id, writer
        self._ledger = BudgetLedger.unpacked(ledger.encode()) if ledger else None
        self._turn = asyncio.Lock()
        self._read = 0
        """How many messages were read."""
        self.inbox: int = 0
        """How many messages the task has, by its last stretch."""

    async def change(
        self, holders: Sequence[str], change: Callable[[Mapping[str, BudgetLedger]], Granted], /
    ) -> Granted:
        if list(holders) != [self._task_id]:
            raise UsageError(f"{SHARED_BUDGET[0]} is not there on this engine; {SHARED_BUDGET[1]}")
        async with self._turn:
            await self._read_raises()
            before = self._ledger
            granted = change({} if before is None else {self._task_id: before})
            for wake in granted.wake:  # another branch of this task waits for budget
                await self._engine.send(self._task_id, Message(wake.message, wire.BUDGET, "", None, b"null"))
            after = self._ledger = granted.ledgers[self._task_id]
            self._writer.save_ledger(after.packed().decode())
        if after.reserved.keys() - (set() if before is None else before.reserved.keys()):
            await self._writer.ledger_saved()
        return granted

    async def _read_raises(self) -> None:
        if self._ledger is None or self._read >= self.inbox:
            return
        messages = await self._engine.messages(self._task_id, self._read)
        for message in messages:
            if message.kind == wire.BUDGET:
                self._ledger = self._ledger.raised(**(core_wire.decode(message.data) or {}))
        self._read += len(messages)


class EngineBudgets:
    """The ledgers as the service reads and raises them. It has the verbs of the budgets of a store. `refresh` brings a task of the store up to
    date; a mirror needs none."""

    def __init__(
        self,
        store: Store,
        refresh: Callable[[str], Awaitable[object]] | None,
        send: Callable[[str, Message, AuditEvent | None], Awaitable[Sent]],
    ) -> None:
        self._store, self._refresh, self._send = store, refresh, send

    async def get(self, task_id: str) -> BudgetLedger | None:
        """The ledger of a task; None when it has none, or has not begun to spend."""
        if self._refresh is not None:
            await self._refresh(task_id)
        return await self._store.budgets.get(task_id)

    async def change(
        self,
        holders: Sequence[str],
        change: Callable[[Mapping[str, BudgetLedger]], Granted],
        event: AuditEvent | None = None,
    ) -> Granted:
        """Raise limits of the budget of a task: send them to the task, which goes on if it waits for them."""
        (holder,) = holders
        ledger = await self.get(holder)
        granted = change({} if ledger is None else {holder: ledger})
        message_id = f"{OWN_ID_PREFIX}budget {holder} {uuid.uuid4().hex}"
        limits = core_wire.encode(_limits(granted.ledgers[holder]), "the limits")
        sent = await self._send(holder, Message(message_id, wire.BUDGET, "", None, limits), event)
        if sent.number is None:
            raise UsageError(
                f"task {holder} has ended, and spends no more; resume it, or submit a new one with a budget"
            )
        return granted


def copied_ledger(view: wire.View) -> bytes | None:
    """The ledger of a task as it is now, for a copy; None when it has none."""
    ledger = view.get("ledger")
    return BudgetLedger.unpacked(ledger.encode()).raised(**view.get("limits", {})).packed() if ledger else None


SHARED_BUDGET = (
    "a child of a task with a budget",
    "the two would share the budget, so leave out the budget, or let the task do the work of the child itself",
)
"""Why a child with budgets of the tasks above it is refused: the feature, and the advice."""


def _limits(ledger: BudgetLedger) -> dict[str, Any]:
    limits = {name: getattr(ledger.budget, name) for name in _LIMITS}
    return {name: limit for name, limit in limits.items() if limit is not None}
