"""What belongs to a task beside its journal, and what is around it: contents, artifacts, budgets, quotas, other tasks.

The part of the host that needs no step and no scope; the shift is the rest of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from onward.artifacts.keeper import beside
from onward.core import mask, wire
from onward.core import record as r
from onward.core.task import NEVER, Message, Task
from onward.engine.context.secrets import Keyring
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.quota import ask_within
from onward.engine.shift.scope import SCOPE
from onward.engine.shift.services import WorkerServices
from onward.errors import UsageError
from onward.store.port.core import Claimed
from onward.store.port.paging import whole_journal
from onward.store.writer import Hold

if TYPE_CHECKING:
    from onward.core.budget import Budget
    from onward.core.usage import Usage
    from onward.engine.shift.spending import Spending


PAGE = 2_000


class TaskResources:
    """What a shift has at hand for its task."""

    task_id: str
    hold: Hold
    _desk: WorkerServices
    _pen: ShiftJournal
    _claimed: Claimed
    _options: dict[str, Any]
    _allowed: float | None
    _spending: Spending | None = None
    usage: Usage | None = None
    """What the task has taken of models so far, where it says so; its last record tells."""
    _keyring: Keyring | None = None
    partial: Any = None
    """The best result so far, where the handler says so: the outcome has it when the task fails."""

    @property
    def keyring(self) -> Keyring:
        """The secrets that this task may use."""
        if self._keyring is None:
            self._keyring = Keyring(self._desk.secrets, self._desk.threads, self._pen.end)
        return self._keyring

    def now(self) -> float:
        """The database's time."""
        return self._desk.now()

    def keep(self, data: bytes) -> str:
        if self._pen.transacting:
            raise UsageError("nothing can be kept inside ctx.transaction; keep it before")
        data = mask.data(data) if mask.on else data
        name, keep = wire.content_id(data), self._pen.writer.keep
        if _in_a_loop():
            keep(self.hold, name, data)
        else:  # a plain function in its thread; what it returns comes to the loop after this
            assert self._pen.task is not None
            self._pen.task.get_loop().call_soon_threadsafe(keep, self.hold, name, data)
        return name

    async def contents(self, ids: Sequence[str], of: str | None = None) -> dict[str, bytes]:
        found = self._pen.writer.unwritten(self.hold, ids) if of is None else {}
        if missing := [name for name in ids if name not in found]:
            found |= await self._pen.patiently(lambda: self._desk.store.contents(of or self.task_id, missing))
        return found

    async def flush(self) -> None:
        await self._pen.flushed()

    async def other(self, task_id: str) -> tuple[Task | None, list[r.Record], list[Message]]:
        from onward.core.state import last_message  # noqa: PLC0415 -- pydantic, which most tasks do not need

        whose = self._options.get("tenant", "")  # an input may name whatever it likes
        task = await self._pen.patiently(lambda: self._desk.store.get(task_id, whose))
        if task is None:
            return None, [], []
        records = await self._since_checkpoint(task_id)
        copied = last_message(records)
        return task, records, await self._pen.patiently(lambda: self._desk.store.inbox(task_id, copied))

    def last_record(self) -> int:
        return self.hold.seq

    def time_left(self, part: float) -> float:
        return self._time_of(part) - self.now()

    async def leave(self, data: bytes, about: dict[str, Any]) -> dict[str, Any]:
        if self._pen.transacting:
            raise UsageError("an artifact cannot be left inside ctx.transaction; leave it before, or after")
        if mask.on:
            data = await beside(len(data), lambda: mask.data(data))
        name = await self._pen.patiently(lambda: self._desk.artifacts.put(self.task_id, data))
        key = SCOPE.get().key or ""
        told = {"artifact_id": name, "bytes": len(data), "step": key, **about}
        self._pen.mention(r.ARTIFACT, key, told)
        return told

    async def left(self, artifact_id: str, of: str | None = None) -> bytes:
        return await self._pen.patiently(lambda: self._desk.artifacts.get(of or self.task_id, artifact_id))

    def spending(self, budget: Budget) -> Spending:
        from onward.engine.shift.spending import Spending  # noqa: PLC0415 -- most tasks have no budget

        self._spending = Spending(self._desk, self._pen, self._options, budget)
        return self._spending

    def _budgets(self) -> dict[str, Any]:
        """The budgets that a child spends from, by the tasks that they belong to."""
        if self._spending is not None:
            return self._spending.told
        own = {self.task_id: self._options["budget"]} if "budget" in self._options else {}
        return {**self._options.get("purses", {}), **own}

    async def within_quota(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        return await ask_within(self._desk, self._pen, name, ask)

    def _used(self) -> dict[str, Any]:
        """How the data of a last record begins."""
        return {} if self.usage is None else {"usage": self.usage.to_json()}

    # ── journals and time ────────────────────────────────────────────────────────────────────────────────────────

    async def _patient_journal(self, task_id: str, after: int | None, limit: int) -> list[r.Record]:
        return await self._pen.patiently(lambda: self._desk.store.journal(task_id, after, limit))

    async def _since_checkpoint(self, task_id: str) -> list[r.Record]:
        return await whole_journal(self._patient_journal, task_id, None, PAGE)

    def _time_of(self, part: float) -> float:
        """When this part of the task's time is gone."""
        started, deadline = self._pen.replay.started_at or self._claimed.claimed_at, self._deadline_at()
        return deadline if deadline == NEVER else started + part * (deadline - started)

    def _deadline_at(self) -> float:
        started = self._pen.replay.started_at or self._claimed.claimed_at
        own = NEVER if self._allowed is None else started + self._allowed
        if self._claimed.parent is None:  # (the fork of a child is nobody's)
            return own
        return min(own, float(self._options.get("until", NEVER)))


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
