"""Budgets: after any order of reserving and settling, the sum stays within the limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.budget import KINDS, Amount, Budget, BudgetLedger, reserved, settled
from onward.core.task import OWN_ID_PREFIX
from onward.errors import BadSetting, BudgetSpent

counts = st.integers(0, 50)
amounts = st.builds(Amount, steps=st.integers(0, 3), llm_tokens=counts, cost_usd=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
moves = st.lists(st.tuples(st.sampled_from(["reserve", "settle"]), st.sampled_from("abcde"), amounts), max_size=40)


@given(moves, st.integers(0, 100), st.integers(0, 10), st.sampled_from([0.0, 1.0, 3.5]))
def test_the_sum_never_exceeds_the_budget(
    plan: list[tuple[str, str, Amount]], tokens: int, steps: int, cost: float
) -> None:
    ledger = BudgetLedger(Budget(max_llm_tokens=tokens, max_steps=steps, max_cost_usd=cost))
    allowed: dict[str, Amount] = {}
    for verb, key, amount in plan:
        if verb == "reserve" and f"{key}/1" not in ledger.reserved:
            if ledger.lacking(amount) is None:
                ledger, allowed[key] = ledger.reserve(f"{key}/1", amount), amount
        elif f"{key}/1" in ledger.reserved:
            most = allowed[key]
            within = Amount(
                min(amount.steps, most.steps),
                min(amount.llm_tokens or 0, most.llm_tokens or 0),
                min(amount.cost_usd or 0, most.cost_usd or 0),
            )
            ledger = ledger.settle(key, within)
        for kind in KINDS:
            assert ledger.used(kind) <= (ledger.budget.of(kind) or 0)
    assert ledger.exceeded == {}


def test_an_unused_reservation_is_free_again() -> None:
    ledger = BudgetLedger(Budget(max_llm_tokens=100)).reserve("a/1", Amount(llm_tokens=80))
    assert ledger.lacking(Amount(llm_tokens=30)) == "llm_tokens"
    ledger = ledger.settle("a", Amount(llm_tokens=10))
    assert ledger.lacking(Amount(llm_tokens=90)) is None
    assert ledger.spent.llm_tokens == 10


def test_nothing_is_charged_twice() -> None:
    ledger = BudgetLedger(Budget()).reserve("a/1", Amount(llm_tokens=5)).reserve("a/1", Amount(llm_tokens=99))
    assert ledger.used("llm_tokens") == 5
    once = ledger.settle("a", Amount(llm_tokens=4))
    assert once.settle("a", Amount(llm_tokens=4)) == once


def test_a_provider_that_takes_more_is_reported() -> None:
    ledger = BudgetLedger(Budget(max_llm_tokens=100)).reserve("a/1", Amount(llm_tokens=50))
    ledger = ledger.settle("a", Amount(llm_tokens=70))
    assert (ledger.spent.llm_tokens, ledger.exceeded) == (70, {"llm_tokens": 20})


def test_unknown_is_never_nothing() -> None:
    unknown = Amount(cost_usd=None)
    assert BudgetLedger(Budget(max_cost_usd=1)).lacking(unknown) == "cost_usd"
    assert BudgetLedger(Budget()).lacking(unknown) is None
    assert (Amount(cost_usd=1.0) + unknown).cost_usd is None
    settled = BudgetLedger(Budget()).reserve("a/1", Amount(llm_tokens=50)).settle("a", Amount(llm_tokens=None))
    assert settled.spent.llm_tokens == 50, "the reservation counts where the usage is unknown"


def test_pressure_and_a_raise() -> None:
    ledger = BudgetLedger(Budget(max_steps=10)).reserve("a/1", Amount(steps=8))
    assert ledger.pressed()
    assert not ledger.raised(max_steps=20).pressed()
    assert not BudgetLedger(Budget()).pressed()
    timed = BudgetLedger(Budget(max_wall_time="10s"), began_at=100.0)
    assert [timed.pressed(at) for at in (107.9, 108.0)] == [False, True]
    assert [timed.lacking(Amount(), at) for at in (109.9, 110.0)] == [None, "wall_time"]


@pytest.mark.parametrize("wrong", [{"max_steps": -1}, {"max_cost_usd": float("nan")}, {"max_llm_tokens": True}])
def test_limits_are_numbers(wrong: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match="a number of 0 or more"):
        Budget(**wrong)  # type: ignore[arg-type]


def test_the_json_of_a_budget_in_a_state() -> None:
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
    ledger = (
        BudgetLedger(Budget(max_llm_tokens=100))
        .reserve("a/1.1", Amount(llm_tokens=40))
        .reserve("b/1.1", Amount(llm_tokens=9))
    )
    assert ledger.lacking(Amount(llm_tokens=60)) == "llm_tokens", "the first one counts as long as its usage is unknown"
    ledger = ledger.reserve("a/7.1", Amount(llm_tokens=40)).settle("a", Amount(llm_tokens=10))
    assert (ledger.spent.llm_tokens, list(ledger.reserved)) == (20, ["b/1.1"])
    assert ledger.reserve("c/1.1", Amount(llm_tokens=50)).free("c/1.1").spent.llm_tokens == 20


def test_waiting_tasks_that_fit_are_woken_once() -> None:
    ledger = BudgetLedger(Budget(max_llm_tokens=100)).reserve("a/1", Amount(llm_tokens=90))
    for task, want in (("small", 15), ("large", 60), ("huge", 200)):
        granted = reserved({"root": ledger}, task, f"{task}/1", Amount(llm_tokens=want), 0.0)
        assert (granted.holder, granted.lacking) == ("root", "llm_tokens")
        ledger = granted.ledgers["root"]
    granted = settled({"root": ledger}, {"a": Amount(llm_tokens=30)}, 0.0)
    assert [wake.task_id for wake in granted.wake] == ["small", "large"]
    assert list(granted.ledgers["root"].waiting) == ["huge"]
    raised, woken = granted.ledgers["root"].raised(max_llm_tokens=900).wake("root", 0.0, all_waiting=True)
    assert [wake.task_id for wake in woken] == ["huge"]
    assert not raised.waiting
    assert len({wake.message for wake in (*granted.wake, *woken)}) == 3, "each is a message of its own"
    assert all(wake.message.startswith(OWN_ID_PREFIX) for wake in woken), "no caller may send one with this id"


def test_all_ledgers_or_none() -> None:
    ledgers = {"root": BudgetLedger(Budget(max_llm_tokens=100)), "child": BudgetLedger(Budget(max_llm_tokens=10))}
    refused = reserved(ledgers, "child", "x/1", Amount(llm_tokens=50), 0.0)
    assert refused.holder == "child"
    assert not refused.ledgers["root"].reserved
    granted = reserved(refused.ledgers, "child", "y/1", Amount(llm_tokens=5), 0.0)
    assert [list(ledger.reserved) for ledger in granted.ledgers.values()] == [["y/1"], ["y/1"]]
    assert not granted.ledgers["child"].waiting, "it got something, so it does not wait any longer"


@pytest.mark.slow
@given(moves, st.floats(0, 1e9))
def test_a_ledger_comes_back_as_it_was_stored(plan: list[tuple[str, str, Amount]], began_at: float) -> None:
    ledger = BudgetLedger(Budget(max_llm_tokens=50, when_spent="finish", max_wall_time="3m"), began_at)
    for verb, key, amount in plan:
        ledger = (
            ledger.reserve(f"{key}/1", amount) if verb == "reserve" else ledger.settle(key, amount).wait(key, amount)
        )
    assert BudgetLedger.unpacked(ledger.packed()) == ledger


@pytest.mark.parametrize(
    "wrong", [{"max_steps": 2.5}, {"max_llm_tokens": float("inf")}, {"max_cost_usd": float("inf")}], ids=str
)
def test_a_limit_that_no_record_can_hold_is_refused(wrong: dict[str, float]) -> None:
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
def test_a_call_reserves_between_its_least_and_its_most(limit: int, wants: list[tuple[int, int]], money: bool) -> None:
    budget = Budget(max_cost_usd=limit / 7) if money else Budget(max_llm_tokens=limit)
    ledgers: Any = {"above": BudgetLedger(Budget(max_llm_tokens=150)), "own": BudgetLedger(budget)}
    for number, (low, more) in enumerate(wants):
        least, most = Amount(1, low, low / 7), Amount(1, low + more, (low + more) / 7)
        granted = reserved(ledgers, "t", f"c{number}/1", most, 0.0, least)
        ledgers = granted.ledgers
        if granted.lacking:
            assert ledgers[granted.holder].lacking(least) == granted.lacking
            continue
        assert low <= granted.amount.llm_tokens <= low + more
        assert granted.amount.cost_usd >= granted.amount.llm_tokens / 7 - 1e-6
        left = [
            limit - ledger.used(kind)
            for ledger in ledgers.values()
            for kind in ("llm_tokens", "cost_usd")
            if (limit := ledger.budget.of(kind)) is not None
        ]
        assert min(left) >= 0, "never more than there is"
        assert granted.amount == most or min(left) < 1.01, "as much as there is"


def test_a_task_that_waits_for_its_least_is_woken_by_its_least() -> None:
    ledger = BudgetLedger(Budget(max_llm_tokens=100)).reserve("a/1", Amount(1, 90, None))
    granted = reserved({"root": ledger}, "t", "b/1", Amount(1, 80, None), 0.0, Amount(1, 20, None))
    assert granted.lacking == "llm_tokens"
    after = settled(granted.ledgers, {"a": Amount(1, 75, None)}, 0.0)
    assert [wake.task_id for wake in after.wake] == ["t"]
    again = reserved(after.ledgers, "t", "b/1", Amount(1, 80, None), 0.0, Amount(1, 20, None))
    assert (again.amount.llm_tokens, again.pressed) == (24, True)


def test_an_exceeded_budget_names_the_missing_amounts() -> None:
    spent = BudgetSpent("06gybkmghcvfg68zzv8tad3yjr", "llm_tokens", 900, 1000, needs=450, held=300)
    assert spent.what == (
        "the budget of task 06gybkmghcvfg68zzv8tad3yjr has not enough tokens for the next call: it needs 450, and 100 of 1,000 "
        "are left (300 more are reserved by calls under way)"
    )
    assert str(spent).endswith("; `onward budget 8tad3yjr --tokens 1350` raises it")
    assert "it needs $0.25, and $0 of $1.5 are left" in str(BudgetSpent("t", "cost_usd", 1.5, 1.5, needs=0.25))
    assert "its time is up" in str(BudgetSpent("t", "wall_time", 5, 4))
