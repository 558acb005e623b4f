"""WebSockets: the same updates as a stream, and a way to steer the task meanwhile.

A browser opens sockets to anywhere and no middleware for HTTP sees them: host and origin are checked here, before anything is
accepted. The key comes in the header `Authorization`, as the subprotocol `onward.key.KEY` beside `onward`, or in a first message
`{"type": "auth", "key": KEY}`; never in the address, which ends up in logs.

Each message is answered with `{"type": "ack", "for": …}` or `{"type": "error", "code": …}`, with its `id` where it has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from starlette.websockets import WebSocket, WebSocketDisconnect

from onward.core.clock import Clock
from onward.core.journal.progress import ModelText, Update
from onward.core.record import Record
from onward.core.task import Task
from onward.errors import KeylessOutside, OnwardError, Unauthorized
from onward.server.access.service import AuthorizedService
from onward.server.http import bodies, problem
from onward.server.http.problem import Problem
from onward.server.http.route import Shape
from onward.server.http.routes import streams as live
from onward.server.live import render as telling
from onward.server.live import sse as stream
from onward.server.live.feed import Closed
from onward.server.schema import shapes
from onward.service.serialize import record_json
from onward.telemetry import counters

if TYPE_CHECKING:
    from onward.server.http.app import Edge

log = logging.getLogger("onward.socket")

LONGEST = 65_536
"""Bytes of one message."""

LONGEST_KEY = 1_024
"""Bytes of the first message of a caller who has shown no key yet: it has room for a key, and for nothing that takes time to parse."""

RATE, BURST = 20.0, 40.0
"""Messages a second, and how many at once."""

PATIENCE = 10.0
"""Seconds for a first message with a key."""

STRANGERS = 100
"""Sockets that wait for such a message, at once."""

PROTOCOL, KEY = "onward", "onward.key."
NORMAL, LEAVING, REFUSED, TOO_LARGE = 1000, 1001, 1008, 1009
REVOKED = REFUSED, "the key is no longer good"


class Messages:
    """Updates as messages."""

    def update(self, update: Update, cursor: str) -> bytes:
        return telling.written({"type": "update", "seq": int(cursor), **telling.update_json(update)})

    def record(self, task_id: str, record: Record, cursor: str) -> bytes:  # noqa: ARG002 -- it is in the record
        return telling.written({"type": "record", "task_id": task_id, **record_json(record)})

    def said(self, said: ModelText) -> bytes:
        return telling.written({"type": "text", **telling.said_json(said)})

    def reset(self, about: Mapping[str, Any], cursor: str) -> bytes:
        return telling.written({"type": "reset", "seq": int(cursor), **about})


# ── what can be said ─────────────────────────────────────────────────────────────────────────────────────────────────


class Word(Shape):
    """What every message may have."""

    type: str
    id: str | int | None = None


class Decide(Word):
    """`approve` or `deny`."""

    approval_id: shapes.Name
    reason: Annotated[str, Field(max_length=10_000)] = ""
    arguments: dict[str, Any] | None = None
    always: bool = False
    hash: shapes.Name | None = None


class Answer(Word):
    """`answer`."""

    question_id: shapes.Name
    answer: Any


class Text(Word):
    """`message`."""

    text: Annotated[str, Field(min_length=1, max_length=50_000)]


class Priority(Word):
    """`priority`."""

    priority: shapes.Priority


class Signal(Word):
    """`signal`; the same `signal_id` twice is one signal."""

    name: shapes.Name
    value: Any = None
    signal_id: shapes.Name | None = None


Does = Callable[[AuthorizedService, str, Any], Awaitable[Any]]


async def _decide(door: AuthorizedService, _task_id: str, said: Decide) -> Any:
    return await door.decide(
        said.approval_id,
        said.type,
        reason=said.reason,
        arguments=said.arguments,
        always=said.always,
        hash=said.hash,
    )


VERBS: dict[str, tuple[type[Word], Does]] = {
    "cancel": (Word, lambda door, task_id, _: door.cancel(task_id)),
    "approve": (Decide, _decide),
    "deny": (Decide, _decide),
    "answer": (Answer, lambda door, _, said: door.answer(said.question_id, said.answer)),
    "message": (Text, lambda door, task_id, said: door.message(task_id, said.text)),
    "priority": (Priority, lambda door, task_id, said: door.prioritize(task_id, said.priority)),
    "signal": (Signal, lambda door, task_id, said: door.signal(task_id, said.name, said.value, id=said.signal_id)),
}


# ── one socket ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Sockets:
    """`WS /api/tasks/{id}/ws` of one server."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._strangers = 0

    async def __call__(self, socket: WebSocket) -> None:
        """One socket from its request to its end."""
        try:
            door = await self._known(socket)
            begin = telling.start(await self._heads(door, socket), socket.query_params.get("after"))
            tellers = await stream.tellers(self._edge.feed, begin.cursors)
        except OnwardError as error:
            await _deny(socket, error)
        except (WebSocketDisconnect, TimeoutError):
            await _close(socket, REFUSED, "no key came")
        else:
            view = telling.View(Messages(), begin.cursors, tellers, begin.ended)
            await self._talk(socket, door, view, begin.reset)

    async def _known(self, socket: WebSocket) -> AuthorizedService:
        """Who it is. Raises what says why not."""
        headers = socket.headers
        origin = headers.get("origin")
        self._edge.check_origin(headers.get("host", ""), origin)
        if origin is None and "cookie" in headers:
            raise Problem(403, "no_origin", "a browser says which page asks; this one brings cookies and does not")
        authorization = headers.get("authorization")
        for offered in socket.scope.get("subprotocols", ()):
            if authorization is None and offered.startswith(KEY):
                authorization = f"Bearer {offered.removeprefix(KEY)}"
        try:
            return await self._edge.door(socket, authorization)
        except KeylessOutside:
            raise  # no key would help: there is none
        except Unauthorized:
            if authorization is not None:
                raise
        return await self._introduced(socket)

    async def _introduced(self, socket: WebSocket) -> AuthorizedService:
        """With a key in the first message."""
        if self._strangers >= STRANGERS:
            raise Problem(503, "too_many_strangers", "too many sockets wait for their first message; come back later")
        self._strangers += 1
        try:
            await _accept(socket)
            async with asyncio.timeout(PATIENCE):
                data = await _received(socket)
        finally:
            self._strangers -= 1
        if len(data) > LONGEST_KEY:
            raise Problem(413, "message_too_large", f"a message with a key has {LONGEST_KEY:,} bytes at most")
        said = bodies.parse(data)
        key = said.get("key") if isinstance(said, dict) and said.get("type") == "auth" else None
        if not isinstance(key, str):
            raise Unauthorized
        door = await self._edge.door(socket, f"Bearer {key}")
        await socket.send_text(json.dumps({"type": "ack", "for": "auth"}))
        return door

    async def _heads(self, door: AuthorizedService, socket: WebSocket) -> dict[str, Any]:
        self._edge.feed.check_room()
        return dict(await stream.heads_of(door, self._edge.feed, [socket.path_params["id"]]))

    async def _talk(
        self, socket: WebSocket, door: AuthorizedService, view: telling.View, reset: Mapping[str, Any] | None
    ) -> None:
        await _accept(socket)
        feed, allowed = self._edge.feed, live.check(self._edge, door.caller)
        out = _Out(socket, feed.clock)
        async with counters.client("websocket"), feed.follow(view.cursors) as follower:
            hearing = asyncio.ensure_future(_hear(socket, door, out, allowed))
            updating = asyncio.ensure_future(_tell(follower, view, out, allowed, reset))
            try:
                await asyncio.wait({hearing, updating}, return_when=asyncio.FIRST_COMPLETED)
                done = hearing if hearing.done() else updating
                await out.answered()
                await _close(socket, *done.result())
            except (stream.Slow, WebSocketDisconnect):
                stream.abort(socket._receive)
            finally:
                hearing.cancel()
                updating.cancel()
                await asyncio.gather(hearing, updating, return_exceptions=True)


async def _tell(
    follower: Any, view: telling.View, out: _Out, allowed: stream.StillAllowed, reset: Mapping[str, Any] | None
) -> tuple[int, str]:
    if reset is not None:
        await out.put(view.told.reset(reset, view.cursor))
    try:
        await stream.pump(follower, view, out, out.clock, allowed)
    except Closed:
        return LEAVING, "the server stops; come back after the last seq"
    except stream.Revoked:
        return REVOKED
    return NORMAL, "the task has ended"


async def _hear(socket: WebSocket, door: AuthorizedService, out: _Out, allowed: stream.StillAllowed) -> tuple[int, str]:
    """Do what is said; the reason to hang up."""
    task_id, purse, last = socket.path_params["id"], BURST, out.clock.monotonic()
    while True:
        try:
            data = await _received(socket)
        except WebSocketDisconnect:
            return NORMAL, ""
        now = out.clock.monotonic()
        purse, last = min(purse + (now - last) * RATE, BURST) - 1, now
        if len(data) > LONGEST:
            return TOO_LARGE, f"a message has {LONGEST:,} bytes at most"
        if purse < 0:
            return REFUSED, f"more than {RATE:g} messages a second"
        if not await allowed():
            return REVOKED
        async with out.answering:
            await out.put(telling.written(await _answered(door, task_id, data)))
        await asyncio.sleep(0)  # what has come already is taken without a wait; others have their turn too


async def _answered(door: AuthorizedService, task_id: str, data: bytes) -> dict[str, Any]:
    said: Any = None
    about: dict[str, Any] = {}
    try:
        said = await bodies.apart(data, lambda: bodies.parse(data))
        about = _about(said)
        kind = about.get("for")
        if kind not in VERBS:
            raise Problem(422, "unknown_type", f"`type` is one of {', '.join(VERBS)}")
        shape, does = VERBS[kind]
        found = await does(door, task_id, bodies.shaped(shape, said, "the message"))
    except OnwardError as error:
        told = problem.document(error)
        return {"type": "error", **about, **{name: told[name] for name in ("code", "status", "detail", "retryable")}}
    except Exception:
        log.exception("a message to task %s failed", task_id)
        return {"type": "error", **about, "code": "internal", "status": 500, "detail": "the server made a mistake"}
    return {"type": "ack", **about, **({"state": found.state.value} if isinstance(found, Task) else {})}


def _about(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        return {}
    kind, number = said.get("type"), said.get("id")
    told = {"for": kind} if isinstance(kind, str) and len(kind) <= 40 else {}
    return told | ({"id": number} if isinstance(number, str | int) and len(str(number)) <= 200 else {})


class _Out:
    """Messages of both directions of the talk, one after the other, each within a time."""

    def __init__(self, socket: WebSocket, clock: Clock) -> None:
        self._socket, self.clock, self._turn = socket, clock, asyncio.Lock()
        self.last = clock.monotonic()
        self.answering = asyncio.Lock()
        """Held while something that was said is done and answered."""

    async def answered(self) -> None:
        """Until nobody waits for an answer, or it takes too long: what ends a task may end the talk before it is answered."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(stream.PACE.send), self.answering:
                return

    async def put(self, piece: bytes) -> None:
        try:
            async with asyncio.timeout(stream.PACE.send), self._turn:
                await self._socket.send_text(piece.decode())
        except TimeoutError:
            raise stream.Slow from None

    async def flush(self) -> None:
        """It is out already."""


async def _received(socket: WebSocket) -> bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", NORMAL))
    text, data = message.get("text"), message.get("bytes")
    return text.encode("utf-8", "replace") if isinstance(text, str) else data or b""


async def _accept(socket: WebSocket) -> None:
    if socket.application_state.name == "CONNECTING":
        offered = socket.scope.get("subprotocols", ())
        await socket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)


async def _deny(socket: WebSocket, error: OnwardError) -> None:
    """With an answer of HTTP where the socket is not open yet, and as a message where it is."""
    if socket.application_state.name == "CONNECTING":
        if "websocket.http.response" in socket.scope.get("extensions", {}):
            await socket.send_denial_response(problem.response(error))
        else:  # a server that can only say no
            await socket.close(REFUSED)
        return
    told = problem.document(error)
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_text(json.dumps({"type": "error", "code": told["code"], "detail": told["detail"]}))
    await _close(socket, REFUSED, told["code"])


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.close(code, reason[:120])
