"""Prices: the cost of a call, the most that it can cost, and None, never zero, for an unknown price."""

from __future__ import annotations

import math
import socket
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.agent.model import Usage
from onward.agent.models.scripted import ScriptedModel
from onward.agent.prices import Prices, cost, max_cost
from onward.errors import BadSetting

TOKENS = st.integers(0, 2_000_000)


class Priced(ScriptedModel):
    """A model with prices of its own, or at an address of its own."""

    def __init__(self, name: str, prices: Prices | None = None, base_url: str = "") -> None:
        super().__init__([], name)
        self.prices, self.base_url = prices, base_url


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("prices are looked up without a network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_a_listed_model_has_its_price() -> None:
    whole = cost("gpt-4o", Usage(1_000_000, 1_000_000))
    assert whole == pytest.approx(2.50 + 10.00)
    assert cost("gpt-4o", Usage(1_000_000, 1_000_000, cached=1_000_000)) == pytest.approx(1.25 + 10.00)
    assert cost("openai:gpt-4o", Usage(1_000_000, 1_000_000)) == whole
    assert cost("gpt-4o-2024-08-06", Usage(1_000_000, 1_000_000)) == whole
    assert cost("gpt-4o", Usage(0, 0)) == 0.0


@pytest.mark.parametrize(
    "name", ["nobody-knows-me", "openai:nobody-knows-me", "nowhere:gpt-4o", "", "cerebras:qwen-3-coder-480b"]
)
def test_an_unknown_price_is_none_and_not_zero(name: str) -> None:
    assert cost(name, Usage(10, 10)) is None
    assert max_cost(name, 10, 10) is None


@pytest.mark.parametrize("usage", [Usage(), Usage(3), Usage(None, 3), Usage(-1, 3), Usage(3, -1)])
def test_usage_that_is_unknown_has_no_cost(usage: Usage) -> None:
    assert cost("gpt-4o", usage) is None
    assert cost(Priced("mine", Prices(1, 1)), usage) is None


def test_a_provider_that_miscounts_its_cache_is_not_paid_for_it() -> None:
    assert cost("gpt-4o", Usage(10, 0, cached=1_000)) == cost("gpt-4o", Usage(10, 0, cached=10))
    assert cost("gpt-4o", Usage(10, 0, cached=-5)) == cost("gpt-4o", Usage(10, 0))


def test_a_model_has_the_price_of_its_server() -> None:
    priced = Priced("gpt-4o", base_url="https://api.openai.com/v1")
    assert cost(priced, Usage(1_000_000, 0)) == pytest.approx(2.50)
    elsewhere = Priced("gpt-4o", base_url="http://127.0.0.1:8000/v1")
    assert cost(elsewhere, Usage(1_000_000, 0)) is None, "a server of one's own does not charge OpenAI's price"
    assert cost(ScriptedModel([]), Usage(1, 1)) is None


def test_your_own_prices_come_first() -> None:
    mine = Priced("gpt-4o", Prices(1.0, 2.0, cached_per_mtok=0.5), "http://127.0.0.1:8000/v1")
    assert cost(mine, Usage(2_000_000, 1_000_000, cached=1_000_000)) == pytest.approx(1.0 + 0.5 + 2.0)
    assert max_cost(mine, 2_000_000, 1_000_000) == pytest.approx(4.0)
    plain = Priced("mine", Prices(1.0, 2.0))
    assert cost(plain, Usage(2_000_000, 1_000_000, cached=1_000_000)) == pytest.approx(4.0)
    assert cost(Priced("at home", Prices(0.0, 0.0)), Usage(10, 10)) == 0.0, "a price of zero is accepted as free"


@pytest.mark.parametrize("prices", [(-1.0, 1.0), (1.0, math.inf), (1.0, 1.0, math.nan)])
def test_a_price_is_a_price(prices: tuple[float, ...]) -> None:
    with pytest.raises(BadSetting, match="dollars for a million tokens"):
        Prices(*prices)


@given(TOKENS, TOKENS, TOKENS, st.sampled_from(["gpt-5-mini", "gemini-2.5-pro", "claude-sonnet-4-5", "mine", "odd"]))
def test_no_call_costs_more_than_its_most(input_: int, cached: int, output: int, name: str) -> None:
    own = {"mine": Prices(3.0, 15.0, 0.3), "odd": Prices(1.0, 1.0, 9.0)}
    model = Priced(name, own[name]) if name in own else name
    bound, real = max_cost(model, input_, output), cost(model, Usage(input_, output, cached))
    assert bound is not None
    assert real is not None
    assert real <= bound * (1 + 1e-9)


def test_without_the_package_only_your_own_prices_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert cost("gpt-4o", Usage(1, 1)) is None
    assert cost(Priced("gpt-4o", Prices(1, 1)), Usage(1, 1)) is not None
