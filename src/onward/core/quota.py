"""Quotas of providers: a quota that is used up is shut until a time. All tasks that need it wait until then, instead of calling the
provider."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from onward.core import mask

FIRST_PAUSE_S = 2.0
MAX_PAUSE_S = 3_600.0
"""For a provider that names no time: the first pause, and the longest. Each is twice the one before."""

MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 0.25, 86_400.0
"""Bounds of the time that a provider names. After a day a task tries again in any case."""

SPREAD = 0.1
MAX_SPREAD_S = 30.0
"""Tasks that wait come back within a tenth of the pause after it, and within so many seconds, so that they do not all come at once."""


MAX_WHY_CHARS = 500


class Shut(NamedTuple):
    """A quota that is, or was, used up: until when by the time of the database, how many seconds are left (0 or less: it may be tried again),
    and why."""

    until: float
    left: float
    why: str


def of_error(error: BaseException) -> tuple[bool, float | None]:
    """Whether an error says that a quota is used up, and for how many seconds, where it says that too."""
    after = getattr(error, "retry_after", None)
    if not isinstance(after, int | float) or not 0 <= after < math.inf:
        return bool(getattr(error, "quota", False)), None
    return True, None if after == 0 else min(max(float(after), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)


def why(error: BaseException) -> str:
    """The message of an error in one line that every database takes."""
    text = str(getattr(error, "why", "") or error)
    return "".join(letter if letter.isprintable() else " " for letter in mask.cut(text, MAX_WHY_CHARS))


def spread(left: float, rng: random.Random) -> float:
    """Seconds after which one of the tasks that wait tries again."""
    return left + min(left * SPREAD, MAX_SPREAD_S) * rng.random()
