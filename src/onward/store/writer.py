"""Group commit: one writer for all tasks of a process.

While one commit is on its way, the appends of all tasks gather; the next commit takes them together. An idle system
pays no delay, a busy one pays one commit for hundreds of steps. Commits go out one after another, so a task whose
append was refused has nothing further on its way: the writer also drops its records that still wait.

There are two lines, each with one commit on its way. Large records go alone, in a line of their own, so that small ones wait for
them neither in a commit nor behind one. A task stands in one line at a time: its small records after a large one wait in that one's
line, and its large record waits until what it wrote before has landed. So the order within a task stays.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from onward.core.clock import Clock
from onward.core.control import Fenced, Unheard
from onward.core.record import LOCK_LEFT, Entry
from onward.errors import OnwardError, StoreUnavailable, TooSlow
from onward.store.port.core import Batch, Content, End, Store, Wait
from onward.store.shared.predecessor import Witness, WitnessLost

log = logging.getLogger("onward.writer")

MAX_RECORDS = 2_000
"""Records in one commit."""

MAX_BYTES = 1_000_000
"""Bytes in one commit of small records: a tenth of a second on a line of 10 MB/s."""

LARGE_BYTES = 256_000
"""A record of more bytes, with the contents that go with it, is large: it goes in a commit without other tasks."""

MAX_UNSAVED_BYTES = 4_000_000
"""Bytes of one task that wait to be saved, above which it begins nothing new. (A step waits for its own record anyway. Records without a
waiter, as of reads, would gather without an end.)"""

MAX_DEFERRED = 500
"""Records that wait in the line before they are a reason for a commit after all."""

FEW_RECORDS = 32
"""Up to so many records go in one commit: two are not worth it."""

MIN_SHARE = 1 / 64
"""The smallest part of its usual size that a commit has, after halvings because commits took too long."""

MAX_PATIENCE = 16.0
"""By which factor a commit of one task may take longer than usual, when it took too long before."""


@dataclasses.dataclass(slots=True, eq=False)
class Hold:
    """A worker's hold on one task: the number of its shift, the last number that it wrote, and whether it was lost or settled. A step
    that comes back after its shift has settled finds that it cannot write any more."""

    id: str
    shift: int
    seq: int
    lost: bool = False
    settled: bool = False
    gate: str | None = None
    locks: bool = False
    """Whether the task has held or awaited a lock in this shift: its end frees all of them."""
    refused: Exception | None = None
    """Why the database refused a record that had no waiter."""
    kept: dict[str, bytes] | None = None
    """Contents that go with the next record."""
    at: float | None = None
    """The time of the last record that is in the store, or on its way there; the next one names it as its predecessor."""
    claim: tuple[int, float] | None = None
    """The claim that wrote its last record, by number and time: one record of a claim is a witness for all of the claim."""
    covered: object = None
    """The mark of the line that wrote its last record: the witness of that line covers it as well."""
    large: int = 0
    """How many of its records stand in the line for large ones, or are on their way from it."""
    unsaved: int = 0
    """How many bytes of it wait to be saved."""
    contents: dict[str, bytes] | None = None
    """Contents that are not in the store yet."""

    @property
    def gone(self) -> bool:
        """Whether this hold writes nothing more."""
        return self.settled or (self.lost and self.refused is None)

    def why_not(self) -> Exception | Fenced:
        """Why this hold cannot write now. The next caller gets the error of a refused record, once; after that its number is free
        again."""
        if self.refused is None:
            return Fenced()
        why, self.refused, self.lost = self.refused, None, False
        return why


_Waiter = tuple[Hold, "asyncio.Future[None] | None", "dict[str, bytes] | None", "End | Wait | None", int]
"""What belongs to a record in a line: its hold, the future of its waiter, contents that go with it, the end or wait that it settles, and its bytes."""


class _Records(NamedTuple):
    """Records that were taken from a line, and what belongs to each."""

    entries: list[Entry]
    waiters: list[_Waiter]


class _Line:
    """Records that wait for a commit, and the commit that is on its way."""

    __slots__ = ("bytes", "entries", "flying", "idle", "mark", "waiters", "witness")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.waiters: list[_Waiter] = []
        self.bytes = 0
        self.mark = object()
        """Holds with this mark had their last record in a commit of this line, which `witness` covers."""
        self.witness: Witness | None = None
        """A record of the last commit of this line. Each commit of the line requires it: as long as it is in the journal, all of the line is."""
        self.flying = _Records([], [])
        self.idle: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.idle is not None:
            self.idle.set_result(None)
            self.idle = None

    def take(self, size: int) -> _Records:
        """Remove the first `size` records."""
        if size >= len(self.entries):
            taken = _Records(self.entries, self.waiters)
            self.entries, self.waiters, self.bytes = [], [], 0
            return taken
        taken = _Records(self.entries[:size], self.waiters[:size])
        del self.entries[:size], self.waiters[:size]
        self.bytes -= sum([waiter[4] for waiter in taken.waiters])
        return taken

    def take_of(self, hold: Hold, most_bytes: int) -> _Records:
        """Remove the first records of this hold, up to so many bytes, but at least one."""
        taken: list[tuple[Entry, _Waiter]] = []
        left: list[tuple[Entry, _Waiter]] = []
        total = 0
        for pair in zip(self.entries, self.waiters, strict=True):
            fits = pair[1][0] is hold and (not taken or total + pair[1][4] <= most_bytes)
            (taken if fits else left).append(pair)
            total += pair[1][4] if fits else most_bytes if pair[1][0] is hold else 0
        self.refill(left)
        return _Records([entry for entry, _ in taken], [waiter for _, waiter in taken])

    def committed(self, batch: Batch, refused: set[str]) -> object:
        """A commit of this line, which required its witness, is over: the mark for its holds."""
        for entry in reversed(batch.entries):
            if entry[0] not in refused:
                self.witness = (entry[0], entry[1], entry[2], entry[6])
                break
        return self.mark

    def drop(self, holds: set[int]) -> list[_Waiter]:
        """Remove the records of these holds."""
        gone = [waiter for waiter in self.waiters if id(waiter[0]) in holds]
        if gone:
            pairs = zip(self.entries, self.waiters, strict=True)
            self.refill([pair for pair in pairs if id(pair[1][0]) not in holds])
        return gone

    def refill(self, pairs: list[tuple[Entry, _Waiter]]) -> None:
        self.entries, self.waiters = [entry for entry, _ in pairs], [waiter for _, waiter in pairs]
        self.bytes = sum([waiter[4] for waiter in self.waiters])


class Writer:
    """Appends and settles for many holds. `run` commits small records, `run_large` large ones."""

    def __init__(self, store: Store, clock: Clock, now: Callable[[], float], rng: random.Random) -> None:
        self._store, self._clock, self._now, self._rng = store, clock, now, rng
        self._small, self._large = _Line(), _Line()
        self._future = asyncio.get_running_loop().create_future
        self._last = 0
        self._deferred = 0
        """How many records in the line are no reason for a commit."""
        self._landed: asyncio.Future[None] | None = None
        self._share = 1.0
        """Which part of the largest size a commit has now: halved when a commit took too long."""
        self._closed = False
        self.worker = ""
        self.commits: int = 0

    # ── called by shifts ─────────────────────────────────────────────────────────────────────────────────────────

    def append(self, hold: Hold, kind: str, key: str, data: bytes) -> asyncio.Future[None]:
        """Append a record; the future is done when it is durable, and raises Fenced when it was refused."""
        self._add(hold, kind, key, data, future := self._future())
        return future

    def mention(self, hold: Hold, kind: str, key: str, data: bytes) -> None:
        """Append a record with the next commit, and do not wait for it: progress for readers, which no replay needs."""
        self._add(hold, kind, key, data, None)

    def defer(self, hold: Hold, kind: str, key: str, data: bytes) -> None:
        """Append a record with the next commit of any task, without being a reason for one: the record may be lost."""
        idle, self._small.idle = self._small.idle, None
        try:
            self._add(hold, kind, key, data, None)
        finally:
            self._small.idle = idle
        if not hold.large:
            self._deferred += 1
        if self._deferred >= MAX_DEFERRED or self._small.bytes > MAX_BYTES:
            self._wake()

    def keep(self, hold: Hold, name: str, data: bytes) -> None:
        """Write contents with the next record of this hold, which may refer to them. (With a record of another hold they would be lost
        when that one is refused.)"""
        if not hold.gone:
            hold.kept, hold.contents = hold.kept or {}, hold.contents or {}
            hold.kept[name] = hold.contents[name] = data

    def unwritten(self, hold: Hold, names: Iterable[str]) -> dict[str, bytes]:
        """Those contents of this hold that have these names and are not known to be in the store."""
        contents = hold.contents or {}
        return {name: contents[name] for name in names if name in contents}

    def settle(self, hold: Hold, kind: str, data: bytes, ending: End | Wait) -> asyncio.Future[None]:
        """Append the last record of a shift together with the end or the wait that it leads to."""
        if isinstance(ending, End):
            ending = End(
                ending.id, ending.state, ending.attempt, hold.seq + 1, ending.parent, ending.inbox
            )  # quicker than _replace
        self._add(hold, kind, "", data, future := self._future(), ending)
        hold.settled = True
        return future

    def _add(
        self,
        hold: Hold,
        kind: str,
        key: str,
        data: bytes,
        future: asyncio.Future[None] | None,
        ending: End | Wait | None = None,
    ) -> None:
        if hold.lost or hold.settled or self._closed:
            raise Fenced() if self._closed else hold.why_not()
        hold.seq += 1
        size, kept, line = len(data), hold.kept, self._small
        if kept is not None:
            size, hold.kept = size + sum(map(len, kept.values())), None
        if size > LARGE_BYTES or hold.large:
            hold.large += 1
            line = self._large
        hold.unsaved += size
        line.bytes += size
        line.entries.append((hold.id, hold.seq, hold.shift, kind, key, data, self._now()))
        line.waiters.append((hold, future, kept, ending, size))
        if line.idle is not None:
            line.wake()

    async def flushed(self, hold: Hold) -> None:
        """Wait until all records of this hold so far are durable."""
        last = hold.seq
        while self._unsaved(hold, last):
            self._wake()
            await self._landing()
        if hold.lost or hold.settled or self._closed:
            raise Fenced() if self._closed else hold.why_not()

    def _unsaved(self, hold: Hold, last: int) -> bool:
        lines = (self._small, self._large)
        return any(
            entry[0] == hold.id and entry[1] <= last
            for line in lines
            for entry in (*line.flying.entries, *line.entries)
        )

    async def _landing(self) -> None:
        """Wait until a commit is over."""
        self._landed = self._landed or self._future()
        await asyncio.shield(self._landed)

    def _wake(self) -> None:
        """Commit deferred records too."""
        self._deferred = 0
        self._small.wake()

    # ── the commits ──────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Commit the small records that gather, until this task is cancelled. From then on the writer is closed."""
        line = self._small
        try:
            while True:
                if len(line.entries) == self._deferred:
                    line.idle = self._future()
                    await line.idle
                await self._fly(line, self._take())
        finally:
            self.close()

    def close(self) -> None:
        """Refuse all records that wait, are on their way, or come from now on: a shift must not wait for a writer that has ended. The journal
        has the result of a commit that is on its way."""
        self._closed = True
        for line in (self._small, self._large):
            line.idle = None
            self._abandon([*line.flying.waiters, *line.waiters])
            line.flying = _Records([], [])
        self._land()

    def _land(self) -> None:
        """Wake the callers of `flushed`."""
        if self._landed is not None:
            self._landed.set_result(None)
            self._landed = None

    async def run_large(self) -> None:
        """Commit large records, and the records of their tasks after them, until this task is cancelled: those of one task at a time."""
        line = self._large
        try:
            while True:
                if not line.entries:
                    line.idle = self._future()
                    await line.idle
                hold = self._first_large()
                if hold is not None:
                    await self._fly(line, line.take_of(hold, MAX_BYTES))
                elif line.entries:
                    self._wake()
                    await self._landing()
        finally:
            self.close()

    def _first_large(self) -> Hold | None:
        """The first hold in the line for large records that has no record in the other line, nor on its way from there."""
        small = self._small
        busy = {id(waiter[0]) for waiter in (*small.waiters, *small.flying.waiters)}
        return next((waiter[0] for waiter in self._large.waiters if id(waiter[0]) not in busy), None)

    async def _fly(self, line: _Line, taken: _Records) -> None:
        """Commit records that were taken from a line."""
        waiters = taken.waiters
        if not waiters:
            return
        line.flying = taken
        batch = self._batch(line, taken)
        try:
            await self._commit(batch, waiters, line)
        except Exception:  # the tasks of other commits must go on
            log.exception("a commit of %d records failed; their tasks are dropped here", len(batch.entries))
            self._abandon(waiters)
        line.flying = _Records([], [])
        self._release(waiters, large=line is self._large)

    def _batch(self, line: _Line, taken: _Records) -> Batch:
        """A commit of these records, with its witnesses: one of this line; one of the other line and of each claim that wrote the last
        record of a hold here; and the last record of each other hold."""
        batch = Batch(taken.entries)
        known, witnesses, mark = batch.known, batch.witnesses, line.mark
        stood_for: set[object] = set()
        if line.witness is not None:
            witnesses.append(line.witness)
        for entry, (hold, _, kept, ending, _) in zip(taken.entries, taken.waiters, strict=True):
            if hold.id not in known:
                known[hold.id] = hold.at
                if hold.covered is not mark:
                    witnesses += self._witness(hold, entry, stood_for)
            hold.at = entry[6]
            if kept is not None:
                batch.contents += [Content(hold.id, name, data) for name, data in kept.items()]
            if entry[3] == LOCK_LEFT:
                batch.unlocks.append((hold.id, entry[4]))
            if ending is not None:
                (batch.ends if isinstance(ending, End) else batch.waits).append(ending)  # type: ignore[arg-type]
                if hold.gate is not None:
                    batch.gates[hold.id] = hold.gate
                if hold.locks and isinstance(ending, End):
                    batch.unlocks.append((hold.id, ""))
        return batch

    def _witness(self, hold: Hold, first: Entry, stood_for: set[object]) -> list[Witness]:
        """The witness of a hold whose last record is of another line, of a claim, or of a transaction; none where the batch has it."""
        source = hold.claim if hold.covered is None else hold.covered
        if source in stood_for:
            return []
        for line in (self._small, self._large):
            if source is line.mark and line.witness is not None:
                stood_for.add(source)
                return [line.witness]
        if hold.covered is None and hold.claim is not None:
            stood_for.add(source)
        return [(hold.id, first[1] - 1, hold.shift, hold.at)]

    def _take(self) -> _Records:
        """The records of the next commit. Where the database works in another process or thread, it is half of many tasks that move in
        step: while those are being committed the others run, so that handlers and database do not wait for each other by turns."""
        line = self._small
        size = min(len(line.entries), max(1, int(MAX_RECORDS * self._share)))
        if size > FEW_RECORDS and self._store.out_of_process:
            size = min(size, max(FEW_RECORDS, (size + self._last + 1) // 2))
        if line.bytes > (most := MAX_BYTES * self._share):
            total = 0
            for number, waiter in enumerate(line.waiters[:size]):
                total += waiter[4]
                if total > most:
                    size = max(1, number)
                    break
        self._last, self._deferred = size, 0
        return line.take(size)

    async def _commit(self, batch: Batch, waiters: list[_Waiter], line: _Line | None = None) -> None:
        """Save a batch and answer its waiters. Without a line the commit did not require the witness of a line, so it covers no hold."""
        try:
            refused = await self._save(batch)
        except Exception as error:
            await self._one_by_one(batch, waiters, error)
            return
        self.commits += 1
        self._store.tails.announce()
        if refused:
            self.lose([waiter[0] for waiter in waiters if waiter[0].id in refused])
        mark = None if line is None else line.committed(batch, refused)
        for hold, future, _, _, _ in waiters:
            hold.claim, hold.covered = None, mark
            if future is not None and not future.done():
                if hold.lost:
                    future.set_exception(Fenced())
                else:
                    future.set_result(None)

    async def _save(self, batch: Batch) -> set[str]:
        """Save a batch, however long it takes. When the result of a commit is unknown the writer sends it again, and the store recognises
        its records. Tasks may have been pruned meanwhile: the writer leaves them out. A commit that took too long is sent in two halves; one
        of a single task gets more time."""
        pause, gone = 0.05, set[str]()
        while True:
            try:
                if pause > 0.05:
                    gone |= await self._gone(batch)
                    batch = _without(batch, gone) if gone else batch
                refused = await self._store.save(self.worker, batch) if batch.entries else set()
            except WitnessLost:
                log.info("a record that this worker wrote is not there any more; each task is now checked by itself")
                self._doubt()
                batch.witnesses = []
            except StoreUnavailable as error:
                log.warning("cannot save %d records, trying again: %s", len(batch.entries), error)
                if isinstance(error, TooSlow):
                    self._share = max(self._share / 2, MIN_SHARE)
                    if (halves := _halves(batch)) is not None:
                        return gone.union(*[await self._save(half) for half in halves])
                    batch.patience = min(batch.patience * 2, MAX_PATIENCE)
                await self._clock.sleep(pause * self._rng.uniform(0.5, 1))
                pause = min(pause * 2, 1.0)
            else:
                self._share = min(self._share * 2, 1.0)
                return refused | gone if gone else refused

    def _doubt(self) -> None:
        """From now on no witness covers the present holds: each is checked by itself once."""
        self._small.mark, self._large.mark = object(), object()

    async def _gone(self, batch: Batch) -> set[str]:
        ids = {entry[0] for entry in batch.entries}
        return ids - {kin.id for kin in await self._store.listing.kin(sorted(ids))}

    async def _one_by_one(self, batch: Batch, waiters: list[_Waiter], error: Exception) -> None:
        """Save each task by itself: a record that the database refuses must not harm the other tasks of the commit."""
        parts = list(batch.split())
        if len(parts) == 1:
            self._take_back(waiters[0][0], parts[0], waiters, error)
            return
        for part in parts:
            await self._commit(part, [waiter for waiter in waiters if waiter[0].id == part.entries[0][0]])

    def _take_back(self, hold: Hold, part: Batch, waiters: list[_Waiter], error: Exception) -> None:
        """The database refuses these records for good. The worker still holds the task, and its journal is as before, so the failure can
        be written in their place."""
        reason: Exception = error
        if not isinstance(error, Unheard):
            log.error("task %s: its records cannot be saved: %r", hold.id, error)
            reason = error if isinstance(error, OnwardError) else OnwardError(f"the record cannot be saved: {error}")
        dropped = self._drop({id(hold)})
        waiting = [future for _, future, *_ in waiters + dropped if future is not None and not future.done()]
        for future in waiting:
            future.set_exception(reason)
        hold.seq, hold.settled = part.entries[0][1] - 1, False
        hold.at = part.known[hold.id]
        if not waiting:
            hold.refused, hold.lost = reason, True

    def lose(self, holds: Iterable[Hold]) -> None:
        """Give up these holds, and drop their records that still wait: a record n+2 must never follow a refused n+1."""
        lost = list(holds)
        for hold in lost:
            hold.lost, hold.refused = True, None
        for _, future, *_ in self._drop({id(hold) for hold in lost}):
            _refuse(future)

    def _abandon(self, waiters: list[_Waiter]) -> None:
        """Give up records whose result is unknown. The next claim of their tasks goes on from the journal."""
        self.lose([waiter[0] for waiter in waiters])
        for _, future, *_ in waiters:
            _refuse(future)

    def _drop(self, holds: set[int]) -> list[_Waiter]:
        """Remove the records of these holds from both lines."""
        self._deferred = 0
        small, large = self._small.drop(holds), self._large.drop(holds)
        self._release(small, large=False)
        self._release(large, large=True)
        return small + large

    def _release(self, waiters: list[_Waiter], *, large: bool) -> None:
        """Release records that are in no line any more, nor on their way."""
        for hold, _, kept, _, size in waiters:
            hold.unsaved -= size
            if large:
                hold.large -= 1
            if kept is not None and hold.contents is not None:
                for name in kept:
                    if hold.kept is None or name not in hold.kept:
                        hold.contents.pop(name, None)
        self._land()


def _halves(batch: Batch) -> tuple[Batch, Batch] | None:
    """A batch as two of half its tasks; None where there is one task."""
    parts = list(batch.split())
    if len(parts) == 1:
        return None
    half = len(parts) // 2
    return _joined(parts[:half], batch.witnesses), _joined(parts[half:], batch.witnesses)


def _refuse(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_exception(Fenced())
        future.exception()  # its shift may be cancelled before it reads this


def _without(batch: Batch, gone: set[str]) -> Batch:
    return _joined([part for part in batch.split() if part.entries[0][0] not in gone], batch.witnesses)


def _joined(parts: Iterable[Batch], witnesses: list[Witness]) -> Batch:
    whole = Batch(witnesses=witnesses)
    for part in parts:
        whole.entries += part.entries
        whole.ends += part.ends
        whole.waits += part.waits
        whole.gates |= part.gates
        whole.unlocks += part.unlocks
        whole.contents += part.contents
        whole.known |= part.known
    return whole
