"""The values that the workflow, the activity and the client exchange, as JSON.

The workflow is replayed from histories that older versions wrote: a field may be added here with a default, and never removed or changed.
This module imports nothing of Onward, because the workflow imports it.
"""

from __future__ import annotations

from typing import Any, TypedDict

WORKFLOW = "OnwardTask"
ADVANCE = "onward.advance"
SEND, RESUME = "send", "resume"
VIEW, CONTENTS, CONTENT_NAMES = "view", "contents", "content_names"

NO_HANDLER = "NoHandler"
"""The type of the failure of an `advance` on a worker that has no handler for the task."""

GIVEN_UP = "GivenUp"
"""The type of the failure of an `advance` that a worker began after the server had given it up."""

JsonRecord = list[Any]
"""A record: seq, shift, kind, key, data (JSON as a string), at."""

JsonMessage = list[Any]
"""A message: id, kind, name, ref, data (JSON as a string). Its number is its place in the inbox, from 1 on."""


class Request(TypedDict):
    """A task as it was submitted."""

    id: str
    task: str
    input: str
    options: str
    queue: str
    priority: int
    key: str | None
    fingerprint: str
    parent: str | None
    group: str | None
    tenant: str | None
    created_at: float
    delay: float
    lease_s: float
    events: int
    """Events of the history after which the task goes on in a new run of its workflow."""


class Start(TypedDict):
    """The input of a run of the workflow: a new task, or one that goes on (after a resume, or as a new run of a long one)."""

    request: Request
    records: list[JsonRecord]
    inbox: list[JsonMessage]
    contents: dict[str, str]
    attempt: int
    reason: str
    due_at: float | None
    token: str
    worker_queue: str
    """The shift that goes on in the new run, and the task queue of its worker; empty where none does."""


class Advance(TypedDict):
    """The input of the activity: go on with the task, whose journal ends with record `head`."""

    request: Request
    head: int
    inbox: int
    attempt: int
    crashes: int
    token: str
    """The shift that wrote the last records. The worker that has it in memory goes on with it: its records are durable."""


class Ending(TypedDict):
    """What becomes of the task after its shift: it ends (`state`), or it waits (until `due_at`; None: a message or a person wakes it). The
    reason `queued` lets it go on at once."""

    state: str
    due_at: float | None
    reason: str
    attempt: int
    inbox: int | None


class Advanced(TypedDict):
    """The answer of the activity: new records. Without an ending the shift goes on, and waits until they are durable."""

    token: str
    queue: str
    """The task queue of this worker alone."""
    records: list[JsonRecord]
    contents: dict[str, str]
    ending: Ending | None


class View(TypedDict):
    """The answer to the query `view`: the task, and a page of its records and messages."""

    request: Request
    attempt: int
    state: str
    """Empty while the task has not ended."""
    reason: str
    due_at: float | None
    worker: str
    records: list[JsonRecord]
    inbox: list[JsonMessage]
    head: int
    messages: int
