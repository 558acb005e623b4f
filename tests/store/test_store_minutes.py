"""The minutes of the last day: workers add to them, and a reader reads a row for each minute at most."""

from __future__ import annotations

import pytest

from onward import Context, Onward
from onward.core.task import State
from onward.engine.worker.minutes import ADD_INTERVAL_S, MinuteCounts
from onward.errors import TaskFailed
from onward.service.cluster import SPANS
from onward.store.port.core import Store
from onward.store.shared import minutes
from onward.store.shared.minutes import KEPT_MINUTES, Minute
from tests.kit import HandClock, new, sql, submit


async def test_workers_add_to_a_minute_and_old_minutes_are_dropped(store: Store) -> None:
    await store.minutes.add(Minute(100, 2, 1, 0, 6.0, 5.0, 0.25))
    await submit(store, new(), new())
    await store.minutes.add(Minute(100, 1, 0, 1, 2.5, 2.0, 0.5))
    await store.minutes.add(Minute(102, 0, 0, 0))
    assert await store.minutes.since(100) == [
        Minute(100, 3, 1, 1, 8.5, 5.0, 0.75, 2),
        Minute(102, waiting=2),
    ]
    assert [minute.minute for minute in await store.minutes.since(101)] == [102]
    await store.minutes.add(Minute(119 + KEPT_MINUTES, 1))
    assert len(await store.minutes.since(0)) == 3, "only now and then"
    await store.minutes.add(Minute(120 + KEPT_MINUTES, 1))
    assert [minute.minute for minute in await store.minutes.since(0)] == [119 + KEPT_MINUTES, 120 + KEPT_MINUTES]


async def test_the_count_of_waiting_tasks_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await submit(store, *[new() for _ in range(5)], new(delay=60.0))
    assert await sql(store, "SELECT count(*) FROM onward_queue") == [(6,)]
    await store.minutes.add(Minute(1))
    monkeypatch.setattr(minutes, "MAX_WAITING", 3)
    await store.minutes.add(Minute(2))
    assert [minute.waiting for minute in await store.minutes.since(0)] == [5, 3]


async def test_counts_are_added_now_and_then_and_an_idle_worker_adds_none(store: Store) -> None:
    clock = HandClock()
    counts = MinuteCounts(store, clock)
    counts.ended(State.FAILED, 6001.0, 5990.0, None)
    counts.ended(State.CANCELLED, 6061.0, 6060.0, None)
    assert not counts.is_due(busy=True), "it is too early"
    clock.jump(ADD_INTERVAL_S)
    assert counts.is_due(busy=False)
    assert not counts.is_due(busy=True), "it is on its way"
    await counts.add(6062.0)
    assert await store.minutes.since(0) == [
        Minute(100, 0, 1, 0, 11.0, 11.0),
        Minute(101, 0, 0, 1, 1.0, 1.0),
    ]
    clock.jump(ADD_INTERVAL_S)
    assert not counts.is_due(busy=False)
    assert counts.is_due(busy=True)
    await counts.add(6130.0)
    assert (await store.minutes.since(102)) == [Minute(102)]


async def test_a_worker_adds_its_tasks_when_it_stops_and_the_axis_has_them(app: Onward) -> None:
    @app.task(name="works")
    async def works(ctx: Context) -> None:
        await ctx.sleep("20ms")

    @app.task(name="breaks", retry=1)
    async def breaks(ctx: Context) -> None:
        raise ValueError

    async with app.worker():
        for task in [await app.submit(name) for name in ("works", "works")]:
            await task.result()
        with pytest.raises(TaskFailed):
            await (await app.submit("breaks")).result()
    for span, (step, pieces) in SPANS.items():
        history = await app.service.cluster.history(span)
        assert (history.step_s, len(history.points)) == (60 * step, pieces)
        assert {later.at - earlier.at for earlier, later in zip(history.points, history.points[1:], strict=False)} == {
            60.0 * step
        }
        assert sum(point.completed for point in history.points) == 2, "a shift after which a task sleeps is no end"
        assert sum(point.failed for point in history.points) == 1
        ended = [point for point in history.points if point.completed or point.failed]
        assert all((point.slowest_s or 0.0) >= (point.mean_s or 0.0) > 0.0 for point in ended)
        assert history.points[0].mean_s is None
