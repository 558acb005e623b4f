"""Tails: what those need who follow tasks. Many journals are read with one question; a hint says when it is worth asking.

A hint may be lost, doubled or about nothing: whoever follows looks now and then without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from onward.core.journal.progress import Lead
from onward.core.record import Record

PAGE = 500
"""Records of one answer."""

EACH = 200
"""Of them, records of one task."""

BYTES = 1_000_000
"""What they may say together; the one that goes beyond that is the last of its answer."""


class Tail(NamedTuple):
    """A record, and whose it is."""

    task_id: str
    record: Record


class Head(NamedTuple):
    """The last record of a task."""

    seq: int
    kind: str


class Tails(Protocol):
    """What every Store has for those who follow. The promises of all verbs of the Store hold here too."""

    async def tails(self, after: Mapping[str, int], limit: int = PAGE) -> list[Tail]:
        """The next records of each of these tasks after its number, by task and in order: some of them (see PAGE, EACH and
        BYTES), but never none where there is one."""
        ...

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        """Where the journals of these tasks end; unknown tasks are missing."""
        ...

    async def lead(self, task_id: str, seq: int) -> Lead:
        """What the records up to this number lead up to (`core.progress`)."""
        ...

    def news(self) -> None:
        """Records were committed: those who follow are told, in this process and in others. Where nobody follows it is a
        comparison. Returns at once."""
        ...

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called in this loop soon after records were committed anywhere; the answer ends that."""
        ...
