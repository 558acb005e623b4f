"""The port of the engine: the verbs with which the service changes a task.

The engine owns the journals of its tasks, so every change of a task goes through it. The service reads from a store. With Onward's own
engine, store and engine are the same object: a `Store` has all of these verbs. With another engine (`onward/engines/`) the store is a copy
of the journals, made for reading.

Each verb keeps the promise of the same verb of `store/port/core.py`. A verb that an engine does not have raises UsageError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from onward.core.audit import AuditEvent
from onward.core.task import Message, NewTask
from onward.store.port.core import Sent, Stopped, Submitted


class Completed(NamedTuple):
    """The result of a task that has completed."""

    result: Any


AwaitEnd = Callable[[str], "asyncio.Future[Completed | None]"]
"""Waits until a task has ended, and returns its result without a read of its journal; None where the journal has to be read. For an engine
whose journals are dear to read."""


class Engine(Protocol):
    """Changes tasks."""

    async def submit(self, new: Sequence[NewTask], connection: Any = None) -> list[Submitted]:
        """Submit tasks; all or none."""
        ...

    async def by_key(
        self, keys: Sequence[str], fingerprints: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Submitted]:
        """The tasks that these keys belong to; unknown keys are missing."""
        ...

    async def send(
        self, task_id: str, message: Message, event: AuditEvent | None = None, asker: str | None = None
    ) -> Sent:
        """Put a message into the inbox of an unfinished task, and wake the task when it waits for one."""
        ...

    async def resolve_ended(
        self,
        task_id: str,
        message: Message,
        event: AuditEvent | None = None,
        *,
        undo: str | None = None,
        input: bytes = b"",  # noqa: A002 -- the name of it in the whole API
    ) -> Sent:
        """Put a message about an effect in doubt into the inbox of a task that has ended."""
        ...

    async def cancel(self, task_id: str) -> Stopped:
        """End a task that has not ended, or ask it to undo its open sagas first."""
        ...

    async def resume(self, task_id: str, asker: str | None = None) -> bool:
        """Go on with a failed task, or with one that waits for a person; False when it is neither."""
        ...

    async def pause(self, task_id: str) -> bool | None:
        """Let no worker start this task until it is resumed. None when it has ended."""
        ...

    async def unconfirmed_pauses(self, task_ids: Sequence[str]) -> list[str]:
        """Of these paused tasks, those that may still begin a step."""
        ...

    async def prioritize(self, task_id: str, priority: int) -> bool:
        """Change the priority of an unfinished task; False when it has ended."""
        ...

    async def fork(
        self,
        task_id: str,
        origin: str,
        at: int,
        *,
        input: bytes,  # noqa: A002 -- the name of it in the whole API
        inbox: int,
        options: bytes = b"",
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Write a task like another, with its first records."""
        ...
