"""Hooks: signed requests from outside that wake a task or submit one. Pure: this module checks signatures.

Three schemes of signing, each HMAC-SHA256 over the bytes that were sent:

    standard   Standard Webhooks: `webhook-signature: v1,BASE64 …` over `ID.TIME.BODY`
    github     `x-hub-signature-256: sha256=HEX` over the body; others use the same form
    stripe     `stripe-signature: t=TIME,v1=HEX` over `TIME.BODY`

A time that is signed must be near the current time: an old request that was recorded and sent again is refused. Only signed parts of a
request name it: with an id or a type from an unsigned header, an attacker could send a recorded request again as another one.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from onward.core.durations import Duration, seconds
from onward.errors import BadSetting, Unauthorized

TIME_TOLERANCE_S: Final = 300.0
"""Seconds that the signed time may differ from the current time."""
PREFIX: Final = "whsec_"

Headers = Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A request with a valid signature."""

    id: str
    """The id of the event that the signature covers (`webhook-id` of the scheme "standard", else the `id` in the body), else the hash of the
    body: the same when it is sent again. Used as `key` of a submit or `id` of a signal, it makes a repeated request count once."""
    data: Any
    """The body, read as JSON."""
    headers: Headers
    type: str = ""
    """The `type` in the body; for the scheme "github", whose bodies have none, the header `x-github-event`, which is not signed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hook:
    """A hook: its name, its function, and how its requests are signed."""

    name: str
    function: Callable[[Event], Any]
    secrets: tuple[str, ...] = dataclasses.field(repr=False)
    scheme: str = "standard"
    timeout: float = 10.0

    def check_head(self, headers: Headers) -> None:
        """Raises Unauthorized for a request without a signature, before its body is read."""
        if not headers.get(_SIGNATURES[self.scheme]):
            raise Unauthorized

    def event(self, headers: Headers, body: bytes, data: Any, now: float) -> Event:
        """The event of a request. Raises Unauthorized for a wrong signature."""
        if not any(SCHEMES[self.scheme](headers, body, secret, now) for secret in self.secrets):
            raise Unauthorized
        event_id = headers["webhook-id"] if self.scheme == "standard" else _name_in(data, "id")
        kind = _name_in(data, "type") or (headers.get("x-github-event") if self.scheme == "github" else None)
        return Event(event_id or hashlib.sha256(body).hexdigest(), data, headers, kind or "")


MAX_NAME_CHARS: Final = 512
"""Characters of an id that tasks and signals take as their key."""


def _name_in(data: Any, field: str) -> str | None:
    """A field of a body that can name an event; None for one that no task takes as its key."""
    name = data.get(field) if isinstance(data, dict) else None
    return name if isinstance(name, str) and len(name) <= MAX_NAME_CHARS and name.isprintable() else None


_SIGNATURES = {
    "standard": "webhook-signature",
    "github": "x-hub-signature-256",
    "stripe": "stripe-signature",
}
MAX_SIGNATURES: Final = 20
"""Signatures of one request that are checked: senders send two while they change their secret."""


def hook(
    name: str, function: Callable[[Event], Any], secret: str | Sequence[str], scheme: str, timeout: Duration
) -> Hook:
    """A hook, checked. Raises BadSetting."""
    if scheme not in SCHEMES:
        raise BadSetting("scheme", scheme, f"one of {', '.join(SCHEMES)}")
    secrets = (secret,) if isinstance(secret, str) else tuple(secret)
    if not secrets or not all(isinstance(value, str) and len(value) >= 16 for value in secrets):
        raise BadSetting(
            f"the secret of hook {name!r}", "…", "a string of 16 or more characters, or several while it changes"
        )
    if scheme == "standard":
        for value in secrets:
            _decode(value)
    return Hook(name, function, secrets, scheme, seconds(timeout, "timeout"))


def sign(secret: bytes, data: bytes) -> bytes:
    """HMAC-SHA256."""
    return hmac.new(secret, data, hashlib.sha256).digest()


def _standard(headers: Headers, body: bytes, secret: str, now: float) -> bool:
    sent, at, given = (headers.get(f"webhook-{part}", "") for part in ("id", "timestamp", "signature"))
    if not sent or not _near(at, now):
        return False
    wanted = base64.b64encode(sign(_decode(secret), f"{sent}.{at}.".encode() + body)).decode()
    return any(_same(signature, f"v1,{wanted}") for signature in given.split(maxsplit=MAX_SIGNATURES)[:MAX_SIGNATURES])


def _github(headers: Headers, body: bytes, secret: str, _now: float) -> bool:
    return _same(headers.get("x-hub-signature-256", ""), f"sha256={sign(secret.encode(), body).hex()}")


def _stripe(headers: Headers, body: bytes, secret: str, now: float) -> bool:
    parts = [part.strip().partition("=") for part in headers.get("stripe-signature", "").split(",")[:MAX_SIGNATURES]]
    at = next((value for name, _, value in parts if name == "t"), "")
    if not _near(at, now):
        return False
    wanted = sign(secret.encode(), f"{at}.".encode() + body).hex()
    return any(name == "v1" and _same(value, wanted) for name, _, value in parts)


SCHEMES: Final[Mapping[str, Callable[[Headers, bytes, str, float], bool]]] = {
    "standard": _standard,
    "github": _github,
    "stripe": _stripe,
}


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _near(at: str, now: float) -> bool:
    return at.isascii() and at.isdecimal() and len(at) < 15 and abs(int(at) - now) <= TIME_TOLERANCE_S


def _decode(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise BadSetting("the secret of a hook", "…", f"of the form {PREFIX}BASE64") from None
