"""Signatures of webhooks (standardwebhooks.com): HMAC-SHA256 over the id, the time and the exact bytes of the body.

A setting may name several secrets, and each of them signs, so that receivers can change to a new secret while both are valid. Each
subscription has its own secret, derived from ours and its id: no receiver can sign for another, and no secret is stored.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from onward.errors import BadSetting

PREFIX = "whsec_"
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64


def parse(setting: str) -> tuple[bytes, ...]:
    """The secrets that a setting names, separated by commas or spaces. Raises BadSetting."""
    return tuple(_parse(word) for word in setting.replace(",", " ").split())


def _parse(word: str) -> bytes:
    try:
        secret = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not word.startswith(PREFIX) or not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        wanted = f"{PREFIX} and {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes in base 64, such as the output of `echo {PREFIX}$(openssl rand -base64 32)`"
        raise BadSetting("webhook_secret", "…", wanted)
    return secret


def derive(secrets: Sequence[bytes], name: str) -> tuple[bytes, ...]:
    """The secrets of one subscription."""
    return tuple(hmac.digest(secret, f"onward:{name}".encode(), hashlib.sha256) for secret in secrets)


def encode(secret: bytes) -> str:
    """A secret in the form that its receiver needs."""
    return PREFIX + base64.b64encode(secret).decode()


def sign(secrets: Sequence[bytes], message: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`."""
    signed = f"{message}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets]
    return " ".join(f"v1,{signature}" for signature in signatures)
