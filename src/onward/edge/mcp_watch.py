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
from collections.abc import Callable
from typing import Any, Protocol

from mcp.server.context import CallNext, HandlerResult
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate
from mcp_types import INVALID_PARAMS, EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams

from onward.core import record as r
from onward.edge.door import Door
from onward.edge.mcp_words import TEMPLATE, Asked, Doors, refusal
from onward.errors import NotFound, OnwardError
from onward.service import Service

log = logging.getLogger("onward.mcp")

LOOK_EVERY = 0.25
"""Seconds between two looks at the journals that somebody follows."""

MOST_URIS = 256
"""States that one request may listen to."""

QUIET = frozenset({r.STEP_STARTED, r.STEP_RETRY, r.PROGRESS})
"""Records that change neither a state nor where a task stands."""

_STATE = UriTemplate.parse(TEMPLATE)

Tell = Callable[[], None]
Stop = Callable[[], None]


class Changes(Protocol):
    """Tells of tasks that something has happened in their journals."""

    def follow(self, task_id: str, after: int, tell: Tell) -> Stop:
        """Call `tell`, on this loop, when the task has records after this number, and then after more of them, until the answer is
        called."""
        ...


class Looking:
    """The plain way: look at the end of each followed journal now and then."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._followed: dict[object, _Followed] = {}
        self._running: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    def follow(self, task_id: str, after: int, tell: Tell) -> Stop:
        """As `Changes` says."""
        token = object()
        self._followed[token] = _Followed(task_id, after, tell)
        if self._running is None:
            self._over = asyncio.Event()
            self._running = asyncio.get_running_loop().create_task(self._run(), name="onward-mcp-changes")

        def stop() -> None:
            self._followed.pop(token, None)
            if not self._followed and self._running is not None:
                self._over.set()
                self._running = None

        return stop

    async def _run(self) -> None:
        over = self._over
        while not over.is_set():
            for followed in list(self._followed.values()):
                try:
                    await self._look(followed)
                except OnwardError as error:
                    log.warning("task %s cannot be followed just now: %s", followed.task_id, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_EVERY)

    async def _look(self, followed: _Followed) -> None:
        records = await self._service.journal(followed.task_id, followed.after)
        if records:
            followed.after = records[-1].seq
        if any(record.kind not in QUIET for record in records):
            followed.tell()


@dataclasses.dataclass(slots=True, eq=False)
class _Followed:
    task_id: str
    after: int
    tell: Tell


class Watch:
    """The listeners of one server."""

    def __init__(self, doors: Doors, changes: Changes) -> None:
        self._doors, self._changes = doors, changes
        self.bus = InMemorySubscriptionBus()
        self._following: dict[str, tuple[int, Stop]] = {}
        """Resources that somebody listens to, by how many, and how to end it."""
        self._sessions: dict[tuple[int, str], Stop] = {}
        self._telling: set[asyncio.Task[None]] = set()

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

    def _door(self, ctx: Asked) -> Door:
        try:
            return self._doors.of(ctx)
        except OnwardError as error:
            raise refusal(error) from None

    async def _readable(self, door: Door, uri: str) -> tuple[str, int]:
        """The task whose state that is, for who may read it, and the number of its last record: what comes after that is news.
        Somebody else's task is as unknown as one that does not exist."""
        try:
            task_id = (await of_uri(door, uri)).task_id
            last, page = 0, await door.service.journal(task_id, None)
            while page:
                last, page = page[-1].seq, await door.service.journal(task_id, page[-1].seq)
            return task_id, last
        except NotFound:
            raise MCPError(INVALID_PARAMS, f"there is no resource {uri}", {"uri": uri}) from None
        except OnwardError as error:
            raise refusal(error) from None

    def _tell(self, telling: Any) -> None:
        task = asyncio.ensure_future(_quietly(telling))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


async def of_uri(door: Door, uri: str) -> Any:
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
