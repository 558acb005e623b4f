"""The values of lists: filters, relatives, open questions (see `shared/listing.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from onward.core.task import State

MAX_BYTES = 2**31 - 1
"""More bytes than an input or a record can have."""

PAGE_BYTES = 4_000_000
"""Bytes of the inputs and last records of a page of tasks, about."""

SLICE_TASKS = 50
"""Tasks of a bounded page that one statement reads."""

SMALL_BYTES, TINY_BYTES = 8_000, 200
"""A bounded page has inputs and last records up to the first size before it has larger ones, as long as there is room; and up to the
second size when there is none."""

MAX_ASKS = 1000
"""Questions and approvals of a page."""

SLICE_ASKS = 100
"""Questions and approvals of a page that one statement reads, and tasks that one statement looks for them."""

MAX_ASKED_TASKS = 100_000
"""Tasks that asked at some time, which are looked at for one page."""

ASK_HEAD_BYTES = 1_000
"""Bytes that a page has of each question or approval for which it has no room."""

HEAD_BYTES = 240
"""Bytes of the last record of a child that `offspring` reads."""


class Which(TypedDict, total=False):
    """Which tasks are listed. A filter that is missing, or None, does not filter. A task passes a filter with several values when one of
    them matches."""

    state: State | Sequence[State] | None
    task: str | Sequence[str] | None
    queue: str | Sequence[str] | None
    reason: str | Sequence[str] | None
    parent: str | None
    label: bytes | None
    """Bytes that the options of the task contain, as JSON. The caller checks the labels again."""
    text: str | None
    """A string in its name, its key, its labels or the beginning of its input, in any case of the letters; or the beginning or the end of
    its id."""
    since: str | None
    """The lowest id."""
    whose: str | None
    """The tenant; "" for tasks without one."""
    most: int | None
    """Longer inputs and last records, in bytes, are left out."""
    page_bytes: int | None
    """Bytes that the inputs and last records of all tasks have together, about. The others are left out, and not read."""


class Kin(NamedTuple):
    """A task as part of a tree."""

    id: str
    parent: str | None
    task: str
    options: bytes


class Child(NamedTuple):
    """A child: the name of its task, whether it has ended, and the beginning of the data of its last record."""

    id: str
    task: str
    ended: bool
    head: bytes


class Ask(NamedTuple):
    """A question or an approval that a task asks of people."""

    task_id: str
    seq: int
    kind: str
    key: str
    at: float
    task: str
    now: float
    data: bytes
    """All of its data, or the beginning; nothing where the data is sealed and was not read as a whole."""
    size: int
    """The bytes of all of its data as they are stored."""
    whole: bool = True
    """Whether `data` is all of it."""

    @property
    def id(self) -> str:
        """Its id, which is also the cursor behind it."""
        return f"{self.task_id}.{self.seq}"
