"""Calls: which argument of a function gets what of an input, by the names alone.

Asked where the function is, and also where only its schema is known: both say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import starmap
from typing import Any

from onward.core import secret, wire
from onward.core.text import readable, short
from onward.errors import InvalidInput

_PLAIN = frozenset({"string", "integer", "number", "boolean"})


def arranged(
    value: Any, named: Mapping[str, Any], needed: AbstractSet[str], *, open_ended: bool = False
) -> dict[str, Any] | None:
    """What each argument gets; None when no call comes of it. An object becomes arguments by name where these are its names;
    anything else is one argument; null is none where none is needed."""
    if (
        isinstance(value, dict)
        and needed <= value.keys()
        and (open_ended or value.keys() <= named.keys())
        and (value or not needed)
    ):
        return value
    if value is None and not needed:
        return {}
    return {first(named, needed): value} if len(needed) <= 1 and named else None


def first(named: Mapping[str, Any], needed: AbstractSet[str]) -> str:
    """The argument that gets an input which is no object."""
    return next(iter(needed), next(iter(named)))


def check(value: Any, schema: Mapping[str, Any], what: str) -> None:
    """Raises InvalidInput for what no function with this schema takes. What is inside the arguments is left to whoever has the
    function: its checks know more than its schema."""
    known, needed = schema.get("properties", {}), frozenset(schema.get("required", ()))
    given = arranged(value, known, needed, open_ended=schema.get("additionalProperties", True))
    if given is None or any(_no_match(item, known.get(name)) for name, item in given.items()):
        raise refusal(what, list(starmap(_typed, known.items())), value, quiet=secret.MARK in wire.encode(schema))
    for name, item in given.items():
        if secret.in_clear(item, known.get(name)):
            raise InvalidInput(f"{what}: {secret.in_clear_text(name)}")


def refusal(what: str, parts: Sequence[str], value: Any, *, quiet: bool) -> InvalidInput:
    """What is said to an input that comes to no call. `quiet`: a secret may stand in it, so it is not repeated."""
    given = "something else" if quiet else short(readable(value), 80)
    return InvalidInput(f"{what} takes {usage(parts)}, and the input is {given}")


def usage(parts: Sequence[str]) -> str:
    """Arguments as a person would write them."""
    return f"an object with {', '.join(parts)}" if parts else "no input"


def _typed(name: str, schema: Mapping[str, Any]) -> str:
    return f"{name}: {schema['type']}" if isinstance(schema.get("type"), str) else name


def _no_match(value: Any, schema: Mapping[str, Any] | None) -> bool:
    """Whether an object or a list is given where there is room for a single thing only."""
    bare = isinstance(value, dict | list) and secret.name_in(value) is None
    return bare and schema is not None and schema.get("type") in _PLAIN
