"""Lists: which tasks there are, newest first, a page at a time. A part of the service.

Every look has an index or a bound. Times are those in the ids, so that they are ranges of the primary key. All that is asked for has to
hold; of several values of one name, each will do. Labels: those of one name each will do, and every name has to.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from onward.core import wire
from onward.core.ids import first_id
from onward.core.task import Reason, State, Tasks
from onward.errors import BadSetting, TaskNotFound
from onward.service.submission import SubmitRequest, label_in, named, stored_key
from onward.store.port.core import Store
from onward.store.port.listing import Which

E = TypeVar("E", bound=enum.StrEnum)
Ids = list[str]
Labels = Mapping[str, str | Sequence[str]]

LOOKED_AT = 100_000
"""Tasks that one look goes through that no index helps."""

ROUNDS = 10
"""Statements for one page: what only we can tell (several labels) may leave little of what the store finds."""

COUNTED = 10_000
"""Tasks that are counted."""

LOOKS = 5
"""Looks, each as far as one goes, for one count."""

BRIEF = 8_000
"""Bytes of an input, and of a result or an error, that a brief list still tells."""

LONGEST_TEXT = 200
MOST_VALUES = 50


ASKED = (
    *("state", "task", "queue", "reason", "parent", "labels"),
    *("created_after", "created_before", "key", "text", "whose"),
)
"""What a list can be asked for."""


class Look(NamedTuple):
    """What is asked of the store for a list."""

    which: Which
    before: str | None
    labels: Labels | None
    floor: str | None
    """How far down this look goes, where it does not go to the end."""

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Whether these are the labels that were asked for."""
        return all(
            labels.get(name) in ([value] if isinstance(value, str) else value)
            for name, value in (self.labels or {}).items()
        )


class Listing:
    """What the door lists."""

    _store: Store

    async def list(
        self,
        *,
        state: State | str | Sequence[str] | None = None,
        task: str | Sequence[str] | None = None,
        queue: str | Sequence[str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        reason: Reason | str | Sequence[str] | None = None,
        parent: str | None = None,
        labels: Labels | None = None,
        created_after: float | None = None,
        created_before: float | None = None,
        key: str | None = None,
        text: str | None = None,
        whose: str | None = None,
        brief: bool = False,
    ) -> tuple[Tasks, str | None]:
        """Tasks, newest first, and the cursor for the next page; `whose` as for get. With `brief`, what is large is left out. A look that no index helps is bounded: a page
        may have few tasks, or none, and a cursor from which to go on."""
        if not 1 <= limit <= 1000:
            raise BadSetting("limit", limit, "between 1 and 1000")
        look = await self._look(
            cursor,
            state=state,
            task=task,
            queue=queue,
            reason=reason,
            parent=parent,
            labels=labels,
            created_after=created_after,
            created_before=created_before,
            key=key,
            text=text,
            whose=whose,
        )
        if brief:
            look.which["most"] = BRIEF
        return await self._page(look, limit)

    async def _page(self, look: Look, limit: int) -> tuple[Tasks, str | None]:
        found: Tasks = []
        before = look.before
        for _ in range(ROUNDS):
            wanted = limit + 1 - len(found)
            some = await self._store.listing.list(limit=wanted, before=before, **look.which)
            found += [one for one in some if look.fits(one.labels)]
            if len(some) < wanted or len(found) > limit:
                break
            before = some[-1].task_id
        else:
            return found, before
        return found[:limit], found[limit - 1].task_id if len(found) > limit else look.floor

    async def count(self, *, most: int = COUNTED, **which: Any) -> tuple[int, bool]:
        """How many tasks there are of those that `list` would list, and whether there may be more: they are counted up to `most`, and
        among the last few hundred thousand, where no index helps."""
        found, more = await self.matching(most, **which)
        return len(found), more

    async def matching(self, most: int, **which: Any) -> tuple[Ids, bool]:
        """The ids of the newest tasks that `list` would list, at most so many, and whether there may be more."""
        found: Ids = []
        cursor: str | None = None
        for _ in range(LOOKS):
            look = await self._look(cursor, **dict.fromkeys(ASKED) | which)
            wanted = most + 1 - len(found)
            some = await self._store.listing.ids(limit=wanted, before=look.before, **look.which)
            found += [one for one, said in some if not look.labels or look.fits(wire.decode(said).get("labels", {}))]
            if len(found) > most:
                return found[:most], True
            cursor = some[-1][0] if len(some) == wanted else look.floor
            if cursor is None:
                return found, False
        return found, True

    async def _look(
        self,
        cursor: str | None,
        *,
        state: Any,
        task: Any,
        queue: Any,
        reason: Any,
        parent: str | None,
        labels: Labels | None,
        created_after: float | None,
        created_before: float | None,
        key: str | None,
        text: str | None,
        whose: str | None,
    ) -> Look:
        which: Which = {
            "state": [one_of(State, "state", one) for one in several("state", state)] or None,
            "reason": [one_of(Reason, "reason", one) for one in several("reason", reason)] or None,
            "task": [named("task", one) for one in several("task", task)] or None,
            "queue": [named("queue", one) for one in several("queue", queue)] or None,
            "parent": parent and _an_id("parent", parent, "the id of a task"),
            "label": _label(labels),
            "text": _text(text),
            "since": None if created_after is None else first_id(created_after),
            "whose": whose,
        }
        before = cursor and _an_id("cursor", cursor, "what `next` of the page before said")
        before = _lowest(before, None if created_before is None else first_id(created_before))
        if key is not None:
            kept = stored_key(SubmitRequest("", key=key, tenant=whose or None))
            there = (await self._store.by_key([kept])).get(kept)
            which["since"] = max(which["since"] or "", "~" if there is None else there.id)
            before = _lowest(before, None if there is None else f"{there.id}~")
        floor = None
        if _reads_all(which) and (labels or which["text"] or which["task"] or which["queue"]):
            floor = await self._store.listing.floor(before, LOOKED_AT, whose)
            if floor is not None and floor <= (which["since"] or ""):
                floor = None
            which["since"] = max(which["since"] or "", floor or "")
        return Look(which, before, labels, floor)


def _reads_all(which: Which) -> bool:
    """Whether a list walks through all tasks: neither through the children of one nor through what is unfinished alone."""
    states: Any = which["state"]
    ended = states is None or any(State(state).ended for state in states)
    return which["parent"] is None and which["reason"] is None and ended


def _label(labels: Labels | None) -> bytes | None:
    """A label that the store can look for."""
    for name, value in (labels or {}).items():
        if isinstance(value, str) or len(value) == 1:
            return label_in({name: value if isinstance(value, str) else value[0]})
    return None


def _text(text: str | None) -> str | None:
    if text is not None and len(text) > LONGEST_TEXT:
        raise BadSetting("text", f"{text[:40]}…", f"at most {LONGEST_TEXT} characters")
    text = None if text is None else text.strip().replace("\0", "")
    return text or None


def several(name: str, value: Any) -> Sequence[Any]:
    """One value, or several, as a list."""
    if value is None:
        return []
    found = [value] if isinstance(value, str) else [*value]
    if len(found) > MOST_VALUES:
        raise BadSetting(name, len(found), f"at most {MOST_VALUES} values")
    return found


def one_of(kind: type[E], name: str, value: str) -> E:
    """A word of a closed list. Raises BadSetting."""
    try:
        return kind(value)
    except ValueError:
        raise BadSetting(name, value, f"one of {', '.join(kind)}") from None


def _lowest(one: str | None, other: str | None) -> str | None:
    """The lower of two bounds; None is none."""
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _an_id(name: str, value: str, wanted: str) -> str:
    try:
        return plain_id(value)
    except TaskNotFound:
        raise BadSetting(name, value[:80], wanted) from None


def plain_id(task_id: str) -> str:
    """An id as it can be looked up; what cannot be one is not found rather than an error of the database."""
    if not isinstance(task_id, str) or not task_id.isascii() or not task_id.isprintable():
        raise TaskNotFound(str(task_id).encode("ascii", "backslashreplace").decode()[:80])
    return task_id
