"""Server-sent events: the journal of a task, live, over plain HTTP.

`id:` is the number of the record. A browser's EventSource, or any client that sends `Last-Event-ID`, goes on after the last
update that it has: no update is missing and none comes twice, whichever server answers. A stream of several tasks has the numbers
of all of them, in the order of the request, separated by commas. The text that a model is generating has no number; a client that
reconnects gets all of it so far. Where this promise cannot be kept, the server sends `reset`.

A stream ends with its tasks. After that, a new request gets 204, which tells an EventSource to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onward.core.journal.progress import Only
from onward.core.record import ENDS
from onward.errors import TaskNotFound
from onward.server.access.service import AuthorizedService
from onward.server.http.problem import Problem
from onward.server.http.sending import SPOOL, client_gone
from onward.server.live.feed import Feed, Follower
from onward.server.live.pump import StillAllowed, events, readers
from onward.server.live.render import SseEncoder, SseEncoderWithoutCursor, View, find_position
from onward.store.port.follow import Head
from onward.telemetry import counters

MAX_TASKS = 100
"""Tasks of one stream, at most."""

CHUNK_BYTES = 16_000
"""Bytes that are sent at once, at most."""

MEDIA = "text/event-stream"
HEADERS = {
    "Content-Type": f"{MEDIA}; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # otherwise nginx would buffer the whole stream
}


# ── where to begin ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def heads_of(service: AuthorizedService, feed: Feed, ids: Sequence[str]) -> dict[str, Head]:
    """The last records of these tasks, in this order. Raises TaskNotFound and Forbidden."""
    for task_id in ids:
        await service.get(task_id, most=0)
    heads = await feed.store.heads(ids)
    if missing := [task_id for task_id in ids if task_id not in heads]:
        raise TaskNotFound(missing[0])  # it was pruned just now
    return {task_id: heads[task_id] for task_id in ids}


async def progress(
    service: AuthorizedService,
    feed: Feed,
    ids: Sequence[str],
    cursor: str | None,
    still_allowed: StillAllowed,
    only: Only | None = None,
) -> Response:
    """Progress updates of one task or several, after a cursor."""
    ids = list(dict.fromkeys(ids))
    if not ids:
        raise Problem(400, "no_task_id", "name a task: /api/progress?task_id=ID, or ?all=true for all of them")
    if len(ids) > MAX_TASKS:
        raise Problem(422, "too_many_tasks", f"a stream has {MAX_TASKS} tasks at most; this request names {len(ids)}")
    position = find_position(await heads_of(service, feed, ids), cursor)
    if position.over:
        return Response(status_code=204)
    progress_readers = await readers(feed, position.cursors, only)
    view = View(SseEncoder(), position.cursors, progress_readers, position.ended, only=only)
    return EventsResponse(service, feed, view, still_allowed, position.reset)


async def records(
    service: AuthorizedService, feed: Feed, task_id: str, cursor: str | None, still_allowed: StillAllowed
) -> Response:
    """All records of a task, after a cursor."""
    position = find_position(await heads_of(service, feed, [task_id]), cursor)
    if position.over:
        return Response(status_code=204)
    view = View(SseEncoder(), position.cursors, None, position.ended)
    return EventsResponse(service, feed, view, still_allowed, position.reset)


async def everything(
    service: AuthorizedService,
    feed: Feed,
    also: Sequence[str],
    still_allowed: StillAllowed,
    only: Only | None = None,
) -> Response:
    """Progress of all tasks that the caller sees: of the newest ones and of `also` from now on, and of new tasks from their
    beginning. It has no cursor: each connection begins with a `reset`, after which the client reads the list anew."""
    if len(also) > MAX_TASKS:
        raise Problem(422, "too_many_tasks", f"a stream has {MAX_TASKS} tasks at most; this request names {len(also)}")
    newest, _ = await service.list(limit=MAX_TASKS, brief=True)
    heads = await feed.store.heads([task.task_id for task in newest]) | await heads_of(service, feed, also)
    cursors = {task_id: head.seq for task_id, head in heads.items()}
    open_ = {task_id: seq for task_id, seq in cursors.items() if heads[task_id].kind not in ENDS}
    view = View(SseEncoderWithoutCursor(), open_, await readers(feed, open_, only), only=only)
    known = {task_id: (seq, 0.0) for task_id, seq in cursors.items()}
    known |= {task.task_id: (cursors.get(task.task_id, 0), task.updated_at) for task in newest}
    new_tasks = _NewTasks(service, feed, view, known, also)
    return EventsResponse(service, feed, view, still_allowed, {"reason": "begin", "tasks": cursors}, new_tasks)


class _NewTasks:
    """Adds new and resumed tasks to the stream of all tasks, and removes those that have ended."""

    def __init__(
        self,
        service: AuthorizedService,
        feed: Feed,
        view: View,
        known: dict[str, tuple[int, float]],
        also: Sequence[str],
    ) -> None:
        self._service, self._feed, self._view, self._also = service, feed, view, also
        self._known = known
        """For tasks that are not in the view: the last record that was sent, and their last `updated_at`."""

    async def look(self, follower: Follower) -> None:
        """Remove ended tasks and add new ones, as long as there is room."""
        ended = list(self._view.ended)
        follower.drop(ended)
        for task_id in ended:
            self._known[task_id] = self._view.cursors[task_id], 0.0
            self._view.drop(task_id)
        newest, _ = await self._service.list(limit=MAX_TASKS, brief=True)
        others = [task for task in newest if task.task_id not in self._view.cursors]
        ids = [task.task_id for task in others if self._last(task.task_id)[1] != task.updated_at]
        older = [task_id for task_id in self._also if task_id not in self._view.cursors and task_id not in ids]
        new = await self._new([*ids, *older])
        new_readers = await readers(self._feed, new, self._view.only)
        self._known = {
            **{task_id: self._last(task_id) for task_id in older},
            **{task.task_id: (self._last(task.task_id)[0], task.updated_at) for task in others},
        }
        for task_id, after in new.items():
            self._view.add(task_id, new_readers[task_id], after)
        follower.add(new)

    async def _new(self, ids: Sequence[str]) -> dict[str, int]:
        """Those of them that have unsent records, with the record to go on after."""
        heads = await self._feed.store.heads(ids) if ids else {}
        room = max(MAX_TASKS * 2 - len(self._view.cursors), 0)
        new = [task_id for task_id in ids if task_id in heads and heads[task_id].seq > self._last(task_id)[0]]
        return {task_id: self._last(task_id)[0] for task_id in new[:room]}

    def _last(self, task_id: str) -> tuple[int, float]:
        return self._known.get(task_id, (0, 0.0))


# ── the response ───────────────────────────────────────────────────────────────────────────────────────────────────────


class EventsResponse(Response):
    """A response that goes on until its tasks have ended, the client is gone or too slow, its key is no longer valid, or the
    server stops."""

    def __init__(
        self,
        service: AuthorizedService,
        feed: Feed,
        view: View,
        still_allowed: StillAllowed,
        reset: Mapping[str, Any] | None = None,
        new_tasks: _NewTasks | None = None,
    ) -> None:
        feed.check_room()
        service.check_stream()
        self._service = service
        super().__init__(status_code=200, headers=HEADERS)
        del self.headers["content-length"]
        self._feed, self._view, self._still_allowed, self._reset, self._new_tasks = (
            feed,
            view,
            still_allowed,
            reset,
            new_tasks,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole response."""
        if scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)
            return
        with self._service.stream():
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
        async with counters.client("sse"), self._feed.follow(self._view.cursors) as follower:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            pumping = asyncio.ensure_future(self._pump(follower, send))
            leaving = asyncio.ensure_future(client_gone(receive))
            try:
                await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if pumping.done():
                    pumping.result()
            finally:
                pumping.cancel()
                leaving.cancel()
                await asyncio.gather(pumping, leaving, return_exceptions=True)

    async def _pump(self, follower: Follower, send: Send) -> None:
        out = _ChunkSink(send)
        turn = self._service.stream_turn
        clock, new_tasks = self._feed.clock, self._new_tasks
        stream = events(follower, self._view, clock, self._still_allowed, turn, reset=self._reset, new_tasks=new_tasks)
        with contextlib.suppress(Problem):  # no room in the spool; the client may come back
            async with contextlib.aclosing(stream):
                async for pieces in stream:
                    await out.put(pieces)
        await out.send(b"", more=False)


class _ChunkSink:
    """Sends messages in chunks. Many bytes wait in the spool meanwhile."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def put(self, pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        pieces.clear()
        if len(data) <= CHUNK_BYTES:
            if data:
                await self.send(data)
            return
        with SPOOL.store(data) as body:
            del data
            while chunk := body.read(CHUNK_BYTES):
                await self.send(chunk)

    async def send(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
