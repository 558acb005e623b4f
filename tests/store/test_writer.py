"""The journal writer: group commit, and tasks whose record was refused or cannot be saved."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward.core import record as r
from onward.core.clock import SystemClock
from onward.core.control import Fenced
from onward.core.task import State
from onward.errors import DiskFull, OnwardError, StoreUnavailable
from onward.store.port.core import Batch, End, Store, Wait
from onward.store.writer import FEW_RECORDS, MAX_RECORDS, Hold, Writer
from tests.kit import Gate, Through, claim, dense, eventually, join, kinds, new, sql, submit


class Desk:
    """A writer that runs, on a store whose `save` a test may replace."""

    def __init__(self, store: Any) -> None:
        self.batches: list[Batch] = []
        self.store = Through(store, save=self.save)
        self.before: Any = None
        self.writer = Writer(self.store, SystemClock(), lambda: 1.0, random.Random(1))  # type: ignore[arg-type]
        self.writer.worker = "w1"
        self.running = asyncio.gather(self.writer.run(), self.writer.run_large())

    async def save(self, worker: str, batch: Batch) -> set[str]:
        self.batches.append(batch)
        if self.before is not None:
            await self.before(batch)
        return await self.store._store.save(worker, batch)  # type: ignore[no-any-return]

    async def holds(self, count: int) -> list[Hold]:
        await submit(self.store._store, *[new() for _ in range(count)])
        return [Hold(c.id, c.shift, c.shift, at=c.claimed_at) for c in await claim(self.store._store, "w1", count)]

    async def hold(self) -> Hold:
        return (await self.holds(1))[0]


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[Desk]:
    await join(store, "w1")
    desk = Desk(store)
    yield desk
    desk.running.cancel()
    await asyncio.gather(desk.running, return_exceptions=True)


def step(writer: Writer, hold: Hold, key: str = "s") -> asyncio.Future[None]:
    return writer.append(hold, r.STEP_DONE, key, b'{"result":1}')


async def fate(future: asyncio.Future[None]) -> Any:
    """None, or the exception of the future."""
    try:
        return await asyncio.wait_for(future, 60)
    except BaseException as error:
        return error


async def test_a_record_is_there_when_it_is_acknowledged(desk: Desk, store: Store) -> None:
    hold = await desk.hold()
    await step(desk.writer, hold)
    (record,) = await store.journal(hold.id, after=2)
    assert (record.seq, record.shift, record.kind, record.key, record.at) == (3, 2, r.STEP_DONE, "s", 1.0)


async def test_never_acknowledged_before_the_commit(desk: Desk, store: Store) -> None:
    gate = Gate()
    hold = await desk.hold()

    async def before(batch: Batch) -> None:
        await gate()

    desk.before = before
    future = step(desk.writer, hold)
    await gate.reached.wait()
    await asyncio.sleep(0.05)
    assert not future.done()
    assert await store.journal(hold.id, after=2) == []
    gate.opened.set()
    await future
    assert len(await store.journal(hold.id, after=2)) == 1


async def test_records_that_gather_during_a_commit_go_out_together(desk: Desk) -> None:
    gate = Gate()
    holds = await desk.holds(200)

    async def before(batch: Batch) -> None:
        if len(desk.batches) == 1:
            await gate()

    desk.before = before
    first = step(desk.writer, holds[0])
    await gate.reached.wait()
    rest = [step(desk.writer, hold) for hold in holds[1:]]
    gate.opened.set()
    await asyncio.gather(first, *rest)
    sizes = [len(b.entries) for b in desk.batches]
    assert sum(sizes) == 200
    assert len(sizes) == desk.writer.commits <= 6, "a handful of commits for two hundred tasks"


async def test_a_task_pruned_during_an_outage_is_not_written_again(desk: Desk, store: Store) -> None:
    """The answer to a commit is lost. When the store answers again, one of its tasks has ended and was pruned."""
    hold, other = await desk.holds(2)

    async def lost(batch: Batch) -> None:
        if len(desk.batches) == 1:
            await store.save("w1", batch)
            for table, column in (("journal", "task_id"), ("queue", "task_id"), ("tasks", "id")):
                await sql(store, f"DELETE FROM onward_{table} WHERE {column} = '{hold.id}'")
            raise StoreUnavailable("away")

    desk.before = lost
    pruned, fine = await asyncio.gather(fate(step(desk.writer, hold)), fate(step(desk.writer, other)))
    assert isinstance(pruned, Fenced)
    assert fine is None
    assert (await store.journal(hold.id), len(await store.journal(other.id, after=2))) == ([], 1)
    assert await store.health.census() == []


async def test_a_few_go_out_in_one_commit(desk: Desk) -> None:
    gate = Gate()
    holds = await desk.holds(FEW_RECORDS + 1)

    async def before(batch: Batch) -> None:
        if len(desk.batches) == 1:
            await gate()

    desk.before = before
    first = step(desk.writer, holds[0])
    await gate.reached.wait()
    rest = [step(desk.writer, hold) for hold in holds[1:]]
    gate.opened.set()
    await asyncio.gather(first, *rest)
    assert [len(b.entries) for b in desk.batches] == [1, FEW_RECORDS]


async def test_an_idle_writer_adds_no_delay(desk: Desk) -> None:
    hold = await desk.hold()
    for n in range(5):
        await step(desk.writer, hold, f"s{n}")
    assert [len(b.entries) for b in desk.batches] == [1] * 5


async def test_a_mention_goes_with_the_next_commit(desk: Desk, store: Store) -> None:
    hold = await desk.hold()
    desk.writer.mention(hold, r.STEP_STARTED, "s", b"{}")
    await step(desk.writer, hold)
    assert [len(b.entries) for b in desk.batches] == [2]
    assert (await kinds(store, hold.id))[2:] == [r.STEP_STARTED, r.STEP_DONE]


async def test_a_mention_alone_is_written_too(desk: Desk, store: Store) -> None:
    hold = await desk.hold()
    desk.writer.mention(hold, r.PROGRESS, "", b"{}")

    async def written() -> bool:
        return (await kinds(store, hold.id))[2:] == [r.PROGRESS]

    await eventually(written)


async def test_a_commit_has_a_size(desk: Desk, store: Store) -> None:
    gate = Gate()
    holds = await desk.holds(5)

    async def before(batch: Batch) -> None:
        if len(desk.batches) == 1:
            await gate()

    desk.before = before
    futures = [step(desk.writer, holds[0], "first")]
    await gate.reached.wait()
    futures += [step(desk.writer, holds[n % 5], f"s{n}") for n in range(2 * MAX_RECORDS)]
    for hold in holds:
        futures.append(desk.writer.settle(hold, r.COMPLETED, b'{"result":1}', End(hold.id, State.COMPLETED, 1, 0)))
    gate.opened.set()
    await asyncio.gather(*futures)
    sizes = [len(b.entries) for b in desk.batches]
    assert sum(sizes) == 1 + 2 * MAX_RECORDS + 5
    assert max(sizes) <= MAX_RECORDS
    last = {entry[0]: n for n, b in enumerate(desk.batches) for entry in b.entries}
    ends = {end.id: n for n, b in enumerate(desk.batches) for end in b.ends}
    assert ends == last, "an end goes with the last record of its task"
    for hold in holds:
        assert (await store.get(hold.id)).state is State.COMPLETED  # type: ignore[union-attr]
    assert await store.health.census() == []


@pytest.mark.parametrize("ending", ["end", "wait"])
async def test_a_settle(desk: Desk, store: Store, ending: str) -> None:
    hold = await desk.hold()
    desk.writer.mention(hold, r.PROGRESS, "", b"{}")
    outcome = End(hold.id, State.COMPLETED, 1, 0) if ending == "end" else Wait(hold.id, None, "queued", 1)
    await desk.writer.settle(hold, r.COMPLETED if ending == "end" else r.HANDED_BACK, b'{"result":5}', outcome)
    task = await store.get(hold.id)
    assert task is not None
    assert (task.state, task.result) == ((State.COMPLETED, 5) if ending == "end" else (State.PENDING, None))
    assert await store.health.census() == []


async def test_nothing_is_written_after_a_settle(desk: Desk, store: Store) -> None:
    """A step that was left behind (it ignored its cancellation) comes back after its shift has settled. Its record must
    not land behind the end, nor in the room of the next shift."""
    hold = await desk.hold()
    settled = desk.writer.settle(hold, r.FAILED, b'{"error":{}}', End(hold.id, State.FAILED, 1, 0))
    with pytest.raises(Fenced):
        await step(desk.writer, hold, "too late")
    await settled
    with pytest.raises(Fenced):
        await step(desk.writer, hold, "much too late")
    with pytest.raises(Fenced):
        desk.writer.mention(hold, r.PROGRESS, "", b"{}")
    await asyncio.sleep(0.05)
    assert (await kinds(store, hold.id))[2:] == [r.FAILED]
    assert (await store.get(hold.id)).state is State.FAILED  # type: ignore[union-attr]


# ── refused ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_refused_hold_is_fenced_and_its_neighbours_are_not(desk: Desk, store: Store) -> None:
    lost, kept = await desk.holds(2)
    await store.cancel(lost.id)
    refused, fine = step(desk.writer, lost), step(desk.writer, kept)
    assert isinstance(await fate(refused), Fenced)
    assert await fate(fine) is None
    assert lost.lost
    assert not kept.lost
    with pytest.raises(Fenced):
        step(desk.writer, lost)


async def test_later_records_of_a_refused_hold_are_dropped(desk: Desk, store: Store) -> None:
    """A record n+2 must never follow a refused n+1."""
    gate = Gate()
    lost, kept = await desk.holds(2)
    await store.cancel(lost.id)

    async def before(batch: Batch) -> None:
        if len(desk.batches) == 1:
            await gate()

    desk.before = before
    futures = [step(desk.writer, lost, "n+1")]
    await gate.reached.wait()
    futures += [step(desk.writer, lost, f"n+{n}") for n in (2, 3, 4)]
    futures.append(desk.writer.settle(lost, r.COMPLETED, b"{}", End(lost.id, State.COMPLETED, 1, 0)))
    fine = step(desk.writer, kept)
    gate.opened.set()
    assert [type(await fate(f)) for f in futures] == [Fenced] * 5
    assert await fate(fine) is None
    assert [e[0] for b in desk.batches[1:] for e in b.entries] == [kept.id]
    assert await dense(store, lost.id)
    assert (await store.get(lost.id)).state is State.CANCELLED  # type: ignore[union-attr]


async def test_a_hold_lost_from_outside(desk: Desk, store: Store) -> None:
    """The heartbeat says that the worker no longer holds a task: the writer drops its waiting records."""
    lost, kept = await desk.holds(2)
    futures = [step(desk.writer, lost), step(desk.writer, kept)]
    desk.writer.lose([lost])
    assert isinstance(await fate(futures[0]), Fenced)
    assert await fate(futures[1]) is None
    assert len(await store.journal(lost.id)) == 2


# ── refused payloads, and outages ────────────────────────────────────────────────────────────────────────────────────


async def test_a_poisoned_payload_hurts_its_own_task_alone(desk: Desk, store: Store) -> None:
    holds = await desk.holds(5)
    bad = holds[2]

    async def before(batch: Batch) -> None:
        if any(entry[0] == bad.id and entry[4] == "poison" for entry in batch.entries):
            raise ValueError("the database does not like this")

    desk.before = before
    futures = {hold.id: step(desk.writer, hold, "poison" if hold is bad else "fine") for hold in holds}
    outcomes = {task_id: await fate(future) for task_id, future in futures.items()}
    error = outcomes.pop(bad.id)
    assert isinstance(error, OnwardError)
    assert "does not like this" in str(error)
    assert set(outcomes.values()) == {None}
    for hold in holds:
        assert len(await store.journal(hold.id)) == (2 if hold is bad else 3)


async def test_nothing_follows_a_record_that_could_not_be_saved(desk: Desk, store: Store) -> None:
    """Records that gathered meanwhile have higher numbers: written, they would leave a gap in the journal."""
    gate = Gate()
    bad = await desk.hold()

    async def before(batch: Batch) -> None:
        if any(entry[4] == "poison" for entry in batch.entries):
            await gate()
            raise ValueError("no")

    desk.before = before
    first = step(desk.writer, bad, "poison")
    await gate.reached.wait()
    second = step(desk.writer, bad, "fine in itself")
    gate.opened.set()
    assert isinstance(await fate(first), OnwardError)
    assert await fate(second) is not None
    await asyncio.sleep(0.05)
    assert await dense(store, bad.id)
    assert await store.health.census() == []


@pytest.mark.parametrize("outage", [StoreUnavailable("away"), DiskFull("here")])
async def test_an_outage_is_waited_out(desk: Desk, store: Store, outage: StoreUnavailable) -> None:
    hold = await desk.hold()
    left = 3

    async def before(batch: Batch) -> None:
        nonlocal left
        if left:
            left -= 1
            raise outage

    desk.before = before
    await asyncio.wait_for(step(desk.writer, hold), 60)
    assert len(desk.batches) == 4
    assert len(await store.journal(hold.id)) == 3


async def test_a_commit_whose_answer_was_lost_is_sent_again_and_found(desk: Desk, store: Store) -> None:
    hold = await desk.hold()
    lost = 1
    plain = desk.save

    async def save(worker: str, batch: Batch) -> set[str]:
        nonlocal lost
        answer = await plain(worker, batch)
        if lost:
            lost -= 1
            raise StoreUnavailable("the answer was lost")
        return answer

    desk.store.save = save
    await asyncio.wait_for(step(desk.writer, hold, "a"), 60)
    await desk.writer.settle(hold, r.COMPLETED, b'{"result":1}', End(hold.id, State.COMPLETED, 1, 0))
    assert (await kinds(store, hold.id))[2:] == [r.STEP_DONE, r.COMPLETED]


async def test_during_an_outage_nothing_overtakes(desk: Desk, store: Store) -> None:
    hold = await desk.hold()
    away = True

    async def before(batch: Batch) -> None:
        if away:
            raise StoreUnavailable("away")

    desk.before = before
    futures = [step(desk.writer, hold, f"s{n}") for n in range(3)]
    await eventually(lambda: _later(len(desk.batches) > 1))
    futures += [step(desk.writer, hold, f"s{n}") for n in range(3, 6)]
    assert not any(f.done() for f in futures)
    away = False
    await asyncio.wait_for(asyncio.gather(*futures), 60)
    assert [x.key for x in await store.journal(hold.id, after=2)] == [f"s{n}" for n in range(6)]


async def _later(value: bool) -> bool:
    return value


async def test_an_unexpected_answer_drops_its_tasks_and_the_writer_goes_on(desk: Desk, store: Store) -> None:
    first, second = await desk.holds(2)
    desk.store.save = lambda *_: _strange()  # type: ignore[method-assign]
    assert isinstance(await fate(step(desk.writer, first)), Fenced)
    assert first.lost
    desk.store.save = desk.save  # type: ignore[method-assign]
    assert await fate(step(desk.writer, second)) is None
    assert await kinds(store, second.id) == [r.SUBMITTED, r.SHIFT, r.STEP_DONE]


async def _strange() -> int:
    return 7


# ── records that may wait ────────────────────────────────────────────────────────────────────────────────────────────


def defer(writer: Writer, hold: Hold, key: str = "read") -> None:
    writer.defer(hold, r.STEP_DONE, key, b'{"result":1}')


async def test_a_deferred_record_is_no_reason_for_a_commit_and_rides_with_the_next(desk: Desk, store: Store) -> None:
    mine, other = await desk.holds(2)
    for _ in range(3):
        defer(desk.writer, mine)
    await asyncio.sleep(0.05)
    assert (desk.batches, len(await store.journal(mine.id))) == ([], 2)
    await step(desk.writer, other)
    assert [len(batch.entries) for batch in desk.batches] == [4]
    assert await dense(store, mine.id)
    assert len(await store.journal(mine.id)) == 5


async def test_deferred_records_come_before_later_records(desk: Desk, store: Store) -> None:
    hold = await desk.hold()
    defer(desk.writer, hold, "a")
    await step(desk.writer, hold, "b")
    defer(desk.writer, hold, "c")
    await desk.writer.flushed(hold)
    assert [record.key for record in await store.journal(hold.id, after=2)] == ["a", "b", "c"]
    defer(desk.writer, hold, "d")
    await desk.writer.settle(hold, r.COMPLETED, b'{"result":1}', End(hold.id, State.COMPLETED, 1, 0))
    assert [record.key for record in await store.journal(hold.id, after=5)] == ["d", ""]
    assert await dense(store, hold.id)


async def test_deferred_while_a_commit_is_under_way(desk: Desk, store: Store) -> None:
    gate, hold = Gate(), await desk.hold()

    async def before(batch: Batch) -> None:
        if len(desk.batches) == 1:
            await gate()

    desk.before = before
    first = step(desk.writer, hold, "a")
    await gate.reached.wait()
    defer(desk.writer, hold, "b")
    gate.opened.set()
    await first
    await asyncio.sleep(0.05)
    assert len(desk.batches) == 1, "it is no reason for a commit then either"
    await desk.writer.flushed(hold)
    assert [record.key for record in await store.journal(hold.id, after=2)] == ["a", "b"]


async def test_deferred_records_of_a_lost_hold_go_nowhere(desk: Desk, store: Store) -> None:
    lost, kept = await desk.holds(2)
    defer(desk.writer, lost)
    defer(desk.writer, kept)
    desk.writer.lose([lost])
    with pytest.raises(Fenced):
        defer(desk.writer, lost)
    with pytest.raises(Fenced):
        await desk.writer.flushed(lost)
    await step(desk.writer, kept)
    assert len(await store.journal(lost.id)) == 2
    assert len(await store.journal(kept.id)) == 4


async def test_a_deferred_record_that_another_shift_overtook_fences_the_next(desk: Desk, store: Store) -> None:
    hold, other = await desk.holds(2)
    await store.cancel(hold.id)
    defer(desk.writer, hold)
    await step(desk.writer, other)  # its commit takes the deferred one along, which is refused
    with pytest.raises(Fenced):
        step(desk.writer, hold)


async def test_the_error_of_a_deferred_record_is_raised_at_the_next(desk: Desk, store: Store) -> None:
    hold, other = await desk.holds(2)

    async def before(batch: Batch) -> None:
        if any(line[4] == "poison" for line in batch.entries):
            raise ValueError("not this one")

    desk.before = before
    defer(desk.writer, hold, "poison")
    await step(desk.writer, other)
    with pytest.raises(OnwardError, match="the record cannot be saved: not this one"):
        step(desk.writer, hold)
    await step(desk.writer, hold, "told instead")
    assert [record.key for record in await store.journal(hold.id, after=2)] == ["told instead"]


async def test_a_kept_content_is_there_before_its_commit(desk: Desk, store: Store) -> None:
    hold, other = await desk.holds(2)
    gate = Gate()

    async def before(batch: Batch) -> None:
        await gate()

    desk.before = before
    desk.writer.keep(hold, "name", b"text")
    assert desk.writer.unwritten(hold, ["name", "no"]) == {"name": b"text"}
    assert desk.writer.unwritten(other, ["name"]) == {}
    written = step(desk.writer, hold)
    await gate.reached.wait()
    assert desk.writer.unwritten(hold, ["name"]) == {"name": b"text"}, "it is on its way"
    gate.opened.set()
    await written
    assert await store.contents(hold.id, ["name"]) == {"name": b"text"}


async def test_a_kept_content_is_not_lost_with_the_refused_record_of_another_task(desk: Desk, store: Store) -> None:
    """Its own next record may come late, for example after a model call."""
    lost, kept = await desk.holds(2)
    await store.cancel(lost.id)
    desk.writer.keep(kept, "name", b"text")
    assert isinstance(await fate(step(desk.writer, lost)), Fenced)
    assert await fate(step(desk.writer, kept)) is None
    assert await store.contents(kept.id, ["name"]) == {"name": b"text"}


async def test_a_kept_content_is_not_lost_with_a_commit_that_became_empty(desk: Desk, store: Store) -> None:
    lost, kept = await desk.holds(2)
    await asyncio.sleep(0)  # the writer is idle
    desk.writer.keep(kept, "name", b"text")
    refused = step(desk.writer, lost)
    desk.writer.lose([lost])
    assert isinstance(await fate(refused), Fenced)
    await asyncio.sleep(0.05)
    assert await fate(step(desk.writer, kept)) is None
    assert await store.contents(kept.id, ["name"]) == {"name": b"text"}
    desk.writer.keep(lost, "other", b"text")
    assert desk.writer.unwritten(lost, ["other"]) == {}, "there will be no record that it could go with"


async def test_a_wait_for_a_lost_hold_raises(desk: Desk) -> None:
    """The hold is lost before its commit began, and there is nothing else to commit."""
    hold = await desk.hold()
    await asyncio.sleep(0.01)  # the writer is idle
    defer(desk.writer, hold)
    flushed = asyncio.ensure_future(desk.writer.flushed(hold))
    asyncio.get_running_loop().call_soon(desk.writer.lose, [hold])
    assert isinstance(await fate(flushed), Fenced)
