"""The audit log as a chain of hashes. The hash of each entry covers the hash of the entry before it, so that an entry that was changed,
removed or inserted is noticed. Pure; `service/audit.py` reads and verifies the log.

Without a key every hash is a SHA-256, which a writer with access to the table can compute anew for a chain of its own. With a key
(`ONWARD_AUDIT_KEY`) it is an HMAC-SHA256, and begins with `hmac-` and the id of the key. A chain is keyed from one entry on: the first
keyed entry covers all before it, and no entry without a key follows.

A chain cannot prove its own end. So the store writes down the last entry in another table, with a seal (`End`). An old seal that is put back
together with the log of its time is sound again: only a head outside of the database shows that.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from onward.core import wire
from onward.errors import AuditKeyMissing, BadSetting, UsageError

BEGINNING = "0" * 64
"""The hash before the first entry."""

MIN_KEY_BYTES: Final = 32
"""Bytes of a key, at least: those of the hash."""

_KEYED = re.compile(r"hmac-([0-9a-f]{8})-[0-9a-f]{64}")
_HEAD = re.compile(r"([0-9]{1,15}):((?:hmac-[0-9a-f]{8}-)?[0-9a-f]{64})")


class AuditEvent(NamedTuple):
    """An event for the audit log. `tenant` is the tenant of the subject, so that a tenant sees what others did to its tasks."""

    action: str
    subject: str
    tenant: str | None = None
    key: str | None = None
    """The id of the caller's key; None for a caller with access to the database itself, or where there are no keys."""
    name: str = ""
    """The name of the caller, where it is known."""
    data: Mapping[str, Any] = {}


class AuditKey:
    """A key of the audit log. Its `id` is computed from it, and tells nothing about it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id: str = hmac.digest(secret, b"onward audit key", hashlib.sha256).hex()[:8]

    def __repr__(self) -> str:
        return f"<audit key {self.id}>"

    def hash_of(self, entry: Entry) -> str:
        """The hash of an entry that is written with this key."""
        return f"hmac-{self.id}-{hmac.digest(self._secret, entry.covered, hashlib.sha256).hex()}"

    def seal_of(self, head: Head) -> str:
        """The seal of the end of the log, while this head is its last entry."""
        covered = f"onward audit end {head}".encode()
        return f"hmac-{self.id}-{hmac.digest(self._secret, covered, hashlib.sha256).hex()}"


AuditKeys = tuple[AuditKey, ...]
"""The first one writes; each of them verifies."""


class Entry(NamedTuple):
    """An entry of the audit log."""

    number: int
    at: float
    tenant: str | None
    key: str | None
    name: str
    action: str
    subject: str
    data: bytes
    before: str
    hash: str

    @property
    def covered(self) -> bytes:
        """The bytes that the hash covers: all fields but the hash itself."""
        fields = [*self[:7], self.data.decode("utf-8", "backslashreplace"), self.before]
        return json.dumps(fields, separators=(",", ":")).encode()

    @property
    def expected_hash(self) -> str:
        """The hash that an unchanged entry has when it was written without a key."""
        return hashlib.sha256(self.covered).hexdigest()

    @property
    def keyed_with(self) -> str | None:
        """The id of the key with which it was written; None without a key."""
        return key_id(self.hash)


class Head(NamedTuple):
    """The number and the hash of an entry, as of a time when it was the last one."""

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


class End(NamedTuple):
    """The last entry, as it is written down beside the log with every entry. Who cuts the log off has to change it too."""

    number: int
    hash: str
    seal: str | None
    """An HMAC of both, with the key of the log; None without a key. An end without the seal could be one of anybody."""


def key_id(hash_: str) -> str | None:
    """The id of the key that made a hash; None when it was made without one."""
    match = _KEYED.fullmatch(hash_)
    return None if match is None else match[1]


def parse_head(text: str) -> Head:
    """The head that `NUMBER:HASH` names. Raises UsageError."""
    match = _HEAD.fullmatch(text)
    if match is None:
        raise UsageError(f"a head of the audit is NUMBER:HASH, as `onward audit verify` prints it, not {text!r:.80}")
    return Head(int(match[1]), match[2])


def parse_keys(setting: str) -> AuditKeys:
    """The keys that a setting names, separated by commas or spaces. Raises BadSetting."""
    return tuple(_parse_key(word) for word in setting.replace(",", " ").split())


def _parse_key(word: str) -> AuditKey:
    try:
        secret = base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) < MIN_KEY_BYTES:
        wanted = (
            f"{MIN_KEY_BYTES} bytes or more in base 64, such as the output of `openssl rand -base64 {MIN_KEY_BYTES}`"
        )
        raise BadSetting("audit_key", "…", wanted)
    return AuditKey(secret)


def to_end(head: Head, keys: Sequence[AuditKey] = ()) -> End:
    """The end of a log with this last entry."""
    return End(head.number, head.hash, keys[0].seal_of(head) if keys else None)


def to_entry(event: AuditEvent, number: int, before: str, at: float, keys: Sequence[AuditKey] = ()) -> Entry:
    """The entry of an event, after the entry with the hash `before`. Raises AuditKeyMissing when that one is keyed, and there is no
    key: an entry without a key behind it could be one of anybody."""
    data = wire.encode(dict(event.data), "the data of an audit event")
    entry = Entry(number, at, event.tenant, event.key, event.name, event.action, event.subject, data, before, "")
    if keys:
        return entry._replace(hash=keys[0].hash_of(entry))
    if (id_ := key_id(before)) is not None:
        raise AuditKeyMissing(id_)
    return entry._replace(hash=entry.expected_hash)
