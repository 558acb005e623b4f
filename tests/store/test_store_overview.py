"""The overview of a store, and paused queues, on every database."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from typing import Any

import pytest

from onward.core.ids import Ids, first_id
from onward.core.limit import Limit, LimitRow
from onward.core.task import NEVER, State
from onward.store.port.core import SUSPECT_AFTER, Store
from onward.store.port.overview import Ended, Unfinished
from onward.store.shared import workers as shared_workers
from onward.store.shared.search import listing
from onward.store.sqlite.database import bind
from tests.kit import Time, claim, completion, join, new, not_memory, sql, submit, waiting

# ── queues that are paused ───────────────────────────────────────────────────────────────────────────────────────────


async def test_no_worker_claims_from_a_paused_queue(store: Store) -> None:
    await join(store, "w1")
    await submit(store, *[new() for _ in range(3)], new(queue="other"))
    (held,) = await claim(store, room=1)
    await store.queues.pause("default", paused=True)
    await store.queues.pause("default", paused=True)
    assert await claim(store) == []
    assert await claim(store, alone=True) == []
    assert len(await claim(store, queue="other")) == 1, "others are not concerned"
    assert await store.queues.limits() == {"default": (None, True)}
    assert await store.save("w1", completion(held)) == set(), "running tasks go on"
    await store.queues.pause("default", paused=False)
    await store.queues.pause("default", paused=False)
    assert len(await claim(store)) == 2
    assert await store.queues.limits() == {}


async def test_a_pause_and_a_limit_do_not_know_each_other(store: Store) -> None:
    await join(store, "w1")
    await submit(store, *[new() for _ in range(5)])
    await store.queues.set_limits([LimitRow("queue", "default", Limit(concurrency=2))])
    await store.queues.pause("default", paused=True)
    await store.queues.set_limits(
        [LimitRow("queue", "default", Limit(concurrency=3))]
    )  # as a worker does that starts now
    assert await claim(store) == []
    assert await store.queues.limits() == {"default": (3, True)}
    await store.queues.pause("default", paused=False)
    assert len(await claim(store)) == 3
    await store.queues.pause("default", paused=True)
    await store.queues.set_limits([LimitRow("queue", "default", None)])
    assert await claim(store) == []
    await store.queues.pause("default", paused=False)
    assert len(await claim(store)) == 2


async def test_a_pause_survives_restarts_and_is_for_every_store(store: Store, open_another: Any, kind: str) -> None:
    if kind == "sqlite memory":
        pytest.skip("a database in memory has one store")
    await store.queues.pause("default", paused=True)
    await store.close()
    for _ in range(2):
        another = await open_another()
        await join(another, f"w{_}")
        await submit(another)
        assert await claim(another, worker=f"w{_}") == []


async def test_a_sleeper_of_a_paused_queue_wakes_and_stays(store: Store, time: Time) -> None:
    await join(store, "w1", lease=1000)
    await submit(store, new(delay=5.0))
    await store.queues.pause("default", paused=True)
    time.move(6)
    assert (await store.wake()).queues == ("default",)
    assert await claim(store) == []
    await store.queues.pause("default", paused=False)
    assert len(await claim(store)) == 1


async def test_a_suspect_of_a_paused_queue_is_not_in_the_outlook(store: Store) -> None:
    """Otherwise a busy worker would pause its claims for it now and then, for nothing."""
    (task_id,) = await submit(store)
    for number in range(SUSPECT_AFTER):
        await join(store, f"w{number}")
        await claim(store, worker=f"w{number}", alone=number == SUSPECT_AFTER)
        await store.workers.rescue([f"w{number}"])
    assert (await store.wake()).suspects == ("default",), task_id
    await store.queues.pause("default", paused=True)
    assert (await store.wake()).suspects == ()


@not_memory
async def test_no_claim_that_begins_after_the_answer_takes_anything(store: Store, open_another: Any) -> None:
    """Four workers claim as fast as they can; after the answer to the pause, no new claim gets a task."""
    stores = [await open_another() for _ in range(4)]
    await join(store, *[f"w{n}" for n in range(4)], lease=1000)
    late: list[int] = []
    got: list[int] = []
    for round_ in range(10):
        await submit(store, *[new() for _ in range(40)])
        paused = False

        async def work(number: int) -> None:
            for _ in range(12):
                began_after = paused
                claimed = await claim(stores[number], worker=f"w{number}", room=1)
                got.append(len(claimed))
                if began_after and claimed:
                    late.append(round_)

        async def pause() -> None:
            nonlocal paused
            await asyncio.sleep(0.01)
            await store.queues.pause("default", paused=True)
            paused = True

        await asyncio.gather(*[work(number) for number in range(4)], pause())
        await store.queues.pause("default", paused=False)
    assert late == []
    assert 0 in got
    assert 1 in got


async def test_a_claim_that_ignores_the_pause_is_found(
    store: Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its check, a claim takes a task of a paused queue: so the tests above can fail."""
    module, name = ("postgres.execute", "claim") if kind == "postgres" else ("sqlite.execute", "ready")
    statements = importlib.import_module(f"onward.store.{module}").S
    blind = dataclasses.replace(statements[name], sql=statements[name].sql.replace("<> 'task'", "= 'queue'"))
    assert blind != statements[name]
    monkeypatch.setitem(statements, name, blind)
    await join(store, "w1")
    await submit(store)
    await store.queues.pause("default", paused=True)
    assert len(await claim(store)) == 1


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_unfinished_tasks_by_queue_and_reason(store: Store, time: Time) -> None:
    await join(store, "w1", "w2")
    began = time.now
    ids = await submit(store, new(), new(), new(queue="mail"), new(queue="mail", delay=50.0))
    time.move(3)
    await submit(store, new())
    (first,) = await claim(store, room=1)
    (mail,) = await claim(store, worker="w2", queue="mail")
    await store.save("w1", waiting(first, NEVER, "approval"))
    assert first.id == ids[0]
    assert await store.overview.unfinished() == [
        Unfinished("default", "approval", 1, time.now - began),
        Unfinished("default", "queued", 2, time.now - began),
        Unfinished("mail", "delayed", 1, time.now - began),
        Unfinished("mail", "running", 1, time.now - began),
    ]
    assert await store.overview.held() == (time.now, {"w2": 1})
    await store.save("w2", completion(mail))
    assert (await store.overview.held())[1] == {}


async def test_ended_tasks_are_counted_up_to_a_bound(store: Store) -> None:
    await join(store, "w1")
    await submit(store, *[new() for _ in range(6)])
    assert await store.overview.ended(100) == Ended(0, 0, 0, True)
    held = await claim(store)
    for task in held[:3]:
        await store.save("w1", completion(task))
    await store.save("w1", completion(held[3], state=State.FAILED))
    await store.cancel(held[4].id)
    assert await store.overview.ended(100) == Ended(3, 1, 1, True)
    assert await store.overview.ended(6) == Ended(3, 1, 1, True)
    bounded = await store.overview.ended(5)
    assert (bounded.failed, bounded.cancelled, bounded.exact) == (1, 1, False)
    assert bounded.completed >= 3


async def test_numbers_are_read_from_indexes(store: Store, kind: str) -> None:
    """With thousands of ended tasks, the planner reads neither all of them for the failed ones, nor all tasks for children."""
    if kind == "postgres":
        pytest.skip("its planner goes by what is there; the partial index is proven by SQLite's")
    from onward.store.sqlite.execute import S

    plans = {
        "ended": S["ended"](most=10),
        "offspring": S["offspring"](parents='["x"]', most=10, head=10),
        "list_of": bind(S["list_of"], listing(10, None, {"parent": "x"})[1]),
    }  # fmt: skip
    plan_texts = {}
    for name, values in plans.items():
        rows = await store._db.reading(  # type: ignore[attr-defined]
            lambda c, name=name, values=values: list(c.execute(f"EXPLAIN QUERY PLAN {S[name].sql}", values))
        )
        plan_texts[name] = " ".join(str(row[-1]) for row in rows)
    assert plan_texts["ended"].count("onward_outcomes_rare") == 2
    for name in ("offspring", "list_of"):
        assert "onward_tasks_parent" in plan_texts[name]
        assert "SCAN t " not in plan_texts[name]


async def test_children_ended_or_not(store: Store) -> None:
    await join(store, "w1")
    (parent,) = await submit(store)
    ids = await submit(store, *[new(parent=parent) for _ in range(3)])
    (grandchild,) = await submit(store, new(parent=ids[0]))
    held = {task.id: task for task in await claim(store)}
    await store.save("w1", completion(held[ids[1]]))
    kin = {task.id: task for task in await store.listing.offspring([parent], 10)}
    assert set(kin) == set(ids)
    assert [kin[id_].ended for id_ in ids] == [False, True, False]
    assert [kin[id_].head for id_ in ids] == [b"", b'{"result":42}', b""]
    assert [task.id for task in await store.listing.offspring([ids[0], ids[2]], 10)] == [grandchild]
    assert len(await store.listing.offspring([parent], 2)) == 2
    assert await store.listing.offspring([], 10) == []


# ── lists ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def listed(store: Store, **filters: Any) -> list[str]:
    return [task.task_id for task in await store.listing.list(limit=100, before=None, **filters)]


async def test_lists_by_parent_reason_and_label(store: Store) -> None:
    await join(store, "w1")
    (parent,) = await submit(store)
    a, b, c = await submit(
        store,
        new(parent=parent, options=b'{"labels":{"env":"prod"}}'),
        new(parent=parent, delay=9.0, options=b'{"labels":{"env":"dev"}}'),
        new(options=b'{"labels":{"env":"prod"}}'),
    )
    held = {task.id: task for task in await claim(store)}
    await store.save("w1", completion(held[a]))
    label = b'"env":"prod"'
    assert await listed(store, parent=parent) == [b, a]
    assert await listed(store, parent=parent, state=State.COMPLETED) == [a]
    assert await listed(store, parent=parent, state=State.PENDING) == [b]
    assert await listed(store, parent=parent, reason="delayed") == [b]
    assert await listed(store, reason="delayed") == [b]
    assert await listed(store, reason="delayed", state=State.RUNNING) == []
    assert await listed(store, reason="running") == [c, parent]
    assert await listed(store, label=label) == [c, a]
    assert await listed(store, label=label, state=State.COMPLETED) == [a]
    assert await listed(store, label=label, state=State.RUNNING) == [c]
    assert await listed(store, label=label, parent=parent) == [a]
    assert await listed(store, since=c) == [c]
    assert await listed(store, since=b, state=State.RUNNING) == [c]
    assert await store.listing.floor(None, 1) == b
    assert await store.listing.floor(b, 1) == parent
    assert await store.listing.floor(b, 2) is None


def test_the_first_id_of_a_time() -> None:
    class Low:
        def getrandbits(self, _: int) -> int:
            return 0

    now = [1_700_000_000.123]
    ids = Ids(lambda: now[0], Low())  # type: ignore[arg-type]
    assert first_id(now[0]) == ids()
    now[0] += 5
    assert first_id(now[0] - 0.01) < ids() < first_id(now[0] + 0.01)
    assert first_id(-1.0) == "0" * 26
    assert first_id(1e300) > first_id(1e10)
    assert len(first_id(1e300)) == 26


async def test_the_index_is_there(store: Store, kind: str) -> None:
    table, column = ("pg_indexes", "indexname") if kind == "postgres" else ("sqlite_master", "name")
    assert await sql(store, f"SELECT 1 FROM {table} WHERE {column} = 'onward_tasks_parent'")


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_queues_come_in_pages_in_the_order_of_python(store: Store, time: Time) -> None:
    names = ["B", "_", "a", "a b", "ab", "z", "Ä", "\U0001f600"]
    assert names == sorted(names)
    await submit(store, *[new(queue=name, delay=delay) for name in names for delay in (0.0, 5.0)])
    pages, after = list[list[str]](), ""
    while True:
        page = await store.overview.unfinished(after=after, limit=3)
        pages.append([row.queue for row in page])
        assert {row.reason for row in page} == {"delayed", "queued"}
        if page.next is None:
            break
        after = page.next
    assert pages == [[name for name in names[at : at + 3] for _ in range(2)] for at in (0, 3, 6)]
    assert (await store.overview.unfinished("acme", limit=3), (await store.overview.unfinished("", limit=3)).next) == (
        [],
        "a",
    )
    assert [(row.reason, row.tasks) for row in await store.overview.unfinished_in("a b")] == [
        ("delayed", 1),
        ("queued", 1),
    ]
    assert await store.overview.reasons() == await store.overview.reasons("") == {"queued": 8, "delayed": 8}
    assert await store.overview.reasons("acme") == {}


async def test_the_largest_queues_are_named_and_the_others_added_up(store: Store, time: Time) -> None:
    await submit(store, *[new(queue="q0", delay=5.0)])
    for n in range(1, 7):
        time.move(1)
        await submit(store, *[new(queue=f"q{n}") for _ in range(n)])
    rows = {(row.queue, row.reason): (row.tasks, row.oldest) for row in await store.overview.largest(3)}
    assert {key: tasks for key, (tasks, _) in rows.items()} == {
        ("q4", "queued"): 4,
        ("q5", "queued"): 5,
        ("q6", "queued"): 6,
        ("other", "queued"): 1 + 2 + 3,
        ("other", "delayed"): 1,
    }
    assert rows["other", "queued"][1] == pytest.approx(5, abs=0.1)
    assert rows["q6", "queued"][1] == pytest.approx(0, abs=0.1)
    assert {row.queue for row in await store.overview.largest(7)} == {f"q{n}" for n in range(7)}


async def test_workers_and_handlers_come_in_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"w{n}" for n in range(5)]
    await join(store, *names)
    assert [row.id for row in await store.workers.list(limit=2)] == names[:2]
    assert [row.id for row in await store.workers.list(after="w1", limit=2)] == names[2:4]
    await store.handlers.register([(f"h{n}", b"x" * 100) for n in range(5)])
    page = await store.handlers.page(limit=2)
    assert ([name for name, _ in page], page.next) == (["h0", "h1"], "h1")
    page = await store.handlers.page(after="h3", limit=2)
    assert ([name for name, _ in page], page.next) == (["h4"], None)
    monkeypatch.setattr(shared_workers, "PAGE_BYTES", 250)
    page = await store.handlers.page()
    assert (len(page), page.next) == (3, "h2")
    assert [*await store.handlers.registered()] == [f"h{n}" for n in range(5)]
    assert await store.handlers.registered(["h3", "unknown"]) == {"h3": b"x" * 100}
