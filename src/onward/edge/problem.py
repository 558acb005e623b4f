"""Problems: errors as RFC 9457 documents, with a stable `code` for programs and a sentence for people."""

from __future__ import annotations

import http
import math
from typing import Any

from starlette.responses import JSONResponse

from onward.errors import OnwardError, UsageError

MEDIA = "application/problem+json"
RETRYABLE = frozenset({408, 429, 502, 503, 504, 507})


class Problem(UsageError):
    """What only a door over HTTP can find wrong: `code` and `status` are given where it is raised."""

    def __init__(self, status: int, code: str, sentence: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.code, self.headers = status, code, headers or {}
        super().__init__(sentence)


def document(error: OnwardError) -> dict[str, Any]:
    """The problem document of an error: its sentence, and what it knows beside (`task_id`, `retry_after`, `state` …)."""
    known = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | list)}
    return {
        **known,
        "type": f"urn:onward:problem:{error.code}",
        "title": http.HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": str(error),
        "code": error.code,
        "retryable": error.status in RETRYABLE,
    }


def response(error: OnwardError) -> JSONResponse:
    """The same as an answer."""
    headers = dict(getattr(error, "headers", {}))
    if error.status == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="onward"'
    if error.status in {429, 503} and "Retry-After" not in headers:
        headers["Retry-After"] = str(max(1, math.ceil(getattr(error, "retry_after", 1))))
    return JSONResponse(document(error), error.status, headers, media_type=MEDIA)
