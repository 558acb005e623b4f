"""Spending: how a task reserves the possible cost of a call, and settles its real cost.

A task spends from its own budget, where it has one, and from those of the tasks above it; all of them must have enough.
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

INHERITED_OPTION = "purses"
"""The option of a child with the budgets of the tasks above it."""

OWN_OPTION = "budget"
"""The option of a task that was submitted with a budget."""


class Spending:
    """What one shift of a task spends."""

    def __init__(
        self, services: WorkerServices, journal: ShiftJournal, options: Mapping[str, Any], budget: Budget
    ) -> None:
        self._services, self._journal, self._task_id = services, journal, journal.hold.id
        own = Budget(**options[OWN_OPTION]) if OWN_OPTION in options else budget
        above = {holder: Budget(**fields) for holder, fields in options.get(INHERITED_OPTION, {}).items()}
        self.budgets: dict[str, Budget] = above | ({self._task_id: own} if own.holds else {})
        """By the task whose budget it is: those above this one first."""
        self.budget = own
        self._tries = 0

    @property
    def as_option(self) -> dict[str, Any]:
        """The budgets that a child of this task spends from, as an option of its submit."""
        return {holder: budget.to_json() for holder, budget in self.budgets.items()}

    def __bool__(self) -> bool:
        return bool(self.budgets)

    @property
    def counts_money(self) -> bool:
        """Whether a budget limits the cost in dollars, so that the price of a call must be known."""
        return any(budget.max_cost_usd is not None for budget in self.budgets.values())

    async def reserve(
        self, call: str, amount: Amount, done: Mapping[str, Amount], least: Amount | None = None
    ) -> tuple[str, Granted]:
        """Reserve the most that a call can cost, or what is left between that and the least that it needs, and settle finished calls.
        Returns the name of this try, and what was granted.

        Where there is not enough, the task waits for more (raises NotNow) or fails (BudgetSpent), as its budget says.
        """
        self._tries += 1
        key = f"{call}/{self._journal.hold.shift}.{self._tries}"

        def change(now: float, ledgers: Mapping[str, BudgetLedger]) -> Granted:
            first = settled(ledgers, done, now)
            return reserved(first.ledgers, self._task_id, key, amount, now, least)._replace(wake=first.wake)

        granted = await self._change(change)
        if granted.lacking:
            self._raise_lacking(granted, amount if least is None else least)
        return key, granted

    async def settle(self, calls: Mapping[str, Amount], free: str = "") -> None:
        """Settle the real cost of calls. Calls that were settled before are not charged again; `free` is a try that cost nothing."""
        if self.budgets and (calls or free):
            await self._change(lambda now, ledgers: settled(ledgers, calls, now, free))

    async def _change(self, change: Any) -> Granted:
        now = self._services.now()

        def change_all(stored: Mapping[str, BudgetLedger]) -> Granted:
            granted: Granted = change(
                now,
                {holder: stored.get(holder) or BudgetLedger(budget, now) for holder, budget in self.budgets.items()},
            )
            return granted

        granted = await self._journal.retry_store(
            lambda: self._services.store.budgets.change(list(self.budgets), change_all)
        )
        # A person may have raised one.
        self.budgets = {holder: granted.ledgers[holder].budget for holder in self.budgets}
        if granted.wake:
            self._services.store.nudge("ready", [wake.task_id for wake in granted.wake])
        return granted

    def _raise_lacking(self, granted: Granted, least: Amount) -> None:
        ledger, kind = granted.ledgers[granted.holder], granted.lacking
        settled, used = getattr(ledger.spent, kind, None), ledger.used(kind)
        needs = None if kind == "wall_time" else getattr(least, kind)
        held = 0 if settled is None else used - settled
        spent = BudgetSpent(granted.holder, kind, used, ledger.budget.of(kind), needs=needs, held=held)
        if self._task_id in ledger.waiting:
            amounts = {"needs": spent.needs, "left": spent.left, "enough": spent.enough, "detail": spent.reason}
            raise NotNow(Reason.BUDGET, NEVER, spent.what, holder=granted.holder, lacking=kind, **amounts)
        raise spent
