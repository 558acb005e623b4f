"""Predecessors and witnesses: a worker may write record n+1 only while record n, as the worker knows it, is in the journal.

The primary key refuses a number that is taken. It does not notice that the numbers before are gone: a database that was
restored, or that failed over to a replica that lagged behind, has lost commits that it had confirmed. It has lost the newest ones: where
a commit is still there, all commits before it are. So a commit names witnesses, records that earlier commits wrote: the
statement takes its own numbers from them, and where one is missing the numbers are NULL and the database refuses all rows. A record
is named by task, number, shift and time. The time tells two shifts apart that got the same number before and after the loss.

Where the writer names no witnesses, the predecessors of all tasks of the batch are the witnesses. The writer needs fewer, because one
record stands for all that was committed before it (`store/writer.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from onward.core.record import Entry

log = logging.getLogger("onward.store")

Witness = tuple[str, int, int, float | None]
"""A record that must be in the journal: task, number, shift, and time (None: any time)."""


class WitnessLost(Exception):
    """A record that the writer named is not in the journal, and nothing was written: the database has lost commits, or the record was
    pruned. The writer then sends the batch again with the predecessor of each task."""


def of_each(entries: Sequence[Entry], known: Mapping[str, float | None]) -> list[Witness]:
    """The predecessor of each task: the record before its first one here."""
    firsts: dict[str, Witness] = {}
    for entry in entries:
        if entry[0] not in firsts:
            firsts[entry[0]] = (entry[0], entry[1] - 1, entry[2], known.get(entry[0]))
    return list(firsts.values())


def is_own(taker: Any, first: Entry) -> bool:
    """Whether the record that has the number (shift, kind, time) is the one that was sent: then the answer to its commit was lost."""
    return tuple(taker) == (first[2], first[3], first[6])


def tell(where: str, first: Entry) -> None:
    """Log that an append was refused because the database has lost the record before it."""
    log.error(
        "task %s: record %d cannot be written, because record %d, which %s had confirmed, is not there any more; the database was "
        "restored from a backup, or failed over, and lost its last commits. The task is dropped here, and goes on from what its "
        "journal has: the steps after that run again",
        first[0],
        first[1],
        first[1] - 1,
        where,
    )
