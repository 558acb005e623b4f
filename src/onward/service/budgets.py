"""Reads and raises budgets. A part of the service.

A task spends from its own budget and from those of the tasks above it. The verbs mean the one that the task waits for, else the
nearest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core.audit import AuditEvent
from onward.core.budget import BudgetLedger, Granted
from onward.core.clock import Clock
from onward.core.views import Spent
from onward.errors import NotFound, TaskNotFound, UsageError
from onward.store.port.core import Store


class Budgets:
    """Reads and raises budgets."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def get(self, task_id: str) -> Spent:
        """The budget that a task spends from. Raises TaskNotFound, or NotFound where there is none."""
        return self._spent(*await self._nearest(task_id))

    async def raise_(self, task_id: str, *, event: AuditEvent | None = None, **limits: Any) -> Spent:
        """Set limits of that budget. They are absolute, not added. All tasks that wait for it try again. The audit event is written in
        the same transaction."""
        if not any(value is not None for value in limits.values()):
            raise UsageError("say which limit is raised, and to what")
        holder, ledger = await self._nearest(task_id)
        if limits.get("max_cost_usd") is not None and ledger.spent.cost_usd is None:
            raise UsageError(
                f"the cost of task {holder} so far is unknown, so no limit in dollars can be held; give its models prices "
                "before the next task, or limit its tokens"
            )

        def change(ledgers: Mapping[str, BudgetLedger]) -> Granted:
            raised, wake = ledgers[holder].raised(**limits).wake(holder, 0.0, all_waiting=True)
            return Granted({holder: raised}, tuple(wake))

        granted = await self._store.budgets.change([holder], change, event)
        self._store.nudge("ready")
        return self._spent(holder, granted.ledgers[holder])

    async def _nearest(self, task_id: str) -> tuple[str, BudgetLedger]:
        """The id of the task that has the budget, and its ledger."""
        holder: str | None = task_id
        nearest: tuple[str, BudgetLedger] | None = None
        while holder is not None:
            ledger = await self._store.budgets.get(holder)
            if ledger is not None and task_id in ledger.waiting:
                return holder, ledger
            nearest = nearest or (None if ledger is None else (holder, ledger))
            task = await self._store.get(holder)
            if task is None and nearest is None:
                raise TaskNotFound(holder)
            holder = None if task is None else task.parent
        if nearest is None:
            raise NotFound(
                f"task {task_id} spends from no budget, or has not begun to; give it one with submit(…, budget=Budget(…))"
            )
        return nearest

    def _spent(self, holder: str, ledger: BudgetLedger) -> Spent:
        return Spent(holder, ledger, max(0.0, self._clock.now() - ledger.began_at))
