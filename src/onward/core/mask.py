"""Masks: replaces the values of secrets in everything that is written by `[secret NAME]`.

This module knows every value that was used in this process. It searches everything that is written (`wire`, contents, artifacts, names of
steps, logs) for these values, in the forms in which programs write them (`secret_forms.py`), as they are and with the escapes around them
undone (`escapes.py`). A value that was changed in another way (compressed, encrypted, cut in two) is not found; for text that comes in
pieces, `Stream` puts the pieces together.

Most strings have no value in them, so a cheap question comes first (`_Search.likely`): it compares groups of eight bytes of a string with
the groups of all forms. It costs the same for one secret and for a thousand. Only forms that share a group with the string are searched for.

While no value is known, `on` is False, and callers skip the search.
"""

from __future__ import annotations

import bisect
import functools
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from onward.core.escapes import HALF_ESCAPE, KINDS, MAX_BACKSLASHES, MAX_ROUNDS, Path, View, unescaped
from onward.core.secret_forms import KEPT_PACKED, PACKED_AS, forms_of, pack, to_bytes
from onward.core.secret_forms import MIN_CHARS as MIN_CHARS

RECENT = 64
"""Values of one name that are remembered when they are never forgotten explicitly: after a change of a secret, the values before may still
be in use."""

on: bool = False
"""Whether any value is known."""


class _Form(NamedTuple):
    data: bytes
    name: str
    packed: bool = False
    """Whether it is searched for in packed bytes."""


class _Search:
    """The forms of all known values, prepared for the search. A part that is not always used is prepared when it is."""

    def __init__(self, known: Sequence[tuple[str, str]] = ()) -> None:
        """`known` are names and values; of two names for one value, the last one counts."""
        self._known = known
        self.names = {secret: name for name, secret in known}
        parts = [_filtered(secret) for secret in self.names]
        self.short = frozenset[bytes]().union(*(part.short for part in parts))
        """Forms that have less than `MIN_GROUPED_BYTES` when they are packed, in their packed bytes: each is searched for by itself."""
        shortest = min((part.shortest for part in parts), default=MIN_GROUPED_BYTES)
        self.stride = min((shortest - GROUP_BYTES + 1) // GROUP_BYTES, MAX_STRIDE)
        self.groups = frozenset[int]().union(*(part.groups[self.stride] for part in parts))
        """Groups of eight bytes of all other forms: packed bytes with a form in them have one of its groups at a multiple of `stride`
        groups."""

    def likely(self, packed: bytes) -> set[_Form]:
        """The forms that packed bytes may have in them: all that they have, and some more."""
        likely = {form for data in self.short if data in packed for form in self._by_short[data]}
        whole = len(packed) // GROUP_BYTES * GROUP_BYTES
        if whole:
            groups = memoryview(packed)[:whole].cast("Q")[:: self.stride]
            if not self.groups.isdisjoint(groups):
                likely.update(form for group in self.groups.intersection(groups) for form in self._by_group[group])
        return likely

    @functools.cached_property
    def forms(self) -> list[_Form]:
        """All forms, each once."""
        names: dict[tuple[bytes, bool], str] = {}
        for name, secret in self._known:
            plain, packed = forms_of(secret)
            names |= dict.fromkeys([(form, False) for form in plain] + [(form, True) for form in packed], name)
        return [_Form(data, name, packed) for (data, packed), name in names.items()]

    @functools.cached_property
    def _by_short(self) -> dict[bytes, list[_Form]]:
        result: dict[bytes, list[_Form]] = {}
        for form in self.forms:
            result.setdefault(pack(form.data), []).append(form)
        return result

    @functools.cached_property
    def _by_group(self) -> dict[int, list[_Form]]:
        result: dict[int, list[_Form]] = {}
        for form in self.forms:
            data = pack(form.data)
            for group in _groups(data, self.stride) if len(data) >= MIN_GROUPED_BYTES else ():
                result.setdefault(group, []).append(form)
        return result

    @functools.cached_property
    def plain(self) -> _Beginnings:
        """The beginnings of the plain forms."""
        return _Beginnings(form.data for form in self.forms if not form.packed)

    @functools.cached_property
    def packed(self) -> _Beginnings:
        """The beginnings of the packed forms."""
        return _Beginnings(form.data for form in self.forms if form.packed)

    @functools.cached_property
    def wide(self) -> tuple[_Form, ...]:
        """All forms in UTF-16, for bytes from elsewhere."""
        return tuple(_Form(wide, form.name) for form in self.forms for wide in _in_utf_16(form.data))

    @functools.cached_property
    def ascii(self) -> bool:
        """Whether all forms are ASCII."""
        return all(form.data.isascii() for form in self.forms)


class _Beginnings:
    """The beginnings of forms."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        self._forms = sorted(forms)
        self._longest = max(map(len, self._forms), default=0)

    def overlap(self, data: bytes) -> int:
        """The length of the longest end of the bytes that is a beginning of a form, and not all of it."""
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            end = data[start:]
            at = bisect.bisect_right(self._forms, end)  # behind the form that is all of it
            if at < len(self._forms) and self._forms[at].startswith(end):
                return len(end)
        return 0


GROUP_BYTES: Final = 8
MIN_GROUPED_BYTES: Final = 2 * GROUP_BYTES - 1
"""Bytes of a form that has a whole group in it, wherever it begins."""
MAX_STRIDE: Final = 2
"""Groups of which one is compared, at most: a form has to be so much longer."""


class _Filtered(NamedTuple):
    """The forms of one value, packed, for the first question to a string."""

    short: frozenset[bytes]
    shortest: int
    """The bytes of the shortest form that is not in `short`."""
    groups: dict[int, frozenset[int]]
    """The groups of the others, by stride."""


@functools.lru_cache(4096)
def _filtered(secret: str) -> _Filtered:
    plain, packed = forms_of(secret)
    forms = {*packed, *map(pack, plain)}
    long = [form for form in forms if len(form) >= MIN_GROUPED_BYTES]
    shortest = min(map(len, long), default=sys.maxsize)
    groups = {
        stride: frozenset(group for form in long for group in _groups(form, stride))
        for stride in range(1, MAX_STRIDE + 1)
        if shortest >= (stride + 1) * GROUP_BYTES - 1
    }
    return _Filtered(frozenset(forms.difference(long)), shortest, groups)


_lock = threading.Lock()
_counts: dict[tuple[str, str], int] = {}
"""How often each value of each name was learned and not forgotten, the oldest first."""
_search: _Search


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
    global _search, on  # noqa: PLW0603 -- one for the process, replaced as a whole
    _search = _Search(sorted(_counts, reverse=True))  # the first name in alphabetical order counts
    on = bool(_counts)


def _in_utf_16(form: bytes) -> Iterator[bytes]:
    text = form.decode("utf-8", "surrogatepass")
    for variant in {text, text.replace("+", "-").replace("/", "_")}:
        for codec in ("utf-16-le", "utf-16-be"):
            yield variant.encode(codec, "surrogatepass")


def _groups(form: bytes, stride: int) -> Iterator[int]:
    """The groups in the middle of a form, of which one is at a multiple of `stride` groups wherever the form begins. (Values of one
    service begin alike.)"""
    starts = stride * GROUP_BYTES
    first = (len(form) - GROUP_BYTES + 1 - starts) // 2
    for start in range(first, first + starts):
        yield int.from_bytes(form[start : start + GROUP_BYTES], sys.byteorder)


def marker(name: str) -> str:
    """The string that replaces the value of a secret."""
    return f"[secret {name}]"


def name_of(value: str) -> str | None:
    """The name of a secret that has exactly this value."""
    return _search.names.get(value)


# ── masking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def text(plain: str) -> str:
    """A string with every value masked; the same object when it has none."""
    data = to_bytes(plain)
    if _first(data) is None:
        return plain
    return _replaced(data, _spans(data)).decode("utf-8", "surrogatepass")


def cut(plain: str, most: int) -> str:
    """The first characters of a string, masked before it is cut: half a value would not be found."""
    return (text(plain) if on else plain)[:most]


def data(plain: bytes) -> bytes:
    """Bytes of any kind with every value masked."""
    wide = [span for form in _wide_forms(plain) for span in _find(plain, form)]
    spans = _spans(plain) + wide
    return _replaced(plain, spans) if spans else plain


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
    if isinstance(plain, int | float) and (name := _search.names.get(str(plain))) is not None:
        return marker(name)
    return plain


def name_in(json_data: bytes) -> str | None:
    """The name of a secret whose value is in JSON that we wrote; None when there is none."""
    return _first(json_data)


def name_in_bytes(any_data: bytes) -> str | None:
    """The name of a secret whose value is in bytes of any kind; None when there is none."""
    wide = _wide_forms(any_data)
    return wide[0].name if wide else _first(any_data)


class Stream:
    """Masks text that comes in pieces. It holds back an end that may be the beginning of a value, until the next piece tells: at most the
    characters of the longest value, escaped."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: str) -> str:
        """The text that may be shown after this piece: masked, and without the end that is held back."""
        data = self._held + to_bytes(piece)
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


def _first(data: bytes) -> str | None:
    """The name of a value in these bytes, under any escapes; None when there is none."""
    hit = next(_hits(data), None)
    return None if hit is None else max(hit.forms, key=lambda form: (len(form.data), form.data)).name


def _wide_forms(data: bytes) -> list[_Form]:
    """The forms in UTF-16 that these bytes have. Without its zero bytes a form is ASCII in most cases, and then a quick search comes first."""
    search = _search
    if b"\0" not in data or (search.ascii and not search.likely(pack(data.translate(None, b"\0")))):
        return []
    return [form for form in search.wide if form.data in data]


class _Hit(NamedTuple):
    """The forms that a string has under some escapes."""

    path: Path
    forms: list[_Form]


def _hits(data: bytes) -> Iterator[_Hit]:
    """The escapes under which there is a value."""
    search = _search
    for path, view in unescaped(data):
        packed = pack(view)
        forms = [form for form in search.likely(packed) if form.data in (packed if form.packed else view)]
        if forms:
            yield _Hit(path, forms)


def _spans(data: bytes) -> list[_Span]:
    """All values in these bytes. Only where one is left after those without escapes, each byte is followed to its origin."""
    spans: list[_Span] = []
    for hit in _hits(data):
        if not hit.path:
            spans = [span for form in hit.forms if not form.packed for span in _find(data, form)]
        break
    rest = bytearray(data)
    for span in spans:
        rest[span.start : span.end] = b"\1" * (span.end - span.start)
    view, undone = View.of(bytes(rest)), 0
    for hit in _hits(bytes(rest)):
        for number in hit.path[undone:]:
            view = view.unescaped(KINDS[number])
        undone, packed = len(hit.path), _packed_view(view)
        for form in hit.forms:
            searched = packed if form.packed else view
            spans += [
                found._replace(start=start, end=end)
                for found in _find(searched.data, form)
                for start, end in [searched.origin(found.start, found.end)]
            ]
    return spans


def _packed_view(view: View) -> View:
    return view.packed(KEPT_PACKED, PACKED_AS)


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
    search, cut = _search, len(data)
    view = View.of(data)
    cut = min(cut, _held_in(view, search))
    for _ in range(MAX_ROUNDS):
        changed = False
        for kind in KINDS:
            if kind.mark in view.data:
                other = view.unescaped(kind)
                if other.data != view.data:
                    view, changed = other, True
                    cut = min(cut, _held_in(view, search))
        if not changed:
            break
    run = cut - len(data[:cut].rstrip(b"\\"))
    return cut - (run if run <= MAX_BACKSLASHES else 0)  # where a run of backslashes is cut, they mean something else


def _held_in(view: View, search: _Search) -> int:
    """Where the part of a view that is held back begins in its source; all of its length when there is none. Takes half an escape off the
    end of the view: the escapes before it are undone without it, since they may be the first half of a pair."""
    cut = sys.maxsize
    half = HALF_ESCAPE.search(view.data)
    if half is not None:
        start, end = half.span(half.lastgroup or 0)
        cut = view.origin(start, end)[0]
        view.data = view.data[:start]
    if overlap := search.plain.overlap(view.data):
        cut = min(cut, view.origin(len(view.data) - overlap, len(view.data))[0])
    if overlap := search.packed.overlap(pack(view.data)):
        packed = _packed_view(view)
        cut = min(cut, packed.origin(len(packed.data) - overlap, len(packed.data))[0])
    return cut


_search = _Search()
