"""The context of a handler that is a plain function, which runs in a thread: its methods block where those of `Context` are awaited."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable
from typing import Any, TypeVar

from onward.engine.context.child import Child
from onward.engine.context.context import Context
from onward.engine.shift.scope import SCOPE

T = TypeVar("T")


class SyncContext:
    """The same for a handler that is a plain function: its methods wait instead of being awaited, and `with` takes the
    place of `async with`."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._context, name)
        if not callable(attribute):
            return attribute

        @functools.wraps(attribute)
        def call(*args: Any, **kwargs: Any) -> Any:
            value = attribute(*args, **kwargs)
            if hasattr(value, "__aenter__"):
                return _SyncBlock(value, self._loop)
            if inspect.isawaitable(value) and not isinstance(value, Child):
                return _wait(value, self._loop)
            return value

        return call


class _SyncBlock:
    """An asynchronous block as a `with` block. The scope that it opens becomes the scope of the function's thread."""

    def __init__(self, block: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._block, self._loop = block, loop

    def __enter__(self) -> Any:
        return _wait(self._block.__aenter__(), self._loop)

    def __exit__(self, *exc: object) -> Any:
        return _wait(self._block.__aexit__(*exc), self._loop)


def _wait(work: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    """Block until the loop has done the work, and return its result. The scope that it left becomes the scope of this thread."""

    async def result_and_scope() -> tuple[T, Any]:
        return await work, SCOPE.get()

    result, scope = asyncio.run_coroutine_threadsafe(result_and_scope(), loop).result()
    SCOPE.set(scope)
    return result
