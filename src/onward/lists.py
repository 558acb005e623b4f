"""Lists: which tasks there are, newest first, a page at a time. Part of the one door (service.py).

Every look has an index or a bound. Times are those in the ids, so that they are ranges of the primary key.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from onward.core.ids import first_id
from onward.core.task import Reason, State, Tasks
from onward.errors import BadSetting, TaskNotFound
from onward.store.overview import Which
from onward.store.port import Store
from onward.wishes import Wish, has_labels, label_in, named, stored_key

E = TypeVar("E", bound=enum.StrEnum)

LOOKED_AT = 20_000
"""Tasks that one look for labels goes through."""


class Lists:
    """What the door lists."""

    _store: Store

    async def list(
        self,
        *,
        state: State | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        reason: Reason | str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        created_after: float | None = None,
        created_before: float | None = None,
        key: str | None = None,
        whose: str | None = None,
    ) -> tuple[Tasks, str | None]:
        """Tasks, newest first, and the cursor for the next page; `whose` as for get. A look for labels is bounded: a page may have
        few tasks, or none, and a cursor from which to go on."""
        if not 1 <= limit <= 1000:
            raise BadSetting("limit", limit, "between 1 and 1000")
        which: Which = {
            "state": _one_of(State, "state", state),
            "reason": _one_of(Reason, "reason", reason),
            "task": task and named("task", task),
            "queue": queue and named("queue", queue),
            "parent": parent and _an_id("parent", parent, "the id of a task"),
            "label": label_in(labels) if labels else None,
            "since": None if created_after is None else first_id(created_after),
            "whose": whose,
        }
        before = cursor and _an_id("cursor", cursor, "what `next` of the page before said")
        before = _lowest(before, None if created_before is None else first_id(created_before))
        if key is not None:
            kept = stored_key(Wish("", key=key, tenant=whose or None))
            there = (await self._store.keyed([kept])).get(kept)
            which["since"] = max(which["since"] or "", "~" if there is None else there.id)
            before = _lowest(before, None if there is None else f"{there.id}~")
        floor = None
        if labels and parent is None and (which["state"] is None or which["state"].ended) and reason is None:
            floor = await self._store.floor(before, LOOKED_AT, whose)
            which["since"] = max(which["since"] or "", floor or "")
        found = await self._store.list(limit=limit + 1, before=before, **which)
        more = found[limit - 1].task_id if len(found) > limit else floor if floor == which["since"] else None
        return [one for one in found[:limit] if has_labels(one, labels)], more


def _one_of(kind: type[E], name: str, value: str | None) -> E | None:
    try:
        return None if value is None else kind(value)
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
