"""Values as bytes: strict JSON, and nothing that could run code when it is read.

A payload in the store is UTF-8 JSON. JSON never begins with a control character, so a first byte below 0x20 is free to
name another codec (compressed, encrypted) without a word on every plain payload. Pydantic models, dataclasses and a few
plain types become JSON at this edge; NaN, bytes, sets and broken text are refused with a sentence, never changed silently.
What is known as the value of a secret is masked here, whatever it is in (`mask`), and a SecretStr becomes the secret's name.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import itertools
import json
import pathlib
import re
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from onward.core import mask
from onward.errors import InvalidInput

LIMIT = 16 * 1024 * 1024
"""The largest payload, in bytes. What is larger belongs in a file or an object store, with its address here."""

_parse = json.JSONDecoder().raw_decode
_COMMON: dict[bytes, Callable[[], Any]] = {b"null": lambda: None, b"{}": dict}
FLAT = 8
DEPTH = 500
"""How deep lists and objects may lie in each other. Python's reader gives up at the depth of its stack, so what one process
could write on an empty stack another could not read on a full one."""

PARTS = 200_000
"""Values in one message from outside: small ones cost a process thirty times the bytes that it took to send them, and it does nothing
else while it reads them."""

_SCALARS = {type(None), bool, int, str}
_TEXTUAL = (uuid.UUID, pathlib.PurePath, decimal.Decimal)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A text in JSON. One that never ends is taken up to the end of the data, so that no byte is looked at twice."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NO_MARKS = bytes(set(range(256)) - set(b"[]{},"))
_STEP = [1 if sign in b"[{" else -1 for sign in range(256)]


def _edge(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        told = value.model_dump(mode="json")
        return _with_secrets(told, value.model_dump()) if _bears_secrets(value.__class__) else told
    if hasattr(value, "get_secret_value"):
        return _named_secret(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, _TEXTUAL):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _named_secret(value: Any) -> dict[str, str]:
    """A `Secret`, or a SecretStr that holds one, by its name."""
    name = getattr(value, "name", None) or mask.name_of(str(value.get_secret_value()))
    if name is None:
        raise TypeError(
            f"a {type(value).__name__} is never written, unless it is a secret that has a name: app.secret(NAME)"
        )
    return {"$secret": name}


@functools.lru_cache(maxsize=2048)
def _bears_secrets(kind: type) -> bool:
    return "Secret" in repr(getattr(kind, "__pydantic_core_schema__", ""))


def _with_secrets(told: Any, value: Any) -> Any:
    """What pydantic made of a model, with the secrets in it, of which it makes nothing but stars."""
    if hasattr(value, "get_secret_value"):
        return value
    if isinstance(told, dict) and isinstance(value, dict) and len(told) == len(value):
        pairs = zip(told.items(), value.values(), strict=True)
        return {key: _with_secrets(item, other) for (key, item), other in pairs}
    if isinstance(told, list) and isinstance(value, list | tuple) and len(told) == len(value):
        return [_with_secrets(*pair) for pair in zip(told, value, strict=True)]
    return told


_Encoder = Callable[[Any, int], Iterable[str]]


def _encoder(*, sort_keys: bool) -> _Encoder:
    """Strict and compact. `JSONEncoder.encode` builds its C helper anew at each call, which takes longer than the encoding of
    a small value; here it is built once, where there is one."""
    plain = json.JSONEncoder(
        allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_edge, sort_keys=sort_keys
    )
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: plain.iterencode(value)
    return make(None, _edge, json.encoder.encode_basestring, None, ":", ",", sort_keys, False, False)  # type: ignore[no-any-return]


_encode = _encoder(sort_keys=False)
_canonical = _encoder(sort_keys=True)


def _bytes(value: Any, encoder: _Encoder, what: str, most: int = LIMIT) -> bytes:
    try:
        data = "".join(encoder(value, 0)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{what} cannot be kept as JSON ({error}); return plain values, a dataclass or a pydantic model"
        ) from None
    if len(data) > DEPTH:
        _check(data, what, most)
    if mask.on and mask.name_in(data) is not None:
        return "".join(encoder(mask.value(decode(data)), 0)).encode()
    return data


def secret_in(value: Any) -> str | None:
    """The name of a secret whose value stands in clear in a value that is JSON."""
    return mask.name_in("".join(_encode(value, 0)).encode()) if mask.on else None


def too_deep(data: bytes) -> bool:
    """Whether JSON is nested deeper than may be."""
    return data.count(b"[") + data.count(b"{") > DEPTH and _depth(_STRING.sub(b"", data)) > DEPTH


def oversized(data: bytes, opened: int | None = None) -> str | None:
    """Why bytes from outside are not read as JSON: nested too deep, or too many values, or more than so many lists and objects. It takes
    a time that is linear in the bytes, whatever they are, and other threads have their turns meanwhile, which a reader of JSON would
    not let them have."""
    most = PARTS if opened is None else opened
    if (begun := data.count(b"[") + data.count(b"{")) + data.count(b",") <= min(DEPTH, most):
        return None
    marks, at = bytearray(), 0
    for number, text in enumerate(_STRING.finditer(data)):
        marks += data[at : text.start()].translate(None, _NO_MARKS)
        at = text.end()
        if len(marks) > 3 * PARTS or number > 2 * PARTS:  # a value has three marks at most, and two texts with its name
            break
    else:
        marks += data[at:].translate(None, _NO_MARKS)
        begun = marks.count(b"[") + marks.count(b"{")
        if marks.count(b",") <= PARTS and begun <= most:
            return f"it is nested more than {DEPTH} levels deep" if _depth(marks) > DEPTH else None
    return f"it has more than {min(most, PARTS) if begun > most else PARTS:,} values; leave what is large elsewhere and send its address"


def _check(data: bytes, what: str, most: int) -> None:
    if too_deep(data):
        raise InvalidInput(f"{what} is nested more than {DEPTH} levels deep; make it flatter")
    if len(data) > most:
        raise InvalidInput(
            f"{what} has {len(data):,} bytes, more than the {most:,} a record may hold; store it elsewhere and keep its address"
        )


def _depth(outside: bytes | bytearray) -> int:
    """How deep JSON is nested, by what of it is outside of texts."""
    signs = outside.translate(None, _NO_BRACKETS)
    return max(itertools.accumulate(map(_STEP.__getitem__, signs)), default=0)


def encode(value: Any, what: str = "the value", *, most: int = LIMIT) -> bytes:
    """JSON bytes of a value; `what` names it in the error."""
    if value is None:
        return b"null"
    return _bytes(value, _encode, what, most)


def decode(data: bytes) -> Any:
    """The value of a payload."""
    if data in _COMMON:
        return _COMMON[data]()
    if data[:1] < b" ":
        raise InvalidInput(
            f"a payload has the codec {data[:1]!r}, which this version of Onward does not know; upgrade it"
        )
    try:
        return _parse(data.decode())[0]  # what we wrote has no blanks around it, and a full decode would look for them
    except ValueError:
        raise InvalidInput(f"a payload is not JSON: {data[:40]!r}") from None


def same_as_recorded(value: Any, data: bytes) -> Any:
    """The value as it will come back from the journal, so that the first run sees what a replay sees (lists for tuples …)."""
    if mask.on:
        return decode(data)
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is dict and len(value) <= FLAT:
        for key, item in value.items():
            if type(key) is not str or type(item) not in _SCALARS:
                break
        else:
            return value.copy()  # flat, as most are: nothing in it changes on the way
    return decode(data)


def fingerprint(value: Any, what: str = "the value") -> str:
    """A short stable hash of a value: equal for equal JSON, whatever the order of keys."""
    return hashlib.blake2b(_bytes(value, _canonical, what), digest_size=12).hexdigest()


def content_id(data: bytes) -> str:
    """The name of contents: equal for equal bytes, and it says nothing else."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def error_value(error: BaseException) -> dict[str, Any]:
    """What is kept of an exception: its kind and a text that is safe to store, whatever its `__str__` does."""
    try:
        message = str(error)
    except BaseException:
        message = "(its message could not be read)"
    if mask.on:  # before it is cut: half a secret would not be found
        message = mask.text(message)
    message = message.encode("utf-8", "backslashreplace").decode()
    return {"type": type(error).__name__, "message": message[:10_000]}
