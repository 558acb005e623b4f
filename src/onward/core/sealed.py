"""Sealed payloads as readers meet them: how to recognise one, and the markers in place of payloads that cannot be opened.

`core/encryption.py` explains the format, and seals and opens.
"""

from __future__ import annotations

from typing import Final

from onward.errors import DataErased, EncryptionKeyMissing, OnwardError, PayloadDamaged

MAGIC: Final = b"\x01OE\x01"
"""The first bytes of a sealed payload: a codec of `wire`, and the version of the format."""

KEY_ID_BYTES: Final = 8
HEADER_BYTES: Final = len(MAGIC) + KEY_ID_BYTES

UNREADABLE: Final = b"\x02"
"""The first byte of the marker that a reader gets in place of a payload that cannot be opened. The next byte says why. No marker is ever
stored."""

ERASED: Final = UNREADABLE + b"e"
LOCKED: Final = UNREADABLE + b"l"
DAMAGED: Final = UNREADABLE + b"d"

NO_KEY: Final = "no_key"
"""The reason of a `shift.ended` record of a worker that has not the key of the task. The record names the key."""

ENCRYPTED_TEXT: Final = "(encrypted; `onward show` has it)"
"""Stands in log lines and traces for a string that may quote encrypted values."""

CODECS: Final = frozenset({MAGIC[:1], UNREADABLE})
"""First bytes of payloads that are no JSON here."""


def is_sealed(data: bytes) -> bool:
    """Whether a payload is sealed."""
    return data[:4] == MAGIC


def key_of(data: bytes) -> bytes:
    """The id of the data key of a sealed payload."""
    return data[len(MAGIC) : HEADER_BYTES]


def locked(key_id: str) -> bytes:
    """The marker of a payload for which this process lacks a key."""
    return LOCKED + key_id.encode()


def unreadable(data: bytes, what: str = "a payload") -> OnwardError:
    """The error for a payload that is sealed, or for a marker."""
    if data.startswith(ERASED):
        return DataErased(what)
    if data.startswith(DAMAGED):
        return PayloadDamaged(what)
    key_id = data[len(LOCKED) :].decode() if data.startswith(LOCKED) else f"data key {key_of(data).hex()}"
    return EncryptionKeyMissing(key_id, what)
