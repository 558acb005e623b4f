"""Calls: assigns the parts of an input to the arguments of a function, by names alone.

A process that has the function and a process that knows only its schema get the same result.
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


def arrange(
    value: Any, named: Mapping[str, Any], needed: AbstractSet[str], *, open_ended: bool = False
) -> dict[str, Any] | None:
    """The value of each argument; None when the input fits no call. An object becomes arguments by name, if its keys are their names; any
    other input is one argument; null is no argument where none is needed."""
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


def whole(
    value: Any, named: Mapping[str, Any], needed: AbstractSet[str], *, open_ended: bool = False
) -> dict[str, Any] | None:
    """The input that makes an object the value of one argument, where `arrange` would take its keys for names; None where it would not, and
    where no argument takes a value alone."""
    if not isinstance(value, dict) or not named or len(needed) > 1:
        return None
    taken_apart = arrange(value, named, needed, open_ended=open_ended) is value
    return {first(named, needed): value} if taken_apart else None


def first(named: Mapping[str, Any], needed: AbstractSet[str]) -> str:
    """The argument for an input that is no object."""
    return next(iter(needed), next(iter(named)))


def whole_for(value: Any, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """`whole` for a function with this schema."""
    known, needed = schema.get("properties", {}), frozenset(schema.get("required", ()))
    return whole(value, known, needed, open_ended=schema.get("additionalProperties", True))


def check(value: Any, schema: Mapping[str, Any], what: str) -> None:
    """Raises InvalidInput for an input that no function with this schema takes. Values inside of arguments are not checked: the process that
    has the function checks them better than a schema can."""
    known, needed = schema.get("properties", {}), frozenset(schema.get("required", ()))
    arguments = arrange(value, known, needed, open_ended=schema.get("additionalProperties", True))
    if arguments is None or any(_no_match(item, known.get(name)) for name, item in arguments.items()):
        raise refusal(what, list(starmap(_typed, known.items())), value, quiet=secret.MARK in wire.encode(schema))
    for name, item in arguments.items():
        if secret.in_clear(item, known.get(name)):
            raise InvalidInput(f"{what}: {secret.in_clear_text(name)}")


def refusal(what: str, parts: Sequence[str], value: Any, *, quiet: bool) -> InvalidInput:
    """The error for an input that fits no call. `quiet`: the input may contain a secret, so the error does not repeat it."""
    given = "something else" if quiet else short(readable(value), 80)
    return InvalidInput(f"{what} takes {usage(parts)}, and the input is {given}")


def usage(parts: Sequence[str]) -> str:
    """Arguments in words."""
    return f"an object with {', '.join(parts)}" if parts else "no input"


def _typed(name: str, schema: Mapping[str, Any]) -> str:
    return f"{name}: {schema['type']}" if isinstance(schema.get("type"), str) else name


def _no_match(value: Any, schema: Mapping[str, Any] | None) -> bool:
    """Whether the value is an object or a list where the schema has a plain type."""
    bare = isinstance(value, dict | list) and secret.name_in(value) is None
    return bare and schema is not None and schema.get("type") in _PLAIN
