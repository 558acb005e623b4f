"""Why tasks are where they are: for a page of them, with a handful of statements, however many they are. A part of the service."""

from __future__ import annotations

from collections.abc import Sequence

from onward.core.journal.explain import Explanation, QueueFacts, why
from onward.core.task import Reason, Task
from onward.service.handlers import Handlers
from onward.store.port.core import Store

BACK = 100
"""Records of each task that are read for what it waits for. Further back than that, the reason alone has to do."""
MOST = 16_000
"""Bytes of one of them."""
AHEAD = 1000
"""How many tasks before another are counted."""

WORDLESS = frozenset({Reason.QUEUED, Reason.DELAYED, Reason.CANCELLING, Reason.PAUSED})
"""Reasons of which the journal has nothing more to tell."""


class Explainer:
    """The verb."""

    def __init__(self, store: Store, handlers: Handlers) -> None:
        self._store, self._handlers = store, handlers

    async def of(self, tasks: Sequence[Task]) -> dict[str, Explanation]:
        """Why each of these is where it is, by id."""
        around = await self._queued([task for task in tasks if task.reason == Reason.QUEUED])
        retrying = {task.task for task in tasks if task.reason == Reason.RETRYING}
        attempts = await self._handlers.attempts(retrying) if retrying else {}
        asked = [task.task_id for task in tasks if not task.ended and task.reason not in WORDLESS]
        records = await self._store.listing.recent_records(asked, BACK, MOST) if asked else {}
        return {
            task.task_id: why(
                task,
                records.get(task.task_id, ()),
                around.get(task.task_id) or QueueFacts(attempts=attempts.get(task.task)),
            )
            for task in tasks
        }

    async def _queued(self, tasks: Sequence[Task]) -> dict[str, QueueFacts]:
        if not tasks:
            return {}
        ahead = await self._store.listing.queue_positions([task.task_id for task in tasks], AHEAD)
        paused = {queue for queue, (_, stopped) in (await self._store.queues.limits()).items() if stopped}
        now, _ = await self._store.overview.held()
        crew = [one for one in await self._store.workers.list() if one.lease_until > now]

        def served(task: Task) -> bool:
            return any(task.task in one.names and (not one.queues or task.queue in one.queues) for one in crew)

        return {
            task.task_id: QueueFacts(
                None if (before := ahead.get(task.task_id)) is None else min(before, AHEAD),
                AHEAD,
                task.queue in paused,
                served(task),
            )
            for task in tasks
        }
