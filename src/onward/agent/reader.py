"""Pages of an artifact for a model: numbered lines that always fit, and a note how to read on."""

from __future__ import annotations

import io

MAX_LINES = 100
"""Lines of one page."""

MAX_LINE_BYTES = 1_000
"""Bytes of one line that a page shows; with `column` the model reads on in it."""

_NOTE_BYTES = 160
"""Room for the note that says how to read on."""

_SAMPLE_BYTES = 8_000
"""Bytes from which `binary` tells text from other data."""


def binary(data: bytes) -> bool:
    """Whether the data is not text: it has NUL bytes, or too much of it is not UTF-8."""
    head = data[:_SAMPLE_BYTES]
    return b"\0" in head or head.decode("utf-8", "replace").count("\ufffd") * 4 > len(head)


def page(
    data: bytes, *, start: int = 1, lines: int = MAX_LINES, search: str = "", column: int = 1, max_bytes: int
) -> str:
    """Lines from number `start` on that contain `search`, in at most `max_bytes` bytes."""
    if binary(data):
        return f"(binary, {len(data):,} bytes: it cannot be read as text)"
    needle, room, shown, number = search.encode("utf-8", "backslashreplace"), max_bytes - _NOTE_BYTES, list[str](), 0
    width = min(MAX_LINE_BYTES, (max_bytes - 2 * _NOTE_BYTES) // 3)  # a byte that is not UTF-8 becomes three
    for number, raw in enumerate(io.BytesIO(data), 1):
        line = raw.rstrip(b"\r\n")
        at = line.find(needle, max(column, 1) - 1)  # an empty needle is in every line that reaches the column
        if number < start or at < 0:
            continue
        text = _line(number, line, at, len(needle), width)
        room -= len(text.encode()) + 1
        if len(shown) == max(1, min(lines, MAX_LINES)) or (shown and room < 0):
            return "\n".join([*shown, f"(there is more: start={number})"])
        shown.append(text)
    return "\n".join(shown) or f"(no such lines; it has {number:,})"


def _line(number: int, line: bytes, at: int, match_bytes: int, width: int) -> str:
    """A line, or the part of it around the match at `at`, with the position of that part."""
    if len(line) <= width and not (at and not match_bytes):
        return f"{number}: {line.decode('utf-8', 'replace')}"
    begin = max(0, at - width // 4) if match_bytes else at
    part = line[begin : begin + width]
    end = begin + len(part)
    onward = f"; column={max(end, at + match_bytes) + 1} goes on" if end < len(line) else ""
    text = part.decode("utf-8", "replace")
    return f"{number}: {text} (bytes {begin + 1:,} to {end:,} of {len(line):,} in this line{onward})"
