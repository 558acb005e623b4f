"""JSON of views (`core/views.py`), derived from the fields of their dataclasses, in both directions.

A field becomes a key of the same name. A `Time` becomes ISO 8601, a tuple a list, an enum its value, a view inside of a view an
object; all other values are JSON already.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from onward.core.durations import Time
from onward.core.text import iso

T = TypeVar("T")
Convert = Callable[[Any], Any]


def to_json(view: Any) -> dict[str, Any]:
    """A view as a JSON object."""
    return {
        name: value if (value := getattr(view, name)) is None or encode is None else encode(value)
        for name, encode, _ in _fields(type(view))
    }


def from_json(kind: type[T], document: Mapping[str, Any]) -> T:
    """The view that `to_json` gave. Keys that this version does not know, of a newer server, are left out."""
    values = {}
    for name, _, decode in _fields(kind):
        if name in document:
            value = document[name]
            values[name] = value if value is None or decode is None else decode(value)
    return kind(**values)


def from_row(kind: type[T], row: Any, **others: Any) -> T:
    """The view of a row of the store: `others` are its fields that the row does not have under the same name."""
    names = {name for name, _, _ in _fields(kind)} - others.keys()
    return kind(**{name: getattr(row, name) for name in names}, **others)


def parse_time(text: str) -> float:
    """Seconds since 1970 of a time in ISO 8601."""
    return datetime.datetime.fromisoformat(text).timestamp()


_FIELDS: dict[type, list[tuple[str, Convert | None, Convert | None]]] = {}
"""The fields of each view: name, encoder and decoder; None where the value is JSON as it is."""


def _fields(kind: type) -> list[tuple[str, Convert | None, Convert | None]]:
    if kind not in _FIELDS:
        hints = typing.get_type_hints(kind, include_extras=True)
        _FIELDS[kind] = [(field.name, *_converters(hints[field.name])) for field in dataclasses.fields(kind)]
    return _FIELDS[kind]


def _converters(hint: Any) -> tuple[Convert | None, Convert | None]:
    """The encoder and the decoder for a type; `X | None` counts as X."""
    if typing.get_origin(hint) in {types.UnionType, typing.Union}:
        options = [option for option in typing.get_args(hint) if option is not types.NoneType]
        return _converters(options[0]) if len(options) == 1 else (None, None)
    if hint == Time:
        return iso, parse_time
    if typing.get_origin(hint) in {tuple, list}:
        return _list_converters(typing.get_origin(hint), typing.get_args(hint)[0])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return to_json, functools.partial(from_json, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return operator.attrgetter("value"), hint
    return None, None


def _list_converters(collection: Any, item: Any) -> tuple[Convert, Convert]:
    encode, decode = _converters(item)
    return (
        lambda values: list(values) if encode is None else [encode(value) for value in values],
        lambda values: collection(values if decode is None else map(decode, values)),
    )
