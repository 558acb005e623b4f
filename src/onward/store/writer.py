"""Group commit: one writer for all tasks of a process.

While one commit is on its way, the appends of all tasks gather; the next commit takes them together. An idle system
pays no delay, a busy one pays one commit for hundreds of steps. Commits go out one after another, so a task whose
append was refused has nothing further under way: what it still had in the line is dropped with it.

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

from onward.core.clock import Clock
from onward.core.control import Fenced, Unheard
from onward.core.record import Entry
from onward.errors import OnwardError, StoreUnavailable, TooSlow
from onward.store.port.core import Batch, Content, End, Store, Wait
from onward.store.shared.predecessor import Witness, WitnessLost

log = logging.getLogger("onward.writer")

MOST = 2_000
"""Records in one commit."""

MOST_BYTES = 1_000_000
"""Bytes in one commit of small records: a tenth of a second on a line of 10 MB/s."""

LARGE = 256_000
"""A record of more bytes, with the contents that go with it, is large: it goes in a commit without other tasks."""

MOST_UNSAVED = 4_000_000
"""Bytes of one task that wait to be saved, above which it begins nothing new. (A step's own record is waited for anyway; those that
nobody waits for, as of reads, would gather without an end.)"""

MOST_DEFERRED = 500
"""Records that wait in the line before they are a reason for a commit after all."""

FEW = 32
"""So few records are not worth two commits."""

SMALLEST_SHARE = 1 / 64
"""How far the size of a commit goes down, by halves, while commits take too long."""

MOST_PATIENCE = 16.0
"""How many times the usual time a commit of one task may take, when it took too long before."""


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
    at: float | None = None
    """The time of the last record that is in the store, or on its way there; the next one names it as its predecessor."""
    claim: tuple[int, float] | None = None
    """The claim that wrote its last record, by number and time: one record of a claim stands for all of it."""
    covered: object = None
    """The mark of the line that wrote its last record: the witness of that line stands for it as well."""
    large: int = 0
    """How many of its records stand in the line for large ones, or are on their way from it."""
    unsaved: int = 0
    """How many bytes of it wait to be saved."""
    contents: dict[str, bytes] | None = None
    """Contents that are not in the store yet."""

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


_Waiter = tuple[Hold, "asyncio.Future[None] | None", "dict[str, bytes] | None", "End | Wait | None", int]
"""What belongs to a record in the line: its hold, who waits for it, contents that go with it, what it settles, and its bytes."""


class _Line:
    """Records that wait for a commit, and the commit that is on its way."""

    __slots__ = ("bytes", "entries", "flying", "idle", "mark", "waiters", "witness")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.waiters: list[_Waiter] = []
        self.bytes = 0
        self.mark = object()
        """Holds with this mark had their last record in a commit of this line, which `witness` stands for."""
        self.witness: Witness | None = None
        """A record of the last commit of this line. Each commit of the line demands it: so as long as it is there, all of the line is."""
        self.flying: list[tuple[Entry, _Waiter]] = []
        self.idle: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.idle is not None:
            self.idle.set_result(None)
            self.idle = None

    def take(self, size: int) -> list[tuple[Entry, _Waiter]]:
        """The first so many."""
        taken = list(zip(self.entries[:size], self.waiters[:size], strict=True))
        del self.entries[:size], self.waiters[:size]
        self.bytes -= sum([waiter[4] for _, waiter in taken])
        return taken

    def take_of(self, hold: Hold, most_bytes: int) -> list[tuple[Entry, _Waiter]]:
        """The first of this hold, up to so many bytes, but one at least."""
        taken: list[tuple[Entry, _Waiter]] = []
        left: list[tuple[Entry, _Waiter]] = []
        total = 0
        for pair in zip(self.entries, self.waiters, strict=True):
            fits = pair[1][0] is hold and (not taken or total + pair[1][4] <= most_bytes)
            (taken if fits else left).append(pair)
            total += pair[1][4] if fits else most_bytes if pair[1][0] is hold else 0
        self.refill(left)
        return taken

    def committed(self, batch: Batch, refused: set[str]) -> object:
        """A commit of this line, which demanded its witness, is over: the mark for the holds that took part."""
        last = next((entry for entry in reversed(batch.entries) if entry[0] not in refused), None)
        if last is not None:
            self.witness = (last[0], last[1], last[2], last[6])
        return self.mark

    def drop(self, holds: set[int]) -> list[_Waiter]:
        """Take what these holds have here out of it."""
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
        """How many at the end of the line, or in it, are no reason for a commit."""
        self._landed: asyncio.Future[None] | None = None
        self._share = 1.0
        """What part of the most that a commit may hold is sent now: halved when a commit took too long."""
        self._closed = False
        self.worker = ""
        self.commits: int = 0

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
        idle, self._small.idle = self._small.idle, None
        try:
            self._add(hold, kind, key, data, None)
        finally:
            self._small.idle = idle
        if not hold.large:
            self._deferred += 1
        if self._deferred >= MOST_DEFERRED or self._small.bytes > MOST_BYTES:
            self._wake()

    def keep(self, hold: Hold, name: str, data: bytes) -> None:
        """Write contents, with the next record of this hold, which may refer to them. (With another's they would be lost when
        that one is refused.)"""
        if not hold.gone:
            hold.kept, hold.contents = hold.kept or {}, hold.contents or {}
            hold.kept[name] = hold.contents[name] = data

    def unwritten(self, hold: Hold, names: Iterable[str]) -> dict[str, bytes]:
        """What this hold keeps under these names and is not in the store yet, or only just."""
        contents = hold.contents or {}
        return {name: contents[name] for name in names if name in contents}

    def settle(self, hold: Hold, kind: str, data: bytes, ending: End | Wait) -> asyncio.Future[None]:
        """Write the last record of a shift together with the end or the wait it leads to."""
        if isinstance(ending, End):
            ending = ending._replace(seq=hold.seq + 1)
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
        if size > LARGE or hold.large:
            hold.large += 1
            line = self._large
        hold.unsaved += size
        line.bytes += size
        line.entries.append((hold.id, hold.seq, hold.shift, kind, key, data, self._now()))
        line.waiters.append((hold, future, kept, ending, size))
        if line.idle is not None:
            line.wake()

    async def flushed(self, hold: Hold) -> None:
        """Until what this hold has written so far is durable."""
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
            for entry in (*[entry for entry, _ in line.flying], *line.entries)
        )

    async def _landing(self) -> None:
        """Until a commit is over."""
        self._landed = self._landed or self._future()
        await asyncio.shield(self._landed)

    def _wake(self) -> None:
        """What was deferred is now a reason for a commit."""
        self._deferred = 0
        self._small.wake()

    # ── the commits ──────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Commit the small records that gather, until it is cancelled. From then on the writer is closed."""
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
        """Refuse whatever is in the lines, under way, or comes from now on: a shift must not wait for a writer that has ended. What became
        of a commit under way is in the journal."""
        self._closed = True
        for line in (self._small, self._large):
            line.idle = None
            self._abandon([*[waiter for _, waiter in line.flying], *line.waiters])
            line.flying = []
        self._land()

    def _land(self) -> None:
        """Wake those who wait for what they have written."""
        if self._landed is not None:
            self._landed.set_result(None)
            self._landed = None

    async def run_large(self) -> None:
        """Commit large records, and what comes after them, until it is cancelled: those of one task at a time."""
        line = self._large
        try:
            while True:
                if not line.entries:
                    line.idle = self._future()
                    await line.idle
                hold = self._first_large()
                if hold is not None:
                    await self._fly(line, line.take_of(hold, MOST_BYTES))
                elif line.entries:
                    self._wake()
                    await self._landing()
        finally:
            self.close()

    def _first_large(self) -> Hold | None:
        """The first hold in the line for large records that has nothing in the other one, nor on its way from there."""
        small = self._small
        busy = {id(waiter[0]) for waiter in small.waiters} | {id(waiter[0]) for _, waiter in small.flying}
        return next((waiter[0] for waiter in self._large.waiters if id(waiter[0]) not in busy), None)

    async def _fly(self, line: _Line, taken: list[tuple[Entry, _Waiter]]) -> None:
        """One commit, from the line to its end."""
        if not taken:
            return
        line.flying = taken
        batch, waiters = self._batch(line, taken), [waiter for _, waiter in taken]
        try:
            await self._commit(batch, waiters, line)
        except Exception:  # whatever it is, the tasks of other commits go on
            log.exception("a commit of %d records failed; their tasks are dropped here", len(batch.entries))
            self._abandon(waiters)
        line.flying = []
        self._let_go(waiters, large=line is self._large)

    def _batch(self, line: _Line, taken: list[tuple[Entry, _Waiter]]) -> Batch:
        """A commit of these records, with witnesses: of this line, of the other one and of claims, where they wrote the last records of
        holds here; and the last record of each other hold."""
        batch = Batch([entry for entry, _ in taken])
        known, witnesses, mark = batch.known, batch.witnesses, line.mark
        stood_for: set[object] = set()
        if line.witness is not None:
            witnesses.append(line.witness)
        for entry, (hold, _, kept, ending, _) in taken:
            if hold.id not in known:
                known[hold.id] = hold.at
                if hold.covered is not mark:
                    witnesses += self._witness(hold, entry, stood_for)
            hold.at = entry[6]
            if kept is not None:
                batch.contents += [Content(hold.id, name, data) for name, data in kept.items()]
            if ending is not None:
                (batch.ends if isinstance(ending, End) else batch.waits).append(ending)  # type: ignore[arg-type]
                if hold.gate is not None:
                    batch.gates[hold.id] = hold.gate
        return batch

    def _witness(self, hold: Hold, first: Entry, stood_for: set[object]) -> list[Witness]:
        """The witness for a hold whose last record is of another line, of a claim, or of a transaction."""
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

    def _take(self) -> list[tuple[Entry, _Waiter]]:
        """What the next commit holds. Of many tasks that move in step, half, where the database works apart from us: while
        those are being committed the others run, so that handlers and database do not wait for each other by turns."""
        line = self._small
        size = min(len(line.entries), max(1, int(MOST * self._share)))
        if size > FEW and self._store.apart:
            size = min(size, max(FEW, (size + self._last + 1) // 2))
        if line.bytes > (most := MOST_BYTES * self._share):
            total = 0
            for number, waiter in enumerate(line.waiters[:size]):
                total += waiter[4]
                if total > most:
                    size = max(1, number)
                    break
        self._last, self._deferred = size, 0
        return line.take(size)

    async def _commit(self, batch: Batch, waiters: list[_Waiter], line: _Line | None = None) -> None:
        """Save a batch and tell its waiters. Without a line the commit did not demand that line's witness, so it covers no hold."""
        try:
            refused = await self._save(batch)
        except Exception as error:
            await self._one_by_one(batch, waiters, error)
            return
        self.commits += 1
        self._store.news()
        if refused:
            self.lose([waiter[0] for waiter in waiters if waiter[0].id in refused])
        mark = None if line is None else line.committed(batch, refused)
        for hold, future, *_ in waiters:
            hold.claim, hold.covered = None, mark
            if future is not None and not future.done():
                if hold.lost:
                    future.set_exception(Fenced())
                else:
                    future.set_result(None)

    async def _save(self, batch: Batch) -> set[str]:
        """Until the store answers: a commit whose fate is unknown is asked for again, and the store knows its own. However long that
        took, tasks may have been pruned meanwhile, and those are not asked for. One that took too long is asked for in two halves;
        where it is of one task, it gets more time."""
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
                    self._share = max(self._share / 2, SMALLEST_SHARE)
                    if (halves := _halves(batch)) is not None:
                        return gone.union(*[await self._save(half) for half in halves])
                    batch.patience = min(batch.patience * 2, MOST_PATIENCE)
                await self._clock.sleep(pause * self._rng.uniform(0.5, 1))
                pause = min(pause * 2, 1.0)
            else:
                self._share = min(self._share * 2, 1.0)
                return refused | gone if gone else refused

    def _doubt(self) -> None:
        """From now on no witness stands for the holds there are: each is checked by itself once."""
        self._small.mark, self._large.mark = object(), object()

    async def _gone(self, batch: Batch) -> set[str]:
        ids = {entry[0] for entry in batch.entries}
        return ids - {kin.id for kin in await self._store.kin(sorted(ids))}

    async def _one_by_one(self, batch: Batch, waiters: list[_Waiter], error: Exception) -> None:
        """A payload that the database refuses must not hurt the neighbours that came in the same commit."""
        parts = list(batch.split())
        if len(parts) == 1:
            self._take_back(waiters[0][0], parts[0], waiters, error)
            return
        for part in parts:
            await self._commit(part, [waiter for waiter in waiters if waiter[0].id == part.entries[0][0]])

    def _take_back(self, hold: Hold, part: Batch, waiters: list[_Waiter], error: Exception) -> None:
        """The database will not have these records, now or ever. The task is still ours and its journal where it was, so
        that the failure can be written there in their place."""
        told: Exception = error
        if not isinstance(error, Unheard):
            log.error("task %s: its records cannot be saved: %r", hold.id, error)
            told = error if isinstance(error, OnwardError) else OnwardError(f"the record cannot be saved: {error}")
        dropped = self._drop({id(hold)})
        heard = [future for _, future, *_ in waiters + dropped if future is not None and not future.done()]
        for future in heard:
            future.set_exception(told)
        hold.seq, hold.settled = part.entries[0][1] - 1, False
        hold.at = part.known[hold.id]
        if not heard:
            hold.refused, hold.lost = told, True

    def lose(self, holds: Iterable[Hold]) -> None:
        """These holds are gone. What they still have in the line goes nowhere: a record n+2 must never follow a refused n+1."""
        lost = list(holds)
        for hold in lost:
            hold.lost, hold.refused = True, None
        for _, future, *_ in self._drop({id(hold) for hold in lost}):
            _refuse(future)

    def _abandon(self, waiters: list[_Waiter]) -> None:
        """Nobody knows what became of these records. The journal does: whoever claims their tasks next goes on from there."""
        self.lose([waiter[0] for waiter in waiters])
        for _, future, *_ in waiters:
            _refuse(future)

    def _drop(self, holds: set[int]) -> list[_Waiter]:
        """Take what these holds have in the lines out of them."""
        self._deferred = 0
        small, large = self._small.drop(holds), self._large.drop(holds)
        self._let_go(small, large=False)
        self._let_go(large, large=True)
        return small + large

    def _let_go(self, waiters: list[_Waiter], *, large: bool) -> None:
        """These are in no line any more, nor on their way."""
        for hold, _, kept, _, size in waiters:
            hold.unsaved -= size
            hold.large -= large
            if kept is not None and hold.contents is not None:
                for name in kept:
                    if hold.kept is None or name not in hold.kept:
                        hold.contents.pop(name, None)
        self._land()


def _halves(batch: Batch) -> tuple[Batch, Batch] | None:
    """The tasks of a batch in two of half the size; None where there is one task."""
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
        whole.contents += part.contents
        whole.known |= part.known
    return whole
