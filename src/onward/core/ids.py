"""Ids: 26 characters that sort by the time at which they were made (the layout of UUIDv7, in Crockford's base 32, lower case).

They are strings, so that the same id is readable in Python, SQL, URLs and a terminal. Within one process ids never go backwards, even
when the clock does.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS = range(120, -1, -10)
_LAST = 2.0**48 / 1000 - 1


def first_id(at: float) -> str:
    """The lowest id of this time (seconds since 1970)."""
    return _text(int(min(max(at, 0.0), _LAST) * 1000) << 80)


def key_id(key: str) -> str:
    """The id of the task with this key, on an engine that keeps ids unique, and knows no keys. It sorts by no time."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "big")
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def _text(number: int) -> str:
    number <<= 2  # 128 bits in 26 characters of 5
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


class Ids:
    """A source of ids; call it for the next one."""

    def __init__(self, now: Callable[[], float], rng: random.Random) -> None:
        self._now, self._rng = now, rng
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        fresh = int(self._now() * 1000) << 80 | self._rng.getrandbits(80)
        with self._lock:
            self._last = fresh = max(fresh, self._last + 1)
        return _text(fresh)
