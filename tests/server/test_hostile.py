"""Hostile requests cost little: JSON is read in linear time and outside the event loop, and the server reads no body before it
knows the caller."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from onward import Onward
from onward.core import wire
from onward.core.caller import SCOPES
from onward.server.http import bodies
from onward.server.http import uvicorn as heads
from onward.server.http.app import ROUTES
from onward.server.http.bodies import BodyLimiter
from onward.server.http.problem import Problem
from onward.server.http.route import ApiRoute
from onward.server.live import websocket as socket
from onward.server.schema.shape import Shape
from tests.kit import only_memory
from tests.server.conftest import serving

MIB = 1 << 20
SECONDS = 5.0
"""Of the processor, for what takes a tenth of one; the faults that were here took a minute and more."""


def cost(work: Callable[[], Any]) -> float:
    began = time.thread_time()
    with pytest.raises(Problem):
        work()
    return time.thread_time() - began


def names(count: int) -> bytes:
    return b",".join(b'"n%d":0' % number for number in range(count))


HOSTILE = {
    "a name twice among many": b"{" + names(40_000) + b',"n39999":1}',
    "a text that never ends": b"[" * 501 + b'"' + b'\\"' * 200_000,
    "many texts that never end": b"[" * 501 + b'\\"' * 200_000,
    "lists": b"[" + b"[]," * MIB,
    "brackets": b"[" * 4 * MIB,
    "objects": b"[" + b"{}," * MIB + b"{}]",
    "small objects": b"[" + b'{"":0},' * (MIB // 2) + b"0]",
    "texts": b"[" + b'"",' * MIB + b"0]",
    "texts without an end of a list": b'""' * 2 * MIB,
    "numbers": b"[" + b"1," * 2 * MIB + b"1]",
    "names": b"{" + names(300_000) + b"}",
    "digits": b"9" * 4 * MIB,
    "an exponent": b'{"a":1e' + b"9" * 4 * MIB,
    "blanks": b" " * 4 * MIB,
    "a text of brackets": b'"' + b"[" * 4 * MIB,
    "backslashes": b'"' + b"\\" * 4 * MIB,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_in_linear_time(name: str) -> None:
    assert cost(lambda: bodies.parse(HOSTILE[name])) < SECONDS


def test_large_texts_with_brackets_in_them_are_read() -> None:
    text = "[{,:" * MIB
    assert bodies.parse(json.dumps([text, '\\"' * MIB]).encode()) == [text, '\\"' * MIB]
    assert bodies.parse(b'{"a":' * 250 + b"[" * 250 + b"]" * 250 + b"}" * 250) is not None


values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='"\\[]{},:aü'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='"\\[{,b'), inner, max_size=4),
    max_leaves=30,
)


def measured(value: Any) -> tuple[int, int, int]:
    """Depth, lists and objects, and commas: slowly, by the value itself."""
    if not isinstance(value, list | dict):
        return 0, 0, 0
    parts = [measured(part) for part in (value.values() if isinstance(value, dict) else value)]
    opened, commas = 1 + sum(part[1] for part in parts), sum(part[2] for part in parts)
    return 1 + max((part[0] for part in parts), default=0), opened, commas + max(0, len(parts) - 1)


@given(values, st.integers(0, 12), st.integers(0, 6))
def test_oversized_agrees_with_the_parsed_value(value: Any, most: int, deepest: int) -> None:
    data = json.dumps(value, ensure_ascii=False).encode()
    depth, opened, commas = measured(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wire, "MAX_VALUES", most)
        patched.setattr(wire, "MAX_DEPTH", deepest)
        size = wire.oversized(data)
        deep = wire.too_deep(data)
    assert deep == (depth > deepest)
    if size is None:
        assert max(opened, commas) <= most
        assert depth <= deepest
    else:
        assert max(opened, commas) > most if "values" in size else depth > deepest


class Labelled(Shape):
    labels: dict[str, str] | None = None
    anything: Any = None


def test_a_problem_repeated_a_hundred_thousand_times_is_reported_once() -> None:
    many = {f"n{number}": number for number in range(150_000)}
    for value in (many, {"labels": many}, {"labels": list(many)}):
        began = time.thread_time()
        with pytest.raises(Problem) as refused:
            bodies.validate(Labelled, value, "the body")
        assert time.thread_time() - began < SECONDS / 10
        assert len(str(refused.value)) < 300
        assert refused.value.status == 422
    assert bodies.validate(Labelled, {"anything": many}, "the body").anything == many


# ── room ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_memory_budget_is_never_exceeded_and_always_released() -> None:
    rng = random.Random(5)
    for _ in range(50):
        room, inside, most = BodyLimiter(1000, 10), 0, 0

        async def stay(size: int, turns: int, room: BodyLimiter = room) -> None:
            nonlocal inside, most
            async with room.processing(size):
                inside += min(size, 10)
                most = max(most, inside)
                for _ in range(turns):
                    await asyncio.sleep(0)
                inside -= min(size, 10)

        tasks = [asyncio.create_task(stay(rng.randint(0, 14), rng.randint(0, 5))) for _ in range(30)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            if rng.random() < 0.3 and (task := rng.choice(tasks)) and not task.done() and inside == 0:
                task.cancel()
            if rng.random() < 0.2:
                waiting = [task for task in tasks if not task.done()]
                if waiting and inside < 10:
                    waiting[-1].cancel()
        inside = 0
        assert (room._free, room._waiting, len(room._queue)) == (10, 1000, 0)
        assert most <= 20


async def test_waiting_requests_go_in_order_and_too_many_are_refused() -> None:
    room, order = BodyLimiter(5, 10), []

    async def stay(name: str, size: int) -> None:
        async with room.processing(size):
            order.append(name)

    async with room.processing(8):
        tasks = [asyncio.create_task(stay("large", 4)), asyncio.create_task(stay("small", 1))]
        await asyncio.sleep(0)
        assert order == [], "small requests do not pass a large one for ever"
        with pytest.raises(Problem, match="too many large bodies"):
            await stay("more", 3)
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]


@only_memory
async def test_others_are_answered_while_a_large_body_is_parsed(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def echo(ctx: Any, value: Any = None) -> Any:
        return value

    parse, under_way, on = bodies.parse, threading.Event(), threading.Event()

    def slowly(data: bytes) -> Any:
        if len(data) > bodies.INLINE_BYTES:
            under_way.set()
            assert on.wait(60)
        return parse(data)

    monkeypatch.setattr(bodies, "parse", slowly)
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        large = asyncio.create_task(client.post("/api/tasks", json={"task": "echo", "input": "x" * 100_000}))
        await asyncio.to_thread(under_way.wait, 60)
        try:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.post("/api/tasks", json={"task": "echo"})).status_code == 202
        finally:
            on.set()
        assert (await large).status_code == 202


async def test_bodies_that_arrive_are_bounded_together() -> None:
    room = BodyLimiter(100, 1000)
    pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    class Asked:
        headers: ClassVar[dict[str, str]] = {}
        receive = pieces.get

    first = asyncio.create_task(room.read(Asked(), 1000))  # type: ignore[arg-type]
    pieces.put_nowait({"type": "http.request", "body": b"x" * 90, "more_body": True})
    await asyncio.sleep(0)
    second = asyncio.create_task(room.read(Asked(), 1000))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert room._arriving == 100
    pieces.put_nowait({"type": "http.request", "body": b"x" * 101, "more_body": True})
    with pytest.raises(Problem, match="too many large bodies"):
        await second
    assert room._arriving == 100


# ── authentication first ──────────────────────────────────────────────────────────────────────────────────────────────


async def answer(address: str, head: str, body: bytes = b"") -> bytes:
    """The response to a head whose body never comes."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    finally:
        writer.close()


def head(method: str, path: str, token: str = "", more: str = "") -> str:
    shown = f"\nAuthorization: Bearer {token}" if token else ""
    return (
        f"{method} {path} HTTP/1.1\nHost: 127.0.0.1\nContent-Type: application/json\nContent-Length: 1000{shown}{more}"
    )


BODIED = [call for call in ROUTES if call.body is not None]


@only_memory
async def test_a_body_is_read_after_the_key_and_its_scopes(app: Onward) -> None:
    made = {scope: (await app.keys.create(scope, [scope])).token for scope in SCOPES}

    async def judged(address: str, call: ApiRoute) -> None:
        path = call.path.replace("{id}", "x").replace("{name}", "x")
        assert call.scopes, path
        assert b" 401 " in await answer(address, head(call.method, path)), path
        for scope in SCOPES:
            if scope not in call.scopes:
                assert b" 403 " in await answer(address, head(call.method, path, made[scope])), (path, scope)

    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        for call in BODIED:
            await judged(address, call)
        for scope, token in made.items():  # the scope of a row is the scope of its route
            for call in BODIED:
                path = call.path.replace("{id}", "x").replace("{name}", "x")
                response = await client.request(
                    call.method, path, json={}, headers={"Authorization": f"Bearer {token}"}
                )
                assert (response.status_code == 403) == (scope not in call.scopes), (path, scope, response.text)


@only_memory
async def test_a_connection_is_good_after_a_body_was_refused_unread(
    app: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the body arrives after the response, and is not taken for the head of the next request."""
    await app.keys.create("ada", SCOPES)
    async with serving(app) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head("POST", "/api/tasks").replace("1000", "1000000").replace("\n", "\r\n").encode() + b"\r\n\r\n")
        assert b" 401 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        for _ in range(10):
            writer.write(b"x" * 100_000)
            await writer.drain()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b'"ok"' not in received:
            received += await asyncio.wait_for(reader.readexactly(1), 60)
        assert b" 200 OK" in received
        assert b" 431 " not in received
        monkeypatch.setattr(heads, "HEADER_TIMEOUT_S", 0.2)  # a client that sends the rest for ever is cut off
        writer.write(head("POST", "/api/tasks").replace("\n", "\r\n").encode() + b"\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"valid now"), 60)
        writer.write(b"x")
        assert await asyncio.wait_for(reader.read(), 60) is not None
        writer.close()


@only_memory
async def test_a_hook_reads_no_body_without_a_signature(app: Onward) -> None:
    for scheme in ("github", "stripe", "standard"):
        secret = "whsec_" + "QUFB" * 8

        @app.hook(f"of_{scheme}", secret=secret, scheme=scheme)
        async def hook(event: Any) -> None:
            raise AssertionError(event)

    async with serving(app) as address:
        for scheme in ("github", "stripe", "standard"):
            assert b" 401 " in await answer(address, head("POST", f"/api/hooks/of_{scheme}"))


@pytest.fixture
async def keyed(app: Onward) -> AsyncIterator[tuple[str, str]]:
    token = (await app.keys.create("ada", SCOPES)).token
    async with serving(app) as address:
        yield address, token


@only_memory
async def test_mcp_reads_no_body_without_a_key_and_none_that_is_oversized(app: Onward, keyed: tuple[str, str]) -> None:
    address, token = keyed
    assert b" 401 " in await answer(address, head("POST", "/mcp"))
    async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        for body in (HOSTILE["lists"], b"[" * 501, HOSTILE["a text that never ends"]):
            response = await client.post("/mcp", content=body, headers=headers)
            assert (response.status_code, response.json()["code"]) == (400, "bad_json")
        packed = await client.post("/mcp", content=b"x", headers={**headers, "Content-Encoding": "gzip"})
        assert packed.status_code == 415
    large = head("POST", "/mcp", token).replace("1000", "5000000")
    assert b" 413 " in await answer(address, large)


@only_memory
async def test_a_first_message_that_is_no_key_is_not_parsed(
    app: Onward, keyed: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, token = keyed
    url = f"ws://{address.removeprefix('http://')}/api/tasks/x/ws"
    parsed = []
    monkeypatch.setattr(bodies, "parse", lambda data: parsed.append(data) or json.loads(data))
    for message in (
        b'{"type":"auth","key":"' + b"x" * socket.MAX_AUTH_MESSAGE_BYTES + b'"}',
        HOSTILE["lists"][:60_000],
    ):
        async with connect(url) as stranger:
            await stranger.send(message)
            answer = json.loads(await stranger.recv())
            assert (answer["type"], answer["code"]) == ("error", "message_too_large")
            with pytest.raises(ConnectionClosed):
                await stranger.recv()
    assert parsed == []
    async with connect(url) as known:
        await known.send(json.dumps({"type": "auth", "key": token}))
        assert json.loads(await known.recv()) == {"type": "ack", "for": "auth"}
