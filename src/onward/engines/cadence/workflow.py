"""The workflow `OnwardTask` on Cadence: the journal, the inbox and the clock of one task.

It asks a worker to go on (`onward.advance`), appends the records of the answer, and waits as the answer says. The completion of the
activity is the append: the server accepts one answer for each activity, and refuses those of activities that it has given up.

Cadence replays this code from the whole history at every decision: a change that alters the order of its commands needs
`workflow.get_version`. The client of Cadence gives a decision one time when it is made and another one when it is replayed, so times come
from records and messages, and the clock of the workflow only dates a cancel.
"""

from __future__ import annotations

import asyncio
import json
import math
from datetime import timedelta
from typing import Any, NoReturn

from cadence import workflow
from cadence.error import ActivityFailure, SignalExternalWorkflowFailed
from cadence.workflow import WorkflowContext

from onward.engine.background import start as start_task
from onward.engines import wire
from onward.engines.journal import TaskJournal

STICKY_TIMEOUT_S = 2
"""Seconds within which the worker that has the shift in memory must take an activity; then any worker gets it."""

STRETCH_LIMIT = timedelta(days=365)
"""The longest time of one activity: a step may take long. Heartbeats show that its worker lives."""

CRASH_PAUSE_S = 1
"""Seconds until a task whose worker died is given to another one; twice as long where no worker has its handler. The timers of Cadence
count whole seconds."""

MAX_START_BYTES = 1_500_000
"""Bytes that a new run may take with it. The server refuses payloads of more than 2 MB."""

EVENTS_OF_A_STRETCH, EVENTS_OF_A_WAIT, EVENTS_OF_A_MESSAGE = 6, 5, 4
"""Events of a history, about: the client of Cadence does not tell how long the history is."""

MAX_EVENTS = 45_000
"""Events of a history after which a task that cannot go on in a new run fails. The server ends workflows at 50,000."""

SCHEDULE_TO_START = "TIMEOUT_TYPE_SCHEDULE_TO_START"


class TaskFailed(Exception):
    """The task has failed; the journal has the error."""


class OnwardTask:
    """One task."""

    def __init__(self) -> None:
        self._task: TaskJournal | None = None
        self._events = 0
        self._cancelled = False
        """Whether a cancel of Cadence was taken."""

    @workflow.run
    async def run(self, start: Any) -> Any:
        """Work on the task until it has ended."""
        task = self._task = TaskJournal(start)
        if not task.records:
            task.write("task.submitted", task.request["created_at"])
        while not task.state:
            try:
                await self._until_ready(task)
                await self._advance(task)
                self._continue_as_new(task)
            except asyncio.CancelledError:
                self._cancelled = True
                task.cancel(_now())
        await self._tell_parent(task)
        return self._outcome(task)

    # ── messages in ──────────────────────────────────────────────────────────────────────────────────────────────

    @workflow.signal(name=wire.SEND)
    def send(self, message: Any) -> None:
        """Put a message into the inbox."""
        self._events += EVENTS_OF_A_MESSAGE
        if self._task is not None:
            self._task.send(message)

    @workflow.signal(name=wire.RESUME)
    def resume(self, at: float) -> None:
        """Go on with a task that waits for a person."""
        self._events += EVENTS_OF_A_MESSAGE
        if self._task is not None:
            self._task.resume(at)

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────

    @workflow.query(name=wire.VIEW)
    def view(self, after: int, after_message: int) -> Any:
        """The task, with a page of the records and messages after these numbers; None when it was cancelled before it began."""
        return None if self._task is None else self._task.view(after, after_message)

    @workflow.query(name=wire.CONTENTS)
    def contents(self, names: list[str]) -> Any:
        """Those of these contents that the task has."""
        known = {} if self._task is None else self._task.contents
        return {name: known[name] for name in names if name in known}

    @workflow.query(name=wire.CONTENT_NAMES)
    def content_names(self) -> Any:
        """The names of all contents of the task."""
        return [] if self._task is None else list(self._task.contents)

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _until_ready(self, task: TaskJournal) -> None:
        """Wait until the task may go on: at its time, or when a message or a person wakes it."""
        while not task.ready:
            self._events += EVENTS_OF_A_WAIT
            timer = None if task.due_at is None else start_task(workflow.sleep(_left(task)), "onward-timer")
            try:
                await workflow.wait_condition(lambda: task.ready or (timer is not None and timer.done()))  # noqa: B023
            finally:
                if timer is not None and not timer.done():
                    timer.cancel()
            if not task.ready:
                task.wake()

    async def _advance(self, task: TaskJournal) -> None:
        """Let a worker go on with the task, and append what it has done."""
        self._events += EVENTS_OF_A_STRETCH
        sticky = bool(task.token)
        task.running = True
        try:
            advanced: Any = await workflow.execute_activity(
                wire.ADVANCE,
                Any,
                task.advance(),
                task_list=task.queue if sticky else "",
                schedule_to_start_timeout=timedelta(seconds=STICKY_TIMEOUT_S) if sticky else STRETCH_LIMIT,
                start_to_close_timeout=STRETCH_LIMIT,
                schedule_to_close_timeout=STRETCH_LIMIT,
                heartbeat_timeout=timedelta(seconds=math.ceil(task.request["lease_s"])),
            )
        except ActivityFailure as error:
            task.token = ""
            await self._after_failure(task, error)
            return
        finally:
            task.running = False
        task.append(advanced)

    async def _after_failure(self, task: TaskJournal, error: ActivityFailure) -> None:
        """The worker died, gave up, or has no handler for this task: another one begins a new shift."""
        reason = str(error).partition("\n")[0]
        if reason == SCHEDULE_TO_START:
            return
        self._events += EVENTS_OF_A_WAIT
        if reason == wire.NO_HANDLER:
            await workflow.sleep(timedelta(seconds=CRASH_PAUSE_S * 2))
            return
        task.crashes += 1
        await workflow.sleep(timedelta(seconds=CRASH_PAUSE_S))

    def _continue_as_new(self, task: TaskJournal) -> None:
        """Go on in a new run before the history is long. The run takes the whole journal with it: Cadence deletes the runs before it."""
        if task.state or self._events < task.request["events"]:
            return
        if task.size <= MAX_START_BYTES:
            workflow.continue_as_new(task.start())
        if self._events >= MAX_EVENTS:
            message = (
                f"its journal of {task.size:,} bytes does not fit into a new run of its workflow, and the history of this run is full; split "
                "the task into children, or leave large results as artifacts"
            )
            error = {"type": "HistoryFull", "message": message, "attempts": task.attempt}
            task.records.append([task.head + 1, 0, "task.failed", "", json.dumps({"error": error}), _last(task)])
            task.state, task.reason, task.token = "failed", "", ""

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _tell_parent(self, task: TaskJournal) -> None:
        parent = task.request["parent"]
        while parent is not None:
            try:
                await workflow.signal_external_workflow(parent, wire.SEND, task.end_message())
            except SignalExternalWorkflowFailed:  # the parent has ended
                return
            except (
                asyncio.CancelledError
            ):  # a cancel comes too late for a task that has ended; of two messages the first counts
                continue
            return

    def _outcome(self, task: TaskJournal) -> Any:
        """The result of the workflow, for Cadence's own tools. The journal has all of it."""
        data = json.loads(task.records[-1][4])
        if task.state == "failed":
            _fail(data.get("error", {}))
        if task.state == "cancelled" and self._cancelled:
            raise asyncio.CancelledError
        return data.get("result")


def _fail(error: dict[str, Any]) -> NoReturn:
    raise TaskFailed(f"{error.get('type', 'Error')}: {error.get('message', '')}")


def _last(task: TaskJournal) -> float:
    """The time of the last record."""
    return float(task.records[-1][5])


def _left(task: TaskJournal) -> timedelta:
    """How long the task has to wait: whole seconds, since the timers of Cadence count those."""
    assert task.due_at is not None
    return timedelta(seconds=max(1, math.ceil(task.due_at - _last(task))))


def _now() -> float:
    """The time of this decision. It differs by milliseconds when the decision is replayed, so nothing may depend on it."""
    time = WorkflowContext.get().get_replay_current_time()
    return float(time.timestamp())
