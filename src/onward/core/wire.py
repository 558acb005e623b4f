"""Values as bytes: strict JSON, and nothing that could run code when it is read.

A payload in the store is UTF-8 JSON. JSON never begins with a control character, so a first byte below 0x20 is free to
name another codec (compressed, encrypted) without a word on every plain payload. Pydantic models, dataclasses and a few
plain types become JSON at this edge; NaN, bytes, sets and broken text are refused with a sentence, never changed silently.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import hashlib
import json
import pathlib
import uuid
from collections.abc import Callable
from typing import Any

from onward.errors import InvalidInput

LIMIT = 16 * 1024 * 1024
"""The largest payload, in bytes. What is larger belongs in a file or an object store, with its address here."""

_loads = json.JSONDecoder().decode
_COMMON: dict[bytes, Callable[[], Any]] = {b"null": lambda: None, b"{}": dict}
_SCALARS = {type(None), bool, int, str}
_TEXTUAL = (uuid.UUID, pathlib.PurePath, decimal.Decimal)


def _edge(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, _TEXTUAL):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_edge)
_canonical = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_edge, sort_keys=True)


def _bytes(value: Any, encoder: json.JSONEncoder, what: str) -> bytes:
    try:
        data = encoder.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{what} cannot be kept as JSON ({error}); return plain values, a dataclass or a pydantic model"
        ) from None
    if len(data) > LIMIT:
        raise InvalidInput(
            f"{what} has {len(data):,} bytes, more than the {LIMIT:,} a record may hold; store it elsewhere and keep its address"
        )
    return data


def encode(value: Any, what: str = "the value") -> bytes:
    """JSON bytes of a value; `what` names it in the error."""
    return b"null" if value is None else _bytes(value, _encoder, what)


def decode(data: bytes) -> Any:
    """The value of a payload."""
    if data in _COMMON:
        return _COMMON[data]()
    if data[:1] < b" ":
        raise InvalidInput(
            f"a payload has the codec {data[:1]!r}, which this version of Onward does not know; upgrade it"
        )
    return _loads(data.decode())


def same_as_recorded(value: Any, data: bytes) -> Any:
    """The value as it will come back from the journal, so that the first run sees what a replay sees (lists for tuples …)."""
    return value if type(value) in _SCALARS else decode(data)


def fingerprint(value: Any, what: str = "the value") -> str:
    """A short stable hash of a value: equal for equal JSON, whatever the order of keys."""
    return hashlib.blake2b(_bytes(value, _canonical, what), digest_size=12).hexdigest()


def error_value(error: BaseException) -> dict[str, Any]:
    """What is kept of an exception: its kind and a text that is safe to store, whatever its `__str__` does."""
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be read)"
    message = message.encode("utf-8", "backslashreplace").decode()
    return {"type": type(error).__name__, "message": message[:10_000]}
