"""Runs work within a time. Work that ignores its cancellation is left behind, so that its slot is free all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from onward.core.clock import Clock

CANCEL_GRACE_S = 1.0
"""Seconds that cancelled work gets to end by itself before it is left behind."""


async def run_with_timeout(
    work: Coroutine[Any, Any, Any], clock: Clock, seconds: float, late: Callable[[], BaseException]
) -> Any:
    """The result of the work. Raises the error that `late` makes when the time is up."""
    task = asyncio.ensure_future(_catch_exits(work))
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise late()
        result, error = task.result()
        if error is not None:
            raise error
        return result
    finally:
        alarm.cancel()
        if not task.done():
            await _cancel(task)
        else:
            _consume_error(task)  # it may have ended in the moment in which we were cancelled


async def _catch_exits(work: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Returns SystemExit and KeyboardInterrupt: a task that raises them ends the event loop, and a handler must not end its worker."""
    try:
        return await work, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    task.add_done_callback(_consume_error)
    await asyncio.wait({task}, timeout=CANCEL_GRACE_S)  # a cancellation that comes now is the caller's, and is raised


def _consume_error(task: asyncio.Future[Any]) -> None:
    """Reads the error of a task whose result is not used, so that asyncio does not log it."""
    task.cancelled() or task.exception()
