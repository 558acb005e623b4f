"""A page of an artifact, as a model reads it: numbered lines that always fit, and how to go on."""

from __future__ import annotations

import io

LINES = 100
"""Lines that are read at once."""

WIDTH = 1_000
"""Bytes of a line that are shown at once; `column` goes on in it."""

_NOTE = 160
"""Bytes kept free for the line that says how to go on."""

_HEAD = 8_000
"""Bytes that are looked at to tell a text from something else."""


def binary(data: bytes) -> bool:
    """Whether this is no text: NUL bytes, or hardly a letter in any alphabet."""
    head = data[:_HEAD]
    return b"\0" in head or head.decode("utf-8", "replace").count("\ufffd") * 4 > len(head)


def page(data: bytes, *, start: int = 1, lines: int = LINES, search: str = "", column: int = 1, most: int) -> str:
    """Lines from number `start` on, only those that contain `search`, in at most so many bytes."""
    if binary(data):
        return f"(binary, {len(data):,} bytes: it cannot be read as text)"
    needle, room, shown, number = search.encode("utf-8", "backslashreplace"), most - _NOTE, list[str](), 0
    width = min(WIDTH, (most - 2 * _NOTE) // 3)  # a byte that is no text is shown as three
    for number, raw in enumerate(io.BytesIO(data), 1):
        line = raw.rstrip(b"\r\n")
        at = line.find(needle, max(column, 1) - 1)  # (nothing is found anywhere, up to the end)
        if number < start or at < 0:
            continue
        text = _line(number, line, at, len(needle), width)
        room -= len(text.encode()) + 1
        if len(shown) == max(1, min(lines, LINES)) or (shown and room < 0):
            return "\n".join([*shown, f"(there is more: start={number})"])
        shown.append(text)
    return "\n".join(shown) or f"(no such lines; it has {number:,})"


def _line(number: int, line: bytes, at: int, found: int, width: int) -> str:
    """A line, or the part of it around a place, and where that part lies."""
    if len(line) <= width and not (at and not found):
        return f"{number}: {line.decode('utf-8', 'replace')}"
    begin = max(0, at - width // 4) if found else at
    part = line[begin : begin + width]
    end = begin + len(part)
    onward = f"; column={max(end, at + found) + 1} goes on" if end < len(line) else ""
    text = part.decode("utf-8", "replace")
    return f"{number}: {text} (bytes {begin + 1:,} to {end:,} of {len(line):,} in this line{onward})"
