"""Retry: whether and when a failed step or task is tried again."""

from __future__ import annotations

import dataclasses
import math
import random

from onward.core.durations import Duration, seconds
from onward.errors import BadSetting, Fatal, UsageError

HOPELESS: tuple[type[BaseException], ...] = (
    Fatal,
    UsageError,
    AttributeError,
    ImportError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""Failures that a retry cannot heal: mistakes in the program, and errors that say so themselves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Retry:
    """Up to `attempts` attempts, with pauses of `first`, `first × factor`, … capped at `cap`.

    Each pause is a random part of its length, between (1 - `jitter`) and 1, so that tasks which failed together do not come back
    together. The `retry_after` (seconds) of an error takes precedence. There is no pause after the last attempt. `unless` names
    further exceptions that are not retried.
    """

    attempts: int = 4
    first: Duration = 1.0
    factor: float = 2.0
    cap: Duration = 60.0
    jitter: float = 0.25
    unless: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise BadSetting("Retry.attempts", self.attempts, "1 or more")
        if not 0 <= self.jitter <= 1:
            raise BadSetting("Retry.jitter", self.jitter, "between 0 and 1")
        if not 0 <= self.factor < math.inf:
            raise BadSetting("Retry.factor", self.factor, "a number of 0 or more")
        object.__setattr__(self, "first", seconds(self.first, "Retry.first"))
        object.__setattr__(self, "cap", seconds(self.cap, "Retry.cap"))

    def pause(self, attempt: int, error: BaseException, rng: random.Random) -> float | None:
        """Seconds to wait after the failure of attempt number `attempt` (from 1), or None when that was the last."""
        if attempt >= self.attempts or isinstance(error, HOPELESS) or isinstance(error, self.unless):
            return None
        retry_after = getattr(error, "retry_after", None)
        if isinstance(retry_after, int | float) and 0 <= retry_after < math.inf:  # infinite: it would sleep for ever
            return float(retry_after)
        return self._longest_pause(attempt) * (1 - self.jitter * rng.random())

    def _longest_pause(self, attempt: int) -> float:
        cap, first = float(self.cap), float(self.first)  # type: ignore[arg-type]
        try:
            return min(cap, first * self.factor ** (attempt - 1))
        except OverflowError:  # such as 2.0 ** 2000, in a policy with many attempts
            return cap if first else 0.0


NO_RETRY = Retry(attempts=1)


def as_retry(retry: Retry | int) -> Retry:
    """The policy that callers give as a Retry or as a number of attempts."""
    if isinstance(retry, Retry):
        return retry
    if not isinstance(retry, int) or isinstance(retry, bool):
        raise BadSetting("retry", retry, "a Retry or a number of attempts")
    return Retry(attempts=retry)
