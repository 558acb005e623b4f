"""The outputs of agents as the results of tasks."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json, to_jsonable_python

from onward.core import wire
from onward.errors import InvalidInput


def as_result(output: Any) -> Any:
    """An output of any type as one that a task can have. The work is done and paid for, and must not fail because of its last value."""
    try:
        wire.encode(output)
    except InvalidInput:
        return as_json(output)
    return output


def as_json(value: Any) -> Any:
    """A value as JSON: where JSON has none like it, what pydantic makes of it, with bytes as base64 and "NaN" as a string."""
    plain = to_jsonable_python(value, bytes_mode="base64", serialize_unknown=True)
    try:
        wire.encode(plain)
    except InvalidInput:
        return wire.decode(to_json(plain, inf_nan_mode="strings"))
    return plain
