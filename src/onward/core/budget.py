"""Budgets: limits on what a task and all its children spend together. Pure arithmetic; the store keeps one ledger per budget.

Before a call, the task **reserves** an estimate of the most that the call can cost. The call is made only when the estimate fits beside
the amounts that are spent and reserved. After the call the task **settles** it: the actual cost is spent, and the rest is free again. A
reservation that a crash left open counts until its call is settled: the attempt that was cut off is charged like the one that replaced
it. So the spent and reserved amounts never exceed the budget, unless a call costs more than its estimate, or a provider bills more than
it was allowed. The ledger records that (`exceeded`), and no further call is made.

A call that can be made smaller also names the least that it needs, and reserves an amount between the two.

The ledger remembers the tasks that did not get their amount, and wakes them when there is more: after a raise, or when another call cost
less.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from onward.core import wire
from onward.core.durations import Duration, seconds
from onward.core.task import OWN_ID_PREFIX
from onward.errors import BadSetting

if TYPE_CHECKING:
    from onward.core.state import Limits

PRESSURE = 0.8
"""The fraction of a budget after which the agent is told to finish soon."""

KINDS = ("steps", "llm_tokens", "cost_usd")
"""The kinds that are spent. (Time passes by itself, and bytes in context are a size, not a sum.)"""


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Limits for a task and its children. None is no limit.

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
        """The limits for the agent's state."""
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
        """Whether it has a limit on spending or time."""
        return any(self.of(kind) is not None for kind in (*KINDS, "wall_time"))

    def of(self, kind: str) -> float | None:
        """The limit of a kind."""
        return getattr(self, f"max_{kind}")  # type: ignore[no-any-return]

    def changed(self, **limits: Any) -> Budget:
        """The same budget with other limits; None keeps a limit."""
        return dataclasses.replace(self, **{name: value for name, value in limits.items() if value is not None})

    def to_json(self) -> dict[str, Any]:
        """As JSON, without fields that have their default."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, "wait")}


@dataclasses.dataclass(frozen=True, slots=True)
class Amount:
    """An amount of each kind. None is unknown, and never zero: it cannot be compared with a limit."""

    steps: int = 0
    llm_tokens: int | None = 0
    cost_usd: float | None = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.steps + other.steps,
            _sum(self.llm_tokens, other.llm_tokens),
            _sum(self.cost_usd, other.cost_usd),
        )


def _sum(left: Any, right: Any) -> Any:
    return None if left is None or right is None else left + right


@dataclasses.dataclass(frozen=True, slots=True)
class BudgetLedger:
    """A budget with its spent and reserved amounts, and the tasks that wait for more. Every method returns a new ledger."""

    budget: Budget
    began_at: float = 0.0
    spent: Amount = Amount()
    reserved: Mapping[str, Amount] = dataclasses.field(default_factory=dict)
    """By `CALL/TRY`: a call that was cut off and made again has two reservations."""
    exceeded: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """By kind: by how much all calls together cost more than was reserved for them."""
    waiting: Mapping[str, Amount] = dataclasses.field(default_factory=dict)
    """Tasks that did not get their amount, and that amount."""
    woken: int = 0
    """How many tasks were woken, so that each wake has a message id of its own."""

    def used(self, kind: str) -> float:
        """The spent and reserved amount of a kind, as far as it is known."""
        return sum(getattr(amount, kind, 0) or 0 for amount in (self.spent, *self.reserved.values()))

    def lacking(self, amount: Amount, now: float = 0.0) -> str | None:
        """The kind of which there is not enough, or None. Where a limit is set, an unknown amount does not fit."""
        wall = self.budget.of("wall_time")
        if wall is not None and now - self.began_at >= wall:
            return "wall_time"
        for kind in KINDS:
            limit, needed, spent = self.budget.of(kind), getattr(amount, kind), getattr(self.spent, kind)
            if limit is not None and (needed is None or spent is None or self.used(kind) + needed > limit):
                return kind
        return None

    def reserve(self, key: str, amount: Amount) -> BudgetLedger:
        """Reserve an amount; the same key again changes nothing. Check `lacking` first."""
        if key in self.reserved:
            return self
        return dataclasses.replace(self, reserved={**self.reserved, key: amount})

    def settle(self, call: str, actual: Amount) -> BudgetLedger:
        """Charge the actual cost of a call, for each of its tries. A call without a reservation was settled before, and is not charged
        again."""
        return self._charge([key for key in self.reserved if key.rpartition("/")[0] == call], actual)

    def free(self, key: str) -> BudgetLedger:
        """Free the reservation of a try that cost nothing: it was refused before it began."""
        return self._charge([key] if key in self.reserved else [], Amount())

    def _charge(self, keys: list[str], actual: Amount) -> BudgetLedger:
        spent, exceeded = self.spent, dict(self.exceeded)
        for estimate in (self.reserved[key] for key in keys):
            charged = Amount(
                actual.steps,
                estimate.llm_tokens if actual.llm_tokens is None else actual.llm_tokens,
                estimate.cost_usd if actual.cost_usd is None else actual.cost_usd,
            )
            spent += charged
            for kind in KINDS:
                if (excess := (getattr(charged, kind) or 0) - (getattr(estimate, kind) or 0)) > 0:
                    exceeded[kind] = exceeded.get(kind, 0) + excess
        rest = {key: amount for key, amount in self.reserved.items() if key not in keys}
        return dataclasses.replace(self, spent=spent, reserved=rest, exceeded=exceeded)

    def raised(self, **limits: Any) -> BudgetLedger:
        """The ledger with other limits."""
        return dataclasses.replace(self, budget=self.budget.changed(**limits))

    def wait(self, task_id: str, amount: Amount) -> BudgetLedger:
        """Remember a task that did not get its amount."""
        return dataclasses.replace(self, waiting={**self.waiting, task_id: amount})

    def served(self, task_id: str) -> BudgetLedger:
        """The task waits no longer."""
        return dataclasses.replace(
            self, waiting={waiter: amount for waiter, amount in self.waiting.items() if waiter != task_id}
        )

    def wake(self, holder: str, now: float, *, all_waiting: bool = False) -> tuple[BudgetLedger, list[Wake]]:
        """Wake the tasks whose amount is there now, or with `all_waiting` all that wait; each is woken once."""
        woken = [
            task_id for task_id, amount in self.waiting.items() if all_waiting or self.lacking(amount, now) is None
        ]
        ledger = dataclasses.replace(
            self,
            waiting={task_id: amount for task_id, amount in self.waiting.items() if task_id not in woken},
            woken=self.woken + len(woken),
        )
        return ledger, [
            Wake(task_id, f"{OWN_ID_PREFIX}budget {holder} {self.woken + n}") for n, task_id in enumerate(woken, 1)
        ]

    def pressed(self, now: float = 0.0) -> bool:
        """Whether so much is used that the agent should finish soon."""
        wall = self.budget.of("wall_time")
        late = wall is not None and now - self.began_at >= PRESSURE * wall
        limits = [(kind, self.budget.of(kind)) for kind in KINDS]
        return late or any(limit is not None and self.used(kind) >= PRESSURE * limit for kind, limit in limits)

    # ── as the store keeps it ────────────────────────────────────────────────────────────────────────────────────

    def packed(self) -> bytes:
        """The ledger as bytes."""
        return wire.encode(dataclasses.asdict(self) | {"budget": self.budget.to_json()})

    @classmethod
    def unpacked(cls, data: bytes) -> BudgetLedger:
        """The ledger of which `packed` made these bytes."""
        document = wire.decode(data)
        amounts = {
            name: {key: Amount(**amount) for key, amount in document[name].items()} for name in ("reserved", "waiting")
        }
        budget, spent = Budget(**document["budget"]), Amount(**document["spent"])
        return cls(**document | amounts | {"budget": budget, "spent": spent})


class Wake(NamedTuple):
    """A task to wake because there is more budget, and the id of the message that wakes it."""

    task_id: str
    message: str


# ── several ledgers at once: a task spends from its own budget and from those of the tasks above it ─────────────────


class Granted(NamedTuple):
    """The outcome of a change of ledgers."""

    ledgers: Mapping[str, BudgetLedger]
    """The ledgers after the change, by the task that has the budget."""
    wake: tuple[Wake, ...] = ()
    holder: str = ""
    """The task whose budget is not enough; empty when all are enough."""
    lacking: str = ""
    """The kind of which that budget has not enough."""
    pressed: bool = False
    amount: Amount = Amount()
    """The amount that was reserved."""


def reserved(
    ledgers: Mapping[str, BudgetLedger], task_id: str, key: str, amount: Amount, now: float, least: Amount | None = None
) -> Granted:
    """Reserve an amount in all of these ledgers, or in none. If one lacks it, the task waits for that one, where its budget says so. With
    `least`, reserve as much of the amount as there is, and no less than `least`."""
    least = amount if least is None else least
    for holder, ledger in ledgers.items():
        known = key in ledger.reserved  # the answer to the first try was lost
        if not known and (kind := ledger.lacking(least, now)):
            waiting = {holder: ledger.wait(task_id, least)} if ledger.budget.when_spent == "wait" else {}
            return Granted({**ledgers, **waiting}, (), holder, kind)
    before = [ledger.reserved[key] for ledger in ledgers.values() if key in ledger.reserved]
    granted = before[0] if before else _between(least, amount, ledgers.values())
    changed = {holder: ledger.reserve(key, granted).served(task_id) for holder, ledger in ledgers.items()}
    # The pressure is judged by the least amount: more was reserved only because there is room for it.
    pressed = any(ledger.reserve(key, least).pressed(now) for ledger in ledgers.values())
    return Granted(changed, pressed=pressed, amount=granted)


def _between(least: Amount, most: Amount, ledgers: Iterable[BudgetLedger]) -> Amount:
    """The largest amount between the two that fits all ledgers."""
    part = 1.0
    for ledger in ledgers:
        for kind in KINDS:
            limit, low, high = ledger.budget.of(kind), getattr(least, kind), getattr(most, kind)
            if limit is not None and low is not None and high is not None and high > low:
                part = min(part, (limit - ledger.used(kind) - low) / (high - low))
    if part >= 1.0:
        return most
    part = max(part - 1e-9, 0.0)  # or the sum of rounded amounts could exceed the limit
    tokens, cost = ((getattr(least, kind), getattr(most, kind)) for kind in ("llm_tokens", "cost_usd"))
    return Amount(
        least.steps,
        tokens[0] if None in tokens else tokens[0] + math.floor(part * (tokens[1] - tokens[0])),
        cost[0] if None in cost else cost[0] + part * (cost[1] - cost[0]),
    )


def settled(ledgers: Mapping[str, BudgetLedger], calls: Mapping[str, Amount], now: float, free: str = "") -> Granted:
    """Settle calls in all ledgers, free one reservation, and wake the tasks whose amount is there now."""
    changed, wake = {}, []
    for holder, ledger in ledgers.items():
        for call, actual in calls.items():
            ledger = ledger.settle(call, actual)
        changed[holder], woken = (ledger.free(free) if free else ledger).wake(holder, now)
        wake += woken
    return Granted(changed, tuple(wake))
