"""Scripts: the verbs of a client without I/O. A script is a generator: it yields a request or a pause, and is sent the outcome.

    def get(self, task_id) -> Script[Task]:
        return parse_task((yield from self._call("GET", f"/api/tasks/{task_id}")).json)

`verb` and `stream` make a method of a script: `await client.get(…)` where the client has an event loop (`AsyncRunner`),
`client.get(…)` where it has none (`SyncRunner`). Type checkers know the difference.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from onward.core import wire

P = ParamSpec("P")
T = TypeVar("T")
NO_BODY: Any = object()


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A request to send. With `streams`, the response is there when its head is, and `NextChunk` waits for parts of its body."""

    method: str
    path: str
    query: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    body: Any = NO_BODY
    headers: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    hold_s: float = 0.0
    """Seconds for which the server may hold the response back, in addition to the timeout."""
    idempotent: bool = False
    """Whether it may be sent twice: it reads, or the second one changes nothing."""
    streams: bool = False


class Pause(float):
    """Wait for so many seconds."""


class NextChunk:
    """Wait for the next part of the body of a streamed response; None at its end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """The next value that a stream gives to its caller."""

    value: T


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """A response of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        return wire.decode(self.body)

    @property
    def media(self) -> str:
        """The media type of its body."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclasses.dataclass(frozen=True, slots=True)
class NoResponse:
    """No response came. Unless the request was `sent`, the server cannot have done anything."""

    sent: bool
    why: str


Step = Request | Pause | NextChunk
Script = Generator[Step, Any, T]
"""Yields steps; is sent `Response | NoResponse` for a request and `bytes | None | NoResponse` for a chunk; returns the verb's result."""
Stream = Generator[Step | Item[T], Any, None]


class AsyncRunner(Protocol):
    """Runs scripts in an event loop."""

    async def _run(self, script: Script[T]) -> T:
        """The return value of a script."""
        ...

    def _each(self, script: Stream[T]) -> AsyncIterator[T]:
        """The items of a stream."""
        ...


class SyncRunner(Protocol):
    """Runs scripts and blocks."""

    def _run(self, script: Script[T]) -> T:
        """The return value of a script."""
        ...

    def _each(self, script: Stream[T]) -> Iterator[T]:
        """The items of a stream."""
        ...


class verb(Generic[P, T]):  # noqa: N801 -- a decorator
    """A method whose body is a script."""

    def __init__(self, script: Callable[Concatenate[Any, P], Script[T]]) -> None:
        self.script = script
        self.__doc__ = script.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> verb[P, T]: ...
    @overload
    def __get__(self, instance: AsyncRunner, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: SyncRunner, owner: type) -> Callable[P, T]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else _bind(self.script, instance, instance._run)


class stream(Generic[P, T]):  # noqa: N801 -- a decorator
    """A method whose body is a script that gives one item after the other."""

    def __init__(self, script: Callable[Concatenate[Any, P], Stream[T]]) -> None:
        self.script = script
        self.__doc__ = script.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> stream[P, T]: ...
    @overload
    def __get__(self, instance: AsyncRunner, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, instance: SyncRunner, owner: type) -> Callable[P, Iterator[T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else _bind(self.script, instance, instance._each)


def _bind(script: Callable[..., Any], instance: Any, run: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(script)
    def method(*args: Any, **kwargs: Any) -> Any:
        return run(script(instance, *args, **kwargs))

    return method
