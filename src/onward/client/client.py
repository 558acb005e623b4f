"""The two clients: who runs the scripts, and the handles that a submit gives. The only place that knows httpx2."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Self, TypeVar

from onward.client.script import (
    NOTHING,
    Answer,
    Found,
    Lost,
    Pause,
    Request,
    Script,
    Step,
    Stream,
    stream,
    verb,
)
from onward.client.sse import MEDIA
from onward.client.verbs import Verbs
from onward.core import wire
from onward.core.durations import Duration
from onward.core.journal.progress import Update
from onward.core.record import Record
from onward.core.task import Task
from onward.errors import UsageError

try:
    import httpx2
except ImportError:
    raise ImportError("httpx2 is not installed; pip install 'onward[client]'") from None

T = TypeVar("T")
TIMEOUT = 10.0
PATIENCE = 30.0
IDLE = 3.0
"""Seconds after which an idle connection is not used again. Servers close theirs after five, and a request that crosses with
that is lost."""

UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Client(Verbs["Handle"]):
    """A server, from a program with an event loop.

        async with Client("https://onward.example.com", key="onw_…") as client:
            task = await client.submit("deploy", "web")
            print(await task.result(timeout="5m"))

    `timeout` is how long the server may be silent about one request, `patience` how long a request is tried again when it is
    not answered. Further options are those of `httpx2.AsyncClient`.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout: Duration = TIMEOUT,
        patience: Duration = PATIENCE,
        **options: Any,
    ) -> None:
        super().__init__(url, timeout, patience)
        self._http = httpx2.AsyncClient(**_options(key, options))

    def handle(self, task_id: str) -> Handle:
        """A handle for a task by its id; nothing is looked up yet."""
        return Handle(self, task_id)

    async def close(self) -> None:
        """Let go of all connections. `async with client:` does it for you."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def run(self, script: Script[T]) -> T:
        """What a script returns; each verb is one."""
        line, said = _Line(self, self._http), None
        try:
            while True:
                said = await line.done(script.send(said))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def each(self, script: Stream[T]) -> AsyncIterator[T]:
        """What a stream finds."""
        line, said = _Line(self, self._http), None
        try:
            while True:
                step = script.send(said)
                if isinstance(step, Found):
                    said = None
                    yield step.value
                else:
                    said = await line.done(step)
        except StopIteration:
            return
        finally:
            await line.close()


class SyncClient(Verbs["SyncHandle"]):
    """A server, from a program without an event loop; as `Client` otherwise. Threads may share one."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout: Duration = TIMEOUT,
        patience: Duration = PATIENCE,
        **options: Any,
    ) -> None:
        super().__init__(url, timeout, patience)
        self._http = httpx2.Client(**_options(key, options))

    def handle(self, task_id: str) -> SyncHandle:
        """A handle for a task by its id; nothing is looked up yet."""
        return SyncHandle(self, task_id)

    def close(self) -> None:
        """Let go of all connections. `with client:` does it for you."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, script: Script[T]) -> T:
        """What a script returns; each verb is one."""
        line, said = _SyncLine(self, self._http), None
        try:
            while True:
                said = line.done(script.send(said))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def each(self, script: Stream[T]) -> Iterator[T]:
        """What a stream finds."""
        line, said = _SyncLine(self, self._http), None
        try:
            while True:
                step = script.send(said)
                if isinstance(step, Found):
                    said = None
                    yield step.value
                else:
                    said = line.done(step)
        except StopIteration:
            return
        finally:
            line.close()


# ── handles ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Handle:
    """A submitted task."""

    id: str
    _client: Any

    def __repr__(self) -> str:
        return f"<task {self.id}>"

    @verb
    def result(self, timeout: Duration | None = None, *, partial: bool = False) -> Script[Any]:
        """The result, once it is there. Raises TaskFailed, TaskCancelled or ResultTimeout; the task goes on regardless. With
        `partial`, a task that failed gives the best result that it had by then, where it had one."""
        return Verbs.result.script(self._client, self.id, timeout, partial=partial)

    @verb
    def get(self) -> Script[Task]:
        """The task as it is now."""
        return Verbs.get.script(self._client, self.id)

    @verb
    def cancel(self) -> Script[Task]:
        """End the task."""
        return Verbs.cancel.script(self._client, self.id)

    @stream
    def tail(self, after: int = 0) -> Stream[Record]:
        """Its records as they come, until it has ended."""
        return Verbs.tail.script(self._client, self.id, after)

    @stream
    def follow(self, after: int = 0) -> Stream[Update]:
        """Its progress as it comes, until it has ended."""
        return Verbs.follow.script(self._client, self.id, after)


class Handle(_Handle):
    """A submitted task."""

    def __init__(self, client: Client, task_id: str) -> None:
        self._client, self.id = client, task_id
        self.run, self.each = client.run, client.each


class SyncHandle(_Handle):
    """A submitted task."""

    def __init__(self, client: SyncClient, task_id: str) -> None:
        self._client, self.id = client, task_id
        self.run, self.each = client.run, client.each


# ── the line to the server ───────────────────────────────────────────────────────────────────────────────────────────


class _Line:
    """What one script has open."""

    def __init__(self, client: Client, http: httpx2.AsyncClient) -> None:
        self._client, self._http = client, http
        self._open: httpx2.Response | None = None
        self._pieces: AsyncIterator[bytes]

    async def done(self, step: Step) -> Any:
        """What came of a step."""
        try:
            if isinstance(step, Request):
                return await self._sent(step)
            if isinstance(step, Pause):
                return await self._client.clock.sleep(step)
            return await anext(self._pieces, None)
        except httpx2.RequestError as error:
            return _lost(error)

    async def _sent(self, request: Request) -> Answer:
        await self.close()
        response = await self._http.send(_built(self._client, self._http, request), stream=request.listens)
        if not request.listens:
            return _answer(response)
        self._open, self._pieces = response, response.aiter_bytes()
        if not _listening(response):
            await response.aread()
        return _answer(response)

    async def close(self) -> None:
        if self._open is not None:
            response, self._open = self._open, None
            await response.aclose()


class _SyncLine:
    """The same without a loop."""

    def __init__(self, client: SyncClient, http: httpx2.Client) -> None:
        self._client, self._http = client, http
        self._open: httpx2.Response | None = None
        self._pieces: Iterator[bytes]

    def done(self, step: Step) -> Any:
        """What came of a step."""
        try:
            if isinstance(step, Request):
                return self._sent(step)
            if isinstance(step, Pause):
                return self._client.clock.nap(step)
            return next(self._pieces, None)
        except httpx2.RequestError as error:
            return _lost(error)

    def _sent(self, request: Request) -> Answer:
        self.close()
        response = self._http.send(_built(self._client, self._http, request), stream=request.listens)
        if not request.listens:
            return _answer(response)
        self._open, self._pieces = response, response.iter_bytes()
        if not _listening(response):
            response.read()
        return _answer(response)

    def close(self) -> None:
        if self._open is not None:
            response, self._open = self._open, None
            response.close()


def _options(key: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Connections are not rationed: each result that somebody waits for holds one."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageError("the key has characters that no key has; use it as `onward keys create` printed it")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return {"limits": httpx2.Limits(max_connections=None, keepalive_expiry=IDLE), "headers": headers, **given}


def _built(client: Verbs[Any], http: httpx2.AsyncClient | httpx2.Client, request: Request) -> httpx2.Request:
    headers: dict[bytes, bytes] = {name.encode(): value for name, value in request.headers.items()}
    content = None
    if request.body is not NOTHING:
        headers[b"Content-Type"] = b"application/json"
        content = wire.encode(request.body, "what is sent")
    timeout = httpx2.Timeout(client.timeout, read=client.timeout + request.held)
    return http.build_request(
        request.method,
        client.url + request.path,
        params=dict(request.query) or None,
        headers=headers,
        content=content,
        timeout=timeout,
    )


def _listening(response: httpx2.Response) -> bool:
    return response.status_code < 400 and _answer_head(response).media == MEDIA


def _answer_head(response: httpx2.Response) -> Answer:
    return Answer(response.status_code, response.headers)


def _answer(response: httpx2.Response) -> Answer:
    return Answer(response.status_code, response.headers, response.content if response.is_stream_consumed else b"")


def _lost(error: httpx2.RequestError) -> Lost:
    return Lost(not isinstance(error, UNSENT), f"{type(error).__name__}: {error}".rstrip(": "))
