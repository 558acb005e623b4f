"""Usages: what a task, and all that it started, has taken of models. A part of the service.

An ended agent's own is in the last record of its task, which comes along with the task. That of one under way is in its journal
since its last checkpoint. Children are found by an index, level by level, up to a bound.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Awaitable, Callable, Sequence

from onward.core import wire
from onward.core.record import Record
from onward.core.task import Task, Tasks
from onward.core.usage import UNKNOWN, Usage, of_call, usage_at, usage_in
from onward.errors import BadSetting
from onward.store.port.core import Store
from onward.store.port.listing import Child

PAGE = 1000
MOST = 5_000
"""Children, and theirs, that are looked at; of more nobody sums up anything."""

JOURNALS = 50
"""Of them, those whose journals are read because they are under way, or were cancelled."""


BY = ("agent", "model", "key", "day")
REPORTED = 10_000
"""Tasks of agents that a report looks at, the newest."""
MOST_READ = 500
"""Of them, those whose journals are read because they are under way, or were cancelled; the others count as unknown."""
SOME = 500


@dataclasses.dataclass(slots=True)
class Row:
    """What one agent, model, key or day took. `unknown` is how many of its tasks, or calls, did not tell all of it."""

    group: str
    tasks: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    unknown: int = 0

    def add(self, taken: Usage) -> None:
        """One more. What is None is unknown, and never nothing."""
        told = (taken.calls, taken.input_tokens, taken.output_tokens, taken.cost_usd)
        self.calls += told[0] or 0
        self.tokens_in += told[1] or 0
        self.tokens_out += told[2] or 0
        self.usd += told[3] or 0.0
        self.unknown += None in told


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What models took, in groups."""

    by: str
    rows: list[Row]
    complete: bool
    """False when there are more tasks than were looked at: these are the newest."""


Lister = Callable[..., Awaitable[tuple[Tasks, str | None]]]
"""Lists tasks, as `Lists.list` does: a page, and the cursor for the next."""


class UsageReports:
    """Verbs about it."""

    def __init__(self, store: Store, is_agent: Callable[[str], Awaitable[bool]]) -> None:
        self._store, self._is_agent = store, is_agent

    async def report(
        self,
        by: str,
        agents: Sequence[str],
        lister: Lister,
        *,
        since: float | None = None,
        until: float | None = None,
        whose: str | None = None,
    ) -> Report:
        """What the models of these agents took, of tasks that were submitted in a time."""
        if by not in BY:
            raise BadSetting("by", by, f"one of {', '.join(BY)}")
        tasks: Tasks = []
        cursor: str | None = None
        while agents and len(tasks) < REPORTED:
            asked = {"task": agents, "created_after": since, "created_before": until, "whose": whose}
            page, cursor = await lister(limit=PAGE, cursor=cursor, **asked)
            tasks += page
            if cursor is None:
                break
        found = await self._by_model(tasks) if by == "model" else await self._by_task(by, tasks, whose)
        rows = sorted(
            found.values(), key=lambda row: (row.group,) if by == "day" else (-row.usd, -row.calls, row.group)
        )
        return Report(by, rows, cursor is None)

    async def _by_task(self, by: str, tasks: Tasks, whose: str | None) -> dict[str, Row]:
        names = {row.id: row.name for row in await self._store.keys.list(whose)} if by == "key" else {}
        found: dict[str, Row] = {}
        left = MOST_READ
        for task in tasks:
            taken = task.usage
            if taken is None:
                left -= 1
                taken = await self._read(task.task_id) if left >= 0 else UNKNOWN
            if taken.calls == 0:
                continue
            group = task.task
            if by == "day":
                group = datetime.datetime.fromtimestamp(task.created_at, datetime.UTC).date().isoformat()
            elif by == "key":
                group = "" if task.by is None else names.get(task.by, task.by)
            row = found.setdefault(group, Row(group))
            row.tasks += 1
            row.add(taken)
        return found

    async def _by_model(self, tasks: Tasks) -> dict[str, Row]:
        found: dict[str, Row] = {}
        seen: set[tuple[str, str]] = set()
        for start in range(0, len(tasks), SOME):
            ids = [task.task_id for task in tasks[start : start + SOME]]
            for task_id, data in await self._store.listing.model_calls(ids):
                said = wire.decode(data)
                result = said.get("result") if isinstance(said, dict) else None
                taken = of_call(result, task_id)
                if taken.calls == 0 or not isinstance(result, dict):
                    continue
                model = str((result.get("asked") or {}).get("model", ""))
                row = found.setdefault(model, Row(model))
                row.add(taken)
                row.tasks += (model, task_id) not in seen
                seen.add((model, task_id))
        return found

    async def of(self, task: Task) -> Task:
        """The task with its usage; None for one that asked no model and whose children asked none."""
        own = task.usage
        if own is None and await self._is_agent(task.task):
            own = await self._read(task.task_id)
        below = await self._below(task.task_id)
        if own is None and below == Usage():
            return task
        own = own or Usage()
        return dataclasses.replace(
            task, usage=dataclasses.replace(own, with_children=None if below is None else own + below)
        )

    async def _below(self, task_id: str) -> Usage | None:
        """All that it started; None when that is too much."""
        found, seen, read, level = Usage(), 0, 0, [task_id]
        while level:
            kin = await self._store.listing.offspring(level, MOST + 1 - seen)
            seen += len(kin)
            unread = [one for one in kin if await self._unread(one)]
            read += len(unread)
            if seen > MOST or read > JOURNALS:
                return None
            for one in kin:
                found += usage_at(one.head) or Usage()
            for one in unread:
                found += await self._read(one.id)
            level = [one.id for one in kin]
        return found

    async def _unread(self, kin: Child) -> bool:
        return usage_at(kin.head) is None and await self._is_agent(kin.task)

    async def _read(self, task_id: str) -> Usage:
        records: list[Record] = []
        while len(page := await self._store.journal(task_id, records[-1].seq if records else None, PAGE)) == PAGE:
            records += page
        return usage_in(records + page, task_id)
