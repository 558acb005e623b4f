"""W9, the service: `POST /api/tasks` over real connections, beside an empty Starlette handler that does one INSERT into a table of
the same database. Both run on uvicorn with the same settings, each in a process of its own, and are asked in turn by the same
generator, so that whatever drifts on the machine drifts for both.

A request of ours is a task: checked, durable with its first record when it is answered (group commit, `synchronous=FULL` or
`fsync`), and the same task when it is sent again. The bare one writes its body into one row, one commit each.

`python -m bench.service onward URL` and `… bare URL` are the servers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bench.bare import SQLITE_PRAGMAS
from bench.measure import BARE, W9_POST, Figure, latency
from bench.peers import child
from bench.workloads import query
from onward import Context, Onward
from onward.server.http.uvicorn import Server

CONNECTIONS = 32
ROUNDS = 10
SECONDS = 1.0
POOL = 10
BODY = json.dumps({"task": "nothing", "input": {"service": "web", "number": 4711}}).encode()
TABLE = {
    "postgres": "CREATE TABLE bare_posts (id bigserial PRIMARY KEY, body bytea NOT NULL)",
    "sqlite": "CREATE TABLE bare_posts (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT",
}


def w9(store: str, url: str, quick: bool) -> list[Figure]:
    """Rounds of a second each, in turn; the medians."""
    rounds = 3 if quick else ROUNDS
    with ExitStack() as stack:
        servers = {role: stack.enter_context(child.Worker(role, url, module="bench.service")) for role in TABLES}
        pids = {role: server.pid for role, server in servers.items()}
        ports = {role: server.hear() for role, server in servers.items()}
        runs: dict[str, list[Round]] = {role: [] for role in ports}
        for port in ports.values():
            uvloop.run(_load(port, 0.3))  # connections, caches, prepared statements
        before = {role: query(url, f"SELECT count(*) FROM {TABLES[role]}") for role in ports}
        for _ in range(rounds):
            for role, port in ports.items():
                spent = _cpu(pids[role])
                runs[role].append(uvloop.run(_load(port, SECONDS)))
                runs[role][-1].cpu = _cpu(pids[role]) - spent
        for role in ports:
            written = query(url, f"SELECT count(*) FROM {TABLES[role]}") - before[role]
            assert written == sum(run.count for run in runs[role]), f"{role} answered more than it wrote"
    return [
        _figure(BARE, store, runs[BARE], "one INSERT of the body, one commit each"),
        _figure("onward", store, runs["onward"], f"ratio by round: {_ratios(runs)}"),
    ]


TABLES = {BARE: "bare_posts", "onward": "onward_tasks"}


def _figure(system: str, store: str, runs: list[Round], note: str) -> Figure:
    rate = statistics.median(run.count / run.seconds for run in runs)
    taken = [one for run in runs for one in run.taken]
    each = sum(run.cpu for run in runs) / len(taken) * 1e6
    said = f"{CONNECTIONS} connections, {latency(taken)}, {each:.0f} us of CPU each; {note}"
    return Figure(W9_POST, system, store, rate, "tasks/s" if system != BARE else "rows/s", said)


def _ratios(runs: dict[str, list[Round]]) -> str:
    each = [
        (ours.count / ours.seconds) / (bare.count / bare.seconds)
        for bare, ours in zip(runs[BARE], runs["onward"], strict=True)
    ]
    return f"{min(each):.2f} to {max(each):.2f}, median {statistics.median(each):.2f}"


def _cpu(pid: int) -> float:
    """Seconds of a core that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ── the generator: bytes that were made before, and as little else as there can be ───────────────────────────────────


class Round:
    """What came of one round."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.seconds = 0.0
        self.cpu = 0.0
        self.until = 0.0

    @property
    def count(self) -> int:
        return len(self.taken)


class _Asker(asyncio.Protocol):
    """One connection that asks, waits for the answer, and asks again."""

    keys = itertools.count()

    def __init__(self, run: Round, done: asyncio.Future[None]) -> None:
        self._run, self._done, self._rest = run, done, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        now = time.perf_counter()
        if now >= self._run.until:
            self._transport.close()
            self._done.set_result(None)
            return
        self._sent = now
        self._transport.write(_HEAD + b'"bench-%d"\r\n\r\n' % next(self.keys) + BODY)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return
        if not head.startswith(b"HTTP/1.1 202"):
            self._done.set_exception(RuntimeError(f"{head!r} {body!r}"))
            return
        self._rest = b""
        self._run.taken.append(time.perf_counter() - self._sent)
        self._ask()


_HEAD = (
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\nIdempotency-Key: "
    % len(BODY)
)


async def _load(port: int, seconds: float) -> Round:
    loop, run = asyncio.get_running_loop(), Round()
    _Asker.keys = itertools.count(time.time_ns())
    start = time.perf_counter()
    run.until = start + seconds
    ends: list[asyncio.Future[None]] = []
    for _ in range(CONNECTIONS):
        done = loop.create_future()
        ends.append(done)
        await loop.create_connection(lambda end=done: _Asker(run, end), "127.0.0.1", port)
    await asyncio.gather(*ends)
    run.seconds = time.perf_counter() - start
    return run


# ── the servers ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _serve(served: Any) -> None:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = Server(served, grace=1, ready=lambda: child.say(bound.getsockname()[1]))
    await server.serve([bound])


async def _onward(url: str) -> None:
    app = Onward(url, queue_limit=10_000_000)

    @app.task
    async def nothing(ctx: Context, service: str, number: int) -> None: ...

    async with app:
        await _serve(app.asgi(keyless=True))


async def _bare(url: str) -> None:
    insert = await (_postgres if url.startswith("postgres") else _sqlite)(url)

    async def post(request: Request) -> Response:
        await insert(await request.body())
        return JSONResponse({"state": "pending"}, 202)

    await _serve(Starlette(routes=[Route("/api/tasks", post, methods=["POST"])]))


async def _postgres(url: str) -> Any:
    pool = await asyncpg.create_pool(url, min_size=POOL, max_size=POOL)
    await pool.execute(TABLE["postgres"])

    async def insert(body: bytes) -> None:
        await pool.execute("INSERT INTO bare_posts (body) VALUES ($1)", body)

    return insert


async def _sqlite(url: str) -> Any:
    connection = apsw.Connection(str(Path(url.removeprefix("sqlite:///"))))
    connection.set_busy_timeout(5000)
    for pragma, value in SQLITE_PRAGMAS.items():
        connection.pragma(pragma, value)
    connection.execute(TABLE["sqlite"])

    async def insert(body: bytes) -> None:
        connection.execute("INSERT INTO bare_posts (body) VALUES (?)", (body,))

    return insert


if __name__ == "__main__":
    roles = {"onward": _onward, BARE: _bare}
    child.main({}, {role: lambda url, run=run: uvloop.run(run(url)) for role, run in roles.items()})
    sys.exit()
