"""Ends background tasks in a bounded time.

A task may swallow a cancellation: its own code catches it, or it is releasing something. So it is cancelled again while it goes on. The log
names a task that has not ended in time; the caller goes on without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

CANCEL_INTERVAL_S = 0.5
"""Seconds after which a task that goes on is cancelled again."""


async def end_tasks(
    tasks: Iterable[asyncio.Task[Any]], within: float, log: logging.Logger, who: str
) -> list[asyncio.Task[Any]]:
    """Cancel these tasks and wait until they have ended, at most `within` seconds; returns those that still go on. When the caller itself is
    cancelled, that is raised."""
    left = [task for task in tasks if not task.done() and task is not asyncio.current_task()]
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while left and (rest := end - loop.time()) > 0:
        for task in left:
            task.cancel()
        for task in (await asyncio.wait(left, timeout=min(rest, CANCEL_INTERVAL_S)))[0]:
            _forget(task)
        left = [task for task in left if not task.done()]
    for task in left:
        log.warning("%s waited %g s for %s to end, and leaves it behind", who, within, task.get_name())
        task.add_done_callback(_forget)
    return left


def _forget(task: asyncio.Task[Any]) -> None:
    """Read the error of a task, so that asyncio does not log it: no caller waits for it."""
    task.cancelled() or task.exception()
