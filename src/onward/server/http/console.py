"""The console: a page at `/` and its modules under `/console/`, served from `src/onward/console/`.

It is a client of the API like any other: this module knows nothing of tasks, and needs no key. The page shows text that agents
wrote. So the headers let it load only our own files and run nothing else, even if the page has a bug.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from onward.errors import OnwardError
from onward.server.http import problem
from onward.server.http.problem import Problem

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The served file types, by file name extension. Other files are not served."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # the browser asks each time and gets a 304: an upgrade takes effect at once
}

PAGE = "index.html"

CheckOrigin = Callable[[str, str | None], None]
"""Refuses a foreign host or origin."""


class File(NamedTuple):
    """One file of the console."""

    data: bytes
    type: str
    etag: str


@cache
def files() -> Mapping[str, File]:
    """All files by path, read at the first request."""
    return dict(_read(resources.files("onward") / "console", ""))


def _read(folder: Traversable, prefix: str) -> list[tuple[str, File]]:
    result: list[tuple[str, File]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            result += _read(entry, f"{prefix}{entry.name}/")
        elif (type_ := TYPES.get(entry.name.rpartition(".")[2])) is not None:
            data = entry.read_bytes()
            result.append((prefix + entry.name, File(data, type_, f'"{hashlib.sha256(data).hexdigest()[:20]}"')))
    return result


class _Files:
    """Serves the page and its modules."""

    def __init__(self, check: CheckOrigin) -> None:
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self._check(request.headers.get("host", ""), request.headers.get("origin"))
            response = _respond(request)
        except OnwardError as error:
            response = problem.response(error)
        await response(scope, receive, send)


def _respond(request: Request) -> Response:
    if request.method not in {"GET", "HEAD"}:
        raise Problem(
            405, "wrong_method", f"the method {request.method:.20} is not allowed here; use GET", {"Allow": "GET, HEAD"}
        )
    path = request.path_params.get("path", PAGE)
    file = files().get(path)
    if file is None:
        raise Problem(404, "no_such_path", f"the console has no file {path!r:.200}")
    headers = {**HEADERS, "ETag": file.etag}
    if file.etag in (request.headers.get("if-none-match") or ""):
        return Response(status_code=304, headers=headers)
    return Response(file.data, 200, {**headers, "Content-Type": file.type})


def routes(check: CheckOrigin) -> list[Route]:
    """The routes of the console. They are not in the route table of the API: they serve files."""
    return [Route("/", endpoint=_Files(check)), Route("/console/{path:path}", endpoint=_Files(check))]
