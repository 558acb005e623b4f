"""Spending: how a task asks for what a call may cost, and says what it did cost.

A task spends from its own budget, where it has one, and from those of the tasks above it; all of them have to have enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core.budget import Amount, Budget, BudgetLedger, Granted, reserved, settled
from onward.core.control import NotNow
from onward.core.task import NEVER, Reason
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.services import WorkerServices
from onward.errors import BudgetSpent

INHERITED = "purses"
"""The option under which a child is told of the budgets above it."""

OWN = "budget"
"""The option of a task that was submitted with a budget."""


class Spending:
    """What one shift of a task spends."""

    def __init__(self, desk: WorkerServices, pen: ShiftJournal, options: Mapping[str, Any], budget: Budget) -> None:
        self._desk, self._pen, self._task_id = desk, pen, pen.hold.id
        own = Budget(**options[OWN]) if OWN in options else budget
        above = {holder: Budget(**told) for holder, told in options.get(INHERITED, {}).items()}
        self.budgets: dict[str, Budget] = above | ({self._task_id: own} if own.holds else {})
        """By the task whose budget it is: those above this one first."""
        self.budget = own
        self._tries = 0

    @property
    def told(self) -> dict[str, Any]:
        """The budgets that a child of this task spends from, as an option of its submit."""
        return {holder: budget.told() for holder, budget in self.budgets.items()}

    def __bool__(self) -> bool:
        return bool(self.budgets)

    @property
    def counts_money(self) -> bool:
        """Whether anybody has to know what a call costs."""
        return any(budget.max_cost_usd is not None for budget in self.budgets.values())

    async def reserve(
        self, call: str, amount: Amount, done: Mapping[str, Amount], least: Amount | None = None
    ) -> tuple[str, Granted]:
        """Set aside what a call can cost at most, or what there is between that and the least that it needs, and settle what is
        done; the name of this try, and what was granted.

        Where there is not enough the task waits for more (raises NotNow), or is over (BudgetSpent), as its budget says.
        """
        self._tries += 1
        key = f"{call}/{self._pen.hold.shift}.{self._tries}"

        def change(now: float, purses: Mapping[str, BudgetLedger]) -> Granted:
            first = settled(purses, done, now)
            return reserved(first.purses, self._task_id, key, amount, now, least)._replace(wake=first.wake)

        granted = await self._change(change)
        if granted.lacking:
            self._refuse(granted, amount if least is None else least)
        return key, granted

    async def settle(self, calls: Mapping[str, Amount], free: str = "") -> None:
        """What calls did cost. Those that were settled before are not charged again; `free` is a try that cost nothing."""
        if self.budgets and (calls or free):
            await self._change(lambda now, purses: settled(purses, calls, now, free))

    async def _change(self, change: Any) -> Granted:
        now = self._desk.now()

        def whole(there: Mapping[str, BudgetLedger]) -> Granted:
            granted: Granted = change(
                now, {holder: there.get(holder) or BudgetLedger(budget, now) for holder, budget in self.budgets.items()}
            )
            return granted

        granted = await self._pen.patiently(lambda: self._desk.store.budgets.change(list(self.budgets), whole))
        self.budgets = {
            holder: granted.purses[holder].budget for holder in self.budgets
        }  # somebody may have raised one
        if granted.wake:
            self._desk.store.nudge("ready", [wake.task_id for wake in granted.wake])
        return granted

    def _refuse(self, granted: Granted, least: Amount) -> None:
        purse, kind = granted.purses[granted.holder], granted.lacking
        settled, used = getattr(purse.spent, kind, None), purse.used(kind)
        needs = None if kind == "wall_time" else getattr(least, kind)
        held = 0 if settled is None else used - settled
        spent = BudgetSpent(granted.holder, kind, used, purse.budget.of(kind), needs=needs, held=held)
        if self._task_id in purse.waiting:
            numbers = {"needs": spent.needs, "left": spent.left, "enough": spent.enough}
            raise NotNow(Reason.BUDGET, NEVER, spent.what, holder=granted.holder, lacking=kind, **numbers)
        raise spent
