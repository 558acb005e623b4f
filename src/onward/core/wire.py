"""Encodes values as strict JSON. Reading it never runs code.

A payload in the store is UTF-8 JSON. JSON never begins with a control character, so a first byte below 0x20 can name another codec
(compressed, encrypted), and plain payloads need no prefix. Pydantic models, dataclasses and a few plain types become JSON here; NaN, bytes,
sets and broken strings are refused with an error, never changed silently. Values of secrets are masked in all of it (`mask`), and a
SecretStr becomes the name of its secret.
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
from typing import Any, NoReturn

from onward.core import mask, sealed
from onward.errors import InvalidInput

LIMIT = 16 * 1024 * 1024
"""The largest payload, in bytes. Larger values belong into an artifact, a file or an object store, with their address here."""

_parse = json.JSONDecoder().raw_decode
_COMMON: dict[bytes, Callable[[], Any]] = {b"null": lambda: None, b"{}": dict}
MAX_FLAT_ITEMS = 8
"""Items of an object that is copied instead of decoded."""
MAX_DEPTH = 500
"""Levels of nested lists and objects. Python's parser fails at the depth of its stack: without a limit, one process could write a value on
an empty stack that another cannot read on a full one."""

MAX_VALUES = 200_000
"""Values in one message from outside. Small values take thirty times their size in memory, and the process does nothing else while it
parses them."""

_SCALARS = {type(None), bool, int, str}
_TEXTUAL = (uuid.UUID, pathlib.PurePath, decimal.Decimal)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string in JSON. A string without an end matches up to the end of the data, so that no byte is read twice."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NO_MARKS = bytes(set(range(256)) - set(b"[]{},"))
_STEP = [1 if sign in b"[{" else -1 for sign in range(256)]


def _to_json(value: Any) -> Any:
    """The JSON value of an object that is none."""
    if hasattr(value, "model_dump"):
        document = value.model_dump(mode="json")
        return _with_secrets(document, value.model_dump()) if _has_secrets(value.__class__) else document
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
    """The reference to a `Secret`, or to a SecretStr that has the value of one."""
    name = getattr(value, "name", None) or mask.name_of(str(value.get_secret_value()))
    if name is None:
        raise TypeError(
            f"a {type(value).__name__} is never written, unless it is a secret that has a name: app.secret(NAME)"
        )
    return {"$secret": name}


@functools.lru_cache(maxsize=2048)
def _has_secrets(kind: type) -> bool:
    return "Secret" in repr(getattr(kind, "__pydantic_core_schema__", ""))


def _with_secrets(document: Any, value: Any) -> Any:
    """The JSON that pydantic made of a model, with its secrets in place of the stars that pydantic writes for them."""
    if hasattr(value, "get_secret_value"):
        return value
    if isinstance(document, dict) and isinstance(value, dict) and len(document) == len(value):
        pairs = zip(document.items(), value.values(), strict=True)
        return {key: _with_secrets(item, other) for (key, item), other in pairs}
    if isinstance(document, list) and isinstance(value, list | tuple) and len(document) == len(value):
        return [_with_secrets(*pair) for pair in zip(document, value, strict=True)]
    return document


class NotJson(Exception):
    """A value has an object in it that JSON does not know."""


def _refuse_object(value: Any) -> NoReturn:
    raise NotJson(type(value).__name__)


def _to_form(forms: frozenset[type], value: Any) -> Any:
    """The JSON value of an object, if it is one of these types."""
    document = _to_json(value)
    if type(document) not in forms:
        kind = type(value).__name__
        raise TypeError(
            f"a {kind} would come back as a {type(document).__name__}: declare {kind} as its type, or convert it"
        )
    return document


_Encoder = Callable[[Any, int], Iterable[str]]


def _encoder(*, sort_keys: bool = False, to_json: Callable[[Any], Any] = _to_json) -> _Encoder:
    """A strict, compact encoder. `JSONEncoder.encode` builds its C helper at each call, which takes longer than encoding a small value; here
    it is built once, where there is one."""
    plain = json.JSONEncoder(
        allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=to_json, sort_keys=sort_keys
    )
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: plain.iterencode(value)
    return make(None, to_json, json.encoder.encode_basestring, None, ":", ",", sort_keys, False, False)  # type: ignore[no-any-return]


_encode = _encoder()
_encode_plain = _encoder(to_json=_refuse_object)
_canonical = _encoder(sort_keys=True)


def _bytes(value: Any, encoder: _Encoder, what: str, most: int = LIMIT) -> bytes:
    try:
        data = "".join(encoder(value, 0)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{what} cannot be kept as JSON ({error}); return plain values, a dataclass or a pydantic model"
        ) from None
    if len(data) > MAX_DEPTH:
        _check(data, what, most)
    if mask.on and mask.name_in(data) is not None:
        return "".join(encoder(mask.value(decode(data)), 0)).encode()
    return data


def secret_in(value: Any) -> str | None:
    """The name of a secret whose value a JSON value contains."""
    return mask.name_in("".join(_encode(value, 0)).encode()) if mask.on else None


def too_deep(data: bytes) -> bool:
    """Whether JSON is nested more than `MAX_DEPTH` levels deep."""
    return data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth(_STRING.sub(b"", data)) > MAX_DEPTH


def oversized(data: bytes, opened: int | None = None) -> str | None:
    """Why bytes from outside are not parsed as JSON: nested too deep, too many values, or more than `opened` lists and objects; None when they
    may be. The check takes time linear in the bytes, and other threads can run meanwhile, unlike during parsing."""
    most = MAX_VALUES if opened is None else opened
    if (begun := data.count(b"[") + data.count(b"{")) + data.count(b",") <= min(MAX_DEPTH, most):
        return None
    marks, at = bytearray(), 0
    for number, text in enumerate(_STRING.finditer(data)):
        marks += data[at : text.start()].translate(None, _NO_MARKS)
        at = text.end()
        if (
            len(marks) > 3 * MAX_VALUES or number > 2 * MAX_VALUES
        ):  # a value has at most three marks, and two strings with its name
            break
    else:
        marks += data[at:].translate(None, _NO_MARKS)
        begun = marks.count(b"[") + marks.count(b"{")
        if marks.count(b",") <= MAX_VALUES and begun <= most:
            return f"it is nested more than {MAX_DEPTH} levels deep" if _depth(marks) > MAX_DEPTH else None
    return f"it has more than {min(most, MAX_VALUES) if begun > most else MAX_VALUES:,} values; leave large values elsewhere and send their address"


def parse_foreign(data: bytes) -> Any:
    """The value of JSON that comes from outside. Raises ValueError for everything that JSON parsers read differently, and for a text that is
    too large for one."""
    if (reason := oversized(data)) is not None:
        raise ValueError(reason)
    try:
        return _STRICT.decode(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r:.80} comes twice in one object")
            seen.add(name)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_refuse_constant)


def _check(data: bytes, what: str, most: int) -> None:
    if too_deep(data):
        raise InvalidInput(f"{what} is nested more than {MAX_DEPTH} levels deep; make it flatter")
    if len(data) > most:
        raise InvalidInput(
            f"{what} has {len(data):,} bytes, more than the {most:,} a record may hold; store it elsewhere and keep its address"
        )


def _depth(outside: bytes | bytearray) -> int:
    """How deep JSON is nested, from the part of it that is outside of strings."""
    signs = outside.translate(None, _NO_BRACKETS)
    return max(itertools.accumulate(map(_STEP.__getitem__, signs)), default=0)


def encode(value: Any, what: str = "the value", *, most: int = LIMIT) -> bytes:
    """JSON bytes of a value; `what` names it in the error."""
    if value is None:
        return b"null"
    return _bytes(value, _encode, what, most)


def encode_plain(value: Any, what: str = "the value") -> bytes:
    """JSON bytes of a value. Raises NotJson when there is an object in it that JSON does not know, like a date."""
    return b"null" if value is None else _bytes(value, _encode_plain, what)


def encode_in_forms(value: Any, forms: frozenset[type], what: str = "the value") -> bytes:
    """JSON bytes of a value whose objects may become JSON values of these types alone."""
    return _bytes(value, _encoder(to_json=functools.partial(_to_form, forms)), what)


def decode(data: bytes) -> Any:
    """The value of a payload."""
    if data in _COMMON:
        return _COMMON[data]()
    if data[:1] < b" ":
        if sealed.is_sealed(data) or data[:1] == sealed.UNREADABLE:
            raise sealed.unreadable(data)
        raise InvalidInput(
            f"a payload has the codec {data[:1]!r}, which this version of Onward does not know; upgrade it"
        )
    try:
        return _parse(data.decode())[0]  # payloads have no blanks around them, and a full decode would search for them
    except ValueError:
        raise InvalidInput(f"a payload is not JSON: {data[:40]!r}") from None


def same_as_recorded(value: Any, data: bytes) -> Any:
    """The value as a replay will read it from the journal, so that the first run gets the same (lists for tuples …)."""
    if mask.on:
        return decode(data)
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is dict and len(value) <= MAX_FLAT_ITEMS:
        for key, item in value.items():
            if type(key) is not str or type(item) not in _SCALARS:
                break
        else:
            return value.copy()  # flat, as most values are: JSON changes nothing in it
    return decode(data)


def fingerprint(value: Any, what: str = "the value") -> str:
    """A short stable hash of a value: equal for equal JSON, in any order of keys."""
    return hashlib.blake2b(_bytes(value, _canonical, what), digest_size=12).hexdigest()


def digest(value: Any) -> str:
    """The SHA-256 of a JSON value in canonical form: keys sorted, no blanks, UTF-8, in hexadecimal. It does not mask: the value is shown
    beside its digest, and every process must compute the same."""
    return hashlib.sha256("".join(_canonical(value, 0)).encode("utf-8", "surrogatepass")).hexdigest()


def content_id(data: bytes) -> str:
    """The id of contents: a hash, equal for equal bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


MAX_SHOWN_ERRORS = 5
"""Errors of a group that its message names."""


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "(its message could not be read)"


def error_value(error: BaseException) -> dict[str, Any]:
    """An exception as JSON: its class and its message, as a string that is safe to store, whatever its `__str__` does."""
    message = _message(error)
    if isinstance(error, BaseExceptionGroup):  # its own message only counts them
        inside = [f"{type(each).__name__}: {_message(each)}" for each in error.exceptions[:MAX_SHOWN_ERRORS]]
        message = f"{message}: {'; '.join(inside)}"
    if mask.on:  # before it is cut: half a secret would not be found
        message = mask.text(message)
    message = message.encode("utf-8", "backslashreplace").decode()
    return {"type": type(error).__name__, "message": message[:10_000]}
