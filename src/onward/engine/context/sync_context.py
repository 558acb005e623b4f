"""The context of a handler that is a plain function: it runs in a thread, and waits where another would await."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from onward.engine.context.child import Child
from onward.engine.context.context import Context
from onward.engine.shift.scope import SCOPE

T = TypeVar("T")


class PlainContext:
    """The same for a handler that is a plain function: its methods wait instead of being awaited, and `with` takes the
    place of `async with`."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def wait(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            if hasattr(answer, "__aenter__"):
                return _PlainBlock(answer, self._loop)
            return self._settled(answer) if inspect.isawaitable(answer) and not isinstance(answer, Child) else answer

        return wait

    def _settled(self, answer: Any) -> Any:
        return _settled(answer, self._loop)


class _PlainBlock:
    """An asynchronous block of a plain function. The scope that it opens is that of the function's own thread."""

    def __init__(self, block: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._block, self._loop = block, loop

    def __enter__(self) -> Any:
        return self._run(self._block.__aenter__())

    def __exit__(self, *exc: object) -> Any:
        return self._run(self._block.__aexit__(*exc))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return _settled(work, self._loop)


def _settled(work: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    """The answer, and the scope that it left, which is now that of the function's own thread."""

    async def there() -> tuple[T, Any]:
        return await work, SCOPE.get()

    answer, scope = asyncio.run_coroutine_threadsafe(there(), loop).result()
    SCOPE.set(scope)
    return answer
