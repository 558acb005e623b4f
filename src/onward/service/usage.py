"""Sums up the usage of models, for a task and all that it started, and for reports. A part of the service.

The usage of an ended agent is in the last record of its task, which is read with the task. The usage of a running agent is in its journal
since the last checkpoint. Children are read by an index, level by level, up to a bound.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Awaitable, Callable, Sequence

from onward.core import wire
from onward.core.task import Task, Tasks
from onward.core.usage import UNKNOWN, Usage, of_call, usage_at, usage_in
from onward.core.views import UsageReport, UsageRow
from onward.errors import BadSetting
from onward.store.port.core import Store
from onward.store.port.listing import Child
from onward.store.port.paging import journal_pages

PAGE_TASKS = 1000
MAX_DESCENDANTS = 5_000
"""Tasks below one that are summed up; above it the sum is unknown."""

MAX_DESCENDANT_JOURNALS = 50
"""Journals of them that are read, of tasks that are running or were cancelled; above it the sum is unknown."""

BY = ("agent", "model", "key", "day")
MAX_REPORT_TASKS = 10_000
"""Tasks of agents that a report reads, the newest."""
MAX_REPORT_JOURNALS = 500
"""Journals of them that are read, of tasks that are running or were cancelled; further ones count as unknown."""
BATCH_TASKS = 500
"""Tasks whose model calls are read with one statement."""


Lister = Callable[..., Awaitable[tuple[Tasks, str | None]]]
"""Lists tasks, as `Listing.list` does: a page, and the cursor for the next."""


class UsageReports:
    """Reports usage."""

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
    ) -> UsageReport:
        """The usage of these agents, of tasks that were submitted between `since` and `until`."""
        if by not in BY:
            raise BadSetting("by", by, f"one of {', '.join(BY)}")
        tasks: Tasks = []
        cursor: str | None = None
        while agents and len(tasks) < MAX_REPORT_TASKS:
            filters = {"task": agents, "created_after": since, "created_before": until, "whose": whose}
            page, cursor = await lister(limit=PAGE_TASKS, cursor=cursor, **filters)
            tasks += page
            if cursor is None:
                break
        groups = await self._by_model(tasks) if by == "model" else await self._by_task(by, tasks, whose)
        rows = sorted(
            groups.values(), key=lambda row: (row.group,) if by == "day" else (-row.usd, -row.calls, row.group)
        )
        return UsageReport(by, rows, cursor is None)

    async def _by_task(self, by: str, tasks: Tasks, whose: str | None) -> dict[str, UsageRow]:
        ids = {task.by for task in tasks if task.by is not None} if by == "key" else set()
        names = await self._store.keys.names(ids, whose) if ids else {}
        rows: dict[str, UsageRow] = {}
        left = MAX_REPORT_JOURNALS
        for task in tasks:
            usage = task.usage
            if usage is None:
                left -= 1
                usage = await self._read(task.task_id) if left >= 0 else UNKNOWN
            if usage.calls == 0:
                continue
            group = task.task
            if by == "day":
                group = datetime.datetime.fromtimestamp(task.created_at, datetime.UTC).date().isoformat()
            elif by == "key":
                group = "" if task.by is None else names.get(task.by, task.by)
            row = rows.setdefault(group, UsageRow(group))
            row.tasks += 1
            row.add(usage)
        return rows

    async def _by_model(self, tasks: Tasks) -> dict[str, UsageRow]:
        rows: dict[str, UsageRow] = {}
        counted: set[tuple[str, str]] = set()
        for start in range(0, len(tasks), BATCH_TASKS):
            ids = [task.task_id for task in tasks[start : start + BATCH_TASKS]]
            for task_id, data in await self._store.listing.model_calls(ids):
                payload = wire.decode(data)
                result = payload.get("result") if isinstance(payload, dict) else None
                usage = of_call(result, task_id)
                if usage.calls == 0 or not isinstance(result, dict):
                    continue
                model = str((result.get("asked") or {}).get("model", ""))
                row = rows.setdefault(model, UsageRow(model))
                row.add(usage)
                row.tasks += (model, task_id) not in counted
                counted.add((model, task_id))
        return rows

    async def of(self, task: Task) -> Task:
        """The task with its usage; None for a task that called no model and whose children called none."""
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
        """The usage of all tasks below one; None when they are too many."""
        usage, count, journals, level = Usage(), 0, 0, [task_id]
        while level:
            children = await self._store.listing.offspring(level, MAX_DESCENDANTS + 1 - count)
            count += len(children)
            without_sum = [child for child in children if await self._lacks_sum(child)]
            journals += len(without_sum)
            if count > MAX_DESCENDANTS or journals > MAX_DESCENDANT_JOURNALS:
                return None
            for child in children:
                usage += usage_at(child.head) or Usage()
            for child in without_sum:
                usage += await self._read(child.id)
            level = [child.id for child in children]
        return usage

    async def _lacks_sum(self, child: Child) -> bool:
        """Whether the usage of a child has to be read from its journal."""
        return usage_at(child.head) is None and await self._is_agent(child.task)

    async def _read(self, task_id: str) -> Usage:
        usage = Usage()
        async for page in journal_pages(self._store.journal, task_id, None):
            usage = usage_in(page, task_id, usage)
        return usage
