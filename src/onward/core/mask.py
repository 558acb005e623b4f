"""Masks: what stands where the value of a secret would have been written, `[secret NAME]`.

Every value that was handed out in this process is known here. Whatever is written (`wire`, contents, artifacts, names of steps,
logs) is looked through for it: as it is, and as programs tend to write it: escaped for JSON, for a URL, for HTML, for a shell, in
base64 (also in the middle of a longer text, as in `Basic dXNlcjpwYXNz`), in hex, and line by line where it has several lines.
A value that was changed in another way (compressed, encrypted, cut in two) is not found.

While nothing is known, `on` is False, and that is all that anybody asks.
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

SHORTEST = 8
"""Characters that a secret has at least. What is shorter is part of other words too, and masking it would spoil them."""

LINE = 16
"""Characters that a line of a longer secret has at least, to be masked by itself."""

RECENT = 64
"""Values of one name that are remembered where nobody says when they are over: those from before a change may still be on
their way."""

on = False
"""Whether there is anything to mask."""


class _Form(NamedTuple):
    text: str
    json: bytes
    """As it stands in JSON of ours."""
    name: str


_lock = threading.Lock()
_counts: dict[tuple[str, str], int] = {}
"""How often each value of each name was learned and not forgotten, the oldest first."""
_forms: tuple[_Form, ...] = ()
_wide: tuple[tuple[bytes, bytes], ...] = ()
"""For bytes that are no text of ours: also as UTF-16."""
_names: dict[str, str] = {}


def learn(name: str, value: str, recent: int | None = None) -> None:
    """From now on this is written as `[secret NAME]`: until it is forgotten, or so many others of that name came after it."""
    if len(value) < SHORTEST:
        raise ValueError("too short to be masked")
    with _lock:
        there = _counts.pop((name, value), 0)
        _counts[name, value] = there + 1
        if not there:
            for old in [pair for pair in _counts if pair[0] == name][:-recent] if recent else ():
                del _counts[old]
            _compile()


def forget(name: str, value: str) -> None:
    """It is not used any more, by whoever learned it."""
    with _lock:
        if (name, value) not in _counts:
            return
        _counts[name, value] -= 1
        if _counts[name, value] < 1:
            del _counts[name, value]
            _compile()


def clear() -> None:
    """Forget everything, as between two tests."""
    with _lock:
        _counts.clear()
        _compile()


def _compile() -> None:
    global _forms, _wide, _names, on  # noqa: PLW0603 -- one for the process, replaced as a whole
    known = sorted(_counts, reverse=True)  # of two names for one value the first by name, whichever came first
    found = {form: name for name, value in known for form in forms(value)}
    ordered = sorted(found.items(), key=lambda one: -len(one[0]))
    _forms = tuple(_Form(form, _escaped(form).encode("utf-8", "replace"), name) for form, name in ordered)
    shapes = {form.encode(codec, "replace"): name for form, name in ordered for codec in _CODECS}
    _wide = tuple((form, marker(name).encode()) for form, name in sorted(shapes.items(), key=lambda one: -len(one[0])))
    _names = {value: name for name, value in known}
    on = bool(_counts)


_CODECS = ("utf-8", "utf-16-le", "utf-16-be")


def marker(name: str) -> str:
    """What stands in its place."""
    return f"[secret {name}]"


def name_of(value: str) -> str | None:
    """The name of a secret that has exactly this value."""
    return _names.get(value)


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def text(said: str) -> str:
    """A text with every value masked."""
    for form, _, name in _forms:
        if form in said:
            said = said.replace(form, marker(name))
    return said


def data(said: bytes) -> bytes:
    """The same for bytes of any kind."""
    for form, mark in _wide:
        if form in said:
            said = said.replace(form, mark)
    return said


def value(said: Any) -> Any:
    """The same for a JSON value: texts, keys, and numbers that are a secret."""
    if isinstance(said, str):
        return text(said)
    if isinstance(said, dict):
        told = {}
        for key, item in said.items():
            told[value(key)] = value(item)
        return told
    if isinstance(said, list | tuple):
        items = []
        for item in said:
            items.append(value(item))
        return items
    if isinstance(said, int | float) and (name := _names.get(str(said))) is not None:
        return marker(name)
    return said


def name_in(said: bytes) -> str | None:
    """The name of a secret whose value is in JSON that we wrote, None when there is none."""
    for _, form, name in _forms:
        if form in said:
            return name
    return None


def name_in_bytes(said: bytes) -> str | None:
    """The same for bytes of any kind."""
    for form, mark in _wide:
        if form in said:
            return mark[len(b"[secret ") : -1].decode()
    return None


# ── how programs write a value ───────────────────────────────────────────────────────────────────────────────────────


def forms(secret: str) -> set[str]:
    """All that is looked for."""
    raw = secret.encode("utf-8", "surrogatepass")
    found = {secret, secret.strip(), html.escape(secret), html.escape(secret, quote=False), repr(secret)[1:-1]}
    found |= {shlex.quote(secret)[1:-1]} if "'" in secret else set()
    for quote in (urllib.parse.quote, urllib.parse.quote_plus):
        for safe in ("", "/", "!~*'()"):  # the last as JavaScript has it
            quoted = quote(raw, safe=safe)
            found |= {quoted, _lower_percent(quoted)}
    found |= {raw.hex(), raw.hex().upper(), *_inside_base64(raw)}
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        found |= {line for line in lines if len(line) >= LINE and not line.startswith("-----")}
    once = {escape for form in found for escape in (_escaped(form), json.dumps(form)[1:-1])}
    twice = {_escaped(form) for form in once}  # JSON in a text in JSON
    return {form for form in found | once | twice if len(form) >= SHORTEST}


def _escaped(form: str) -> str:
    return json.dumps(form, ensure_ascii=False)[1:-1]


def _lower_percent(quoted: str) -> str:
    return "".join(part if n % 2 == 0 else part.lower() for n, part in enumerate(_percents(quoted)))


def _percents(quoted: str) -> Iterator[str]:
    """Plain text and %XX by turns."""
    plain, *rest = quoted.split("%")
    yield plain
    for part in rest:
        yield f"%{part[:2]}"
        yield part[2:]


def _inside_base64(raw: bytes) -> set[str]:
    """What base64 of any text that contains it contains: three ways, by where it begins, without the characters at both ends
    that also depend on its neighbours."""
    found = set()
    for before, head in ((0, 0), (1, 2), (2, 3)):
        padded = b"\0" * before + raw
        tail = (0, 3, 2)[len(padded) % 3]
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(padded).decode()
            found.add(whole[head : len(whole) - tail])
    return found
