"""Listeners: clients that are notified when the state of a task changes.

    record ─► changes of the followed tasks ─► the bus (modern clients) and sessions (older ones)

A notification only says that a state has changed; the client then reads it. So several changes may become one notification.
Nothing runs while no client listens. The right to listen is checked here, because the SDK does not check the right to read again
before it notifies.
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
from onward.server.mcp.common import TEMPLATE, AccessByRequest, McpContext, to_mcp_error
from onward.store.port.follow import Tail

log = logging.getLogger("onward.mcp")

WAIT_TIMEOUT_S = 60.0
"""Seconds for which one wait for records lasts. Its length does not matter."""

RETRY_DELAY_S = 0.3
"""Seconds after which the database is asked again when it did not answer."""

MAX_URIS = 256
"""States that one request may listen to."""

SILENT_KINDS = frozenset({r.STEP_STARTED, r.STEP_RETRY, r.PROGRESS})
"""Kinds of records that change neither a state nor the status of a task."""

_STATE = UriTemplate.parse(TEMPLATE)

Notify = Callable[[], None]
Stop = Callable[[], None]


class Changes:
    """Notifies listeners of new records of their tasks, with one follower of the feed for all of them."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._listeners: dict[str, set[_Listener]] = {}
        self._last_seq: dict[str, int] = {}
        """For each followed task, the last record that was read."""
        self._follower: Follower | None = None
        self._running: asyncio.Task[None] | None = None

    def follow(self, task_id: str, after: int, notify: Notify) -> Stop:
        """Call `notify`, on this loop, when the task has records after this number, and again after more of them. Call the
        returned function to stop."""
        listener = _Listener(after, notify)
        self._listeners.setdefault(task_id, set()).add(listener)
        if self._running is None or self._running.done():
            self._follower = self._feed.follow(self._last_seq)
            self._running = spawn(self._run(self._follower), "onward-mcp-changes")
        if task_id not in self._last_seq:
            self._last_seq[task_id] = after
            assert self._follower is not None
            self._follower.add({task_id: after})
        elif self._last_seq[task_id] > after:
            notify()  # newer records were already read
        return lambda: self._unfollow(task_id, listener)

    def _unfollow(self, task_id: str, listener: _Listener) -> None:
        listeners = self._listeners.get(task_id, set())
        listeners.discard(listener)
        if listeners or task_id not in self._last_seq:
            return
        del self._listeners[task_id], self._last_seq[task_id]
        if self._follower is not None:
            self._follower.drop([task_id])
        if not self._listeners and self._running is not None:
            self._running.cancel()
            self._running = self._follower = None

    async def _run(self, follower: Follower) -> None:
        async with follower:
            while True:
                try:
                    self._hand_out(await follower.next(WAIT_TIMEOUT_S))
                except Closed:
                    return
                except OnwardError as error:
                    log.warning("cannot read the tasks that clients listen to, trying again: %s", error)
                    await self._feed.clock.sleep(RETRY_DELAY_S)

    def _hand_out(self, tails: Sequence[Tail]) -> None:
        changed: dict[str, int] = {}
        for task_id, record in tails:
            if task_id in self._last_seq:
                self._last_seq[task_id] = record.seq
            if record.kind not in SILENT_KINDS:
                changed[task_id] = record.seq
        for task_id, seq in changed.items():
            for listener in list(self._listeners.get(task_id, ())):
                if seq > listener.after:
                    listener.notify()


@dataclasses.dataclass(slots=True, eq=False)
class _Listener:
    after: int
    notify: Notify


class Watch:
    """The listeners of one server."""

    def __init__(self, access: AccessByRequest, feed: Feed) -> None:
        self._access, self._changes, self._heads = access, Changes(feed), feed.store.heads
        self.bus = InMemorySubscriptionBus()
        self._following: dict[str, tuple[int, Stop]] = {}
        """For each resource with listeners: their number, and the function that stops following it."""
        self._sessions: dict[tuple[int, str], Stop] = {}

    # ── modern clients ───────────────────────────────────────────────────────────────────────────────────────────

    async def listening(self, ctx: McpContext, call_next: CallNext) -> HandlerResult:
        """A middleware: checks that the client may read the resources that it listens to, and follows them while it listens."""
        if ctx.method != "subscriptions/listen":
            return await call_next(ctx)
        notifications = (ctx.params or {}).get("notifications")
        requested = notifications.get("resourceSubscriptions") if isinstance(notifications, dict) else None
        uris = [uri for uri in dict.fromkeys(requested or []) if isinstance(uri, str) and _STATE.match(uri) is not None]
        if len(uris) > MAX_URIS:
            raise MCPError(INVALID_PARAMS, f"one request listens to {MAX_URIS} states at most; send several")
        service = self._service(ctx)
        followed = [(uri, *await self._readable(service, uri)) for uri in uris]
        with contextlib.ExitStack() as stack:
            for uri, task_id, after in followed:
                stack.callback(self._follow(uri, task_id, after))
            return await call_next(ctx)

    def _follow(self, uri: str, task_id: str, after: int) -> Stop:
        """Follow a resource once, however many clients listen to it."""
        count, stop = self._following.get(uri, (0, None))
        if stop is None:
            stop = self._changes.follow(
                task_id, after, lambda: self._spawn_notification(self.bus.publish(ResourceUpdated(uri=uri)))
            )
        self._following[uri] = count + 1, stop

        def stop_one() -> None:
            count, stop = self._following[uri]
            if count > 1:
                self._following[uri] = count - 1, stop
            else:
                del self._following[uri]
                stop()

        return stop_one

    # ── older clients ────────────────────────────────────────────────────────────────────────────────────────────

    async def subscribe(self, ctx: McpContext, params: SubscribeRequestParams) -> EmptyResult:
        """`resources/subscribe`."""
        uri = str(params.uri)
        if _STATE.match(uri) is None:  # a resource of the app itself, which never changes
            return EmptyResult()
        task_id, after = await self._readable(self._service(ctx), uri)
        connection = ctx.session._connection  # the SDK has no public identity of a session's client
        key, session = (id(connection), uri), ctx.session
        if key not in self._sessions:
            self._sessions[key] = self._changes.follow(
                task_id, after, lambda: self._spawn_notification(session.send_resource_updated(uri))
            )
            connection.exit_stack.callback(self._unfollow, key)
        return EmptyResult()

    async def unsubscribe(self, ctx: McpContext, params: UnsubscribeRequestParams) -> EmptyResult:
        """`resources/unsubscribe`."""
        self._unfollow((id(ctx.session._connection), str(params.uri)))
        return EmptyResult()

    def _unfollow(self, key: tuple[int, str]) -> None:
        stop = self._sessions.pop(key, None)
        if stop is not None:
            stop()

    # ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _service(self, ctx: McpContext) -> AuthorizedService:
        try:
            return self._access.of(ctx)
        except OnwardError as error:
            raise to_mcp_error(error) from None

    async def _readable(self, service: AuthorizedService, uri: str) -> tuple[str, int]:
        """The task behind the resource, if the caller may read it, and the number of its last record: later records are
        changes. A task of another tenant is treated like one that does not exist."""
        try:
            task_id = (await task_of_uri(service, uri)).task_id
            heads = await self._heads([task_id])
            return task_id, heads[task_id].seq if task_id in heads else 0
        except NotFound:
            raise MCPError(INVALID_PARAMS, f"there is no resource {uri}", {"uri": uri}) from None
        except OnwardError as error:
            raise to_mcp_error(error) from None

    def _spawn_notification(self, notification: Any) -> None:
        spawn(_send_notification(notification), "onward-mcp-notify")


async def task_of_uri(service: AuthorizedService, uri: str) -> Any:
    """The task that a resource is about. Raises NotFound."""
    variables = _STATE.match(uri) or {}
    task = await service.get(str(variables.get("task_id", "")))
    if task.task != variables.get("agent_id"):
        raise NotFound(f"there is no resource {uri}")
    return task


async def _send_notification(notification: Any) -> None:
    """A client that cannot be notified is gone, or reads anew."""
    try:
        await notification
    except Exception as error:
        log.debug("a listener was not notified: %s", error)
