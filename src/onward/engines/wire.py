"""The values that the workflow, the activity and the client exchange, as JSON.

The workflow is replayed from histories that older versions wrote: a field may be added here with a default, and never removed or changed.
This module imports nothing of Onward, because the workflow imports it.
"""

from __future__ import annotations

import json
from typing import Any, NotRequired, TypedDict

WORKFLOW = "OnwardTask"
ADVANCE, MIRROR, SHELVE = "onward.advance", "onward.mirror", "onward.shelve"
SEND, RESUME = "send", "resume"
VIEW, CONTENTS, CONTENT_NAMES = "view", "contents", "content_names"

NO_HANDLER = "NoHandler"
"""The type of the failure of an `advance` on a worker that has no handler for the task."""

NO_SHIFT = "NoShift"
"""The type of the failure of an `advance` on a worker that does not have the shift of its token in memory."""

GIVEN_UP = "GivenUp"
"""The type of the failure of an `advance` that a worker began after the server had given it up."""


def mirror_queue(queue: str) -> str:
    """The task queue of the copies to the mirror: those that wait for a database that is away take no slot of a step."""
    return f"{queue}-mirror"


REFERENCE = "$onward.shelf"
"""The first key of a reference to a value that is stored where artifacts are (`large.py`)."""

JsonRecord = list[Any]
"""A record: seq, shift, kind, key, data (JSON as a string), at."""

JsonMessage = list[Any]
"""A message: id, kind, name, ref, data (JSON as a string). Its number is its place in the inbox, from 1 on."""


Shelved = list[Any]
"""Records that are stored where artifacts are: the numbers of the first and the last one, the reference, and what a cancel has to know of them: see
`summary`."""

_SAGAS = {"saga.started": 1, "saga.completed": -1, "saga.undone": -1}


def summary(records: list[JsonRecord]) -> tuple[int, str]:
    """How many more sagas begin than end in these records, and which of `cancel.requested` and `task.resumed` comes last, if any."""
    kinds = [str(record[2]) for record in records]
    last = [kind for kind in kinds if kind in {"cancel.requested", "task.resumed"}]
    return sum(_SAGAS.get(kind, 0) for kind in kinds), last[-1] if last else ""


BUDGET = "budget"
"""The kind of a message that raises limits of a budget. Its data are the new limits, or null: then it only wakes the task."""


def raised_limits(inbox: list[JsonMessage]) -> dict[str, Any]:
    """The limits of a budget that these messages set. Limits are absolute: the last message counts."""
    limits: dict[str, Any] = {}
    for message in inbox:
        if message[1] == BUDGET:
            limits |= json.loads(message[4]) or {}
    return limits


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
    mirror: NotRequired[bool]
    """Whether the task is copied to a mirror. An activity does so when the task begins to wait, and before it ends."""
    shelf: NotRequired[bool]
    """Whether workers can store records of the task where artifacts are, when they are too many for a new run."""


class BriefRequest(TypedDict):
    """What a worker that has the shift in memory needs of the request."""

    id: str
    mirror: bool


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
    shelved: NotRequired[list[Shelved]]
    """The records before those of `records`."""
    ledger: NotRequired[str]
    """The ledger of its budget, when it has begun to spend."""


class Advance(TypedDict):
    """The input of the activity: go on with the task, whose journal ends with record `head`."""

    request: Request | BriefRequest
    """The brief one where there is a token: the shift has the rest. (Older versions sent a request without input and options there.)"""
    head: int
    inbox: int
    attempt: int
    crashes: int
    token: str
    """The shift that wrote the last records. The worker that has it in memory goes on with it: its records are durable."""
    ledger: NotRequired[str]
    """The ledger of its budget, for a new shift."""


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
    ledger: NotRequired[str]
    """The ledger of its budget, where this stretch has changed it. Its limits are those of the submit: see `raised_limits`."""


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
    contents: NotRequired[int]
    shelved: NotRequired[list[Shelved]]
    """Where the records before those of the workflow are, as far as the reader lacks them."""
    ledger: NotRequired[str]
    limits: NotRequired[dict[str, Any]]
    """The ledger of its budget, and the limits that were raised since the submit."""
