"""States: what an agent knows, read and changed from outside; and what a task that goes on from another has to ask first. A part
of the service.

Nobody but its holder writes into a task's journal. A patch from outside is a message in the task's inbox: it counts from the moment
it is there, whoever reads the state, and the task writes it down as a patch of its own when it comes to its next turn. So patches
that are sent at once both land, in the order in which they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onward.core import wire
from onward.core.ids import Ids
from onward.core.record import ANNOUNCED, STEP_DONE, STEP_FAILED, Record
from onward.core.task import Message
from onward.errors import InvalidInput, NoState, StateConflict, TaskNotFound
from onward.service.submission import SubmitRequest
from onward.store.port.core import Store

if TYPE_CHECKING:
    from onward.core.state import AgentState, StatePatch

PAGE = 1000
_WORK = frozenset({STEP_DONE, STEP_FAILED, ANNOUNCED})


class AgentStates:
    """All verbs about states."""

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store, self._ids = store, ids

    async def get(self, task_id: str) -> AgentState:
        """The state of a task as it is now. Raises TaskNotFound, and NoState for a task that has none."""
        from onward.core.state import last_message, state_in  # noqa: PLC0415 -- pydantic, which most programs do not need

        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        records = await self._journal(task_id)
        state = state_in(records, await self._store.inbox(task_id, last_message(records)))
        if state is None:
            raise NoState(task_id, task.task)
        return state

    async def patch(
        self,
        task_id: str,
        change: StatePatch | dict[str, Any],
        *,
        by: str = "",
        id: str | None = None,  # noqa: A002 -- as for a signal
    ) -> None:
        """Change the state of a task that has not ended. With `id`, the same patch sent twice is one. Raises StateConflict for one
        that has ended, NoState for one that works without a state, InvalidInput for what is no patch."""
        patch = _patch(change)
        if not patch:
            return
        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        if not task.ended:
            await self._check_state(task_id, task.task)
            told = {"patch": patch.model_dump(mode="json", exclude_defaults=True)} | ({"by": by} if by else {})
            message = Message(id or self._ids(), "patch", "", None, wire.encode(told, "the patch"))
            if (await self._store.send(task_id, message)).number is not None:
                self._store.nudge("ready", [task_id])
                return
            task = await self._store.get(task_id) or task
        raise StateConflict(task_id, task.state, "patched", "it has ended; submit a task that goes on `after` it")

    async def _check_state(self, task_id: str, name: str) -> None:
        """A task that has done something and has no state would never look at a patch."""
        try:
            await self.get(task_id)
        except NoState:
            if any(record.kind in _WORK for record in await self._journal(task_id)):
                raise NoState(task_id, name) from None

    async def after(self, task_id: str, wish: SubmitRequest) -> SubmitRequest:
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


def _patch(change: StatePatch | dict[str, Any]) -> StatePatch:
    from pydantic import ValidationError  # noqa: PLC0415 -- as above

    from onward.core.state import StatePatch  # noqa: PLC0415 -- as above

    if isinstance(change, StatePatch):
        return change
    try:
        return StatePatch.model_validate(change)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in one['loc']) or 'it'}: {one['msg']}" for one in error.errors()
        )
        raise InvalidInput(f"this is no patch of a state: {wrong}") from None
