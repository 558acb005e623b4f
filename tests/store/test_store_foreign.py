"""The reads of a claim do not grow with ready tasks that this worker has no handler for, and the reads of a look do not grow with ready
tasks at all. Counted, not timed."""

from __future__ import annotations

import json
from typing import Any

import apsw
import pytest

from onward.core.limit import Limit, LimitRow
from onward.store.port.core import Store
from onward.store.postgres.execute import S as P
from onward.store.sqlite.execute import S as L
from onward.store.sqlite.store import SqliteStore
from tests.kit import claim, join, new, sql, submit

FEW, MANY = 1_000, 20_000
NAMES = ["work", "other", "third"]
LITE = {
    "claim": "ready",
    "line": "line",
    "claim_suspect": "ready_suspect",
    "ready_pairs": "ready_pairs",
    "orphans": "orphans",
}


async def foreign(store: Any, count: int, name: str = "foreign") -> None:
    """Submits `count` ready tasks of a handler that the worker lacks, ahead of all others."""
    numbers = f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s)"
    numbers = numbers if isinstance(store, SqliteStore) else f"generate_series(1, {count}) AS s(n)"
    await sql(
        store,
        "INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options) "
        f"SELECT 'f{name}{count}-' || n, '{name}', 'default', n % 3, 0, '', {blob(store)}, {blob(store)} FROM {numbers}",
    )
    await sql(
        store,
        "INSERT INTO onward_queue (task_id, queue, task, priority, reason) "
        f"SELECT 'f{name}{count}-' || n, 'default', '{name}', n % 3, 'queued' FROM {numbers}",
    )
    await sql(store, "ANALYZE")


def blob(store: Any) -> str:
    return "CAST('{}' AS BLOB)" if isinstance(store, SqliteStore) else "'{}'::bytea"


async def cost(store: Any, statement: str, **params: Any) -> int:
    """The cost of a statement: pages on PostgreSQL, steps of the virtual machine on SQLite. It changes nothing."""
    values = {"worker": "w1", "queue": "default", "names": NAMES, "room": 10, "alone": False, **params}
    if isinstance(store, SqliteStore):
        return await store._db.writing(lambda c: _steps(c, statement, values))
    async with store._db.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        given = [values.get(name, b"{}") for name in P[statement].names]
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {P[statement].sql}", *given)
        await transaction.rollback()
    plan = json.loads(text)[0]["Plan"]
    assert "Seq Scan" not in _nodes(plan, "onward_queue"), plan
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _nodes(plan: dict[str, Any], table: str) -> list[str]:
    own = [plan["Node Type"]] if plan.get("Relation Name") == table else []
    return own + [node for part in plan.get("Plans", ()) for node in _nodes(part, table)]


def _steps(connection: apsw.Connection, statement: str, values: dict[str, Any]) -> int:
    given = L[LITE[statement]](**values | {"names": json.dumps(values["names"])})
    count = 0

    def step() -> bool:
        nonlocal count
        count += 1
        return False

    connection.set_progress_handler(step, 1)
    try:
        list(connection.execute(L[LITE[statement]].sql, given))
    finally:
        connection.set_progress_handler(None)
    return count


@pytest.mark.parametrize("statement", ["claim", "line"])
async def test_a_claim_reads_no_more_with_many_foreign_tasks(store: Store, statement: str) -> None:
    await join(store, "w1")
    await foreign(store, FEW)
    nothing = await cost(store, statement)
    await submit(store, *[new(name) for name in NAMES for _ in range(4)])
    something = await cost(store, statement)
    await foreign(store, MANY)
    assert await cost(store, statement) <= something * 1.5 + 20
    assert len(await claim(store, names=NAMES, room=20)) == 12
    assert await cost(store, statement) <= nothing * 1.5 + 60


async def test_a_claim_under_a_limit_finds_its_own_behind_many_foreign_tasks(store: Store) -> None:
    await join(store, "w1")
    await store.queues.set_limits([LimitRow("task", "work", Limit(concurrency=2))])
    await foreign(store, FEW)
    ids = await submit(store, *[new() for _ in range(4)])
    assert [task.id for task in await claim(store, names=NAMES)] == ids[:2]


async def test_a_suspect_is_found_behind_many_others(store: Any) -> None:
    await join(store, "w1")
    await foreign(store, FEW, "work")
    (suspect,) = await submit(store)
    await sql(store, f"UPDATE onward_queue SET crashes = 3 WHERE task_id = '{suspect}'")
    few = await cost(store, "claim_suspect", alone=True, room=1)
    await foreign(store, MANY, "work")
    assert await cost(store, "claim_suspect", alone=True, room=1) <= few * 1.5 + 20
    assert [task.id for task in await claim(store, room=1, alone=True)] == [suspect]


async def test_several_names_keep_priority_and_order(store: Store) -> None:
    """Whatever handlers the tasks have: priority first, then the order of submission, one by one or at once."""
    await join(store, "w1")
    tasks = [new(NAMES[n * 7 % 3], priority=n * 5 % 4) for n in range(24)]
    await submit(store, *tasks)
    wanted = [task.id for task in sorted(tasks, key=lambda task: -task.priority)]
    taken = [held_task.id for held_task in await claim(store, names=NAMES, room=5)]
    taken += [(await claim(store, names=NAMES, room=1))[0].id for _ in range(7)]
    taken += [held_task.id for held_task in await claim(store, names=NAMES, room=50)]
    assert taken == wanted


async def test_several_names_keep_the_turns_of_groups(store: Store) -> None:
    await join(store, "w1")
    many = [new(NAMES[n % 3], group="many") for n in range(6)]
    await submit(store, *many)
    (late,) = await submit(store, new("other", group="late"))
    taken = [task.id for task in await claim(store, names=NAMES, room=2)]
    assert taken == [many[0].id, late], "the first of another group takes its turn with what is served just now"


@pytest.mark.slow
async def test_a_look_reads_no_more_with_many_ready_tasks(store: Any) -> None:
    """It hops from handler to handler: a hundred thousand ready children of one parent cost one hop."""
    await submit(store, *[new(name) for name in NAMES for _ in range(4)])
    await foreign(store, FEW)
    few = await cost(store, "ready_pairs")
    await foreign(store, MANY)
    await foreign(store, MANY, "work")
    assert await cost(store, "ready_pairs") <= few * 1.5 + 20
    outlook = await store.wake([*NAMES, "foreign"])
    assert outlook.queues == ("default",)


async def test_a_look_finds_every_pair_of_queue_and_handler(store: Store) -> None:
    pairs = [(queue, name) for queue in ("a", "b", "default") for name in ("x", "y", "work")][:-1]
    await submit(store, *[new(name, queue=queue) for queue, name in pairs for _ in range(2)])
    for wanted in (["x"], ["y"], ["work"], ["x", "work"], ["nothing"]):
        outlook = await store.wake(wanted)
        assert outlook.queues == tuple(sorted({queue for queue, name in pairs if name in wanted}))
    assert (await store.wake()).queues == ("a", "b", "default")


async def test_orphans_are_looked_for_among_parents(store: Any) -> None:
    """Thousands of tasks without a parent cost nothing."""
    (parent,) = await submit(store, new())
    await submit(store, *[new(parent=parent) for _ in range(5)])
    params = {"after": "", "most": 100}
    few = await cost(store, "orphans", **params)
    await foreign(store, MANY)
    assert await cost(store, "orphans", **params) <= few * 1.5 + 20
