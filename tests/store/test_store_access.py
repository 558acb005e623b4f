"""Tenants in the store: the tasks that each one sees, the indexes for that, and the tenant of children."""

from __future__ import annotations

from typing import Any

import pytest

from onward.core.task import State
from onward.store.port.core import Store
from onward.store.sqlite.database import bind
from onward.store.sqlite.store import SqliteStore
from tests.kit import begun, claim, completion, join, new, only_postgres, sql, submit


async def listed(store: Store, whose: str | None, state: State | None = None, **over: Any) -> list[str]:
    filters: dict[str, Any] = {"task": None, "queue": None, "limit": 100, "before": None}
    return [task.task_id for task in await store.listing.list(state=state, whose=whose, **filters | over)]


async def test_whose(store: Store) -> None:
    acme, globex, plain = [new(tenant=tenant, group=tenant) for tenant in ("acme", "globex", None)]
    await submit(store, acme, globex, plain)
    for whose, seen in (("acme", [acme.id]), ("globex", [globex.id]), ("", [plain.id]), ("nobody", [])):
        assert await listed(store, whose) == await listed(store, whose, State.PENDING) == seen
        assert await listed(store, whose, State.COMPLETED) == await listed(store, whose, State.FAILED) == []
        assert [task.id for task in (acme, globex, plain) if await store.get(task.id, whose) is not None] == seen
    assert await listed(store, None) == [plain.id, globex.id, acme.id]
    await join(store, "w1")
    for held in await claim(store):
        await store.save("w1", completion(held, state=State.FAILED if held.id == globex.id else State.COMPLETED))
    assert await listed(store, "acme", State.COMPLETED) == await listed(store, "acme") == [acme.id]
    assert await listed(store, "globex", State.FAILED) == await listed(store, "globex") == [globex.id]
    assert await listed(store, "globex", State.COMPLETED) == []
    assert await listed(store, "", State.COMPLETED) == [plain.id]


async def test_pages_and_filters_of_a_tenant(store: Store) -> None:
    ids = await submit(store, *[new(tenant="acme", group="acme", queue="a" if n % 2 else "b") for n in range(6)])
    await submit(store, *[new(tenant="globex", group="globex") for _ in range(6)])
    assert await listed(store, "acme", limit=2) == ids[:3:-1]
    assert await listed(store, "acme", before=ids[4], limit=9) == ids[3::-1]
    assert await listed(store, "acme", queue="a") == ids[5::-2]
    assert await listed(store, "acme", task="other") == []
    assert await listed(store, "globex", before=ids[2]) == []


@pytest.mark.parametrize("grouped", [True, False])
async def test_a_child_always_has_the_tenant_of_its_parent(store: Store, grouped: bool) -> None:
    parent = new(tenant="acme", group="acme")
    await submit(store, parent)
    group = "g" if grouped else None
    task = new(parent=parent.id, group=group)
    many = [new(parent=parent.id, group=group) for _ in range(2)]
    keyed = new(parent=parent.id, group=group, key=f"{parent.id}:x")
    await submit(store, task)
    await submit(store, *many)
    await submit(store, keyed)
    for child in (task, *many, keyed):
        stored_child = await store.get(child.id)
        assert stored_child is not None
        assert (stored_child.tenant, stored_child.group) == ("acme", group)
    assert {kin.id for kin in await store.listing.kin([parent.id], below=True)} == {
        task.id,
        keyed.id,
        *[t.id for t in many],
    }
    assert [(kin.id, kin.parent, kin.task) for kin in await store.listing.kin([task.id])] == [
        (task.id, parent.id, "work")
    ]


async def test_asks_are_shown_to_the_tenant_of_their_task(store: Store) -> None:
    from onward.core.record import QUESTION
    from onward.store.port.core import Batch, Wait
    from tests.kit import entry

    for tenant in ("acme", None):
        await submit(store, new(tenant=tenant, group=tenant))
    held = await begun(store)
    rest = await claim(store)
    for task in (held, *rest):
        question = entry(task, kind=QUESTION, data=b'{"question":"how?"}')
        await store.save("w1", Batch([question], waits=[Wait(task.id, float("inf"), "question", 1)]))
    by = {
        whose: {ask.task_id for ask in await store.listing.asks(whose=whose)} for whose in ("acme", "", "globex", None)
    }
    assert [len(by[whose]) for whose in ("acme", "", "globex", None)] == [1, 2, 0, 3]
    assert by["acme"] | by[""] == by[None]


async def test_a_tenant_among_many_is_found_through_its_index(store: Any) -> None:
    """However many tasks others have."""
    from onward.store.postgres.execute import S as P
    from onward.store.shared.search import listing
    from onward.store.sqlite.execute import S as L

    name, values = listing(10, None, {"whose": "acme"})
    assert (name, listing(1, None, {"whose": "acme", "state": State.COMPLETED})[0]) == ("list_tenant", "list_tenant")
    if isinstance(store, SqliteStore):
        plan = await store._db.reading(
            lambda c: [row[3] for row in c.execute(f"EXPLAIN QUERY PLAN {L[name].sql}", bind(L[name], values))]
        )
        assert any("onward_tasks_tenant (tenant=?" in line for line in plan), plan
        scans = [line for line in plan if line.startswith("SCAN") and "json_each" not in line]
        assert not scans, plan
        assert not any("TEMP B-TREE" in line for line in plan), plan
        return
    await sql(
        store,
        "INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options, tenant) "
        "SELECT 'x' || n, 'work', 'default', 0, n, '', 'null', '{}', CASE WHEN n % 100 = 0 THEN 'acme' ELSE 'globex' END FROM generate_series(1, 20000) n",
    )
    await sql(store, "ANALYZE onward_tasks")
    async with store._db.connection() as connection:
        statement = await connection.prepare(P[name].sql)
        plan = str(await statement.explain(*P[name](**values)))
    assert "onward_tasks_tenant" in plan, plan
    assert "Seq Scan on onward_tasks" not in plan, plan


@only_postgres
async def test_off_costs_nothing_in_the_indexes(store: Any) -> None:
    """Tasks without a tenant have no entries in the index."""
    await submit(store, *[new() for _ in range(50)])
    await sql(store, "ANALYZE onward_tasks")
    assert await sql(store, "SELECT reltuples::int FROM pg_class WHERE relname = 'onward_tasks_tenant'") == [(0,)]
