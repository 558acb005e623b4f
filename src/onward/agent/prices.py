"""The cost of a model call, and the most that it can cost, in US dollars. None means that the price is not known; it never means 0.

The prices are your own (`Prices`, on a model of yours), else those of the package `genai-prices` (`pip install 'onward[prices]'`). Its
list is as old as the package: nothing is fetched.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from onward.agent.model import Model, Usage
from onward.errors import BadSetting

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

MILLION = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Prices:
    """Your own prices, in dollars for a million tokens. Input from the provider's cache costs as much as other input, unless you
    give its price."""

    input_per_mtok: float
    output_per_mtok: float
    cached_per_mtok: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            price = getattr(self, field.name)
            if price is not None and not 0 <= price < math.inf:
                raise BadSetting(f"Prices.{field.name}", price, "dollars for a million tokens, 0 or more")

    def of(self, fresh: int, cached: int, output: int) -> float:
        """The cost of so many tokens."""
        cached_price = self.input_per_mtok if self.cached_per_mtok is None else self.cached_per_mtok
        return (fresh * self.input_per_mtok + cached * cached_price + output * self.output_per_mtok) / MILLION


def cost(model: Model | str, usage: Usage) -> float | None:
    """The cost of a call. Pass the model itself where there is one: it may have prices of its own, and it knows its provider. A name
    alone ("gpt-5-mini", "openai:gpt-5-mini") is looked up."""
    if usage.input is None or usage.output is None or min(usage.input, usage.output) < 0:
        return None
    cached = min(max(usage.cached or 0, 0), usage.input)
    own = None if isinstance(model, str) else getattr(model, "prices", None)
    if isinstance(own, Prices):
        return own.of(usage.input - cached, cached, usage.output)
    return _listed(model, usage.input, cached, usage.output)


def max_cost(model: Model | str, input: int, output: int) -> float | None:  # noqa: A002 -- the word of Usage
    """The most that a call of so many tokens can cost: all input counts at the dearer input price."""
    own = None if isinstance(model, str) else getattr(model, "prices", None)
    if isinstance(own, Prices):
        dearer = dataclasses.replace(own, input_per_mtok=max(own.input_per_mtok, own.cached_per_mtok or 0.0))
        return dearer.of(input, 0, output)
    return _listed(model, input, 0, output)


def _listed(model: Model | str, input_tokens: int, cached: int, output_tokens: int) -> float | None:
    try:
        from genai_prices import Usage as Tokens  # noqa: PLC0415 -- an extra, and slow to load
        from genai_prices import calc_price  # noqa: PLC0415
    except ImportError:
        return None
    tokens = Tokens(input_tokens=input_tokens, output_tokens=output_tokens, cache_read_tokens=cached)
    try:
        if isinstance(model, str):
            provider, _, name = model.rpartition(":")
            calculation = calc_price(tokens, name, provider_id=provider or None)
        elif url := getattr(model, "base_url", ""):  # the same name elsewhere is another model, at another price
            calculation = calc_price(tokens, model.name, provider_api_url=url)
        else:
            calculation = calc_price(tokens, model.name)
    except (LookupError, ValueError):
        return None
    return float(calculation.total_price) if _is_known(calculation) else None


def _is_known(calculation: PriceCalculation) -> bool:
    """Whether the list has a price. A model that it lists without one is not free."""
    price = calculation.model_price
    return price.input_mtok is not None and price.output_mtok is not None
