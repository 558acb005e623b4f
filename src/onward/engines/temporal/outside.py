"""Workflows that Temporal ended itself: an operator terminated them, or a time limit that an operator set has passed.

Such a workflow runs no code at its end. Its journal has no last record, it tells no parent, and it has itself not copied to the mirror. So readers
add the missing record (`end_record`), and each worker looks for these workflows now and then (`Reconciler`): it tells their parents, and copies
them to the mirror.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError

from onward.core.clock import Clock
from onward.engines import wire
from onward.errors import OnwardError

log = logging.getLogger("onward.temporal")

INTERVAL_S = 30.0
"""Seconds between two rounds."""

LOOK_BACK_S = 86_400.0
"""Seconds for which the first round of a worker looks back."""

OVERLAP_S = 60.0
"""Seconds by which a round looks back behind the one before: Temporal's list may lag behind."""

MAX_ENDED = 1_000
"""Workflows of one round, the newest first, and of those that a process remembers."""

STATUSES = {WorkflowExecutionStatus.TERMINATED: "terminated", WorkflowExecutionStatus.TIMED_OUT: "timed out"}
"""The statuses of these workflows, as messages say them."""


def end_record(view: wire.View, execution: WorkflowExecution, now: float) -> wire.JsonRecord | None:
    """The record of the end of a task whose workflow Temporal has ended; None for others. `view` is the task as its workflow had it at last."""
    status = None if execution.status is None else STATUSES.get(execution.status)
    if view["state"] or status is None:
        return None
    message = f"its workflow was {status} in Temporal, and not by Onward; resume the task, or submit a new one"
    error = {"type": "WorkflowEnded", "message": message, "attempts": view["attempt"]}
    at = now if execution.close_time is None else execution.close_time.timestamp()
    return [view["head"] + 1, 0, "task.failed", "", json.dumps({"error": error}), at]


def add_end(view: wire.View, record: wire.JsonRecord) -> None:
    """End the task of a view with this record. A page that does not reach the end of the journal does not get it yet."""
    last = view["records"][-1][0] if view["records"] else view["head"]
    if last == view["head"]:
        view["records"] = [*view["records"], record]
    view["head"], view["state"], view["reason"], view["worker"], view["due_at"] = record[0], "failed", "", "", None


def end_message(task_id: str, record: wire.JsonRecord) -> wire.JsonMessage:
    """The message about the end of a child, for its parent."""
    return [f"onward:child {task_id}.{record[0]}", "child", task_id, None, '{"state":"failed",' + record[4][1:]]


class Reconciler:
    """Looks for workflows that Temporal has ended, and has each of them dealt with once."""

    def __init__(
        self, client: Client, queue: str, take: Callable[[WorkflowExecution], Awaitable[None]], clock: Clock
    ) -> None:
        self._client, self._queue, self._take, self._clock = client, queue, take, clock
        self._taken: dict[str, None] = {}
        self._since = clock.now() - LOOK_BACK_S

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await self.look()
            await self._clock.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Deal with the workflows that Temporal has ended since the last time. What fails is tried again the next time."""
        began, whole = self._clock.now(), True
        try:
            async for execution in self._ended():
                if execution.run_id not in self._taken:
                    whole = await self._try(execution) and whole
        except RPCError as error:
            log.info("Temporal does not list the workflows that it has ended: %s", error)
            return
        if whole:
            self._since = began - OVERLAP_S

    async def _try(self, execution: WorkflowExecution) -> bool:
        try:
            await self._take(execution)
        except OnwardError as error:
            log.warning("the end of task %s in Temporal is not known here yet: %s", execution.id, error)
            return False
        self._taken[execution.run_id] = None
        while len(self._taken) > MAX_ENDED:
            del self._taken[next(iter(self._taken))]
        return True

    def _ended(self) -> AsyncIterator[Any]:
        since = datetime.datetime.fromtimestamp(self._since, datetime.UTC).isoformat(timespec="milliseconds")
        query = (
            f"WorkflowType = '{wire.WORKFLOW}' AND TaskQueue = '{self._queue}' "
            f"AND ExecutionStatus IN ('Terminated', 'TimedOut') AND CloseTime >= '{since}'"
        )
        return self._client.list_workflows(query, limit=MAX_ENDED)
