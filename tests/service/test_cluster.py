"""Queues, workers and figures of an app, and lists with filters."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from onward import Onward
from onward.errors import BadSetting, UsageError
from onward.service import listing as lists
from tests.kit import Gate, Lab, eventually


async def test_a_paused_queue_is_left_alone_by_a_worker_that_runs(app: Onward) -> None:
    gate, began = Gate(), []

    @app.task(queue="mail")
    async def mail(ctx: Any, n: int) -> int:
        began.append(n)
        if n == 1:
            await gate()
        return n

    @app.task
    async def work(ctx: Any) -> str:
        return "done"

    async with app.worker(slots=5):
        first = await app.submit(mail, 1)
        await gate.reached.wait()
        queue = await app.pause_queue("mail")
        assert (queue.paused, queue.running) == (True, 1)
        second = await app.submit(mail, 2)
        assert await (await app.submit(work)).result(timeout=60) == "done", "other queues go on"
        gate.opened.set()
        assert await first.result(timeout=60) == 1, "running tasks go on"
        assert await (await app.submit(work)).result(timeout=60) == "done"
        assert began == [1]
        (counts,) = [row for row in await app.queues() if row.name == "mail"]
        assert (counts.waiting, counts.running, counts.paused, counts.reasons) == (1, 0, True, {"queued": 1})
        await app.unpause_queue("mail")
        assert await second.result(timeout=60) == 2


async def test_a_name_that_no_queue_can_have(app: Onward) -> None:
    for name in ("", "a\nb", "x" * 513):
        with pytest.raises(UsageError, match="queue must be a string"):
            await app.pause_queue(name)


async def test_the_figures_of_a_cluster(lab: Lab) -> None:
    app = lab.app
    app.limit_queue("slow", concurrency=2)

    @app.task
    async def asks(ctx: Any) -> Any:
        return await ctx.ask("What?")

    @app.task(retry=1)
    async def fails(ctx: Any) -> None:
        raise RuntimeError("no")

    @app.task
    async def works(ctx: Any) -> None: ...

    assert await app.workers() == []
    await lab.start(slots=7)
    await lab.start(slots=3, queues=["slow"])
    for _ in range(2):
        await lab.settled(await lab.submit(asks))
    await lab.run(fails)
    await lab.run(works)
    later = await lab.submit(works, delay=90, queue="later")
    await app.cancel(await lab.submit(works, delay=90))
    stats = await app.stats()
    assert stats.states == {"pending": 1, "running": 0, "waiting": 2, "completed": 1, "failed": 1, "cancelled": 1}
    assert (stats.reasons, stats.people, stats.exact) == ({"delayed": 1, "question": 2}, 2, True)
    assert (stats.workers, stats.slots) == (2, 10)
    queues = {queue.name: queue for queue in await app.queues()}
    assert sorted(queues) == ["default", "later", "slow"]
    assert queues["default"].reasons == {"question": 2}
    assert (queues["default"].waiting, queues["default"].oldest_s) == (0, None)
    assert (queues["later"].waiting, queues["later"].oldest_s) == (1, None), "it cannot be started yet"
    assert queues["slow"].limit == 2
    first, second = await app.workers()
    assert (first.slots, first.queues, second.queues) == (7, (), ("slow",))
    assert first.handlers == ("asks", "fails", "works")
    assert first.alive
    assert 0 < first.lease_s <= app.settings.lease_s
    assert (await app.list(reason="delayed"))[0][0].task_id == later


async def test_a_worker_whose_lease_has_ended_is_not_alive(lab: Lab) -> None:
    @lab.app.task
    async def works(ctx: Any) -> None: ...

    await lab.start()
    lab.clock.time += 1000  # and nothing has run meanwhile
    (worker,) = await lab.app.workers()
    assert not worker.alive
    assert worker.lease_s < 0
    assert (await lab.app.stats()).workers == 0


async def test_lists_with_filters(lab: Lab) -> None:
    app = lab.app

    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    ids = []
    for n in range(4):
        labels = {"env": "prod" if n % 2 else "dev", "né": 'a"b', "n": str(n)}
        ids.append(await lab.submit(work, n, labels=labels, key=f"key {n}"))
        lab.clock.time += 60

    async def numbers(**filters: Any) -> list[int]:
        return [task.input for task in (await app.list(**filters))[0]]

    assert await numbers(labels={"env": "prod"}) == [3, 1]
    assert await numbers(labels={"env": "prod", "n": "1"}) == [1]
    assert await numbers(labels={"né": 'a"b'}) == [3, 2, 1, 0]
    assert await numbers(labels={"env": "other"}) == []
    assert await numbers(key="key 2") == [2]
    assert await numbers(key="key 2", state="completed") == []
    assert await numbers(key="key 2", labels={"env": "prod"}) == []
    assert await numbers(key="no such key") == []
    third = (await app.get(ids[2])).created_at
    assert await numbers(created_after=third) == [3, 2]
    assert await numbers(created_before=third) == [1, 0]
    zone = datetime.timezone(datetime.timedelta(hours=5))
    assert await numbers(created_after=datetime.datetime.fromtimestamp(third, zone), created_before=third + 30) == [2]
    for wrong in ({"reason": "tired"}, {"parent": "ü"}, {"cursor": "ü"}):
        with pytest.raises(BadSetting):
            await app.list(**wrong)  # type: ignore[arg-type]


async def test_a_search_for_a_label_has_a_bound_and_a_cursor(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MAX_SCAN_TASKS", 10)

    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    for n in range(45):
        await app.submit(work, n, labels={"rare": "yes"} if n in {3, 4, 30} else {"rare": "no", "other": "yes"})
    for filters in ({"labels": {"rare": "yes"}}, {"labels": {"rare": "yes"}, "state": "pending"}):
        seen, pages, cursor = [], 0, None
        while True:
            page, cursor = await app.list(limit=2, cursor=cursor, **filters)  # type: ignore[arg-type]
            seen += [task.input for task in page]
            pages += 1
            if cursor is None:
                break
        assert seen == [30, 4, 3]
        assert pages == (5 if "state" not in filters else 2)


async def test_children_of_a_task(app: Onward) -> None:
    @app.task
    async def child(ctx: Any, n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Any) -> Any:
        return await ctx.map("child", [1, 2, 3])

    async with app.worker():
        handle = await app.submit(parent)
        await handle.result(timeout=60)
        await eventually(lambda: app.list(parent=handle.id, state="completed"))
    tasks, _ = await app.list(parent=handle.id)
    assert sorted(task.input for task in tasks) == [1, 2, 3]
    assert {task.parent for task in tasks} == {handle.id}
    assert (await app.list(parent=handle.id, limit=2))[1] is not None
    assert (await app.list(parent="nobody"))[0] == []
