"""Quotas of others: what is used up is shut until a time, and everybody who needs it waits for that time instead of asking."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

FIRST = 2.0
CAP = 3_600.0
"""Where nobody says when to come back: the first pause, and the longest. Each is twice the one before."""

SHORTEST, LONGEST = 0.25, 86_400.0
"""A time that is said is believed up to a day; after that, somebody asks again. "At once" after a no is no time at all."""

SPREAD = 0.1
MOST_SPREAD = 30.0
"""Those who wait come back within a tenth of the pause, in seconds at most, so that they do not all come at once."""


MOST_WORDS = 500


class Shut(NamedTuple):
    """Something that is, or was, used up: until when by the database's time, how many seconds are left (0 or less: it may be
    asked again), and why."""

    until: float
    left: float
    why: str


def said(error: BaseException) -> tuple[bool, float | None]:
    """Whether an error says that something is used up, and for how long, where it says that too."""
    after = getattr(error, "retry_after", None)
    if not isinstance(after, int | float) or not 0 <= after < math.inf:
        return bool(getattr(error, "quota", False)), None
    return True, None if after == 0 else min(max(float(after), SHORTEST), LONGEST)


def why(error: BaseException) -> str:
    """What it says, in a line that every database takes."""
    text = str(getattr(error, "why", "") or error)
    return "".join(letter if letter.isprintable() else " " for letter in text)[:MOST_WORDS]


def spread(left: float, rng: random.Random) -> float:
    """When to come back, in seconds."""
    return left + min(left * SPREAD, MOST_SPREAD) * rng.random()
