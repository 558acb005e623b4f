"""Work within a time: what does not heed its cancellation is left behind, so that its slot is free all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from onward.core.clock import Clock

GRACE = 1.0
"""Seconds that cancelled work gets to end by itself before it is left behind."""


async def bounded(
    work: Coroutine[Any, Any, Any], clock: Clock, seconds: float, late: Callable[[], BaseException]
) -> Any:
    """The answer of the work, or the error that `late` makes when the time is up."""
    task = asyncio.ensure_future(_caught(work))
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise late()
        answer, error = task.result()
        if error is not None:
            raise error
        return answer
    finally:
        alarm.cancel()
        if not task.done():
            await _cancelled(task)
        else:
            _forgotten(task)  # it may have ended in the very moment in which we were cancelled


async def _caught(work: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """A task that raises one of these ends the whole loop with it; a handler must not end its worker."""
    try:
        return await work, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    task.add_done_callback(_forgotten)
    await asyncio.wait({task}, timeout=GRACE)  # a cancellation that comes now is the caller's, and is raised


def _forgotten(task: asyncio.Future[Any]) -> None:
    """Its late error is nobody's business."""
    task.cancelled() or task.exception()
