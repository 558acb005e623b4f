"""The journal, the inbox and the state of one task, as a workflow holds them. Pure: the workflow around it waits, and calls activities.

Workflows replay this code from histories that older versions wrote: what a method does to the state must stay the same.
"""

from __future__ import annotations

from typing import Any

from onward.engines import wire

PAGE_BYTES = 1_000_000
"""Bytes of the records and messages of one page of the query `view`, about."""

ITEM_BYTES = 100
"""Bytes of a record or a message beside its data, about."""

HEARS = frozenset({"signal", "question", "approval", "child", "in_doubt", "budget", "lock"})
"""Reasons of a task that a message wakes."""

NEEDS_A_PERSON = frozenset({"parked", "quarantined"})
READY = frozenset({"queued", "cancelling"})
"""Reasons of a task that may go on."""


class TaskJournal:
    """One task."""

    def __init__(self, start: wire.Start) -> None:
        self.request = start["request"]
        self.records, self.inbox, self.contents = start["records"], start["inbox"], start["contents"]
        self.attempt, self.reason, self.due_at = start["attempt"], start["reason"], start["due_at"]
        self.state = ""
        """Empty while the task has not ended."""
        self.token, self.queue = start["token"], start["worker_queue"]
        self.ledger = start.get("ledger", "")
        self.crashes = 0
        self.running = False
        """Whether an activity is under way."""

    @property
    def head(self) -> int:
        """The number of the last record."""
        return int(self.records[-1][0]) if self.records else 0

    @property
    def ready(self) -> bool:
        """Whether the task may go on."""
        return self.reason in READY

    def write(self, kind: str, at: float) -> None:
        """Append a record that no worker wrote."""
        self.records.append([self.head + 1, 0, kind, "", "{}", at])

    def wake(self) -> None:
        """Let the task go on."""
        self.reason, self.due_at = "queued", None

    # ── messages in ──────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, message: wire.JsonMessage) -> None:
        """Put a message into the inbox. Of messages with the same id, or about the same record, the first counts."""
        if self.state or any(
            known[0] == message[0] or (message[3] is not None and known[3] == message[3]) for known in self.inbox
        ):
            return
        self.inbox.append(message)
        if self.reason in HEARS and message[1] != "message":
            self.wake()

    def resume(self, at: float) -> None:
        """Go on with a task that waits for a person."""
        if self.reason in NEEDS_A_PERSON and not self.state:
            self.write("task.resumed", at)
            self.crashes = 0
            self.wake()

    def cancel(self, at: float) -> None:
        """End the task, or, where a saga is open, let the next shift undo its finished steps first."""
        open_sagas, last = wire.summary(self.records)
        must_undo = open_sagas > 0
        if must_undo and last == "cancel.requested":
            return
        self.write("cancel.requested", at)
        self.token, self.crashes, self.due_at = "", 0, None
        if must_undo:
            self.reason = "cancelling"
        else:
            self.write("task.cancelled", at)
            self.state, self.reason = "cancelled", ""

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self) -> wire.Advance:
        """The input of the next activity."""
        return {
            "request": self.request,
            "head": self.head,
            "inbox": len(self.inbox),
            "attempt": self.attempt,
            "crashes": self.crashes,
            "token": self.token,
            "ledger": self.ledger,
        }

    def append(self, advanced: wire.Advanced) -> None:
        """Append the records of an activity; the task goes on, waits or ends as its answer says."""
        records, ending = advanced["records"], advanced["ending"]
        unheard = ending is not None and bool(ending["state"]) and _is_behind(ending["inbox"], len(self.inbox))
        self.records += records[:-1] if unheard else records
        self.contents |= advanced["contents"]
        self.ledger = advanced.get("ledger", self.ledger)
        self.token, self.queue = advanced["token"], advanced["queue"]
        if len(records) > 1 or ending is not None:
            self.crashes = 0
        if ending is None:
            return
        self.token = ""
        if unheard:  # a message came while the task ended: the next shift reads it
            last = records[-1]
            self.records.append([last[0], last[1], "shift.ended", "", '{"reason":"message"}', last[5]])
            self.wake()
        elif ending["state"]:
            self.state, self.attempt, self.reason = ending["state"], ending["attempt"], ""
        else:
            self._wait(ending)

    def _wait(self, ending: wire.Ending) -> None:
        self.attempt = ending["attempt"]
        if _is_behind(ending["inbox"], len(self.inbox)):
            self.wake()
        else:
            self.reason, self.due_at = ending["reason"], ending["due_at"]

    def end_message(self) -> wire.JsonMessage:
        """The message about its end, for its parent."""
        data = self.records[-1][4]
        data = f'{{"state":"{self.state}"' + ("}" if data == "{}" else "," + data[1:])
        return [f"onward:child {self.request['id']}.{self.head}", "child", self.request["id"], None, data]

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def size(self) -> int:
        """Bytes of the whole task, about."""
        items = [*self.records, *self.inbox]
        return sum(len(item[4]) + ITEM_BYTES for item in items) + sum(map(len, self.contents.values()))

    def start(self) -> wire.Start:
        """The input of a new run that goes on with this task."""
        return {
            "request": self.request,
            "records": self.records,
            "inbox": self.inbox,
            "contents": self.contents,
            "attempt": self.attempt,
            "reason": self.reason,
            "due_at": self.due_at,
            "token": self.token,
            "worker_queue": self.queue,
            "ledger": self.ledger,
        }

    def view(self, after: int, after_message: int) -> wire.View:
        """The task, with a page of the records and messages after these numbers."""
        records, room = _page([record for record in self.records if record[0] > after], PAGE_BYTES)
        inbox, _ = _page(self.inbox[after_message:], max(room, 1))
        return {
            "request": self.request,
            "attempt": self.attempt,
            "state": self.state,
            "reason": self.reason,
            "due_at": self.due_at,
            "worker": (self.queue or "a worker") if self.running or self.token else "",
            "records": records,
            "inbox": inbox,
            "head": self.head,
            "messages": len(self.inbox),
            "contents": len(self.contents),
            "ledger": self.ledger,
            "limits": wire.raised_limits(self.inbox) if self.ledger else {},
        }


def _is_behind(inbox: int | None, messages: int) -> bool:
    """Whether a task has more messages than a shift had read, where it matters."""
    return inbox is not None and messages > inbox


def _page(items: list[list[Any]], room: int) -> tuple[list[list[Any]], int]:
    """The first of these items that have about `room` bytes, and the room that is left. The first item always fits."""
    page: list[list[Any]] = []
    for item in items:
        room -= len(item[4]) + ITEM_BYTES
        if room < 0 and page:
            break
        page.append(item)
    return page, room
