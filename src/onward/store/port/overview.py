"""Overviews: what every Store can tell of the place as a whole, and what is said to a whole queue.

Numbers of what is unfinished are exact, and cost a look at what is unfinished; those of what has ended are exact up to a bound
and estimates above it, so that nobody reads millions of rows to show a number.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

from onward.core.record import Record
from onward.core.task import State, Tasks
from onward.store.port.access import seen_by

PAUSED = "paused"
"""The kind of the limit that a paused queue has: nothing of it at once."""

WHOLE = 2**31 - 1
"""More bytes than an input or a record can have."""

HEAD = 240
"""Bytes of a last record that are read for what stands at its beginning."""


class Which(TypedDict, total=False):
    """Which tasks are listed: what is missing, or None, does not matter. Of several values of one name, each will do."""

    state: State | Sequence[State] | None
    task: str | Sequence[str] | None
    queue: str | Sequence[str] | None
    reason: str | Sequence[str] | None
    parent: str | None
    label: bytes | None
    """What the options of the task hold somewhere, as JSON; the caller looks again."""
    text: str | None
    """What stands in its name, its key, its labels or at the beginning of its input, whatever the case of the letters; or what its
    id begins or ends with."""
    since: str | None
    """The lowest id."""
    whose: str | None
    """Of which tenant; "" for what has none."""
    most: int | None
    """How many bytes of an input, and of a last record, are wanted: longer ones are left out."""


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

    async def model_calls(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        """The ids and data of the steps of these tasks that may have asked a model."""
        ...

    async def size(self) -> int:
        """Bytes that the database takes."""
        ...

    async def ahead(self, task_ids: Sequence[str], most: int) -> dict[str, int]:
        """Of these tasks, for each that could be started now, how many of its queue stand before it: counted up to `most` of a higher
        priority, and as many of its own."""
        ...

    async def lately(self, task_ids: Sequence[str], back: int, most: int) -> dict[str, Sequence[Record]]:
        """The last `back` records of each of these tasks that is unfinished, without news; only those that say what a task waits for
        have their data, and only where it is not longer than `most`."""
        ...

    async def ids(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Sequence[tuple[str, bytes]]:
        """The ids and options of the same tasks that `list` gives."""
        ...

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        """Tasks, newest first, below the id `before`. A look for a text reads all that lie between it and `since`."""
        ...


def listings(limit: int, before: str | None, which: Which) -> list[tuple[str, dict[str, Any]]]:
    """The statements that list these tasks, each by the way on which the fewest others are read: the newest of all that they find are
    what was asked for."""
    states, several = _several(which.get("state")), _several(which.get("reason"))
    if states is None or which.get("parent") is not None or (several is None and State.COMPLETED in states):
        return [listing(limit, before, which)]
    ended = [] if several is not None else [State(state) for state in states if State(state).ended]
    unfinished = [State(state) for state in states if not State(state).ended]
    parts: list[Which] = [{**which, "state": state} for state in ended]
    parts += [{**which, "state": unfinished}] if unfinished else []
    return [listing(limit, before, part) for part in parts]


def listing(limit: int, before: str | None, which: Which) -> tuple[str, dict[str, Any]]:
    """The statement that lists tasks of one state, of several that have not ended, or of any with the one that most tasks have; and
    its values."""
    states, reason, parent = _several(which.get("state")), _several(which.get("reason")), which.get("parent")
    values: dict[str, Any] = {"limit": limit, "before": before or "~", "since": which.get("since") or ""}
    values["most"] = which.get("most") or WHOLE
    values |= {"parent": parent, "label": which.get("label"), "any_label": which.get("label") is None}
    for name in ("task", "queue", "reason"):
        values |= {name: _several(which.get(name)) or [], f"any_{name}": which.get(name) is None}
    values |= {"states": states or [], "state": states and states[0], "any_state": states is None}
    values |= {**words(which.get("text")), **seen_by(whose := which.get("whose"))}
    if parent is not None:
        return "list_of", values
    if reason is not None or (states is not None and not any(State(state).ended for state in states)):
        return "list_open", values
    if whose and (states is None or State.COMPLETED in states):
        return "list_tenant", values
    alone = states is not None and len(states) == 1 and (states[0] != State.COMPLETED or not _picky(which))
    return "list_ended" if alone else "list_all", values


IDS = {
    "list_all": "ids_all",
    "list_tenant": "ids_tenant",
    "list_of": "ids_of",
    "list_open": "ids_open",
    "list_ended": "ids_ended",
}
"""The statement that finds the ids alone."""


def _picky(which: Which) -> bool:
    return any(which.get(name) is not None for name in ("task", "queue", "label", "text"))


def newest(parts: Iterable[Tasks], limit: int) -> Tasks:
    """The newest of what several statements found."""
    return sorted(itertools.chain.from_iterable(parts), key=lambda task: task.task_id, reverse=True)[:limit]


def newest_ids(parts: Iterable[Iterable[Sequence[Any]]], limit: int) -> list[tuple[str, bytes]]:
    """The same of ids."""
    found = ((str(row[0]), bytes(row[1])) for row in itertools.chain.from_iterable(parts))
    return sorted(found, reverse=True)[:limit]


FAR = 200
"""Bytes of an input in which a text is looked for."""


def words(text: str | None) -> dict[str, Any]:
    """The parameters of the section `says`: a text as patterns. In JSON a quote has a backslash before it."""
    lower, upper = (text or "").lower(), (text or "").upper()
    found: dict[str, Any] = {"any_text": text is None, "far": FAR, "two_cases": not lower.isascii()}
    found |= {"id_begins": _pattern(lower)[1:], "id_ends": _pattern(lower)[:-1]}
    found["bare"] = bare = [json.dumps(case, ensure_ascii=False)[1:-1] for case in (lower, upper)]
    for name, case, inside in zip(("", "_too"), (lower, upper), bare, strict=True):
        found |= {f"text{name}": _pattern(case), f"within{name}": _pattern(inside)}
        found[f"labelled{name}"] = _pattern(inside.replace(":", '":"', 1))
    return found


def _pattern(text: str) -> str:
    return "%" + re.sub(r"([~%_])", r"~\1", text) + "%"


def _several(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return [str(value)] if isinstance(value, str) else [str(one) for one in value]


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


def by_task(rows: Iterable[Sequence[Any]]) -> dict[str, Sequence[Record]]:
    """Records of several tasks, from the section `lately`."""
    found: dict[str, list[Record]] = {}
    for task_id, *record in rows:
        found.setdefault(task_id, []).append(Record(*record))
    return dict(found)
