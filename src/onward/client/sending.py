"""Asking: one request until it is answered. When to send it again, and when that could do something twice.

    no connection                 again: the server has seen nothing
    429, 408                      again, after `Retry-After`: the server has done nothing
    502, 503, 504, no answer      again, if doing it twice is the same as once; else the caller is told that nobody knows
    anything else                 the caller is told; also of an answer that sends us elsewhere

Pauses grow from a tenth of a second to five, drawn at random, so that those who were refused together do not come back together.
"""

from __future__ import annotations

import random
import urllib.parse
from typing import Any, Final

from onward.client.errors import Unreachable
from onward.client.parse import error_of
from onward.client.script import NOTHING, Answer, Lost, Pause, Request, Script
from onward.core.clock import SystemClock
from onward.core.durations import Duration, seconds
from onward.core.ids import Ids
from onward.core.retry import Retry
from onward.errors import UsageError

REFUSED: Final = frozenset({408, 429})
"""Whoever says this has not done anything."""
IN_DOUBT: Final = frozenset({502, 503, 504})
"""Whoever says this may have done it."""
PAUSES: Final = Retry(attempts=1_000_000, first=0.1, cap=5.0, jitter=0.5)


class Asking:
    """What both clients have: where the server is, and how patient they are with it."""

    def __init__(self, url: str, timeout: Duration, patience: Duration) -> None:
        if not url.lower().startswith(("http://", "https://")):
            raise UsageError(f"the address of a server begins with http:// or https://, and {url!r:.80} does not")
        self.url = url.rstrip("/")
        self.timeout, self.patience = seconds(timeout, "timeout"), seconds(patience, "patience")
        self.clock, self._rng = SystemClock(), random.SystemRandom()
        self.ids = Ids(self.clock.now, self._rng)

    def asked(
        self, method: str, path: str, body: Any = NOTHING, *, patience: float | None = None, **more: Any
    ) -> Script[Answer]:
        """The answer, when it is a good one. Raises what the server said otherwise, and Unreachable."""
        more.setdefault("again", method == "GET")
        request = Request(method, path, body=body, **more)
        answer = yield from self._insisted(request, self.patience if patience is None else patience)
        return answer

    def _insisted(self, request: Request, patience: float) -> Script[Answer]:
        began, tries = self.clock.monotonic(), 0
        while True:
            tries += 1
            answer: Answer | Lost = yield request
            if isinstance(answer, Answer) and answer.status < 300:
                return answer
            error = self._error(request, answer, tries)
            pause = PAUSES.pause(tries, error, self._rng) if _may_help(request, answer) else None
            if pause is None or self.clock.monotonic() + pause > began + patience:
                raise error
            yield Pause(pause * self._rng.uniform(1.0, 1.25))

    def _error(self, request: Request, answer: Answer | Lost, tries: int) -> Exception:
        if isinstance(answer, Answer):
            return error_of(answer)
        return Unreachable(self.url, tries, answer.why, answer.sent and not request.again)


def _may_help(request: Request, answer: Answer | Lost) -> bool:
    if isinstance(answer, Lost):
        return request.again or not answer.sent
    return answer.status in REFUSED or (answer.status in IN_DOUBT and request.again)


def path(what: str, name: str) -> str:
    """Where something is."""
    return f"/api/{what}/{urllib.parse.quote(name, safe='')}"
