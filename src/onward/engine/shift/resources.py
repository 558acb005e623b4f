"""TaskResources: what a task has beside its journal (contents, artifacts, budgets, quotas), and the tasks around it.

This is the part of the host that needs no step and no scope; the shift is the rest of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.artifacts.keeper import run_off_loop
from onward.core import mask, wire
from onward.core import record as r
from onward.core.page import Page
from onward.core.sealed import NO_KEY
from onward.core.task import NEVER, Message, State, Task
from onward.engine.context.secrets import Keyring
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.quota import call_within_quota
from onward.engine.shift.rolling import UNFIT_CODE
from onward.engine.shift.scope import SCOPE
from onward.engine.shift.services import WorkerServices
from onward.errors import UsageError
from onward.store.port.core import Claimed
from onward.store.port.paging import journal_pages, whole_journal
from onward.store.writer import Hold

if TYPE_CHECKING:
    from onward.core.budget import Budget
    from onward.core.usage import Usage
    from onward.engine.shift.spending import Spending

JOURNAL_PAGE_SIZE = 2_000
"""Records in one read of a journal."""


class TaskResources:
    """The resources of the task of one shift."""

    task_id: str
    hold: Hold
    _services: WorkerServices
    _journal: ShiftJournal
    _claimed: Claimed
    _options: dict[str, Any]
    _allowed: float | None
    """The deadline of the task, in seconds after its first start."""
    _spending: Spending | None = None
    ended: State | None = None
    """How the task ended in this shift, once that is durable."""
    usage: Usage | None = None
    """The model usage of the task so far, where the handler sets it; the last record of the task has it."""
    _keyring: Keyring | None = None
    partial: Any = None
    """The best result so far, where the handler sets it; the outcome has it when the task fails."""

    @property
    def labels(self) -> Mapping[str, str]:
        labels: Mapping[str, str] = self._options.get("labels", {})
        return labels

    # ── contents and artifacts ───────────────────────────────────────────────────────────────────────────────────

    def keep(self, data: bytes) -> str:
        if self._journal.transacting:
            raise UsageError("nothing can be kept inside ctx.transaction; keep it before")
        data = mask.data(data) if mask.on else data
        name, keep = wire.content_id(data), self._journal.writer.keep
        if _in_event_loop():
            keep(self.hold, name, data)
        else:  # a plain function in its thread; the loop gets its result after this
            assert self._journal.task is not None
            self._journal.task.get_loop().call_soon_threadsafe(keep, self.hold, name, data)
        return name

    async def contents(self, ids: Sequence[str], of: str | None = None) -> dict[str, bytes]:
        contents = self._journal.writer.unwritten(self.hold, ids) if of is None else {}
        if missing := [name for name in ids if name not in contents]:
            contents |= await self._journal.retry_store(
                lambda: self._services.store.contents(of or self.task_id, missing)
            )
        return contents

    async def flush(self) -> None:
        await self._journal.flush()

    async def save_artifact(self, data: bytes, about: dict[str, Any]) -> dict[str, Any]:
        if self._journal.transacting:
            raise UsageError("an artifact cannot be left inside ctx.transaction; leave it before, or after")
        if mask.on:
            data = await run_off_loop(len(data), lambda: mask.data(data))
        name = await self._journal.retry_store(lambda: self._services.artifacts.put(self.task_id, data))
        key = SCOPE.get().key or ""
        ref = {"artifact_id": name, "bytes": len(data), "step": key, **about}
        self._journal.enqueue(r.ARTIFACT, key, ref)
        return ref

    async def read_artifact(self, artifact_id: str, of: str | None = None) -> bytes:
        return await self._journal.retry_store(lambda: self._services.artifacts.get(of or self.task_id, artifact_id))

    # ── secrets, budgets, quotas ─────────────────────────────────────────────────────────────────────────────────

    @property
    def keyring(self) -> Keyring:
        """The secrets that this task may use."""
        if self._keyring is None:
            self._keyring = Keyring(
                self._services.secrets, self._services.threads, self._journal.end, self._options.get("tenant")
            )
        return self._keyring

    def spending(self, budget: Budget) -> Spending:
        from onward.engine.shift.spending import Spending  # noqa: PLC0415 -- most tasks have no budget

        self._spending = Spending(self._services, self._journal, self._options, budget)
        return self._spending

    def _child_budgets(self) -> dict[str, Any]:
        """The budgets that a child spends from, by the tasks that they belong to."""
        if self._spending is not None:
            return self._spending.as_option
        own = {self.task_id: self._options["budget"]} if "budget" in self._options else {}
        return {**self._options.get("purses", {}), **own}

    def _usage_data(self) -> dict[str, Any]:
        """The model usage, as the data of a last record begin."""
        return {} if self.usage is None else {"usage": self.usage.to_json()}

    async def within_quota(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        return await call_within_quota(self._services, self._journal, name, ask)

    # ── journals and other tasks ─────────────────────────────────────────────────────────────────────────────────

    def last_record(self) -> int:
        return self.hold.seq

    async def read_task(self, task_id: str) -> tuple[Task | None, list[r.Record], list[Message]]:
        from onward.core.state import last_message  # noqa: PLC0415 -- pydantic, which most tasks do not need

        tenant = self._options.get("tenant", "")  # an input may name any task: only those of the same tenant are read
        task = await self._journal.retry_store(lambda: self._services.store.get(task_id, tenant))
        if task is None:
            return None, [], []
        records = await self._read_since_checkpoint(task_id)
        copied = last_message(records)
        inbox = await self._journal.retry_store(lambda: self._services.store.inbox(task_id, copied))
        return task, records, inbox

    async def _read_since_checkpoint(self, task_id: str) -> list[r.Record]:
        """The records of a journal from its last checkpoint on."""
        return await whole_journal(self._read_page, task_id, None, JOURNAL_PAGE_SIZE)

    async def _count_idle_shifts(self) -> int:
        """Shifts in a row before this one that recorded nothing. The store's count may be too high: a worker that was taken for
        dead can still write until another has claimed. A shift that left the task to another worker does not count. Nothing large is
        kept or decoded: the journal may be what kills the worker."""
        idle = -1
        async for page in journal_pages(self._read_page, self.task_id, 0, JOURNAL_PAGE_SIZE):
            for record in page:
                if record.kind == r.SHIFT:
                    idle += 1
                elif record.kind == r.HANDED_BACK and record.value.get("reason") in {UNFIT_CODE, NO_KEY}:
                    idle = max(idle - 1, 0)
                elif record.kind not in r.NEWS:
                    idle = 0
        return idle - 1

    async def _read_page(self, task_id: str, after: int | None, limit: int, most: int) -> Page[r.Record]:
        return await self._journal.retry_store(lambda: self._services.store.journal(task_id, after, limit, most))

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> float:
        """The database's time."""
        return self._services.now()

    def time_left(self, share: float) -> float:
        return self._time_of(share) - self.now()

    def _time_of(self, share: float) -> float:
        """When this share of the task's time is gone."""
        started, deadline = self._journal.replay.started_at or self._claimed.claimed_at, self._deadline_at()
        return deadline if deadline == NEVER else started + share * (deadline - started)

    def _deadline_at(self) -> float:
        started = self._journal.replay.started_at or self._claimed.claimed_at
        own = NEVER if self._allowed is None else started + self._allowed
        if self._claimed.parent is None:  # (the fork of a child has no parent)
            return own
        return min(own, float(self._options.get("until", NEVER)))


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
