"""One action on many tasks: cancel, resume, pause, prioritize or prune all tasks that a filter finds. A part of the service.

The caller says how many tasks it has seen. When far more match by now, the action is refused: the caller meant other tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, Unpack

from onward.core.task import Task
from onward.core.views import Acted, Refused
from onward.errors import BadSetting, MoreMatch, OnwardError, UsageError
from onward.service.listing import FILTERS, MAX_COUNT, Filters, Ids
from onward.service.pruning import Pruner, refusal
from onward.service.submission import check_priority
from onward.store.port.pruning import UNKNOWN

CONCURRENCY = 20
"""Tasks that are acted on at the same time."""
MAX_REFUSALS = 20
"""Refusals that are returned with their reason."""
ACTIONS = ("cancel", "resume", "pause", "priority", "prune")


class Verbs(Protocol):
    """The verbs of the service for one task, and its search."""

    async def matching(self, most: int, **filters: Unpack[Filters]) -> tuple[Ids, bool]: ...
    async def cancel(self, task_id: str) -> Task: ...
    async def resume(self, task_id: str, asker: str | None = None) -> Task: ...
    async def pause(self, task_id: str) -> Task: ...
    async def prioritize(self, task_id: str, priority: int) -> Task: ...


class Bulk:
    """Acts on many tasks."""

    def __init__(self, service: Verbs, pruner: Pruner) -> None:
        self._service, self._pruner = service, pruner

    async def find(self, action: str, count: int, *, priority: int | None = None, **filters: Unpack[Filters]) -> Ids:
        """The ids of all tasks that match, 10,000 at most, the newest first. Raises MoreMatch when they are far more than `count`, and
        UsageError for a filter that selects every task."""
        if action not in ACTIONS:
            raise BadSetting("action", action, f"one of {', '.join(ACTIONS)}")
        if action == "priority":
            check_priority(priority)
        given = {name: value.strip() if isinstance(value, str) else value for name, value in filters.items()}
        if not any(given.get(name) for name in FILTERS - {"whose"}):
            raise UsageError("an empty filter would mean every task there is; say which ones are meant")
        ids, more = await self._service.matching(MAX_COUNT, **filters)
        if len(ids) > bound(count):
            raise MoreMatch(len(ids), count, more)
        return ids

    async def act(self, action: str, ids: Ids, priority: int | None = None, *, asker: str | None = None) -> Acted:
        """Do the action to each of these tasks, `CONCURRENCY` at a time. `asker` is the principal that does it."""
        if action == "prune":
            kept = (await self._pruner.prune_all(ids)).kept
            errors = [(task_id, refusal(task_id, why)) for task_id, why in kept.items() if why != UNKNOWN]
            refused = [Refused(task_id, error.code, str(error)) for task_id, error in errors]
            return Acted(len(ids), len(ids) - len(refused), tuple(refused[:MAX_REFUSALS]))
        verbs: Mapping[str, Callable[[str], Awaitable[Task]]] = {
            "cancel": self._service.cancel,
            "resume": lambda task_id: self._service.resume(task_id, asker),
            "pause": self._service.pause,
            "priority": lambda task_id: self._service.prioritize(task_id, priority or 0),
        }
        refused = []

        async def act_on(task_id: str) -> None:
            try:
                await verbs[action](task_id)
            except OnwardError as error:
                refused.append(Refused(task_id, error.code, str(error)))

        for start in range(0, len(ids), CONCURRENCY):
            await asyncio.gather(*[act_on(task_id) for task_id in ids[start : start + CONCURRENCY]])
        return Acted(len(ids), len(ids) - len(refused), tuple(refused[:MAX_REFUSALS]))


def bound(count: int) -> int:
    """How many tasks may match when the caller has seen `count`: some are submitted while a person reads."""
    return count + max(5, count // 10)
