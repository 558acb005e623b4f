"""The console: a page at `/` and its modules under `/console/`, as they lie in `src/onward/console/`.

It is a client of the API like any other: nothing here knows a task, and nothing here needs a key. What an agent wrote is shown
by a page that we serve, so that page may load nothing but our own files and run nothing else: the headers see to it, whatever a
mistake in the page would allow.
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
"""What is served, by the end of its name; nothing else is."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for each time, and answered with 304: an upgrade is seen at once
}

PAGE = "index.html"

CheckOrigin = Callable[[str, str | None], None]
"""Refuses a host or an origin that is not ours."""


class File(NamedTuple):
    """One file of the console."""

    data: bytes
    type: str
    etag: str


@cache
def files() -> Mapping[str, File]:
    """All of them by path, read when the first is asked for."""
    return dict(_read(resources.files("onward") / "console", ""))


def _read(folder: Traversable, above: str) -> list[tuple[str, File]]:
    found = []
    for one in folder.iterdir():
        if one.is_dir():
            found += _read(one, f"{above}{one.name}/")
        elif (type_ := TYPES.get(one.name.rpartition(".")[2])) is not None:
            data = one.read_bytes()
            found.append((above + one.name, File(data, type_, f'"{hashlib.sha256(data).hexdigest()[:20]}"')))
    return found


class _Files:
    """The page, or a module of it."""

    def __init__(self, check: CheckOrigin) -> None:
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self._check(request.headers.get("host", ""), request.headers.get("origin"))
            response = _answer(request)
        except OnwardError as error:
            response = problem.response(error)
        await response(scope, receive, send)


def _answer(request: Request) -> Response:
    if request.method not in {"GET", "HEAD"}:
        raise Problem(405, "wrong_method", f"{request.method:.20} is not for this; GET is", {"Allow": "GET, HEAD"})
    path = request.path_params.get("path", PAGE)
    file = files().get(path)
    if file is None:
        raise Problem(404, "no_such_path", f"the console has no file {path!r:.200}")
    headers = {**HEADERS, "ETag": file.etag}
    if file.etag in (request.headers.get("if-none-match") or ""):
        return Response(status_code=304, headers=headers)
    return Response(file.data, 200, {**headers, "Content-Type": file.type})


def routes(check: CheckOrigin) -> list[Route]:
    """Not in the table of calls: they are files, and the API is the same without them."""
    return [Route("/", endpoint=_Files(check)), Route("/console/{path:path}", endpoint=_Files(check))]
