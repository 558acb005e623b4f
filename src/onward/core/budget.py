"""Budgets: what a task and all its children may spend together. Pure arithmetic; the store keeps one purse per root task.

Before a call the most it can cost is **reserved**, and the call is made only when that fits beside what was spent and what
others have reserved. After it, what it did cost is **settled**, and the rest is free again. A reservation that a crash left
open counts as spent until it is settled. So the sum never exceeds the budget, unless a provider takes more than it was
allowed; that is written down as what it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onward.core.durations import Duration, seconds
from onward.core.state import Limits
from onward.errors import BadSetting

PRESSURE = 0.8
"""The part of a budget after which the agent is told to hurry."""

KINDS = ("steps", "llm_tokens", "cost_usd")
"""What can be spent. (Time passes by itself, and bytes in context are a size, not a sum.)"""


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Limits for a task and its children; what is not named has none.

    `when_spent` is "wait" (for a raise) or "finish": end with the best result so far.
    """

    max_steps: int | None = None
    max_wall_time: Duration | None = None
    max_llm_tokens: int | None = None
    max_cost_usd: float | None = None
    max_artifact_bytes_in_context: int | None = None
    when_spent: str = "wait"

    def __post_init__(self) -> None:
        for field in ("max_steps", "max_llm_tokens", "max_cost_usd", "max_artifact_bytes_in_context"):
            value = getattr(self, field)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
                raise BadSetting(f"Budget.{field}", value, "a number of 0 or more")
        if self.max_wall_time is not None:
            object.__setattr__(self, "max_wall_time", seconds(self.max_wall_time, "Budget.max_wall_time"))
        if self.when_spent not in {"wait", "finish"}:
            raise BadSetting("Budget.when_spent", self.when_spent, "'wait' or 'finish'")

    @property
    def limits(self) -> Limits:
        """As a state tells it."""
        wall = None if self.max_wall_time is None else round(float(self.max_wall_time) * 1000)  # type: ignore[arg-type]
        return Limits(
            max_steps=self.max_steps,
            max_wall_time_ms=wall,
            max_llm_tokens=self.max_llm_tokens,
            max_cost_usd=self.max_cost_usd,
            max_artifact_bytes_in_context=self.max_artifact_bytes_in_context,
        )

    @property
    def without_steps(self) -> list[str]:
        """What is said beside `max_steps`."""
        plain = Budget(max_steps=self.max_steps)
        names = [field.name for field in dataclasses.fields(self)]
        return [name for name in names if getattr(self, name) != getattr(plain, name)]

    def of(self, kind: str) -> float | None:
        """The limit of a kind."""
        return getattr(self, f"max_{kind}")  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True, slots=True)
class Amount:
    """How much of each kind. What is unknown is None, and unknown is never nothing: it cannot be compared with a limit."""

    steps: int = 0
    llm_tokens: int | None = 0
    cost_usd: float | None = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.steps + other.steps,
            _sum(self.llm_tokens, other.llm_tokens),
            _sum(self.cost_usd, other.cost_usd),
        )


def _sum(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one + other


@dataclasses.dataclass(frozen=True, slots=True)
class Purse:
    """A budget, what of it is spent, and who has reserved what. Every verb gives a new one."""

    budget: Budget
    spent: Amount = Amount()
    reserved: Mapping[str, Amount] = dataclasses.field(default_factory=dict)
    exceeded: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """By how much providers took more than they were allowed, in all."""

    def used(self, kind: str) -> float:
        """Spent and reserved, as far as it is known."""
        return sum(getattr(amount, kind) or 0 for amount in (self.spent, *self.reserved.values()))

    def lacking(self, amount: Amount) -> str | None:
        """The kind of which there is not enough, or None. Where a limit is set, an unknown price does not fit."""
        for kind in KINDS:
            limit, wanted = self.budget.of(kind), getattr(amount, kind)
            if limit is not None and (wanted is None or self.used(kind) + wanted > limit):
                return kind
        return None

    def reserve(self, key: str, amount: Amount) -> Purse:
        """Set it aside; the same key again changes nothing. Ask `lacking` first."""
        if key in self.reserved:
            return self
        return dataclasses.replace(self, reserved={**self.reserved, key: amount})

    def settle(self, key: str, actual: Amount) -> Purse:
        """What a reserved call did cost. A key that is not reserved was settled before, and is not charged again."""
        if key not in self.reserved:
            return self
        rest = {other: amount for other, amount in self.reserved.items() if other != key}
        allowed = self.reserved[key]
        charged = Amount(
            actual.steps,
            allowed.llm_tokens if actual.llm_tokens is None else actual.llm_tokens,
            allowed.cost_usd if actual.cost_usd is None else actual.cost_usd,
        )
        over = {
            kind: self.exceeded.get(kind, 0.0) + more
            for kind in KINDS
            if (more := (getattr(charged, kind) or 0) - (getattr(allowed, kind) or 0)) > 0
        }
        return dataclasses.replace(self, spent=self.spent + charged, reserved=rest, exceeded={**self.exceeded, **over})

    def raised(self, budget: Budget) -> Purse:
        """The same purse under another budget."""
        return dataclasses.replace(self, budget=budget)

    @property
    def pressed(self) -> bool:
        """Whether so much is gone that the agent should hurry."""
        return any(
            limit is not None and self.used(kind) >= PRESSURE * limit
            for kind in KINDS
            for limit in [self.budget.of(kind)]
        )
