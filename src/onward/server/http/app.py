"""The HTTP API: the route table as an ASGI app (Starlette).

    request ─► host and origin ─► authentication ─► query and body, validated ─► the handler ─► JSON, or a problem

`http/uvicorn.py` runs it with uvicorn. You can also mount it in an ASGI app of your own; then enter `async with app:` in
the lifespan of that app.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, get_origin

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from onward.core import wire
from onward.core.caller import Caller
from onward.errors import OnwardError
from onward.server.access.service import AuthorizedService
from onward.server.http import bodies, console, problem, ratelimit
from onward.server.http.problem import Problem
from onward.server.http.route import ApiRoute, RequestContext
from onward.server.http.routes import (
    approvals,
    bulk,
    cluster,
    hooks,
    intakes,
    introspection,
    keys,
    locks,
    quotas,
    sessions,
    streams,
    subscriptions,
    tasks,
)
from onward.server.http.sending import BoundedSend, body_response
from onward.server.http.state import ServerState
from onward.server.live.websocket import Sockets
from onward.server.schema import openapi
from onward.server.schema.shape import Shape
from onward.telemetry import OTHER, counters

log = logging.getLogger("onward.http")

ROUTES: Sequence[ApiRoute] = (
    *bulk.routes,
    *tasks.routes,
    *introspection.routes,
    *streams.routes,
    *approvals.routes,
    *subscriptions.routes,
    *intakes.routes,
    *cluster.routes,
    *keys.routes,
    *sessions.routes,
    *quotas.routes,
    *locks.routes,
    *hooks.routes,
)


BY_COOKIE = "onward.by_cookie"
"""The key in the ASGI scope that says whether a session made the request. A cache may keep responses to cookies, unlike those to keys."""


class _AnyPathConvertor(Convertor[str]):
    """A path parameter that takes any character, slashes and line breaks too; Starlette's `path` convertor takes no line
    breaks."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _AnyPathConvertor())


def asgi(server: ServerState, api_routes: Sequence[ApiRoute] = ROUTES, more: Sequence[BaseRoute] = ()) -> Starlette:
    """The ASGI app of all routes, of the WebSocket, of the console, and of `more`."""

    @functools.cache
    def document() -> dict[str, Any]:
        return openapi.document(api_routes, server.version)

    async def openapi_json(_request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(document))  # the first time takes 200 ms, which few servers need

    # a name may contain slashes; an id has none
    routes = [
        Route(path.replace("{name}", "{name:anything}"), endpoint=_Endpoint(server, by_method))
        for path, by_method in _by_path(api_routes).items()
    ]
    routes += [Route("/openapi.json", endpoint=openapi_json)]
    sockets = [WebSocketRoute("/api/tasks/{id}/ws", Sockets(server).__call__)]
    app = Starlette(
        routes=[*routes, *sockets, *console.routes(server.check_origin), *more],
        exception_handlers=_HANDLERS,
        middleware=[Middleware(BoundedSend)],
    )
    app.state.server = server
    return app


def _by_path(routes: Sequence[ApiRoute]) -> dict[str, dict[str, ApiRoute]]:
    paths: dict[str, dict[str, ApiRoute]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = route
    return paths


class _Endpoint:
    """One path with the routes of its methods. It is a class, so Starlette calls it as a plain ASGI app."""

    def __init__(self, server: ServerState, routes: dict[str, ApiRoute]) -> None:
        self._server, self._routes, self._path = server, routes, next(iter(routes.values())).path
        self._allow = ", ".join(sorted({*routes, *(["HEAD"] if "GET" in routes else [])}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, began = Request(scope, receive), asyncio.get_running_loop().time()
        try:
            response = await self._respond(request)
        except OnwardError as error:
            await self._server.hold_refusal(error)
            response = problem.response(error)
        except ClientDisconnect:
            return
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            response = problem.response(
                Problem(500, "internal", "an internal error of the server; its log has the details")
            )
        response.headers.update(ratelimit.headers(scope.get(ratelimit.RATES, ())))
        if scope.get(BY_COOKIE):
            response.headers.setdefault("Cache-Control", "no-store")
        try:
            await response(scope, receive, send)
        finally:
            duration_s = asyncio.get_running_loop().time() - began
            counters.request(self._path, request.method, response.status_code, duration_s)

    async def _respond(self, request: Request) -> Response:
        route = self._routes.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            raise Problem(
                405,
                "wrong_method",
                f"the method {request.method:.20} is not allowed here; use {self._allow}",
                {"Allow": self._allow},
            )
        if any(not value or "\0" in value for value in request.path_params.values()):
            raise _no_such_path(request)  # no database stores a string with NUL
        server = self._server
        server.check_origin(request.headers.get("host", ""), request.headers.get("origin"))
        service = (
            AuthorizedService(server.service, Caller(scopes=frozenset()))
            if route.open
            else await server.authorized_service(request, request.headers.get("authorization"))
        )
        request.scope[BY_COOKIE] = service.caller.session is not None
        request.scope[ratelimit.RATES] = await service.admit()
        if route.scopes:
            service.need_any(route.scopes)
        query = None if route.query is None else bodies.validate(route.query, _query(request, route.query), "the query")
        turn = server.service.tenant_quotas.process.request_turn
        if route.body is None:
            async with turn(service.caller):
                return await self._make(route, service, query, None, request)
        data = await server.body_limiter.read(request, server.body_limit, service.caller.tenant)
        service.count_body(len(data))
        async with turn(service.caller), server.body_limiter.processing(len(data)):
            body = await bodies.parse_body(data, route.body, request.headers.get("content-type", ""))
            return await self._make(route, service, query, body, request)

    async def _make(
        self, route: ApiRoute, service: AuthorizedService, query: Any, body: Any, request: Request
    ) -> Response:
        """Call the handler and make the response."""
        async with contextlib.AsyncExitStack() as until_made:
            if route.loads and not route.open:
                await until_made.enter_async_context(
                    self._server.service.tenant_quotas.process.loading_turn(service.caller)
                )
                await until_made.enter_async_context(self._server.loading.hold(route.loads))
            context = RequestContext(service, request.path_params, query, body, request, self._server, until_made)
            api_response = await route.handler(context)
            if api_response.response is not None:
                return api_response.response
            data = await _encode(api_response.value)
            service.count_body(len(data))
            return await body_response(data, api_response.status, api_response.headers, "application/json")


_NO_LIMIT = 1 << 40
"""A response may be as large as the values in the store."""

_SLICE_ITEMS = 20
"""Items of a list that are encoded at once; other requests go on in between."""


async def _encode(value: Any) -> bytes:
    """The JSON of a response; a long list in it in slices."""
    if not isinstance(value, dict) or not any(isinstance(v, list) and len(v) > _SLICE_ITEMS for v in value.values()):
        return wire.encode(value, "the answer", most=_NO_LIMIT)
    fields = []
    for name, field in value.items():
        data = (
            await _encode_list(field) if isinstance(field, list) else wire.encode(field, "the answer", most=_NO_LIMIT)
        )
        fields.append(b"%s:%s" % (wire.encode(name), data))
    return b"{%s}" % b",".join(fields)


async def _encode_list(items: list[Any]) -> bytes:
    slices = []
    for begin in range(0, len(items), _SLICE_ITEMS):
        slices.append(wire.encode(items[begin : begin + _SLICE_ITEMS], "the answer", most=_NO_LIMIT)[1:-1])
        await asyncio.sleep(0)
    return b"[%s]" % b",".join(slices)


def _query(request: Request, shape: type[Shape]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        field = shape.model_fields.get(name)
        if field is not None and get_origin(field.annotation) is list:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Problem(422, "invalid_request", "the query: a parameter comes twice")
        else:
            values[name] = value
    return values


def _no_such_path(request: Request) -> Problem:
    return Problem(404, "no_such_path", f"there is no path {request.url.path!r:.200}; /openapi.json lists all paths")


async def _not_found(request: Request, _error: Exception) -> Response:
    counters.request(OTHER, request.method, 404, 0.0)
    return problem.response(_no_such_path(request))


_HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {404: _not_found}
