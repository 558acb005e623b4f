"""What a host knows of the world around a task: those it belongs with, and how much of its time is gone.

Nothing here is part of a replay: ask inside a step, whose record then says what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from onward.core.record import Record
from onward.core.task import Message, Task

HURRY = 0.8
"""The part of a task's time after which it should come to an end."""

LAST = 0.9
"""The part of an agent's time after which it starts nothing new: the rest is for its last answer."""


class TaskEnvironment(Protocol):
    """The part of a host that looks around."""

    parent: str | None
    """The task that started this one."""

    async def other(self, task_id: str) -> tuple[Task | None, list[Record], list[Message]]:
        """Another task, its journal from its last checkpoint on, and its inbox beyond that."""
        ...

    async def contents(self, ids: Sequence[str], of: str | None = None) -> dict[str, bytes]:
        """What this task, or another, keeps under these names."""
        ...

    async def leave(self, data: bytes, about: dict[str, Any]) -> dict[str, Any]:
        """Leave an artifact behind, durably; the ref to it."""
        ...

    async def left(self, artifact_id: str, of: str | None = None) -> bytes:
        """The bytes of an artifact that this task, or another, left behind. Raises ArtifactNotFound."""
        ...

    def last_record(self) -> int:
        """The number of the last record that this shift knows of, written or on its way."""
        ...

    def time_left(self, part: float) -> float:
        """Seconds until this part of the task's time is gone; infinite for a task without a deadline."""
        ...
