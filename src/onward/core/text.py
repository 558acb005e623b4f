"""Values as strings for people. Names, results and messages come from tasks and are not trusted: characters that could move the cursor of
a terminal, change colours or the direction of writing are escaped."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable
from typing import Any

_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff"
)
"""Symbols after which U+FE0F asks for the coloured form. Anywhere else it shows nothing."""

_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
    f"|(?<![{_EMOJI}0-9#*])\ufe0f|(?<=[0-9#*])\ufe0f(?!\u20e3)"
)
"""Characters that Python calls printable, and that show nothing: joiners, fillers and selectors of variants."""


def safe(value: object) -> str:
    """One line in which every character can be seen: others are escaped, among them those that control a terminal, change the
    direction of writing, or have no width."""
    text = str(value)
    return text if is_visible(text) else _hidden_replaced(text, _escaped)


def visible(text: str) -> str:
    """The same for text of several lines: line breaks and tabs stay."""
    return text if is_visible(text) else re.sub(r"[^\n\t]+", lambda match: safe(match[0]), text)


def is_visible(text: str) -> bool:
    """Whether every character of a line can be seen."""
    return text.isprintable() and (text.isascii() or not _BLANK.search(text))


def _hidden_replaced(text: str, escaped: Callable[[str], str]) -> str:
    shown = _BLANK.sub(lambda match: escaped(match[0]), text)
    return "".join(c if c.isprintable() else escaped(c) for c in shown)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def short(value: object, most: int = 60) -> str:
    """The same, cut to a length."""
    text = safe(str(value)[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def readable(value: Any, indent: int | None = None) -> str:
    """A value as JSON for people: umlauts stay, and characters that are not printable are escaped as in JSON."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if is_visible(text) else "\n".join(_hidden_replaced(line, _as_json) for line in text.split("\n"))


def _as_json(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def span(seconds: float) -> str:
    """A duration: 0.42 s, 12 s, 3 m 05 s, 2 h 10 m, 3 d 4 h."""
    if seconds < 9.995:
        return f"{max(seconds, 0):.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def clock(at: float) -> str:
    """The time of day in the local time zone, with its offset: 14:00:05+01:00, or 13:00:05Z where that is UTC."""
    return _with_z(datetime.datetime.fromtimestamp(at).astimezone().timetz().isoformat("seconds"))


def local(at: float) -> str:
    """A time in the local time zone, with its offset: 2026-11-15 14:00:05+01:00, or 2026-11-15 13:00:05Z where that is UTC."""
    within = min(max(at, FIRST_TIME), LAST_TIME)
    return _with_z(datetime.datetime.fromtimestamp(within).astimezone().isoformat(" ", "seconds"))


def _with_z(text: str) -> str:
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def count(number: int, thing: str) -> str:
    """1 task, 2 tasks."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


FIRST_TIME, LAST_TIME = -62_135_510_400.0, 253_402_214_400.0
"""The second day of the year 1 and the last day of the year 9999: the times that have a date in every zone."""


def iso(at: float | None) -> str | None:
    """A time in ISO 8601, UTC; None for None and for infinity. A time that calendars do not know becomes the first or the last that they
    know, so that one such value does not make a whole list unreadable."""
    if at is None or not math.isfinite(at):
        return None
    return (
        datetime.datetime.fromtimestamp(min(max(at, FIRST_TIME), LAST_TIME), datetime.UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
