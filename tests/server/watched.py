"""A server, a worker and agents in one process that measures itself: `GET /watch` returns the longest pause of its loop and its
memory.

`python -m tests.server.watched DATABASE TOOLS [FAULT]` prints its address and a key. TOOLS is the address of a hostile tool
server.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import httpx2
import psutil
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from onward import Onward
from onward.agent import prices
from onward.agent.mcp import McpServer
from onward.agent.model import Reply, ToolCall, Usage
from onward.core import wire
from onward.core.caller import SCOPES
from onward.server.http import bodies
from onward.server.http.uvicorn import Server

KINDS = (
    "plain", "a pattern", "a pattern of the output", "a bomb", "endless", "an endless event", "many values", "digits", "garbage",
    "elsewhere", "an error", "many parts", "deep", "broken", "endless pages", "many tools", "a large schema", "a deep schema",
)  # fmt: skip
TICK = 0.005


class Caller:
    """A model that calls the only tool once, and then ends."""

    name, prices = "caller", None

    async def ask(self, request: Any, emit: Any) -> Reply:
        if request.conversation[-1]["role"] == "tool" or not request.tools:
            return Reply("done", (), Usage(1, 1, None), "stop", "caller")
        text = json.dumps({"text": "a" * 60 + "!"})
        return Reply("", (ToolCall("c1", "evil_work", text),), Usage(1, 1, None), "tool_calls", "caller")

    async def close(self) -> None:
        """Nothing is open."""


def build(db: str, tools: str) -> Onward:
    app = Onward(db)

    @app.task
    async def echo(ctx: Any, value: Any = None) -> Any:
        return value

    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    @app.hook("outside", secret="s" * 20, scheme="github")
    async def outside(event: Any) -> None:
        raise AssertionError(event)

    for number, kind in enumerate(KINDS):
        server = McpServer("evil", f"{tools}/{kind.replace(' ', '%20')}", risk="read", timeout=20)
        app.agent(f"victim{number}", model=Caller(), tools=[server])
    return app


class Watch:
    """The longest pause of the loop, by the wall clock and by the CPU time of its thread; and the memory."""

    def __init__(self) -> None:
        self.pause = self.busy = 0.0
        self.idle = psutil.Process().memory_info().rss
        self.at, self.where = time.monotonic(), ["", ""]
        self.collecting = self.collected = 0.0
        """When the present garbage collection began, and the seconds of the longest one."""
        gc.callbacks.append(self._on_collection)
        threading.Thread(target=self._look, args=[threading.get_ident()], daemon=True).start()

    def _look(self, loop: int) -> None:
        """Where the loop is while it is late."""
        while True:
            time.sleep(TICK)
            if time.monotonic() - self.at > 10 * TICK:
                self.where[1] = "".join(traceback.format_stack(sys._current_frames()[loop], 12)[-9:])

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self.collecting = time.thread_time()
        else:
            self.collected = max(self.collected, time.thread_time() - self.collecting)

    async def forever(self) -> None:
        while True:
            at, worked = time.monotonic(), time.thread_time()
            self.at, self.where[1] = at, ""
            await asyncio.sleep(TICK)
            self.pause = max(self.pause, time.monotonic() - at - TICK)
            if time.thread_time() - worked > self.busy:
                self.busy, self.where[0] = time.thread_time() - worked, self.where[1]

    async def report(self, _request: Request) -> JSONResponse:
        values = {
            "pause": self.pause,
            "busy": self.busy,
            "collection": self.collected,
            "grown": peak_memory() - self.idle,
        }
        return JSONResponse(values | {"where": self.where[0]})


def peak_memory() -> int:
    """The most memory that this process had, in bytes. (`ru_maxrss` also counts the process that started this one.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def plant() -> None:
    """The fault that was here: doubled names are looked for in quadratic time, in the event loop."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(next(name for name in names if names.count(name) > 1))
        return values

    wire._STRICT = json.JSONDecoder(object_pairs_hook=once)
    bodies.INLINE_BYTES = 1 << 40  # type: ignore[misc]
    wire.oversized = lambda data, opened=None: None  # type: ignore[assignment]


async def main(db: str, tools: str, *faults: str) -> None:
    if faults:
        plant()
    app = build(db, tools)
    async with app, app.worker():
        token = (await app.keys.create("fuzz", SCOPES)).token
        reader = (await app.keys.create("reader", ["read"])).token
        served = app._make_asgi(hosts=None, keyless=False)
        # imports of the first request of a kind are no pause of a request
        warm = McpServer("warm", f"{tools}/plain", timeout=20)
        await warm.manifest()
        await warm.close()
        prices.cost(Caller(), Usage(1, 1, None))  # type: ignore[arg-type]
        await (await app.submit("victim0", "work")).result(60)
        transport = httpx2.ASGITransport(app=served)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.post("/mcp", headers={"Authorization": f"Bearer {token}"}, json={})
        watch = Watch()
        served.router.routes.insert(0, Route("/watch", watch.report))
        with socket.socket(proto=socket.IPPROTO_TCP) as bound:
            bound.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{bound.getsockname()[1]}"
            server = Server(served, grace=1, ready=lambda: print("ready", address, token, reader, flush=True))
            watching = asyncio.ensure_future(watch.forever())
            await server.serve([bound])
            watching.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
