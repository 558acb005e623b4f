"""Group commit: one writer for all tasks of a process.

While one commit is on its way, the appends of all tasks gather; the next commit takes them together. An idle system
pays no delay, a busy one pays one commit for hundreds of steps. Commits go out one after another, so a task whose
append was refused has nothing further under way: what it still had in the line is dropped with it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Callable, Iterable

from onward.core.clock import Clock
from onward.core.control import Fenced, Unheard
from onward.core.record import Entry
from onward.errors import OnwardError, StoreUnavailable
from onward.store.port import Batch, Content, End, Store, Wait

log = logging.getLogger("onward.writer")

MOST = 2_000
"""Records in one commit."""

MOST_DEFERRED = 500
"""Records that wait in the line before they are a reason for a commit after all."""

FEW = 32
"""So few records are not worth two commits."""


@dataclasses.dataclass(slots=True, eq=False)
class Hold:
    """A worker's hold on one task: the number of its shift, the last number it wrote, and whether it was lost or let go.
    A step that was left behind may come back after its shift has settled; it finds that there is nothing to write to."""

    id: str
    shift: int
    seq: int
    lost: bool = False
    settled: bool = False
    gate: str | None = None
    refused: Exception | None = None
    """What the database had against a record that nobody waited for."""
    kept: dict[str, bytes] | None = None
    """Contents that go with the next record."""

    @property
    def gone(self) -> bool:
        """Whether nothing more will be written here."""
        return self.settled or (self.lost and self.refused is None)

    def why_not(self) -> Exception | Fenced:
        """Why nothing is written here now. A record that the database would not have is told of once, to whoever comes next:
        its number is free again."""
        if self.refused is None:
            return Fenced()
        why, self.refused, self.lost = self.refused, None, False
        return why


_Waiter = tuple[Hold, "asyncio.Future[None] | None"]


class Writer:
    """Appends and settles for many holds; start, stop."""

    def __init__(self, store: Store, clock: Clock, now: Callable[[], float], rng: random.Random) -> None:
        self._store, self._clock, self._now, self._rng = store, clock, now, rng
        self._entries: list[Entry] = []
        self._waiters: list[_Waiter] = []
        self._endings: list[tuple[Hold, End | Wait]] = []
        self._idle: asyncio.Future[None] | None = None
        self._future = asyncio.get_running_loop().create_future
        self._last = 0
        self._flying = Batch()
        self._deferred = 0
        """How many at the end of the line, or in it, are no reason for a commit."""
        self._landed: asyncio.Future[None] | None = None
        self._flying_waiters: list[_Waiter] = []
        self._closed = False
        self.worker = ""
        self.commits = 0

    # ── what shifts call ─────────────────────────────────────────────────────────────────────────────────────────

    def append(self, hold: Hold, kind: str, key: str, data: bytes) -> asyncio.Future[None]:
        """Write a record; the future is done when it is durable, and raises Fenced when it was refused."""
        self._add(hold, kind, key, data, future := self._future())
        return future

    def mention(self, hold: Hold, kind: str, key: str, data: bytes) -> None:
        """Write a record with the next commit, and wait for nothing: news for readers that no replay needs."""
        self._add(hold, kind, key, data, None)

    def defer(self, hold: Hold, kind: str, key: str, data: bytes) -> None:
        """Write a record with the next commit, whosever it is, without being the reason for one: it may be lost."""
        idle, self._idle = self._idle, None
        try:
            self._add(hold, kind, key, data, None)
        finally:
            self._idle = idle
        self._deferred += 1
        if self._deferred >= MOST_DEFERRED:
            self._wake()

    def keep(self, hold: Hold, name: str, data: bytes) -> None:
        """Write contents, with the next record of this hold, which may refer to them. (With another's they would be lost when
        that one is refused.)"""
        if not hold.gone:
            hold.kept = hold.kept or {}
            hold.kept[name] = data

    def unwritten(self, hold: Hold, names: Iterable[str]) -> dict[str, bytes]:
        """What this hold keeps under these names and is not in the store yet, or only just."""
        wanted, kept = set(names), hold.kept or {}
        found = {one.id: one.data for one in self._flying.contents if one.task_id == hold.id and one.id in wanted}
        return found | {name: kept[name] for name in wanted if name in kept}

    def settle(self, hold: Hold, kind: str, data: bytes, ending: End | Wait) -> asyncio.Future[None]:
        """Write the last record of a shift together with the end or the wait it leads to."""
        future = self._future()
        self._add(hold, kind, "", data, future)
        if isinstance(ending, End):
            ending = End(ending.id, ending.state, ending.attempt, hold.seq, ending.parent, ending.inbox)
        self._endings.append((hold, ending))
        hold.settled = True
        return future

    def _add(self, hold: Hold, kind: str, key: str, data: bytes, future: asyncio.Future[None] | None) -> None:
        if hold.lost or hold.settled or self._closed:
            raise Fenced() if self._closed else hold.why_not()
        hold.seq += 1
        self._entries.append((hold.id, hold.seq, hold.shift, kind, key, data, self._now()))
        self._waiters.append((hold, future))
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    async def flushed(self, hold: Hold) -> None:
        """Until what this hold has written so far is durable."""
        last = hold.seq
        while any(one[0] == hold.id and one[1] <= last for one in (*self._flying.entries, *self._entries)):
            self._wake()
            self._landed = self._landed or self._future()
            await asyncio.shield(self._landed)
        if hold.lost or hold.settled or self._closed:
            raise Fenced() if self._closed else hold.why_not()

    def _wake(self) -> None:
        """What was deferred is now a reason for a commit."""
        self._deferred = 0
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    # ── the commits ──────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Commit what gathers, until it is cancelled. From then on the writer is closed."""
        try:
            await self._run()
        finally:
            self.close()

    def close(self) -> None:
        """Refuse whatever is in the line, under way, or comes from now on: a shift must not wait for a writer that has ended. What became
        of a commit under way is in the journal."""
        self._closed, self._idle = True, None
        self._abandon([*self._flying_waiters, *self._waiters])
        self._flying, self._flying_waiters = Batch(), []
        self._land()

    async def _run(self) -> None:
        while True:
            if len(self._entries) == self._deferred:
                self._idle = self._future()
                await self._idle
            batch, waiters = self._take()
            if waiters:
                self._flying, self._flying_waiters = batch, waiters
                try:
                    await self._commit(batch, waiters)
                except Exception:  # whatever it is, the tasks of other commits go on
                    log.exception("a commit of %d records failed; their tasks are dropped here", len(batch.entries))
                    self._abandon(waiters)
                self._flying, self._flying_waiters = Batch(), []
            self._land()

    def _land(self) -> None:
        """Wake those who wait for what they have written."""
        if self._landed is not None:
            self._landed.set_result(None)
            self._landed = None

    def _take(self) -> tuple[Batch, list[_Waiter]]:
        """What the next commit holds. Of many tasks that move in step, half, where the database works apart from us: while
        those are being committed the others run, so that handlers and database do not wait for each other by turns."""
        size = min(len(self._entries), MOST)
        if size > FEW and self._store.apart:
            size = min(size, max(FEW, (size + self._last + 1) // 2))
        self._last, self._deferred = size, 0
        batch, waiters = Batch(self._entries[:size]), self._waiters[:size]
        del self._entries[:size], self._waiters[:size]
        for hold, _ in waiters:
            if hold.kept:
                batch.contents += [Content(hold.id, name, data) for name, data in hold.kept.items()]
                hold.kept = None
        self._sort_endings(batch)
        return batch, waiters

    def _sort_endings(self, batch: Batch) -> None:
        """An ending goes with the last record of its shift, which may be in a later commit."""
        if not self._endings:
            return
        later = {id(hold) for hold, _ in self._waiters}
        for hold, ending in self._endings:
            if id(hold) not in later:
                (batch.ends if isinstance(ending, End) else batch.waits).append(ending)  # type: ignore[arg-type]
                if hold.gate is not None:
                    batch.gates[hold.id] = hold.gate
        self._endings = [pair for pair in self._endings if id(pair[0]) in later]

    async def _commit(self, batch: Batch, waiters: list[_Waiter]) -> None:
        try:
            refused = await self._save(batch)
        except Exception as error:
            await self._one_by_one(batch, waiters, error)
            return
        self.commits += 1
        self._store.news()
        if refused:
            self.lose([hold for hold, _ in waiters if hold.id in refused])
        for hold, future in waiters:
            if future is not None and not future.done():
                if hold.lost:
                    future.set_exception(Fenced())
                else:
                    future.set_result(None)

    async def _save(self, batch: Batch) -> set[str]:
        """Until the store answers: a commit whose fate is unknown is asked for again, and the store knows its own. However long that
        took, tasks may have been pruned meanwhile, and those are not asked for."""
        pause, gone = 0.05, set[str]()
        while True:
            try:
                if pause > 0.05:
                    gone |= await self._gone(batch)
                    batch = _without(batch, gone) if gone else batch
                refused = await self._store.save(self.worker, batch) if batch.entries else set()
                return refused | gone if gone else refused
            except StoreUnavailable as error:
                log.warning("cannot save %d records, trying again: %s", len(batch.entries), error)
                await self._clock.sleep(pause * self._rng.uniform(0.5, 1))
                pause = min(pause * 2, 1.0)

    async def _gone(self, batch: Batch) -> set[str]:
        ids = {entry[0] for entry in batch.entries}
        return ids - {kin.id for kin in await self._store.kin(sorted(ids))}

    async def _one_by_one(self, batch: Batch, waiters: list[_Waiter], error: Exception) -> None:
        """A payload that the database refuses must not hurt the neighbours that came in the same commit."""
        parts = list(batch.split())
        if len(parts) == 1:
            self._take_back(waiters[0][0], parts[0].entries[0][1], waiters, error)
            return
        for part in parts:
            await self._commit(part, [waiter for waiter in waiters if waiter[0].id == part.entries[0][0]])

    def _take_back(self, hold: Hold, seq: int, waiters: list[_Waiter], error: Exception) -> None:
        """The database will not have these records, now or ever. The task is still ours and its journal where it was, so
        that the failure can be written there in their place."""
        told: Exception = error
        if not isinstance(error, Unheard):
            log.error("task %s: its records cannot be saved: %r", hold.id, error)
            told = error if isinstance(error, OnwardError) else OnwardError(f"the record cannot be saved: {error}")
        heard = [future for _, future in waiters + self._drop({id(hold)}) if future is not None and not future.done()]
        for future in heard:
            future.set_exception(told)
        hold.seq, hold.settled = seq - 1, False
        if not heard:
            hold.refused, hold.lost = told, True

    def lose(self, holds: Iterable[Hold]) -> None:
        """These holds are gone. What they still have in the line goes nowhere: a record n+2 must never follow a refused n+1."""
        lost = list(holds)
        for hold in lost:
            hold.lost, hold.refused = True, None
        for _, future in self._drop({id(hold) for hold in lost}):
            _refuse(future)

    def _abandon(self, waiters: list[_Waiter]) -> None:
        """Nobody knows what became of these records. The journal does: whoever claims their tasks next goes on from there."""
        self.lose([hold for hold, _ in waiters])
        for _, future in waiters:
            _refuse(future)

    def _drop(self, holds: set[int]) -> list[_Waiter]:
        """Take what these holds have in the line out of it."""
        self._deferred = 0
        gone = [waiter for waiter in self._waiters if id(waiter[0]) in holds]
        kept = [pair for pair in zip(self._entries, self._waiters, strict=True) if id(pair[1][0]) not in holds]
        self._entries, self._waiters = [entry for entry, _ in kept], [waiter for _, waiter in kept]
        self._endings = [pair for pair in self._endings if id(pair[0]) not in holds]
        return gone


def _refuse(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_exception(Fenced())
        future.exception()  # its shift may be cancelled before it reads this


def _without(batch: Batch, gone: set[str]) -> Batch:
    left = Batch()
    for part in batch.split():
        if part.entries[0][0] not in gone:
            left.entries += part.entries
            left.ends += part.ends
            left.waits += part.waits
            left.gates |= part.gates
            left.contents += part.contents
    return left
