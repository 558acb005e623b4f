"""What people do about budgets: look at one, and raise it.

A part of the service. Of the budgets that a task spends from, its own and those above it, the one that it waits
for is meant, else the nearest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onward.core.audit import AuditEvent
from onward.core.budget import KINDS, BudgetLedger, Granted
from onward.core.clock import Clock
from onward.errors import NotFound, TaskNotFound, UsageError
from onward.store.port.core import Store


@dataclasses.dataclass(frozen=True, slots=True)
class Spent:
    """A budget and what of it is gone. `task_id` is the task whose budget it is."""

    task_id: str
    purse: BudgetLedger
    wall_time: float
    """Seconds since the first call."""

    @property
    def meters(self) -> dict[str, dict[str, Any]]:
        """For each kind: spent, reserved by calls under way, and the limit."""
        told = {}
        for kind in KINDS:
            spent, used = getattr(self.purse.spent, kind), self.purse.used(kind)
            told[kind] = {"spent": spent, "reserved": used - (spent or 0), "limit": self.purse.budget.of(kind)}
        told["wall_time"] = {"spent": self.wall_time, "reserved": 0, "limit": self.purse.budget.of("wall_time")}
        return told

    @property
    def waiting(self) -> tuple[str, ...]:
        """Tasks that wait for more."""
        return tuple(self.purse.waiting)

    @property
    def needs(self) -> dict[str, dict[str, Any]]:
        """What the next call of each task that waits needs at least."""
        return {
            task_id: {kind: getattr(amount, kind) for kind in KINDS} for task_id, amount in self.purse.waiting.items()
        }


class Budgets:
    """The verbs."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def get(self, task_id: str) -> Spent:
        """The budget that a task spends from. Raises TaskNotFound, or NotFound where there is none."""
        return self._spent(*await self._nearest(task_id))

    async def raise_(self, task_id: str, *, deed: AuditEvent | None = None, **limits: Any) -> Spent:
        """Set limits of that budget, absolute and not in addition; all that wait for it are told and try again. The deed is
        written down with it."""
        if not any(value is not None for value in limits.values()):
            raise UsageError("say which limit is raised, and to what")
        holder, found = await self._nearest(task_id)
        if limits.get("max_cost_usd") is not None and found.spent.cost_usd is None:
            raise UsageError(
                f"nobody knows what task {holder} has cost so far, so no limit in dollars can be held; give its models prices "
                "before the next task, or limit its tokens"
            )

        def change(there: Mapping[str, BudgetLedger]) -> Granted:
            purse, wake = there[holder].raised(**limits).wake(holder, 0.0, everybody=True)
            return Granted({holder: purse}, tuple(wake))

        granted = await self._store.budgets.change([holder], change, deed)
        self._store.nudge("ready")
        return self._spent(holder, granted.purses[holder])

    async def _nearest(self, task_id: str) -> tuple[str, BudgetLedger]:
        at: str | None = task_id
        found: tuple[str, BudgetLedger] | None = None
        while at is not None:
            purse = await self._store.budgets.get(at)
            if purse is not None and task_id in purse.waiting:  # this is the one that matters now
                return at, purse
            found = found or (None if purse is None else (at, purse))
            task = await self._store.get(at)
            if task is None and found is None:
                raise TaskNotFound(at)
            at = None if task is None else task.parent
        if found is None:
            raise NotFound(
                f"task {task_id} spends from no budget, or has not begun to; give it one with submit(…, budget=Budget(…))"
            )
        return found

    def _spent(self, holder: str, purse: BudgetLedger) -> Spent:
        return Spent(holder, purse, max(0.0, self._clock.now() - purse.began_at))
