"""Masks: replaces the values of secrets in everything that is written by `[secret NAME]`.

This module knows every value that was used in this process. It searches everything that is written (`wire`, contents, artifacts, names of
steps, logs) for these values, in the forms in which programs write them: plain, escaped for JSON, a URL, HTML or a shell, in base64 (also
in the middle of a longer string, as in `Basic dXNlcjpwYXNz`), in hex, and line by line where a value has several lines. A value that was
changed in another way (compressed, encrypted, cut in two) is not found.

While no value is known, `on` is False, and callers skip the search.
"""

from __future__ import annotations

import base64
import html
import json
import shlex
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

MIN_CHARS = 8
"""Characters that a secret has at least. A shorter string is part of other words too, and masking it would damage them."""

MIN_LINE_CHARS = 16
"""Characters that a line of a longer secret has at least, to be masked by itself."""

RECENT = 64
"""Values of one name that are remembered when they are never forgotten explicitly: after a change of a secret, the values before may still
be in use."""

on: bool = False
"""Whether any value is known."""


class _Form(NamedTuple):
    text: str
    json: bytes
    """In JSON that we write."""
    name: str


_lock = threading.Lock()
_counts: dict[tuple[str, str], int] = {}
"""How often each value of each name was learned and not forgotten, the oldest first."""
_forms: tuple[_Form, ...] = ()
_wide: tuple[tuple[bytes, bytes], ...] = ()
"""For bytes from elsewhere: also in UTF-16."""
_names: dict[str, str] = {}


def learn(name: str, value: str, recent: int | None = None) -> None:
    """Mask this value from now on: until it is forgotten, or `recent` other values of that name came after it."""
    if len(value) < MIN_CHARS:
        raise ValueError("too short to be masked")
    with _lock:
        count = _counts.pop((name, value), 0)
        _counts[name, value] = count + 1
        if not count:
            for old in [pair for pair in _counts if pair[0] == name][:-recent] if recent else ():
                del _counts[old]
            _compile()


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
    global _forms, _wide, _names, on  # noqa: PLW0603 -- one for the process, replaced as a whole
    known = sorted(_counts, reverse=True)  # of two names for one value, the first in alphabetical order counts
    names = {form: name for name, value in known for form in forms(value)}
    ordered = sorted(names.items(), key=lambda item: -len(item[0]))
    _forms = tuple(_Form(form, _escape(form).encode("utf-8", "replace"), name) for form, name in ordered)
    encoded = {form.encode(codec, "replace"): name for form, name in ordered for codec in _CODECS}
    _wide = tuple(
        (form, marker(name).encode()) for form, name in sorted(encoded.items(), key=lambda item: -len(item[0]))
    )
    _names = {value: name for name, value in known}
    on = bool(_counts)


_CODECS = ("utf-8", "utf-16-le", "utf-16-be")


def marker(name: str) -> str:
    """The string that replaces the value of a secret."""
    return f"[secret {name}]"


def name_of(value: str) -> str | None:
    """The name of a secret that has exactly this value."""
    return _names.get(value)


# ── masking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def text(plain: str) -> str:
    """A string with every value masked."""
    for form, _, name in _forms:
        if form in plain:
            plain = plain.replace(form, marker(name))
    return plain


def data(plain: bytes) -> bytes:
    """Bytes of any kind with every value masked."""
    for form, mark in _wide:
        if form in plain:
            plain = plain.replace(form, mark)
    return plain


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
    for _, form, name in _forms:
        if form in json_data:
            return name
    return None


def name_in_bytes(any_data: bytes) -> str | None:
    """The name of a secret whose value is in bytes of any kind; None when there is none."""
    for form, mark in _wide:
        if form in any_data:
            return mark[len(b"[secret ") : -1].decode()
    return None


# ── the forms of a value ─────────────────────────────────────────────────────────────────────────────────────────────


def forms(secret: str) -> set[str]:
    """All forms of a value that are searched for."""
    raw = secret.encode("utf-8", "surrogatepass")
    plain = {secret, secret.strip(), html.escape(secret), html.escape(secret, quote=False), repr(secret)[1:-1]}
    plain |= {shlex.quote(secret)[1:-1]} if "'" in secret else set()
    for quote in (urllib.parse.quote, urllib.parse.quote_plus):
        for safe in ("", "/", "!~*'()"):  # the last as JavaScript has it
            quoted = quote(raw, safe=safe)
            plain |= {quoted, _lower_percent(quoted)}
    plain |= {raw.hex(), raw.hex().upper(), *_inside_base64(raw)}
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        plain |= {line for line in lines if len(line) >= MIN_LINE_CHARS and not line.startswith("-----")}
    once = {escape for form in plain for escape in (_escape(form), json.dumps(form)[1:-1])}
    twice = {_escape(form) for form in once}  # JSON in a string in JSON
    return {form for form in plain | once | twice if len(form) >= MIN_CHARS}


def _escape(form: str) -> str:
    return json.dumps(form, ensure_ascii=False)[1:-1]


def _lower_percent(quoted: str) -> str:
    return "".join(part if n % 2 == 0 else part.lower() for n, part in enumerate(_percents(quoted)))


def _percents(quoted: str) -> Iterator[str]:
    """Plain strings and %XX by turns."""
    plain, *rest = quoted.split("%")
    yield plain
    for part in rest:
        yield f"%{part[:2]}"
        yield part[2:]


def _inside_base64(raw: bytes) -> set[str]:
    """The parts that base64 of any string with this value contains: three, by the position of the value, without the characters at both ends
    that also depend on its neighbours."""
    parts = set()
    for before, head in ((0, 0), (1, 2), (2, 3)):
        padded = b"\0" * before + raw
        tail = (0, 3, 2)[len(padded) % 3]
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(padded).decode()
            parts.add(whole[head : len(whole) - tail])
    return parts
