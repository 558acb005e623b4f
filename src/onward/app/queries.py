"""Verbs of an app that look at tasks and at the place as a whole, and a word to a task under way.

A part of `Onward`, in a file of its own because that one is long.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.core.durations import Moment
from onward.core.task import State, Task, Tasks
from onward.core.views import Queue, Stats, WorkerView
from onward.service.service import Service

if TYPE_CHECKING:
    from onward.core.state import StatePatch

Queues = list[Queue]
Workers = list[WorkerView]
"""For a class that has a verb named `list`."""


class Verbs:
    """See `Onward`."""

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
        """Tasks, newest first, and the cursor for the next page (None at the end). Of several values of one name each will do.
        `text` stands in the name, the key, the labels or the beginning of the input, whatever the case of its letters, or the id
        begins or ends with it. `created_after` and `created_before` go by the times in the ids. A look that no index helps (for a
        text, labels, names) goes through some 100,000 tasks at a time: a page may have few tasks, or none, and a cursor from
        which to go on."""
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
        """Change what an agent knows, while it works: whoever reads its state sees it at once, and the task takes it in at its next turn,
        or where its handler calls `ctx.patch`. Raises StateConflict when it has ended, NoState when it works without one."""
        await self.service.agent_states.patch(task_id, change, by=by)

    async def message(self, task_id: str, text: str, *, id: str | None = None) -> None:  # noqa: A002
        """Say something to a task while it is under way. With `id`, twice is once.

        An agent reads it before its next turn, as words of a person; one that was about to answer goes on instead. It wakes
        nobody and answers nothing: who waits for an approval, an answer, a budget or a child goes on waiting, and reads it
        then. A handler that is no agent gets it as the signal "message" (`ctx.signal("message")`), or from `ctx.messages()`;
        where it asks for neither, nobody reads it. Raises StateConflict when the task has ended, and TaskNotFound.
        """
        await self.service.messages.message(task_id, text, id=id)

    async def prune(self, task_id: str) -> int:
        """Forget an ended task and all that it started, with everything that there is of them; how many tasks that were. What they kept
        on a shelf goes too. Its key may be used again, and then starts a new task. Raises StateConflict while anything of the tree
        has not ended, or only just, or somebody has yet to be told of it; for a child, which goes with its root; and TaskNotFound.
        `prune_after_s` does it by itself."""
        return await self.service.pruner.prune(task_id)

    async def queues(self) -> Queues:
        """All queues with what is unfinished in them, by name."""
        return await self.service.cluster.queues()

    async def pause_queue(self, name: str) -> Queue:
        """Let nobody start anything of a queue until `unpause_queue`, over all workers and restarts; what runs goes on. Every
        claim that begins after this has returned keeps it."""
        return await self.service.cluster.pause_queue(name)

    async def unpause_queue(self, name: str) -> Queue:
        """Let a queue go on."""
        return await self.service.cluster.unpause_queue(name)

    async def workers(self) -> Workers:
        """All workers that were not declared dead."""
        return await self.service.cluster.workers()

    async def stats(self) -> Stats:
        """How many tasks there are, by state and reason, and what the workers manage."""
        return await self.service.cluster.stats()


def _seconds(moment: Moment | None) -> float | None:
    return moment.timestamp() if isinstance(moment, datetime.datetime) else moment
