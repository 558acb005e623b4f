"""A snapshot that is held elsewhere: `doctor` names its holder, and claims do not read rows that were claimed before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onward.app.connect import open_store
from onward.store.postgres import marks as postgres_marks
from onward.store.postgres import snapshots
from onward.store.postgres.execute import S as P
from onward.store.shared.search import listings
from rig.postgres import Postgres
from tests.kit import (
    Time,
    claim,
    completion,
    eventually,
    join,
    new,
    only_postgres,
    running,
    sql,
    submit,
    together,
    waiting,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running(Postgres(settings={"fsync": "off", "max_prepared_transactions": "2"})) as postgres:
        yield postgres


async def snapshot_check(url: str) -> tuple[str, bool, str]:
    store = open_store(url)
    await store.open()
    try:
        (check,) = [entry for entry in await store.health.doctor() if entry[0] == "snapshots"]
        return check
    finally:
        await store.close()


async def test_doctor_names_the_session_that_holds_the_oldest_snapshot(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.database("held")
    assert (await snapshot_check(url))[1]
    monkeypatch.setattr(snapshots, "MAX_AGE_S", 0.0)
    with psycopg.connect(url, application_name="report") as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT 1")
        _, fine, words = await snapshot_check(url)
        assert not fine
        assert f"session {holder.info.backend_pid} (" in words
        assert "report" in words
        assert f"pg_terminate_backend({holder.info.backend_pid})" in words
    monkeypatch.undo()
    assert await snapshot_check(url) == ("snapshots", True, "none is held for long")


async def test_doctor_names_a_prepared_transaction(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.database("prepared")
    await snapshot_check(url)
    monkeypatch.setattr(snapshots, "MAX_AGE_S", 0.0)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE somewhere (n int)")
        connection.execute("PREPARE TRANSACTION 'forgotten'")
        try:
            _, fine, words = await snapshot_check(url)
            assert not fine
            assert "prepared transaction forgotten" in words
            assert "ROLLBACK PREPARED 'forgotten'" in words
        finally:
            connection.execute("ROLLBACK PREPARED 'forgotten'")


def test_a_slot_counts_by_transactions() -> None:
    slot: dict[str, Any] = {"kind": "replication slot", "name": "old", "about": "inactive", "seconds": None}
    assert snapshots.check([slot | {"behind": snapshots.MAX_BEHIND - 1}])[1]
    _, fine, words = snapshots.check([slot | {"behind": snapshots.MAX_BEHIND}])
    assert not fine
    assert words.startswith("replication slot old (inactive) holds one 100,000 transactions back")
    assert "pg_drop_replication_slot('old')" in words


# ── claims while the server cannot clean up ──────────────────────────────────────────────────────────────────────────

CHURNED_TASKS = 1_500


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the store take every claim for slow, with dead rows as the cause."""
    monkeypatch.setattr(postgres_marks, "SLOW_CLAIM_S", -1.0)
    monkeypatch.setattr(postgres_marks, "MIN_DEAD_ROWS", -1)
    monkeypatch.setattr(postgres_marks, "SLACK", 10)
    monkeypatch.setattr(postgres_marks, "MIN_LIFE_S", 3600.0)


async def churn(store: Any, count: int) -> None:
    """Submits and completes `count` tasks."""
    await store.submit([new() for _ in range(count)])
    while held := await claim(store, room=500):
        await store.save("w1", together(*[completion(task) for task in held]))


async def pages(store: Any, statement: str, **values: Any) -> int:
    """The blocks that a claim of one task reads of the queue's index. It changes nothing."""
    params = {"worker": "w1", "queue": "default", "names": ["work"], "room": 1, "data": b"{}", **values}
    async with store._db.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        text = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {P[statement].sql}", *P[statement](**params)
        )
        await transaction.rollback()
    return _scanned(json.loads(text)[0]["Plan"])


def _scanned(plan: dict[str, Any]) -> int:
    own = int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]) if plan.get("Index Name") == INDEX else 0
    return own + sum(_scanned(part) for part in plan.get("Plans", ()))


INDEX = "onward_queue_name"


@pytest.mark.usefixtures("marked")
async def test_a_claim_does_not_read_rows_that_were_claimed_before(server: Postgres) -> None:
    url = server.database("churned")
    store: Any = open_store(url)
    await store.open()
    await join(store, "w1", lease=600)
    with psycopg.connect(url) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT count(*) FROM onward_queue")
        await churn(store, CHURNED_TASKS)
        few = await pages(store, "claim")
        await churn(store, CHURNED_TASKS * 2)
        assert await pages(store, "claim") > few * 2, "VOID: the snapshot holds nothing back"
        store._marks = store._nudges._marks = postgres_marks.Marks()
        assert await claim(store) == []
        values = store._marks.of("default", ["work"], 0.0)
        assert values is not None, "a slow claim is followed by a survey"
        assert await pages(store, "claim_from", **values) <= 20
        (late,) = await submit(store)
        assert [task.id for task in await claim(store)] == [late]
    await store.close()


async def test_a_list_and_a_nudge_look_queue_rows_up_by_their_ids(server: Postgres) -> None:
    """The server's statistics count no living row in the queue, so that a full scan seems cheap."""
    url = server.database("churned_lists")
    store: Any = open_store(url)
    await store.open()
    await join(store, "w1", lease=600)
    with psycopg.connect(url) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT count(*) FROM onward_queue")
        await churn(store, CHURNED_TASKS * 3)
        await sql(store, "ANALYZE")
        (task_id,) = await submit(store)
        ((name, values),) = listings(20, None, {})
        for statement, parameters in (
            (name, values),
            ("notify_workers", {"ids": [task_id], "prefix": "p", "spare": 1}),
        ):
            plan = await explained(store, statement, parameters)
            scanned = _blocks(plan, "onward_queue")
            assert scanned <= 200, f"{statement} reads {scanned} blocks of the queue"
        assert (await sql(store, "SELECT pg_relation_size('onward_queue') / 8192"))[0][0] > 60, "VOID: it is small"
    await store.close()


async def explained(store: Any, statement: str, parameters: dict[str, Any]) -> dict[str, Any]:
    async with store._db.connection() as connection:
        text = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {P[statement].sql}", *P[statement](**parameters)
        )
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


def _blocks(plan: dict[str, Any], table: str) -> int:
    """Blocks that scans of a table and of its indexes read."""
    of_table = plan.get("Relation Name") == table or plan.get("Index Name", "").startswith(table)
    if of_table:
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    return sum(_blocks(part, table) for part in plan.get("Plans", ()))


@only_postgres
@pytest.mark.usefixtures("marked")
async def test_a_task_that_becomes_ready_behind_a_mark_is_found(store: Any, time: Time) -> None:
    """Slept, rescued, resumed by its own process, or with another priority: after the marks are dropped, claims find
    them in the right order."""
    await join(store, "w1", "w2")
    old = await submit(store, *[new() for _ in range(3)])
    held = await claim(store, room=3)
    await store.save("w1", waiting(held[0], time.now + 5, "sleeping"))
    await submit(store, *[new() for _ in range(30)])
    assert len(await claim(store, "w2", room=25)) == 25
    assert store._marks.of("default", ["work"], 0.0) is not None
    time.move(6)
    await store.workers.heartbeat("w2", 10, 0)
    assert (await store.wake()).woken
    assert (await claim(store, "w2", room=1))[0].id == old[0], "woken by this process"
    await claim(store, "w2", room=1)
    time.move(6)
    await store.workers.heartbeat("w2", 10, 0)
    await store.workers.rescue(["w1"])
    store.nudge("ready")
    assert [task.id for task in await claim(store, "w2", room=2)] == old[1:], "rescued, and nudged"
    await claim(store, "w2", room=1)
    (hot,) = await submit(store, new(priority=7))
    store._nudges._receive("again default")
    assert (await claim(store, "w2", room=1))[0].id == hot


@only_postgres
async def test_marks_end_by_themselves(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that became ready behind a mark, without a nudge, is found when the marks have ended."""
    monkeypatch.setattr(postgres_marks, "SLOW_CLAIM_S", -1.0)
    monkeypatch.setattr(postgres_marks, "MIN_DEAD_ROWS", -1)
    monkeypatch.setattr(postgres_marks, "SLACK", 0)
    monkeypatch.setattr(postgres_marks, "MIN_LIFE_S", 0.2)
    await join(store, "w1")
    (old,) = await submit(store)
    await sql(store, f"UPDATE onward_queue SET due_at = 'Infinity' WHERE task_id = '{old}'")
    await submit(store, new(), new())
    await claim(store, room=1)
    await sql(store, f"UPDATE onward_queue SET due_at = NULL WHERE task_id = '{old}'")

    async def claimed_it() -> bool:
        return old in [task.id for task in await claim(store, room=1)]

    await eventually(claimed_it)


@only_postgres
async def test_there_are_no_marks_where_the_server_cleans_up(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_marks, "SLOW_CLAIM_S", -1.0)
    await join(store, "w1")
    await submit(store)
    await claim(store)
    assert store._marks.of("default", ["work"], 0.0) is None
