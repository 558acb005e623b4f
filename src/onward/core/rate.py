"""A rate as a bucket of tokens, stored as one number: the time at which it is full again."""

from __future__ import annotations

import math

SLACK_S = 1e-9
"""Seconds of tolerance: a token that is due now must not be refused because of rounding."""


class Bucket:
    """A bucket that gets `rate` tokens a second and holds `burst` of them. It also counts the tokens that were taken in this second and
    in the one before."""

    __slots__ = ("_before", "_count", "_second", "full_at")

    def __init__(self) -> None:
        self.full_at = -math.inf
        self._second, self._count, self._before = 0, 0, 0

    def wait(self, now: float, rate: float, burst: float) -> float:
        """Seconds until there is a token; 0 when there is one."""
        left = max(self.full_at - now, 0.0) + (1 - burst) / rate
        return left if left > SLACK_S else 0.0

    def take(self, now: float, rate: float, tokens: int = 1) -> None:
        """Take tokens, also when there are too few: then the bucket owes them."""
        self.full_at = max(self.full_at, now) + tokens / rate
        self._roll(now)
        self._count += tokens

    def remaining(self, now: float, rate: float, burst: float) -> int:
        """Tokens that are left."""
        return max(0, math.floor(burst - max(self.full_at - now, 0.0) * rate + 1e-6))

    def full_in(self, now: float) -> float:
        """Seconds until the bucket is full."""
        return max(self.full_at - now, 0.0)

    def per_second(self, now: float) -> int:
        """Tokens that were taken in this second or in the one before, whichever are more."""
        self._roll(now)
        return max(self._count, self._before)

    def _roll(self, now: float) -> None:
        second = math.floor(now)
        if second != self._second:
            self._before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0
