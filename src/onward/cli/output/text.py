"""Values as strings for a terminal. Names, results and messages come from tasks and are not trusted: characters that could move the
cursor, change colours or reverse the direction of writing are escaped."""

from __future__ import annotations

import json
from typing import Any

from onward.core.text import clock as clock
from onward.core.text import count as count
from onward.core.text import local as local
from onward.core.text import readable as readable
from onward.core.text import safe as safe
from onward.core.text import short as short
from onward.core.text import span as span
from onward.core.text import visible as visible


def safe_lines(value: object) -> str:
    """Text of many lines with control characters escaped. It is indented by two columns, so that no line looks like one of
    ours."""
    return "\n".join(
        f"  {safe(line)}".rstrip() for line in str(value).replace("\r\n", "\n").replace("\t", "    ").split("\n")
    )


def machine_readable(value: Any, indent: int | None = None) -> str:
    """A value as JSON for programs: ASCII, independent of the encoding of the terminal."""
    return json.dumps(value, indent=indent, allow_nan=False).replace("\x7f", "\\u007f")


def age(seconds: float) -> str:
    """A duration in one unit: 4 s, 12 m, 3 h, 5 d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"
