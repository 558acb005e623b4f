"""An app for code without an event loop: Flask, Django, scripts, threads. Its methods block.

The app lives in one event loop. Where it is open, the calls of all threads run in its loop; where it is not, the first call opens it in the
loop of a thread of its own, which ends with the program.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from onward.app.events import Events
from onward.app.queries import Queries
from onward.app.threads import running_loop
from onward.app.verbs import Handle, Verbs
from onward.core.durations import Duration
from onward.core.journal.progress import Only, Update
from onward.core.record import Record
from onward.core.task import SAME, Task
from onward.engine.context.signatures import SubmitManyOptions, SubmitOptions, T_co
from onward.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncOnward, P], T]:
    """The method of `SyncOnward` for a method of `Onward`."""

    @functools.wraps(method)
    def call(self: SyncOnward, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda: method(self._app, *args, **kwargs))

    return call


class SyncOnward:
    """The verbs of an app as blocking calls, for any thread: `app.sync.submit(…)`."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._opening = threading.Lock()
        self._own: contextlib.AbstractContextManager[None] | None = None

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def submit(self, handler: str, input: Any = None, **options: Unpack[SubmitOptions]) -> SyncHandle[Any]: ...
    @overload
    def submit(
        self, handler: Callable[..., Awaitable[T]], input: Any = None, **options: Unpack[SubmitOptions]
    ) -> SyncHandle[T]: ...
    @overload
    def submit(
        self, handler: Callable[..., T], input: Any = None, **options: Unpack[SubmitOptions]
    ) -> SyncHandle[T]: ...
    def submit(self, handler: Callable[..., Any] | str, input: Any = None, **options: Any) -> SyncHandle[Any]:  # noqa: A002
        """Submit a task, and return its handle after the commit. Options as for `app.submit`."""
        return SyncHandle(self, self._run(lambda: self._app.submit(handler, input, **options)))

    @overload
    def submit_many(
        self, handler: str, inputs: Sequence[Any], **options: Unpack[SubmitManyOptions]
    ) -> Handles[Any]: ...
    @overload
    def submit_many(
        self, handler: Callable[..., Awaitable[T]], inputs: Sequence[Any], **options: Unpack[SubmitManyOptions]
    ) -> Handles[T]: ...
    @overload
    def submit_many(
        self, handler: Callable[..., T], inputs: Sequence[Any], **options: Unpack[SubmitManyOptions]
    ) -> Handles[T]: ...
    def submit_many(self, handler: Callable[..., Any] | str, inputs: Sequence[Any], **options: Any) -> Handles[Any]:
        """Submit one task for each input, in one commit: all or none. Options as for `app.submit_many`."""
        handles: list[Handle[Any]] = self._run(lambda: self._app.submit_many(handler, inputs, **options))
        return [SyncHandle(self, handle) for handle in handles]

    def handle(self, task_id: str) -> SyncHandle[Any]:
        """A handle for a task by its id. Does not look the task up."""
        return SyncHandle(self, self._app.handle(task_id))

    def fork(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> SyncHandle[Any]:  # noqa: A002
        """Submit a new task that begins with records of another, as `app.fork`."""
        return SyncHandle(self, self._run(lambda: self._app.fork(task_id, at, input=input)))

    def trigger(self, name: str) -> SyncHandle[Any]:
        """Submit the task of a schedule now, as `app.trigger`."""
        return SyncHandle(self, self._run(lambda: self._app.trigger(name)))

    # ── the other verbs ──────────────────────────────────────────────────────────────────────────────────────────

    answer = _blocking(Verbs.answer)
    approvals = _blocking(Verbs.approvals)
    artifact = _blocking(Verbs.artifact)
    artifacts = _blocking(Verbs.artifacts)
    ask = _blocking(Verbs.ask)
    asks = _blocking(Verbs.asks)
    audit = _blocking(Verbs.audit)
    budget = _blocking(Verbs.budget)
    cancel = _blocking(Verbs.cancel)
    check = _blocking(Verbs.check)
    decide = _blocking(Verbs.decide)
    deliveries = _blocking(Events.deliveries)
    doubts = _blocking(Verbs.doubts)
    in_doubt = _blocking(Verbs.in_doubt)
    fork_plan = _blocking(Verbs.fork_plan)
    get = _blocking(Queries.get)
    message = _blocking(Queries.message)
    patch = _blocking(Queries.patch)
    pause = _blocking(Verbs.pause)
    pause_queue = _blocking(Queries.pause_queue)
    pause_schedule = _blocking(Verbs.pause_schedule)
    prioritize = _blocking(Verbs.prioritize)
    prune = _blocking(Queries.prune)
    questions = _blocking(Verbs.questions)
    queues = _blocking(Queries.queues)
    raise_budget = _blocking(Verbs.raise_budget)
    redeliver = _blocking(Events.redeliver)
    remove_schedule = _blocking(Verbs.remove_schedule)
    replay = _blocking(Verbs.replay)
    resolve = _blocking(Verbs.resolve)
    resume = _blocking(Verbs.resume)
    save_schedules = _blocking(Verbs.save_schedules)
    save_subscriptions = _blocking(Events.save_subscriptions)
    schedules = _blocking(Verbs.schedules)
    signal = _blocking(Verbs.signal)
    state = _blocking(Verbs.state)
    stats = _blocking(Queries.stats)
    timeline = _blocking(Verbs.timeline)
    unpause_queue = _blocking(Queries.unpause_queue)
    unpause_schedule = _blocking(Verbs.unpause_schedule)
    versions = _blocking(Queries.versions)
    workers = _blocking(Queries.workers)
    list = _blocking(Queries.list)

    # ── opening and closing ──────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Open the app, if it is not open. The first call of another method does it too."""
        with self._opening:
            if self._app._loop is not None:
                self._check_loop()
                return
            own = running_loop(self._app)
            own.__enter__()
            self._own = own
            atexit.register(self.close)

    def close(self) -> None:
        """Close the app, if a call of this object has opened it. A later call opens it again."""
        with self._opening:
            own, self._own = self._own, None
            if own is not None and self._app._process == os.getpid():
                atexit.unregister(self.close)
                own.__exit__(None, None, None)

    def _check_loop(self) -> None:
        if self._app._process != os.getpid():
            raise UsageError(
                "the app was opened before this process was forked, and its connections belong to the parent; "
                "use app.sync only after the fork, or call app.sync.close() before it"
            )
        if self._app._loop.is_closed():
            raise UsageError(
                "the event loop in which the app was opened has ended; close the app (`await app.close()`) before its loop ends"
            )

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call in the loop of the app, and wait for it."""
        running = self._start(call)
        try:
            return running.result()
        except concurrent.futures.CancelledError:
            raise UsageError(_CLOSED) from None
        finally:
            running.cancel()  # where this thread was interrupted while it waited

    def _start(self, call: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        if _running_loop() is not None and _running_loop() is self._app._loop:
            raise UsageError(
                "app.sync would block the event loop of the app; in async code, `await` the method of the app itself"
            )
        if self._app._loop is None:
            self.open()
        else:
            self._check_loop()
        return asyncio.run_coroutine_threadsafe(call(), self._app._loop)

    def _each(self, stream: AsyncIterator[T]) -> Iterator[T]:
        """The items of a stream of the app. Raises UsageError where the app is closed meanwhile: the stream is not at its end."""
        self.open()
        loop = self._app._loop
        while (item := self._run(lambda: _next(stream))) is not _END:
            yield item
            if self._app._loop is not loop:
                raise UsageError(_CLOSED)

    def _each_while_open(self, stream: AsyncIterator[T]) -> Generator[T, None, None]:
        """The same; it ends when the app is closed, and does not open it again. The loop closes a stream that its reader has left."""
        self.open()
        loop = self._app._loop
        with contextlib.suppress(concurrent.futures.CancelledError):
            while self._app._loop is loop and (item := self._start(lambda: _next(stream)).result()) is not _END:
                yield item


class SyncHandle(Generic[T_co]):
    """A submitted task; its methods block."""

    def __init__(self, app: SyncOnward, handle: Handle[T_co]) -> None:
        self._app, self._handle = app, handle
        self.id: str = handle.id

    def __repr__(self) -> str:
        return f"<task {self.id}>"

    def result(self, timeout: Duration | None = None, *, partial: bool = False) -> T_co:
        """Wait for the result and return it, as `Handle.result`."""
        return self._app._run(lambda: self._handle.result(timeout, partial=partial))

    def get(self) -> Task:
        """The task as it is now."""
        return self._app._run(self._handle.get)

    def cancel(self) -> Task:
        """Cancel the task and its children."""
        return self._app._run(self._handle.cancel)

    def tail(self, after: int = 0) -> Iterator[Record]:
        """The records of the task as they come, until it has ended."""
        return self._app._each(self._handle.tail(after))

    def follow(self, after: int = 0, *, only: Only | None = None) -> Iterator[Update]:
        """The progress of the task as it comes, until it has ended, as `Handle.follow`."""
        return self._app._each(self._handle.follow(after, only=only))

    def sse(self, after: str | int | None = None, *, only: Only | None = None) -> Generator[bytes, None, None]:
        """The progress of the task as server-sent events, for a streaming response of Flask or Django, as `Handle.sse`. It takes the thread
        of the request until the task ends, the client leaves, or the app is closed."""
        return self._app._each_while_open(self._handle.sse(after, only=only))


_END: Any = object()
_CLOSED = "app.sync was closed while this call waited; a new call opens it again"

Handles = list[SyncHandle[T]]


async def _next(stream: AsyncIterator[T]) -> T:
    return await anext(stream, _END)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
