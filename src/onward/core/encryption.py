"""Encryption of payloads: the format of a sealed payload, the keys, and the markers of payloads that cannot be read.

A *data key* seals the payloads of one subject: a tenant, or one value of a label. The store has it wrapped by a *master key*, which is
never in the database. A sealed payload is

    01 4F 45 01 | id of the data key, 8 bytes | nonce, 12 bytes | AES-256-GCM of the payload, with a tag of 16 bytes

JSON never begins with a byte below 0x20 (see `wire`), so a plain payload is never taken for a sealed one. The tag also covers the *place*:
the task and the record, message or content that the payload belongs to. A payload that was copied to another row cannot be opened there.
Each task has a key of its own, which is derived from the data key. It seals fewer payloads than there may be records in a journal (2^31),
so random nonces of 96 bits stay below the bound of 2^32 that NIST SP 800-38D has for one key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from typing import Any, Final, NamedTuple, Protocol

from onward.core.record import CANCEL, DROPPED, FORKED, HANDED_BACK, RESTORED, RESUMED, SHIFT, SUBMITTED
from onward.core.sealed import DAMAGED, HEADER_BYTES, KEY_ID_BYTES, MAGIC
from onward.errors import BadSetting, PayloadDamaged, UsageError

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = HEADER_BYTES + NONCE_BYTES + TAG_BYTES
"""Bytes by which a sealed payload is longer than the plain one."""

KEY_BYTES: Final = 32
"""Bytes of a master key and of a data key: AES-256."""

MAX_CIPHERS: Final = 5_000
"""Derived keys that a data key keeps in memory."""

PLAIN_KINDS: Final = frozenset({SUBMITTED, FORKED, SHIFT, HANDED_BACK, CANCEL, RESUMED, RESTORED})
"""Kinds of records that hold ids and reasons of Onward alone. They are never sealed."""

PLAIN_VALUES: Final = frozenset({b"{}", b"null", b"", b'{"state":"cancelled"}'})
"""Payloads without data of a user. They are never sealed."""

_KEY_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,100}")


class MasterKeys(Protocol):
    """The keys that wrap data keys. Implement it to keep them in a key management service."""

    @property
    def current(self) -> str:
        """The id of the key that wraps new data keys."""
        ...

    async def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """The data key, encrypted with the current key. `context` must be given again to unwrap it."""
        ...

    async def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        """The data key that the key `key_id` wrapped with this context. Raises KeyError when there is no such key."""
        ...


class LocalKeys:
    """Master keys in the memory of this process, from a setting or a file."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        if not keys:
            raise BadSetting("encryption_keys", "…", "ID=BASE64, and more of them after a comma")
        self._ciphers = {key_id: cipher(key) for key_id, key in keys.items()}
        self.current: str = next(iter(keys))

    def __repr__(self) -> str:
        return f"<master keys {', '.join(self._ciphers)}>"

    async def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """See `MasterKeys`."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + bytes(self._ciphers[self.current].encrypt(nonce, data_key, context))

    async def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        """See `MasterKeys`."""
        nonce, sealed = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
        try:
            return bytes(self._ciphers[key_id].decrypt(nonce, sealed, context))
        except _invalid_tag():
            raise PayloadDamaged(f"a data key that the master key {key_id!r} wrapped") from None


def parse_keys(setting: str) -> LocalKeys:
    """The master keys of a setting: `ID=BASE64`, separated by commas or white space. The first one wraps new data keys. Raises
    BadSetting, which never shows a key."""
    keys: dict[str, bytes] = {}
    for word in setting.replace(",", " ").split():
        name, _, text = word.partition("=")
        try:
            key = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not _KEY_NAME.fullmatch(name) or len(key) != KEY_BYTES:
            wanted = f"ID=BASE64 with {KEY_BYTES} bytes, as `onward encryption new-key ID` prints it"
            raise BadSetting("encryption_keys", "…", wanted)
        if name in keys:
            raise BadSetting("encryption_keys", "…", f"one key with the id {name!r}")
        keys[name] = key
    return LocalKeys(keys)


def new_master_key(name: str) -> str:
    """A new master key as `parse_keys` reads it. Raises BadSetting."""
    if not _KEY_NAME.fullmatch(name):
        raise BadSetting("the id of a key", name, "letters, digits and . _ : / - (at most 100)")
    return f"{name}={base64.b64encode(os.urandom(KEY_BYTES)).decode()}"


class Subject(NamedTuple):
    """The owner of a data key: a tenant (empty for tasks without one), and the value of the label that the setting `encryption_label`
    names (empty without one)."""

    tenant: str
    value: str = ""


class DataKey:
    """An unwrapped data key."""

    __slots__ = ("_ciphers", "_secret", "header", "id", "subject")

    def __init__(self, id_: bytes, subject: Subject, secret: bytes) -> None:
        self.id: bytes = id_
        self.subject: Subject = subject
        self._secret = secret
        self.header: bytes = MAGIC + id_
        self._ciphers: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<data key {self.id.hex()}>"

    def cipher(self, scope: str) -> Any:
        """The AES-256-GCM of one task, or of another thing that has payloads: its key is HMAC-SHA256 of the scope."""
        aead = self._ciphers.get(scope)
        if aead is None:
            if len(self._ciphers) >= MAX_CIPHERS:
                self._ciphers.clear()
            aead = cipher(hmac.digest(self._secret, b"onward payload\0" + scope.encode(), hashlib.sha256))
            self._ciphers[scope] = aead
        return aead

    def tag(self, text: str) -> str:
        """A keyed hash of a string. Only a process with the key can compare another string with it."""
        return hmac.digest(self._secret, b"onward fingerprint\0" + text.encode(), hashlib.sha256).hex()[:24]


def new_data_key() -> tuple[bytes, bytes]:
    """The id and the bytes of a new data key."""
    return os.urandom(KEY_ID_BYTES), os.urandom(KEY_BYTES)


def context(key_id: bytes, subject: Subject) -> bytes:
    """The context of a wrapped data key: it cannot be moved to another row or subject."""
    return b"onward data key\0%b\0%b\0%b" % (key_id.hex().encode(), subject.tenant.encode(), subject.value.encode())


def cipher(key: bytes) -> Any:
    """AES-256-GCM with this key. Raises UsageError without the extra."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 -- an extra
    except ImportError:
        raise UsageError("cryptography is not installed; pip install 'onward[encryption]'") from None
    return AESGCM(key)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 -- an extra

    return InvalidTag


# ── sealing and opening ──────────────────────────────────────────────────────────────────────────────────────────────


def seal(aead: Any, header: bytes, place: bytes, data: bytes) -> bytes:
    """The sealed payload."""
    nonce = os.urandom(NONCE_BYTES)
    return header + nonce + aead.encrypt(nonce, data, header + place)  # type: ignore[no-any-return]


def open_(aead: Any, place: bytes, data: bytes) -> bytes:
    """The payload of a sealed one; the marker DAMAGED when it was changed, or belongs to another place."""
    try:
        return aead.decrypt(data[HEADER_BYTES : HEADER_BYTES + NONCE_BYTES], data[HEADER_BYTES + NONCE_BYTES :], data[:HEADER_BYTES] + place)  # type: ignore[no-any-return]  # fmt: skip
    except _invalid_tag():
        return DAMAGED


def may_be_plain(data: bytes, kind: str = "") -> bool:
    """Whether a payload of this kind is never sealed."""
    return data in PLAIN_VALUES or kind in PLAIN_KINDS or data.startswith(DROPPED)


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────────
# The part with free text is the last, so that no two places are the same bytes.


def input_place(task_id: str, task: str) -> bytes:
    """The place of the input of a task."""
    return f"input/{task_id}/{task}".encode()


def record_place(task_id: str, seq: int, kind: str, key: str) -> bytes:
    """The place of a record."""
    return f"record/{task_id}/{seq}/{kind}/{key}".encode("utf-8", "surrogatepass")


def message_place(task_id: str, message_id: str, kind: str, name: str, ref: int | None) -> bytes:
    """The place of a message to a task."""
    return f"message/{task_id}/{ref}/{kind}/{len(message_id)}/{message_id}/{name}".encode("utf-8", "surrogatepass")


def content_place(task_id: str, content_id: str) -> bytes:
    """The place of a content or an artifact of a task."""
    return f"content/{task_id}/{content_id}".encode()


def body_place(task_id: str, seq: int, subscription: str) -> bytes:
    """The place of the body of a delivery."""
    return f"body/{task_id}/{seq}/{subscription}".encode()


def schedule_place(name: str) -> bytes:
    """The place of the input of a schedule."""
    return f"schedule/{name}".encode()


def letter_place(letter_id: str) -> bytes:
    """The place of the data of a dead letter."""
    return f"letter/{letter_id}".encode()


def document_place(collection: str, key: str) -> bytes:
    """The place of a document."""
    return f"document/{collection}/{key}".encode()


def letter_reason_place(intake: str, identity: str) -> bytes:
    """The place of the reason of a dead letter. A message that comes again keeps its letter, and gets a new reason."""
    return f"letter-reason/{intake}/{identity}".encode()
