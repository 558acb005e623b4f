"""Background tasks: the one way to start one, so that a simulator can stand in for the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Spawn = Callable[[Coroutine[Any, Any, Any], str], "asyncio.Task[Any]"]


_alive: set[asyncio.Task[Any]] = set()


def start(coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """A background task of the running loop, for a caller that keeps it until it is done: the loop itself would let it go."""
    return asyncio.get_running_loop().create_task(coroutine, name=name)


def spawn(coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """A background task of the running loop, kept until it is done."""
    task = start(coroutine, name)
    _alive.add(task)
    task.add_done_callback(_alive.discard)
    return task
