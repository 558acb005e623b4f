"""Lists tasks, newest first, a page at a time. A part of the service.

Every query uses an index or has a bound. Times are compared with the ids, so that they are ranges of the primary key. A task has to
match all filters. A filter with several values matches when one of them does; labels do so for each name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack

from onward.core import wire
from onward.core.filter import as_list
from onward.core.ids import first_id
from onward.core.task import Reason, State, Tasks
from onward.errors import BadSetting, TaskNotFound
from onward.service.submission import SubmitRequest, label_in, named, stored_key
from onward.store.port.core import Store
from onward.store.port.listing import PAGE_BYTES, SMALL_BYTES, Which

E = TypeVar("E", bound=enum.StrEnum)
Ids = list[str]
Labels = Mapping[str, str | Sequence[str]]

MAX_SCAN_TASKS = 100_000
"""Tasks that one query reads when no index fits the filter."""

MAX_PAGE_QUERIES = 10
"""Queries for one page: the filter for several labels, which the store does not have, may drop most of the rows."""

MAX_COUNT = 10_000
"""Tasks that are counted."""

MAX_COUNT_QUERIES = 5
"""Queries, of up to `MAX_SCAN_TASKS` each, for one count."""

BRIEF_BYTES = SMALL_BYTES
"""Bytes of an input, a result or an error that a brief list still has."""

MAX_SEARCH_CHARS = 200


class Filters(TypedDict, total=False):
    """The filters of a list; `whose` as for `Service.get`."""

    state: State | str | Sequence[str] | None
    task: str | Sequence[str] | None
    queue: str | Sequence[str] | None
    reason: Reason | str | Sequence[str] | None
    parent: str | None
    labels: Labels | None
    created_after: float | None
    created_before: float | None
    key: str | None
    text: str | None
    whose: str | None


FILTERS = frozenset(Filters.__annotations__)


class Query(NamedTuple):
    """A query to the store for a list."""

    which: Which
    before: str | None
    labels: Labels | None
    floor: str | None
    """The id at which this query stops, where it does not read to the end."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels of a task match."""
        return all(
            labels.get(name) in ([value] if isinstance(value, str) else value)
            for name, value in (self.labels or {}).items()
        )


class Listing:
    """Lists and counts tasks."""

    _store: Store

    async def list(
        self, *, limit: int = 100, cursor: str | None = None, brief: bool = False, **filters: Unpack[Filters]
    ) -> tuple[Tasks, str | None]:
        """Tasks, newest first, and the cursor for the next page. With `brief`, large values are left out. The inputs and results of a page
        have about `PAGE_BYTES` together: beyond that they are left out too, and `left_out` of the task names them. A query without a
        fitting index is bounded: its page may have few tasks, or none, and a cursor from which to go on."""
        if not 1 <= limit <= 1000:
            raise BadSetting("limit", limit, "between 1 and 1000")
        query = await self._query(cursor, filters)
        query.which["page_bytes"] = PAGE_BYTES
        if brief:
            query.which["most"] = BRIEF_BYTES
        return await self._page(query, limit)

    async def _page(self, query: Query, limit: int) -> tuple[Tasks, str | None]:
        tasks: Tasks = []
        before = query.before
        for _ in range(MAX_PAGE_QUERIES):
            wanted = limit + 1 - len(tasks)
            rows = await self._store.listing.list(limit=wanted, before=before, **query.which)
            tasks += [task for task in rows if query.matches(task.labels)]
            if len(rows) < wanted or len(tasks) > limit:
                break
            before = rows[-1].task_id
        else:
            return tasks, before
        return tasks[:limit], tasks[limit - 1].task_id if len(tasks) > limit else query.floor

    async def count(self, *, most: int = MAX_COUNT, **filters: Unpack[Filters]) -> tuple[int, bool]:
        """How many tasks `list` would list, and whether there may be more: they are counted up to `most`, and, where no index fits, among
        the last few hundred thousand."""
        ids, more = await self.matching(most, **filters)
        return len(ids), more

    async def matching(self, most: int, **filters: Unpack[Filters]) -> tuple[Ids, bool]:
        """The ids of the newest tasks that `list` would list, at most `most`, and whether there may be more."""
        ids: Ids = []
        cursor: str | None = None
        for _ in range(MAX_COUNT_QUERIES):
            query = await self._query(cursor, filters)
            wanted = most + 1 - len(ids)
            rows = await self._store.listing.ids(limit=wanted, before=query.before, **query.which)
            ids += [
                task_id
                for task_id, options in rows
                if not query.labels or query.matches(wire.decode(options).get("labels", {}))
            ]
            if len(ids) > most:
                return ids[:most], True
            cursor = rows[-1][0] if len(rows) == wanted else query.floor
            if cursor is None:
                return ids, False
        return ids, True

    async def _query(self, cursor: str | None, filters: Filters) -> Query:
        if unknown := filters.keys() - FILTERS:
            raise TypeError(f"a list has no filter {min(unknown)!r}")
        given: dict[str, Any] = {**dict.fromkeys(FILTERS), **filters}
        parent, labels, key, whose = given["parent"], given["labels"], given["key"], given["whose"]
        created_after, created_before = given["created_after"], given["created_before"]
        which: Which = {
            "state": [parse_enum(State, "state", value) for value in as_list("state", given["state"])] or None,
            "reason": [parse_enum(Reason, "reason", value) for value in as_list("reason", given["reason"])] or None,
            "task": [named("task", name) for name in as_list("task", given["task"])] or None,
            "queue": [named("queue", name) for name in as_list("queue", given["queue"])] or None,
            "parent": parent and _check_id("parent", parent, "the id of a task"),
            "label": _label(labels),
            "text": _text(given["text"]),
            "since": None if created_after is None else first_id(created_after),
            "whose": whose,
        }
        before = cursor and _check_id("cursor", cursor, "`next` of the page before")
        before = _lowest(before, None if created_before is None else first_id(created_before))
        if key is not None:
            key = stored_key(SubmitRequest("", key=key, tenant=whose or None))
            task_of_key = (await self._store.by_key([key])).get(key)
            which["since"] = max(which["since"] or "", "~" if task_of_key is None else task_of_key.id)
            before = _lowest(before, None if task_of_key is None else f"{task_of_key.id}~")
        floor = None
        if _reads_all(which) and (labels or which["text"] or which["task"] or which["queue"]):
            floor = await self._store.listing.floor(before, MAX_SCAN_TASKS, whose)
            if floor is not None and floor <= (which["since"] or ""):
                floor = None
            which["since"] = max(which["since"] or "", floor or "")
        return Query(which, before, labels, floor)


def _reads_all(which: Which) -> bool:
    """Whether a list reads all tasks: neither only the children of one nor only unfinished tasks."""
    states: Any = which["state"]
    ended = states is None or any(State(state).ended for state in states)
    return which["parent"] is None and which["reason"] is None and ended


def _label(labels: Labels | None) -> bytes | None:
    """A label that the store can search for."""
    for name, value in (labels or {}).items():
        if isinstance(value, str) or len(value) == 1:
            return label_in({name: value if isinstance(value, str) else value[0]})
    return None


def _text(text: str | None) -> str | None:
    if text is not None and len(text) > MAX_SEARCH_CHARS:
        raise BadSetting("text", f"{text[:40]}…", f"at most {MAX_SEARCH_CHARS} characters")
    # no stored string has NUL or half of a surrogate pair
    text = None if text is None else text.strip().replace("\0", "").encode("utf-8", "ignore").decode()
    return text or None


def parse_enum(kind: type[E], name: str, value: str) -> E:
    """A member of an enum by its value. Raises BadSetting."""
    try:
        return kind(value)
    except ValueError:
        raise BadSetting(name, value, f"one of {', '.join(kind)}") from None


def _lowest(*bounds: str | None) -> str | None:
    """The lowest of these bounds; None is no bound."""
    return min((bound for bound in bounds if bound is not None), default=None)


def _check_id(name: str, value: str, wanted: str) -> str:
    try:
        return plain_id(value)
    except TaskNotFound:
        raise BadSetting(name, value[:80], wanted) from None


def plain_id(task_id: str) -> str:
    """An id that the database can look up. Raises TaskNotFound for a string that cannot be an id; the database would raise an error."""
    if not isinstance(task_id, str) or not task_id.isascii() or not task_id.isprintable():
        raise TaskNotFound(str(task_id).encode("ascii", "backslashreplace").decode()[:80])
    return task_id
