"""A worker among others: cut off, taken for dead, crashed, poisoned; and the work shared between several."""

from __future__ import annotations

import asyncio
import json
import operator
from typing import Any

import pytest

from onward import Onward, Retry, State
from onward.core import record as r
from onward.errors import StoreUnavailable
from onward.store.port.core import SUSPECT_AFTER, Batch
from tests.kit import (
    HandClock,
    Lab,
    Through,
    calm,
    claim,
    crashes,
    dense,
    entry,
    join,
    kinds,
    row,
    sql,
    value,
)

# ── taken for dead ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_that_was_declared_dead_drops_its_work_and_starts_anew(app: Onward) -> None:
    began, left = asyncio.Event(), asyncio.Event()
    rounds: list[int] = []

    @app.task
    async def work(ctx: Any) -> Any:
        rounds.append(1)
        began.set()
        try:
            if len(rounds) == 1:
                await asyncio.sleep(30)
        finally:
            left.set()
        return len(rounds)

    async with app.worker() as worker:
        handle = await app.submit(work)
        await began.wait()
        name = worker.id
        await app.store.workers.rescue([name])
        await asyncio.wait_for(left.wait(), 60)
        assert await handle.result(timeout=60) == 2
        assert worker.id not in {name, ""}
        assert [w.id for w in await app.store.workers.list()] == [worker.id]
    assert (await kinds(app.store, handle.id)).count(r.SHIFT) == 2


async def test_the_tasks_of_a_worker_whose_lease_ended_are_freed_by_another(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> str:
        return str(await ctx.step(lambda: "done", name="s"))

    await lab.store.workers.join(row("ghost", names=("work",)), 10)
    task_id = await lab.submit(work)
    await lab.store.claim("ghost", "default", ["work"], 1)
    await lab.start()
    start = lab.clock.time
    assert (await lab.ended(task_id)).result == "done"
    assert 10 <= lab.clock.time - start < 25, "after its lease and not before"
    assert [w.id for w in await lab.store.workers.list()] == [lab.worker.id]


async def test_a_worker_cut_off_from_its_store_starts_nothing_new(clock: HandClock) -> None:
    """The worker fences itself by its own clock before others may take over."""
    lab = Lab(clock)
    away = False
    plain = lab.store.workers.heartbeat
    ran: list[float] = []

    async def beat(*args: Any) -> Any:
        if away:
            raise StoreUnavailable("away")
        return await plain(*args)

    lab.app._join(Through(lab.store, **{"workers.heartbeat": beat}))  # type: ignore[arg-type]

    @lab.app.task
    async def work(ctx: Any) -> int:
        for n in range(5):
            await ctx.step(take_four_seconds, n)
        return len(ran)

    async def take_four_seconds(n: int) -> None:
        ran.append(clock.time)
        await clock.sleep(4)

    async with lab.app:
        await lab.start()
        task_id = await lab.submit(work)
        await clock.until(clock.sleep(1))
        away, cut = True, clock.time
        await clock.until(clock.sleep(30))
        lease = lab.app.settings.lease_s
        assert len(ran) < 5
        assert max(ran) <= cut + lease, "no step begins after the lease has ended"
        away = False
        assert (await lab.ended(task_id)).result == 5
        await lab.stop()


async def test_a_worker_cut_off_from_its_store_tries_no_step_again(clock: HandClock) -> None:
    """An attempt counts like a step: its effect must not happen after others may have taken over."""
    lab = Lab(clock)
    away = False
    plain = lab.store.workers.heartbeat
    tried: list[float] = []

    async def beat(*args: Any) -> Any:
        if away:
            raise StoreUnavailable("away")
        return await plain(*args)

    lab.app._join(Through(lab.store, **{"workers.heartbeat": beat}))  # type: ignore[arg-type]

    @lab.app.task
    async def work(ctx: Any) -> int:
        return int(await ctx.step(flaky, retry=Retry(attempts=100, first=0.8, factor=1, jitter=0)))

    async def flaky() -> int:
        tried.append(clock.time)
        if away or len(tried) < 3:
            raise ConnectionError
        return 1

    async with lab.app:
        await lab.start()
        task_id = await lab.submit(work)
        await clock.until(clock.sleep(1))
        away, cut = True, clock.time
        await clock.until(clock.sleep(30))
        assert max(tried) <= cut + lab.app.settings.lease_s
        away = False
        assert (await lab.ended(task_id)).result == 1
        await lab.stop()


async def test_stop_hands_back_between_two_attempts_of_a_step(lab: Lab) -> None:
    tried: list[float] = []

    @lab.app.task
    async def work(ctx: Any) -> int:
        return int(await ctx.step(flaky, retry=Retry(attempts=50, first=0.5, factor=1, jitter=0)))

    async def flaky() -> int:
        tried.append(lab.clock.time)
        if len(tried) < 6:
            raise ConnectionError
        return len(tried)

    await lab.start()
    task_id = await lab.submit(work)
    await lab.clock.until(lab.clock.sleep(0.7))
    worker, _ = lab.workers.pop()
    start = lab.clock.time
    await lab.clock.until(worker.stop(60))
    assert lab.clock.time - start < 2, "it does not wait for the step to succeed"
    assert (await lab.app.get(task_id)).state is State.PENDING
    await lab.start()
    task = await lab.ended(task_id)
    assert (task.result, task.attempt) == (6, 1)


async def test_tasks_of_a_claim_whose_answer_was_lost_are_given_back(clock: HandClock) -> None:
    lab = Lab(clock)
    lose = 1
    plain = lab.store.claim

    async def claim(*args: Any, **options: Any) -> Any:
        nonlocal lose
        tasks = await plain(*args, **options)
        if tasks and lose:
            lose -= 1
            raise StoreUnavailable("the answer was lost")
        return tasks

    lab.app._join(Through(lab.store, claim=claim))  # type: ignore[arg-type]

    @lab.app.task
    async def work(ctx: Any) -> int:
        return int(ctx.attempt)

    async with lab.app:
        await lab.start()
        task = await lab.run(work)
        assert (task.state, task.result) == (State.COMPLETED, 1)
        assert await lab.kinds(task.task_id) == [r.SUBMITTED, r.SHIFT, r.SHIFT, r.COMPLETED]
        await lab.stop()


@pytest.mark.parametrize(
    "verb", ["claim", "save", "wake", "journal", "workers.heartbeat", "workers.rescue", "workers.list", "get"]
)
async def test_an_outage_of_the_store_is_no_failure_of_a_task(clock: HandClock, verb: str) -> None:
    """Every verb fails now and then: the work goes on, no attempt is burned and no step is lost or done twice."""
    lab = Lab(clock)
    real = lab.store
    plain, calls = operator.attrgetter(verb)(real), 0
    ran: list[int] = []

    async def flaky(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 2:
            raise StoreUnavailable("away for a moment")
        return await plain(*args, **options)

    lab.app._join(Through(lab.store, **{verb: flaky}))  # type: ignore[arg-type]

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> int:
        for n in range(6):
            await ctx.step(append_number, n)
            if n % 2:
                await ctx.sleep(2)
        return int(ctx.attempt)

    async def append_number(n: int) -> None:
        ran.append(n)

    async def result(task_id: str) -> Any:
        while True:
            try:
                return await lab.app.service.result(task_id)
            except StoreUnavailable:
                await clock.sleep(0.1)

    async with lab.app:
        await lab.start()
        task_id = await lab.submit(work)
        assert await clock.until(result(task_id)) == 1
        assert ran == [0, 1, 2, 3, 4, 5]
        assert await dense(real, task_id)
        assert calls > 1 or verb in {"workers.rescue", "workers.list"}
        await lab.stop()


@pytest.mark.parametrize("verb", ["claim", "save", "workers.heartbeat"])
async def test_an_answer_that_is_lost_is_found_again(clock: HandClock, verb: str) -> None:
    """The store carried out the call, and its answer was lost."""
    lab = Lab(clock)
    plain, calls, ran = operator.attrgetter(verb)(lab.store), 0, []  # type: ignore[var-annotated]

    async def lossy(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        answer = await plain(*args, **options)
        if calls % 2 == 0:
            raise StoreUnavailable("the answer was lost")
        return answer

    lab.app._join(Through(lab.store, **{verb: lossy}))  # type: ignore[arg-type]

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> int:
        for n in range(5):
            await ctx.step(append_number, n)
        await ctx.sleep(3)
        return int(ctx.attempt)

    async def append_number(n: int) -> None:
        ran.append(n)

    async with lab.app:
        await lab.start()
        task = await lab.run(work)
        assert (task.state, task.result) == (State.COMPLETED, 1)
        assert ran == [0, 1, 2, 3, 4]
        assert await dense(lab.store, task.task_id)
        assert await lab.store.health.census() == []
        await lab.stop()


# ── crashes and poison ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_crashed_task_goes_on_from_its_last_record(lab: Lab) -> None:
    ran: list[str] = []
    hang = asyncio.Event()

    @lab.app.task
    async def deploy(ctx: Any) -> list[Any]:
        results = [await ctx.step(piece, n, name="piece") for n in range(10)]
        return [ctx.attempt, results]

    async def piece(n: int) -> int:
        ran.append(f"{n}")
        if n == 7 and ran.count("7") == 1:
            await hang.wait()
        return n

    await lab.start()
    task_id = await lab.submit(deploy)
    while "7" not in ran:
        await calm()
    await lab.crash()
    await lab.start()
    assert (await lab.ended(task_id)).result == [1, list(range(10))]
    assert ran == [*"01234567", *"789"], "and never from the beginning"


async def test_poison_is_quarantined_and_a_person_can_free_it(lab: Lab) -> None:
    """The task ends its worker each time. Other tasks are not blamed: a suspect runs alone."""
    cured = False
    hang = asyncio.Event()
    began: list[str] = []

    @lab.app.task
    async def poison(ctx: Any) -> str:
        began.append("poison")
        if not cured:
            await hang.wait()
        return "cured"

    @lab.app.task
    async def good(ctx: Any, n: int) -> int:
        return n

    bad = await lab.submit(poison)
    for n in range(SUSPECT_AFTER + 1):
        await lab.start()
        while len(began) <= n:
            lab.clock.jump(0.1)
            await calm()
        if n == SUSPECT_AFTER:
            assert lab.worker.running == 1
            innocent = await lab.submit(good, 1)
            lab.clock.jump(5)
            await calm()
            assert (await lab.app.get(innocent)).state is State.PENDING, "a suspect runs alone"
        await lab.crash()
    await lab.start()
    task = await lab.settled(bad)
    assert (task.state, task.reason, len(began)) == (State.WAITING, "quarantined", SUSPECT_AFTER + 1)
    assert (await lab.ended(innocent)).result == 1
    last = (await lab.store.journal(bad))[-1]
    assert (last.kind, value(last)["reason"]) == (
        r.QUARANTINED,
        "it ended its worker 4 times in a row, the last time alone",
    )
    assert await lab.store.health.census() == []
    cured = True
    await lab.app.resume(bad)
    assert (await lab.ended(bad)).result == "cured"


async def test_a_busy_worker_makes_room_for_a_suspect(lab: Lab) -> None:
    """The worker's slots are never all free, and yet the suspect gets its turn, alone."""
    running: set[str] = set()
    company: list[set[str]] = []

    @lab.app.task
    async def busy(ctx: Any, n: int) -> int:
        running.add(f"busy {n}")
        await lab.clock.sleep(3 + n % 2)
        running.discard(f"busy {n}")
        return n

    @lab.app.task
    async def suspect(ctx: Any) -> str:
        company.append(set(running))
        await lab.clock.sleep(2)
        company.append(set(running))
        return "innocent after all"

    await lab.start(slots=2)
    await lab.app.submit_many(busy, list(range(60)))
    await lab.clock.until(lab.clock.sleep(1))
    accused = await lab.submit(suspect, delay=0)
    await sql(lab.store, f"UPDATE onward_queue SET crashes = {SUSPECT_AFTER} WHERE task_id = '{accused}'")
    start = lab.clock.time
    assert (await lab.ended(accused)).result == "innocent after all"
    assert lab.clock.time - start < 60
    assert company == [set(), set()]
    assert running or (await lab.app.list(state="pending"))[0], "there was work all the time"


async def test_a_task_that_gets_on_is_never_quarantined(lab: Lab) -> None:
    """Its worker dies in each step, but never in the same one for long."""
    hang = asyncio.Event()
    ran: list[int] = []

    @lab.app.task
    async def unlucky(ctx: Any) -> int:
        for n in range(8):
            await ctx.step(piece, n, name="piece")
        return int(ctx.attempt)

    async def piece(n: int) -> int:
        ran.append(n)
        if ran.count(n) == 1:
            await hang.wait()
        return n

    task_id = await lab.submit(unlucky)
    for n in range(8):
        await lab.start()
        while n not in ran:
            lab.clock.jump(0.05)
            await calm()
        lab.clock.jump(0.5)  # long enough to be announced
        await calm()
        await lab.crash()
    await lab.start()
    assert (await lab.ended(task_id)).result == 1


async def test_a_task_without_a_handler_here_is_left_alone(lab: Lab) -> None:
    @lab.app.task
    async def known(ctx: Any) -> int:
        return 1

    await lab.start()
    (foreign,) = await lab.app.service.submit([_request("foreign")], unchecked=True)
    assert (await lab.run(known)).result == 1
    task = await lab.app.get(foreign)
    assert (task.state, task.attempt) == (State.PENDING, 1)
    assert await lab.kinds(foreign) == [r.SUBMITTED]


def _request(name: str) -> Any:
    from onward.service.submission import SubmitRequest

    return SubmitRequest(name)


@pytest.mark.parametrize("refused", [("poison",), (b'{"result":"poison"}',)], ids=["a step", "the result"])
async def test_a_record_that_cannot_be_saved_fails_its_task_and_no_other(clock: HandClock, refused: tuple[Any]) -> None:
    """The database refuses the payload for good: the task comes to an end, and says why."""
    lab = Lab(clock)
    plain = lab.store.save

    async def save(worker: str, batch: Any) -> Any:
        if any(where in (entry[4], entry[5]) for entry in batch.entries for where in refused):
            raise ValueError("no such thing in this database")
        return await plain(worker, batch)

    lab.app._join(Through(lab.store, save=save))  # type: ignore[arg-type]
    ran: list[str] = []

    @lab.app.task(retry=2)
    async def work(ctx: Any, name: str) -> str:
        await ctx.step(lambda: ran.append(name), name=name)
        return name

    async with lab.app:
        await lab.start()
        bad, good = await lab.submit(work, "poison"), await lab.submit(work, "fine")
        assert (await lab.ended(good)).result == "fine"
        task = await lab.ended(bad)
        assert task.state is State.FAILED
        assert task.error is not None
        assert "no such thing in this database" in task.error["message"]
        assert ran.count("poison") == (2 if refused == ("poison",) else 1)  # as often as its policy says
        await lab.stop()


async def test_two_workers_in_one_process_share_the_work(app: Onward) -> None:
    seen: set[str] = set()

    @app.task
    async def work(ctx: Any, n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    async with app.worker(slots=2) as first, app.worker(slots=2) as second:
        handles = await app.submit_many(work, list(range(40)))
        assert [await h.result(timeout=60) for h in handles] == list(range(40))
        assert first.id != second.id
    marks = await sql(app.store, "SELECT data FROM onward_journal WHERE kind = 'shift.started'")
    seen = {json.loads(bytes(data))["worker"] for (data,) in marks}
    assert seen == {first.id, second.id}
    assert first.finished + second.finished == 40 == len(marks)


async def test_slots_are_a_limit(app: Onward) -> None:
    running = most = 0
    full = asyncio.Event()

    @app.task
    async def work(ctx: Any, n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()  # the first ones, for each other
        await asyncio.sleep(0.005)
        running -= 1

    async with app.worker(slots=3) as worker:
        handles = await app.submit_many(work, list(range(30)))
        for handle in handles:
            await handle.result(timeout=60)
            assert worker.running <= 3
    assert most == 3


async def test_a_worker_serves_its_queues_and_no_others(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    await lab.start(queues=("a", "b"))
    ids = {queue: await lab.submit(work, 1, queue=queue) for queue in ("a", "b", "c")}
    for queue in ("a", "b"):
        assert (await lab.ended(ids[queue])).state is State.COMPLETED
    lab.clock.jump(5)
    await calm()
    assert (await lab.app.get(ids["c"])).state is State.PENDING
    await lab.stop()
    await lab.start()
    assert (await lab.ended(ids["c"])).result == 1, "one without a list serves all"


async def test_a_task_that_got_records_late_is_not_quarantined(app: Onward) -> None:
    """Each worker of the task was declared dead before it had written a record, and wrote one before the next claim."""

    @app.task
    async def work(ctx: Any) -> list[Any]:
        return [await ctx.step(lambda: "run again", name=f"s{number}") for number in range(5)]

    async with app:
        handle = await app.submit(work)
        for number in range(4):
            worker = f"w{number}"
            await join(app.store, worker)
            (held,) = await claim(app.store, worker, names=["work"], alone=number == 3)
            await app.store.workers.rescue([worker])
            late = entry(held, key=f"s{number}", data=b'{"ms":0,"result":"late"}')
            assert await app.store.save(worker, Batch([late])) == set()
        assert await crashes(app.store, handle.id) == 4
        async with app.worker():
            assert await handle.result(timeout=60) == [*["late"] * 4, "run again"]
