"""WebSockets: the same updates as a stream, and messages that control the task meanwhile.

A browser opens sockets to any host, and HTTP middleware does not see them: so this module checks host and origin before it
accepts. A person with a session sends its cookie, which counts only with the `Origin` of this server. The key comes in the header `Authorization`, as the subprotocol `onward.key.KEY` beside `onward`, or in a first message
`{"type": "auth", "key": KEY}`; never in the URL, which ends up in logs.

The server answers each message with `{"type": "ack", "for": …}` or `{"type": "error", "code": …}`, with its `id` if it has one.
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
from onward.core.views import Decided
from onward.errors import KeylessOutside, OnwardError, Unauthorized
from onward.server.access.service import AuthorizedService
from onward.server.http import bodies, problem, sending
from onward.server.http.problem import Problem
from onward.server.http.routes import streams
from onward.server.http.sending import abort
from onward.server.live import pump, render, sse
from onward.server.live.feed import Closed
from onward.server.schema import shapes
from onward.server.schema.shape import Shape
from onward.service.serialize import record_json
from onward.telemetry import counters

if TYPE_CHECKING:
    from onward.server.http.state import ServerState

log = logging.getLogger("onward.socket")

MAX_MESSAGE_BYTES = 65_536
"""Bytes of one message, at most."""

MAX_AUTH_MESSAGE_BYTES = 1_024
"""Bytes of the first message of a caller that has shown no key yet: room for a key, but not for anything that is slow to parse."""

MAX_MESSAGES_PER_S, MAX_BURST = 20.0, 40.0
"""A client may send so many messages a second, and so many at once."""

AUTH_TIMEOUT_S = 10.0
"""Seconds in which a first message with a key must come."""

MAX_UNAUTHENTICATED = 100
"""Sockets that may wait for such a message at once."""

PROTOCOL, KEY_PROTOCOL_PREFIX = "onward", "onward.key."
NORMAL, GOING_AWAY, POLICY_VIOLATION, TOO_LARGE = 1000, 1001, 1008, 1009
REVOKED = POLICY_VIOLATION, "the key or the session is no longer valid"


class MessageEncoder:
    """Updates as WebSocket messages."""

    def update(self, update: Update, cursor: str) -> bytes:
        return render.to_json_bytes({"type": "update", "seq": int(cursor), **render.update_json(update)})

    def record(self, task_id: str, record: Record, cursor: str) -> bytes:  # noqa: ARG002 -- it is in the record
        return render.to_json_bytes({"type": "record", "task_id": task_id, **record_json(record)})

    def text(self, piece: ModelText) -> bytes:
        return render.to_json_bytes({"type": "text", **render.text_json(piece)})

    def cursor(self, cursor: str) -> bytes:  # noqa: ARG002 -- a message has the number of its record
        return b""

    def reset(self, about: Mapping[str, Any], cursor: str) -> bytes:
        return render.to_json_bytes({"type": "reset", "seq": int(cursor), **about})


# ── messages of clients ─────────────────────────────────────────────────────────────────────────────────────────────


class ClientMessage(Shape):
    """The fields of every message."""

    type: str
    id: str | int | None = None


class Decide(ClientMessage):
    """`approve` or `deny`."""

    approval_id: shapes.Name
    reason: Annotated[str, Field(max_length=10_000)] = ""
    arguments: dict[str, Any] | None = None
    always: bool = False
    hash: shapes.Name | None = None
    digest: shapes.Name | None = None


class Answer(ClientMessage):
    """`answer`."""

    question_id: shapes.Name
    answer: Any


class Text(ClientMessage):
    """`message`."""

    text: Annotated[str, Field(min_length=1, max_length=50_000)]


class Priority(ClientMessage):
    """`priority`."""

    priority: shapes.Priority


class Signal(ClientMessage):
    """`signal`; two signals with the same `signal_id` count as one."""

    name: shapes.Name
    value: Any = None
    signal_id: shapes.Name | None = None


MessageHandler = Callable[[AuthorizedService, str, Any], Awaitable[Any]]


async def _decide(service: AuthorizedService, _task_id: str, message: Decide) -> Any:
    return await service.decide(
        message.approval_id,
        message.type,
        reason=message.reason,
        arguments=message.arguments,
        always=message.always,
        hash=message.hash,
        digest=message.digest,
    )


VERBS: dict[str, tuple[type[ClientMessage], MessageHandler]] = {
    "cancel": (ClientMessage, lambda service, task_id, _: service.cancel(task_id)),
    "approve": (Decide, _decide),
    "deny": (Decide, _decide),
    "answer": (Answer, lambda service, _, message: service.answer(message.question_id, message.answer)),
    "message": (Text, lambda service, task_id, message: service.message(task_id, message.text)),
    "priority": (Priority, lambda service, task_id, message: service.prioritize(task_id, message.priority)),
    "signal": (
        Signal,
        lambda service, task_id, message: service.signal(task_id, message.name, message.value, id=message.signal_id),
    ),
}


# ── one socket ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Sockets:
    """The endpoint `WS /api/tasks/{id}/ws` of one server."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._unauthenticated = 0

    async def __call__(self, socket: WebSocket) -> None:
        """Serve one socket, from its request to its end."""
        try:
            service = await self._authenticate(socket)
            await service.admit()
            position = render.find_position(await self._heads(service, socket), socket.query_params.get("after"))
            readers = await pump.readers(self._server.feed, position.cursors)
            service.check_stream()
        except OnwardError as error:
            await self._server.hold_refusal(error)
            await _refuse(socket, error)
        except (WebSocketDisconnect, TimeoutError):
            await _close(socket, POLICY_VIOLATION, "no key was sent")
        else:
            view = render.View(MessageEncoder(), position.cursors, readers, position.ended)
            with service.stream():
                await self._serve(socket, service, view, position.reset)

    async def _authenticate(self, socket: WebSocket) -> AuthorizedService:
        """The service with the rights of this caller. Raises the reason why not."""
        headers = socket.headers
        origin = headers.get("origin")
        self._server.check_origin(headers.get("host", ""), origin)
        if origin is None and "cookie" in headers:
            raise Problem(
                403, "no_origin", "a browser sends the header Origin; this request has cookies, but no Origin"
            )
        authorization = headers.get("authorization")
        for protocol in socket.scope.get("subprotocols", ()):
            if authorization is None and protocol.startswith(KEY_PROTOCOL_PREFIX):
                authorization = f"Bearer {protocol.removeprefix(KEY_PROTOCOL_PREFIX)}"
        try:
            return await self._server.authorized_service(socket, authorization)
        except KeylessOutside:
            raise  # no key exists, so none can help
        except Unauthorized:
            if authorization is not None:
                raise
        return await self._authenticate_by_message(socket)

    async def _authenticate_by_message(self, socket: WebSocket) -> AuthorizedService:
        """By a key in the first message."""
        if self._unauthenticated >= MAX_UNAUTHENTICATED:
            raise Problem(503, "too_many_strangers", "too many sockets wait for their first message; try again later")
        self._unauthenticated += 1
        try:
            await _accept(socket)
            async with asyncio.timeout(AUTH_TIMEOUT_S):
                data = await _receive(socket)
        finally:
            self._unauthenticated -= 1
        if len(data) > MAX_AUTH_MESSAGE_BYTES:
            raise Problem(
                413, "message_too_large", f"a message with a key has {MAX_AUTH_MESSAGE_BYTES:,} bytes at most"
            )
        message = bodies.parse(data)
        key = message.get("key") if isinstance(message, dict) and message.get("type") == "auth" else None
        if not isinstance(key, str):
            raise Unauthorized
        service = await self._server.authorized_service(socket, f"Bearer {key}")
        await socket.send_text(json.dumps({"type": "ack", "for": "auth"}))
        return service

    async def _heads(self, service: AuthorizedService, socket: WebSocket) -> dict[str, Any]:
        self._server.feed.check_room()
        return dict(await sse.heads_of(service, self._server.feed, [socket.path_params["id"]]))

    async def _serve(
        self, socket: WebSocket, service: AuthorizedService, view: render.View, reset: Mapping[str, Any] | None
    ) -> None:
        await _accept(socket)
        feed, allowed = self._server.feed, streams.key_check(self._server, service.caller)
        out = _SocketSink(socket, feed.clock)
        async with counters.client("websocket"), feed.follow(view.cursors) as follower:
            receiving = asyncio.ensure_future(_receive_messages(socket, service, out, allowed))
            updating = asyncio.ensure_future(_send_updates(follower, view, out, allowed, service.stream_turn, reset))
            try:
                await asyncio.wait({receiving, updating}, return_when=asyncio.FIRST_COMPLETED)
                done = receiving if receiving.done() else updating
                await out.wait_answered()
                await _close(socket, *done.result())
            except WebSocketDisconnect:
                abort(socket._receive)
            finally:
                receiving.cancel()
                updating.cancel()
                await asyncio.gather(receiving, updating, return_exceptions=True)


async def _send_updates(
    follower: Any,
    view: render.View,
    out: _SocketSink,
    allowed: pump.StillAllowed,
    turn: pump.Turn,
    reset: Mapping[str, Any] | None,
) -> tuple[int, str]:
    if reset is not None:
        await out.put([view.encoder.reset(reset, view.cursor)])
    try:
        async with contextlib.aclosing(pump.batches(follower, view, out.clock, allowed, turn)) as stream:
            async for pieces in stream:
                await out.put(pieces)
    except Closed:
        return GOING_AWAY, "the server stops; reconnect after the last seq"
    except pump.Revoked:
        return REVOKED
    return NORMAL, "the task has ended"


async def _receive_messages(
    socket: WebSocket, service: AuthorizedService, out: _SocketSink, allowed: pump.StillAllowed
) -> tuple[int, str]:
    """Handle messages of the client; returns the close code and reason."""
    task_id, tokens, last = socket.path_params["id"], MAX_BURST, out.clock.monotonic()
    while True:
        try:
            data = await _receive(socket)
        except WebSocketDisconnect:
            return NORMAL, ""
        now = out.clock.monotonic()
        tokens, last = min(tokens + (now - last) * MAX_MESSAGES_PER_S, MAX_BURST) - 1, now
        if len(data) > MAX_MESSAGE_BYTES:
            return TOO_LARGE, f"a message has {MAX_MESSAGE_BYTES:,} bytes at most"
        if tokens < 0:
            return POLICY_VIOLATION, f"more than {MAX_MESSAGES_PER_S:g} messages a second"
        if not await allowed():
            return REVOKED
        async with out.answering:
            await out.put([render.to_json_bytes(await _handle(service, task_id, data))])
        # A message that is already there is received without waiting, so other tasks would not get a turn.
        await asyncio.sleep(0)


async def _handle(service: AuthorizedService, task_id: str, data: bytes) -> dict[str, Any]:
    about: dict[str, Any] = {}
    try:
        await service.admit()
        message = await bodies.run_off_loop(data, lambda: bodies.parse(data))
        about = _reply_fields(message)
        kind = about.get("for")
        if kind not in VERBS:
            raise Problem(422, "unknown_type", f"`type` is one of {', '.join(VERBS)}")
        shape, handler = VERBS[kind]
        result = await handler(service, task_id, bodies.validate(shape, message, "the message"))
    except OnwardError as error:
        details = problem.document(error)
        return {"type": "error", **about, **{name: details[name] for name in ("code", "status", "detail", "retryable")}}
    except Exception:
        log.exception("a message to task %s failed", task_id)
        return {
            "type": "error",
            **about,
            "code": "internal",
            "status": 500,
            "detail": "an internal error of the server",
        }
    return {"type": "ack", **about, **_ack_fields(result)}


def _ack_fields(result: Any) -> dict[str, Any]:
    if isinstance(result, Task):
        return {"state": result.state.value}
    if isinstance(result, Decided) and result.needed is not None:
        return {"decided": result.decided, "votes": result.votes, "needed": result.needed}
    return {}


def _reply_fields(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        return {}
    kind, number = message.get("type"), message.get("id")
    fields = {"for": kind} if isinstance(kind, str) and len(kind) <= 40 else {}
    return fields | ({"id": number} if isinstance(number, str | int) and len(str(number)) <= 200 else {})


class _SocketSink:
    """Sends messages to the client one after the other: updates and answers share it."""

    def __init__(self, socket: WebSocket, clock: Clock) -> None:
        self._socket, self.clock, self._turn = socket, clock, asyncio.Lock()
        self.answering = asyncio.Lock()
        """Held while a message of the client is handled and answered."""

    async def wait_answered(self) -> None:
        """Wait until no message waits for its answer, or it takes too long: a message that ends the task may end the socket
        before it is answered."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(sending.SEND_TIMEOUT_S), self.answering:
                return

    async def put(self, pieces: list[bytes]) -> None:
        async with self._turn:
            for piece in pieces:
                await self._socket.send_text(piece.decode())
        pieces.clear()


async def _receive(socket: WebSocket) -> bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", NORMAL))
    text, data = message.get("text"), message.get("bytes")
    return text.encode("utf-8", "replace") if isinstance(text, str) else data or b""


async def _accept(socket: WebSocket) -> None:
    if socket.application_state.name == "CONNECTING":
        protocols = socket.scope.get("subprotocols", ())
        await socket.accept(subprotocol=PROTOCOL if PROTOCOL in protocols else None)


async def _refuse(socket: WebSocket, error: OnwardError) -> None:
    """With an HTTP response if the socket is not open yet, and with a message if it is."""
    if socket.application_state.name == "CONNECTING":
        if "websocket.http.response" in socket.scope.get("extensions", {}):
            await socket.send_denial_response(problem.response(error))
        else:  # an ASGI server without denial responses
            await socket.close(POLICY_VIOLATION)
        return
    document = problem.document(error)
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_text(json.dumps({"type": "error", "code": document["code"], "detail": document["detail"]}))
    await _close(socket, POLICY_VIOLATION, document["code"])


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.close(code, reason[:120])
