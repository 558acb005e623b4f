"""Filters of lists, as callers write them: one value, or several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onward.errors import BadSetting

MAX_VALUES = 50


def as_list(name: str, value: str | Iterable[Any] | None) -> list[Any]:
    """The values of a filter: none, one, or several. Raises BadSetting for too many."""
    if value is None:
        return []
    values = [value] if isinstance(value, str) else [*value]
    if len(values) > MAX_VALUES:
        raise BadSetting(name, len(values), f"at most {MAX_VALUES} values")
    return values
