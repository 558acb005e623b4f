"""An intake: receives messages of a broker, and submits a task for each, or calls a function.

The promise: every acknowledged message is one task or one dead letter, and one identity is one task as long as the store remembers it. So an
intake commits first and acknowledges afterwards, and each task has the identity of its message as its key: a message that comes again finds
its task. While the store is away or the queue is full, the intake holds the messages that it has, and fetches no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from onward import telemetry
from onward.brokers import message as messages
from onward.brokers.message import Message, Received, Unreadable
from onward.brokers.port import Source
from onward.core import mask
from onward.core.clock import Clock
from onward.core.crash import crashpoint
from onward.core.durations import Duration
from onward.core.epoch import CAUSE, Lost, lost_at
from onward.core.ids import Ids
from onward.core.sealed import ENCRYPTED_TEXT
from onward.core.shutdown import end_tasks
from onward.engine.background import spawn
from onward.engine.context.arguments import is_async
from onward.errors import BrokerUnavailable, OnwardError, QueueFull, QuotaExceeded, StoreUnavailable, UnknownTask
from onward.service.service import Service
from onward.service.submission import SubmitRequest
from onward.store.port.core import Store
from onward.store.shared.intakes import IntakeReport, NewLetter

log = logging.getLogger("onward.intake")
Answer = TypeVar("Answer")

FETCH_WAIT_S = 1.0
"""Seconds that a fetch waits for the first message."""

MAX_BATCH_BYTES = 8 << 20
"""Bytes of messages that an intake wants to hold at once. It fetches fewer messages when they are large."""

INLINE_BYTES = 65_536
"""A batch up to this size is read in the event loop, a larger one in a thread."""

MAX_LETTER_BYTES = 15 << 20
"""Bytes of a body that a dead letter keeps whole."""

MAX_DEAD_LETTERS = 100_000
"""Dead letters of one intake. It takes no message then until an operator looks."""

MAX_REASON_CHARS = 1000
"""Characters of the reason of a dead letter."""

UNKNOWN_TASK_S = 600.0
"""Seconds that messages wait for a handler that no worker has: a deploy may be under way."""

HOLD_INTERVAL_S = 5.0
"""Seconds between two calls of `Source.hold` while messages wait."""

MIN_DELAY_S, MAX_DELAY_S = 0.1, 5.0
"""The shortest and the longest pause before something is tried again. It doubles each time."""

REPORT_INTERVAL_S = 5.0
"""Seconds between two reports of an intake to the store, as long as its state is the same."""

STATE_INTERVAL_S = 0.5
"""Seconds between two looks whether the state of the intake changed since it reported."""

REDRIVE_INTERVAL_S = 1.0
"""Seconds between two looks for dead letters that are to be tried again."""

REDRIVE_LEASE_S, REDRIVE_BATCH = 60.0, 100
"""For how many seconds other processes leave dead letters alone that this one tries again, and how many it takes at once."""

MAX_CALLS = 20
"""Calls of the function of an intake at once."""

CANCEL_TIMEOUT_S = 5.0
"""Seconds that a stop waits for the tasks that it cancels."""

RUNNING, WAITING, AWAY, STOPPED = "running", "waiting", "away", "stopped"
"""The states of an intake: it receives; it waits for the store, the queue or a handler; the broker is away; it was stopped."""


@dataclasses.dataclass(frozen=True, slots=True)
class IntakeSpec:
    """An intake as code declares it."""

    name: str
    broker: str
    place: str
    tasks: Mapping[str, str]
    """The task for each type of message; the type "*" is for all others. Empty for an intake with a function."""
    function: Callable[[Message], Any] | None = None
    tenant: str | None = None
    id: Callable[[Message], str] | None = None
    queue: str | None = None
    priority: int = 0
    deadline: Duration | None = None
    labels: Mapping[str, str] | None = None
    batch: int = 200
    attempts: int = 5
    """How often a function is called with a message before it is a dead letter."""

    @property
    def source(self) -> str:
        """The broker and the place, for people."""
        return f"{self.broker}/{self.place}"

    @property
    def target(self) -> str:
        """The tasks or the function, for people."""
        if self.function is not None:
            return f"{getattr(self.function, '__qualname__', 'function')}()"
        return ", ".join(sorted(set(self.tasks.values())))


@dataclasses.dataclass(slots=True)
class _Item:
    """A message on its way through the intake."""

    received: Received
    message: Message | None
    reason: str = ""
    """Why it cannot be read, or be taken."""
    letter: str = ""
    """The id of its dead letter, when it is tried again."""
    lost: Lost | None = None
    """The time that a restore took, in which this dead letter may have become a task before."""

    @property
    def identity(self) -> str:
        if self.message is not None:
            return self.message.id
        return messages.identity_of(self.received) or messages.identity_of_bytes(self.received)


class Intake:
    """One intake in this process."""

    def __init__(
        self,
        spec: IntakeSpec,
        make_source: Callable[[], Source],
        service: Service,
        store: Store,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self.spec: IntakeSpec = spec
        self._make_source, self._service, self._store, self._clock, self._ids = make_source, service, store, clock, ids
        self._process = f"{socket.gethostname()}:{os.getpid()}:{ids()[-6:]}"
        self.state: str = AWAY
        self._detail = "it has not connected yet"
        self._lag: int | None = None
        self.taken: int = 0
        self.dead: int = 0
        self._reported = 0
        self._reported_at = clock.monotonic()
        self._mean_bytes = 0.0
        self._no_handler_since: dict[str, float] = {}
        self._next_redrive = self._next_hold = 0.0
        self._letters: int | None = None
        self._some_letters = True
        self._source: Source | None = None
        self._ahead: asyncio.Task[list[_Item]] | None = None
        """The fetch of the next batch, and its reading."""
        self._acknowledging: asyncio.Task[None] | None = None
        """The acknowledgement of the last batch."""
        self.stopping: bool = False

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Receive messages until `stopping`."""
        delay = MIN_DELAY_S
        while not self.stopping:
            source, opened_at = self._make_source(), math.inf
            try:
                await source.open()
                self._source, opened_at = source, self._clock.monotonic()
                self._become(RUNNING)
                await self._consume(source)
            except BrokerUnavailable as error:
                self._become(AWAY, str(error))
            except StoreUnavailable as error:
                self._become(WAITING, str(error))
            except Exception as error:
                # A traceback may quote messages.
                trace = error if self._store.codec is None else None
                log.log(logging.ERROR, "intake %s failed, and connects again", self.spec.name, exc_info=trace)
                self._become(WAITING, self._quotable(f"{type(error).__name__}: {error}"))
            finally:
                self._source = None
                await source.close()
            if not self.stopping:
                # A broker that takes connections and then refuses to serve them is not asked ten times a second.
                delay = MIN_DELAY_S if self._clock.monotonic() - opened_at > MAX_DELAY_S else delay
                await self._clock.sleep(delay)
                delay = min(delay * 2, MAX_DELAY_S)
        self._become(STOPPED)

    async def _consume(self, source: Source) -> None:
        """Commit one batch while the next is fetched and the last is acknowledged. A stop fetches no more, and commits what was fetched."""
        try:
            while not self.stopping or self._ahead is not None:
                if self._ahead is None:
                    await self._redrive(source)
                    self._ahead = self._fetch(source)
                items: list[_Item] = await self._ahead
                self._ahead = None
                if not items:
                    continue
                if not self.stopping and self._clock.monotonic() < self._next_redrive:
                    self._ahead = self._fetch(source)
                if not await self._settle(items, source):
                    break  # stopped: what is not acknowledged comes again
                crashpoint("intake.committed")
                await self._acknowledged()
                received = [item.received for item in items]
                self._acknowledging = spawn(self._acknowledge(source, received), "onward-intake-acknowledge")
            await self._acknowledged()
        finally:
            tasks: list[asyncio.Task[Any]] = [task for task in (self._ahead, self._acknowledging) if task is not None]
            self._ahead = self._acknowledging = None
            for task in tasks:
                task.add_done_callback(_forget)
            await end_tasks(tasks, CANCEL_TIMEOUT_S, log, "an intake")

    async def _acknowledge(self, source: Source, received: Sequence[Received]) -> None:
        """Acknowledge a batch that is committed."""
        await source.acknowledge(received)
        crashpoint("intake.acknowledged")
        self.taken += len(received)

    async def _acknowledged(self) -> None:
        """Wait for the acknowledgement that is under way. Raises BrokerUnavailable."""
        if self._acknowledging is not None:
            await self._acknowledging
            self._acknowledging = None

    def _fetch(self, source: Source) -> asyncio.Task[list[_Item]]:
        return spawn(self._fetch_and_read(source), "onward-intake-fetch")

    async def _fetch_and_read(self, source: Source) -> list[_Item]:
        received = await source.fetch(self._batch_size(), FETCH_WAIT_S)
        if not received:
            return []
        crashpoint("intake.fetched")
        size = sum([len(item.body) for item in received])
        self._mean_bytes = size / len(received)
        items = await self._read_all(received, size)
        crashpoint("intake.read")
        return items

    def _batch_size(self) -> int:
        return max(
            1, min(self.spec.batch, int(MAX_BATCH_BYTES / self._mean_bytes) if self._mean_bytes else self.spec.batch)
        )

    async def _read_all(self, received: Sequence[Received], size: int) -> list[_Item]:
        def work() -> list[_Item]:
            return [self._read(item) for item in received]

        return work() if size <= INLINE_BYTES else await asyncio.to_thread(work)

    def _read(self, received: Received, letter: str = "") -> _Item:
        try:
            message = messages.read(received, self.spec.id)
        except Unreadable as error:
            return _Item(received, None, str(error), letter)
        if self.spec.function is None and self._task_for(message) is None:
            reason = f"no task takes messages of type {message.type!r:.200}: {self._types()}"
            return _Item(received, message, reason, letter)
        return _Item(received, message, "", letter)

    def _task_for(self, message: Message) -> str | None:
        return self.spec.tasks.get(message.type, self.spec.tasks.get("*"))

    def _types(self) -> str:
        return f"this intake takes {', '.join(map(repr, sorted(self.spec.tasks)))}"

    # ── committing ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _settle(self, items: Sequence[_Item], source: Source) -> bool:
        """Make each of these messages a task or a dead letter. False when the intake was stopped before."""
        waiting, size, delay = list(items), len(items), MIN_DELAY_S
        self._next_hold = self._clock.monotonic() + HOLD_INTERVAL_S
        while waiting:
            try:
                kept, why = await self._holding(self._attempt(waiting[:size]), items, source)
            except (QueueFull, QuotaExceeded) as error:
                if size > 1:  # there may be room for some of them
                    size = size // 2
                    continue
                why = str(error)
            except StoreUnavailable as error:
                why = str(error)
            else:
                waiting = kept + waiting[size:]
                if not kept:
                    size, delay = max(1, min(size * 2, len(waiting))), MIN_DELAY_S
                    continue
            if self.stopping:
                return False
            self._become(WAITING, why)
            await self._holding(self._clock.sleep(delay), items, source)
            delay = min(delay * 2, MAX_DELAY_S)
        self._become(RUNNING)
        return True

    async def _holding(self, work: Coroutine[Any, Any, Answer], items: Sequence[_Item], source: Source) -> Answer:
        """The answer of the work. While it goes on, the intake tells the broker now and then that these messages are not done yet."""
        task = spawn(work, "onward-intake-settle")
        try:
            while (wait := self._next_hold - self._clock.monotonic()) <= 0 or not (
                await asyncio.wait([task], timeout=wait)
            )[0]:
                self._next_hold = self._clock.monotonic() + HOLD_INTERVAL_S
                with contextlib.suppress(BrokerUnavailable):  # the acknowledgement will say it
                    await source.hold([*[item.received for item in items if not item.letter], *self._fetched_ahead()])
            answer: Answer = task.result()
            return answer
        finally:
            if not task.done():
                await end_tasks([task], CANCEL_TIMEOUT_S, log, "an intake")

    def _fetched_ahead(self) -> list[Received]:
        ahead = self._ahead
        if ahead is None or not ahead.done() or ahead.cancelled() or ahead.exception() is not None:
            return []
        return [item.received for item in ahead.result()]

    async def _attempt(self, items: Sequence[_Item]) -> tuple[list[_Item], str]:
        """Commit what can be committed; returns the messages that wait for a handler, and why. Raises QueueFull, QuotaExceeded and
        StoreUnavailable; all of it can be done again then."""
        good = [item for item in items if not item.reason]
        dead = await self._not_taken_before([item for item in items if item.reason])
        taken: list[_Item] = []
        kept: list[_Item] = []
        why = ""
        errors = await (self._submit(good) if self.spec.function is None else self._call_all(good))
        for item, error in zip(good, errors, strict=True):
            if error is None:
                taken.append(item)
            elif isinstance(error, UnknownTask) and self._still_waits_for(error.name):
                kept.append(item)
                why = str(error)
            else:
                item.reason = str(error) if isinstance(error, OnwardError) else f"{type(error).__name__}: {error}"
                dead.append(item)
        if self.spec.function is not None and taken:
            telemetry.counters.add(telemetry.MESSAGES, self.spec.name, "received", by=len(taken))
        await self._bury(dead)
        await self._forget_letters(taken)
        return kept, why

    async def _submit(self, items: Sequence[_Item]) -> list[Exception | None]:
        if not items:
            return []
        outcomes = await self._service.receive([self._request(item) for item in items])
        if self._no_handler_since:
            for item, outcome in zip(items, outcomes, strict=True):
                if isinstance(outcome, str) and item.message is not None:
                    self._no_handler_since.pop(self._task_for(item.message) or "", None)
        return [None if isinstance(outcome, str) else outcome for outcome in outcomes]

    def _request(self, item: _Item) -> SubmitRequest:
        spec, message = self.spec, item.message
        assert message is not None
        return SubmitRequest(
            self._task_for(message) or "",
            message.data,
            message.id,
            spec.priority,
            spec.queue,
            spec.deadline,
            labels=spec.labels,
            tenant=spec.tenant,
            by=f"intake:{spec.name}",
            intake=spec.name,
            trace=telemetry.incoming(message.headers),
            lost=None if item.lost is None else item.lost.to_json(),
        )

    def _still_waits_for(self, task: str) -> bool:
        """Whether messages for a task that no worker has still wait for one. After the wait, such messages are dead letters at once."""
        now = self._clock.monotonic()
        return now - self._no_handler_since.setdefault(task, now) < UNKNOWN_TASK_S

    async def _not_taken_before(self, items: Sequence[_Item]) -> list[_Item]:
        """Those of these messages that did not become a task before, when other code ran."""
        ids = [item.message.id for item in items if item.message is not None]
        if self.spec.function is not None or not ids:
            return list(items)
        known = await self._service.received(self.spec.name, ids, self.spec.tenant)
        return [item for item in items if item.message is None or item.message.id not in known]

    # ── functions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _call_all(self, items: Sequence[_Item]) -> list[Exception | None]:
        turns = asyncio.Semaphore(MAX_CALLS)

        async def call(item: _Item) -> Exception | None:
            async with turns:
                return await self._call(item)

        calls = [spawn(call(item), "onward-intake-call") for item in items]
        try:
            return [await future for future in calls]
        finally:
            await end_tasks([future for future in calls if not future.done()], CANCEL_TIMEOUT_S, log, "an intake")

    async def _call(self, item: _Item) -> Exception | None:
        """Call the function until it returns, at most `attempts` times; the last error."""
        assert self.spec.function is not None
        assert item.message is not None
        CAUSE.set(item.lost)
        delay = MIN_DELAY_S
        for attempt in range(1, self.spec.attempts + 1):
            try:
                if is_async(self.spec.function):
                    await self.spec.function(item.message)
                else:
                    await asyncio.to_thread(self.spec.function, item.message)
            except (QueueFull, QuotaExceeded, StoreUnavailable):
                raise
            except Exception as error:
                why = self._quotable(mask.text(repr(error))[:300])
                log.warning("intake %s: message %s: %s", self.spec.name, item.message.id, why)
                if attempt == self.spec.attempts:
                    return error
                await self._clock.sleep(delay)
                delay = min(delay * 2, MAX_DELAY_S)
            else:
                return None
        raise AssertionError("attempts is 1 or more")

    # ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _bury(self, items: Sequence[_Item]) -> None:
        for item in items:
            if item.letter:
                await self._store.intakes.still_dead(item.letter, _cut(item.reason))
        fresh = [item for item in items if not item.letter]
        if not fresh:
            return
        if self._letters is None or self._letters + len(fresh) > MAX_DEAD_LETTERS:
            self._letters = await self._store.intakes.count(self.spec.name, MAX_DEAD_LETTERS)
        if self._letters + len(fresh) > MAX_DEAD_LETTERS:
            raise StoreUnavailable(
                f"intake {self.spec.name} has {self._letters:,} dead letters and takes no more messages; look at them with "
                f"`onward dead list {self.spec.name}`, then redrive or drop them"
            )
        self._some_letters = True
        await self._store.intakes.bury([self._letter(item) for item in fresh])
        self._letters += len(fresh)
        self.dead += len(fresh)
        telemetry.counters.add(telemetry.MESSAGES, self.spec.name, "dead", by=len(fresh))
        for item in fresh[:3]:
            why = self._quotable(_cut(item.reason))
            log.warning("intake %s: dead letter %s: %s", self.spec.name, item.identity, why)

    def _quotable(self, text: str) -> str:
        """The text for a log line or a report; with encryption not, since it may quote a message."""
        return text if self._store.codec is None else ENCRYPTED_TEXT

    def _letter(self, item: _Item) -> NewLetter:
        received, body = item.received, mask.data(item.received.body)
        return NewLetter(
            id=self._ids(),
            intake=self.spec.name,
            identity=item.identity,
            tenant=self.spec.tenant,
            reason=_cut(item.reason),
            position=received.position[:512],
            sent_id=received.sent_id[:512],
            size=len(received.body),
            headers=dict(received.headers),
            body=body[:MAX_LETTER_BYTES],
        )

    async def _forget_letters(self, items: Sequence[_Item]) -> None:
        """Delete the dead letters of messages that are tasks now: of those that were tried again, and of those that came again."""
        letters = [item.letter for item in items if item.letter]
        if self._some_letters and (fresh := [item.identity for item in items if not item.letter]):
            letters += await self._store.intakes.of_messages(self.spec.name, fresh)
        if letters:
            await self._store.intakes.remove(letters)
            self._letters = None

    async def _redrive(self, source: Source) -> None:
        """Try dead letters again for which an operator asked. While the store is away this waits, with the broker connected: a queue of
        RabbitMQ counts how often a message is delivered."""
        delay = MIN_DELAY_S
        while not self.stopping and self._clock.monotonic() >= self._next_redrive:
            try:
                await self._redrive_some(source)
            except StoreUnavailable as error:
                self._become(WAITING, str(error))
                await self._holding(self._clock.sleep(delay), [], source)
                delay = min(delay * 2, MAX_DELAY_S)
            else:
                self._become(RUNNING)

    async def _redrive_some(self, source: Source) -> None:
        self._some_letters = await self._store.intakes.count(self.spec.name, 1) > 0
        letters = (
            await self._store.intakes.take(self.spec.name, REDRIVE_BATCH, REDRIVE_LEASE_S) if self._some_letters else []
        )
        if len(letters) < REDRIVE_BATCH:
            self._next_redrive = self._clock.monotonic() + REDRIVE_INTERVAL_S
        items = []
        for letter in letters:
            received = Received(letter.headers, letter.body, letter.position, letter.sent_id)
            item = self._read(received, letter.id)
            item.lost = lost_at(self._store.epoch, letter.at)
            if letter.size > MAX_LETTER_BYTES:
                item.reason = (
                    f"its body of {letter.size:,} bytes was too large to be kept; send it again in a smaller form"
                )
            items.append(item)
        if items:
            await self._settle(items, source)

    # ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _become(self, state: str, detail: str = "") -> None:
        if (state, detail) == (self.state, self._detail):
            return
        if state != self.state and state in {WAITING, AWAY}:
            log.warning("intake %s (%s) is %s: %s", self.spec.name, self.spec.source, state, detail)
        elif state != self.state:
            log.info("intake %s (%s) is %s", self.spec.name, self.spec.source, state)
        self.state, self._detail = state, detail

    async def keep_reporting(self) -> None:
        """Report to the store, for ever: every REPORT_INTERVAL_S, and soon after the state changed."""
        while True:
            reported, again_at = self.state, self._clock.monotonic() + REPORT_INTERVAL_S
            await self.report()
            while self.state == reported and self._clock.monotonic() < again_at:
                await self._clock.sleep(STATE_INTERVAL_S)

    async def report(self) -> None:
        """Report to the store how this intake does."""
        if self._source is not None:
            with contextlib.suppress(BrokerUnavailable):
                self._lag = await self._source.lag()
        if self._lag is not None:
            telemetry.counters.put(telemetry.INTAKE_LAG, self._lag, self.spec.name)
        now = self._clock.monotonic()
        rate = (self.taken - self._reported) / max(now - self._reported_at, 0.001)
        self._reported, self._reported_at = self.taken, now
        spec = self.spec
        try:
            await self._store.intakes.report(
                IntakeReport(
                    spec.name,
                    self._process,
                    spec.source,
                    spec.target,
                    spec.tenant,
                    self.state,
                    _cut(self._detail),
                    self.taken,
                    self.dead,
                    rate,
                    self._lag,
                )
            )
        except StoreUnavailable as error:
            log.info("intake %s cannot report: %s", spec.name, error)


def _forget(task: asyncio.Task[Any]) -> None:
    """Read the error of a task, so that asyncio does not log it: the intake connects again for another error."""
    task.cancelled() or task.exception()


def _cut(reason: str) -> str:
    return mask.text(reason)[:MAX_REASON_CHARS].replace("\0", "\ufffd")
