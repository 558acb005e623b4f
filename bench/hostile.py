"""What one tenant costs another: how long the submit and the pick-up of a tenant's tasks take alone, and beside a hostile tenant.

    make bench BENCH=hostile
    python -m bench hostile --store postgres --rounds 5

A round has a database, a server and a worker of its own. The honest tenant submits a task every PERIOD_S; first alone, then while the
hostile one does all that its keys allow, from many connections, and heeds no `Retry-After`: small tasks in ever new groups and queues,
tasks that take a minute, large bodies, the longest lists, streams, MCP, calls that are refused and audited, priorities that it may not
give. It also has a backlog of tasks. The table shows the median of the rounds' p95, and their ratio; the aim is 3 times at most.
`--without` switches a protection off, to see what it is worth.

`python -m bench.hostile server URL …`, `… worker URL …`, `… backlog URL …` and `… hostile URL PORT TOKEN …` are the other processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import uvloop

from bench.measure import percentile
from bench.peers import child
from onward import Context, Onward
from onward.core.caller import SCOPES, Caller
from onward.server.access.service import AuthorizedService
from onward.server.http.uvicorn import Server
from onward.service import submission
from onward.service.process_use import ProcessUse
from onward.service.submission import SubmitRequest

AIM = 3.0
HONEST, HOSTILE = "good", "evil"
HOSTILE_KEYS = 4
BACKLOG = 5_000
PERIOD_S = 0.025
WARM_UP_S = 2.0
SLOTS = 20
WORK_S, LONG_S = 0.05, 60.0
LARGE_BYTES = 900_000
NO_QUOTAS = {
    f"quota_{name}": 0
    for name in ("requests", "key_requests", "streams", "sessions", "queue_share", "tasks", "refused")
}
PERCENT = 95

QUOTAS, QUEUE_TURNS, SERVER_TURNS = "quotas", "queue-turns", "server-turns"
PROTECTIONS = (QUOTAS, QUEUE_TURNS, SERVER_TURNS)
"""What `--without` switches off: the quotas of tenants; their turns in a queue, so that all tasks stand in one line; their turns at the
database and the event loop of the server."""


@dataclasses.dataclass(frozen=True)
class Latency:
    """Seconds of the honest tenant's tasks: until the submit is answered, and until the handler starts."""

    submit: float
    pickup: float


@dataclasses.dataclass(frozen=True)
class Round:
    """One round: p95 alone and beside the hostile tenant, and the responses that the hostile tenant got in a second, by status."""

    alone: Latency
    beside: Latency
    statuses: dict[str, float]


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench hostile", description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=("postgres", "sqlite"), nargs="+", default=["postgres", "sqlite"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each store")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of each half of a round")
    parser.add_argument("--without", nargs="+", choices=PROTECTIONS, default=[], help="switch these protections off")
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), default=TOGETHER, help="these attacks alone")
    return parser.parse_args(words)


def run(options: argparse.Namespace, empty: Callable[[str], str]) -> int:
    """Measure the stores in turns; 1 when the aim is missed."""
    rounds: dict[str, list[Round]] = {store: [] for store in options.store}
    for _ in range(options.rounds):
        for store in options.store:
            result = measure(empty(store), options.seconds, attacks=options.only, without=options.without)
            print(f"{store:10} {_row([result])}   {result.statuses}", file=sys.stderr, flush=True)
            rounds[store].append(result)
    print(f"{'':10} {'submit p95':>24} {'pick-up p95':>24}   alone, beside, ratio; medians of {options.rounds} rounds")
    for store in options.store:
        print(f"{store:10} {_row(rounds[store])}")
    return int(any(max(ratios(rounds[store])) > AIM for store in options.store))


def ratios(rounds: list[Round]) -> tuple[float, float]:
    """How many times longer submit and pick-up take beside the hostile tenant: the ratios of the medians."""
    submit, pickup = _medians(rounds)
    return submit[1] / submit[0], pickup[1] / pickup[0]


def _medians(rounds: list[Round]) -> list[tuple[float, float]]:
    median = statistics.median
    return [
        (median(getattr(r.alone, name) for r in rounds), median(getattr(r.beside, name) for r in rounds))
        for name in ("submit", "pickup")
    ]


def _row(rounds: list[Round]) -> str:
    return " ".join(
        f"{alone * 1e3:6.1f} {beside * 1e3:7.1f} ms {beside / alone:5.2f}" for alone, beside in _medians(rounds)
    )


def measure(url: str, seconds: float, *, attacks: Sequence[str] = (), without: Sequence[str] = ()) -> Round:
    """One round in an empty database; with the usual attacks if none is named. `without` are protections that are switched off, in the processes
    of the round: the one that calls this keeps them."""
    return uvloop.run(_round(url, seconds, attacks or TOGETHER, without))


async def _round(url: str, seconds: float, attacks: Sequence[str], without: Sequence[str]) -> Round:
    async with make_app(url, without) as app:
        honest = (await app.keys.create("honest", list(SCOPES), tenant=HONEST)).token
        keys = [
            (await app.keys.create(f"hostile {n}", list(SCOPES), tenant=HOSTILE)).token for n in range(HOSTILE_KEYS)
        ]
        with ExitStack() as stack:
            start = lambda role, *rest: stack.enter_context(child.Worker(role, url, *rest, module="bench.hostile"))  # noqa: E731
            servers = start("server", *without), start("worker", *without)
            port, _ = [await asyncio.to_thread(server.hear) for server in servers]
            attacker = start("hostile", port, ",".join(attacks), *keys)
            await asyncio.to_thread(attacker.hear)
            await (await Connection.open(port, honest)).request("POST", "/mcp", _BEGIN_MCP, _MCP)  # imports the MCP SDK
            await _submit_often(port, honest, WARM_UP_S / 2)
            alone = await _latency(app, await _submit_often(port, honest, seconds))
            await asyncio.to_thread(start("backlog", *without).hear)
            attacker.tell("begin")
            await asyncio.sleep(WARM_UP_S)
            beside = await _submit_often(port, honest, seconds)
            attacker.tell("end")
            statuses = await asyncio.to_thread(attacker.hear)
            return Round(alone, await _latency(app, beside), statuses)


async def _fill(app: Onward) -> None:
    hostile = AuthorizedService(app.service, Caller(HOSTILE, frozenset(SCOPES), "backlog", "backlog"))
    for begin in range(0, BACKLOG, 500):
        await hostile.submit([SubmitRequest("work", WORK_S, group=f"g{begin + n}") for n in range(500)])


async def _submit_often(port: int, token: str, seconds: float) -> list[tuple[str, float, float]]:
    """Submit a task every PERIOD_S, also while the responses to others are not there: the id, the time, and the seconds of each."""
    idle: list[Connection] = []
    submitted: list[tuple[str, float, float]] = []

    async def submit() -> None:
        connection = idle.pop() if idle else await Connection.open(port, token)
        began, clock = time.time(), time.perf_counter()
        status, body = await connection.request("POST", "/api/tasks", {"task": "start_time"})
        took = time.perf_counter() - clock
        assert status == 202, (status, body)
        idle.append(connection)
        submitted.append((json.loads(body)["task_id"], began, took))

    loop = asyncio.get_running_loop()
    begin, requests = loop.time(), []
    for number in range(int(seconds / PERIOD_S)):
        await asyncio.sleep(max(0.0, begin + number * PERIOD_S - loop.time()))
        requests.append(asyncio.create_task(submit()))
    await asyncio.gather(*requests)
    for connection in idle:
        connection.close()
    return submitted


async def _latency(app: Onward, submitted: list[tuple[str, float, float]]) -> Latency:
    started = [(await app.service.wait(task_id, 120)).result - began for task_id, began, _ in submitted]
    return Latency(percentile([took for _, _, took in submitted], PERCENT), percentile(started, PERCENT))


# ── the hostile tenant ───────────────────────────────────────────────────────────────────────────────────────────────


class Connection:
    """A connection that stays open; requests of one key."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader, self._writer, self._token = reader, writer, token
        self.status, self.headers = 0, b""
        self.seen: Callable[[int], None] = lambda _status: None

    @classmethod
    async def open(cls, port: int, token: str) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22), token)

    async def request(self, method: str, path: str, body: Any = None, headers: str = "") -> tuple[int, bytes]:
        """The status and the body of a response."""
        await self.send(method, path, body, headers)
        return self.status, b"".join([part async for part in self.parts()])

    async def send(self, method: str, path: str, body: Any = None, headers: str = "") -> None:
        """Send a request, and read the head of the response."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n{headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        await self._writer.drain()
        self.headers = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        self.status = int(self.headers.split(b" ", 2)[1])
        self.seen(self.status)

    async def parts(self) -> Any:
        """The body of the response, as it arrives."""
        if b"transfer-encoding: chunked" not in self.headers:
            yield await self._reader.readexactly(int(self.headers.partition(b"content-length: ")[2].split(b"\r\n")[0]))
            return
        while size := int((await self._reader.readuntil(b"\r\n")).strip(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    def header(self, name: bytes) -> str:
        return self.headers.partition(name + b": ")[2].split(b"\r\n")[0].decode()

    def close(self) -> None:
        self._writer.close()


_numbers = itertools.count()
_LARGE = json.dumps({"task": "work", "input": {"seconds": 0.0, "more": "x" * LARGE_BYTES}}).encode()
_MCP = "Accept: application/json, text/event-stream\r\n"
_BEGIN_MCP = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip


async def _small(connection: Connection) -> None:
    number = next(_numbers)
    body = {"task": "work", "input": WORK_S, "group": f"g{number}", "queue": f"q{number % 10}" if number % 3 else None}
    await connection.request("POST", "/api/tasks", {name: value for name, value in body.items() if value is not None})


async def _long(connection: Connection) -> None:
    await connection.request("POST", "/api/tasks", {"task": "work", "input": LONG_S, "group": f"g{next(_numbers)}"})


async def _large(connection: Connection) -> None:
    await connection.request("POST", "/api/tasks", _LARGE)


async def _list(connection: Connection) -> None:
    await connection.request("GET", "/api/tasks?limit=1000")


async def _search(connection: Connection) -> None:
    """A short response that the database works long for: no input has this word."""
    await connection.request("GET", f"/api/tasks?limit=1&q=nowhere{next(_numbers)}")


async def _asks(connection: Connection) -> None:
    for path in ("/api/approvals", "/api/questions", "/api/quotas", "/api/audit?limit=1000", "/api/usage?by=model"):
        await connection.request("GET", path)


async def _stream(connection: Connection) -> None:
    await connection.send("GET", "/api/progress?all=true", headers="Accept: text/event-stream\r\n")
    async for _ in connection.parts():
        pass


async def _mcp(connection: Connection) -> None:
    status, _ = await connection.request("POST", "/mcp", _BEGIN_MCP, _MCP)
    if status == 200:
        headers = f"{_MCP}mcp-session-id: {connection.header(b'mcp-session-id')}\r\n"
        submit = {"name": "submit", "arguments": {"task": "work", "input": WORK_S}}
        for number in range(10):
            for method, params in (("tools/call", submit), ("tools/list", {})):
                body = {"jsonrpc": "2.0", "id": 2 + number, "method": method, "params": params}
                await connection.request("POST", "/mcp", body, headers)


async def _refused(connection: Connection) -> None:
    status, body = await connection.request("POST", "/api/tasks", {"task": "work", "input": 0.0})
    if status == 202:
        task_id = json.loads(body)["task_id"]
        for verb in ("cancel", "resume", "pause", "cancel") * 10:
            await connection.request("POST", f"/api/tasks/{task_id}/{verb}")


async def _priority(connection: Connection) -> None:
    await connection.request("POST", "/api/tasks", {"task": "work", "input": WORK_S, "priority": 5})


ATTACKS: dict[str, tuple[int, Callable[[Connection], Awaitable[None]]]] = {
    "small": (10, _small),
    "long": (4, _long),
    "large": (4, _large),
    "list": (4, _list),
    "search": (40, _search),
    "asks": (2, _asks),
    "stream": (30, _stream),
    "mcp": (4, _mcp),
    "refused": (2, _refused),
    "priority": (2, _priority),
}
"""Each with the number of its connections."""

TOGETHER = [name for name in ATTACKS if name != "search"]
"""The attacks of a round, unless others are named. Searches use processor time of the database, so beside them the ratio depends on how many
cores it has."""


async def _attack(port: int, attacks: list[str], keys: list[str]) -> None:
    counts: Counter[str] = Counter()
    tokens = itertools.cycle(keys)

    async def repeat(name: str, token: str) -> None:
        attack = ATTACKS[name][1]
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                connection = await Connection.open(port, token)
                connection.seen = lambda status: counts.update([f"{name} {status}"])
                try:
                    while True:
                        await attack(connection)
                finally:
                    connection.close()
            await asyncio.sleep(0.01)

    child.say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    running = [asyncio.create_task(repeat(name, next(tokens))) for name in attacks for _ in range(ATTACKS[name][0])]
    await asyncio.to_thread(sys.stdin.readline)
    took = time.monotonic() - began
    child.say({status: round(count / took, 1) for status, count in sorted(counts.items())})
    for task in running:
        task.cancel()


# ── the server and the worker ────────────────────────────────────────────────────────────────────────────────────────


def make_app(url: str, without: Sequence[str]) -> Onward:
    app = Onward(url, **(NO_QUOTAS if QUOTAS in without else {}))

    @app.task
    async def start_time(ctx: Context) -> float:
        return time.time()

    @app.task
    async def work(ctx: Context, seconds: float, more: str = "") -> None:
        await ctx.step(lambda: asyncio.sleep(seconds), name="work")

    return app


def switch_off(without: Sequence[str]) -> None:
    """Switch the turns that are named off in this process."""
    if QUEUE_TURNS in without:
        submission.turn_group = lambda _tenant, _group: "all"
    if SERVER_TURNS in without:
        ProcessUse._turn = lambda _self, _tenant, _kind, _max_s=None: contextlib.nullcontext()  # type: ignore[assignment, method-assign]


async def _server(url: str, without: Sequence[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        async with make_app(url, without) as app:
            await Server(app.asgi(), grace=1, ready=lambda: child.say(bound.getsockname()[1])).serve([bound])


async def _worker(url: str, without: Sequence[str]) -> None:
    app = make_app(url, without)
    async with app, app.worker(slots=SLOTS):
        child.say("ready")
        await asyncio.to_thread(sys.stdin.read)


async def _backlog(url: str, without: Sequence[str]) -> None:
    async with make_app(url, without) as app:
        await _fill(app)
    child.say("filled")


def _run(role: Callable[[str, Sequence[str]], Coroutine[Any, Any, None]], url: str, *without: str) -> None:
    switch_off(without)
    uvloop.run(role(url, without))


def _hostile(url: str, port: str, attacks: str, *keys: str) -> None:
    os.nice(5)  # it stands for clients on other machines
    uvloop.run(_attack(int(port), attacks.split(","), list(keys)))


if __name__ == "__main__":
    child.main(
        {},
        {
            "server": functools.partial(_run, _server),
            "worker": functools.partial(_run, _worker),
            "backlog": functools.partial(_run, _backlog),
            "hostile": _hostile,
        },
    )
