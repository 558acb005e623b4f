"""Masks: replaces the values of secrets in everything that is written by `[secret NAME]`.

This module knows every value that was used in this process. It searches everything that is written (`wire`, contents, artifacts, names of
steps, logs) for these values, in the forms in which programs write them: plain, in base64 (also in the middle of a longer string, as in
`Basic dXNlcjpwYXNz`, and broken into lines), in hex, line by line where a value has several lines; and all of these with escapes in them,
of JSON, URLs, HTML and string literals, also one within another. It searches the string as it is, and then with one kind of escapes undone
after another, up to `MAX_LEVELS` deep and `MAX_VIEWS` times: each pass reads the string once, so the cost grows only with its length. A
value that was changed in another way (compressed, encrypted, cut in two) is not found; for text that comes in pieces, `Stream` puts the
pieces together.

While no value is known, `on` is False, and callers skip the search.
"""

from __future__ import annotations

import base64
import bisect
import functools
import html
import re
import shlex
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

MIN_CHARS = 8
"""Characters that a secret has at least. A shorter string is part of other words too, and masking it would damage them."""

MIN_LINE_CHARS = 16
"""Characters that a line of a longer secret has at least, to be masked by itself."""

MAX_LEVELS = 3
"""How often escapes are undone: JSON in a string in JSON in a URL has three levels."""

MAX_VIEWS = 12
"""How often one string is searched: as it is, and with escapes undone in several orders."""

RECENT = 64
"""Values of one name that are remembered when they are never forgotten explicitly: after a change of a secret, the values before may still
be in use."""

on: bool = False
"""Whether any value is known."""


class _Form(NamedTuple):
    data: bytes
    name: str


_lock = threading.Lock()
_counts: dict[tuple[str, str], int] = {}
"""How often each value of each name was learned and not forgotten, the oldest first."""
_forms: tuple[_Form, ...] = ()
"""The longest first."""
_packed: tuple[_Form, ...] = ()
"""Those of them in which line breaks and blanks mean nothing: base64 and hex."""
_wide: tuple[_Form, ...] = ()
"""All of them in UTF-16, for bytes from elsewhere."""
_names: dict[str, str] = {}


def learn(name: str, value: str, recent: int | None = None) -> None:
    """Mask this value from now on: until it is forgotten, or `recent` other values of that name came after it."""
    learn_all(name, [value], recent)


def learn_all(name: str, values: Iterable[str], recent: int | None = None) -> None:
    """Mask these values of one name from now on, as `learn` does."""
    with _lock:
        new = [_add(name, value, recent) for value in values]
        if any(new):
            _compile()


def _add(name: str, value: str, recent: int | None) -> bool:
    """Whether the value is new."""
    if len(value) < MIN_CHARS:
        raise ValueError("too short to be masked")
    count = _counts.pop((name, value), 0)
    _counts[name, value] = count + 1
    if not count:
        for old in [pair for pair in _counts if pair[0] == name][:-recent] if recent else ():
            del _counts[old]
    return not count


def forget(name: str, value: str) -> None:
    """Undo one `learn` of this value."""
    with _lock:
        if (name, value) not in _counts:
            return
        _counts[name, value] -= 1
        if _counts[name, value] < 1:
            del _counts[name, value]
            _compile()


def clear() -> None:
    """Forget all values, as between two tests."""
    with _lock:
        _counts.clear()
        _compile()


def _compile() -> None:
    global _forms, _packed, _wide, _names, on  # noqa: PLW0603 -- one for the process, replaced as a whole
    known = sorted(_counts, reverse=True)  # of two names for one value, the first in alphabetical order counts
    _forms = _longest_first({form: name for name, value in known for form in forms(value)})
    _packed = _longest_first({form: name for name, value in known for form in _encoded(_raw(value))})
    _wide = _longest_first(
        {
            form.decode("utf-8", "surrogatepass").encode(codec, "surrogatepass"): name
            for form, name in _forms
            for codec in ("utf-16-le", "utf-16-be")
        }
    )
    _names = {value: name for name, value in known}
    on = bool(_counts)


def _longest_first(names: dict[bytes, str]) -> tuple[_Form, ...]:
    return tuple(_Form(form, name) for form, name in sorted(names.items(), key=lambda item: -len(item[0])))


def marker(name: str) -> str:
    """The string that replaces the value of a secret."""
    return f"[secret {name}]"


def name_of(value: str) -> str | None:
    """The name of a secret that has exactly this value."""
    return _names.get(value)


# ── masking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def text(plain: str) -> str:
    """A string with every value masked; the same object when it has none."""
    data = _raw(plain)
    if _first(data) is None:
        return plain
    return _replaced(data, _spans(data)).decode("utf-8", "surrogatepass")


def cut(plain: str, most: int) -> str:
    """The first characters of a string, masked before it is cut: half a value would not be found."""
    return (text(plain) if on else plain)[:most]


def data(plain: bytes) -> bytes:
    """Bytes of any kind with every value masked."""
    if name_in_bytes(plain) is None:
        return plain
    wide = [span for form in _wide for span in _find(plain, form)] if b"\0" in plain else []
    return _replaced(plain, _spans(plain) + wide)


def value(plain: Any) -> Any:
    """A JSON value with every value masked: strings, keys, and numbers that are a secret."""
    if isinstance(plain, str):
        return text(plain)
    if isinstance(plain, dict):
        masked = {}
        for key, item in plain.items():
            masked[value(key)] = value(item)
        return masked
    if isinstance(plain, list | tuple):
        items = []
        for item in plain:
            items.append(value(item))
        return items
    if isinstance(plain, int | float) and (name := _names.get(str(plain))) is not None:
        return marker(name)
    return plain


def name_in(json_data: bytes) -> str | None:
    """The name of a secret whose value is in JSON that we wrote; None when there is none."""
    return _first(json_data)


def name_in_bytes(any_data: bytes) -> str | None:
    """The name of a secret whose value is in bytes of any kind; None when there is none."""
    if b"\0" in any_data:
        for form, name in _wide:
            if form in any_data:
                return name
    return _first(any_data)


class Stream:
    """Masks text that comes in pieces. It holds back an end that may be the beginning of a value, until the next piece tells: at most the
    characters of the longest value, escaped."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: str) -> str:
        """The text that may be shown after this piece: masked, and without the end that is held back."""
        data = self._held + _raw(piece)
        cut = len(data)
        spans: list[_Span] = []
        if on:
            spans = _spans(data) if _first(data) is not None else []
            cut = _possible_beginning(data)
            while crossed := [span.start for span in spans if span.start < cut < span.end]:
                cut = min(crossed)
        self._held = data[cut:]
        shown = _replaced(data[:cut], [span for span in spans if span.end <= cut])
        return shown.decode("utf-8", "surrogatepass")


# ── the search ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Span(NamedTuple):
    """A value in a string, by the bytes that it takes."""

    start: int
    end: int
    form: int
    """The length of its form."""
    name: str


Path = tuple[int, ...]
"""The kinds of escapes that were undone, one after another, by their place in `_KINDS`."""


def _first(data: bytes) -> str | None:
    """The name of a value in these bytes, under any escapes; None when there is none."""
    return next((name for _, name in _hits(data)), None)


def _hits(data: bytes) -> Iterator[tuple[Path, str]]:
    """The escapes under which there is a value, and the name of the value."""
    for path, view in _unescaped(data):
        name = next((name for form, name in _forms if form in view), None)
        if name is None and b"\n" in view:
            packed = view.translate(None, _BLANKS)
            name = next((name for form, name in _packed if form in packed), None)
        if name is not None:
            yield path, name


def _unescaped(data: bytes) -> Iterator[tuple[Path, bytes]]:
    """The bytes as they are, then with escapes undone in all orders that make a difference; the fewest first."""
    seen = {data}
    views: list[tuple[Path, bytes]] = [((), data)]
    for path, view in views:
        yield path, view
        for number, kind in enumerate(_KINDS if len(path) < MAX_LEVELS else ()):
            other = kind.undo(view)
            if other not in seen and len(views) < MAX_VIEWS:
                seen.add(other)
                views.append(((*path, number), other))


def _spans(data: bytes) -> list[_Span]:
    """All values in these bytes. Only where one is left after those without escapes, each byte is followed to its origin."""
    spans = [span for form in _forms for span in _find(data, form)]
    rest = bytearray(data)
    for span in spans:
        rest[span.start : span.end] = b"\1" * (span.end - span.start)
    for path, _ in _hits(bytes(rest)):
        for view in _views(bytes(rest), path):
            for form in _packed if view.packed else _forms:
                spans += [
                    _Span(*view.origin(found.start, found.end), found.form, found.name)
                    for found in _find(view.data, form)
                ]
    return spans


def _find(data: bytes, form: _Form) -> Iterator[_Span]:
    start = data.find(form.data)
    while start >= 0:
        yield _Span(start, start + len(form.data), len(form.data), form.name)
        start = data.find(form.data, start + 1)


def _replaced(data: bytes, spans: Iterable[_Span]) -> bytes:
    """The bytes with a marker for each value. Of values that overlap, the longest one names the whole."""
    groups: list[_Span] = []
    for span in sorted(spans):
        if groups and span.start < groups[-1].end:
            last = groups[-1]
            longest = max(last, span, key=lambda item: item.form)
            groups[-1] = _Span(last.start, max(last.end, span.end), longest.form, longest.name)
        else:
            groups.append(span)
    parts, end = [], 0
    for group in groups:
        parts += [data[end : group.start], marker(group.name).encode()]
        end = group.end
    return b"".join([*parts, data[end:]])


def _possible_beginning(data: bytes) -> int:
    """Where the end of these bytes begins that may be the beginning of a value; their length when there is none."""
    cut: int = len(data)
    seen = set[bytes]()
    views = [(0, _View(None, [(0, len(data), None)], data))]
    for level, view in views:
        half = _HALF_ESCAPE.search(view.data)
        if half is not None:  # the escapes before it are undone without it: they may be the first half of a pair
            start, end_of_half = half.span(half.lastgroup or 0)
            cut = min(cut, view.origin(start, end_of_half)[0])
            view.data = view.data[:start]
        for end, forms_of in ((view, _forms), (_pack(view), _packed)):
            if overlap := max(_overlap(end.data, form) for form, _ in forms_of):
                cut = min(cut, end.origin(len(end.data) - overlap, len(end.data))[0])
        for kind in _KINDS if level < MAX_LEVELS else ():
            other = _View(view, _unescaped_parts(view.data, kind.pattern), view.data)
            if other.data != view.data and other.data not in seen:
                seen.add(other.data)
                views.append((level + 1, other))
    run = cut - len(data[:cut].rstrip(b"\\"))
    return cut - (run if run <= MAX_BACKSLASHES else 0)  # where a run of backslashes is cut, they mean something else


MAX_BACKSLASHES = 64
"""Backslashes in a row that are held back as a whole: JSON in JSON, eight deep, has so many before a quote."""


def _overlap(data: bytes, form: bytes) -> int:
    """The length of the longest end of the bytes that is a beginning of the form, and not all of it."""
    end = data[-(len(form) - 1) :]
    start = end.find(form[:1])
    while start >= 0:
        if form.startswith(end[start:]):
            return len(end) - start
        start = end.find(form[:1], start + 1)
    return 0


# ── escapes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_BLANKS = b" \t\r\n"
"""Bytes that may stand within base64 and hex: line breaks and their indentation."""

_FREQUENT = ((b"\\\\", b"\0"), (b'\\"', b'"'), (b"\\n", b"\n"), (b"\\r", b"\r"), (b"\\t", b"\t"), (b"\\/", b"/"))
"""The escapes that stand in nearly every JSON, in the order in which they are undone. NUL stands for a backslash meanwhile."""


class _Kind(NamedTuple):
    """A kind of escapes."""

    mark: bytes
    """The byte that each of them begins with."""
    pattern: re.Pattern[bytes]

    def undo(self, data: bytes) -> bytes:
        """The bytes with these escapes undone."""
        if self.mark not in data:
            return data
        if self.mark != b"\\" or b"\0" in data:
            return self.pattern.sub(_unescape_match, data)
        for escape, character in _FREQUENT:  # takes a tenth of the time
            data = data.replace(escape, character)
        if self.mark in data:
            data = self.pattern.sub(_unescape_match, data)
        return data.replace(b"\0", b"\\")


_KINDS = (
    _Kind(
        b"\\",
        re.compile(
            rb"\\(?:u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}"
            rb"|[^0-9AC-Zac-eg-mo-qsu-z%&])"
        ),
    ),
    _Kind(b"%", re.compile(rb"%[0-9A-Fa-f]{2}")),
    _Kind(b"&", re.compile(rb"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});")),
)
"""The escapes of JSON and string literals, of URLs, and of HTML."""

_HALF_ESCAPE = re.compile(
    rb"(?:(?P<short>%[0-9A-Fa-f]?|&[#0-9A-Za-z]{0,8})"
    rb"|(?<!\\)(?:\\\\)*(?P<letter>\\(?:u[0-9A-Fa-f]{0,3}|u[dD][89abAB][0-9A-Fa-f]{2}(?:\\(?:u[0-9A-Fa-f]{0,3})?)?"
    rb"|U[0-9A-Fa-f]{0,7}|x[0-9A-Fa-f]?)?))\Z"
)
"""The beginning of an escape, at the end of a piece. A backslash begins one where an even number of them is before it."""

_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


@functools.lru_cache(4096)
def _unescape(escape: bytes) -> bytes:
    """The character of an escape, in UTF-8. A URL escapes single bytes of it."""
    if escape.startswith(b"%"):
        return bytes.fromhex(escape[1:].decode())
    if escape.startswith((b"&#x", b"&#X")):
        return _character(int(escape[3:-1], 16))
    if escape.startswith(b"&#"):
        return _character(int(escape[2:-1]))
    if escape.startswith(b"&"):
        return _raw(html.unescape(escape.decode()))
    if escape[1:2] in b"uUx":
        high, *low = (int(unit, 16) for unit in re.split(rb"\\[uUx]", escape)[1:])
        return _character(0x10000 + ((high & 0x3FF) << 10) + (low[0] & 0x3FF) if low else high)
    return _LETTERS.get(escape[1:], escape[1:])


def _character(number: int) -> bytes:
    return _raw(chr(min(number, sys.maxunicode)))


def _unescape_match(match: re.Match[bytes]) -> bytes:
    return _unescape(match[0])


class _View:
    """Bytes with a part of them replaced, which knows where each byte came from."""

    def __init__(self, source: _View | None, parts: Iterable[tuple[int, int, bytes | None]], plain: bytes) -> None:
        """`parts` are the kept (None) and the replaced parts of `plain`, in order."""
        self._source, self.packed = source, False
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

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of the first source that bytes of this view came from."""
        first, last = self._part(start), self._part(end - 1)
        begin = first[1] + (start - first[0]) if first[3] else first[1]
        finish = last[1] + (end - last[0]) if last[3] else last[2]
        return (begin, finish) if self._source is None else self._source.origin(begin, finish)

    def _part(self, at: int) -> tuple[int, int, int, bool]:
        number = bisect.bisect_right(self._starts, at) - 1
        return (self._starts[number], *self._parts[number])


def _views(data: bytes, path: Path) -> Iterator[_View]:
    """The bytes with these escapes undone; and the same without blanks."""
    view = _View(None, [(0, len(data), None)], data)
    for number in path:
        view = _View(view, _unescaped_parts(view.data, _KINDS[number].pattern), view.data)
    yield view
    yield _pack(view)


def _pack(view: _View) -> _View:
    """The view without blanks."""
    packed = _View(view, ((run.start(), run.end(), None) for run in _NOT_BLANK.finditer(view.data)), view.data)
    packed.packed = True
    return packed


_NOT_BLANK = re.compile(rb"[^ \t\r\n]+")


def _unescaped_parts(data: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int, bytes | None]]:
    end = 0
    for match in pattern.finditer(data):
        yield end, match.start(), None
        yield match.start(), match.end(), _unescape(match[0])
        end = match.end()
    yield end, len(data), None


# ── the forms of a value ─────────────────────────────────────────────────────────────────────────────────────────────


def forms(secret: str) -> set[bytes]:
    """All forms of a value that are searched for, without escapes."""
    raw = _raw(secret)
    plain = {raw, _raw(secret.strip()), raw.replace(b" ", b"+"), repr(raw)[2:-1].encode()}
    plain |= {_raw(shlex.quote(secret)[1:-1])} if "'" in secret else set()
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        plain |= {_raw(line) for line in lines if len(line) >= MIN_LINE_CHARS and not line.startswith("-----")}
    return {form for form in plain | _encoded(raw) if len(form) >= MIN_CHARS}


def _encoded(raw: bytes) -> set[bytes]:
    """The value in base64 and in hex."""
    digits = {raw.hex().encode(), raw.hex(":").encode()}
    encoded = digits | {form.upper() for form in digits} | _inside_base64(raw)
    return {form for form in encoded if len(form) >= MIN_CHARS}


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _inside_base64(raw: bytes) -> set[bytes]:
    """The parts that base64 of any string with this value contains: three, by the position of the value, without the characters at both ends
    that also depend on its neighbours."""
    parts = set()
    for before, head in ((0, 0), (1, 2), (2, 3)):
        padded = b"\0" * before + raw
        tail = (0, 3, 2)[len(padded) % 3]
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(padded)
            parts.add(whole[head : len(whole) - tail])
    return parts
