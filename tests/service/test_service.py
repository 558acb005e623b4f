"""The verbs for callers outside, through the public API, on every store: submit, get, list, wait, cancel, resume, tail."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from onward import Onward, Retry, State
from onward.app.connect import open_store
from onward.core import record as r
from onward.errors import (
    BadSetting,
    InvalidInput,
    KeyConflict,
    OnwardError,
    QueueFull,
    ResultTimeout,
    StateConflict,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    UnknownTask,
    UsageError,
)
from onward.service.submission import SubmitRequest
from tests.kit import HandClock, eventually, inline_app, not_memory, row, sql


@pytest.fixture
def shop(app: Onward) -> Onward:
    """An app with a few handlers."""

    @app.task
    async def double(ctx: Any, n: int) -> int:
        return n * 2

    @app.task(retry=1)
    async def broken(ctx: Any, n: int = 0) -> None:
        raise ValueError(f"broken {n}")

    @app.task(queue="slow", deadline="1h")
    async def patient(ctx: Any, n: int = 0) -> int:
        await asyncio.sleep(60)
        return n

    return app


async def count(app: Onward) -> int:
    ((count,),) = await sql(app.store, "SELECT count(*) FROM onward_tasks")
    return int(count)


# ── submit ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_submit_and_result(shop: Onward) -> None:
    handle = await shop.submit("double", 21)
    assert (await handle.get()).state is State.PENDING
    async with shop.worker():
        assert await handle.result(timeout=60) == 42
    task = await shop.get(handle.id)
    assert (task.state, task.result, task.error, task.attempt, task.ended) == (State.COMPLETED, 42, None, 1, True)
    assert task.created_at <= task.finished_at  # type: ignore[operator]
    assert repr(handle) == f"<task {handle.id}>"
    assert await shop.handle(handle.id).result() == 42


async def test_the_options_of_a_handler_hold_for_its_tasks(shop: Onward) -> None:
    task = await (await shop.submit("patient")).get()
    assert task.queue == "slow"
    assert (await (await shop.submit("patient", queue="fast")).get()).queue == "fast"
    ((options,),) = await sql(shop.store, f"SELECT options FROM onward_tasks WHERE id = '{task.task_id}'")
    assert b'"deadline":3600' in options


async def test_all_or_none(shop: Onward) -> None:
    with pytest.raises(InvalidInput):
        await shop.submit_many("double", [1, 2, "three"])
    assert await count(shop) == 0
    assert await shop.submit_many("double", []) == []
    handles = await shop.submit_many("double", range(50))  # type: ignore[arg-type]
    assert len({h.id for h in handles}) == 50 == await count(shop)


async def test_a_conflict_in_a_bulk_submits_nothing(shop: Onward) -> None:
    """Service.submit: the ids of the tasks, all or none. A key that belongs to another request refuses the whole bulk."""
    await shop.submit("double", 1, key="k")
    with pytest.raises(KeyConflict):
        await shop.service.submit(
            [SubmitRequest("double", 5), SubmitRequest("double", 2, key="k"), SubmitRequest("double", 6, key="fresh")]
        )
    assert await count(shop) == 1


async def test_the_same_key_with_the_same_everything(shop: Onward) -> None:
    options: dict[str, Any] = {
        "key": "k",
        "priority": 3,
        "queue": "q",
        "deadline": "1h",
        "delay": 60,
        "labels": {"a": "b", "c": "d"},
    }
    first = await shop.submit("double", {"n": 1}, **options)
    same = options | {"deadline": 3600, "delay": "1m", "labels": {"c": "d", "a": "b"}}
    assert (await shop.submit("double", {"n": 1}, **same)).id == first.id, "the same options, spelled differently"
    for other in [{"priority": 4}, {"queue": "p"}, {"deadline": "2h"}, {"delay": 61}, {"labels": {}}, {"expires": 5}]:
        with pytest.raises(KeyConflict, match=f"'k' belongs to task {first.id}"):
            await shop.submit("double", {"n": 1}, **options | other)
    with pytest.raises(KeyConflict):
        await shop.submit("double", {"n": 2}, **options)
    with pytest.raises(KeyConflict):
        await shop.submit("broken", {"n": 1}, **options)
    assert await count(shop) == 1


async def test_a_conflict_names_the_fields_that_differ_and_no_value(app: Onward) -> None:
    @app.task
    async def order(ctx: Any, **fields: Any) -> None: ...

    @app.task
    async def refund(ctx: Any, **fields: Any) -> None: ...

    card = {"card": {"number": "4111", "$token": "t"}, "items": [{"sku": "a"}, {"sku": "b"}], "paid": True}
    first = await app.submit("order", card, key="k", labels={"team": "red"}, deadline="1h")

    async def differs(handler: str, value: Any, **options: Any) -> list[str]:
        with pytest.raises(KeyConflict) as caught:
            await app.submit(handler, value, key="k", **{"labels": {"team": "red"}, "deadline": "1h", **options})
        assert f"'k' belongs to task {first.id} (pending)" in str(caught.value)
        assert "4111" not in str(caught.value)
        assert "red" not in str(caught.value)
        assert (caught.value.task_id, caught.value.state) == (first.id, "pending")
        assert all(field in str(caught.value) for field in caught.value.differs)
        return caught.value.differs

    assert await differs("refund", card) == ["task"]
    assert await differs("order", card | {"card": {"number": "4112", "$token": "u"}}) == [
        "input.card.number",
        "input.card['$token']",
    ]
    assert await differs("order", card | {"items": [{"sku": "a"}, {"sku": "c"}, {}]}) == [
        "input.items[1].sku",
        "the length of input.items",
    ]
    assert await differs("order", card | {"paid": 1}) == ["input.paid"], "equal in Python, not in JSON"
    assert await differs("order", {"card": card["card"], "n" * 100: 1}) == [
        f"input['{'n' * 39}…']",
        "input.items",
        "input.paid",
    ]
    assert await differs("order", {f"f{n}": n for n in range(50)}) == [
        *[f"input.f{n}" for n in range(5)],
        "more fields",
    ]
    assert await differs("order", card, queue="q", labels={"team": "blue"}, deadline="2h", group="g") == [
        "queue",
        "group",
        "deadline",
        "labels.team",
    ]
    assert await differs("order", card, priority=2) == ["priority"]
    assert await differs("order", card, delay=60) == ["delay or webhook"]


async def test_a_hundred_submits_at_once_with_one_key(shop: Onward) -> None:
    handles = await asyncio.gather(*[shop.submit("double", 4, key="k") for _ in range(100)])
    assert len({h.id for h in handles}) == 1
    async with shop.worker():
        assert set(await asyncio.gather(*[h.result(timeout=60) for h in handles])) == {8}
    assert (await shop.submit("double", 4, key="k")).id == handles[0].id, "the key stays with the task"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"queue": ""}, None),
        ({"queue": "a\x00b"}, UsageError),
        ({"queue": "x" * 513}, UsageError),
        ({"key": ""}, UsageError),
        ({"key": "a\nb"}, UsageError),
        ({"key": "\ud800"}, UsageError),
        ({"key": 5}, UsageError),
        ({"priority": 10**9}, BadSetting),
        ({"priority": 1.5}, BadSetting),
        ({"priority": "high"}, BadSetting),
        ({"delay": "soon"}, BadSetting),
        ({"delay": -1}, BadSetting),
        ({"deadline": float("inf")}, BadSetting),
        ({"labels": {"a": 1}}, InvalidInput),
        ({"labels": {"a": "\ud800"}}, InvalidInput),
    ],
)
async def test_options_that_make_no_sense(shop: Onward, wrong: dict[str, Any], error: type[Exception] | None) -> None:
    if error is None:
        assert (await (await shop.submit("double", 1, **wrong)).get()).queue == "default"
        return
    with pytest.raises(error):
        await shop.submit("double", 1, **wrong)
    assert await count(shop) == 0


async def test_an_unknown_task(shop: Onward) -> None:
    with pytest.raises(UnknownTask, match=r"no task is named 'tripel' \(known: broken, double, patient"):
        await shop.submit("tripel", 1)
    with pytest.raises(UnknownTask, match=r"; did you mean 'double'\? If not, start a worker"):
        await shop.submit("doubel", 1)
    with pytest.raises(UsageError, match="is not a handler of this app"):
        await shop.submit(lambda ctx: None)
    with pytest.raises(UsageError, match="two handlers are named 'double'"):
        shop.task(lambda ctx: None, name="double")  # type: ignore[call-overload]
    assert await count(shop) == 0


@not_memory
async def test_an_app_moves_to_another_database(shop: Onward, url: str, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="an app that is open cannot move"):
        shop.move("sqlite://:memory:")
    other = Onward(url)
    other.task(_nothing, name="nothing")
    other.move(f"sqlite:///{tmp_path}/with a space and ü.db")
    async with other:
        await other.submit("nothing")
        assert (await count(other), await count(shop)) == (1, 0)


@not_memory
async def test_a_task_that_another_process_offers(shop: Onward, url: str) -> None:
    client = Onward(store=open_store(url))
    async with client:
        with pytest.raises(UnknownTask, match="known: none so far"):
            await client.submit("double", 2)
        with pytest.raises(UsageError, match="no handlers"):
            client._make_worker()
        async with shop.worker():
            handle = await client.submit("patient", 2)
            assert (await handle.get()).queue == "slow"
            wrong = await client.submit("double", "three")
            with pytest.raises(TaskFailed, match="does not fit"):
                await wrong.result(timeout=60)
            assert await (await client.submit("double", 2)).result(timeout=60) == 4


# ── a full queue ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_full_queue_refuses_and_says_when_to_come_back(url: str) -> None:
    app = Onward(url, queue_limit=10)
    app.task(_nothing, name="nothing")
    async with app:
        await app.submit_many("nothing", range(8))  # type: ignore[arg-type]
        with pytest.raises(QueueFull) as full:
            await app.submit_many("nothing", range(3))  # type: ignore[arg-type]
        assert full.value.retry_after == 30, "no worker runs, so the pace is unknown"
        assert (full.value.queue, full.value.limit) == ("default", 10)
        assert await count(app) == 8, "nothing of it was submitted"
        await app.submit_many("nothing", range(2), delay=60)  # type: ignore[arg-type]
        with pytest.raises(QueueFull, match="come back in 30 s"):
            await app.submit("nothing")
        await app.submit("nothing", queue="other")
        await app.store.workers.join(row("w1"), 10)
        await app.store.workers.heartbeat("w1", 10, 0.1)
        with pytest.raises(QueueFull) as full:
            await app.submit("nothing")
        assert full.value.retry_after == 5, "half a task at a tenth of a task a second"
        await app.store.workers.heartbeat("w1", 10, 1000.0)
        with pytest.raises(QueueFull) as full:
            await app.submit("nothing")
        assert full.value.retry_after == 1
        await app.cancel((await app.list(queue="default", state="pending", limit=1))[0][0].task_id)
        await app.submit("nothing")


async def _nothing(ctx: Any, n: int = 0) -> None:
    pass


async def test_a_full_queue_still_knows_its_keys(url: str) -> None:
    """The same key gives the same task, however often it is sent: nothing new would go into the queue."""
    app = Onward(url, queue_limit=2)
    app.task(_nothing, name="nothing")
    async with app:
        first = await app.submit("nothing", key="k")
        await app.submit("nothing")
        assert (await app.submit("nothing", key="k")).id == first.id


async def test_a_full_queue_empties_and_takes_again(url: str) -> None:
    app = Onward(url, queue_limit=5, poll_s=0.05)
    app.task(_nothing, name="nothing")
    async with app, app.worker():

        async def submitted() -> bool:
            try:
                await app.submit("nothing")
            except QueueFull:
                return False
            return True

        for _ in range(60):
            await eventually(submitted)
    assert app.settings.queue_limit == 5


# ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "task_id", ["nobody", "", "a\x00b", "\ud800", "ü", "'; DROP TABLE onward_tasks --", "x" * 10_000]
)
async def test_ids_of_nothing(shop: Onward, task_id: str) -> None:
    await shop.submit("double", 1)
    for verb in (shop.get, shop.cancel, shop.resume, shop.service.journal):
        with pytest.raises(TaskNotFound):
            await verb(task_id)
    with pytest.raises(TaskNotFound):
        await shop.prioritize(task_id, 1)
    with pytest.raises(TaskNotFound):
        await shop.handle(task_id).result(timeout=1)
    with pytest.raises(TaskNotFound):
        await anext(shop.handle(task_id).tail())
    assert await count(shop) == 1


async def test_list_in_pages(shop: Onward) -> None:
    ids = [h.id for h in await shop.submit_many("double", range(25))]  # type: ignore[arg-type]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await shop.list(limit=10, cursor=cursor)
        seen += [task.task_id for task in page]
        if cursor is None:
            break
    assert seen == sorted(ids, reverse=True)
    page, cursor = await shop.list(limit=25)
    assert (len(page), cursor) == (25, None), "there is no page after the last"
    assert [t.task_id for t in (await shop.list(state="pending", task="double", queue="default", limit=1))[0]] == [
        seen[0]
    ]
    assert (await shop.list(state=State.COMPLETED))[0] == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"limit": 0}, BadSetting),
        ({"limit": 1001}, BadSetting),
        ({"state": "lost"}, BadSetting),
        ({"cursor": "a\x00"}, BadSetting),
    ],
)
async def test_lists_that_make_no_sense(shop: Onward, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await shop.list(**wrong)


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "' OR 1=1 --"])
@pytest.mark.parametrize("where", ["task", "queue"])
async def test_a_filter_that_can_match_nothing_finds_nothing(shop: Onward, name: str, where: str) -> None:
    """It may also be refused with a sentence, but never with an error of the database."""
    await shop.submit("double", 1)
    with contextlib.suppress(OnwardError):
        assert (await shop.list(**{where: name}))[0] == []  # type: ignore[arg-type]


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_that_is_not_there_in_time(shop: Onward) -> None:
    handle = await shop.submit("double", 1)
    with pytest.raises(ResultTimeout, match=r"no result after 0.05 s: it is pending \(queued\) and goes on"):
        await handle.result(timeout=0.05)
    assert (await handle.get()).state is State.PENDING


async def test_results_that_are_errors(shop: Onward) -> None:
    async with shop.worker():
        failed = await shop.submit("broken", 7)
        with pytest.raises(TaskFailed, match=rf"task {failed.id} \(broken\) failed: broken 7") as caught:
            await failed.result(timeout=60)
        assert caught.value.error == {"type": "ValueError", "message": "broken 7", "attempts": 1}
        cancelled = await shop.submit("patient")
        await cancelled.cancel()
        with pytest.raises(TaskCancelled, match=rf"task {cancelled.id} \(patient\) was cancelled"):
            await cancelled.result(timeout=60)


async def test_many_wait_for_one(shop: Onward) -> None:
    handle = await shop.submit("double", 3)
    waiting = [asyncio.ensure_future(handle.result(timeout=60)) for _ in range(50)]
    await asyncio.sleep(0.01)
    async with shop.worker():
        assert await asyncio.gather(*waiting) == [6] * 50


# ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_cancel(shop: Onward) -> None:
    handle = await shop.submit("double", 1)
    assert (await handle.cancel()).state is State.CANCELLED
    assert (await shop.cancel(handle.id)).state is State.CANCELLED, "twice is once"
    async with shop.worker():
        done = await shop.submit("double", 1)
        await done.result(timeout=60)
        with pytest.raises(StateConflict, match=f"task {done.id} is completed and cannot be cancelled; it has ended"):
            await done.cancel()
        failed = await shop.submit("broken")
        with pytest.raises(TaskFailed):
            await failed.result(timeout=60)
        with pytest.raises(StateConflict, match="is failed and cannot be cancelled"):
            await failed.cancel()


async def test_resume_of_a_completed_task_does_nothing_and_gives_its_result(shop: Onward) -> None:
    async with shop.worker():
        handle = await shop.submit("double", 1)
        await handle.result(timeout=60)
        before = await shop.service.journal(handle.id)
        for _ in range(3):
            task = await shop.resume(handle.id)
            assert (task.state, task.result) == (State.COMPLETED, 2)
        await asyncio.sleep(0.1)
        assert await shop.service.journal(handle.id) == before


async def test_resume_of_a_failed_task(shop: Onward) -> None:
    fine = False

    @shop.task(retry=1)
    async def moody(ctx: Any) -> str:
        if not fine:
            raise ValueError("not today")
        return "well"

    async with shop.worker():
        handle = await shop.submit(moody)
        with pytest.raises(TaskFailed):
            await handle.result(timeout=60)
        fine = True
        assert not (await shop.resume(handle.id)).ended
        assert await handle.result(timeout=60) == "well"
        with pytest.raises(StateConflict, match="it has ended"):
            await handle.cancel()


async def test_states_that_cannot_be_resumed(shop: Onward) -> None:
    waiting = await shop.submit("double", 1)
    with pytest.raises(StateConflict, match="is pending and cannot be resumed; it goes on by itself"):
        await shop.resume(waiting.id)
    await waiting.cancel()
    with pytest.raises(StateConflict, match="is cancelled and cannot be resumed; submit it anew"):
        await shop.resume(waiting.id)


async def test_a_hotfix_overtakes(shop: Onward) -> None:
    order: list[int] = []

    @shop.task
    async def note(ctx: Any, n: int) -> None:
        order.append(n)

    handles = await shop.submit_many(note, [1, 2, 3])
    urgent = await shop.submit(note, 4, priority=10)
    await shop.prioritize(handles[2].id, 5)
    async with shop.worker(slots=1):
        for handle in [*handles, urgent]:
            await handle.result(timeout=60)
    assert order == [4, 3, 1, 2]
    with pytest.raises(StateConflict, match="cannot be prioritized"):
        await shop.prioritize(urgent.id, 1)


@pytest.mark.parametrize("priority", [10**9, -(10**9), 1.5, "high", None, float("nan")])
async def test_priorities_that_make_no_sense(shop: Onward, priority: Any) -> None:
    handle = await shop.submit("double", 1)
    with pytest.raises(BadSetting, match="priority"):
        await shop.prioritize(handle.id, priority)
    assert (await handle.get()).priority == 0


# ── tail ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tail_gives_every_record_once_and_ends_with_the_task(shop: Onward) -> None:
    gate = asyncio.Event()

    @shop.task
    async def walk(ctx: Any) -> str:
        await ctx.step(lambda: 1, name="one")
        ctx.progress("half", 1, 2)
        await gate.wait()
        await ctx.step(lambda: 2, name="two")
        return "there"

    handle = await shop.submit(walk)
    seen = []
    async with shop.worker():
        async for record in handle.tail():
            seen.append(record)
            if record.kind == r.PROGRESS:
                assert record.value == {"message": "half", "step": 1, "total": 2}
                gate.set()
    assert [record.seq for record in seen] == list(range(1, len(seen) + 1))
    kinds = [(record.kind, record.key) for record in seen if record.kind != r.STEP_STARTED]
    assert kinds == [
        (r.SUBMITTED, ""),
        (r.SHIFT, ""),
        (r.STEP_DONE, "one"),
        (r.PROGRESS, ""),
        (r.STEP_DONE, "two"),
        (r.COMPLETED, ""),
    ]
    assert [record.seq async for record in handle.tail(after=3)] == [record.seq for record in seen[3:]]
    assert [record async for record in handle.tail(after=len(seen))] == []


async def test_tail_from_past_the_end_ends_at_once(shop: Onward) -> None:
    handle = await shop.submit("double", 1)
    async with shop.worker():
        await handle.result(timeout=60)

    async def rest() -> list[Any]:
        return [record async for record in handle.tail(after=1_000)]

    assert await asyncio.wait_for(rest(), 60) == []


async def test_a_long_journal_is_followed_to_its_end(clock: HandClock) -> None:
    app = inline_app(clock)

    @app.task(retry=Retry(attempts=2))
    async def long(ctx: Any) -> int:
        total = 0
        for n in range(2_100):
            total += await ctx.step(_number, n, name="n")
        if ctx.attempt == 1:
            raise ConnectionError
        return total

    async with app:
        handle = await app.submit(long)
        worker = app._make_worker()
        await worker.start()
        assert await clock.until(handle.result()) == sum(range(2_100)), "replayed in parts, and none of them twice"
        assert [record.seq async for record in handle.tail()] == list(range(1, 2_106))
        await clock.until(worker.stop())


async def _number(n: int) -> int:
    return n
