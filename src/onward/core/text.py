"""Values as strings for people. Names, results and messages come from tasks and are not trusted: characters that could move the cursor of
a terminal, change colours or the direction of writing are escaped."""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]")
"""Characters that Python calls printable, and that show nothing: joiners, fillers and selectors of variants."""


def safe(value: object) -> str:
    """One line in which every character can be seen: others are escaped, among them those that control a terminal, change the
    direction of writing, or have no width."""
    text = str(value)
    return text if _is_visible(text) else "".join(c if _is_visible(c) else _escaped(c) for c in text)


def visible(text: str) -> str:
    """The same for text of several lines: line breaks and tabs stay."""
    return text if _is_visible(text) else re.sub(r"[^\n\t]+", lambda match: safe(match[0]), text)


def _is_visible(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _BLANK.search(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def short(value: object, most: int = 60) -> str:
    """The same, cut to a length."""
    text = safe(str(value)[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def readable(value: Any, indent: int | None = None) -> str:
    """A value as JSON for people: umlauts stay, and characters that are not printable are escaped as in JSON."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if _is_visible(text) else _ODD.sub(_as_json, text)


_ODD = re.compile(r"[^ -~\n]")


def _as_json(match: re.Match[str]) -> str:
    character = match[0]
    return character if _is_visible(character) else "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


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
    """The time of day."""
    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


def count(number: int, thing: str) -> str:
    """1 task, 2 tasks."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def iso(at: float | None) -> str | None:
    """A time in ISO 8601, UTC; None for None and for infinity."""
    if at is None or not math.isfinite(at):
        return None
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
