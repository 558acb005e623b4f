r"""Escapes of JSON and string literals, of URLs and of HTML. Undoes them, and knows where each byte came from. Pure; `mask.py` searches the
views that this module makes.

Programs put escapes around escapes: JSON in a string in JSON in a URL. `unescaped` undoes one kind after the other, again and again, until
nothing changes. So it needs no order: a pass without an escape of its kind costs one search for one byte. A byte that is not escaped stays as it
is in every pass, unless it and its neighbours look like an escape.
"""

from __future__ import annotations

import bisect
import functools
import html
import re
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_ROUNDS = 8
"""How often each kind of escapes is undone: the depth to which escapes stand within each other."""

MAX_BACKSLASHES = 2**MAX_ROUNDS
"""Backslashes in a row that have a meaning: JSON in JSON, eight deep, has 255 before a quote."""

_BACKSLASH = b"\xff"
"""Stands for a backslash while the other escapes are undone. No UTF-8 has this byte."""

_FREQUENT = ((b'\\"', b'"'), (b"\\n", b"\n"), (b"\\/", b"/"), (b"\\r", b"\r"), (b"\\t", b"\t"))
"""The escapes that stand in nearly every JSON."""


class Kind(NamedTuple):
    """A kind of escapes."""

    mark: bytes
    """The byte that each of them begins with."""
    pattern: re.Pattern[bytes]

    def undo(self, data: bytes) -> bytes:
        """The bytes with these escapes undone once."""
        if self.mark not in data:
            return data
        if self.mark != b"\\" or _BACKSLASH in data:
            return self.pattern.sub(_unescape_match, data)
        data = data.replace(b"\\\\", _BACKSLASH)
        for escape, character in _FREQUENT:  # takes a tenth of the time of the pattern
            if self.mark not in data:
                break
            data = data.replace(escape, character)
        if self.mark in data:
            data = self.pattern.sub(_unescape_match, data)
        return data.replace(_BACKSLASH, b"\\")


KINDS = (
    Kind(
        b"\\",
        re.compile(
            rb"\\(?:u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}"
            rb"|[ux]\{[0-9A-Fa-f]{1,6}\}|[0-3]?[0-7]{1,2}|[^0-9AC-Zac-eg-mo-qsu-z%&])"
        ),
    ),
    Kind(b"%", re.compile(rb"%[0-9A-Fa-f]{2}")),
    Kind(b"&", re.compile(rb"&(?:#[0-9]{1,7};?|#[xX][0-9A-Fa-f]{1,6};?|[A-Za-z]{2,8};)")),
)
"""The escapes of JSON and string literals, of URLs, and of HTML. (A backslash before % and & stays: their escapes are undone after it.)"""

HALF_ESCAPE = re.compile(
    rb"(?:(?P<short>%[0-9A-Fa-f]?|&[#0-9A-Za-z]{0,8})"
    rb"|(?<!\\)(?:\\\\)*(?P<letter>\\(?:u[0-9A-Fa-f]{0,3}|u[dD][89abAB][0-9A-Fa-f]{2}(?:\\(?:u[0-9A-Fa-f]{0,3})?)?"
    rb"|U[0-9A-Fa-f]{0,7}|x[0-9A-Fa-f]?|[ux]\{[0-9A-Fa-f]{0,6}|[0-7]{1,2})?))\Z"
)
"""An escape at the end of a piece that may go on in the next. A backslash begins one where an even number of them is before it."""

Path = tuple[int, ...]
"""The kinds of escapes that were undone, one after another, by their place in `KINDS`."""


def unescaped(data: bytes) -> Iterator[tuple[Path, bytes]]:
    """The bytes as they are, and then after each pass that changed them. The path of each is a beginning of the path of the next."""
    path: Path = ()
    yield path, data
    for _ in range(MAX_ROUNDS):
        start = path
        for number, kind in enumerate(KINDS):
            undone = kind.undo(data)
            if undone != data:
                path, data = (*path, number), undone
                yield path, data
        if path == start:
            return


_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


@functools.lru_cache(4096)
def _unescape(escape: bytes) -> bytes:
    """The character of an escape, in UTF-8. A URL escapes single bytes of it."""
    if escape.startswith(b"%"):
        return bytes.fromhex(escape[1:].decode())
    if escape.startswith((b"&#x", b"&#X")):
        return _character(int(escape[3:].rstrip(b";"), 16))
    if escape.startswith(b"&#"):
        return _character(int(escape[2:].rstrip(b";")))
    if escape.startswith(b"&"):
        return html.unescape(escape.decode()).encode("utf-8", "surrogatepass")
    if escape[1:2].isdigit():
        return _character(int(escape[1:], 8))
    if escape[1:2] in {b"u", b"U", b"x"}:
        high, *low = (int(unit.strip(b"{}"), 16) for unit in re.split(rb"\\[uUx]", escape)[1:])
        return _character(0x10000 + ((high & 0x3FF) << 10) + (low[0] & 0x3FF) if low else high)
    return _LETTERS.get(escape[1:], escape[1:])


def _character(number: int) -> bytes:
    return chr(min(number, sys.maxunicode)).encode("utf-8", "surrogatepass")


def _unescape_match(match: re.Match[bytes]) -> bytes:
    return _unescape(match[0])


# ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────────

Parts = Iterable[tuple[int, int, bytes | None]]
"""The kept (None) and the replaced parts of bytes, in order: beginning, end, and replacement."""


class View:
    """Bytes with a part of them replaced, which knows where each byte came from."""

    def __init__(self, source: View | None, parts: Parts, plain: bytes) -> None:
        self._source = source
        self._starts: list[int] = []
        """Where each part begins here."""
        self._parts: list[tuple[int, int, bool]] = []
        """For each part: its beginning and end in the source, and whether it was kept."""
        pieces, length = [], 0
        for start, end, replacement in parts:
            piece = plain[start:end] if replacement is None else replacement
            if piece:
                self._starts.append(length)
                self._parts.append((start, end, replacement is None))
                pieces.append(piece)
                length += len(piece)
        self.data = b"".join(pieces)

    @classmethod
    def of(cls, data: bytes) -> View:
        """The view of bytes as they are."""
        return cls(None, [(0, len(data), None)], data)

    def unescaped(self, kind: Kind) -> View:
        """The view with the escapes of a kind undone once."""
        return View(self, _unescaped_parts(self.data, kind.pattern), self.data)

    def packed(self, kept: re.Pattern[bytes], table: bytes) -> View:
        """The view with only those parts that match a pattern, and with their bytes replaced by those of a table."""
        packed = View(self, ((run.start(), run.end(), None) for run in kept.finditer(self.data)), self.data)
        packed.data = packed.data.translate(table)
        return packed

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of the first source that bytes of this view came from."""
        first, last = self._part(start), self._part(end - 1)
        begin = first[1] + (start - first[0]) if first[3] else first[1]
        finish = last[1] + (end - last[0]) if last[3] else last[2]
        return (begin, finish) if self._source is None else self._source.origin(begin, finish)

    def _part(self, at: int) -> tuple[int, int, int, bool]:
        number = bisect.bisect_right(self._starts, at) - 1
        return (self._starts[number], *self._parts[number])


def _unescaped_parts(data: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int, bytes | None]]:
    end = 0
    for match in pattern.finditer(data):
        yield end, match.start(), None
        yield match.start(), match.end(), _unescape(match[0])
        end = match.end()
    yield end, len(data), None
