"""Budgets: whatever is reserved and settled, in whatever order, the sum stays within the limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.budget import KINDS, Amount, Budget, BudgetLedger, reserved, settled
from onward.errors import BadSetting, BudgetSpent

counts = st.integers(0, 50)
amounts = st.builds(Amount, steps=st.integers(0, 3), llm_tokens=counts, cost_usd=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
moves = st.lists(st.tuples(st.sampled_from(["reserve", "settle"]), st.sampled_from("abcde"), amounts), max_size=40)


@given(moves, st.integers(0, 100), st.integers(0, 10), st.sampled_from([0.0, 1.0, 3.5]))
def test_the_sum_never_exceeds_the_budget(
    plan: list[tuple[str, str, Amount]], tokens: int, steps: int, cost: float
) -> None:
    purse = BudgetLedger(Budget(max_llm_tokens=tokens, max_steps=steps, max_cost_usd=cost))
    allowed: dict[str, Amount] = {}
    for verb, key, amount in plan:
        if verb == "reserve" and f"{key}/1" not in purse.reserved:
            if purse.lacking(amount) is None:
                purse, allowed[key] = purse.reserve(f"{key}/1", amount), amount
        elif f"{key}/1" in purse.reserved:
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
    purse = BudgetLedger(Budget(max_llm_tokens=100)).reserve("a/1", Amount(llm_tokens=80))
    assert purse.lacking(Amount(llm_tokens=30)) == "llm_tokens"
    purse = purse.settle("a", Amount(llm_tokens=10))
    assert purse.lacking(Amount(llm_tokens=90)) is None
    assert purse.spent.llm_tokens == 10


def test_nothing_is_charged_twice() -> None:
    purse = BudgetLedger(Budget()).reserve("a/1", Amount(llm_tokens=5)).reserve("a/1", Amount(llm_tokens=99))
    assert purse.used("llm_tokens") == 5
    once = purse.settle("a", Amount(llm_tokens=4))
    assert once.settle("a", Amount(llm_tokens=4)) == once


def test_a_provider_that_takes_more_is_told_of() -> None:
    purse = BudgetLedger(Budget(max_llm_tokens=100)).reserve("a/1", Amount(llm_tokens=50))
    purse = purse.settle("a", Amount(llm_tokens=70))
    assert (purse.spent.llm_tokens, purse.exceeded) == (70, {"llm_tokens": 20})


def test_unknown_is_never_nothing() -> None:
    unknown = Amount(cost_usd=None)
    assert BudgetLedger(Budget(max_cost_usd=1)).lacking(unknown) == "cost_usd"
    assert BudgetLedger(Budget()).lacking(unknown) is None
    assert (Amount(cost_usd=1.0) + unknown).cost_usd is None
    settled = BudgetLedger(Budget()).reserve("a/1", Amount(llm_tokens=50)).settle("a", Amount(llm_tokens=None))
    assert settled.spent.llm_tokens == 50, "what was set aside counts where nobody says"


def test_pressure_and_a_raise() -> None:
    purse = BudgetLedger(Budget(max_steps=10)).reserve("a/1", Amount(steps=8))
    assert purse.pressed()
    assert not purse.raised(max_steps=20).pressed()
    assert not BudgetLedger(Budget()).pressed()
    timed = BudgetLedger(Budget(max_wall_time="10s"), began_at=100.0)
    assert [timed.pressed(at) for at in (107.9, 108.0)] == [False, True]
    assert [timed.lacking(Amount(), at) for at in (109.9, 110.0)] == [None, "wall_time"]


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


def test_a_try_that_was_cut_off_is_charged_like_the_one_that_took_its_place() -> None:
    purse = (
        BudgetLedger(Budget(max_llm_tokens=100))
        .reserve("a/1.1", Amount(llm_tokens=40))
        .reserve("b/1.1", Amount(llm_tokens=9))
    )
    assert purse.lacking(Amount(llm_tokens=60)) == "llm_tokens", "the first one counts as long as nobody knows"
    purse = purse.reserve("a/7.1", Amount(llm_tokens=40)).settle("a", Amount(llm_tokens=10))
    assert (purse.spent.llm_tokens, list(purse.reserved)) == (20, ["b/1.1"])
    assert purse.reserve("c/1.1", Amount(llm_tokens=50)).free("c/1.1").spent.llm_tokens == 20


def test_those_who_wait_are_told_once_and_only_those_who_fit() -> None:
    purse = BudgetLedger(Budget(max_llm_tokens=100)).reserve("a/1", Amount(llm_tokens=90))
    for task, want in (("small", 15), ("large", 60), ("huge", 200)):
        granted = reserved({"root": purse}, task, f"{task}/1", Amount(llm_tokens=want), 0.0)
        assert (granted.holder, granted.lacking) == ("root", "llm_tokens")
        purse = granted.ledgers["root"]
    granted = settled({"root": purse}, {"a": Amount(llm_tokens=30)}, 0.0)
    assert [wake.task_id for wake in granted.wake] == ["small", "large"]
    assert list(granted.ledgers["root"].waiting) == ["huge"]
    raised, woken = granted.ledgers["root"].raised(max_llm_tokens=900).wake("root", 0.0, all_waiting=True)
    assert [wake.task_id for wake in woken] == ["huge"]
    assert not raised.waiting
    assert len({wake.message for wake in (*granted.wake, *woken)}) == 3, "each is a message of its own"


def test_all_purses_or_none() -> None:
    purses = {"root": BudgetLedger(Budget(max_llm_tokens=100)), "child": BudgetLedger(Budget(max_llm_tokens=10))}
    refused = reserved(purses, "child", "x/1", Amount(llm_tokens=50), 0.0)
    assert refused.holder == "child"
    assert not refused.ledgers["root"].reserved
    granted = reserved(refused.ledgers, "child", "y/1", Amount(llm_tokens=5), 0.0)
    assert [list(purse.reserved) for purse in granted.ledgers.values()] == [["y/1"], ["y/1"]]
    assert not granted.ledgers["child"].waiting, "it got something, so it does not wait any longer"


@pytest.mark.slow
@given(moves, st.floats(0, 1e9))
def test_a_purse_comes_back_as_it_was_kept(plan: list[tuple[str, str, Amount]], began_at: float) -> None:
    purse = BudgetLedger(Budget(max_llm_tokens=50, when_spent="finish", max_wall_time="3m"), began_at)
    for verb, key, amount in plan:
        purse = purse.reserve(f"{key}/1", amount) if verb == "reserve" else purse.settle(key, amount).wait(key, amount)
    assert BudgetLedger.unpacked(purse.packed()) == purse


@pytest.mark.parametrize(
    "wrong", [{"max_steps": 2.5}, {"max_llm_tokens": float("inf")}, {"max_cost_usd": float("inf")}], ids=str
)
def test_what_no_state_and_no_record_can_hold_is_refused_at_once(wrong: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match="number of 0 or more"):
        Budget(**wrong)  # type: ignore[arg-type]


def test_a_whole_number_may_be_written_in_any_way() -> None:
    budget = Budget(max_llm_tokens=1e6)  # type: ignore[arg-type]
    assert (budget.max_llm_tokens, type(budget.max_llm_tokens)) == (1_000_000, int)


# ── calls that can be made smaller ───────────────────────────────────────────────────────────────────────────────────


@given(
    st.integers(0, 200),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=12),
    st.booleans(),
)
def test_a_call_gets_what_there_is_between_its_least_and_its_most(
    limit: int, wants: list[tuple[int, int]], money: bool
) -> None:
    budget = Budget(max_cost_usd=limit / 7) if money else Budget(max_llm_tokens=limit)
    purses: Any = {"above": BudgetLedger(Budget(max_llm_tokens=150)), "own": BudgetLedger(budget)}
    for number, (low, more) in enumerate(wants):
        least, most = Amount(1, low, low / 7), Amount(1, low + more, (low + more) / 7)
        granted = reserved(purses, "t", f"c{number}/1", most, 0.0, least)
        purses = granted.ledgers
        if granted.lacking:
            assert purses[granted.holder].lacking(least) == granted.lacking
            continue
        assert low <= granted.amount.llm_tokens <= low + more
        assert granted.amount.cost_usd >= granted.amount.llm_tokens / 7 - 1e-6
        left = [
            limit - purse.used(kind)
            for purse in purses.values()
            for kind in ("llm_tokens", "cost_usd")
            if (limit := purse.budget.of(kind)) is not None
        ]
        assert min(left) >= 0, "never more than there is"
        assert granted.amount == most or min(left) < 1.01, "as much as there is"


def test_who_waits_for_the_least_is_woken_by_the_least() -> None:
    purse = BudgetLedger(Budget(max_llm_tokens=100)).reserve("a/1", Amount(1, 90, None))
    granted = reserved({"root": purse}, "t", "b/1", Amount(1, 80, None), 0.0, Amount(1, 20, None))
    assert granted.lacking == "llm_tokens"
    after = settled(granted.ledgers, {"a": Amount(1, 75, None)}, 0.0)
    assert [wake.task_id for wake in after.wake] == ["t"]
    again = reserved(after.ledgers, "t", "b/1", Amount(1, 80, None), 0.0, Amount(1, 20, None))
    assert (again.amount.llm_tokens, again.pressed) == (24, True)


def test_what_is_missing_is_said_with_numbers() -> None:
    spent = BudgetSpent("06gybkmghcvfg68zzv8tad3yjr", "llm_tokens", 900, 1000, needs=450, held=300)
    assert spent.what == (
        "the budget of task 06gybkmghcvfg68zzv8tad3yjr has not enough tokens for the next call: it needs 450, and 100 of 1,000 "
        "are left (300 more are reserved by calls under way)"
    )
    assert str(spent).endswith("; `onward budget 8tad3yjr --tokens 1350` raises it")
    assert "it needs $0.25, and $0 of $1.5 are left" in str(BudgetSpent("t", "cost_usd", 1.5, 1.5, needs=0.25))
    assert "its time is up" in str(BudgetSpent("t", "wall_time", 5, 4))
