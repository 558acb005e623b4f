"""Quotas of outside services, shared by all tasks: when one task learns that a quota is used up, all tasks that need it wait
without asking.

The store has each used-up quota under a name, with the time at which it ends. A task looks there before it asks, so a provider
whose quota is used up gets requests from about one task of each worker, and not from all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from onward.core.control import NotNow
from onward.core.quota import Shut, of_error, spread, why
from onward.core.task import Reason
from onward.engine.context.context import Context
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.services import WorkerServices

T = TypeVar("T")


async def within_quota(ctx: Context, name: str, call: Callable[[], Awaitable[T]]) -> T:
    """Inside a step: call a service that has a quota. An error with a `retry_after` (seconds), or with `quota` set where the time is
    unknown, shuts the quota for every task that names it; they wait, and no attempt is counted."""
    result: T = await ctx._host.within_quota(name, call)
    return result


async def call_within_quota(
    services: WorkerServices, journal: ShiftJournal, name: str, call: Callable[[], Awaitable[T]]
) -> T:
    """The same, for the shift."""
    shut = await journal.retry_store(lambda: services.store.quotas.get(name))
    if shut is not None and shut.left > 0:
        raise _used_up(services, name, shut)
    try:
        result = await call()
    except Exception as error:
        used_up, after = of_error(error)
        if not used_up:
            raise
        reason = why(error)
        shut = await journal.retry_store(lambda: services.store.quotas.shut(name, after, reason))
        raise _used_up(services, name, shut) from error
    if shut is not None:  # it was used up, and the call went through
        until = shut.until
        await journal.retry_store(lambda: services.store.quotas.reopen(name, until))
    return result


def _used_up(services: WorkerServices, name: str, shut: Shut) -> NotNow:
    until = services.now() + spread(shut.left, services.rng)
    return NotNow(Reason.QUOTA, until, f"the quota of {name} is used up: {shut.why}", quota=name)
