"""The states of agents, read and changed from outside; and the check of `submit(…, after=)`. A part of the service.

Only the worker that holds a task writes into its journal. So a patch from outside is a message in the task's inbox. It counts for
every reader of the state from the moment it is there, and the task records it as a patch of its own at its next turn. Patches that
are sent at the same time both count, in the order in which they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onward.core import wire
from onward.core.ids import Ids
from onward.core.record import ANNOUNCED, STEP_DONE, STEP_FAILED
from onward.core.task import Message
from onward.errors import InvalidInput, NoState, StateConflict, TaskNotFound
from onward.service.askers import Askers
from onward.service.engine import Engine
from onward.service.messages import message_id
from onward.service.submission import SubmitRequest
from onward.store.port.core import Store
from onward.store.port.paging import journal_pages

if TYPE_CHECKING:
    from onward.core.state import AgentState, StatePatch

_WORK = frozenset({STEP_DONE, STEP_FAILED, ANNOUNCED})

PAGE_MESSAGES = 100
"""Messages of an inbox that are read at once."""


class AgentStates:
    """Reads and patches states of agents."""

    def __init__(self, store: Store, engine: Engine, ids: Ids, askers: Askers) -> None:
        self._store, self._engine, self._ids, self._askers = store, engine, ids, askers

    async def get(self, task_id: str) -> AgentState:
        """The current state of a task. Raises TaskNotFound, and NoState for a task without a state."""
        from onward.core.state import StateReader  # noqa: PLC0415 -- pydantic, which most programs do not need

        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        reader = StateReader()
        async for page in journal_pages(self._store.journal, task_id, None):
            for record in page:
                reader.read(record)
        after = reader.last_message
        while messages := await self._store.inbox(task_id, after, PAGE_MESSAGES):
            for message in messages:
                reader.hear(message)
            after = messages[-1].number
        if (state := reader.current()) is None:
            raise NoState(task_id, task.task)
        return state

    async def patch(
        self,
        task_id: str,
        change: StatePatch | dict[str, Any],
        *,
        by: str = "",
        id: str | None = None,  # noqa: A002 -- as for a signal
        asker: str | None = None,
    ) -> None:
        """Change the state of a task that has not ended. With `id`, the same patch sent twice counts once. Raises StateConflict for a
        task that has ended, NoState for a task that works without a state, InvalidInput for a change that is no patch."""
        patch = _patch(change)
        if not patch:
            return
        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        if not task.ended:
            await self._check_state(task_id, task.task)
            payload = {"patch": patch.model_dump(mode="json", exclude_defaults=True)} | ({"by": by} if by else {})
            message = Message(message_id(id) or self._ids(), "patch", "", None, wire.encode(payload, "the patch"))
            if (await self._engine.send(task_id, message, asker=asker)).number is not None:
                self._store.nudge("ready", [task_id])
                return
            task = await self._store.get(task_id) or task
        raise StateConflict(task_id, task.state, "patched", "it has ended; submit a task that goes on `after` it")

    async def _check_state(self, task_id: str, name: str) -> None:
        """Raises NoState for a task that has done steps and has no state: it would never read a patch."""
        try:
            await self.get(task_id)
        except NoState:
            async for page in journal_pages(self._store.journal, task_id, None):
                if any(record.kind in _WORK for record in page):
                    raise NoState(task_id, name) from None

    async def after(self, task_id: str, request: SubmitRequest) -> SubmitRequest:
        """The request for a task that continues another one, for the tenant of that one. Raises NoState for a task without a state,
        and StateConflict for one that has not ended."""
        task = await self._store.get(task_id) if isinstance(task_id, str) else None
        if task is None:
            raise TaskNotFound(str(task_id))
        if not task.ended:
            raise StateConflict(task_id, task.state, "gone on from", "wait until it has ended, or cancel it")
        await self.get(task_id)
        arguments = request.input if isinstance(request.input, dict) else {"goal": request.input}
        if arguments.get("after", task_id) != task_id:
            raise InvalidInput(
                f"the input says to go on after task {arguments['after']!r}, and `after` names {task_id!r}"
            )
        askers = (*request.askers, *sorted(await self._askers.of(task_id) - {*request.askers}))
        return request._replace(input={**arguments, "after": task_id}, tenant=task.tenant, askers=askers)


def _patch(change: StatePatch | dict[str, Any]) -> StatePatch:
    from pydantic import ValidationError  # noqa: PLC0415 -- as above

    from onward.core.state import StatePatch  # noqa: PLC0415 -- as above

    if isinstance(change, StatePatch):
        return change
    try:
        return StatePatch.model_validate(change)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'it'}: {fault['msg']}" for fault in error.errors()
        )
        raise InvalidInput(f"this is no patch of a state: {faults}") from None
