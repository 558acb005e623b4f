"""Durations as people write them: 90, 1.5, "90s", "10m", "1h30m", "2d", or a timedelta. Inside, always seconds."""

from __future__ import annotations

import datetime
import re
from typing import Annotated

from onward.errors import BadSetting

Duration = float | int | str | datetime.timedelta


class IsoTime:
    """Marks a number of seconds that is ISO 8601 in JSON. Its method tells pydantic the JSON schema of such a time."""

    @staticmethod
    def __get_pydantic_json_schema__(_core_schema: object, _handler: object) -> dict[str, object]:
        return {"description": "ISO 8601, UTC", "examples": ["2026-11-15T14:00:00.000Z"], "type": "string"}


Time = Annotated[float, IsoTime]
"""Seconds since 1970, UTC. In JSON of views it is ISO 8601."""

Moment = datetime.datetime | float
"""A time with its zone, or seconds since 1970."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_WANTED = 'a duration such as 90, "90s", "10m" or "1h30m"'
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+")


MAX_DURATION_S = 1_000 * 365.25 * 86_400
"""A thousand years. A time that far ahead is still one that calendars know: JSON and lists show it."""


def seconds(value: Duration, name: str = "duration") -> float:
    """The duration in seconds; `name` names it in the error."""
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE.fullmatch(text):
            value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        else:
            try:
                value = float(text)
            except ValueError:
                raise BadSetting(name, value, _WANTED) from None
    try:
        fits = 0 <= value <= MAX_DURATION_S
    except TypeError:
        raise BadSetting(name, value, _WANTED) from None
    if not fits:
        raise BadSetting(name, value, "a duration of 0 s to 1,000 years")
    return float(value)
