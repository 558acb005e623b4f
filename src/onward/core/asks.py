"""The payload of a question or an approval: the order of its fields, and reading it from its beginning alone. Pure.

A list has no room for all of a large approval, and shows it from the first bytes of its record. So the worker writes the small fields
before the large ones.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from onward.core import record as r

ASKS: Final = frozenset({r.QUESTION, r.APPROVAL})
"""Kinds of records that ask a person."""

_ORDER: Final = (
    "default",
    "until",
    "cut",
    "risk",
    "question",
    "what",
    "rule",
    "choices",
    "effect",
    "description",
    "data",
)
_PLACES: Final = {name: place for place, name in enumerate(_ORDER)}
_TEXTS: Final = ("question", "what")
_DECODER: Final = json.JSONDecoder()

MAX_DESCRIPTION_CHARS: Final = 2_000
"""Characters of the description of a tool in the record of an approval."""

MAX_TEXT_CHARS: Final = 300
"""Characters that are shown of a text that is cut."""


class Head(NamedTuple):
    """The fields that the beginning of a payload has; and the names of those that it may have behind that."""

    fields: dict[str, Any]
    left_out: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class AskedIn:
    """The turn of an agent that asked for an approval."""

    turn: int | None
    """Its number; null for an approval that no recorded turn asked for, such as one of a handler that is no agent."""
    reason: str | None
    """What the model wrote in that turn beside its calls: its reason, as far as it gave one. It has 10,000 characters at most, and is no
    part of the digest."""


def ordered(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload with its fields in the order in which a record has them."""
    return dict(sorted(payload.items(), key=lambda item: _PLACES.get(item[0], -1)))


def read_head(data: bytes) -> Head:
    """Read the beginning of a payload. A text that is cut is there with its first characters."""
    text, fields = data.decode("utf-8", "ignore"), dict[str, Any]()
    cut_at: str | None = None
    at = 1
    try:
        while True:
            name, at = _DECODER.raw_decode(text, at)
            cut_at = name
            value, end = _DECODER.raw_decode(text, at + 1)
            if text[end] != ",":  # a number that is cut would be read as another number
                break
            fields[name], cut_at, at = value, None, end + 1
    except (ValueError, IndexError):
        if cut_at in _TEXTS:
            fields[cut_at] = _beginning(text[at + 1 :])
    first = next(iter(fields), cut_at)
    if (
        cut_at is None or cut_at not in _PLACES or first in _TEXTS
    ):  # an older version wrote it, or it has no small field
        return Head(fields, (frozenset(_ORDER) - fields.keys()) | ({cut_at} if cut_at else set()))
    return Head(fields, frozenset(_ORDER[_PLACES[cut_at] :]))


def _beginning(text: str) -> str:
    """The first characters of a string in JSON whose end is missing."""
    for end in range(min(len(text), 2 * MAX_TEXT_CHARS), 0, -1):
        try:
            return str(json.loads(f'{text[:end]}"'))[:MAX_TEXT_CHARS]
        except ValueError:  # half of an escape
            continue
    return ""
