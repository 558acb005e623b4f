"""Lists and pages have a bound in bytes; the server disconnects clients that read or send nothing, and bounds their number."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.client import Client
from onward.server.http import sending, uvicorn
from onward.server.http.problem import Problem
from onward.server.http.sending import BoundedSend, Spool
from onward.service.submission import SubmitRequest
from onward.store.port import listing, paging
from tests.kit import eventually, not_memory, only_file, only_memory
from tests.server.conftest import serving
from tests.server.sse import served
from tests.server.test_fuzz import serve

MEGABYTE = 1_000_000


# ── lists and pages ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def echoing(app: Onward) -> Onward:
    @app.task
    async def echo(ctx: Any, value: Any = None) -> Any:
        return value

    return app


async def submit(app: Onward, count: int, size: int, **options: Any) -> list[str]:
    """The ids of so many new tasks with inputs of so many bytes, the newest first."""
    ids = [(await app.service.submit([SubmitRequest("echo", "x" * size, **options)]))[0] for _ in range(count)]
    return ids[::-1]


async def pages(
    client: httpx2.AsyncClient, path: str, limit: int, **params: Any
) -> AsyncIterator[list[dict[str, Any]]]:
    cursor = None
    while True:
        response = await client.get(path, params={"limit": limit, **params, **({"cursor": cursor} if cursor else {})})
        assert response.status_code == 200, response.text
        assert len(response.content) < listing.PAGE_BYTES * 1.5
        document = response.json()
        yield document["tasks"]
        cursor = document["next"]
        if cursor is None:
            return


@not_memory
async def test_a_page_leaves_out_large_values_beyond_its_bytes(echoing: Onward) -> None:
    ids = await submit(echoing, 8, MEGABYTE)
    async with serving(echoing) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        (tasks,) = [page async for page in pages(client, "/api/tasks", 100)]
        assert [task["task_id"] for task in tasks] == ids
        assert [task.get("left_out") for task in tasks] == [None] * 3 + [["input"]] * 5
        assert [len(task["input"] or "") for task in tasks] == [MEGABYTE] * 3 + [0] * 5
        alone = (await client.get(f"/api/tasks/{ids[-1]}")).json()
        assert len(alone["input"]) == MEGABYTE
        assert "left_out" not in alone
        some = [page async for page in pages(client, "/api/tasks", 2, state=["pending", "completed"])]
        assert [task["task_id"] for page in some for task in page] == ids
        assert not any("left_out" in task for page in some for task in page), "two of them are small enough"


@not_memory
async def test_a_page_is_bounded_with_many_values_of_middle_size(echoing: Onward) -> None:
    """Each is small enough for a brief list; all together are not small."""
    count, size = 700, 7_900
    requests = [SubmitRequest("echo", "x" * size) for _ in range(count)]
    ids = sorted(await echoing.service.submit(requests), reverse=True)
    for brief in (False, True):
        page, cursor = await echoing.service.list(limit=1000, brief=brief)
        assert [task.task_id for task in page] == ids
        assert cursor is None
        whole = [task for task in page if not task.left_out]
        assert listing.PAGE_BYTES <= len(whole) * size <= listing.PAGE_BYTES + listing.SLICE_TASKS * size
        assert page[: len(whole)] == whole, "the newest ones"


@not_memory
async def test_results_count_too_and_children_are_bounded(echoing: Onward) -> None:
    @echoing.task
    async def parent(ctx: Any) -> None:
        for _ in range(3):
            await (await ctx.submit("echo", "x" * MEGABYTE)).result()

    async with echoing.worker():
        task = await echoing.submit("parent")
        await task.result(60)
    async with serving(echoing) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        (children,) = [page async for page in pages(client, f"/api/tasks/{task.id}/children", 10)]
        assert [child.get("left_out") for child in children] == [None, ["input", "result"], ["input", "result"]]
        assert len(children[0]["result"]) == MEGABYTE


@not_memory
async def test_a_page_of_large_records_ends_early_and_goes_on(app: Onward) -> None:
    @app.task
    async def large(ctx: Any) -> None:
        for _ in range(10):
            await ctx.step(lambda: "x" * MEGABYTE, name="step")

    async with app.worker(), serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        task = await app.submit("large")
        await task.result(60)
        wanted = [record.seq for record in await app.service.journal(task.id)]
        seqs, after, requests = list[int](), 0, 0
        while after is not None:
            response = await client.get(f"/api/tasks/{task.id}/events", params={"after": after})
            assert len(response.content) < paging.PAGE_BYTES + 1.1 * MEGABYTE
            document = response.json()
            seqs += [record["seq"] for record in document["records"]]
            after, requests = document["next"], requests + 1
        assert seqs == wanted
        assert requests == 3
        async with Client(address) as remote:
            assert [record.seq for record in await remote.journal(task.id)] == wanted
            assert [record.seq for record in await remote.journal(task.id, 2, 7)] == wanted[2:9]


# ── readers that stop reading ────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def silent(port: int, count: int, request: bytes = b"", source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """So many clients that send this, and neither send nor read anything more."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.bind((source, 0))
            client.connect(("127.0.0.1", port))
            client.sendall(request)
            client.setblocking(False)
            sockets.append(client)
        yield sockets


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@only_memory
@pytest.mark.parametrize(
    "path", ["/api/tasks", "/api/tasks/{task}", "/api/artifacts/{artifact}", "/api/tasks/{task}/events"]
)
async def test_a_client_that_stops_reading_is_disconnected_at_every_route(
    echoing: Onward, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(sending, "SEND_TIMEOUT_S", 0.2)

    @echoing.task
    async def leaves(ctx: Any) -> str:
        return (await ctx.artifact(b"x" * 3 * MEGABYTE)).artifact_id

    async with echoing.worker(), served(echoing) as (client, _, server):
        task, other = await echoing.submit("echo", "x" * (MEGABYTE + 1)), await echoing.submit("leaves")
        await task.result(60)
        path = path.format(task=task.id, artifact=f"{other.id}.{await other.result(60)}")
        whole = await client.get(path)
        assert whole.status_code == 200
        assert len(whole.content) > MEGABYTE
        connections = server.server_state.connections
        with silent(client.base_url.port or 0, 3, get(path)):
            await eventually(lambda: _at_least(connections, 4))
            await eventually(lambda: _at_most(connections, 1))
        assert (await client.get(path)).content == whole.content, "other clients are served as before"


async def _at_least(connections: set[Any], count: int) -> bool:
    return len(connections) >= count


async def _at_most(connections: set[Any], count: int) -> bool:
    return len(connections) <= count


@only_memory
async def test_a_closed_connection_does_not_wait_for_its_reader(
    echoing: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bytes of a response are with the transport when the app is done: closing waits until they are read."""
    monkeypatch.setattr(uvicorn, "CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(uvicorn, "SWEEP_TICKS", 1)
    size = sending.CHUNK_BYTES * 3
    async with served(echoing) as (client, _, server):
        (task_id,) = await submit(echoing, 1, size)
        connections = server.server_state.connections
        request = f"GET /api/tasks/{task_id} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        with silent(client.base_url.port or 0, 3, request):
            await eventually(lambda: _at_least(connections, 3))
            await eventually(lambda: _at_most(connections, 0))


@pytest.mark.slow
@not_memory
async def test_two_hundred_clients_that_stop_reading_cost_little_and_are_disconnected(url: str) -> None:
    child, address = await asyncio.to_thread(serve, url)
    port = int(address.rpartition(":")[2])
    with child:
        async with httpx2.AsyncClient(base_url=address, timeout=120) as client:
            ids = [await _ended(client, "echo", {"value": "x" * 2 * MEGABYTE}) for _ in range(10)]
            artifact_task = await _ended(client, "leaves", {"size": 10 * MEGABYTE})
            journal_task = await _ended(client, "large", {"n": 10, "size": MEGABYTE})
            (artifact,) = (await client.get(f"/api/tasks/{artifact_task}/artifacts")).json()["artifacts"]
            events = get(f"/api/tasks/{journal_task}/events")
            doors = [
                get("/api/tasks"),
                get(f"/api/tasks/{ids[0]}"),
                get(f"/api/artifacts/{artifact['id']}"),
                events,
                events.replace(b"\r\n\r\n", b"\r\nAccept: text/event-stream\r\n\r\n"),
            ]
            before, idle = _resident(child.pid), _files(child.pid)
            with contextlib.ExitStack() as stack:
                unanswered = {each for door in doors for each in stack.enter_context(silent(port, 40, door))}
                most, answered = before, time.monotonic()
                while unanswered or _files(child.pid) > idle + 2:
                    most = max(most, _resident(child.pid))
                    if unanswered:
                        unanswered = {each for each in unanswered if not _answered(each)}
                        answered = time.monotonic()
                    assert time.monotonic() < answered + 120, "they are let go within 30 s, or later on a busy machine"
                    await asyncio.sleep(0.05)
            print(f"200 readers that stop: {(most - before) / 1e6:.0f} MB above idle")
            assert most - before < 300 * MEGABYTE
            assert (await client.get(f"/api/tasks/{ids[0]}")).status_code == 200
    assert not [line for line in child.errors if "Traceback" in line], "\n".join(child.errors[-60:])


def _answered(client: socket.socket) -> bool:
    """Whether the response has begun. It is not read."""
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def _ended(client: httpx2.AsyncClient, task: str, value: Any) -> str:
    response = await client.post("/api/tasks", json={"task": task, "input": value}, headers={"Prefer": "wait=60"})
    assert response.status_code == 200, response.text[:500]
    return str(response.json()["task_id"])


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


# ── clients that send nothing ────────────────────────────────────────────────────────────────────────────────────────


@only_memory
async def test_silent_connections_of_one_address_are_bounded(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "MAX_SILENT_PER_ADDRESS", 5)
    monkeypatch.setattr(uvicorn, "SILENCE_S", 0.0)
    async with served(app) as (client, _, server):
        port, connections = client.base_url.port or 0, server.server_state.connections
        with silent(port, 4, source="127.0.0.2") as others, silent(port, 20, b"GET / HTTP/1.1\r\nHo") as mine:
            await eventually(lambda: _at_most(connections, 9))
            await eventually(lambda: _all_closed(mine[:15]))
            assert (await client.get("/healthz")).status_code == 200
            assert not any(map(_closed, others)), "another address has its own bound"


@only_memory
async def test_all_silent_connections_are_bounded(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "MAX_SILENT", 6)
    monkeypatch.setattr(uvicorn, "SILENCE_S", 0.0)
    async with served(app) as (client, _, _), contextlib.AsyncExitStack() as stack:
        port = client.base_url.port or 0
        sockets = [each for n in range(2, 12) for each in stack.enter_context(silent(port, 1, source=f"127.0.0.{n}"))]
        await eventually(lambda: _all_closed(sockets[:4]))
        assert (await client.get("/healthz")).status_code == 200
        assert not _closed(sockets[-1])


@only_memory
async def test_a_burst_of_connections_is_not_refused(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a proxy, say: they are silent for a moment only."""
    monkeypatch.setattr(uvicorn, "MAX_SILENT_PER_ADDRESS", 5)
    monkeypatch.setattr(uvicorn, "SILENCE_S", 60.0)
    async with served(app) as (client, _, server):
        with silent(client.base_url.port or 0, 20) as sockets:
            await eventually(lambda: _at_least(server.server_state.connections, 20))
            for each in sockets:
                each.sendall(get("/healthz"))
            assert await eventually(lambda: _all_answered(sockets))


@only_file
async def test_connections_beyond_the_limit_are_refused(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "MAX_CONNECTIONS", 3)
    async with served(app) as (client, _, server):
        port = client.base_url.port or 0
        with silent(port, 3):
            await eventually(lambda: _at_least(server.server_state.connections, 3))
            with silent(port, 1) as (fourth,):
                assert (await eventually(lambda: _received(fourth))).startswith(b"HTTP/1.1 503 ")
        await eventually(lambda: _at_most(server.server_state.connections, 0))
        assert (await client.get("/healthz")).status_code == 200


async def _received(client: socket.socket) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return client.recv(65536, socket.MSG_PEEK)
    return b""


async def _all_answered(sockets: list[socket.socket]) -> bool:
    return all([(await _received(each)).startswith(b"HTTP/1.1 200 ") for each in sockets])


async def _all_closed(sockets: list[socket.socket]) -> bool:
    return all(map(_closed, sockets))


def _closed(client: socket.socket) -> bool:
    """Whether the server has closed this connection, after all bytes that it sent."""
    try:
        while client.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@only_memory
async def test_every_route_is_behind_the_bound(app: Onward) -> None:
    asgi = app.asgi(keyless=True)
    assert [middleware.cls for middleware in asgi.user_middleware] == [BoundedSend]
    paths = {getattr(route, "path", "") for route in asgi.routes}
    assert paths >= {
        "/",
        "/console/{path:path}",
        "/metrics",
        "/mcp",
        "/openapi.json",
        "/api/progress",
        "/api/tasks/{id}/ws",
    }


async def test_a_connection_that_is_closed_already_can_be_cut() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        await writer.wait_closed()
        sending.hang_up(writer.transport)


async def test_a_body_is_sent_in_chunks() -> None:
    sent: list[Any] = []
    body = os.urandom(sending.CHUNK_BYTES * 3 + 1)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send(message: Any) -> None:
        sent.append(message)

    await BoundedSend(app)({"type": "http"}, _never, send)
    assert [len(message["body"]) for message in sent[1:]] == [sending.CHUNK_BYTES] * 3 + [1, 0]
    assert [message["more_body"] for message in sent[1:]] == [True] * 4 + [False]
    assert b"".join(message["body"] for message in sent[1:]) == body


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_message_that_the_client_does_not_read_ends_the_request(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a server whose connections the middleware cannot reach."""
    monkeypatch.setattr(sending, "SEND_TIMEOUT_S", 0.01)
    ended = False

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal ended
        try:
            await send({"type": f"{kind}.send", "text": "x"})
        finally:
            ended = True
        raise AssertionError("not reached")

    async with asyncio.timeout(60):
        await BoundedSend(app)({"type": kind}, _never, lambda _message: _never())
    assert ended


async def test_too_many_large_bodies_of_other_origin_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that do not come from the spool, as the ones of MCP."""
    monkeypatch.setattr(sending, "MAX_HELD_BYTES", sending.LARGE_BYTES * 3)
    on = asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": bytes(sending.LARGE_BYTES * 2), "more_body": False})
        finished.append(None)

    async def send(_message: Any) -> None:
        await on.wait()

    finished: list[None] = []
    bounded = BoundedSend(app)
    first = asyncio.create_task(bounded({"type": "http"}, _never, send))
    await asyncio.sleep(0)
    await bounded({"type": "http"}, _never, send)
    assert not finished, "the second was cut"
    on.set()
    await first
    await bounded({"type": "http"}, _never, send)
    assert len(finished) == 2


async def _never() -> Any:
    await asyncio.Event().wait()


def test_the_spool_uses_memory_then_files_and_then_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    size = sending.LARGE_BYTES + 1
    monkeypatch.setattr(sending, "MAX_HELD_BYTES", size)
    monkeypatch.setattr(sending, "MAX_FILE_BYTES", size)
    spool, data = Spool(), os.urandom(size)
    files = _files(os.getpid())
    for _ in range(2):
        with spool.store(data) as held:
            assert _files(os.getpid()) == files
            with spool.store(data) as filed:
                assert _files(os.getpid()) == files + 1
                with pytest.raises(Problem, match="too many large responses"):
                    spool.store(data)
                assert spool.store(data[:-1]).read(size) == data[:-1], "a smaller body still fits"
                assert [held.read(10), filed.read(10)] == [data[:10]] * 2
                assert held.read(size) == filed.read(size) == data[10:]
    monkeypatch.setattr(sending.tempfile, "tempdir", str(tmp_path / "nowhere"))
    with spool.store(data), pytest.raises(Problem, match="no room for temporary files"):
        spool.store(data)
    assert (spool._held, spool._filed) == (0, 0)
