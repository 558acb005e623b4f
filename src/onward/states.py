"""States: what an agent knows, read from outside; and what a task that goes on from another has to ask first. Part of the one
door (service.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.core.record import Record
from onward.errors import InvalidInput, NoState, StateConflict, TaskNotFound
from onward.store.port import Store
from onward.wishes import Wish

if TYPE_CHECKING:
    from onward.core.state import AgentState

PAGE = 1000


class States:
    """All verbs about states."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, task_id: str) -> AgentState:
        """The state of a task as it is now. Raises TaskNotFound, and NoState for a task that has none."""
        from onward.core.state import state_in  # noqa: PLC0415 -- pydantic, which most programs do not need

        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        state = state_in(await self._journal(task_id))
        if state is None:
            raise NoState(task_id, task.task)
        return state

    async def after(self, task_id: str, wish: Wish) -> Wish:
        """A task that goes on from another, one that has ended and has a state, and is of the same tenant. Raises
        StateConflict."""
        task = await self._store.get(task_id) if isinstance(task_id, str) else None
        if task is None:
            raise TaskNotFound(str(task_id))
        if not task.ended:
            raise StateConflict(task_id, task.state, "gone on from", "wait until it has ended, or cancel it")
        await self.get(task_id)
        said = wish.input if isinstance(wish.input, dict) else {"goal": wish.input}
        if said.get("after", task_id) != task_id:
            raise InvalidInput(f"the input says to go on after task {said['after']!r}, and `after` names {task_id!r}")
        return wish._replace(input={**said, "after": task_id}, tenant=task.tenant)

    async def _journal(self, task_id: str) -> list[Record]:
        records: list[Record] = []
        while len(page := await self._store.journal(task_id, records[-1].seq if records else None, PAGE)) == PAGE:
            records += page
        return records + page
