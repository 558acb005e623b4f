"""WebSockets over a real socket: the updates of a stream, control of tasks, and bounds for floods and callers without a key."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from onward import Onward
from onward.core.caller import ANYBODY, READ, Caller
from onward.errors import Unauthorized
from onward.server.http import sending
from onward.server.live import pump
from onward.server.live import websocket as sockets
from tests.kit import eventually, only_memory
from tests.server.sse import all_events, served

pytestmark = only_memory


@pytest.fixture
def shop(app: Onward) -> Onward:
    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    @app.task
    async def asks(ctx: Any) -> str:
        await ctx.approve("go on?", risk="external_action")
        return str(await ctx.ask("how?"))

    @app.task
    async def walk(ctx: Any, n: int) -> int:
        for number in range(n):
            await ctx.step(_give, number, name="step")
        return n

    return app


async def _give(value: Any) -> Any:
    return value


@pytest.fixture
async def server(shop: Onward) -> AsyncIterator[Any]:
    async with served(shop, hosts=["127.0.0.1", "localhost"]) as parts, shop.worker():
        yield parts


def address(server: Any, task_id: str, **query: Any) -> str:
    more = "&".join(f"{name}={value}" for name, value in query.items())
    return f"ws://127.0.0.1:{server[0].base_url.port}/api/tasks/{task_id}/ws" + (f"?{more}" if more else "")


async def say(socket: ClientConnection, passed: list[dict[str, Any]] | None = None, **message: Any) -> dict[str, Any]:
    """The answer to a message; updates that come in between are put aside."""
    await socket.send(json.dumps(message))
    while True:
        answer: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 60))
        if answer["type"] in {"ack", "error"}:
            return answer
        if passed is not None:
            passed.append(answer)


async def update(socket: ClientConnection, passed: list[dict[str, Any]], message: str) -> dict[str, Any]:
    """The update with this message, from those that were put aside or those that come."""
    while True:
        event = passed.pop(0) if passed else json.loads(await asyncio.wait_for(socket.recv(), 60))
        if event.get("message") == message:
            return dict(event)


async def until_closed(socket: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    events = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            events.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
    assert socket.close_code is not None
    return events, socket.close_code


# ── the updates ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_updates_as_a_stream_and_an_end(shop: Onward, server: Any) -> None:
    task = await shop.submit("walk", 5)
    async with connect(address(server, task.id)) as socket:
        events, code = await until_closed(socket)
    assert code == 1000
    stream_ = await all_events(server[0], "/api/progress", task_id=task.id)
    assert events == [{"type": "update", "seq": int(event.id), **event.data} for event in stream_]
    for cut in (0, 3, 5):
        async with connect(address(server, task.id, after=cut)) as socket:
            assert (await until_closed(socket))[0] == [event for event in events if event["seq"] > cut]
    last = events[-1]["seq"]
    async with connect(address(server, task.id, after=last)) as socket:
        assert await until_closed(socket) == ([], 1000), "all of it was seen"
    async with connect(address(server, task.id, after=last + 1)) as socket:
        reset = {"type": "reset", "seq": 0, "reason": "ahead"}
        assert await until_closed(socket) == ([reset, *events], 1000), "the journal was set back"


async def test_an_unknown_cursor_starts_again_with_a_reset(shop: Onward, server: Any) -> None:
    task = await shop.submit("waits")
    async with connect(address(server, task.id, after="x")) as socket:
        assert json.loads(await asyncio.wait_for(socket.recv(), 60))["type"] == "reset"
        assert json.loads(await asyncio.wait_for(socket.recv(), 60))["seq"] == 1


# ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_cancel(shop: Onward, server: Any) -> None:
    task = await shop.submit("waits")
    async with connect(address(server, task.id)) as socket:
        assert await say(socket, type="cancel", id=7) == {"type": "ack", "for": "cancel", "id": 7, "state": "cancelled"}
        events, code = await until_closed(socket)
    assert code == 1000
    assert [event["status"] for event in events if event["type"] == "update"][-1:] in ([], ["cancelled"])
    assert (await task.get()).state == "cancelled"


async def test_a_decision_with_another_digest_is_refused_and_the_right_one_is_taken(shop: Onward, server: Any) -> None:
    task = await shop.submit("asks")
    passed: list[dict[str, Any]] = []
    async with connect(address(server, task.id)) as socket:
        ask_id = (await update(socket, passed, "go on?"))["ask_id"]
        (ask,) = await shop.asks("approval")
        refused = await say(socket, passed, type="approve", approval_id=ask_id, digest="0" * 64)
        assert (refused["type"], refused["status"], refused["code"]) == ("error", 409, "stale_decision")
        assert [other.id for other in await shop.asks("approval")] == [ask_id], "it is still open"
        assert (await say(socket, passed, type="deny", approval_id=ask_id, digest=ask.digest))["type"] == "ack"


async def test_approve_answer_priority_and_signal(shop: Onward, server: Any) -> None:
    task = await shop.submit("asks")
    passed: list[dict[str, Any]] = []
    async with connect(address(server, task.id)) as socket:
        ask_id = (await update(socket, passed, "go on?"))["ask_id"]
        assert (await say(socket, passed, type="priority", priority=7))["type"] == "ack"
        assert (await shop.get(task.id)).priority == 7
        answer = await say(socket, passed, type="approve", approval_id=ask_id, reason="fine")
        assert answer == {"type": "ack", "for": "approve"}
        again = await say(socket, passed, type="deny", approval_id=ask_id, id="x")
        assert (again["type"], again["for"], again["id"], again["status"]) == ("error", "deny", "x", 409)
        ask_id = (await update(socket, passed, "how?"))["ask_id"]
        assert (await say(socket, passed, type="answer", question_id=ask_id, answer="well"))["type"] == "ack"
        events = passed + (await until_closed(socket))[0]
    assert events[-1]["message"] == "well"
    waiting = await shop.submit("waits")
    async with connect(address(server, waiting.id)) as socket:
        passed = []
        assert (await say(socket, passed, type="signal", name="go", value=3))["type"] == "ack"
        events = passed + (await until_closed(socket))[0]
    assert events[-1]["message"] == "3"


async def test_a_message_to_a_task(shop: Onward, server: Any) -> None:
    @shop.task
    async def listens(ctx: Any) -> Any:
        await ctx.signal("go")
        return await ctx.messages()

    task = await shop.submit(listens)
    async with connect(address(server, task.id)) as socket:
        assert (await say(socket, type="message", text="hurry up"))["type"] == "ack"
        assert (await say(socket, type="message", text=""))["code"] == "invalid_request"
        passed: list[dict[str, Any]] = []
        assert (await say(socket, passed, type="signal", name="go"))["type"] == "ack"
        events = passed + (await until_closed(socket))[0]
    assert events[-1]["status"] == "completed"
    assert "hurry up" in events[-1]["message"]


async def test_invalid_messages_are_answered_and_change_nothing(shop: Onward, server: Any) -> None:
    task = await shop.submit("waits")
    async with connect(address(server, task.id)) as socket:
        for message, code in (
            ({"type": "dance"}, "unknown_type"),
            ({}, "unknown_type"),
            ({"type": "cancel", "more": 1}, "invalid_request"),
            ({"type": "approve"}, "invalid_request"),
            ({"type": "approve", "approval_id": "nothing.1"}, "not_found"),
            ({"type": "answer", "question_id": f"{task.id}.1", "answer": 1}, "not_found"),
            ({"type": "priority", "priority": "high"}, "invalid_request"),
            ({"type": "priority", "priority": 10**30}, "invalid_request"),
            ({"type": "signal", "name": ""}, "invalid_request"),
        ):
            answer = await say(socket, **message)
            assert (answer["type"], answer["code"]) == ("error", code), (message, answer)
        for text in ("[1]", "nonsense", '{"type":"cancel","type":"cancel"}', '{"type":NaN}', "[" * 1000, '"\\ud800"'):
            await socket.send(text)
            while (answer := json.loads(await asyncio.wait_for(socket.recv(), 60)))["type"] == "update":
                pass
            assert answer["type"] == "error", text
        await socket.send(b"\xff\xfe")
        assert json.loads(await asyncio.wait_for(socket.recv(), 60))["code"] == "bad_json"
    assert (await task.get()).state == "waiting"


# ── access ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Gate:
    """Two keys: one with all scopes, one with read."""

    revoked = False

    async def caller(self, authorization: str | None, outside: str | None = None) -> Caller:
        if self.revoked or authorization not in {"Bearer good", "Bearer reader"}:
            raise Unauthorized
        return ANYBODY if authorization == "Bearer good" else Caller(scopes=frozenset({READ}))

    async def still_valid(self, caller: Caller) -> bool:
        return not self.revoked


ATTACKS = {
    "foreign origin": {"Origin": "https://evil.example"},
    "null origin": {"Origin": "null"},
    "origin with our name in it": {"Origin": "http://127.0.0.1.evil.example"},
    "another port": {"Origin": "http://127.0.0.1:1"},
    "cookies and no origin": {"Cookie": "session=1"},
    "another host": {"Host": "evil.example"},
    "another host and its origin": {"Host": "evil.example", "Origin": "http://evil.example"},
}


async def handshake(port: int, path: str, headers: dict[str, str]) -> int:
    """The status that a bare handshake gets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = base64.b64encode(os.urandom(16)).decode()
    whole = {
        "Host": f"127.0.0.1:{port}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
    } | headers
    head = "".join(f"{name}: {value}\r\n" for name, value in whole.items())
    writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_foreign_page_is_refused(shop: Onward, server: Any, attack: str) -> None:
    task = await shop.submit("waits")
    path = f"/api/tasks/{task.id}/ws"
    status = await handshake(server[0].base_url.port, path, ATTACKS[attack])
    assert status in {403, 421}
    port = server[0].base_url.port
    assert await handshake(port, path, {}) == 101, "a client that is no browser sends no origin"
    assert await handshake(port, path, {"Origin": f"http://127.0.0.1:{port}"}) == 101, "our own page"


async def test_a_key_in_a_header_a_subprotocol_or_a_first_message(shop: Onward, server: Any) -> None:
    task = await shop.submit("waits")
    server[1].authenticator = Gate()
    where = address(server, task.id)
    async with connect(where, additional_headers={"Authorization": "Bearer good"}) as socket:
        assert json.loads(await asyncio.wait_for(socket.recv(), 60))["seq"] == 1
    async with connect(where, subprotocols=["onward", "onward.key.good"]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "onward", "the answer does not contain the key"
        assert json.loads(await asyncio.wait_for(socket.recv(), 60))["seq"] == 1
    async with connect(where) as socket:
        assert await say(socket, type="auth", key="good") == {"type": "ack", "for": "auth"}
        assert json.loads(await asyncio.wait_for(socket.recv(), 60))["seq"] == 1
    for headers in ({"Authorization": "Bearer bad"}, {"Authorization": "good"}):
        with pytest.raises(InvalidStatus) as refused:
            await connect(where, additional_headers=headers)
        assert refused.value.response.status_code == 401
    for first in ({"type": "auth", "key": "bad"}, {"type": "auth"}, {"type": "cancel"}, [1]):
        async with connect(f"{where}?key=good") as socket:  # an address is no place for a key
            await socket.send(json.dumps(first))
            events, code = await until_closed(socket)
        assert code == 1008
        assert [event["code"] for event in events] == ["unauthorized"]
    assert (await task.get()).state == "waiting"


async def test_a_client_that_sends_no_key_is_disconnected(
    shop: Onward, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "AUTH_TIMEOUT_S", 0.1)
    task = await shop.submit("waits")
    server[1].authenticator = Gate()
    async with connect(address(server, task.id)) as socket:
        assert await until_closed(socket) == ([], 1008)


async def test_a_key_with_only_read_changes_nothing(shop: Onward, server: Any) -> None:
    task = await shop.submit("waits")
    server[1].authenticator = Gate()
    async with connect(address(server, task.id), additional_headers={"Authorization": "Bearer reader"}) as socket:
        for message in ({"type": "cancel"}, {"type": "priority", "priority": 3}, {"type": "signal", "name": "go"}):
            assert (await say(socket, **message))["code"] == "forbidden"
        assert (await say(socket, type="approve", approval_id=f"{task.id}.1"))["code"] == "forbidden"


async def test_revoking_a_key_ends_its_socket(shop: Onward, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump.PACE, "check", 0.05)
    task = await shop.submit("waits")
    server[1].authenticator = gate = Gate()
    async with connect(address(server, task.id), additional_headers={"Authorization": "Bearer good"}) as socket:
        await socket.recv()
        gate.revoked = True
        assert (await until_closed(socket))[1] == 1008


async def test_a_revoked_key_changes_nothing_before_its_socket_ends(
    shop: Onward, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump.PACE, "check", 3600)
    task = await shop.submit("waits")
    server[1].authenticator = gate = Gate()
    async with connect(address(server, task.id), additional_headers={"Authorization": "Bearer good"}) as socket:
        await socket.recv()
        gate.revoked = True
        await socket.send(json.dumps({"type": "cancel"}))
        assert (await until_closed(socket))[1] == 1008
    assert not (await shop.get(task.id)).ended


async def test_a_pending_answer_is_sent_before_the_socket_ends(
    shop: Onward, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel ends the task, and with it the socket, before it has come back."""
    followers = server[1].feed.followers

    async def slowly(door: Any, task_id: str, _message: Any) -> Any:
        events = await door.cancel(task_id)
        (follower,) = followers
        while not (follower.idle and follower.last[task_id] >= 4):  # noqa: ASYNC110 -- until the end was sent
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return events

    monkeypatch.setitem(sockets.VERBS, "cancel", (sockets.ClientMessage, slowly))
    task = await shop.submit("waits")
    async with connect(address(server, task.id)) as socket:
        passed: list[dict[str, Any]] = []
        await update(socket, passed, "waits for signal go")
        await socket.send(json.dumps({"type": "cancel"}))
        events, code = await until_closed(socket)
    assert code == 1000
    assert {"type": "ack", "for": "cancel", "state": "cancelled"} in events


async def test_an_asgi_server_without_denial_responses_closes_the_handshake(shop: Onward, server: Any) -> None:
    """Not every ASGI server can answer a handshake with more than a no."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    path = "/api/tasks/nobody/ws"
    scope = {"type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    await shop.asgi()(scope | {"headers": [], "subprotocols": [], "extensions": {}}, receive, send)
    assert sent == ["websocket.close"]


async def test_an_unknown_task_and_too_many_sockets(shop: Onward, server: Any) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(address(server, "nobody"))
    assert refused.value.response.status_code == 404
    task = await shop.submit("waits")
    server[1].feed._max_streams = 1
    async with connect(address(server, task.id)) as socket:
        await socket.recv()
        with pytest.raises(InvalidStatus) as refused:
            await connect(address(server, task.id))
        assert refused.value.response.status_code == 503
        assert "retry-after" in refused.value.response.headers


# ── floods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_flood_of_messages_is_cut_off(shop: Onward, server: Any) -> None:
    task = await shop.submit("waits")
    async with connect(address(server, task.id)) as socket:
        with contextlib.suppress(ConnectionClosed):
            for number in range(5_000):
                await socket.send(f'{{"type":"priority","priority":{number % 9}}}')
        events, code = await until_closed(socket)
    assert code == 1008
    assert len([event for event in events if event["type"] == "ack"]) < 200
    assert (await server[0].get("/healthz")).status_code == 200


@pytest.mark.parametrize("size", [65_537, 10_000_000])
async def test_a_message_that_is_too_large_is_not_read(shop: Onward, server: Any, size: int) -> None:
    task = await shop.submit("waits")
    async with connect(address(server, task.id), compression=None) as socket:
        with contextlib.suppress(ConnectionClosed):
            await socket.send("x" * size)
        # A client that still sends when the server closes gets a reset, and the reset may overtake the code.
        assert (await until_closed(socket))[1] in ({1009, 1006} if size > 1_000_000 else {1009})
    async with connect(address(server, task.id)) as socket:  # the same, packed to a few bytes
        with contextlib.suppress(ConnectionClosed):
            await socket.send(" " * size)
        assert (await until_closed(socket))[1] == 1009
    await eventually(lambda: _nobody(server))


async def _nobody(server: Any) -> bool:
    return not server[1].feed.followers


async def _somebody(server: Any) -> bool:
    return bool(server[1].feed.followers)


async def test_a_flood_of_pings_and_of_connects(shop: Onward, server: Any, prove: bool) -> None:
    task = await shop.submit("waits")
    async with connect(address(server, task.id), ping_interval=None) as socket:
        pongs = [await socket.ping() for _ in range(2_000)]
        await asyncio.wait_for(pongs[-1], 60)
        assert (await say(socket, type="priority", priority=1))["type"] == "ack"
    for _ in range(10 if prove else 2):
        many = await asyncio.gather(*(_come_and_go(server, task.id) for _ in range(100)))
        assert set(many) == {1}
    await eventually(lambda: _nobody(server))
    assert (await server[0].get("/healthz")).status_code == 200


async def _come_and_go(server: Any, task_id: str) -> int:
    async with connect(address(server, task_id), open_timeout=60) as socket:
        return int(json.loads(await asyncio.wait_for(socket.recv(), 60))["seq"])


async def test_a_client_that_reads_nothing_is_disconnected(
    shop: Onward, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_TIMEOUT_S", 0.3)

    @shop.task
    async def talkative(ctx: Any) -> None:
        await eventually(lambda: _somebody(server))
        while server[1].feed.followers:
            for _ in range(200):
                ctx.progress("x" * 500)
            await asyncio.sleep(0.01)

    task = await shop.submit(talkative)
    reader, writer = await asyncio.open_connection("127.0.0.1", server[0].base_url.port, limit=1024)
    key = base64.b64encode(os.urandom(16)).decode()
    writer.write(
        f"GET /api/tasks/{task.id}/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert b"101" in await reader.readline()
    await task.result(60)  # it ends with its last follower
    writer.close()


async def test_a_client_that_does_not_answer_a_ping_is_disconnected(shop: Onward, server: Any) -> None:
    task = await shop.submit("waits")
    server[2].config.ws_ping_interval = server[2].config.ws_ping_timeout = 0.2
    reader, writer = await asyncio.open_connection("127.0.0.1", server[0].base_url.port)
    key = base64.b64encode(os.urandom(16)).decode()
    writer.write(
        f"GET /api/tasks/{task.id}/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert b"101" in await reader.readline()
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 60)  # to its end
    await eventually(lambda: _nobody(server))
    writer.close()


async def test_a_server_that_stops_closes_with_going_away(shop: Onward, server: Any) -> None:
    task = await shop.submit("waits")
    async with connect(address(server, task.id)) as socket:
        await socket.recv()
        server[2].stop_gracefully()
        assert (await until_closed(socket))[1] in {1001, 1012}
