"""A shift in the memory of a worker of another engine, between one `advance` and the next.

The writer gathers the records of the shift. An `advance` takes them as its answer, and the next `advance` says that they are durable: then
the steps that wait for them go on. A session whose next `advance` does not come, because another worker has the task, is dropped.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol, cast

from onward.artifacts.keeper import Artifacts
from onward.coordinate.tasks import TaskLocks
from onward.core import record as r
from onward.core.approval import ApprovalRule
from onward.core.clock import Clock
from onward.core.control import Fenced
from onward.core.page import Page
from onward.core.quota import Shut
from onward.core.record import Entry, Record
from onward.core.task import NEVER, Message, Reason, Task
from onward.engine.background import spawn
from onward.engine.context.secrets import Secrets
from onward.engine.handlers import Handler
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.shift import Shift
from onward.engine.shift.threads import Threads
from onward.engine.shift.traced import TracedShift, watching
from onward.engine.worker.lease import Lease
from onward.engine.worker.worker import Submit
from onward.engines import wire
from onward.engines.budgets import SessionBudgets
from onward.engines.large import MAX_PAYLOAD_BYTES, Packer
from onward.errors import OnwardError, StoreUnavailable, UsageError
from onward.store.port.core import ALL_MESSAGES, Claimed, End, Sent, Wait
from onward.store.port.listing import MAX_BYTES
from onward.store.writer import Hold

log = logging.getLogger("onward.engines")

PACK_RETRY_S = 1.0
"""Seconds until a large value is stored again, when the place for it did not answer."""

MENTION_DELAY_S = 1.0
"""Seconds until records without a waiter are a reason for a commit of their own."""


class JournalReader(Protocol):
    """The engine, as a shift uses it: it reads journals, and sends messages to other tasks."""

    @property
    def large(self) -> Packer:
        """Packs values before the engine gets them."""
        ...

    async def get(self, task_id: str, whose: str | None = None) -> Task | None:
        """A task as it is now."""
        ...

    async def records(self, task_id: str) -> list[Record]:
        """The whole journal of a task."""
        ...

    async def messages(self, task_id: str, after: int) -> list[Message]:
        """The messages of a task after a number."""
        ...

    async def contents(self, task_id: str, names: Iterable[str]) -> dict[str, bytes]:
        """Those of these contents that the task has."""
        ...

    async def send(self, task_id: str, message: Message) -> Sent:
        """Send a message to a task."""
        ...


class SessionWriter:
    """Gathers the records of one shift for the answers of `advance`. It has the verbs of `JournalWriter`."""

    def __init__(self, now: Callable[[], float], packer: Packer) -> None:
        self._now, self._packer = now, packer
        self._entries: list[tuple[Entry, dict[str, bytes]]] = []
        """Records that no answer has yet, and the contents that go with each."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        """By the number of the record, the callers that wait until it is durable."""
        self._wanted = asyncio.Event()
        self.ending: End | Wait | None = None
        self._durable = 0
        self._ledger: str | None = None
        """The ledger of the budget, when no answer has it yet."""
        self._ledger_waiters: list[asyncio.Future[None]] = []
        self._ledger_answered: list[asyncio.Future[None]] = []
        """The callers whose ledger an answer has: it is durable when the next stretch comes."""

    # ── for the shift ────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, hold: Hold, kind: str, key: str, data: bytes) -> asyncio.Future[None]:
        self._add(hold, kind, key, data)
        self._wanted.set()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((hold.seq, future))
        return future

    def mention(self, hold: Hold, kind: str, key: str, data: bytes) -> None:
        self._add(hold, kind, key, data)

    defer = mention

    def settle(self, hold: Hold, kind: str, data: bytes, ending: End | Wait) -> asyncio.Future[None]:
        """The future is done at once: whether the last record is durable does not matter to a shift that is over."""
        self._add(hold, kind, "", data)
        hold.settled, self.ending = True, ending
        self._wanted.set()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    async def flushed(self, hold: Hold) -> None:
        if hold.lost or hold.settled:
            raise hold.why_not()
        if hold.seq > self._durable:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((hold.seq, future))
            self._wanted.set()
            await future

    def save_ledger(self, ledger: str) -> None:
        """The next answer has this ledger of the budget."""
        self._ledger = ledger

    async def ledger_saved(self) -> None:
        """Wait until the ledger is durable. Raises Fenced."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ledger_waiters.append(future)
        self._wanted.set()
        await future

    def keep(self, hold: Hold, name: str, data: bytes) -> None:
        if not hold.gone:
            hold.kept, hold.contents = hold.kept or {}, hold.contents or {}
            hold.kept[name] = hold.contents[name] = data

    def unwritten(self, hold: Hold, names: Iterable[str]) -> dict[str, bytes]:
        contents = hold.contents or {}
        return {name: contents[name] for name in names if name in contents}

    def _add(self, hold: Hold, kind: str, key: str, data: bytes) -> None:
        if hold.lost or hold.settled:
            raise hold.why_not()
        kept, size = hold.kept or {}, len(data) + sum(map(len, (hold.kept or {}).values()))
        if size > self._packer.max_bytes:
            raise self._packer.too_large("a record", size)
        hold.seq += 1
        hold.kept = None
        self._entries.append(((hold.id, hold.seq, hold.shift, kind, key, data, self._now()), kept))

    # ── for the session ──────────────────────────────────────────────────────────────────────────────────────────

    def durable_to(self, head: int) -> None:
        """All records up to this number are in the journal, and the ledger of the last answer is there: their waiters go on."""
        self._durable = head
        done = [future for seq, future in self._waiters if seq <= head] + self._ledger_answered
        self._ledger_answered = []
        self._waiters = [(seq, future) for seq, future in self._waiters if seq > head]
        for future in done:
            if not future.done():
                future.set_result(None)

    async def wanted(self) -> None:
        """Wait until a caller waits for a record, the shift has ended, or records have waited for long enough."""
        while not self._wanted.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), MENTION_DELAY_S)
            if any(entry[3] != r.SHIFT for entry, _ in self._entries):
                return
        await asyncio.sleep(0)  # other branches may be about to append as well

    def take(self) -> tuple[list[wire.JsonRecord], dict[str, str], End | Wait | None]:
        """The records of the next answer, with their contents, and the ending if the last record is among them."""
        records: list[wire.JsonRecord] = []
        contents: dict[str, str] = {}
        room = MAX_PAYLOAD_BYTES
        while self._entries:
            (_, seq, shift, kind, key, data, at), kept = self._entries[0]
            room -= len(data) + sum(map(len, kept.values()))
            if room < 0 and records:
                return records, contents, None
            records.append([seq, shift, kind, key, data.decode(), at])
            contents |= {name: base64.b64encode(content).decode() for name, content in kept.items()}
            del self._entries[0]
        self._wanted.clear()
        return records, contents, self.ending

    def take_ledger(self) -> str | None:
        """The ledger for the next answer, where it has changed."""
        ledger, self._ledger = self._ledger, None
        self._ledger_answered += self._ledger_waiters
        self._ledger_waiters = []
        return ledger

    def drop(self) -> None:
        """Refuse what waits: the shift is lost."""
        for future in [*(future for _, future in self._waiters), *self._ledger_waiters, *self._ledger_answered]:
            if not future.done():
                future.set_exception(Fenced())
                future.exception()
        self._waiters, self._ledger_waiters, self._ledger_answered = [], [], []


class _NoQuotas:
    """Used-up quotas of providers: each step asks anew, since the engine has no place that all workers share."""

    async def get(self, name: str, /) -> Shut | None:  # noqa: ARG002 -- as in the port
        return None

    async def shut(self, name: str, seconds: float | None, why: str, /) -> Shut:  # noqa: ARG002
        left = 5.0 if seconds is None else seconds
        return Shut(0.0, left, why)

    async def reopen(self, name: str, until: float, /) -> None:
        """Nothing was shut."""


class _NoTrim:
    async def trim(self, task_id: str, keep: int, before: float, /) -> int:  # noqa: ARG002 -- as in the port
        return 0


class _NoFollowers:
    def announce(self) -> None:
        """Readers ask the workflow."""


class NoLocks(TaskLocks):
    """Refuses `ctx.lock`."""

    def __init__(self) -> None:
        self.outside = ""

    async def take(self, request: Any) -> Any:  # noqa: ARG002 -- as in TaskLocks
        raise UsageError(
            "ctx.lock is not there on this engine; use a workflow id or an idempotency key of your own instead"
        )

    async def left(self, request: Any) -> None:
        """No lock was taken."""

    async def call_next(self) -> None:
        """No task waits for a lock."""


class SessionStore:
    """What a shift reads and sends, by queries and signals. It has the verbs of `ShiftStore`."""

    codec = None
    quotas, pruning, tails = _NoQuotas(), _NoTrim(), _NoFollowers()

    def __init__(self, engine: JournalReader, task_id: str, started: Record, budgets: SessionBudgets) -> None:
        self._engine, self._task_id, self._started = engine, task_id, started
        self.budgets: SessionBudgets = budgets
        self._records: list[Record] | None = None

    async def get(self, task_id: str, whose: str | None = None, /) -> Task | None:
        return await self._engine.get(task_id, whose)

    async def journal(
        self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = MAX_BYTES, /
    ) -> Page[Record]:
        records = await self._own_records() if task_id == self._task_id else await self._engine.records(task_id)
        if after is None:
            checkpoints = [record.seq for record in records if record.kind == r.CHECKPOINT]
            after = checkpoints[-1] - 1 if checkpoints else 0
        rest = [record for record in records if record.seq > after]
        sizes = itertools.accumulate(len(record.data) for record in rest)
        fit = min(limit, next((number for number, size in enumerate(sizes, 1) if size >= most), len(rest)))
        page = rest[:fit]
        return Page(page, next=str(page[-1].seq) if page and fit < len(rest) else None)

    async def _own_records(self) -> list[Record]:
        """The journal as it was when this shift began, and the record of its start, which is not durable yet."""
        if self._records is None:
            before = await self._engine.records(self._task_id)
            if (
                before and before[-1].seq >= self._started.seq
            ):  # another worker has written since: this stretch was given up
                raise Fenced
            self._records = [*before, self._started]
        return self._records

    async def inbox(self, task_id: str, after: int = 0, limit: int = ALL_MESSAGES, /) -> list[Message]:
        return (await self._engine.messages(task_id, after))[:limit]

    async def contents(self, task_id: str, ids: Sequence[str], /) -> dict[str, bytes]:
        return await self._engine.contents(task_id, ids)

    async def send(self, task_id: str, message: Message, /) -> Sent:
        return await self._engine.send(task_id, message)

    async def transact(
        self,
        body: Callable[[Any], Awaitable[Entry]],  # noqa: ARG002 -- as in the port
        seconds: float,  # noqa: ARG002
        known: float | None = None,  # noqa: ARG002
        /,
    ) -> bool:
        raise UsageError(
            "ctx.transaction needs an Onward database, and this task runs on another engine; make it a step with effect='once', or an idempotent one"
        )

    def nudge(self, topic: str, tasks: Sequence[str] = (), /) -> None:
        """The engine wakes tasks by itself."""


class SessionServices:
    """What a shift uses: the parts that all sessions of a worker share, and its own store, writer and lease."""

    def __init__(
        self, shared: SharedServices, engine: JournalReader, task_id: str, started: Record, ledger: str
    ) -> None:
        self.writer = SessionWriter(shared.clock.now, engine.large)
        self.budgets: SessionBudgets = SessionBudgets(engine, task_id, ledger, self.writer)
        self.store = SessionStore(engine, task_id, started, self.budgets)
        self.lease = shared.lease
        self.artifacts, self.clock, self.rng, self.threads = shared.artifacts, shared.clock, shared.rng, shared.threads
        self.locks: TaskLocks = NoLocks()
        self.secrets, self.approval_rules, self.submit = shared.secrets, shared.approval_rules, shared.submit

    version: str = ""

    async def others_may_fit(self, task_id: str, tried: AbstractSet[str]) -> bool:  # noqa: ARG002
        """The engine has versions of workers of its own."""
        return False

    def now(self) -> float:
        return self.clock.now()

    def due(self, at: float) -> None:
        """The workflow has a timer for it."""


def worker_lease_s(lease_s: float, heartbeat_s: float) -> float:
    """Seconds for which the lease of a worker holds after an answer of the server.

    The server gives an activity up so many seconds after its last heartbeat as `lease_s` says. That heartbeat may be up to two intervals older than the
    answer: the SDK holds a heartbeat back for as long as one.
    """
    return max(lease_s - 2 * heartbeat_s, lease_s / 2)


class SharedServices:
    """The parts of a worker that its sessions share."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        lease_s: float,
        artifacts: Artifacts,
        secrets: Secrets,
        approval_rules: Sequence[ApprovalRule],
        submit: Submit,
    ) -> None:
        self.clock, self.rng, self.threads = clock, rng, Threads()
        self.lease: Lease = Lease(clock, lease_s)
        """Holds while the server has answered this worker lately."""
        self.artifacts, self.secrets, self.approval_rules, self.submit = artifacts, secrets, approval_rules, submit


class _SessionShift(Shift):
    """A shift of a task whose crashes the workflow counts: a shift that crashed in its first stretch has no record at all."""

    def __init__(self, services: WorkerServices, claimed: Claimed, handler: Handler) -> None:
        super().__init__(services, claimed, handler)
        self._root.resumed = self._root.resumed or claimed.crashes > 0

    async def _count_idle_shifts(self) -> int:
        return self._claimed.crashes


class _TracedSessionShift(TracedShift, _SessionShift):
    """The same with spans and counters."""


class Session:
    """One shift, from its first `advance` until it has ended or is dropped."""

    def __init__(
        self,
        shared: SharedServices,
        engine: JournalReader,
        advance: wire.Advance,
        handler: Handler,
        worker: str,
        token: str,
    ) -> None:
        request = cast("wire.Request", advance["request"])  # the first stretch of a shift has all of it
        now = shared.clock.now()
        number = advance["head"] + 1
        data = b'{"worker":"%b"}' % worker.encode()
        started = Record(number, number, r.SHIFT, "", data, now)
        services = SessionServices(shared, engine, request["id"], started, advance.get("ledger", ""))
        claimed = Claimed(
            id=request["id"],
            task=request["task"],
            input=request["input"].encode(),
            options=request["options"].encode(),
            shift=number,
            attempt=advance["attempt"],
            crashes=advance["crashes"],
            created_at=request["created_at"],
            claimed_at=now,
            parent=request["parent"],
            inbox=advance["inbox"],
            tenant=request["tenant"],
        )
        self.token: str = token
        self._answered_at: float | None = None
        """When the last stretch was answered, while no other is under way."""
        self._clock, self._writer, self._packer = shared.clock, services.writer, engine.large
        self._budgets = services.budgets
        make = _TracedSessionShift if watching() else _SessionShift
        self._shift = make(services, claimed, handler)
        hold = self._shift.hold
        hold.seq -= 1
        self._writer.mention(hold, r.SHIFT, "", data)
        self._task: asyncio.Task[None] | None = None

    @property
    def task_id(self) -> str:
        return self._shift.task_id

    def fits(self, advance: wire.Advance) -> bool:
        """Whether this advance goes on with this shift."""
        return advance["token"] == self.token and not self._shift.hold.lost

    async def advance(self, advance: wire.Advance, heartbeat: Callable[[], object], interval_s: float) -> wire.Advanced:
        """Go on until a record must be durable, or the shift has ended; the new records."""
        self._answered_at = None
        self._budgets.inbox = advance["inbox"]
        self._writer.durable_to(advance["head"])
        if self._task is None:
            self._task = spawn(self._work(), f"onward-task-{self.task_id}")
        beating = spawn(self._beat(heartbeat, interval_s), "onward-engine-heartbeat")
        wanted = spawn(self._writer.wanted(), "onward-engine-records")
        try:
            await asyncio.wait({wanted, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done() and self._writer.ending is None:
                raise RuntimeError(f"the shift of task {self.task_id} ended without a record") from self._failure()
            ledger = self._writer.take_ledger()
            records, contents, ending = self._writer.take()
            await self._pack(records, contents)
        finally:
            beating.cancel()
            wanted.cancel()
        self._answered_at = self._clock.monotonic()
        advanced: wire.Advanced = {
            "token": self.token,
            "queue": "",
            "records": records,
            "contents": contents,
            "ending": None if ending is None else _to_json(ending),
        }
        return advanced if ledger is None else {**advanced, "ledger": ledger}

    async def _pack(self, records: list[wire.JsonRecord], contents: dict[str, str]) -> None:
        """Store large values, and leave references in their places."""
        for record in records:
            record[4] = await self._packed(record[4])
        for name, content in contents.items():
            contents[name] = await self._packed(content)

    async def _packed(self, value: str) -> str:
        while True:
            try:
                return await self._packer.pack(self.task_id, value.encode(), "a record")
            except StoreUnavailable as error:
                log.warning("a large value of task %s is not stored yet: %s", self.task_id, error)
                await self._clock.sleep(PACK_RETRY_S)

    @property
    def over(self) -> bool:
        """Whether the shift has ended, and an answer has its last record."""
        return self._writer.ending is not None and not self._writer._entries

    def idle_since(self, before: float) -> bool:
        """Whether it waits for its next stretch since before this moment."""
        return self._answered_at is not None and self._answered_at < before

    def drop(self) -> None:
        """Give the shift up: another worker has the task, or it was cancelled."""
        self._shift.hold.lost = True
        self._writer.drop()
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            await self._shift.work()
        except OnwardError as error:
            log.error("task %s: %s", self.task_id, error)  # noqa: TRY400 -- a sentence, not a trace

    def _failure(self) -> BaseException | None:
        assert self._task is not None
        return None if self._task.cancelled() else self._task.exception()

    async def _beat(self, heartbeat: Callable[[], object], interval_s: float) -> None:
        """Tell the server that the worker of this task lives. A short stretch sends no heartbeat: its answer says the same."""
        while True:
            await self._clock.sleep(interval_s)
            heartbeat()


def _to_json(ending: End | Wait) -> wire.Ending:
    if isinstance(ending, End):
        return {
            "state": ending.state.value,
            "due_at": None,
            "reason": "",
            "attempt": ending.attempt,
            "inbox": ending.inbox,
        }
    due = ending.due_at
    return {
        "state": "",
        "due_at": None if due is None or due == NEVER else due,
        "reason": Reason.QUEUED.value if due is None else str(ending.reason),
        "attempt": ending.attempt,
        "inbox": ending.inbox,
    }
