"""Clients whose answers, connections and servers go away: each request takes effect once, and streams have no gaps."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from onward import Onward, State, SyncClient
from onward.client import client as clients
from onward.client.script import NextChunk, NoResponse, Request, Response
from onward.client.sse import MEDIA
from onward.client.verbs import Verbs
from onward.core import wire
from onward.core.journal.progress import ProgressReader
from onward.core.task import Task
from onward.errors import OnwardError, Unreachable, UsageError
from rig.processes import Child
from rig.proxy import HttpProxy
from tests.client.conftest import listed
from tests.kit import not_memory
from tests.server.conftest import serving

ENDED = wire.encode(
    dict.fromkeys(Task.__dataclass_fields__)
    | {
        "task_id": "task",
        "state": "completed",
        "created_at": "2026-11-15T14:00:00Z",
        "updated_at": "2026-11-15T14:00:00Z",
    }
)

# ── answers that are lost ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def lossy(app: Onward) -> AsyncIterator[tuple[str, HttpProxy]]:
    """A server behind a proxy that loses the chosen answers."""
    async with serving(app) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        with HttpProxy(host, int(port)) as proxy:
            yield f"http://127.0.0.1:{proxy.port}", proxy


async def submitted(app: Onward, client: Any, proxy: HttpProxy) -> int:
    """The number of tasks from one submit whose answer is lost twice."""

    @app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    proxy.cut_after_request(b"POST /api/tasks", n=2)
    task = await client.submit("work", 1)
    assert proxy.fired == 2
    assert (await app.get(task.id)).task == "work"
    tasks, _ = await app.list()
    return len(tasks)


async def test_a_submit_whose_answer_is_lost_is_one_task(app: Onward, lossy: Any, either: Any) -> None:
    address, proxy = lossy
    assert await submitted(app, either(address), proxy) == 1


async def test_a_submit_that_is_sent_again_without_its_key_is_noticed(
    app: Onward, lossy: Any, either: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keyless(*args: Any) -> Any:
        request = built(*args)
        request.headers.pop("idempotency-key", None)
        return request

    built = clients._build
    monkeypatch.setattr(clients, "_build", keyless)
    address, proxy = lossy
    assert await submitted(app, either(address), proxy) == 3, "the proof above would not see it"


async def test_a_request_that_is_not_idempotent_is_not_sent_again(app: Onward, lossy: Any, either: Any) -> None:
    @app.task
    async def work(ctx: Any) -> Any:
        return [await ctx.signal("go"), await ctx.ask("how?")]

    address, proxy = lossy
    client = either(address, patience=3)
    task = await client.submit("work", delay="1h")
    proxy.cut_after_request(b"/fork")
    with pytest.raises(Unreachable) as caught:
        await client.fork(task.id, 1)
    assert caught.value.in_doubt
    assert "may have been carried out" in str(caught.value)
    assert len(await listed(client.tasks())) == 2, "the task and one fork"


async def test_an_idempotent_request_is_sent_again(app: Onward, lossy: Any, either: Any) -> None:
    @app.task
    async def work(ctx: Any) -> Any:
        return [await ctx.signal("go"), await ctx.signal("go", timeout="0.5s", default="no more")]

    address, proxy = lossy
    client = either(address)
    task = await client.submit("work", delay="1h")
    proxy.cut_after_request(b"POST", n=1)
    assert (await client.prioritize(task.id, 7)).priority == 7
    proxy.cut_after_request(b"POST", n=1)
    assert (await client.pause(task.id)).reason == "paused"
    proxy.cut_after_request(b"POST", n=1)
    assert (await client.cancel(task.id)).state is State.CANCELLED
    proxy.cut_after_request(b"GET", n=2)
    assert (await client.get(task.id)).state is State.CANCELLED
    assert proxy.fired == 5
    waits = await client.submit("work")
    proxy.cut_after_request(b"/signals/", n=1)
    await client.signal(waits.id, "go", 1)
    async with app.worker():
        assert await waits.result(60) == [1, "no more"], "one signal"


# ── proxies in between ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_redirect_is_no_answer(either: Any) -> None:
    """A proxy that wants TLS, or a login: its page is no artifact."""

    async def elsewhere(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        page = b"<html>over there</html>"
        head = b"HTTP/1.1 302 Found\r\nlocation: https://x/\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
            page
        )
        writer.write(head + page)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(elsewhere, "127.0.0.1", 0)
    async with server:
        client = either(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", patience=1)
        with pytest.raises(OnwardError, match="the answer was 302") as caught:
            await client.artifact("task", "artifact")
    assert (caught.value.status, caught.value.code) == (302, "http_302")


def test_streams_that_break_at_once_are_not_asked_for_without_a_pause() -> None:
    with SyncClient("http://127.0.0.1:1") as client:
        script, outcome = Verbs.tail.script(client, "task"), None
        steps: list[str] = []
        for _ in range(20):
            step = script.send(outcome)
            steps.append(type(step).__name__)
            if isinstance(step, Request):
                outcome = Response(200, {"content-type": MEDIA if step.streams else "application/json"}, ENDED)
            else:
                outcome = NoResponse(True, "cut off") if isinstance(step, NextChunk) else None
    assert steps[:8] == ["Request", "NextChunk", "Request", "Pause"] * 2


def test_an_address_without_its_beginning_is_refused_at_once() -> None:
    for address in ("127.0.0.1:8765", "onward.example.com", "ftp://x"):
        with pytest.raises(UsageError, match="http://"):
            SyncClient(address)


# ── servers that are killed ──────────────────────────────────────────────────────────────────────────────────────────

Start = Callable[[], Awaitable[Child]]


@pytest.fixture
async def place(url: str, tmp_path: Path) -> AsyncIterator[tuple[str, Start]]:
    """An address, and a function that starts a server there: `onward serve`, with a worker, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children: list[Child] = []

    async def start() -> Child:
        arguments = ["serve", "tests.client.served:app", "--db", url, "--port", str(port)]
        child = Child.module("onward", *arguments, env={"LEDGER": str(tmp_path / "ledger")})
        children.append(child)
        return child

    yield f"http://127.0.0.1:{port}", start
    for child in children:
        child.close()


@pytest.mark.slow
@not_memory
async def test_servers_are_killed_and_clients_go_on(place: Any, either: Any, tmp_path: Path, url: str) -> None:
    address, start = place
    server = await start()
    client = either(address, patience=60)
    walk = await client.submit("walk", 40)
    following = asyncio.ensure_future(listed(walk.tail()))
    watching = asyncio.ensure_future(listed(walk.follow()))
    tasks = []
    for n in range(30):
        tasks.append(await client.submit("work", n))
        if n % 10 == 5:
            await asyncio.to_thread(server.kill9)
            submitting = asyncio.ensure_future(client.submit("work", 1000 + n))
            await asyncio.sleep(0.2)
            server = await start()
            tasks.append(await submitting)
    results = [await task.result("60s") for task in tasks]
    assert sorted(results) == sorted([*range(30), 1005, 1015, 1025])
    assert await walk.result("60s") == 40
    records = await following
    app_on_store = Onward(url)
    async with app_on_store:
        tasks, _ = await app_on_store.list(limit=1000)
        journal = await app_on_store.service.journal(walk.id)
    assert len(tasks) == 34, "each once"
    assert [(record.seq, record.kind, record.value) for record in records] == [
        (record.seq, record.kind, record.value) for record in journal
    ]
    reader = ProgressReader(walk.id)
    assert await watching == [
        update._replace(time=pytest.approx(update.time, abs=0.002))
        for record in journal
        if (update := reader.read(record))
    ]
    assert sum(record.kind == "shift.started" for record in journal) > 1, "it was taken over at least once"
