"""Overviews: what every Store can tell of the place as a whole, and what is said to a whole queue.

Numbers of what is unfinished are exact, and cost a look at what is unfinished; those of what has ended are exact up to a bound
and estimates above it, so that nobody reads millions of rows to show a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

from onward.core.task import State, Tasks
from onward.store.access import seen_by

PAUSED = "paused"
"""The kind of the limit that a paused queue has: nothing of it at once."""

HEAD = 240
"""Bytes of a last record that are read for what stands at its beginning."""


class Which(TypedDict, total=False):
    """Which tasks are listed: what is missing, or None, does not matter."""

    state: State | None
    task: str | None
    queue: str | None
    reason: str | None
    parent: str | None
    label: bytes | None
    """What the options of the task hold somewhere, as JSON; the caller looks again."""
    since: str | None
    """The lowest id."""
    whose: str | None
    """Of which tenant; "" for what has none."""


class Unfinished(NamedTuple):
    """Unfinished tasks of a queue with one reason: how many, and how many seconds ago the oldest was submitted."""

    queue: str
    reason: str
    tasks: int
    oldest: float


class Ended(NamedTuple):
    """How many tasks have ended. When it is not `exact`, what completed is an estimate and the others are at least so many."""

    completed: int
    failed: int
    cancelled: int
    exact: bool


class Child(NamedTuple):
    """A child: its task's name, whether it has ended, and how the data of its last record begins."""

    id: str
    task: str
    ended: bool
    head: bytes


class Overview(Protocol):
    """What every Store can tell of the place. The promises of all verbs of the Store hold here too."""

    async def unfinished(self) -> list[Unfinished]:
        """All that is unfinished, by queue and reason."""
        ...

    async def held(self) -> tuple[float, dict[str, int]]:
        """The time, and how many tasks each worker holds that holds any."""
        ...

    async def queue_limits(self) -> dict[str, tuple[int | None, bool]]:
        """How many tasks of each queue with a limit may be held at once, and whether it is paused."""
        ...

    async def pause_queue(self, queue: str, *, paused: bool) -> None:
        """Have nobody start anything of a queue, or let it go on. Every claim that begins after the answer keeps it."""
        ...

    async def ended(self, most: int) -> Ended:
        """How many tasks have ended, counted up to `most`."""
        ...

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        """The children of these tasks, ended or not; at most so many."""
        ...

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        """The id of the task that has so many others between it and `before`; None when there are not so many."""
        ...

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        """Tasks, newest first, below the id `before`."""
        ...


def listing(limit: int, before: str | None, which: Which) -> tuple[str, dict[str, Any]]:
    """The statement that lists these tasks, and its values."""
    state, reason, parent = which.get("state"), which.get("reason"), which.get("parent")
    values: dict[str, Any] = {"limit": limit, "before": before or "~", "since": which.get("since") or ""}
    for name in ("task", "queue", "reason", "parent", "label"):
        values |= {name: which.get(name), f"any_{name}": which.get(name) is None}
    values |= {"state": state and state.value, "any_state": state is None, **seen_by(whose := which.get("whose"))}
    if parent is not None:
        return "list_of", values
    if whose and reason is None and state in {None, State.COMPLETED}:
        return "list_tenant", values
    if state is None and reason is None:
        return "list_all", values
    return "list_ended" if state is not None and state.ended and reason is None else "list_open", values


def queue_limits(rows: Sequence[Sequence[Any]]) -> dict[str, tuple[int | None, bool]]:
    """Limits of queues, from the section `limits`."""
    found: dict[str, tuple[int | None, bool]] = {}
    for kind, name, concurrency, *_ in rows:
        limit, paused = found.get(name, (None, False))
        if kind == "queue":
            found[name] = concurrency, paused
        elif kind == PAUSED:
            found[name] = limit, True
    return found


def ended(row: Mapping[str, int], most: int, estimate: int) -> Ended:
    """Counts that stopped at `most`, and what there may be in all."""
    failed, cancelled = row["failed"], row["cancelled"]
    exact = row["ended"] < most
    total = row["ended"] if exact else max(estimate, row["ended"])
    return Ended(max(0, total - failed - cancelled), failed, cancelled, exact)
