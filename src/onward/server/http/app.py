"""HTTP: the table of calls as an ASGI app (Starlette).

    request ─► host and origin ─► who asks ─► query and body in their shapes ─► the call ─► JSON, or a problem

`serve.py` runs it with uvicorn; it can be mounted in an ASGI app of your own as well, and then `async with app:` belongs into
that app's lifespan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, get_origin

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from onward.core import wire
from onward.core.caller import Caller
from onward.core.clock import Clock
from onward.core.hook import Hook
from onward.errors import OnwardError
from onward.server.access import auth
from onward.server.access.service import AuthorizedService
from onward.server.http import bodies, console, problem
from onward.server.http.metrics import Metrics
from onward.server.http.problem import Problem
from onward.server.http.route import ApiRoute, RequestContext, Shape
from onward.server.http.routes import approvals as people
from onward.server.http.routes import bulk as many
from onward.server.http.routes import cluster as place
from onward.server.http.routes import hooks, keys, subscriptions, tasks
from onward.server.http.routes import introspection as facts
from onward.server.http.routes import streams as live
from onward.server.live.feed import Feed
from onward.server.live.websocket import Sockets
from onward.server.schema import openapi
from onward.service.service import Service
from onward.store.port.follow import Tails
from onward.telemetry import OTHER, counters

log = logging.getLogger("onward.http")

CALLS: Sequence[ApiRoute] = (
    *many.CALLS,
    *tasks.CALLS,
    *facts.CALLS,
    *live.CALLS,
    *people.CALLS,
    *subscriptions.CALLS,
    *place.CALLS,
    *keys.CALLS,
    *hooks.CALLS,
)


NOT_SAID = "this server is part of another one, which has not allowed that either: `app.asgi(keyless=True)` does"


class Gate(Protocol):
    """Finds out who asks."""

    async def caller(self, authorization: str | None, outside: str | None = None) -> Caller:
        """Raises Unauthorized. `outside` says why the request does not come from this machine."""
        ...

    async def still(self, caller: Caller) -> bool:
        """Whether somebody who was let in still would be: for what stays open, to ask every few seconds."""
        ...


class Edge:
    """What all requests of one server have in common."""

    def __init__(
        self,
        service: Service,
        gate: Gate,
        followed: Tails,
        clock: Clock,
        *,
        streams: int,
        version: str,
        body_limit: int,
        now: Callable[[], float],
        settings: Mapping[str, Any] | None = None,
        hosts: frozenset[str] | None = None,
        origins: frozenset[str] = frozenset(),
        hooks: Mapping[str, Hook] | None = None,
        keyless: bool = False,
    ) -> None:
        self.service, self.gate, self.version, self.body_limit, self.now = service, gate, version, body_limit, now
        self.settings = {} if settings is None else settings
        """Without what is secret in them."""
        self.hosts, self.origins, self.hooks = hosts, origins, {} if hooks is None else hooks
        self._keyless = keyless
        """Whether programs on this machine are answered while there is no key."""
        self.metrics: Metrics | None = None
        """Made when somebody asks for the first time: before that nothing is counted."""
        self.room = bodies.Room(max(bodies.ARRIVING, body_limit), max(bodies.WORKING, body_limit))
        self.lobby = bodies.Room(max(bodies.STRANGE, body_limit), max(bodies.WORKING, body_limit))
        """For bodies of callers who are known, and for those that tell only by their bytes who sent them."""
        self.closing = asyncio.Event()
        """Set when the server stops: what would go on for ever ends."""
        self.feed = Feed(followed, clock, streams=streams, closing=self.closing)

    async def caller(self, connection: HTTPConnection, authorization: str | None) -> Caller:
        """The caller that comes over this connection and shows this. Raises Unauthorized."""
        if authorization is not None:
            return await self.gate.caller(authorization)
        outside = auth.outside(connection) if self._keyless else NOT_SAID
        return await self.gate.caller(None) if outside is None else await self.gate.caller(None, outside)

    async def door(self, connection: HTTPConnection, authorization: str | None) -> AuthorizedService:
        """The door for this caller. Raises Unauthorized."""
        return AuthorizedService(self.service, await self.caller(connection, authorization))

    def check_origin(self, host: str, origin: str | None) -> None:
        """Refuse a page of somebody else that speaks through a browser of ours (DNS rebinding, forged requests)."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if self.hosts is not None and name.lower() not in self.hosts:
            raise Problem(421, "wrong_host", f"this server is not {name!r:.80}; name its hosts with ONWARD_HOSTS")
        if origin is not None and origin not in self.origins and origin.partition("://")[2] != host:
            raise Problem(
                403, "foreign_origin", f"a page of {origin!r:.80} may not ask here; allow it with ONWARD_ORIGINS"
            )


class _Anything(Convertor[str]):
    """A name in a path, with whatever in it: slashes, and line breaks, which Starlette's own does not take."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _Anything())


def asgi(edge: Edge, calls: Sequence[ApiRoute] = CALLS, more: Sequence[BaseRoute] = ()) -> Starlette:
    """The app of all calls, and of what is no row of the table."""
    document = openapi.document(calls, edge.version)

    async def described(_request: Request) -> Response:
        return JSONResponse(document)

    # a name may have slashes in it; an id has none
    routes = [
        Route(path.replace("{name}", "{name:anything}"), endpoint=_Place(edge, rows))
        for path, rows in _by_path(calls).items()
    ]
    routes += [Route("/openapi.json", endpoint=described)]
    sockets = [WebSocketRoute("/api/tasks/{id}/ws", Sockets(edge).__call__)]
    app = Starlette(routes=[*routes, *sockets, *console.routes(edge.check_origin), *more], exception_handlers=_HANDLERS)
    app.state.edge = edge
    return app


def _by_path(calls: Sequence[ApiRoute]) -> dict[str, dict[str, ApiRoute]]:
    paths: dict[str, dict[str, ApiRoute]] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method] = call
    return paths


class _Place:
    """One path: the calls of its methods. A class, so that Starlette hands over the bare ASGI call."""

    def __init__(self, edge: Edge, calls: dict[str, ApiRoute]) -> None:
        self._edge, self._calls, self._path = edge, calls, next(iter(calls.values())).path
        self._allow = ", ".join(sorted({*calls, *(["HEAD"] if "GET" in calls else [])}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, began = Request(scope, receive), asyncio.get_running_loop().time()
        try:
            response = await self._answer(request)
        except OnwardError as error:
            response = problem.response(error)
        except ClientDisconnect:
            return
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            response = problem.response(Problem(500, "internal", "the server made a mistake; its log says more"))
        try:
            await response(scope, receive, send)
        finally:
            took = asyncio.get_running_loop().time() - began
            counters.request(self._path, request.method, response.status_code, took)

    async def _answer(self, request: Request) -> Response:
        call = self._calls.get("GET" if request.method == "HEAD" else request.method)
        if call is None:
            raise Problem(
                405, "wrong_method", f"{request.method:.20} is not for this; {self._allow} is", {"Allow": self._allow}
            )
        if any(not value or "\0" in value for value in request.path_params.values()):
            raise _nothing_at(request)  # no database has a text with that in it
        edge = self._edge
        edge.check_origin(request.headers.get("host", ""), request.headers.get("origin"))
        door = (
            AuthorizedService(edge.service, Caller(scopes=frozenset()))
            if call.open
            else await edge.door(request, request.headers.get("authorization"))
        )
        if call.needs:
            door.need_any(call.needs)
        query = None if call.query is None else bodies.shaped(call.query, _query(request, call.query), "the query")
        if call.body is None:
            answer = await call.does(RequestContext(door, request.path_params, query, None, request, edge))
        else:
            data = await edge.room.read(request, edge.body_limit)
            async with edge.room.working(len(data)):
                body = await bodies.body(data, call.body, request.headers.get("content-type", ""))
                answer = await call.does(RequestContext(door, request.path_params, query, body, request, edge))
        if answer.response is not None:
            return answer.response
        return Response(
            wire.encode(answer.value, "the answer", most=_ANY), answer.status, answer.headers, "application/json"
        )


_ANY = 1 << 40
"""What is in the store may be shown, however much it is."""


def _query(request: Request, shape: type[Shape]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        field = shape.model_fields.get(name)
        if field is not None and get_origin(field.annotation) is list:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise Problem(422, "invalid_request", "the query: a name comes twice")
        else:
            found[name] = value
    return found


def _nothing_at(request: Request) -> Problem:
    return Problem(
        404, "no_such_path", f"there is nothing at {request.url.path!r:.200}; /openapi.json lists what there is"
    )


async def _not_found(request: Request, _error: Exception) -> Response:
    counters.request(OTHER, request.method, 404, 0.0)
    return problem.response(_nothing_at(request))


_HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {404: _not_found}
