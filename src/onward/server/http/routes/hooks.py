"""Hooks: `POST /api/hooks/{name}`. The signature is the key."""

from __future__ import annotations

import asyncio
import inspect

from starlette.concurrency import run_in_threadpool

from onward.core.hook import Event, Hook
from onward.errors import NotFound
from onward.server.http import bodies
from onward.server.http.problem import Problem
from onward.server.http.route import ApiResponse, ApiRoute, RequestContext
from onward.server.schema import shapes


async def receive(asked: RequestContext) -> ApiResponse:
    """Check the signature over the bytes as they came, then do what the hook is for."""
    hook = asked.edge.hooks.get(asked.path["name"])
    if hook is None:
        raise NotFound(f"there is no hook {asked.path['name']!r:.80}; `@app.hook(NAME, secret=…)` makes one")
    edge = asked.edge
    headers = {name.lower(): value for name, value in asked.request.headers.items()}
    hook.check_head(headers)  # before a byte of the body is read
    data = await edge.lobby.read(asked.request, edge.body_limit)
    hook.event(headers, data, None, edge.now())  # before anything else looks at the bytes
    async with edge.room.working(len(data)):
        event = hook.event(headers, data, await bodies.apart(data, lambda: bodies.parse(data)), edge.now())
        await _do(hook, event)
    return ApiResponse({"id": event.id})


async def _do(hook: Hook, event: Event) -> None:
    try:
        async with asyncio.timeout(hook.timeout):
            if inspect.iscoroutinefunction(hook.function):
                await hook.function(event)
            else:
                await run_in_threadpool(hook.function, event)
    except TimeoutError:
        raise Problem(
            503,
            "hook_timeout",
            f"hook {hook.name!r} took longer than {hook.timeout:g} s; a task is the place for long work",
        ) from None


CALLS = [
    ApiRoute(
        "POST",
        "/api/hooks/{name}",
        "hook",
        receive,
        "A signed request from outside, for a hook of the app (`@app.hook`).",
        {200: ("It was taken.", shapes.Received)},
        errors=(401, 404, 408, 409, 410, 413, 415, 422, 429),
        open=True,
        tag="hooks",
    )
]
