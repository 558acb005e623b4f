"""Measures the cost of roles and row-level security on PostgreSQL: `python -m bench.roles`.

Three rows for each read: without roles; with roles, for a caller without a tenant; with roles, for a caller with a tenant. And the work of a
worker, without roles and with them. Each figure is the best of its rounds: what others do on the machine only slows a round down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from onward import Onward
from onward.core.caller import Caller
from onward.server.access.service import AuthorizedService
from onward.service.submission import SubmitRequest
from rig.postgres import Postgres

TENANTS, TASKS, RECORDS = 50, 20_000, 1_000
READS, WORK = 300, 2_000
ROUNDS = 9

FILL = """
INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options, tenant)
SELECT lpad(n::text, 26, '0'), 'work', 'default', 0, 0, '', 'null', '{}', 't' || n %% %(tenants)s FROM generate_series(1, %(tasks)s) n;
"""
RESULTS = """
INSERT INTO onward_journal SELECT id, s, 1, CASE s WHEN 1 THEN 'task.submitted' ELSE 'step.completed' END, '', '{"result":1}', 0
FROM onward_tasks, generate_series(1, 4) s;
INSERT INTO onward_journal SELECT lpad('1', 26, '0'), s, 1, 'step.completed', '', '{"result":1}', 0 FROM generate_series(5, %(records)s) s;
INSERT INTO onward_outcomes SELECT id, 'completed', 1, 4, 0 FROM onward_tasks;
ANALYZE
"""


def main() -> None:
    """Measure and print."""
    with Postgres() as server:
        plain, roled = server.database("plain"), server.database("roled")
        for url in (plain, roled):
            asyncio.run(_prepare(url, roles=url == roled))
        with psycopg.connect(roled, autocommit=True) as connection:
            connection.execute("CREATE ROLE member LOGIN")
            connection.execute("GRANT onward_server, onward_worker TO member")
        member = roled.replace("//postgres@", "//member@")
        asyncio.run(_measure(plain, member))


async def _prepare(url: str, *, roles: bool) -> None:
    app = Onward(url)
    async with app:
        if roles:
            await app.store.migrate(roles="onward")
    numbers = {"tenants": TENANTS, "tasks": TASKS, "records": RECORDS}
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (FILL % numbers + RESULTS % numbers).split(";"):
            connection.execute(statement)  # type: ignore[arg-type] -- of this file


async def _measure(plain: str, member: str) -> None:
    """The repeats are the outermost loop, so that whatever drifts on the machine drifts for all."""
    apps = {"without roles": _app(plain), "with roles": _app(member)}
    own = "1".rjust(26, "0")
    calls: dict[str, Callable[[AuthorizedService], Awaitable[Any]]] = {
        "get": lambda door: door.get(own),
        "list of 50": lambda door: door.list(limit=50),
        "journal of 1,000": lambda door: door.journal(own),
    }
    took: dict[tuple[str, str, str], list[float]] = {}
    rates: dict[str, list[float]] = {}
    async with apps["without roles"], apps["with roles"]:
        for _ in range(ROUNDS):
            for name, app in apps.items():
                for who in (Caller(), Caller(tenant="t1")):
                    door = AuthorizedService(app.service, who)
                    for verb, call in calls.items():
                        key = (verb, name, "a tenant" if who.tenant else "no tenant")
                        took.setdefault(key, []).append(await _milliseconds(lambda door=door, call=call: call(door)))  # type: ignore[misc]
                rates.setdefault(name, []).append(await _rate(app))
    for (verb, name, caller), times in sorted(took.items()):
        print(f"{verb:18} {name:14} {caller:10} {min(times):7.3f} ms")
    for name, of_app in rates.items():
        print(f"{'tasks of one step':18} {name:14} {'worker':10} {max(of_app):7.0f} /s")


def _app(url: str) -> Onward:
    app = Onward(url, slots=100)

    @app.task
    async def work(ctx: Any) -> None:
        await ctx.step(lambda: 1, name="one")

    return app


async def _milliseconds(call: Callable[[], Awaitable[Any]]) -> float:
    await call()
    began = time.perf_counter()
    for _ in range(READS):
        await call()
    return (time.perf_counter() - began) / READS * 1000


async def _rate(app: Onward) -> float:
    ids = await app.service.submit([SubmitRequest("work") for _ in range(WORK)])
    began = time.perf_counter()
    async with app.worker():
        for task_id in ids:
            await app.service.wait(task_id, 120)
    return WORK / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
