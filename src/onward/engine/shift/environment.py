"""TaskEnvironment: what a host knows about other tasks, artifacts and the time that is left.

None of this is part of a replay: call it inside a step, whose record then has the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from onward.core.record import Record
from onward.core.task import Message, Task

HURRY_SHARE = 0.8
"""The share of a task's time after which it should come to an end."""

LAST_ANSWER_SHARE = 0.9
"""The share of an agent's time after which it starts nothing new: the rest is for its last answer."""


class TaskEnvironment(Protocol):
    """The part of a host that looks beyond the journal of its task."""

    parent: str | None
    """The task that started this one."""

    async def read_task(self, task_id: str) -> tuple[Task | None, list[Record], list[Message]]:
        """Another task, its journal from its last checkpoint on, and its inbox beyond that."""
        ...

    async def contents(self, ids: Sequence[str], of: str | None = None) -> dict[str, bytes]:
        """The contents that this task, or another, keeps under these names."""
        ...

    async def save_artifact(self, data: bytes, about: dict[str, Any]) -> dict[str, Any]:
        """Save an artifact durably; returns the ref to it."""
        ...

    async def read_artifact(self, artifact_id: str, of: str | None = None) -> bytes:
        """The bytes of an artifact of this task, or of another. Raises ArtifactNotFound."""
        ...

    def last_record(self) -> int:
        """The number of the last record of this shift, durable or not."""
        ...

    def time_left(self, share: float) -> float:
        """Seconds until this share of the task's time is gone; infinite for a task without a deadline."""
        ...
