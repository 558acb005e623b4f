"""The forms of a secret that `mask.py` searches for, computed once for each value. Pure.

A *plain* form is searched for in a string as it is. A *packed* form is base64 or hex, and is searched for in the string without the bytes that
programs put between its characters (`PACKED_AWAY`) and with the characters of base64 for URLs replaced by the usual ones (`PACKED_AS`).
Escapes around a form are no forms of their own: `escapes.py` undoes them.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import re
import shlex
import urllib.parse
from typing import NamedTuple

from onward.core.escapes import HALF_ESCAPE, unescaped

MIN_CHARS = 8
"""Characters that a secret has at least. A shorter string is part of other words too, and masking it would damage them."""

MIN_LINE_CHARS = 16
"""Characters that a line of a longer secret has at least, to be masked by itself."""

PACKED_AWAY = b" \t\r\n:"
"""Bytes that may stand within base64 and hex: line breaks and their indentation, and the signs between two bytes in hex."""

PACKED_AS = bytes.maketrans(b"-_", b"+/")
"""Characters of base64 for URLs, and those that say the same in the usual base64."""

KEPT_PACKED = re.compile(rb"[^ \t\r\n:]+")

_EATEN_CHARS = 3
"""Characters at the beginning of a value that a backslash before it may take away, as a part of an escape: `\\x41` has three."""


class Forms(NamedTuple):
    """The forms of one value."""

    plain: frozenset[bytes]
    packed: frozenset[bytes]


@functools.lru_cache(1024)
def forms_of(secret: str) -> Forms:
    """All forms of a value."""
    plain = _plain(secret)
    plain |= {form for known in plain for form in _decoded(known)}
    packed = {form for escaped in _escaped(secret) for form in _packed(escaped)}
    packed |= {pack(digits) for digits in (_dashed(secret), _dashed(secret).upper())}
    return Forms(_long_enough(plain), _long_enough(packed))


def pack(data: bytes) -> bytes:
    """Bytes as packed forms are searched for in them."""
    return data.translate(PACKED_AS, PACKED_AWAY)


def to_bytes(text: str) -> bytes:
    """A string in UTF-8; also half of a surrogate pair, which is not valid there."""
    return text.encode("utf-8", "surrogatepass")


def _long_enough(forms: set[bytes]) -> frozenset[bytes]:
    return frozenset(form for form in forms if len(form) >= MIN_CHARS)


def _plain(secret: str) -> set[bytes]:
    raw = to_bytes(secret)
    plain = {raw, to_bytes(secret.strip()), raw.replace(b" ", b"+")}
    if not secret.isascii():  # each byte of its UTF-8 written as an escape of its own, which is undone as a character
        plain.add(to_bytes(raw.decode("latin-1")))
    if "'" in secret:
        plain.add(to_bytes(shlex.quote(secret)[1:-1]))
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        plain |= {to_bytes(line) for line in lines if len(line) >= MIN_LINE_CHARS and not line.startswith("-----")}
    return plain


def _decoded(form: bytes) -> set[bytes]:
    """A value that looks as if it had escapes is damaged where the escapes around it are undone. So its undone form is searched for too,
    and the part of it that its neighbours cannot damage."""
    *_, (path, undone) = unescaped(form)
    if not path:
        return set()
    whole = _longest_valid(undone)
    return {whole, HALF_ESCAPE.sub(b"", _longest_valid(whole[_EATEN_CHARS:]))}


def _longest_valid(data: bytes) -> bytes:
    """The longest part that is UTF-8: a mask must not begin within a character."""
    return max(data.decode("utf-8", "replace").split("\ufffd"), key=len).encode()


def _escaped(secret: str) -> set[bytes]:
    """The value with the escapes that programs put into it before they encode it."""
    quoted = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    quoted |= {text.replace("/", "\\/") for text in quoted}
    texts = {secret, secret.strip(), *quoted, json.dumps(json.dumps(secret)[1:-1])[1:-1], html.escape(secret)}
    raw = to_bytes(secret)
    urls = {urllib.parse.quote(raw, ""), urllib.parse.quote(raw), urllib.parse.quote_plus(raw)}
    return {to_bytes(text) for text in texts | urls}


def _packed(raw: bytes) -> set[bytes]:
    """The bytes in base64 and in hex, as they are searched for."""
    digits = raw.hex().encode()
    return {digits, digits.upper()} | _inside_base64(raw)


def _dashed(secret: str) -> bytes:
    return to_bytes(secret).hex("-").encode()


def _inside_base64(raw: bytes) -> set[bytes]:
    """The parts that base64 of any string with these bytes contains: three, by the position of the bytes, without the characters at both
    ends that also depend on their neighbours."""
    parts = set()
    for before, head in ((0, 0), (1, 2), (2, 3)):
        whole = base64.b64encode(b"\0" * before + raw)
        tail = (0, 3, 2)[(before + len(raw)) % 3]
        parts.add(whole[head : len(whole) - tail])
    return parts
