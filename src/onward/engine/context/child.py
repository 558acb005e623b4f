"""A child task, for the handler that started it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic

from onward.core import record as r
from onward.core.durations import Duration, seconds
from onward.engine.context.signatures import T_co
from onward.errors import TaskCancelled, TaskFailed, WaitTimeout

if TYPE_CHECKING:
    from onward.engine.context.host import Host


class Child(Generic[T_co]):
    """A child task: await it for its result."""

    def __init__(self, host: Host, task_id: str, task: str) -> None:
        self._host = host
        self.id: str = task_id
        self.task: str = task

    def __repr__(self) -> str:
        return f"<child task {self.id}>"

    def __await__(self) -> Generator[Any, Any, T_co]:
        return Child.result(self).__await__()  # also where `result` of a subclass blocks

    async def result(self, timeout: Duration | None = None, *, partial: bool = False) -> T_co:
        """Wait for the result and return it. Raises TaskFailed, TaskCancelled or WaitTimeout. With `partial`, a failed child gives
        its best result so far, where it has one (`TaskFailed.partial`)."""
        timeout_s = None if timeout is None else seconds(timeout, "timeout")
        message = await self._host.wait(r.CHILD, f"child {self.task}", {"child": self.id}, timeout_s)
        if message is None:
            raise WaitTimeout(f"child task {self.id} ({self.task}) had not ended in time")
        ended = message["value"]
        result: T_co
        if ended["state"] == "completed":
            result = self._host.load_result(self.task, ended.get("result"))
            return result
        if ended["state"] == "cancelled":
            raise TaskCancelled(self.id, self.task)
        if partial and (result := ended.get("partial")) is not None:
            return result
        raise TaskFailed(self.id, self.task, ended.get("error") or {}, ended.get("partial"))
