"""Budgets: what a task and all its children may spend together. Pure arithmetic; the store keeps one purse per budget.

Before a call an estimate of the most it can cost is **reserved**, and the call is made only when that fits beside what was spent
and what others have reserved. After it, what it did cost is **settled**, and the rest is free again. A reservation that a crash
left open counts as spent until its call is settled: what nobody saw the end of is charged like the call that took its place.
So what is spent and reserved never exceeds the budget, unless a call takes more than was estimated for it, or a provider more than
it was allowed; that is written down as what it is (`exceeded`), and no further call is made.

A call that can be made smaller says the least that it needs as well, and gets what there is between the two.

Who does not get what it asks for is remembered, and told when there is more: after a raise, or when others needed less.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from onward.core import wire
from onward.core.durations import Duration, seconds
from onward.errors import BadSetting

if TYPE_CHECKING:
    from onward.core.state import Limits

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
            if (value := getattr(self, field)) is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise BadSetting(f"Budget.{field}", value, "a number of 0 or more")
            if field != "max_cost_usd":
                if value != int(value):
                    raise BadSetting(f"Budget.{field}", value, "a whole number of 0 or more")
                object.__setattr__(self, field, int(value))
        if self.max_wall_time is not None:
            object.__setattr__(self, "max_wall_time", seconds(self.max_wall_time, "Budget.max_wall_time"))
        if self.when_spent not in {"wait", "finish"}:
            raise BadSetting("Budget.when_spent", self.when_spent, "'wait' or 'finish'")

    @property
    def limits(self) -> Limits:
        """As a state tells it."""
        from onward.core.state import Limits  # noqa: PLC0415 -- pydantic, which most tasks do not need

        wall = None if self.max_wall_time is None else round(float(self.max_wall_time) * 1000)  # type: ignore[arg-type]
        return Limits(
            max_steps=self.max_steps,
            max_wall_time_ms=wall,
            max_llm_tokens=self.max_llm_tokens,
            max_cost_usd=self.max_cost_usd,
            max_artifact_bytes_in_context=self.max_artifact_bytes_in_context,
        )

    @property
    def holds(self) -> bool:
        """Whether anything of it has to be counted."""
        return any(self.of(kind) is not None for kind in (*KINDS, "wall_time"))

    def of(self, kind: str) -> float | None:
        """The limit of a kind."""
        return getattr(self, f"max_{kind}")  # type: ignore[no-any-return]

    def changed(self, **limits: Any) -> Budget:
        """The same with other limits, as far as they are given."""
        return dataclasses.replace(self, **{name: value for name, value in limits.items() if value is not None})

    def told(self) -> dict[str, Any]:
        """As JSON: what is said, and nothing else."""
        said = dataclasses.asdict(self)
        return {name: value for name, value in said.items() if value not in (None, "wait")}


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
class BudgetLedger:
    """A budget, what of it is spent, who has reserved what, and who waits. Every verb gives a new one."""

    budget: Budget
    began_at: float = 0.0
    spent: Amount = Amount()
    reserved: Mapping[str, Amount] = dataclasses.field(default_factory=dict)
    """By `CALL/TRY`: a call that was cut off and made again has two."""
    exceeded: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """By how much calls took more than was reserved for them, in all."""
    waiting: Mapping[str, Amount] = dataclasses.field(default_factory=dict)
    """Tasks that did not get what they asked for."""
    woken: int = 0
    """How often somebody was told, so that each time is one of its own."""

    def used(self, kind: str) -> float:
        """Spent and reserved, as far as it is known."""
        return sum(getattr(amount, kind, 0) or 0 for amount in (self.spent, *self.reserved.values()))

    def lacking(self, amount: Amount, now: float = 0.0) -> str | None:
        """The kind of which there is not enough, or None. Where a limit is set, an unknown price does not fit."""
        wall = self.budget.of("wall_time")
        if wall is not None and now - self.began_at >= wall:
            return "wall_time"
        for kind in KINDS:
            limit, wanted, spent = self.budget.of(kind), getattr(amount, kind), getattr(self.spent, kind)
            if limit is not None and (wanted is None or spent is None or self.used(kind) + wanted > limit):
                return kind
        return None

    def reserve(self, key: str, amount: Amount) -> BudgetLedger:
        """Set it aside; the same key again changes nothing. Ask `lacking` first."""
        if key in self.reserved:
            return self
        return dataclasses.replace(self, reserved={**self.reserved, key: amount})

    def settle(self, call: str, actual: Amount) -> BudgetLedger:
        """What a reserved call did cost, in each of its tries. One that is not reserved was settled before, and is not
        charged again."""
        return self._charged([key for key in self.reserved if key.rpartition("/")[0] == call], actual)

    def free(self, key: str) -> BudgetLedger:
        """A try that did not cost anything: it was refused before it began."""
        return self._charged([key] if key in self.reserved else [], Amount())

    def _charged(self, keys: list[str], actual: Amount) -> BudgetLedger:
        spent, exceeded = self.spent, dict(self.exceeded)
        for allowed in (self.reserved[key] for key in keys):
            charged = Amount(
                actual.steps,
                allowed.llm_tokens if actual.llm_tokens is None else actual.llm_tokens,
                allowed.cost_usd if actual.cost_usd is None else actual.cost_usd,
            )
            spent += charged
            for kind in KINDS:
                if (more := (getattr(charged, kind) or 0) - (getattr(allowed, kind) or 0)) > 0:
                    exceeded[kind] = exceeded.get(kind, 0) + more
        rest = {key: amount for key, amount in self.reserved.items() if key not in keys}
        return dataclasses.replace(self, spent=spent, reserved=rest, exceeded=exceeded)

    def raised(self, **limits: Any) -> BudgetLedger:
        """The same purse with other limits."""
        return dataclasses.replace(self, budget=self.budget.changed(**limits))

    def wait(self, task_id: str, amount: Amount) -> BudgetLedger:
        """Remember who did not get what it asked for."""
        return dataclasses.replace(self, waiting={**self.waiting, task_id: amount})

    def served(self, task_id: str) -> BudgetLedger:
        """It waits no longer."""
        return dataclasses.replace(self, waiting={one: want for one, want in self.waiting.items() if one != task_id})

    def wake(self, holder: str, now: float, *, everybody: bool = False) -> tuple[BudgetLedger, list[Wake]]:
        """Those who wait and would get what they ask for now, or all of them; they are told once."""
        told = [one for one, want in self.waiting.items() if everybody or self.lacking(want, now) is None]
        purse = dataclasses.replace(
            self,
            waiting={one: want for one, want in self.waiting.items() if one not in told},
            woken=self.woken + len(told),
        )
        return purse, [Wake(one, f"budget {holder} {self.woken + n}") for n, one in enumerate(told, 1)]

    def pressed(self, now: float = 0.0) -> bool:
        """Whether so much is gone that the agent should hurry."""
        wall = self.budget.of("wall_time")
        late = wall is not None and now - self.began_at >= PRESSURE * wall
        limits = [(kind, self.budget.of(kind)) for kind in KINDS]
        return late or any(limit is not None and self.used(kind) >= PRESSURE * limit for kind, limit in limits)

    # ── as the store keeps it ────────────────────────────────────────────────────────────────────────────────────

    def packed(self) -> bytes:
        """As bytes."""
        return wire.encode(dataclasses.asdict(self) | {"budget": self.budget.told()})

    @classmethod
    def unpacked(cls, data: bytes) -> BudgetLedger:
        """What `packed` gave."""
        told = wire.decode(data)
        amounts = {
            name: {key: Amount(**amount) for key, amount in told[name].items()} for name in ("reserved", "waiting")
        }
        return cls(**told | amounts | {"budget": Budget(**told["budget"]), "spent": Amount(**told["spent"])})


class Wake(NamedTuple):
    """A task that is told that there is more, and the name of the message that tells it."""

    task_id: str
    message: str


# ── several purses at once: a task spends from its own and from those of the tasks above it ─────────────────────────


class Granted(NamedTuple):
    """What a change of purses came to."""

    purses: Mapping[str, BudgetLedger]
    """As they are now."""
    wake: tuple[Wake, ...] = ()
    holder: str = ""
    """Whose purse lacks it; empty when nobody's does."""
    lacking: str = ""
    """What it lacks."""
    pressed: bool = False
    amount: Amount = Amount()
    """What was reserved."""


def reserved(
    purses: Mapping[str, BudgetLedger], task_id: str, key: str, amount: Amount, now: float, least: Amount | None = None
) -> Granted:
    """Reserved in all of these purses, or in none; then the task waits for the one that lacks it, where that is its way. With
    `least`, as much as there is of the amount, and no less than that."""
    least = amount if least is None else least
    for holder, purse in purses.items():
        there = key in purse.reserved  # the answer to the first try was lost
        if not there and (kind := purse.lacking(least, now)):
            waiting = {holder: purse.wait(task_id, least)} if purse.budget.when_spent == "wait" else {}
            return Granted({**purses, **waiting}, (), holder, kind)
    before = [purse.reserved[key] for purse in purses.values() if key in purse.reserved]
    given = before[0] if before else _between(least, amount, purses.values())
    changed = {holder: purse.reserve(key, given).served(task_id) for holder, purse in purses.items()}
    # What was only reserved because there is room for it says nothing about how much is gone.
    pressed = any(purse.reserve(key, least).pressed(now) for purse in purses.values())
    return Granted(changed, pressed=pressed, amount=given)


def _between(least: Amount, most: Amount, purses: Iterable[BudgetLedger]) -> Amount:
    """As much of what lies between the two as all purses have room for."""
    part = 1.0
    for purse in purses:
        for kind in KINDS:
            limit, low, high = purse.budget.of(kind), getattr(least, kind), getattr(most, kind)
            if limit is not None and low is not None and high is not None and high > low:
                part = min(part, (limit - purse.used(kind) - low) / (high - low))
    if part >= 1.0:
        return most
    part = max(part - 1e-9, 0.0)  # or the sum of what was rounded could be more than the limit
    tokens, cost = ((getattr(least, kind), getattr(most, kind)) for kind in ("llm_tokens", "cost_usd"))
    return Amount(
        least.steps,
        tokens[0] if None in tokens else tokens[0] + math.floor(part * (tokens[1] - tokens[0])),
        cost[0] if None in cost else cost[0] + part * (cost[1] - cost[0]),
    )


def settled(purses: Mapping[str, BudgetLedger], calls: Mapping[str, Amount], now: float, free: str = "") -> Granted:
    """Calls settled in all purses, and one freed; who waits and fits now is told."""
    changed, wake = {}, []
    for holder, purse in purses.items():
        for call, actual in calls.items():
            purse = purse.settle(call, actual)
        changed[holder], told = (purse.free(free) if free else purse).wake(holder, now)
        wake += told
    return Granted(changed, tuple(wake))
