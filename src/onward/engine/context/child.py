"""A child task, as the handler that started it has it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from onward.core import record as r
from onward.core.durations import Duration, seconds
from onward.errors import TaskCancelled, TaskFailed, WaitTimeout

if TYPE_CHECKING:
    from onward.engine.context.host import Host


class Child:
    """A child task: await it for its result."""

    def __init__(self, host: Host, task_id: str, task: str) -> None:
        self._host, self.id, self.task = host, task_id, task

    def __repr__(self) -> str:
        return f"<child task {self.id}>"

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.result().__await__()

    async def result(self, timeout: Duration | None = None, *, partial: bool = False) -> Any:
        """Its result; raises TaskFailed or TaskCancelled, as it ended, or WaitTimeout. With `partial`, a child that failed gives
        the best result that it had by then, where it had one (`TaskFailed.partial`)."""
        said = {"child": self.id}
        message = await self._host.wait(
            r.CHILD, f"child {self.task}", said, None if timeout is None else seconds(timeout, "timeout")
        )
        if message is None:
            raise WaitTimeout(f"child task {self.id} ({self.task}) had not ended in time")
        ended = message["value"]
        if ended["state"] == "completed":
            return ended.get("result")
        if ended["state"] == "cancelled":
            raise TaskCancelled(self.id, self.task)
        if partial and ended.get("partial") is not None:
            return ended["partial"]
        raise TaskFailed(self.id, self.task, ended.get("error") or {}, ended.get("partial"))
