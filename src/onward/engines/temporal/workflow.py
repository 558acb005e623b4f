"""The workflow `OnwardTask`: the journal, the inbox and the clock of one task.

It decides nothing about steps, retries or sagas. It asks a worker to go on (`onward.advance`), appends the records of the answer, and
waits as the answer says. The completion of the activity is the append: the server accepts one answer for each activity, and refuses those
of attempts that it has given up.

Temporal replays this code from histories that older versions wrote. A change that alters the order of its commands needs
`workflow.patched`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

from onward.engines import wire

STICKY_TIMEOUT_S = 2.0
"""Seconds within which the worker that has the shift in memory must take an activity; then any worker gets it."""

STRETCH_LIMIT = timedelta(days=365)
"""The longest time of one activity: a step may take long. Heartbeats show that its worker lives."""

CRASH_PAUSE_S = 0.2
"""Seconds until a task whose worker died is given to another one; ten times as long where no worker has its handler."""

PAGE_BYTES = 450_000
"""Bytes of the records and messages of one page of the query `view`, and of records that are stored outside together, about. The SDK warns of
payloads of more than 512 kB."""

ITEM_BYTES = 100
"""Bytes of a record or a message beside its data, about."""

MAX_START_BYTES = 1_500_000
"""Bytes that a new run may take with it. The server refuses payloads of more than 2 MB."""

MAX_EVENTS = 45_000
"""Events of a history after which a task that cannot go on in a new run fails. The server ends workflows at 51,200."""

HEARS = frozenset({"signal", "question", "approval", "child", "in_doubt", "budget", "lock"})
NEEDS_A_PERSON = frozenset({"parked", "quarantined"})
READY = frozenset({"queued", "cancelling"})
"""Reasons of a task that may go on."""

MIRROR_LIMIT = timedelta(seconds=60)
"""The longest time of one copy of the task to the mirror."""

MIRROR_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=15))
"""The mirror may be away: the copy is tried until it succeeds."""


@workflow.defn(name=wire.WORKFLOW)
class OnwardTask:
    """One task."""

    @workflow.init
    def __init__(self, start: Any) -> None:
        """`start` is a `wire.Start`. The SDK would convert a value of that type item by item: seconds for a long journal."""
        self._request = start["request"]
        self._brief: wire.BriefRequest = {"id": self._request["id"], "mirror": self._request.get("mirror", False)}
        self._records, self._inbox, self._contents = start["records"], start["inbox"], start["contents"]
        self._attempt, self._reason, self._due_at = start["attempt"], start["reason"], start["due_at"]
        self._state = ""
        self._token, self._queue = start["token"], start["worker_queue"]
        self._elsewhere = False
        """Whether the shift is in the memory of another worker than the one that has this workflow in its cache."""
        self._crashes = 0
        self._running = False
        self._cancelled = False
        """Whether a cancel of Temporal was taken."""
        self._shelved = start.get("shelved", [])
        """Records before those of `_records`, which workers have stored outside."""
        self._ledger = start.get("ledger", "")
        """The ledger of its budget, when it has begun to spend."""
        self._mirrored: Any = None
        """The position of the task that the mirror has."""

    @workflow.run
    async def run(self, start: Any) -> Any:  # noqa: ARG002 -- `__init__` has read it
        """Work on the task until it has ended."""
        if not self._records:
            self._records.append([1, 0, "task.submitted", "", "{}", self._request["created_at"]])
        mirroring = asyncio.create_task(self._mirror()) if self._request.get("mirror") else None
        while not self._state:
            try:
                await self._until_ready()
                await self._advance()
                await self._continue_as_new()
            except asyncio.CancelledError:
                self._cancel()
        await self._tell_parent()
        if mirroring is not None:
            await self._until_mirrored()
        return self._outcome()

    # ── messages in ──────────────────────────────────────────────────────────────────────────────────────────────

    @workflow.signal(name=wire.SEND)
    def send(self, message: wire.JsonMessage) -> None:
        """Put a message into the inbox. Of messages with the same id, or about the same record, the first counts."""
        if self._state or any(
            known[0] == message[0] or (message[3] is not None and known[3] == message[3]) for known in self._inbox
        ):
            return
        self._inbox.append(message)
        if self._reason in HEARS and message[1] != "message":
            self._reason, self._due_at = "queued", None

    @workflow.signal(name=wire.RESUME)
    def resume(self) -> None:
        """Go on with a task that waits for a person."""
        if self._reason in NEEDS_A_PERSON and not self._state:
            self._write("task.resumed")
            self._crashes = 0
            self._reason, self._due_at = "queued", None

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────

    @workflow.query(name=wire.VIEW)
    def view(self, after: int, after_message: int) -> wire.View:
        """The task, with a page of the records and messages after these numbers."""
        records, room = _page([record for record in self._records if record[0] > after], PAGE_BYTES)
        inbox, _ = _page(self._inbox[after_message:], max(room, 1))
        return {
            "request": self._request,
            "attempt": self._attempt,
            "state": self._state,
            "reason": self._reason,
            "due_at": self._due_at,
            "worker": (self._queue or "temporal") if self._running or self._token else "",
            "records": records,
            "inbox": inbox,
            "head": self._head,
            "messages": len(self._inbox),
            "contents": len(self._contents),
            "shelved": [entry for entry in self._shelved if entry[1] > after],
            "ledger": self._ledger,
            "limits": wire.raised_limits(self._inbox) if self._ledger else {},
        }

    @workflow.query(name=wire.CONTENTS)
    def contents(self, names: list[str]) -> dict[str, str]:
        """Those of these contents that the task has."""
        return {name: self._contents[name] for name in names if name in self._contents}

    @workflow.query(name=wire.CONTENT_NAMES)
    def content_names(self) -> list[str]:
        """The names of all contents of the task."""
        return list(self._contents)

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _head(self) -> int:
        return int(self._records[-1][0]) if self._records else 0

    def _write(self, kind: str, data: str = "{}") -> None:
        """Append a record that no worker wrote."""
        self._records.append([self._head + 1, 0, kind, "", data, workflow.now().timestamp()])

    async def _until_ready(self) -> None:
        """Wait until the task may go on: at its time, or when a message or a person wakes it."""
        while self._reason not in READY:
            left = None if self._due_at is None else self._due_at - workflow.now().timestamp()
            seen = self._reason, self._due_at
            timeout = None if left is None else timedelta(seconds=max(left, 0.001))
            try:
                await workflow.wait_condition(functools.partial(self._changed_from, *seen), timeout=timeout)
            except TimeoutError:
                self._reason, self._due_at = "queued", None

    def _changed_from(self, reason: str, due_at: float | None) -> bool:
        return (self._reason, self._due_at) != (reason, due_at)

    async def _advance(self) -> None:
        """Let a worker go on with the task, and append what it has done."""
        sticky = bool(self._token) and self._elsewhere
        advance: wire.Advance = {
            "request": self._brief if self._token else self._request,
            "head": self._head,
            "inbox": len(self._inbox),
            "attempt": self._attempt,
            "crashes": self._crashes,
            "token": self._token,
            "ledger": "" if self._token else self._ledger,
        }
        self._running = True
        try:
            advanced: wire.Advanced = await workflow.execute_activity(
                wire.ADVANCE,
                advance,
                task_queue=self._queue if sticky else None,
                schedule_to_start_timeout=timedelta(seconds=STICKY_TIMEOUT_S) if sticky else None,
                start_to_close_timeout=STRETCH_LIMIT,
                heartbeat_timeout=timedelta(seconds=self._request["lease_s"]),
                retry_policy=RetryPolicy(maximum_attempts=1),
                cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            )
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.type == wire.NO_SHIFT and not sticky:
                self._elsewhere = True  # the next activity goes to the task queue of the worker that has it
                return
            self._token, self._elsewhere = "", False
            if is_cancelled_exception(error) and not self._cancelled and workflow.cancellation_reason() is not None:
                raise asyncio.CancelledError from None
            await self._after_failure(error)
            return
        finally:
            self._running = False
        self._append(advanced)

    async def _after_failure(self, error: ActivityError) -> None:
        """The worker died, gave up, or has no handler for this task: another one begins a new shift."""
        cause = error.cause
        if isinstance(cause, ActivityTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START:
            return
        if isinstance(cause, ApplicationError) and cause.type == wire.NO_SHIFT:
            return
        if isinstance(cause, ApplicationError) and cause.type == wire.NO_HANDLER:
            await asyncio.sleep(CRASH_PAUSE_S * 10)
            return
        self._crashes += 1
        await asyncio.sleep(CRASH_PAUSE_S)

    def _append(self, advanced: wire.Advanced) -> None:
        records, ending = advanced["records"], advanced["ending"]
        unheard = ending is not None and bool(ending["state"]) and _is_behind(ending["inbox"], len(self._inbox))
        self._records += records[:-1] if unheard else records
        self._contents |= advanced["contents"]
        self._ledger = advanced.get("ledger", self._ledger)
        self._elsewhere = self._elsewhere and self._token == advanced["token"]
        self._token, self._queue = advanced["token"], advanced["queue"]
        if len(records) > 1 or ending is not None:
            self._crashes = 0
        if ending is None:
            return
        self._token = ""
        if unheard:  # a message came while the task ended: the next shift reads it
            last = records[-1]
            self._records.append([last[0], last[1], "shift.ended", "", '{"reason":"message"}', last[5]])
            self._reason = "queued"
        elif ending["state"]:
            self._state, self._attempt, self._reason = ending["state"], ending["attempt"], ""
        else:
            self._wait(ending)

    def _wait(self, ending: wire.Ending) -> None:
        self._attempt = ending["attempt"]
        if _is_behind(ending["inbox"], len(self._inbox)):
            self._reason, self._due_at = "queued", None
        else:
            self._reason, self._due_at = ending["reason"], ending["due_at"]

    def _size(self) -> int:
        """The bytes that a new run would take with it, about."""
        items = [*self._records, *self._inbox]
        return sum(len(item[4]) + ITEM_BYTES for item in items) + sum(map(len, self._contents.values()))

    async def _shelve(self) -> None:
        """Have the oldest records stored outside, until the others are few enough for a new run. The last one stays."""
        while self._size() > PAGE_BYTES and len(self._records) > 1:
            page, _ = _page(self._records[:-1], PAGE_BYTES)
            reference: str = await workflow.execute_activity(
                wire.SHELVE,
                args=[self._request["id"], page],
                start_to_close_timeout=MIRROR_LIMIT,
                retry_policy=MIRROR_RETRY,
            )
            self._shelved.append([page[0][0], page[-1][0], reference, *wire.summary(page)])
            self._records = self._records[len(page) :]

    async def _continue_as_new(self) -> None:
        """Go on in a new run before the history is full. The run takes the whole journal with it, or references to it: Temporal deletes the
        runs before it."""
        events = workflow.info().get_current_history_length()
        if self._state or events < self._request["events"]:
            return
        if self._request.get("shelf"):
            await self._shelve()
        size = self._size()
        if size <= MAX_START_BYTES:
            start: wire.Start = {
                "request": self._request,
                "records": self._records,
                "inbox": self._inbox,
                "contents": self._contents,
                "attempt": self._attempt,
                "reason": self._reason,
                "due_at": self._due_at,
                "token": self._token,
                "worker_queue": self._queue,
                "shelved": self._shelved,
                "ledger": self._ledger,
            }
            workflow.continue_as_new(start)
        if events >= MAX_EVENTS:
            message = (
                f"its journal of {size:,} bytes does not fit into a new run of its workflow, and the history of this run is full; give artifacts= "
                "a folder or a bucket, or split the task into children"
            )
            error = {"type": "HistoryFull", "message": message, "attempts": self._attempt}
            self._write("task.failed", json.dumps({"error": error}))
            self._state, self._reason, self._token = "failed", "", ""

    # ── the mirror ───────────────────────────────────────────────────────────────────────────────────────────────

    def _position(self) -> Any:
        """Another value whenever a reader would see another task."""
        return self._head, len(self._inbox), self._state, self._reason, self._due_at, self._ledger

    def _rests_ahead(self) -> bool:
        """Whether no worker has the task, and the mirror lacks something of it."""
        return not self._running and not self._token and self._mirrored != self._position()

    async def _mirror(self) -> None:
        """Have the task copied whenever it rests. The worker that runs a task copies it meanwhile. This waits beside the task, which goes on
        also when the mirror is away."""
        while True:
            await workflow.wait_condition(self._rests_ahead)
            position = self._position()
            try:
                await workflow.execute_activity(
                    wire.MIRROR,
                    self._request["id"],
                    task_queue=wire.mirror_queue(workflow.info().task_queue),
                    start_to_close_timeout=MIRROR_LIMIT,
                    retry_policy=MIRROR_RETRY,
                )
            except ActivityError:
                await asyncio.sleep(1)
            else:
                self._mirrored = position

    async def _until_mirrored(self) -> None:
        """Wait until the mirror has the end of the task. A cancel comes too late to change it."""
        while self._mirrored != self._position():
            with contextlib.suppress(asyncio.CancelledError):
                await workflow.wait_condition(lambda: self._mirrored == self._position())

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _cancel(self) -> None:
        """End the task, or, where a saga is open, let the next shift undo its finished steps first."""
        self._cancelled = True
        summaries = [(entry[3], entry[4]) for entry in self._shelved] + [wire.summary(self._records)]
        must_undo = sum(sagas for sagas, _ in summaries) > 0
        last = [kind for _, kind in summaries if kind]
        if must_undo and last and last[-1] == "cancel.requested":
            return
        self._write("cancel.requested")
        self._token, self._crashes, self._due_at = "", 0, None
        if must_undo:
            self._reason = "cancelling"
        else:
            self._write("task.cancelled")
            self._state, self._reason = "cancelled", ""

    async def _tell_parent(self) -> None:
        parent = self._request["parent"]
        if parent is None:
            return
        data = self._records[-1][4]
        data = f'{{"state":"{self._state}"' + ("}" if data == "{}" else "," + data[1:])
        message = [f"onward:child {self._request['id']}.{self._head}", "child", self._request["id"], None, data]
        try:
            await workflow.get_external_workflow_handle(parent).signal(wire.SEND, message)
        except FailureError:
            workflow.logger.info("the parent %s has ended", parent)

    def _outcome(self) -> Any:
        """The result of the workflow, for callers that wait for it and for Temporal's own tools: a large one is the reference to the last
        record. The journal has all of it."""
        data = json.loads(self._records[-1][4])
        if self._state == "failed":
            error = data.get("error", {})
            raise ApplicationError(
                str(error.get("message", "")), type=str(error.get("type", "Error")), non_retryable=True
            )
        if self._state == "cancelled" and self._cancelled:
            raise asyncio.CancelledError
        return data if wire.REFERENCE in data else data.get("result")


def _is_behind(inbox: int | None, messages: int) -> bool:
    """Whether a task has more messages than a shift had read, where it matters."""
    return inbox is not None and messages > inbox


def _page(items: list[list[Any]], room: int) -> tuple[list[list[Any]], int]:
    """The first of these items that have about `room` bytes, and the room that is left. The first item always fits."""
    page: list[list[Any]] = []
    for item in items:
        room -= len(item[4]) + 100
        if room < 0 and page:
            break
        page.append(item)
    return page, room
