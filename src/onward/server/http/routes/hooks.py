"""Hooks: `POST /api/hooks/{name}`. The signature of the request takes the place of a key."""

from __future__ import annotations

import asyncio
import inspect

from starlette.concurrency import run_in_threadpool

from onward.core.hook import Event, Hook
from onward.errors import NotFound
from onward.server.http import bodies
from onward.server.http.problem import Problem
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema import shapes

routes = Routes("hooks")


@routes.add(
    "POST",
    "/api/hooks/{name}",
    "A signed request from outside, for a hook of the app (`@app.hook`).",
    {200: ("The hook accepted it.", shapes.Received)},
    name="hook",
    errors=(401, 404, 408, 409, 410, 413, 415, 422, 429),
    open=True,
)
async def receive(context: RequestContext) -> ApiResponse:
    """Check the signature over the bytes as they came, then call the function of the hook."""
    hook = context.server.hooks.get(context.path["name"])
    if hook is None:
        raise NotFound(f"there is no hook {context.path['name']!r:.80}; `@app.hook(NAME, secret=…)` makes one")
    server = context.server
    headers = {name.lower(): value for name, value in context.request.headers.items()}
    hook.check_head(headers)  # before a byte of the body is read
    data = await server.unverified_body_limiter.read(context.request, server.body_limit)
    hook.event(headers, data, None, server.now())  # verify the signature before the bytes are parsed
    # after the signature: a sender without the secret cannot use up the quota of the hook
    server.service.tenant_quotas.process.take_event(hook.name, server.service.tenant_quotas.defaults.requests)
    async with server.body_limiter.processing(len(data)):
        event = hook.event(headers, data, await bodies.run_off_loop(data, lambda: bodies.parse(data)), server.now())
        await _run(hook, event)
    return ApiResponse({"id": event.id})


async def _run(hook: Hook, event: Event) -> None:
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
            f"hook {hook.name!r} took longer than {hook.timeout:g} s; submit a task for long work",
        ) from None
