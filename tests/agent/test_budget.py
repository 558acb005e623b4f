"""Budgets: whatever is reserved and settled, in whatever order, the sum stays within the limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.budget import KINDS, Amount, Budget, Purse
from onward.errors import BadSetting

counts = st.integers(0, 50)
amounts = st.builds(Amount, steps=st.integers(0, 3), llm_tokens=counts, cost_usd=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
moves = st.lists(st.tuples(st.sampled_from(["reserve", "settle"]), st.sampled_from("abcde"), amounts), max_size=40)


@given(moves, st.integers(0, 100), st.integers(0, 10), st.sampled_from([0.0, 1.0, 3.5]))
def test_the_sum_never_exceeds_the_budget(
    plan: list[tuple[str, str, Amount]], tokens: int, steps: int, cost: float
) -> None:
    purse = Purse(Budget(max_llm_tokens=tokens, max_steps=steps, max_cost_usd=cost))
    allowed: dict[str, Amount] = {}
    for verb, key, amount in plan:
        if verb == "reserve" and key not in purse.reserved:
            if purse.lacking(amount) is None:
                purse, allowed[key] = purse.reserve(key, amount), amount
        elif key in purse.reserved:
            most = allowed[key]
            within = Amount(
                min(amount.steps, most.steps),
                min(amount.llm_tokens or 0, most.llm_tokens or 0),
                min(amount.cost_usd or 0, most.cost_usd or 0),
            )
            purse = purse.settle(key, within)
        for kind in KINDS:
            assert purse.used(kind) <= (purse.budget.of(kind) or 0)
    assert purse.exceeded == {}


def test_what_was_not_used_is_free_again() -> None:
    purse = Purse(Budget(max_llm_tokens=100)).reserve("a", Amount(llm_tokens=80))
    assert purse.lacking(Amount(llm_tokens=30)) == "llm_tokens"
    purse = purse.settle("a", Amount(llm_tokens=10))
    assert purse.lacking(Amount(llm_tokens=90)) is None
    assert purse.spent.llm_tokens == 10


def test_nothing_is_charged_twice() -> None:
    purse = Purse(Budget()).reserve("a", Amount(llm_tokens=5)).reserve("a", Amount(llm_tokens=99))
    assert purse.used("llm_tokens") == 5
    once = purse.settle("a", Amount(llm_tokens=4))
    assert once.settle("a", Amount(llm_tokens=4)) == once


def test_a_provider_that_takes_more_is_told_of() -> None:
    purse = Purse(Budget(max_llm_tokens=100)).reserve("a", Amount(llm_tokens=50))
    purse = purse.settle("a", Amount(llm_tokens=70))
    assert (purse.spent.llm_tokens, purse.exceeded) == (70, {"llm_tokens": 20})


def test_unknown_is_never_nothing() -> None:
    unknown = Amount(cost_usd=None)
    assert Purse(Budget(max_cost_usd=1)).lacking(unknown) == "cost_usd"
    assert Purse(Budget()).lacking(unknown) is None
    assert (Amount(cost_usd=1.0) + unknown).cost_usd is None
    settled = Purse(Budget()).reserve("a", Amount(llm_tokens=50)).settle("a", Amount(llm_tokens=None))
    assert settled.spent.llm_tokens == 50, "what was set aside counts where nobody says"


def test_pressure_and_a_raise() -> None:
    purse = Purse(Budget(max_steps=10)).reserve("a", Amount(steps=8))
    assert purse.pressed
    assert not purse.raised(Budget(max_steps=20)).pressed
    assert not Purse(Budget()).pressed


@pytest.mark.parametrize("wrong", [{"max_steps": -1}, {"max_cost_usd": float("nan")}, {"max_llm_tokens": True}])
def test_limits_are_numbers(wrong: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match="a number of 0 or more"):
        Budget(**wrong)  # type: ignore[arg-type]


def test_the_form_that_a_state_tells() -> None:
    budget = Budget(max_steps=20, max_wall_time="5m", max_llm_tokens=200_000, max_artifact_bytes_in_context=8000)
    assert budget.limits.model_dump(exclude_none=True) == {
        "max_steps": 20,
        "max_wall_time_ms": 300_000,
        "max_llm_tokens": 200_000,
        "max_artifact_bytes_in_context": 8000,
    }
    with pytest.raises(BadSetting, match="'wait' or 'finish'"):
        Budget(when_spent="explode")
