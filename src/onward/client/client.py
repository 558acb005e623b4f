"""The two clients, which run the scripts with httpx2, and the handles that a submit returns. Only this module imports httpx2."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self, TypeVar

from onward.client.script import (
    NO_BODY,
    Item,
    NoResponse,
    Pause,
    Request,
    Response,
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
from onward.core.journal.progress import Only, Update
from onward.core.record import Record
from onward.core.task import Task
from onward.errors import UsageError

try:
    import httpx2
except ImportError:
    raise ImportError("httpx2 is not installed; pip install 'onward[client]'") from None

T = TypeVar("T")
TIMEOUT_S = 10.0
PATIENCE_S = 30.0
MAX_IDLE_S = 3.0
"""Seconds after which an idle connection is not used again. Servers close idle connections after five seconds, and a request that is sent
at that moment is lost."""

NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Client(Verbs["Handle"]):
    """A client for programs with an event loop.

        async with Client("https://onward.example.com", key="onw_…") as client:
            task = await client.submit("deploy", "web")
            print(await task.result(timeout="5m"))

    `timeout` is how long one request waits for the server, `patience` for how long a request is sent again when it is not answered.
    `ca_file` is a PEM file with the certificates of the authorities that it trusts, for a server whose certificate is not public.
    Further options are those of `httpx2.AsyncClient`.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout: Duration = TIMEOUT_S,
        patience: Duration = PATIENCE_S,
        ca_file: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(url, timeout, patience)
        self._http = httpx2.AsyncClient(**_options(key, ca_file, options))

    def handle(self, task_id: str) -> Handle:
        """A handle for a task by its id; nothing is looked up yet."""
        return Handle(self, task_id)

    async def close(self) -> None:
        """Close all connections. `async with client:` does it for you."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _run(self, script: Script[T]) -> T:
        """Run a script, as each verb is one; its return value."""
        connection, outcome = _Connection(self, self._http), None
        try:
            while True:
                outcome = await connection.do(script.send(outcome))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _each(self, script: Stream[T]) -> AsyncIterator[T]:
        """Run a stream; its items."""
        connection, outcome = _Connection(self, self._http), None
        try:
            while True:
                step = script.send(outcome)
                if isinstance(step, Item):
                    outcome = None
                    yield step.value
                else:
                    outcome = await connection.do(step)
        except StopIteration:
            return
        finally:
            await connection.close()


class SyncClient(Verbs["SyncHandle"]):
    """A client for programs without an event loop; otherwise as `Client`. Threads may share one."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout: Duration = TIMEOUT_S,
        patience: Duration = PATIENCE_S,
        ca_file: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(url, timeout, patience)
        self._http = httpx2.Client(**_options(key, ca_file, options))

    def handle(self, task_id: str) -> SyncHandle:
        """A handle for a task by its id; nothing is looked up yet."""
        return SyncHandle(self, task_id)

    def close(self) -> None:
        """Close all connections. `with client:` does it for you."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, script: Script[T]) -> T:
        """Run a script, as each verb is one; its return value."""
        connection, outcome = _SyncConnection(self, self._http), None
        try:
            while True:
                outcome = connection.do(script.send(outcome))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _each(self, script: Stream[T]) -> Iterator[T]:
        """Run a stream; its items."""
        connection, outcome = _SyncConnection(self, self._http), None
        try:
            while True:
                step = script.send(outcome)
                if isinstance(step, Item):
                    outcome = None
                    yield step.value
                else:
                    outcome = connection.do(step)
        except StopIteration:
            return
        finally:
            connection.close()


# ── handles ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Handle:
    """A submitted task."""

    id: str
    _client: Any

    def __repr__(self) -> str:
        return f"<task {self.id}>"

    @verb
    def result(self, timeout: Duration | None = None, *, partial: bool = False, returns: Any = None) -> Script[Any]:
        """Wait for the result. Raises TaskFailed, TaskCancelled or ResultTimeout; the task goes on regardless. With `partial`, a task that
        failed gives the best result that it had by then, where it had one. `returns` is the type that the result is built in, as the
        handler's annotation names it; without it the result is JSON."""
        return Verbs.result.script(self._client, self.id, timeout, partial=partial, returns=returns)

    @verb
    def get(self) -> Script[Task]:
        """The current task."""
        return Verbs.get.script(self._client, self.id)

    @verb
    def cancel(self) -> Script[Task]:
        """Cancel the task."""
        return Verbs.cancel.script(self._client, self.id)

    @stream
    def tail(self, after: int = 0) -> Stream[Record]:
        """Its records as they are written, until it has ended."""
        return Verbs.tail.script(self._client, self.id, after)

    @stream
    def follow(self, after: int = 0, *, only: Only | None = None) -> Stream[Update]:
        """Its progress updates as they come, until it has ended, as `Client.follow`."""
        return Verbs.follow.script(self._client, self.id, after, only=only)


class Handle(_Handle):
    """A submitted task."""

    _client: Client

    def __init__(self, client: Client, task_id: str) -> None:
        self._client = client
        self.id: str = task_id

    async def _run(self, script: Script[T]) -> T:
        return await self._client._run(script)

    def _each(self, script: Stream[T]) -> AsyncIterator[T]:
        return self._client._each(script)


class SyncHandle(_Handle):
    """A submitted task."""

    _client: SyncClient

    def __init__(self, client: SyncClient, task_id: str) -> None:
        self._client = client
        self.id: str = task_id

    def _run(self, script: Script[T]) -> T:
        return self._client._run(script)

    def _each(self, script: Stream[T]) -> Iterator[T]:
        return self._client._each(script)


# ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Connection:
    """Does the steps of one script; has the streamed response that it reads."""

    def __init__(self, client: Client, http: httpx2.AsyncClient) -> None:
        self._client, self._http = client, http
        self._open: httpx2.Response | None = None
        self._chunks: AsyncIterator[bytes]

    async def do(self, step: Step) -> Any:
        """Do a step; its outcome."""
        try:
            if isinstance(step, Request):
                return await self._send(step)
            if isinstance(step, Pause):
                return await self._client._clock.sleep(step)
            return await anext(self._chunks, None)
        except httpx2.RequestError as error:
            return _no_response(error)

    async def _send(self, request: Request) -> Response:
        await self.close()
        response = await self._http.send(_build(self._client, self._http, request), stream=request.streams)
        if not request.streams:
            return _response(response)
        self._open, self._chunks = response, response.aiter_bytes()
        if not _is_stream(response):
            await response.aread()
        return _response(response)

    async def close(self) -> None:
        if self._open is not None:
            response, self._open = self._open, None
            await response.aclose()


class _SyncConnection:
    """The same without an event loop."""

    def __init__(self, client: SyncClient, http: httpx2.Client) -> None:
        self._client, self._http = client, http
        self._open: httpx2.Response | None = None
        self._chunks: Iterator[bytes]

    def do(self, step: Step) -> Any:
        """Do a step; its outcome."""
        try:
            if isinstance(step, Request):
                return self._send(step)
            if isinstance(step, Pause):
                return self._client._clock.nap(step)
            return next(self._chunks, None)
        except httpx2.RequestError as error:
            return _no_response(error)

    def _send(self, request: Request) -> Response:
        self.close()
        response = self._http.send(_build(self._client, self._http, request), stream=request.streams)
        if not request.streams:
            return _response(response)
        self._open, self._chunks = response, response.iter_bytes()
        if not _is_stream(response):
            response.read()
        return _response(response)

    def close(self) -> None:
        if self._open is not None:
            response, self._open = self._open, None
            response.close()


def _options(key: str | None, ca_file: str | os.PathLike[str] | None, given: dict[str, Any]) -> dict[str, Any]:
    """The options of httpx2. The number of connections has no limit: each wait for a result holds one."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageError("the key has characters that no key has; use it as `onward keys create` printed it")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    trust = {} if ca_file is None else {"verify": _trusting(ca_file)}
    limits = httpx2.Limits(max_connections=None, keepalive_expiry=MAX_IDLE_S)
    return {"limits": limits, "headers": headers, **trust, **given}


def _trusting(ca_file: str | os.PathLike[str]) -> ssl.SSLContext:
    """TLS that trusts these authorities alone. Raises UsageError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"ca_file {str(ca_file)!r:.200} is no readable PEM file with certificates ({reason})"
        ) from None


def _build(client: Verbs[Any], http: httpx2.AsyncClient | httpx2.Client, request: Request) -> httpx2.Request:
    headers: dict[bytes, bytes] = {name.encode(): value for name, value in request.headers.items()}
    content = None
    if request.body is not NO_BODY:
        headers[b"Content-Type"] = b"application/json"
        content = wire.encode(request.body, "the body of the request")
    timeout = httpx2.Timeout(client.timeout, read=client.timeout + request.hold_s)
    return http.build_request(
        request.method,
        client.url + request.path,
        params=dict(request.query) or None,
        headers=headers,
        content=content,
        timeout=timeout,
    )


def _is_stream(response: httpx2.Response) -> bool:
    return response.status_code < 400 and Response(response.status_code, response.headers).media == MEDIA


def _response(response: httpx2.Response) -> Response:
    return Response(response.status_code, response.headers, response.content if response.is_stream_consumed else b"")


def _no_response(error: httpx2.RequestError) -> NoResponse:
    return NoResponse(not isinstance(error, NOT_SENT), f"{type(error).__name__}: {error}".rstrip(": "))
