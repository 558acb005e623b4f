"""The messages of one stream, made as fast as its reader takes them: what happens in the journals, and signs of life.

It needs no web framework: the server's streams and sockets and `handle.sse()` of an app take their messages from here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from onward.core.clock import Clock
from onward.core.journal.progress import Only, ProgressReader
from onward.errors import StoreUnavailable, TaskNotFound
from onward.server.live.feed import Closed, Feed, Follower
from onward.server.live.render import SseEncoder, View, find_position
from onward.store.port.follow import Tail
from onward.telemetry import counters

HEARTBEAT = b": still here\n\n"
"""A comment, which readers of server-sent events skip."""

StillAllowed = Callable[[], Awaitable[bool]]
"""Whether the caller's key is still valid."""

Turn = Callable[[], contextlib.AbstractAsyncContextManager[None]]


@dataclasses.dataclass(slots=True)
class Pace:
    """The intervals of a stream, in seconds."""

    retry: float = 1.0
    """After which an EventSource reconnects."""
    over: float = 3600.0
    """After which an EventSource reconnects that has seen all updates of an ended task, and is not closed by its page."""
    heartbeat: float = 10.0
    """After so much silence a comment is sent, so that no proxy takes the connection for dead."""
    check: float = 1.0
    """Between two checks whether the key is still valid."""
    look: float = 1.0
    """Between two looks for new tasks, in the stream of all tasks."""
    exists: float = 60.0
    """Between two checks whether its tasks still exist: a task that was pruned before it was read to its end has no last
    record."""


PACE = Pace()


class Revoked(Exception):
    """The key is no longer valid."""


class NewTasks(Protocol):
    """Adds new tasks to a stream of all tasks."""

    async def look(self, follower: Follower) -> None:
        """Remove ended tasks and add new ones."""
        ...


async def readers(feed: Feed, cursors: Mapping[str, int], only: Only | None = None) -> dict[str, ProgressReader]:
    """For each task, the reader of its progress after this record."""
    return {
        task_id: ProgressReader(task_id, await feed.store.lead(task_id, seq), again=seq > 0, only=only)
        for task_id, seq in cursors.items()
    }


async def always_allowed() -> bool:
    """For streams without a key."""
    return True


async def batches(
    follower: Follower,
    view: View,
    clock: Clock,
    still_allowed: StillAllowed = always_allowed,
    turn: Turn = contextlib.nullcontext,
    *,
    heartbeat: bytes = b"",
    new_tasks: NewTasks | None = None,
) -> AsyncGenerator[list[bytes], None]:
    """The messages to send, until all tasks have ended. It holds a `turn` while it makes messages. The reader takes each list over and
    may empty it, so that no other reference keeps the messages in memory. Raises Revoked and Closed."""
    last = check = look = existence = clock.monotonic()
    while new_tasks is not None or not (view.over and follower.idle):
        if texts := list(view.texts()):
            yield texts
            last = clock.monotonic()
        now = clock.monotonic()
        if now - check >= PACE.check:
            check = now
            if not await still_allowed():
                raise Revoked
        if now - existence >= PACE.exists and follower.idle:
            existence = now
            view.ended |= await follower.missing(view.cursors.keys() - view.ended)
            continue
        if new_tasks is not None and now - look >= PACE.look:
            look = now
            with contextlib.suppress(StoreUnavailable):
                async with turn():
                    await new_tasks.look(follower)
        if heartbeat and now - last >= PACE.heartbeat:
            yield [view.sign_of_life(heartbeat)]
            last = clock.monotonic()
            continue
        until = min(last + PACE.heartbeat, check + PACE.check) if heartbeat else check + PACE.check
        until = until if new_tasks is None else min(until, look + PACE.look)
        tails = await follower.next(max(until - now, 0))
        if tails:
            async with turn():
                pieces = _encode(view, tails)
            if pieces:
                yield pieces
                last = clock.monotonic()


def _encode(view: View, tails: Sequence[Tail]) -> list[bytes]:
    return [piece for task_id, record in tails for piece in view.encode(task_id, record)]


async def events(
    follower: Follower,
    view: View,
    clock: Clock,
    still_allowed: StillAllowed = always_allowed,
    turn: Turn = contextlib.nullcontext,
    *,
    reset: Mapping[str, Any] | None = None,
    new_tasks: NewTasks | None = None,
) -> AsyncGenerator[list[bytes], None]:
    """The same as a whole stream of server-sent events. It ends early when the server stops, or the key is no longer valid."""
    yield [b"retry: %d\n\n" % round(PACE.retry * 1000)]
    if reset is not None:
        yield [view.encoder.reset(reset, view.cursor)]
    stream = batches(follower, view, clock, still_allowed, turn, heartbeat=HEARTBEAT, new_tasks=new_tasks)
    with contextlib.suppress(Closed, Revoked):
        async with contextlib.aclosing(stream):
            async for pieces in stream:
                yield pieces


async def progress(
    feed: Feed, task_id: str, cursor: str | None, only: Only | None = None
) -> AsyncGenerator[bytes, None]:
    """The progress of one task after a cursor, as server-sent events, for a program that serves them itself. Raises TaskNotFound."""
    heads = await feed.store.heads([task_id])
    if not heads:
        raise TaskNotFound(task_id)
    position = find_position(heads, cursor)
    if position.over:
        yield b"retry: %d\n\n" % round(PACE.over * 1000)
        return
    progress_readers = await readers(feed, position.cursors, only)
    view = View(SseEncoder(), position.cursors, progress_readers, position.ended, only=only)
    async with (
        counters.client("sse"),
        feed.follow(view.cursors) as follower,
        contextlib.aclosing(events(follower, view, feed.clock, reset=position.reset)) as stream,
    ):
        async for pieces in stream:
            yield b"".join(pieces)
