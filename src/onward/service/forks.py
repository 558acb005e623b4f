"""Forks: starts a new task from the first records of another one. A part of the service."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from onward.artifacts.keeper import Artifacts
from onward.core import wire
from onward.core.ids import Ids
from onward.core.journal.cuts import Again, Cuts, slim
from onward.core.record import Record
from onward.core.task import SAME, Task
from onward.errors import CannotFork, DataErased, EncryptionKeyMissing, TaskNotFound, UsageError
from onward.service.askers import Askers
from onward.service.engine import Engine
from onward.store.port.core import Store
from onward.store.port.paging import journal_pages


@dataclasses.dataclass(frozen=True, slots=True)
class ForkPlan:
    """A fork that was not started yet: of which task, after which record, and what it will do again."""

    origin: Task
    at: int
    inbox: int
    again: tuple[Again, ...]
    approvals: tuple[int, ...] = ()
    """The numbers of the approvals that it asks for again before it goes on; an agent only for calls that are not done yet."""


class Forks:
    """Plans and starts forks. `checked_input` gives the bytes of an input, and raises when a handler does not take it."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        ids: Ids,
        checked_input: Callable[[str, Any], bytes],
        artifacts: Artifacts,
        askers: Askers,
    ) -> None:
        self._store, self._engine, self._ids, self._checked_input = store, engine, ids, checked_input
        self._artifacts, self._askers = artifacts, askers

    async def plan(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> ForkPlan:  # noqa: A002
        """The plan of a fork. Raises CannotFork where the journal cannot be cut."""
        origin = await self._store.get(task_id)
        if origin is None:
            raise TaskNotFound(task_id)
        if input is not SAME:
            if at not in {None, 1}:
                raise UsageError(
                    f"a fork with another input begins at the first record, not at {at}: later steps were done for the "
                    "input as it was; leave out the record number, or the input"
                )
            at = 1
        if at is None:
            raise UsageError(f"say after which record to fork (at=…); `onward fork {task_id}` lists them")
        cuts = await self._cuts(task_id)
        if why := cuts.why_not(at):
            raise CannotFork(task_id, at, why, cuts.near(at))
        return ForkPlan(origin, at, cuts.inbox(at), tuple(cuts.again(at)), tuple(cuts.approved(at)))

    async def places(self, task_id: str) -> list[Record]:
        """The records after which the task can be forked, without their payloads."""
        cuts = await self._cuts(task_id)
        if not cuts.records:
            raise TaskNotFound(task_id)
        return cuts.places()

    async def fork(
        self,
        task_id: str,
        at: int | None = None,
        *,
        input: Any = SAME,  # noqa: A002 -- as in submit
        agent: str | None = None,
        asker: str | None = None,
    ) -> str:
        """Start a new task that goes on after record `at` of another one, or, with another input, from its first record; its id, after
        the commit. The fork inherits the steps before that record and never undoes them; it does the later ones again. It does not
        inherit approvals: it asks again. `agent` is the agent that forks with its own key, and `asker` the principal that forks: it and the askers of
        the origin are those of the fork."""
        plan = await self.plan(task_id, at, input=input)
        if input is SAME:
            data = wire.encode(own_input(plan.origin), f"the input of task {plan.origin.task!r}")
        else:
            data = self._checked_input(plan.origin.task, input)
        fork = self._ids()
        await self._artifacts.inherit(fork, plan.origin.task_id, plan.at)
        payload = {"approvals": list(plan.approvals)} if plan.approvals else {}
        askers = await self._askers.of(plan.origin.task_id) | ({asker} if asker is not None else set())
        options = await self._options_with(agent, askers, plan.origin.task_id) if agent or askers else b""
        await self._engine.fork(
            fork, plan.origin.task_id, plan.at, input=data, inbox=plan.inbox, options=options, details=payload
        )
        self._store.nudge("ready", [fork])
        return fork

    async def _options_with(self, agent: str | None, askers: frozenset[str], origin: str) -> bytes:
        """The options of a task, as if this agent and these principals had submitted it."""
        changes = ({"agent": agent} if agent is not None else {}) | ({"askers": sorted(askers)} if askers else {})
        for kin in await self._store.listing.kin([origin]):
            options = wire.decode(kin.options)
            labels = {"labels": options.pop("labels")} if "labels" in options else {}  # last, as in `submission`
            return wire.encode(options | changes | labels)
        raise TaskNotFound(origin)

    async def _cuts(self, task_id: str) -> Cuts:
        records = [slim(record) async for page in journal_pages(self._store.journal, task_id) for record in page]
        return Cuts(records, await self._children(records, task_id))

    async def _children(self, records: list[Record], task_id: str) -> frozenset[str]:
        """The children of this task, among the results of steps that look as if they started one. (A step of the handler's own may
        have such a name.)"""
        children = set()
        for child in Cuts(records).started():
            task = await self._store.get(child)
            if task is not None and task.parent == task_id:
                children.add(child)
        return frozenset(children)


def own_input(task: Task) -> Any:
    """The input of a task that was read as a whole. Raises DataErased and EncryptionKeyMissing when this process cannot read it."""
    if task.erased:
        raise DataErased(f"the input of task {task.task_id}")
    if "input" in task.left_out:
        raise EncryptionKeyMissing("of its data key", f"the input of task {task.task_id}")
    return task.input
