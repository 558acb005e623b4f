"""Scripts: what a verb of a client does, without doing it. A script is a generator: it yields a request, or a pause, and is
told what came of it.

    def get(self, task_id) -> Script[Task]:
        return task_of((yield from self.asked("GET", f"/api/tasks/{task_id}")).json)

`verb` and `stream` make a method of it: `await client.get(…)` where the client has a loop (`WithLoop`), `client.get(…)` where it
has none (`WithoutLoop`). Type checkers know the difference.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from onward.core import wire

P = ParamSpec("P")
T = TypeVar("T")
NOTHING: Any = object()
"""No body."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What to send. With `listens` the answer is there when its head is, and `Listen` waits for more of it."""

    method: str
    path: str
    query: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    body: Any = NOTHING
    headers: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    held: float = 0.0
    """Seconds for which the server may keep us waiting, beside what it takes anyway."""
    again: bool = False
    """Whether it may be sent twice: it is for reading, or the second one changes nothing."""
    listens: bool = False


class Pause(float):
    """Wait for so many seconds."""


class Listen:
    """Wait for the next piece of what we listen to; None at its end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """What the caller of a stream is given next."""

    value: T


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        return wire.decode(self.body)

    @property
    def media(self) -> str:
        """The type of its body."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """There is no answer. Unless it was `sent`, the server cannot have done anything."""

    sent: bool
    why: str


Step = Request | Pause | Listen
Script = Generator[Step, Any, T]
"""Yields steps, is told `Answer | Lost` for a request and `bytes | None | Lost` for a Listen, and returns what the verb returns."""
Stream = Generator[Step | Found[T], Any, None]


class WithLoop(Protocol):
    """Somebody who runs scripts in an event loop."""

    async def run(self, script: Script[T]) -> T:
        """What the script returns."""
        ...

    def each(self, script: Stream[T]) -> AsyncIterator[T]:
        """What the stream finds."""
        ...


class WithoutLoop(Protocol):
    """Somebody who runs scripts and blocks."""

    def run(self, script: Script[T]) -> T:
        """What the script returns."""
        ...

    def each(self, script: Stream[T]) -> Iterator[T]:
        """What the stream finds."""
        ...


class verb(Generic[P, T]):  # noqa: N801 -- a decorator
    """A method whose body is a script."""

    def __init__(self, script: Callable[Concatenate[Any, P], Script[T]]) -> None:
        self.script = script
        self.__doc__ = script.__doc__

    @overload
    def __get__(self, at: None, owner: type) -> verb[P, T]: ...
    @overload
    def __get__(self, at: WithLoop, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, at: WithoutLoop, owner: type) -> Callable[P, T]: ...
    def __get__(self, at: Any, owner: type) -> Any:
        return self if at is None else _bound(self.script, at, at.run)


class stream(Generic[P, T]):  # noqa: N801 -- a decorator
    """A method whose body is a script that finds one thing after the other."""

    def __init__(self, script: Callable[Concatenate[Any, P], Stream[T]]) -> None:
        self.script = script
        self.__doc__ = script.__doc__

    @overload
    def __get__(self, at: None, owner: type) -> stream[P, T]: ...
    @overload
    def __get__(self, at: WithLoop, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, at: WithoutLoop, owner: type) -> Callable[P, Iterator[T]]: ...
    def __get__(self, at: Any, owner: type) -> Any:
        return self if at is None else _bound(self.script, at, at.each)


def _bound(script: Callable[..., Any], at: Any, runs: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(script)
    def method(*args: Any, **kwargs: Any) -> Any:
        return runs(script(at, *args, **kwargs))

    return method
