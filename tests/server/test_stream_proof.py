"""Readers that are cut off at random points, from servers that are killed: they get the journal, without a missing or doubled
record.

Two servers on one database, and a worker in a process of its own. A reader reconnects to either of them with the last id that it
has received whole, as an EventSource does. `make prove` cuts a thousand times.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core.journal.progress import ProgressReader
from onward.server.live import render as telling
from onward.server.live import sse as stream
from onward.server.live.render import update_json
from onward.service.serialize import record_json
from rig.processes import Child
from tests.kit import not_memory, only_memory
from tests.server.shop import app as shop
from tests.server.sse import Parser, served

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass
class Reader:
    """Follows one path to its end, with a cut now and then."""

    path: str
    ports: Callable[[], list[int]]
    rng: random.Random
    bites: int = 12
    """How many bites of a stream it takes before it is cut off, at most."""
    got: list[tuple[str, Any]] = dataclasses.field(default_factory=list)
    last: str = ""
    cuts: int = 0
    resets: int = 0

    async def read(self) -> Reader:
        status = 0
        while status != 204:
            status = await self._once()
        return self

    async def _once(self) -> int:
        """The status of one connection; 0 if it failed."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.rng.choice(self.ports()))
        except OSError:
            await asyncio.sleep(0.05)  # it is being started again
            return 0
        last = f"Last-Event-ID: {self.last}\r\n" if self.last else ""
        head = f"GET {self.path} HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n{last}\r\n"
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            writer.write(head.encode())
            if self.rng.random() < 0.05:  # gone before any answer
                self.cuts += 1
                return 0
            status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
            if status == 200:
                await self._events(reader)
            else:
                assert status in {204, 503}, status
            return status
        writer.transport.abort()
        return 0

    async def _events(self, reader: asyncio.StreamReader) -> None:
        parser, rest = Parser(self.last), b""
        for _ in range(self.rng.randint(1, self.bites)):
            data = await reader.read(self.rng.randint(1, 600))
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if (event := parser.line(line.decode())) is not None:
                    self.resets += event.name == "reset"
                    self.got.append((event.id, event.data))
                    self.last = event.id
        self.cuts += 1


async def expected(app: Onward, ids: list[str], *, records: bool) -> dict[str, list[Any]]:
    """The journal of each task, in the form of a stream."""
    by_task = {}
    for task_id in ids:
        journal = await app.service.journal(task_id, limit=1000)
        while len(journal) % 1000 == 0:
            journal += await app.service.journal(task_id, journal[-1].seq, 1000)
        teller = ProgressReader(task_id)
        updates = [update_json(update) for record in journal if (update := teller.read(record)) is not None]
        by_task[task_id] = [{"task_id": task_id, **record_json(record)} for record in journal] if records else updates
    return by_task


def wrong(reader: Reader, journal: dict[str, list[Any]]) -> list[str]:
    """The records that a reader missed, got twice, or got out of order."""
    problems = []
    for task_id, wanted in journal.items():
        got = [data for _, data in reader.got if data.get("task_id") == task_id]
        if got != wanted:
            problems.append(f"{reader.path}: {len(got)} of {len(wanted)}, {_first(got, wanted)}")
    return problems


def _first(got: list[Any], wanted: list[Any]) -> str:
    at = next(
        (n for n, (actual, right) in enumerate(zip(got, wanted, strict=False)) if actual != right),
        min(len(got), len(wanted)),
    )
    return f"at {at}: {json.dumps(got[at : at + 1])[:200]} for {json.dumps(wanted[at : at + 1])[:200]}"


def readers(ids: list[str], ports: Callable[[], list[int]], seed: int, count: int, bites: int) -> list[Reader]:
    """Readers of the updates of one task, of the records of one task, and of the updates of all tasks."""
    paths = [
        *(f"/api/progress?task_id={task_id}" for task_id in ids),
        *(f"/api/tasks/{task_id}/events" for task_id in ids),
        "/api/progress?" + "&".join(f"task_id={task_id}" for task_id in ids),
    ]
    return [Reader(paths[n % len(paths)], ports, random.Random(seed + n), bites) for n in range(count)]


async def judged(app: Onward, ids: list[str], all_: list[Reader]) -> list[str]:
    problems = []
    for reader in all_:
        mine = [task_id for task_id in ids if task_id in reader.path]
        problems += wrong(reader, await expected(app, mine, records="/events" in reader.path))
    return problems


class Servers:
    """Two servers, each at its own port for good; the test kills one of them now and then, and starts it again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ports = [_free(), _free()]
        self.children = [self._start(port) for port in self.ports]
        self.kills = 0

    def _start(self, port: int) -> Child:
        more = ["--port", str(port), "--no-worker"]
        return Child.module("onward", "--db", self.url, "serve", "tests.server.shop:app", *more, cwd=ROOT)

    async def ready(self) -> Servers:
        for child in self.children:
            await asyncio.to_thread(child.wait_for, "ready", 60)
        return self

    async def chaos(self, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.uniform(0.3, 1.5))
            victim = rng.randrange(2)
            self.children[victim].kill9()
            self.children[victim].close()
            self.kills += 1
            self.children[victim] = self._start(self.ports[victim])
            await asyncio.to_thread(self.children[victim].wait_for, "ready", 60)

    def close(self) -> None:
        for child in self.children:
            child.close()


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@not_memory
async def test_cut_off_readers_and_killed_servers(url: str, prove: bool) -> None:
    cuts, steps = (1000, 250) if prove else (60, 25)
    app = Onward(url)
    app.handlers.update(shop.handlers)
    app._handler_specs.update(shop._handler_specs)
    async with app:
        servers = Servers(url)
        worker = Child.module("onward", "--db", url, "worker", "tests.server.shop:app", cwd=ROOT)
        try:
            await servers.ready()
            await asyncio.to_thread(worker.wait_for, "ready", 60)
            chaos = asyncio.create_task(servers.chaos(random.Random(7)))
            all_: list[Reader] = []
            problems: list[str] = []  # rounds until there was enough, however fast or slow the machine is
            while sum(reader.cuts for reader in all_) < cuts or servers.kills < 2:
                ids = [(await app.submit("steps", {"n": steps, "pause": 0.04})).id for _ in range(3)]
                round_ = readers(ids, lambda: servers.ports, 1 + len(all_), 14, 12)
                await asyncio.wait_for(asyncio.gather(*(reader.read() for reader in round_)), 600)
                problems += await judged(app, ids, round_)
                all_ += round_
            chaos.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await chaos
        finally:
            servers.close()
            worker.close()
    assert problems == []
    assert [reader.resets for reader in all_] == [0] * len(all_)
    print(f"{sum(reader.cuts for reader in all_)} cuts, {servers.kills} servers killed, 0 missing, 0 twice")


@pytest.mark.slow
@only_memory
@pytest.mark.parametrize("fault", [None, "the cursor is dropped", "off by one", "resume from the head"])
async def test_the_test_finds_a_planted_fault(app: Onward, fault: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof above fails for a server that loses its place, and passes for one that does not."""

    dropped: list[str | None] = []

    def lost(heads: Any, wanted: str | None) -> telling.Position:
        numbers = [int(part) for part in re.findall(r"\d+", wanted or "")]
        match fault:
            case "the cursor is dropped":
                if numbers and len(dropped) < 3:  # or no reader would ever come to an end
                    dropped.append(wanted)
                    wanted = None
            case "off by one":
                beyond = zip(
                    numbers, heads.values(), strict=False
                )  # not beyond the end, where a reader begins anew for ever
                wanted = ",".join(str(min(number + 1, head.seq)) for number, head in beyond) or None
            case "resume from the head":
                wanted = ",".join(str(head.seq) for head in heads.values()) if numbers else None
        return telling.find_position(heads, wanted)

    if fault is not None:
        monkeypatch.setattr(stream, "find_position", lost)

    @app.task
    async def walk(ctx: Any, n: int) -> int:
        for number in range(n):
            await ctx.step(lambda number=number: number, name="step")
            ctx.progress("on", step=number, total=n)
        return n

    async with served(app) as (client, _, _), app.worker():
        ids = [(await app.submit(walk, 30)).id for _ in range(2)]
        all_ = readers(ids, lambda: [client.base_url.port or 0], 5, 5, 6)
        await asyncio.wait_for(asyncio.gather(*(reader.read() for reader in all_)), 120)
        problems = await judged(app, ids, all_)
    assert (problems != []) == (fault is not None), problems
    assert sum(reader.cuts for reader in all_) > 5
