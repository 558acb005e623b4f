"""The statements about the outbox and the subscriptions use an index, although the planner does not know their parameters."""

from __future__ import annotations

from typing import Any

import pytest

from onward.store.postgres.execute import S as P
from onward.store.sqlite.execute import S as L
from onward.store.sqlite.store import SqliteStore
from tests.kit import sql

SQL = {str: "text", int: "int", float: "float8", bool: "bool", type(None): "text"}
DELIVERY: dict[str, Any] = {
    "task": "t",
    "seq": 1,
    "any_seq": False,
    "state": None,
    "any_state": True,
    "subscription": "s",
    "any_subscription": False,
    "tenant": None,
    "any_tenant": True,
    "before": 9,
    "limit": 1,
}
PLANS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "deliveries_of": (DELIVERY, ("onward_outbox_pkey", "sqlite_autoindex_onward_outbox_1")),
    "subscription": (
        {"id": "s", "tenant": None, "any_tenant": True},
        ("onward_subscriptions_pkey", "sqlite_autoindex_onward_subscriptions_1"),
    ),
    "subscriptions": ({"after": "", "limit": 9, "tenant": None, "any_tenant": True}, ("onward_subscriptions_task",)),
    "forget_deliveries": ({"state": "delivered", "age": 1.0, "some": 9}, ("onward_outbox_done",)),
    "fail_all": ({"id": "s", "why": "gone"}, ("onward_outbox_line",)),
    "give_up": ({"lane": "l", "age": 1.0, "some": 9}, ("onward_outbox_lane",)),
    "note_unsent": ({"lane": "l", "why": "no secret", "age": 1.0, "some": 9}, ("onward_outbox_lane",)),
    "crowd": ({"lane": "l", "most": 9}, ("onward_outbox_lane",)),
}


async def plan(store: Any, name: str, values: dict[str, Any]) -> str:
    if isinstance(store, SqliteStore):
        text = f"EXPLAIN QUERY PLAN {L[name].sql}"
        return str(await store._db.writing(lambda c: [row[3] for row in c.execute(text, L[name](**values))]))
    async with store._db.connection() as connection:  # as the sessions of the store do: one plan for all parameters
        types = [SQL[type(values[item])] for item in P[name].names]
        await connection.execute(f"PREPARE plan_{name} ({', '.join(types)}) AS {P[name].sql}")
        given = [f"'{values[item]}'" if values[item] is not None else "NULL" for item in P[name].names]
        rows = await connection.fetch(f"EXPLAIN EXECUTE plan_{name} ({', '.join(given)})")
        return "\n".join(row[0] for row in rows)


async def filled(store: Any) -> None:
    lite = isinstance(store, SqliteStore)
    numbers = "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 5000) SELECT n FROM s)"
    numbers = numbers if lite else "generate_series(1, 5000) AS s(n)"
    await sql(
        store,
        "INSERT INTO onward_subscriptions (id, task_id, tenant, types, kinds, sink, lane, created_at) "
        f"SELECT 's' || n, CASE WHEN n % 1000 > 0 THEN 't' || n END, '', '*', '*', 'x', 'l', 0 FROM {numbers}",
    )
    await sql(
        store,
        "INSERT INTO onward_outbox (task_id, seq, subscription, due_at, at, done_at, state, kind, lane) "
        "SELECT 't' || n, 1, 's' || n, n, n, CASE WHEN n % 3 > 0 THEN n END, CASE n % 3 WHEN 0 THEN 'pending' ELSE 'delivered' END, "
        f"'task.completed', 'l' FROM {numbers}",
    )
    await sql(store, "ANALYZE")


async def test_every_look_has_an_index(store: Any) -> None:
    await filled(store)
    for name, (values, indexes) in PLANS.items():
        plan_text = await plan(store, name, values)
        assert any(index in plan_text for index in indexes), (name, plan_text)
        assert "Seq Scan" not in plan_text, (name, plan_text)


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
async def test_a_take_goes_through_no_more_than_it_needs(store: Any) -> None:
    await filled(store)
    params = {"lane": "l", "room": 8, "holder": "h", "lease": 30.0, "wide": 1000}
    plan_text = await plan(store, "take_deliveries", params)
    assert "Anti Join" not in plan_text, plan_text
    assert "onward_outbox_line" in plan_text
    async with store._db.connection() as connection, connection.transaction():
        await connection.fetch(P["take_deliveries"].sql, *P["take_deliveries"](**params))
        left = (
            "SELECT count(*) FROM (SELECT 1 FROM onward_outbox WHERE state = 'pending' FOR UPDATE SKIP LOCKED) AS free"
        )
        ((free,),) = await sql(store, left)
    assert free == 5000 // 3 - 8, "the rows that are not taken stay free for others"


async def test_a_record_does_not_pay_for_the_subscriptions_of_other_tenants(store: Any) -> None:
    """Three ways through the index, in the trigger of each database."""
    trigger = L["to_outbox"].sql
    if not isinstance(store, SqliteStore):
        ((trigger,),) = await sql(store, "SELECT prosrc FROM pg_proc WHERE proname = 'onward_to_outbox'")
    where = trigger[trigger.index("FROM (") + 6 : trigger.index(") s")].replace("NEW.task_id", "'t'")
    ways = [way.strip() for way in where.split("UNION ALL")]
    assert len(ways) == 3
    numbers = "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 5000) SELECT n FROM s) AS s"
    await sql(
        store,
        "INSERT INTO onward_subscriptions (id, task_id, tenant, types, kinds, sink, lane, created_at) "
        f"SELECT 's' || n, NULL, 'tenant ' || n, '*', '*', 'x', 'l', 0 FROM {numbers}",
    )
    for way in ways:
        if isinstance(store, SqliteStore):
            plan_text = str(await sql(store, f"EXPLAIN QUERY PLAN {way}"))
            assert "USING INDEX onward_subscriptions_task (task_id=?" in plan_text, plan_text
        else:
            await sql(store, "ANALYZE onward_subscriptions")
            plan_text = "\n".join(row[0] for row in await sql(store, f"EXPLAIN {way}"))
            assert "Index Scan using onward_subscriptions_task" in plan_text, plan_text
            assert "Filter" not in plan_text.replace("Bitmap Index Scan", ""), plan_text
