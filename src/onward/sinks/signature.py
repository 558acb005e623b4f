"""Signatures of webhooks, as standardwebhooks.com has them: HMAC-SHA256 over id, time and the very bytes of the body.

A setting may name several secrets, and each signs: so that receivers can change to a new one while both are good. Subscriptions have a
secret of their own, made from ours and their id, so that no receiver can sign in the name of another, and none is kept anywhere.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from onward.errors import BadSetting

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64


def parse(setting: str) -> tuple[bytes, ...]:
    """The secrets that a setting names, with commas or blanks between them. Raises BadSetting."""
    return tuple(_parse(word) for word in setting.replace(",", " ").split())


def _parse(word: str) -> bytes:
    try:
        secret = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not word.startswith(PREFIX) or not SHORTEST <= len(secret) <= LONGEST:
        wanted = f"{PREFIX} and {SHORTEST} to {LONGEST} bytes in base 64, such as the output of `echo {PREFIX}$(openssl rand -base64 32)`"
        raise BadSetting("webhook_secret", "…", wanted)
    return secret


def derived(secrets: Sequence[bytes], name: str) -> tuple[bytes, ...]:
    """The secrets of one subscription."""
    return tuple(hmac.digest(secret, f"onward:{name}".encode(), hashlib.sha256) for secret in secrets)


def shown(secret: bytes) -> str:
    """A secret as its receiver needs it."""
    return PREFIX + base64.b64encode(secret).decode()


def sign(secrets: Sequence[bytes], message: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`."""
    signed = f"{message}.{timestamp}.".encode() + body
    marks = [base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets]
    return " ".join(f"v1,{mark}" for mark in marks)
