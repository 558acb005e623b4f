"""Quotas of others, shared by all tasks: when one is told that something is used up, all who need it wait, without asking.

What is used up stands in the store under a name, with its time. Whoever needs it looks there first, so that a provider whose
quota is gone hears from about one task of each worker, and not from all of them, again and again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from onward.core.control import NotNow
from onward.core.quota import Shut, said, spread, why
from onward.core.task import Reason
from onward.engine.context.context import Context
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.services import WorkerServices

T = TypeVar("T")


async def within_quota(ctx: Context, name: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Inside a step: ask something that has a quota. An error with a `retry_after` (seconds), or with `quota` set where nobody
    knows how long, shuts it for every task that names it; they wait, and no attempt is counted."""
    answer: T = await ctx._host.within_quota(name, ask)
    return answer


async def ask_within(desk: WorkerServices, pen: ShiftJournal, name: str, ask: Callable[[], Awaitable[T]]) -> T:
    """The same, for the shift."""
    shut = await pen.patiently(lambda: desk.store.quotas.get(name))
    if shut is not None and shut.left > 0:
        raise _used_up(desk, name, shut)
    try:
        answer = await ask()
    except Exception as error:
        used_up, after = said(error)
        if not used_up:
            raise
        words = why(error)
        shut = await pen.patiently(lambda: desk.store.quotas.shut(name, after, words))
        raise _used_up(desk, name, shut) from error
    if shut is not None:  # it was used up, and is not any more
        until = shut.until
        await pen.patiently(lambda: desk.store.quotas.reopen(name, until))
    return answer


def _used_up(desk: WorkerServices, name: str, shut: Shut) -> NotNow:
    until = desk.now() + spread(shut.left, desk.rng)
    return NotNow(Reason.QUOTA, until, f"the quota of {name} is used up: {shut.why}", quota=name)
