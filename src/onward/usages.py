"""Usages: what a task, and all that it started, has taken of models. Part of the one door (service.py).

An ended agent's own is in the last record of its task, which comes along with the task. That of one under way is in its journal
since its last checkpoint. Children are found by an index, level by level, up to a bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from onward.core.record import Record
from onward.core.task import Task
from onward.core.usage import Usage, usage_at, usage_in
from onward.store.overview import Child
from onward.store.port import Store

PAGE = 1000
MOST = 5_000
"""Children, and theirs, that are looked at; of more nobody sums up anything."""

JOURNALS = 50
"""Of them, those whose journals are read because they are under way, or were cancelled."""


class Usages:
    """Verbs about it."""

    def __init__(self, store: Store, is_agent: Callable[[str], Awaitable[bool]]) -> None:
        self._store, self._is_agent = store, is_agent

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
            kin = await self._store.offspring(level, MOST + 1 - seen)
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
