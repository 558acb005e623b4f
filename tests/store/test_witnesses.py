"""Witnesses: one record stands for all commits before it, and reveals any loss of commits.

A writer with several holds claims, writes small and large records and commits transactions, in a random order. Then the database
forgets the last commits, as a restore does, and the holds go on. Each of them that lost a record is refused, each other one
goes on, and no journal has a hole.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from onward.core import record as r
from onward.core.clock import SystemClock
from onward.core.control import Fenced
from onward.store import writer as writers
from onward.store.port.core import Batch, Store
from onward.store.shared.predecessor import WitnessLost
from onward.store.writer import Hold, Writer
from tests.kit import Through, begun, claim, dense, entry, join, new, sql, submit

SMALL, LARGE = b'{"result":1}', b'"' + b"x" * 2000 + b'"'


class Trial:
    """One random history. `commits` has the records of each confirmed commit, in order."""

    def __init__(self, store: Any, seed: int, *, transaction_uncovers: bool = True, one_claim: bool = False) -> None:
        self.store, self.rng = store, random.Random(seed)
        self.commits: list[set[tuple[str, int]]] = []
        self.holds: list[Hold] = []
        self.now, self.lost_seen = 1.0, 0
        self._transaction_uncovers, self._one_claim = transaction_uncovers, one_claim
        self._lock, self._claims = asyncio.Lock(), 0
        through: Any = Through(store, save=self._save)
        self.writer = Writer(through, SystemClock(), self._tick, random.Random(seed))
        self.writer.worker = "w1"

    def _tick(self) -> float:
        self.now += 1
        return self.now

    async def _save(self, worker: str, batch: Batch) -> set[str]:
        async with self._lock:  # so that the order of commits is known here
            try:
                refused: set[str] = await self.store.save(worker, batch)
            except WitnessLost:
                self.lost_seen += 1
                raise
            self.commits.append({(e[0], e[1]) for e in batch.entries if e[0] not in refused})
            return refused

    async def claim(self) -> None:
        count = self.rng.randint(1, 3)
        async with self._lock:
            await submit(self.store, *[new() for _ in range(count)])
            claimed = await claim(self.store, "w1", count)
            self.commits.append({(task.id, task.shift) for task in claimed})
        self._claims += not self._one_claim
        for task in claimed:
            key = (self._claims, 0.0 if self._one_claim else task.claimed_at)
            self.holds.append(Hold(task.id, task.shift, task.shift, at=task.claimed_at, claim=key))

    async def write(self, hold: Hold, *, small: bool = False) -> bool:
        """Writes a record; returns whether it was written."""
        data = LARGE if not small and self.rng.random() < 0.3 else SMALL
        try:
            await asyncio.wait_for(self.writer.append(hold, r.STEP_DONE, "s", data), 60)
        except Fenced:
            return False
        return True

    async def transact(self, hold: Hold) -> bool:
        record = (hold.id, hold.seq + 1, hold.shift, r.STEP_DONE, "t", SMALL, self._tick())

        async def body(connection: Any) -> Any:
            return record

        async with self._lock:
            if not await self.store.transact(body, 30, hold.at):
                return False
            self.commits.append({(hold.id, record[1])})
        hold.seq, hold.at = record[1], record[6]
        if self._transaction_uncovers:
            hold.claim = hold.covered = None
        return True

    async def move(self) -> None:
        kind = self.rng.random()
        if kind < 0.2 or not self.holds:
            await self.claim()
        elif kind < 0.3:
            await self.transact(self.rng.choice(self.holds))
        else:
            some = self.rng.sample(self.holds, self.rng.randint(1, min(4, len(self.holds))))
            await asyncio.gather(*[self.write(hold) for hold in some])

    async def forget(self) -> set[str]:
        """Deletes the last commits; returns the tasks that lost a record."""
        lost = set[tuple[str, int]]().union(
            *self.commits[self.rng.randint(len(self.commits) // 2, len(self.commits)) :]
        )
        for task_id, seq in lost:
            await sql(self.store, f"DELETE FROM onward_journal WHERE task_id = '{task_id}' AND seq = {seq}")
        return {task_id for task_id, _ in lost}

    async def run(self) -> list[str]:
        """Runs the history and returns its faults."""
        await join(self.store, "w1")
        async with running(self.writer):
            for _ in range(self.rng.randint(4, 14)):
                await self.move()
            lost = await self.forget()
            wrong = [f"{task.id} goes on behind a loss" for task in await self._go_on() if task.id in lost]
            wrong += [
                f"{task.id} has lost nothing and was dropped"
                for task in self.holds
                if task.lost and task.id not in lost
            ]
        return wrong + [f"{task.id} has a hole" for task in self.holds if not await dense(self.store, task.id)]

    async def _go_on(self) -> list[Hold]:
        """Goes on after the loss; returns the holds that wrote a record."""
        if self.rng.random() < 0.5:
            await self.claim()
        left = self.rng.sample(self.holds, len(self.holds))
        written: list[Hold] = []
        while left:
            some = [left.pop() for _ in range(min(len(left), self.rng.randint(1, 4)))]
            act = self.transact if self.rng.random() < 0.1 else self.write
            some = [hold for hold in some if not hold.lost]
            done = await asyncio.gather(*[act(hold) for hold in some])
            written += [hold for hold, was in zip(some, done, strict=True) if was]
        return written


@contextlib.asynccontextmanager
async def running(writer: Writer) -> Any:
    tasks = asyncio.gather(writer.run(), writer.run_large())
    try:
        yield
    finally:
        tasks.cancel()
        await asyncio.gather(tasks, return_exceptions=True)


async def trials(store: Store, seeds: range, **planted: Any) -> list[str]:
    faults: list[str] = []
    for seed in seeds:
        faults += [f"seed {seed}: {fault}" for fault in await Trial(store, seed, **planted).run()]
        if faults:
            break
    return faults


@pytest.fixture(autouse=True)
def small_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "LARGE_BYTES", 1000)


@pytest.mark.slow
async def test_a_witness_reveals_every_loss(store: Store, prove: bool) -> None:
    assert await trials(store, range(2_000 if prove else 25)) == []


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], dict[str, Any]]] = {
    "holds stay covered after a loss": lambda patch: patch.setattr(Writer, "_doubt", lambda self: None) or {},
    "a commit does not demand the witness of its line": lambda patch: (
        patch.setattr(Writer, "_batch", _forgets_its_line) or {}
    ),
    "a transaction leaves its hold covered": lambda patch: {"transaction_uncovers": False},
    "all claims are one": lambda patch: {"one_claim": True},
}
_batch = Writer._batch


def _forgets_its_line(self: Writer, line: Any, taken: Any) -> Batch:
    covered = any(waiter[0].covered is line.mark for _, waiter in taken)
    batch = _batch(self, line, taken)
    if not covered and line.witness in batch.witnesses:
        batch.witnesses.remove(line.witness)
    return batch


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
async def test_a_planted_fault_is_found(
    store: Store, plant: Callable[[pytest.MonkeyPatch], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = plant(monkeypatch)
    assert await trials(store, range(600), **planted) != []


async def test_a_witness_that_is_not_there_refuses_the_whole_batch(store: Store) -> None:
    held = await begun(store)
    batch = Batch(
        [entry(held, 1)], witnesses=[(held.id, held.shift, held.shift, held.claimed_at), (held.id, 99, 2, None)]
    )
    with pytest.raises(WitnessLost):
        await store.save("w1", batch)
    assert len(await store.journal(held.id)) == 2
    batch.witnesses.pop()
    assert await store.save("w1", batch) == set()
    assert await store.save("w1", batch) == set(), "it is there already, as ours"


async def test_a_pruned_witness_costs_one_more_statement_and_no_task(store: Store) -> None:
    trial = Trial(store, 1)
    await join(store, "w1")
    async with running(trial.writer):
        await trial.claim()
        await trial.claim()
        first, other = trial.holds[0], trial.holds[-1]
        assert await trial.write(other, small=True)
        assert await trial.write(first, small=True)
        await sql(store, f"DELETE FROM onward_journal WHERE task_id = '{first.id}'")  # as a prune does
        assert await trial.write(other, small=True)
        assert await trial.write(other, small=True)
        assert trial.lost_seen == 1


async def test_the_steps_of_tasks_under_way_name_one_witness(store: Store) -> None:
    """The cost of the check does not grow with the number of tasks in a commit."""
    seen: list[Batch] = []
    trial = Trial(store, 1)
    save = trial._save
    trial.writer._store.save = lambda worker, batch: seen.append(batch) or save(worker, batch)  # type: ignore[method-assign, func-returns-value]
    await join(store, "w1")
    async with running(trial.writer):
        await submit(store, *[new() for _ in range(100)])
        claimed = await claim(store, "w1", 100)
        holds = [Hold(c.id, c.shift, c.shift, at=c.claimed_at, claim=(1, c.claimed_at)) for c in claimed]
        for _ in range(5):
            await asyncio.gather(*[trial.writer.append(hold, r.STEP_DONE, "s", SMALL) for hold in holds])
    assert max(len(batch.witnesses) for batch in seen) <= 2
    assert [len(batch.witnesses) for batch in seen][-1] == 1


async def test_as_many_witnesses_as_a_commit_can_have(store: Store) -> None:
    """After a loss each hold is checked by itself, in commits of full size."""
    trial = Trial(store, 1)
    await join(store, "w1")
    async with running(trial.writer):
        await submit(store, *[new() for _ in range(writers.MAX_RECORDS)])
        claimed = await claim(store, "w1", writers.MAX_RECORDS)
        holds = [Hold(c.id, c.shift, c.shift, at=c.claimed_at) for c in claimed]
        for _ in range(2):
            await asyncio.gather(*[trial.writer.append(hold, r.STEP_DONE, "s", SMALL) for hold in holds])
            trial.writer._doubt()
    assert not any(hold.lost for hold in holds)
