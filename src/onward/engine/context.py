"""The context: what a handler sees of the engine.

It names things and nothing more. Everything that happens goes through the small `Host` beneath it (run a step, wait,
mention, now), so that another engine can host the same handlers.
"""

from __future__ import annotations

import asyncio
import functools
import random
import re
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from onward.core import wire
from onward.core.durations import Duration, seconds
from onward.core.retry import NO_RETRY, Retry
from onward.errors import InvalidInput, UsageError

T = TypeVar("T")
_CLASHES = re.compile(r"^\[|#\d+$|[\x00-\x1f\ud800-\udfff]")


_NONE: Mapping[str, Any] = {}


class Call:
    """A step as the host is asked to run it. What most steps leave alone stands in the class: they pay nothing for it."""

    retry: Retry = NO_RETRY
    timeout: float | None = None
    mark: str = ""
    """A hash of the arguments; empty when they are not JSON."""

    def __init__(
        self, key: str, function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = _NONE
    ) -> None:
        self.key, self.function, self.args, self.kwargs = key, function, args, kwargs


class Host(Protocol):
    """The engine under a context."""

    task_id: str
    attempt: int
    key: str | None
    rng: random.Random

    async def run(self, call: Call) -> Any:
        """The recorded result of the step, or the result of running it now, recorded. Raises StepFailed."""
        ...

    async def wait(self, key: str, delay: float) -> None:
        """Return `delay` seconds after this was first asked, with the slot free in between."""
        ...

    def mention(self, data: dict[str, Any]) -> None:
        """Tell those who watch; not part of the replay."""
        ...

    def now(self) -> float:
        """The database's time."""
        ...


class Context:
    """Handed to every handler as its first argument."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._seen: dict[str, int] = {}

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self._host.task_id

    @property
    def attempt(self) -> int:
        """1 at first, one more after each failure of the task. Crashes, sleeps and waits leave it alone."""
        return self._host.attempt

    @property
    def key(self) -> str:
        """The effect key of the step that runs now: the same in every attempt of this step and of no other, so that an
        outside service can recognise a call it has seen before."""
        if self._host.key is None:
            raise UsageError("ctx.key names the effect of a running step: use it inside the function given to ctx.step")
        return f"{self._host.task_id}:{self._host.key}"

    def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Run the function and keep its result; after a crash, hand out the kept result instead of running it again.

        Until its result is recorded the function may run again after a crash: give the outside `ctx.key` to recognise
        it. `retry` (a Retry, or a number of attempts) is for failures of this step alone; a task's own retry comes back
        to the failed step as well. `timeout` is for one attempt. Plain functions run in a thread.
        """
        call = Call(self._key(name or _name(function)), function, args, kwargs)
        if retry is not None:
            call.retry = Retry(attempts=retry) if isinstance(retry, int) else retry
        if timeout is not None:
            call.timeout = seconds(timeout, "timeout")
        if args or kwargs:
            call.mark = _mark(args, kwargs)
        return self._host.run(call)

    async def sleep(self, duration: Duration, *, name: str = "sleep") -> None:
        """Wait without holding a slot, across restarts, until `duration` after this line was first reached."""
        await self._host.wait(self._key(name), seconds(duration, "sleep"))

    async def now(self) -> float:
        """The time (seconds since 1970) at which this line was first reached."""
        return float(await self._made("now", self._host.now))

    async def random(self) -> float:
        """A random number in [0, 1) that stays the same in every replay."""
        return float(await self._made("random", self._host.rng.random))

    async def uuid(self) -> str:
        """A random UUID that stays the same in every replay."""
        return str(await self._made("uuid", lambda: str(uuid.UUID(int=self._host.rng.getrandbits(128), version=4))))

    async def _made(self, name: str, make: Callable[[], Any]) -> Any:
        async def step() -> Any:
            return make()

        return await self._host.run(Call(self._key(name), step))

    def progress(self, message: str = "", step: int = 0, total: int = 0) -> None:
        """Tell whoever watches how far it is; `total` 0 is unknown."""
        self._host.mention({"message": str(message), "step": step, "total": total})

    def _key(self, name: str) -> str:
        count = self._seen.get(name, 0) + 1
        if count == 1 and (_CLASHES.search(name) or not name):
            raise UsageError(
                f"a step cannot be named {name!r}: names must not be empty, start with '[', end in '#' "
                "and a number, or hold control characters and halves of characters"
            )
        self._seen[name] = count
        return name if count == 1 else f"{name}#{count}"


class PlainContext:
    """The same for a handler that is a plain function: its methods wait instead of being awaited."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def wait(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            return (
                asyncio.run_coroutine_threadsafe(answer, self._loop).result() if asyncio.iscoroutine(answer) else answer
            )

        return wait


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if name is None:
        inner = function.func if isinstance(function, functools.partial) else function
        name = getattr(inner, "__name__", type(inner).__name__)
    return str(name)


def _mark(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    try:
        return wire.fingerprint([args, kwargs])
    except InvalidInput:  # an argument that is not JSON is the caller's own business
        return ""
