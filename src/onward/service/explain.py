"""Explains why tasks are in their state: a page of tasks with a handful of statements. A part of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from onward.core.journal.explain import Explanation, QueueFacts, why
from onward.core.task import Reason, Task
from onward.service.handlers import Handlers
from onward.store.port.core import Store

RECENT_RECORDS = 100
"""Records of each task that are searched for its waits. Of a wait further back, the explanation has only the reason."""
MAX_RECORD_BYTES = 16_000
"""Bytes of one of these records."""
MAX_AHEAD, MAX_PAGE_AHEAD = 1_000, 100_000
"""How many tasks before another in its queue are counted, and how many of a whole page: of a long page fewer for each."""

SLICE_TASKS = 50
"""Tasks that are explained at once; other requests of a server go on in between."""

NOT_IN_JOURNAL = frozenset({Reason.QUEUED, Reason.CANCELLING, Reason.PAUSED})
"""Reasons that the journal does not explain further."""


class Explainer:
    """Explains tasks."""

    def __init__(self, store: Store, handlers: Handlers) -> None:
        self._store, self._handlers = store, handlers

    async def of(self, tasks: Sequence[Task]) -> dict[str, Explanation]:
        """Why each of these tasks is in its state, by id."""
        queue_facts = await self._queued([task for task in tasks if task.reason == Reason.QUEUED])
        retrying = {task.task for task in tasks if task.reason == Reason.RETRYING}
        attempts = await self._handlers.attempts(retrying) if retrying else {}
        ids = [task.task_id for task in tasks if not task.ended and task.reason not in NOT_IN_JOURNAL]
        records = await self._store.listing.recent_records(ids, RECENT_RECORDS, MAX_RECORD_BYTES) if ids else {}
        explanations: dict[str, Explanation] = {}
        for number, task in enumerate(tasks):
            facts = queue_facts.get(task.task_id) or QueueFacts(attempts=attempts.get(task.task))
            explanations[task.task_id] = why(task, records.get(task.task_id, ()), facts)
            if number % SLICE_TASKS == SLICE_TASKS - 1:
                await asyncio.sleep(0)
        return explanations

    async def _queued(self, tasks: Sequence[Task]) -> dict[str, QueueFacts]:
        if not tasks:
            return {}
        most = min(MAX_AHEAD, MAX_PAGE_AHEAD // len(tasks))
        ahead = await self._store.listing.queue_positions([task.task_id for task in tasks], most)
        paused = {queue for queue, (_, stopped) in (await self._store.queues.limits()).items() if stopped}
        now, _ = await self._store.overview.held()
        alive = [worker for worker in await self._store.workers.list() if worker.lease_until > now]

        def served(task: Task) -> bool:
            return any(
                task.task in worker.names and (not worker.queues or task.queue in worker.queues) for worker in alive
            )

        return {
            task.task_id: QueueFacts(
                None if (before := ahead.get(task.task_id)) is None else min(before, most),
                most,
                task.queue in paused,
                served(task),
            )
            for task in tasks
        }
