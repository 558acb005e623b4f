"""Sends one request until it is answered: decides when to send it again, and when that could do something twice.

    no connection                 again: the server has not seen the request
    429, 408                      again, after `Retry-After`: the server has done nothing
    502, 503, 504, no response    again, if the request is idempotent; else raises Unreachable or the server's error
    anything else                 raises the server's error; also for a redirect

Pauses grow from a tenth of a second to five seconds. They are random, so that clients which were refused together do not come back
together.
"""

from __future__ import annotations

import random
import re
import urllib.parse
from typing import Any, Final

from onward.client.parse import parse_error
from onward.client.script import NO_BODY, NoResponse, Pause, Request, Response, Script
from onward.core.clock import SystemClock
from onward.core.durations import Duration, seconds
from onward.core.ids import Ids
from onward.core.retry import Retry
from onward.errors import Unreachable, UsageError

NOT_DONE: Final = frozenset({408, 429})
"""Statuses of a server that has not carried out the request."""
IN_DOUBT: Final = frozenset({502, 503, 504})
"""Statuses after which the request may have been carried out."""
PAUSES: Final = Retry(attempts=1_000_000, first=0.1, cap=5.0, jitter=0.5)


class BaseClient:
    """The base of both clients: the address of the server, and for how long a request is tried."""

    def __init__(self, url: str, timeout: Duration, patience: Duration) -> None:
        if not url.lower().startswith(("http://", "https://")):
            raise UsageError(f"the address of a server begins with http:// or https://, and {url!r:.80} does not")
        self.url: str = url.rstrip("/")
        self._shown_url: str = _check_address(self.url)
        self.timeout: float = seconds(timeout, "timeout")
        self.patience: float = seconds(patience, "patience")
        self._rng = random.SystemRandom()
        self._clock: SystemClock = SystemClock()
        self._ids: Ids = Ids(self._clock.now, self._rng)

    def _call(
        self, method: str, path: str, body: Any = NO_BODY, *, patience: float | None = None, **options: Any
    ) -> Script[Response]:
        """Send a request; its response, if it succeeded. Raises the server's error, or Unreachable. Options are those of `Request`."""
        options.setdefault("idempotent", method == "GET")
        request = Request(method, path, body=body, **options)
        return (yield from self._send(request, self.patience if patience is None else patience))

    def _send(self, request: Request, patience: float) -> Script[Response]:
        began, tries = self._clock.monotonic(), 0
        while True:
            tries += 1
            response: Response | NoResponse = yield request
            if isinstance(response, Response) and response.status < 300:
                return response
            error = self._error(request, response, tries)
            pause = PAUSES.pause(tries, error, self._rng) if _may_retry(request, response) else None
            if pause is None or self._clock.monotonic() + pause > began + patience:
                raise error
            yield Pause(pause * self._rng.uniform(1.0, 1.25))

    def _error(self, request: Request, response: Response | NoResponse, tries: int) -> Exception:
        if isinstance(response, Response):
            return parse_error(response)
        return Unreachable(self._shown_url, tries, response.why, response.sent and not request.idempotent)


def _check_address(url: str) -> str:
    """The address without a name and a password, for messages. Raises UsageError for one that cannot be asked."""
    try:
        parts = urllib.parse.urlsplit(url)
        asks = parts.hostname and (parts.port is None or parts.port > 0) and not parts.query and not parts.fragment
    except ValueError:
        asks = False
    shown = re.sub(r"//.*@", "//", url)
    if not asks:
        raise UsageError(
            f"{shown!r:.80} is not the address of a server: https://, a host, a port if need be, and a path in front of /api if there is one"
        )
    return shown


def _may_retry(request: Request, response: Response | NoResponse) -> bool:
    if isinstance(response, NoResponse):
        return request.idempotent or not response.sent
    return response.status in NOT_DONE or (response.status in IN_DOUBT and request.idempotent)


def path(collection: str, name: str) -> str:
    """The path of a member of a collection."""
    return f"/api/{collection}/{segment(name)}"


def segment(name: str) -> str:
    """A name as one part of a path. "." and ".." have a meaning of their own there, and are written as escapes."""
    return urllib.parse.quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")
