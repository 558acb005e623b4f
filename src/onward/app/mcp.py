"""The part of an app that speaks MCP: as a server of the official SDK, and as a path of the HTTP server.

The SDK is an extra and slow to import: it is imported at the first use.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from onward.core.caller import ANYBODY, Caller
from onward.errors import UsageError

if TYPE_CHECKING:
    from onward.config import Settings
    from onward.core.clock import Clock
    from onward.engine.handlers import Handler
    from onward.service.service import Service
    from onward.store.port.core import Store

PATH = "/mcp"


class Mcp:
    """The methods of `Onward` for MCP."""

    service: Service
    store: Store
    _clock: Clock
    handlers: dict[str, Handler]
    settings: Settings
    _agents: dict[str, str]

    def mcp(self, *, expose: Collection[str] = (), local: Caller | None = ANYBODY, **options: Any) -> Any:
        """An MCP server (the official SDK's `MCPServer`) with all verbs as tools and the states of agents as resources; the handlers
        and agents that `expose` names are tools as well. `local` is the caller over stdio, where a client cannot show a key. You can
        add tools, prompts and resources of your own, as to any other server."""
        build = _sdk("onward.server.mcp.server").build
        about = {"handlers": self.handlers, "agents": self._agents or None, "version": _version()}
        feed = options.pop("feed", None)
        if feed is None:
            feed_class = _sdk("onward.server.live.feed").Feed
            feed = feed_class(self.store.tails, self._clock, streams=self.settings.streams, closing=asyncio.Event())
        return build(self.service, feed, expose=expose, local=local, **about, **options)

    def _mcp_route(self, edge: Any) -> Any:
        from starlette.routing import Route  # noqa: PLC0415 -- an extra

        return Route(PATH, endpoint=_LazyEndpoint(self, edge))


class _LazyEndpoint:
    """The endpoint of `/mcp`, which imports the SDK at its first request."""

    def __init__(self, app: Mcp, edge: Any) -> None:
        self._app, self._edge = app, edge
        self._endpoint: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._endpoint is None:
            try:
                module = await asyncio.to_thread(_sdk, "onward.server.mcp.http")
            except UsageError as error:
                from onward.server.http import problem  # noqa: PLC0415 -- an extra

                await problem.response(problem.Problem(501, "no_mcp", str(error)))(scope, receive, send)
                return
            if self._endpoint is None:
                server = self._app.mcp(local=None, feed=self._edge.feed, expose=self._app.settings.mcp_expose.split())
                self._endpoint = module.Endpoint(self._edge, server)
        await self._endpoint(scope, receive, send)


def _version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("onward")
    return ""


def _sdk(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[mcp]'") from None
