"""Who listens to which state, and is told that it has changed.

    record ─► changes of the tasks that somebody follows ─► the bus (modern clients) and sessions (older ones)

That a state has changed is all that is told; what it is now, a client reads. So several changes may be told as one. Nothing runs
while nobody listens. Whether somebody may listen is asked here, since reading is not asked again before something is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate
from mcp_types import INVALID_PARAMS, EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams

from onward.core import record as r
from onward.engine.background import spawn
from onward.errors import NotFound, OnwardError
from onward.server.access.service import AuthorizedService
from onward.server.live.feed import Closed, Feed, Follower
from onward.server.mcp.common import TEMPLATE, Asked, Doors, refusal
from onward.store.port.follow import Tail

log = logging.getLogger("onward.mcp")

POLL = 60.0
"""Seconds after which whoever waits for records waits anew: nothing depends on it."""

AGAIN = 0.3
"""Seconds after which a database that did not answer is asked again."""

MOST_URIS = 256
"""States that one request may listen to."""

QUIET = frozenset({r.STEP_STARTED, r.STEP_RETRY, r.PROGRESS})
"""Records that change neither a state nor where a task stands."""

_STATE = UriTemplate.parse(TEMPLATE)

Tell = Callable[[], None]
Stop = Callable[[], None]


class Changes:
    """Tells of tasks that something has happened in their journals: one follower of the feed for all who listen here."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._listeners: dict[str, set[_Listener]] = {}
        self._handed: dict[str, int] = {}
        """The last record of each followed task that was handed out."""
        self._follower: Follower | None = None
        self._running: asyncio.Task[None] | None = None

    def follow(self, task_id: str, after: int, tell: Tell) -> Stop:
        """Call `tell`, on this loop, when the task has records after this number, and then after more of them, until the answer is
        called."""
        listener = _Listener(after, tell)
        self._listeners.setdefault(task_id, set()).add(listener)
        if self._running is None or self._running.done():
            self._follower = self._feed.follow(self._handed)
            self._running = spawn(self._run(self._follower), "onward-mcp-changes")
        if task_id not in self._handed:
            self._handed[task_id] = after
            assert self._follower is not None
            self._follower.add({task_id: after})
        elif self._handed[task_id] > after:
            tell()  # others were told meanwhile
        return lambda: self._leave(task_id, listener)

    def _leave(self, task_id: str, listener: _Listener) -> None:
        there = self._listeners.get(task_id, set())
        there.discard(listener)
        if there or task_id not in self._handed:
            return
        del self._listeners[task_id], self._handed[task_id]
        if self._follower is not None:
            self._follower.drop([task_id])
        if not self._listeners and self._running is not None:
            self._running.cancel()
            self._running = self._follower = None

    async def _run(self, follower: Follower) -> None:
        async with follower:
            while True:
                try:
                    self._hand_out(await follower.next(POLL))
                except Closed:
                    return
                except OnwardError as error:
                    log.warning("states that are listened to cannot be looked at just now: %s", error)
                    await self._feed.clock.sleep(AGAIN)

    def _hand_out(self, tails: Sequence[Tail]) -> None:
        loud: dict[str, int] = {}
        for task_id, record in tails:
            if task_id in self._handed:
                self._handed[task_id] = record.seq
            if record.kind not in QUIET:
                loud[task_id] = record.seq
        for task_id, seq in loud.items():
            for listener in list(self._listeners.get(task_id, ())):
                if seq > listener.after:
                    listener.tell()


@dataclasses.dataclass(slots=True, eq=False)
class _Listener:
    after: int
    tell: Tell


class Watch:
    """The listeners of one server."""

    def __init__(self, doors: Doors, feed: Feed) -> None:
        self._doors, self._changes, self._heads = doors, Changes(feed), feed.store.heads
        self.bus = InMemorySubscriptionBus()
        self._following: dict[str, tuple[int, Stop]] = {}
        """Resources that somebody listens to, by how many, and how to end it."""
        self._sessions: dict[tuple[int, str], Stop] = {}

    # ── modern clients ───────────────────────────────────────────────────────────────────────────────────────────

    async def listening(self, ctx: Asked, call_next: CallNext) -> HandlerResult:
        """A middleware: whoever listens may read what they listen to, and it is followed as long as they do."""
        if ctx.method != "subscriptions/listen":
            return await call_next(ctx)
        wanted = (ctx.params or {}).get("notifications")
        uris = wanted.get("resourceSubscriptions") if isinstance(wanted, dict) else None
        ours = [uri for uri in dict.fromkeys(uris or []) if isinstance(uri, str) and _STATE.match(uri) is not None]
        if len(ours) > MOST_URIS:
            raise MCPError(INVALID_PARAMS, f"one request listens to {MOST_URIS} states at most; send several")
        door = self._door(ctx)
        followed = [(uri, *await self._readable(door, uri)) for uri in ours]
        with contextlib.ExitStack() as stack:
            for uri, task_id, after in followed:
                stack.callback(self._follow(uri, task_id, after))
            return await call_next(ctx)

    def _follow(self, uri: str, task_id: str, after: int) -> Stop:
        """One look for all that listen to the same."""
        count, stop = self._following.get(uri, (0, None))
        if stop is None:
            stop = self._changes.follow(task_id, after, lambda: self._tell(self.bus.publish(ResourceUpdated(uri=uri))))
        self._following[uri] = count + 1, stop

        def leave() -> None:
            count, stop = self._following[uri]
            if count > 1:
                self._following[uri] = count - 1, stop
            else:
                del self._following[uri]
                stop()

        return leave

    # ── older clients ────────────────────────────────────────────────────────────────────────────────────────────

    async def subscribe(self, ctx: Asked, params: SubscribeRequestParams) -> EmptyResult:
        """`resources/subscribe`."""
        uri = str(params.uri)
        if _STATE.match(uri) is None:  # somebody else's resource, which never changes
            return EmptyResult()
        task_id, after = await self._readable(self._door(ctx), uri)
        connection = ctx.session._connection  # the SDK has no other name for whom a session speaks to
        key, session = (id(connection), uri), ctx.session
        if key not in self._sessions:
            self._sessions[key] = self._changes.follow(
                task_id, after, lambda: self._tell(session.send_resource_updated(uri))
            )
            connection.exit_stack.callback(self._leave, key)
        return EmptyResult()

    async def unsubscribe(self, ctx: Asked, params: UnsubscribeRequestParams) -> EmptyResult:
        """`resources/unsubscribe`."""
        self._leave((id(ctx.session._connection), str(params.uri)))
        return EmptyResult()

    def _leave(self, key: tuple[int, str]) -> None:
        stop = self._sessions.pop(key, None)
        if stop is not None:
            stop()

    # ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _door(self, ctx: Asked) -> AuthorizedService:
        try:
            return self._doors.of(ctx)
        except OnwardError as error:
            raise refusal(error) from None

    async def _readable(self, door: AuthorizedService, uri: str) -> tuple[str, int]:
        """The task whose state that is, for who may read it, and the number of its last record: what comes after that is news.
        Somebody else's task is as unknown as one that does not exist."""
        try:
            task_id = (await of_uri(door, uri)).task_id
            heads = await self._heads([task_id])
            return task_id, heads[task_id].seq if task_id in heads else 0
        except NotFound:
            raise MCPError(INVALID_PARAMS, f"there is no resource {uri}", {"uri": uri}) from None
        except OnwardError as error:
            raise refusal(error) from None

    def _tell(self, telling: Any) -> None:
        spawn(_quietly(telling), "onward-mcp-tell")


async def of_uri(door: AuthorizedService, uri: str) -> Any:
    """The task that a resource is about. Raises NotFound."""
    found = _STATE.match(uri) or {}
    task = await door.get(str(found.get("task_id", "")))
    if task.task != found.get("agent_id"):
        raise NotFound(f"there is no resource {uri}")
    return task


async def _quietly(telling: Any) -> None:
    """Whoever cannot be told is gone, or reads anew."""
    try:
        await telling
    except Exception as error:
        log.debug("a listener was not told: %s", error)
