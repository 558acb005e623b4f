"""Problems: errors as RFC 9457 documents, with a stable `code` for programs and a sentence for people."""

from __future__ import annotations

import http
import logging
import math
from typing import Any

from starlette.responses import JSONResponse

from onward.errors import OnwardError, SchemaMismatch, StoreUnavailable, UsageError
from onward.server.http import ratelimit

log = logging.getLogger("onward.http")

MEDIA = "application/problem+json"
RETRYABLE = frozenset({408, 429, 502, 503, 504, 507})


class Problem(UsageError):
    """An error that only the HTTP server raises: `code` and `status` are given where it is raised."""

    def __init__(self, status: int, code: str, sentence: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.code, self.headers = status, code, headers or {}
        super().__init__(sentence)


STORE_UNAVAILABLE = "the database cannot be read or written at the moment; acknowledged requests are safe; the server's log has the details"


def document(error: OnwardError) -> dict[str, Any]:
    """The problem document of an error: its sentence, and its attributes (`task_id`, `retry_after`, `state` …). The address of
    the database goes to the log only, since callers without a key also see this document."""
    unavailable = isinstance(error, StoreUnavailable) and not isinstance(error, SchemaMismatch)
    if unavailable:
        log.warning("%s", error)
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | list)}
    return {
        **fields,
        "type": f"urn:onward:problem:{error.code}",
        "title": http.HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": STORE_UNAVAILABLE if unavailable else str(error),
        "code": error.code,
        "retryable": error.status in RETRYABLE,
    }


def response(error: OnwardError) -> JSONResponse:
    """The problem document as a response."""
    headers = {**ratelimit.headers(getattr(error, "rates", ())), **getattr(error, "headers", {})}
    if error.status == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="onward"'
    if error.status in {429, 503} and "Retry-After" not in headers:
        headers["Retry-After"] = str(max(1, math.ceil(getattr(error, "retry_after", 1))))
    return JSONResponse(document(error), error.status, headers, media_type=MEDIA)
