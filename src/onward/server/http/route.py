"""The route table: each HTTP operation is one `ApiRoute`. The server and the OpenAPI document are both made from this table, so
they cannot differ.

A route names its method and path, the query and body it takes, the scopes a caller needs, and every response it can give. Its
handler is a function that takes a `RequestContext` and returns an `ApiResponse`; `Routes.add` makes a route of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from onward.server.access.service import AuthorizedService
from onward.server.schema.shape import Shape

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from onward.server.http.state import ServerState


LOADED_BYTES = 8 << 20
"""Bytes that the handler of a route holds in memory, about, until its response is made; see `ApiRoute.loads`."""


@dataclasses.dataclass(slots=True)
class RequestContext:
    """One request, after the checks that its route asks for: authentication, scopes, query, body."""

    service: AuthorizedService
    path: Mapping[str, str]
    query: Any
    """An instance of the route's `query` class, or None."""
    body: Any
    """An instance of the route's `body` class, or None."""
    request: Request
    server: ServerState
    until_made: AsyncExitStack
    """Closed when the response is made, before it is sent."""

    def header(self, name: str) -> str | None:
        """The value of a request header, or None."""
        return self.request.headers.get(name)


@dataclasses.dataclass(slots=True)
class ApiResponse:
    """The response of a handler: `value` as JSON, unless `response` is set."""

    value: Any = None
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    response: Response | None = None


RouteHandler = Callable[[RequestContext], Awaitable[ApiResponse]]


@dataclasses.dataclass(frozen=True, slots=True)
class ApiRoute:
    """One operation of the HTTP API."""

    method: str
    path: str
    name: str
    handler: RouteHandler
    summary: str
    """One sentence for the API reference."""
    responses: Mapping[int, tuple[str, Any]]
    """For each success status: its meaning, and the shape of its body (None: no body)."""
    body: type[Shape] | None = None
    query: type[Shape] | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Request headers that the route reads, each with its meaning."""
    errors: tuple[int, ...] = ()
    """Error statuses of this route, beside those that every route can return, or every route with a body or a query."""
    media: str = "application/json"
    """The media type of the first success response."""
    streams: bool = False
    """Whether it also responds with server-sent events, to a client that accepts them."""
    open: bool = False
    """Whether it needs no key."""
    tag: str = ""
    scopes: tuple[str, ...] = ()
    """The caller must have one of these scopes, otherwise the server does not read the body. `AuthorizedService` checks the
    rest."""
    loads: int = LOADED_BYTES
    """Bytes that the handler holds in memory, about. It waits for its turn (`ServerState.loading`), so that many requests at once do not
    fill the memory. 0: the handler holds few bytes or waits long, and takes a turn itself where it needs one."""


class Routes(list[ApiRoute]):
    """The routes of a module, in the order in which the document lists them."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def add(
        self, method: str, path: str, summary: str, responses: Mapping[int, tuple[str, Any]], **options: Any
    ) -> Callable[[RouteHandler], RouteHandler]:
        """A decorator for the handler of a route. The route gets the handler's name, unless `options` has one; `options` are the
        other fields of `ApiRoute`."""

        def add(handler: RouteHandler) -> RouteHandler:
            fields = {"name": handler.__name__.rstrip("_"), "tag": self._tag, **options}
            self.append(ApiRoute(method, path, handler=handler, summary=summary, responses=responses, **fields))
            return handler

        return add
