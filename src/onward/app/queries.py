"""Verbs of an app that read tasks, queues and workers, and those that change a running task. Part of `Onward`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.core.durations import Moment
from onward.core.task import State, Task, Tasks
from onward.core.views import CodeVersion, Queue, Stats, WorkerView
from onward.service.service import Service

if TYPE_CHECKING:
    from onward.core.state import StatePatch

Queues = list[Queue]
Versions = list[CodeVersion]
Workers = list[WorkerView]
"""Names for list types in a class whose method `list` hides the builtin."""


class Queries:
    """The methods of `Onward` that read tasks, queues and workers."""

    service: Service

    async def get(self, task_id: str) -> Task:
        """The task, with its usage. Raises TaskNotFound."""
        return await self.service.look(task_id)

    async def list(
        self,
        *,
        state: State | str | Sequence[str] | None = None,
        task: str | Sequence[str] | None = None,
        queue: str | Sequence[str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        reason: str | Sequence[str] | None = None,
        parent: str | None = None,
        labels: Mapping[str, str | Sequence[str]] | None = None,
        created_after: Moment | None = None,
        created_before: Moment | None = None,
        key: str | None = None,
        text: str | None = None,
    ) -> tuple[Tasks, str | None]:
        """Tasks, newest first, and the cursor for the next page (None at the end). Where an option has several values, a task
        matches with any of them. `text` matches in the name, the key, the labels or the beginning of the input, in upper or lower
        case, and at the beginning or the end of the id. `created_after` and `created_before` compare the times in the ids. A query
        that no index helps (by text, labels, names) reads some 100,000 tasks for a page: the page may have few tasks, or none, and
        a cursor to go on from. The inputs and results of a page have 4 MB together, about; beyond that they are left out, and
        `left_out` of the task names them."""
        return await self.service.list(
            state=state,
            task=task,
            queue=queue,
            limit=limit,
            cursor=cursor,
            reason=reason,
            parent=parent,
            labels=labels,
            created_after=_seconds(created_after),
            created_before=_seconds(created_before),
            key=key,
            text=text,
        )

    async def patch(self, task_id: str, change: StatePatch | dict[str, Any], *, by: str = "") -> None:
        """Change the state of a running agent. Readers of the state see the change at once; the task applies it at its next turn, or
        where its handler calls `ctx.patch`. Raises StateConflict when the task has ended, NoState when it has no state."""
        await self.service.agent_states.patch(task_id, change, by=by)

    async def message(self, task_id: str, text: str, *, id: str | None = None) -> None:  # noqa: A002
        """Send a message to an unfinished task. The same `id` sent twice counts once.

        An agent reads it before its next turn, as words of a person; an agent that was about to give its result goes on instead.
        A message ends no wait: a task that waits for an approval, an answer, a budget or a child goes on waiting, and reads the
        message after that. A handler that is not an agent gets it as the signal "message" (`ctx.signal("message")`), or from
        `ctx.messages()`; without either call it is never read. Raises StateConflict when the task has ended, and TaskNotFound.
        """
        await self.service.messages.message(task_id, text, id=id)

    async def prune(self, task_id: str) -> int:
        """Delete an ended task and all tasks below it, with their records and artifacts, and return how many tasks that were. The
        key can be used again, for a new task. Raises StateConflict while a task of the tree has not ended, or ended only just now,
        or has events that are not delivered yet; StateConflict for a child, which is deleted with its root; and TaskNotFound. The
        setting `prune_after_s` prunes automatically."""
        return await self.service.pruner.prune(task_id)

    async def queues(self) -> Queues:
        """All queues with counts of their unfinished tasks, by name."""
        return await self.service.cluster.queues()

    async def pause_queue(self, name: str) -> Queue:
        """Have no worker start a task of this queue until `unpause_queue`, also after restarts; running tasks go on. Every claim
        that begins after this has returned respects it."""
        return await self.service.cluster.pause_queue(name)

    async def unpause_queue(self, name: str) -> Queue:
        """Have workers start tasks of this queue again."""
        return await self.service.cluster.unpause_queue(name)

    async def workers(self) -> Workers:
        """All workers that are not declared dead."""
        return await self.service.cluster.workers()

    async def versions(self) -> Versions:
        """The versions of the code that workers have, or that ran the latest shift of an unfinished task."""
        return await self.service.cluster.versions()

    async def stats(self) -> Stats:
        """Counts of tasks by state and reason, and the throughput of the workers."""
        return await self.service.cluster.stats()


def _seconds(moment: Moment | None) -> float | None:
    return moment.timestamp() if isinstance(moment, datetime.datetime) else moment
