"""Values as text for a terminal. Names, results and messages come from tasks, that is, from anybody: whatever could move
the cursor, change colours or turn the direction of writing is shown escaped and never sent."""

from __future__ import annotations

import datetime
import json
from typing import Any


def safe(value: object) -> str:
    """One line of harmless text."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def safe_lines(value: object) -> str:
    """Harmless text of many lines: they break where they broke, and stand two columns in, so that none of them passes for a
    line of ours."""
    return "\n".join(
        f"  {safe(line)}".rstrip() for line in str(value).replace("\r\n", "\n").replace("\t", "    ").split("\n")
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def short(value: object, most: int = 60) -> str:
    """Harmless text, cut to a length."""
    text = safe(str(value)[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def readable(value: Any, indent: int | None = None) -> str:
    """A value as JSON for people: umlauts stay, what is not printable is escaped the way JSON does it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(
        c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] if c != "\x7f" else "\\u007f" for c in text
    )


def machine_readable(value: Any, indent: int | None = None) -> str:
    """A value as JSON for programs: plain ASCII, whatever the terminal is set to."""
    return json.dumps(value, indent=indent, allow_nan=False).replace("\x7f", "\\u007f")


def span(seconds: float) -> str:
    """How long: 0.42 s, 12 s, 3 m 05 s, 2 h 10 m, 3 d 4 h."""
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


def age(seconds: float) -> str:
    """How long ago, in one unit: 4 s, 12 m, 3 h, 5 d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"


def local(at: float) -> str:
    """A moment as a person here reads it."""
    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def clock(at: float) -> str:
    """The time of day."""
    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


def count(number: int, thing: str) -> str:
    """1 task, 2 tasks."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
