"""Row-level security: a statement that forgets to filter by tenant shows a tenant nothing of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from onward import Onward
from onward.errors import StoreUnavailable, TaskNotFound
from onward.server.access.service import AuthorizedService
from onward.service.submission import SubmitRequest
from rig.pgbouncer import PgBouncer
from rig.postgres import Postgres
from tests.kit import running, sql
from tests.roled import as_user, no_tenant_predicates, roled
from tests.server.tenants import all_rows, caller, make_tenants
from tests.server.test_access import VERBS, Inspector


@pytest.fixture(scope="module")
def owner_url(postgres: Postgres) -> str:
    return roled(postgres, "row_security")


async def _app(url: str) -> AsyncIterator[Onward]:
    async with Onward(url, lease_s=1.0, heartbeat_s=0.1, poll_s=0.05, grace_s=1.0, slots=10) as app:
        yield app


@pytest.fixture
async def app(owner_url: str) -> AsyncIterator[Onward]:
    """An app of a server, which may also work."""
    async for app in _app(as_user(owner_url, "does_both")):
        yield app


async def test_a_statement_that_forgets_the_tenant_shows_nothing_of_others(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    doors = {tenant: AuthorizedService(app.service, caller(tenant)) for tenant in ("acme", "globex")}
    ids = {tenant: (await door.submit([SubmitRequest("work", 1)]))[0] for tenant, door in doors.items()}
    for tenant, door in doors.items():
        assert [task.task_id for task in (await door.list())[0]] == [ids[tenant]]
    with no_tenant_predicates() as faults:
        assert {"get", "list_tenant", "asked", "keys", "audit_tenant", "subscription"} <= set(faults)
        for tenant, door in doors.items():
            other = ids["acme" if tenant == "globex" else "globex"]
            assert [task.task_id for task in (await door.list())[0]] == [ids[tenant]]
            assert (await door.get(ids[tenant])).tenant == tenant
            for verb in (door.get, door.journal, door.cancel, door.timeline):
                with pytest.raises(TaskNotFound):
                    await verb(other)
            assert {entry.tenant for entry in await door.audit()} <= {tenant}
        everyone = AuthorizedService(app.service, caller(None))
        assert {task.task_id for task in (await everyone.list())[0]} >= set(ids.values()), "the operator sees all"
        app.store._db.tenant_reads.role = None  # type: ignore[attr-defined] -- as without roles: the fault is one
        app.store._db.tenant_reads._look_at = float("inf")  # type: ignore[attr-defined]
        assert (await doors["acme"].get(ids["globex"])).tenant == "globex"


@pytest.mark.slow
async def test_no_verb_shows_anything_of_others_when_all_statements_forget_the_tenant(
    app: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)
    acme = (await make_tenants(app))["acme"]
    look, stranger = Inspector(app, acme), caller("globex")
    with no_tenant_predicates():
        before = await all_rows(app)
        leaks = [leak for name, verb in VERBS.items() for leak in await look._by_tenant(name, verb, stranger)]
        after = await all_rows(app)
    assert leaks == []
    of_acme = [row for rows in before.values() for row in rows if acme.asker in row or acme.fixer in row]
    kept = {row for rows in after.values() for row in rows}
    assert [row for row in of_acme if row not in kept] == []
    for name, verb in VERBS.items():  # the tenant itself can do all of it
        who = caller(None) if verb.place or name == "schedules" else caller("acme")
        if name in {"decide", "cancel"}:
            who = caller("acme", agent="reviewer")
        assert await verb.use(AuthorizedService(app.service, who), acme) != [] or name in {"workers", "versions"}


async def test_a_read_for_a_tenant_leaves_nothing_in_its_session(app: Onward) -> None:
    door = AuthorizedService(app.service, caller("o'hara\\' -- \u00e9"))
    assert await door.list() == ([], None)
    connection = await app.store._db._tenant_pool.borrow()  # type: ignore[attr-defined]
    try:
        assert await connection.fetchval("SELECT current_user") == "does_both"
        assert await connection.fetchval("SELECT COALESCE(current_setting('onward.tenant', true), '')") == ""
    finally:
        app.store._db._tenant_pool.give_back(connection, sound=True)  # type: ignore[attr-defined]


async def test_reads_that_come_at_once_wait_until_the_role_is_known(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    await app.service.submit([SubmitRequest("work", 1, tenant="acme")])
    stranger = AuthorizedService(app.service, caller("vandelay"))
    with no_tenant_predicates():
        assert await asyncio.gather(*(stranger.list() for _ in range(10))) == [([], None)] * 10


async def test_it_holds_behind_a_transaction_pooler(owner_url: str, postgres: Postgres) -> None:
    with running(PgBouncer(postgres.url, settings={"default_pool_size": "2"})) as bouncer:
        async for app in _app(bouncer.url_for(owner_url)):

            @app.task
            async def work(ctx: Any, n: int) -> None: ...

            doors = {tenant: AuthorizedService(app.service, caller(tenant)) for tenant in ("umbrella", "hooli")}
            ids = {tenant: (await door.submit([SubmitRequest("work", 1)]))[0] for tenant, door in doors.items()}
            with no_tenant_predicates():
                for tenant, door in doors.items():
                    lists = await asyncio.gather(*(door.list() for _ in range(10)))
                    assert {task.task_id for tasks, _ in lists for task in tasks} == {ids[tenant]}
            assert {row[0] for row in await sql(app.store, "SELECT current_user")} == {"postgres"}


async def test_the_role_of_tenants_sees_nothing_without_a_tenant(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    await AuthorizedService(app.service, caller("acme")).submit([SubmitRequest("work", 1)])
    async with app.store._db.connection() as connection, connection.transaction():  # type: ignore[attr-defined]
        assert await connection.fetchval("SELECT count(*) FROM onward_tasks") > 0
        await connection.execute("SET LOCAL ROLE onward_tenant")
        for table in ("tasks", "journal", "queue_of_tenant", "keys", "audit", "subscriptions"):
            assert await connection.fetchval(f"SELECT count(*) FROM onward_{table}") == 0
        await connection.execute("SELECT set_config('onward.tenant', 'acme', true)")
        tasks = {row[0] for row in await connection.fetch("SELECT id FROM onward_tasks")}
        assert {row[0] for row in await connection.fetch("SELECT task_id FROM onward_queue_of_tenant")} <= tasks
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT task_id FROM onward_queue")


async def test_a_user_who_may_not_become_the_role_serves_no_tenant(owner_url: str) -> None:
    async for app in _app(as_user(owner_url, "works")):
        with pytest.raises(StoreUnavailable, match="may not become the role onward_tenant"):
            await AuthorizedService(app.service, caller("acme")).list()
        assert await sql(app.store, "SELECT count(*) FROM onward_tasks")
