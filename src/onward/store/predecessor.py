"""The predecessor: a worker may write record n+1 only while record n, as the worker knows it, is in the journal.

The primary key refuses a number that is taken. It does not notice that the numbers before are gone: a database that was
restored, or that failed over to a replica that lagged behind, has lost commits that it had confirmed. So each append names the
record that it follows (its number, its shift, its time), and the statement takes its own number from that record: where the
record is missing the number is NULL, and the database refuses the row. The time tells two shifts apart that got the same number
before and after the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from onward.core.record import Entry

log = logging.getLogger("onward.store")


def named(entries: Sequence[Entry], known: Mapping[str, float | None]) -> tuple[list[int], list[float | None]]:
    """For each entry of a batch in order, the number and the time of the record that its task's first entry follows."""
    times = [known.get(entry[0]) for entry in entries]
    if len({entry[0] for entry in entries}) == len(entries):  # nearly always: a step waits for the one before it
        return [entry[1] - 1 for entry in entries], times
    firsts: dict[str, int] = {}
    return [firsts.setdefault(entry[0], entry[1] - 1) for entry in entries], times


def is_own(taker: Any, first: Entry) -> bool:
    """Whether the record in the way (shift, kind, time) is the one that was sent: a commit whose answer was lost."""
    return tuple(taker) == (first[2], first[3], first[6])


def tell(where: str, first: Entry) -> None:
    """Say that an append was refused because the database has lost what came before it."""
    log.error(
        "task %s: record %d cannot be written, because record %d, which %s had confirmed, is not there any more; the database was "
        "restored from a backup, or failed over, and lost its last commits. The task is dropped here, and goes on from what its "
        "journal has: the steps after that run again",
        first[0],
        first[1],
        first[1] - 1,
        where,
    )
