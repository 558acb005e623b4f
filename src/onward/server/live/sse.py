"""Server-sent events: the journal of a task, live, to anybody who can read lines.

`id:` is the number of the record, so that a browser's EventSource, or whoever sends `Last-Event-ID`, goes on after the last
update that it has: nothing is missing and nothing comes twice, whichever server answers. A stream of several tasks has the
numbers of all of them, in the order of the request, with commas between. What a model is just saying has no number; whoever
comes back is told what it said so far. Where nothing can be promised, `reset` says so.

A stream ends with its tasks; whoever asks again after that gets 204, which tells an EventSource to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onward.core.clock import Clock
from onward.core.journal.progress import ProgressReader
from onward.core.record import ENDS
from onward.errors import StoreUnavailable, TaskNotFound
from onward.server.access.service import AuthorizedService
from onward.server.http.problem import Problem
from onward.server.live.feed import Closed, Feed, Follower
from onward.server.live.render import Lines, Unnumbered, View, start
from onward.store.port.follow import Head
from onward.telemetry import counters

MOST_TASKS = 100
"""Tasks of one stream."""

CHUNK = 16_000
"""Bytes that are sent at once."""

MEDIA = "text/event-stream"
HEADERS = {
    "Content-Type": f"{MEDIA}; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or nginx would keep it until it is over
}

StillAllowed = Callable[[], Awaitable[bool]]
"""Whether the key that was shown is still good."""


@dataclasses.dataclass(slots=True)
class Pace:
    """How often a stream does what, in seconds."""

    retry: float = 1.0
    """After which an EventSource comes back."""
    heartbeat: float = 10.0
    """Of silence after which a comment is sent, so that nobody in between takes the line for dead."""
    check: float = 1.0
    """Between two looks whether the key is still good."""
    send: float = 20.0
    """In which a client has to take what is sent. One that is slower is dropped, and may come back."""
    look: float = 1.0
    """Between two looks for new tasks, in the stream of all tasks."""
    there: float = 60.0
    """Between two looks whether its tasks are still there: one that was pruned before it was read to its end has none."""


PACE = Pace()


# ── where to begin ───────────────────────────────────────────────────────────────────────────────────────────────────


async def heads_of(door: AuthorizedService, feed: Feed, ids: Sequence[str]) -> dict[str, Head]:
    """Where these tasks are, in this order. Raises TaskNotFound, and Forbidden."""
    for task_id in ids:
        await door.get(task_id)
    found = await feed.store.heads(ids)
    if missing := [task_id for task_id in ids if task_id not in found]:
        raise TaskNotFound(missing[0])  # it was removed just now
    return {task_id: found[task_id] for task_id in ids}


async def tellers(feed: Feed, cursors: Mapping[str, int]) -> dict[str, ProgressReader]:
    """Those who tell progress after these records."""
    return {
        task_id: ProgressReader(task_id, await feed.store.lead(task_id, seq), again=seq > 0)
        for task_id, seq in cursors.items()
    }


async def progress(
    door: AuthorizedService, feed: Feed, ids: Sequence[str], cursor: str | None, still_allowed: StillAllowed
) -> Response:
    """Progress updates of one task or several, after a cursor."""
    ids = list(dict.fromkeys(ids))
    if not ids:
        raise Problem(400, "no_task_id", "say which task: /api/progress?task_id=ID, or ?all=true for all of them")
    if len(ids) > MOST_TASKS:
        raise Problem(422, "too_many_tasks", f"a stream has {MOST_TASKS} tasks at most, and these are {len(ids)}")
    begin = start(await heads_of(door, feed, ids), cursor)
    if begin.over:
        return Response(status_code=204)
    view = View(Lines(), begin.cursors, await tellers(feed, begin.cursors), begin.ended)
    return Events(feed, view, still_allowed, begin.reset)


async def records(
    door: AuthorizedService, feed: Feed, task_id: str, cursor: str | None, still_allowed: StillAllowed
) -> Response:
    """All records of a task, after a cursor."""
    begin = start(await heads_of(door, feed, [task_id]), cursor)
    if begin.over:
        return Response(status_code=204)
    return Events(feed, View(Lines(), begin.cursors, None, begin.ended), still_allowed, begin.reset)


async def everything(door: AuthorizedService, feed: Feed, also: Sequence[str], still_allowed: StillAllowed) -> Response:
    """Progress updates of all tasks of the caller: of the newest and `also` of these from now on, and of those that are submitted
    from now on from their beginning. No cursor: each connection begins with a `reset`, after which a client reads the list anew."""
    if len(also) > MOST_TASKS:
        raise Problem(422, "too_many_tasks", f"a stream has {MOST_TASKS} tasks at most, and these are {len(also)}")
    found, _ = await door.list(limit=MOST_TASKS)
    heads = await feed.store.heads([task.task_id for task in found]) | await heads_of(door, feed, also)
    cursors = {task_id: head.seq for task_id, head in heads.items()}
    open_ = {task_id: seq for task_id, seq in cursors.items() if heads[task_id].kind not in ENDS}
    view = View(Unnumbered(), open_, await tellers(feed, open_))
    known = {task_id: (seq, 0.0) for task_id, seq in cursors.items()}
    known |= {task.task_id: (cursors.get(task.task_id, 0), task.updated_at) for task in found}
    more = _More(door, feed, view, known, also)
    return Events(feed, view, still_allowed, {"reason": "begin", "tasks": cursors}, more)


class _More:
    """New tasks for the stream of all tasks, and those that were resumed; those that have ended leave it."""

    def __init__(
        self, door: AuthorizedService, feed: Feed, view: View, known: dict[str, tuple[int, float]], also: Sequence[str]
    ) -> None:
        self._door, self._feed, self._view, self._also = door, feed, view, also
        self._known = known
        """Up to where tasks were told that are not in the view, and when something happened to them last."""

    async def look(self, follower: Follower) -> None:
        """Let go of the ended, and take in what is new, unless there are so many that this is no stream to read."""
        gone = list(self._view.ended)
        follower.drop(gone)
        for task_id in gone:
            self._known[task_id] = self._view.cursors[task_id], 0.0
            self._view.drop(task_id)
        found, _ = await self._door.list(limit=MOST_TASKS)
        others = [task for task in found if task.task_id not in self._view.cursors]
        ids = [task.task_id for task in others if self._last(task.task_id)[1] != task.updated_at]
        older = [task_id for task_id in self._also if task_id not in self._view.cursors and task_id not in ids]
        new = await self._new([*ids, *older])
        told = await tellers(self._feed, new)
        self._known = {
            **{task_id: self._last(task_id) for task_id in older},
            **{task.task_id: (self._last(task.task_id)[0], task.updated_at) for task in others},
        }
        for task_id, after in new.items():
            self._view.add(task_id, told[task_id], after)
        follower.add(new)

    async def _new(self, ids: Sequence[str]) -> dict[str, int]:
        """Those of them that have records which were not told, and after which."""
        heads = await self._feed.store.heads(ids) if ids else {}
        room = max(MOST_TASKS * 2 - len(self._view.cursors), 0)
        new = [task_id for task_id in ids if task_id in heads and heads[task_id].seq > self._last(task_id)[0]]
        return {task_id: self._last(task_id)[0] for task_id in new[:room]}

    def _last(self, task_id: str) -> tuple[int, float]:
        return self._known.get(task_id, (0, 0.0))


# ── the answer ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Slow(Exception):
    """The client does not take what is sent."""


class Revoked(Exception):
    """The key is no longer good."""


class Out(Protocol):
    """Where what is told goes."""

    last: float
    """When something was last sent."""

    async def put(self, piece: bytes) -> None:
        """One piece more. Raises Slow."""
        ...

    async def flush(self) -> None:
        """Send what was put."""
        ...


async def pump(
    follower: Follower,
    view: View,
    out: Out,
    clock: Clock,
    still_allowed: StillAllowed,
    *,
    heartbeat: bytes = b"",
    more: _More | None = None,
) -> None:
    """Tell what happens, until all tasks have ended. Raises Slow, Revoked and Closed."""
    check = look = there = clock.monotonic()
    while more is not None or not (view.over and follower.idle):
        for piece in view.said():
            await out.put(piece)
        await out.flush()
        now = clock.monotonic()
        if now - check >= PACE.check:
            check = now
            if not await still_allowed():
                raise Revoked
        if now - there >= PACE.there and follower.idle:
            there = now
            view.ended |= await follower.gone(view.cursors.keys() - view.ended)
            continue
        if more is not None and now - look >= PACE.look:
            look = now
            with contextlib.suppress(StoreUnavailable):
                await more.look(follower)
        if heartbeat and now - out.last >= PACE.heartbeat:
            await out.put(heartbeat)
            continue
        until = min(out.last + PACE.heartbeat, check + PACE.check) if heartbeat else check + PACE.check
        until = until if more is None else min(until, look + PACE.look)
        for task_id, record in await follower.next(max(until - now, 0)):
            for piece in view.tell(task_id, record):
                await out.put(piece)
    await out.flush()


class Events(Response):
    """An answer that goes on until its tasks have ended, the client is gone or too slow, its key is no longer good, or the
    server stops."""

    def __init__(
        self,
        feed: Feed,
        view: View,
        still_allowed: StillAllowed,
        reset: Mapping[str, Any] | None = None,
        more: _More | None = None,
    ) -> None:
        feed.check_room()
        super().__init__(status_code=200, headers=HEADERS)
        del self.headers["content-length"]
        self._feed, self._view, self._still_allowed, self._reset, self._more = feed, view, still_allowed, reset, more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The whole answer."""
        if scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)
            return
        async with counters.client("sse"), self._feed.follow(self._view.cursors) as follower:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            pumping = asyncio.ensure_future(self._pump(follower, send))
            leaving = asyncio.ensure_future(gone(receive))
            try:
                await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if pumping.done():
                    pumping.result()
            except Slow:
                if abort(receive):
                    await leaving
            finally:
                pumping.cancel()
                leaving.cancel()
                await asyncio.gather(pumping, leaving, return_exceptions=True)

    async def _pump(self, follower: Follower, send: Send) -> None:
        out = _Chunks(send, self._feed.clock)
        await out.put(b"retry: %d\n\n" % round(PACE.retry * 1000))
        if self._reset is not None:
            await out.put(self._view.told.reset(self._reset, self._view.cursor))
        with contextlib.suppress(Closed, Revoked):
            await pump(
                follower,
                self._view,
                out,
                self._feed.clock,
                self._still_allowed,
                heartbeat=b": still here\n\n",
                more=self._more,
            )
        await out.send(b"", more=False)


class _Chunks:
    """Gathers pieces and sends them in chunks, each within a time."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send, self._clock = send, clock
        self._pieces: list[bytes] = []
        self._size = 0
        self.last = self._clock.monotonic()

    async def put(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= CHUNK:
            await self.flush()

    async def flush(self) -> None:
        whole, self._pieces, self._size = b"".join(self._pieces), [], 0
        for at in range(0, len(whole), CHUNK):
            await self.send(whole[at : at + CHUNK])

    async def send(self, body: bytes, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(PACE.send):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise Slow from None
        self.last = self._clock.monotonic()


async def gone(receive: Receive) -> None:
    """Until the client is."""
    while (await receive())["type"] != "http.disconnect":
        pass


def abort(receive: Any) -> bool:
    """Hang up at once: what was written and not taken is thrown away. ASGI has no word for that, so this asks the server's own
    object, where there is one; without it the server closes when the client has read the rest."""
    hang_up = getattr(getattr(getattr(receive, "__self__", None), "transport", None), "abort", None)
    if hang_up is None:
        return False
    hang_up()
    return True
