"""The port for programs that follow tasks. One statement reads many journals, and a hint says when a read is worth it.

A hint may be lost, doubled or wrong: a follower also reads now and then without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from onward.core.journal.progress import Lead
from onward.core.page import Page
from onward.core.record import Record

PAGE_RECORDS = 500
"""Records of one answer."""

PAGE_RECORDS_EACH = 200
"""Of them, records of one task."""

PAGE_BYTES = 1_000_000
"""Bytes of one answer; the record that goes beyond them is the last one."""


class Tail(NamedTuple):
    """A record, and the id of its task."""

    task_id: str
    record: Record


class Head(NamedTuple):
    """The last record of a task."""

    seq: int
    kind: str


class Tails(Protocol):
    """Reads the ends of many journals."""

    async def read(self, after: Mapping[str, int], limit: int = PAGE_RECORDS) -> Page[Tail]:
        """The next records of each of these tasks after its number, by task and in order. It may be some of them (see the bounds of a page
        above), but at least one where there is one. `next` is the task of the last one if more may follow, None if none does."""
        ...

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        """The last record of each of these tasks; unknown tasks are missing."""
        ...

    async def lead(self, task_id: str, seq: int) -> Lead:
        """What a reader who starts after record `seq` has to know (see `core/journal/progress.py`)."""
        ...

    def announce(self) -> None:
        """Tell followers in all processes that records were committed. It costs a comparison where there are none, and returns at
        once."""
        ...

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` in this loop soon after records were committed in any process. Returns a function that ends it."""
        ...
