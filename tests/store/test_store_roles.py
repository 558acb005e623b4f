"""Roles on PostgreSQL: what each may do, and what nobody but the owner may."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg import sql as safe_sql

from onward import Limit, Onward
from onward.app.connect import open_store
from onward.core.audit import AuditEvent
from onward.core.key import KeyRow
from onward.errors import StoreUnavailable, UsageError
from onward.store import migrate
from onward.store.postgres import roles
from onward.store.postgres.execute import S
from onward.store.sqlite.store import SqliteStore
from rig.postgres import Postgres
from tests.roled import USERS, as_user, give_users, roled, set_up


@pytest.fixture(scope="module")
def owner_url(postgres: Postgres) -> str:
    return roled(postgres, "roles")


def test_every_table_has_its_rights() -> None:
    made = {
        name
        for migration in migrate.load("postgres")
        for name in re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", migration.sql)
    }
    assert made | {"onward_migrations", "onward_schema"} == set(roles.TABLES), "say in `roles.TABLES` who may do what"
    tenant = re.compile(r"CREATE TABLE (\w+) \([^;]*\b(?:tenant|task_id)\b", re.DOTALL)
    with_tenants = {name for migration in migrate.load("postgres") for name in tenant.findall(migration.sql)}
    assert {name for name, rights in roles.TABLES.items() if rights.tenant_rows} == with_tenants | {"onward_tasks"}


@pytest.mark.parametrize(
    ("user", "statement"),
    [
        ("works", "INSERT INTO onward_keys (id, hash, name, scopes, created_at) VALUES ('k', '', '', '', 0)"),
        ("works", "SELECT hash FROM onward_keys"),
        ("works", "INSERT INTO onward_audit VALUES (1, 0, NULL, NULL, '', '', '', '', '', '')"),
        ("works", "DELETE FROM onward_tenant_quotas"),
        ("serves", "UPDATE onward_keys SET hash = ''"),
        ("serves", "DELETE FROM onward_keys"),
        ("serves", "UPDATE onward_audit SET name = ''"),
        ("serves", "DELETE FROM onward_audit"),
        ("serves", "DELETE FROM onward_audit_end"),
        ("works", "UPDATE onward_audit_end SET number = 9"),
        ("serves", "INSERT INTO onward_workers (id) VALUES ('w')"),
        ("serves", "UPDATE onward_handlers SET schema = ''"),
        ("reads", "SELECT hash FROM onward_keys"),
        ("reads", "DELETE FROM onward_tasks"),
        ("reads", "INSERT INTO onward_inbox (task_id) VALUES ('t')"),
        ("does_both", "UPDATE onward_journal SET seq = 7"),
        ("does_both", "UPDATE onward_tasks SET tenant = 'globex'"),
        ("does_both", "TRUNCATE onward_tasks"),
        ("does_both", "ALTER TABLE onward_tasks DISABLE ROW LEVEL SECURITY"),
        ("does_both", "DROP POLICY onward_tenant_rows ON onward_tasks"),
        ("does_both", "CREATE INDEX stray ON onward_tasks (task)"),
        ("does_both", "DROP TABLE onward_quotas"),
        ("does_both", "CREATE OR REPLACE FUNCTION onward_now() RETURNS float8 LANGUAGE sql AS 'SELECT 0::float8'"),
        ("does_both", "DELETE FROM onward_migrations"),
        ("does_both", "SET ROLE postgres"),
        ("works", "SET ROLE onward_tenant"),
    ],
)
def test_a_role_may_not(owner_url: str, user: str, statement: str) -> None:
    with psycopg.connect(as_user(owner_url, user)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)  # type: ignore[arg-type] -- of this file


@pytest.mark.parametrize("user", list(USERS))
def test_every_role_reads_the_tasks_of_all_tenants(owner_url: str, user: str) -> None:
    with psycopg.connect(owner_url) as connection:
        connection.execute(
            "INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options, tenant) "
            "VALUES ('t1', '', '', 0, 0, '', '', '', 'acme'), ('t2', '', '', 0, 0, '', '', '', NULL) ON CONFLICT DO NOTHING"
        )
    with psycopg.connect(as_user(owner_url, user)) as connection:
        assert {row[0] for row in connection.execute("SELECT id FROM onward_tasks")} >= {"t1", "t2"}
        plan = "\n".join(row[0] for row in connection.execute("EXPLAIN SELECT * FROM onward_tasks WHERE id = 'x'"))
        assert "Filter" not in plan, "the policy of all rows is gone from the plan"


OF_THE_OWNER = {"seal_input", "mark_mirror", *(name for name in S if name.startswith("epoch_"))}
"""Statements that only the owner of the tables runs: `onward encryption seal`, the first opening of a mirror, and `onward restore`."""


def test_roles_change_no_plan(owner_url: str) -> None:
    """A policy that is always true is not free: an equality over an expression of a table with policies gives no order."""
    with psycopg.connect(owner_url, autocommit=True) as owner, psycopg.connect(as_user(owner_url, "does_both")) as user:
        owner.execute(
            "INSERT INTO onward_queue (task_id, queue, task, priority, reason) "
            "SELECT 'q' || n, 'default', 'work' || n %% 7, n %% 3, 'queued' FROM generate_series(1, 5000) n ON CONFLICT DO NOTHING",
            (),
        )
        owner.execute("ANALYZE")
        compared, changed = 0, []
        for name, statement in S.items():
            if name in OF_THE_OWNER:
                continue
            plans = [_plan(connection, statement.sql) for connection in (owner, user)]
            compared += plans[0] is not None
            changed += [name] if plans[0] != plans[1] else []
    assert changed == []
    assert compared > 200
    with psycopg.connect(owner_url, autocommit=True) as owner, psycopg.connect(as_user(owner_url, "does_both")) as user:
        for statement in (
            "CREATE POLICY planted ON onward_queue USING (true)",
            "ALTER TABLE onward_queue ENABLE ROW LEVEL SECURITY",
        ):
            owner.execute(statement)
        try:
            assert _plan(owner, S["claim"].sql) != _plan(user, S["claim"].sql)
        finally:
            owner.execute("ALTER TABLE onward_queue DISABLE ROW LEVEL SECURITY")
            owner.execute("DROP POLICY planted ON onward_queue")


def _plan(connection: psycopg.Connection[Any], statement: str) -> str | None:
    """The plan for any parameters, whatever the order of the parts of a filter; None for a part of a statement."""
    try:
        with connection.transaction():
            connection.execute("SET LOCAL enable_seqscan = off")
            rows = connection.execute(f"EXPLAIN (GENERIC_PLAN, COSTS OFF) {statement}")  # type: ignore[arg-type] -- ours
            return "\n".join("".join(sorted(line)) if "Filter: " in line else line for (line,) in rows)
    except (psycopg.errors.SyntaxError, psycopg.errors.UndefinedTable, psycopg.errors.IndeterminateDatatype):
        return None


@pytest.fixture
async def worked(owner_url: str) -> AsyncIterator[tuple[Onward, Onward]]:
    """The app of a server, without a worker, and that of a worker."""
    webhooks = {"webhook_secret": "whsec_" + "MDEy" * 10, "webhook_allow_private": "true"}
    apps = [
        Onward(as_user(owner_url, user), poll_s=0.05, lease_s=2.0, heartbeat_s=0.5, **webhooks)
        for user in ("serves", "works")
    ]
    async with apps[0], apps[1]:
        yield apps[0], apps[1]


async def test_a_server_and_a_worker_do_their_work_with_their_roles(
    worked: tuple[Onward, Onward], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)
    server, worker = worked

    @worker.task(limit=Limit(1))
    async def child(ctx: Any, n: int) -> int:
        return n

    @worker.task
    async def parent(ctx: Any) -> int:
        await ctx.step(lambda: 1, name="one")
        asked = await ctx.ask("how many?")
        handles = [await ctx.submit("child", number) for number in range(int(asked))]
        return sum([await handle for handle in handles])

    @worker.task
    async def tick(ctx: Any) -> None: ...

    worker.schedule("nightly", tick, cron="0 3 * * *")
    async with worker.worker():
        task = await server.submit("parent", webhook="http://127.0.0.1:1/")
        (ask,) = [ask async for ask in _asks(server, task.id)]
        await server.answer(ask.id, 3)
        assert await task.result(timeout=60) == 3
        await server.pause_schedule("nightly")
        await server.keys.create("a key", ["read"], tenant="acme")
        for app in (server, worker):
            other = await server.submit("parent")
            await app.cancel(other.id)
            assert await app.prune(other.id) == 1
    checks = {check.name: check for check in await server.service.health.checks()}
    assert checks["roles"].fine, checks["roles"]
    assert "row-level security by tenant; connected as serves" in checks["roles"].detail


async def _asks(app: Onward, task_id: str) -> AsyncIterator[Any]:
    from tests.kit import eventually

    async def look() -> Any:
        return [ask for ask in await app.asks() if ask.task_id == task_id]

    for ask in await eventually(look):
        yield ask


async def test_a_worker_cannot_create_a_key(worked: tuple[Onward, Onward]) -> None:
    _, worker = worked
    event = AuditEvent("create_key", "k", None, None, "", {})
    with pytest.raises(StoreUnavailable, match="permission denied for table onward_keys"):
        await worker.store.keys.add(KeyRow("k", b"", "", None, "", None, None, 0.0, None, None, None, 0.0), None, event)


async def test_doctor_says_who_is_connected(owner_url: str, postgres: Postgres) -> None:
    async def look(url: str) -> tuple[Any, ...]:
        store = open_store(url)
        await store.open()
        try:
            return next(check for check in await store.health.doctor() if check[0] == "roles")
        finally:
            await store.close()

    _, ok, text = await look(owner_url)
    assert not ok
    assert "connected as postgres, a superuser" in text
    assert (await look(as_user(owner_url, "works")))[1] is True
    bare = postgres.database("bare")
    _, ok, text = await look(bare)
    assert ok is None
    assert "not set up: connected as postgres, a superuser; `onward migrate --roles`" in text
    with psycopg.connect(owner_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE onward_inbox DISABLE ROW LEVEL SECURITY")
    _, ok, text = await look(as_user(owner_url, "works"))
    assert (ok, "no row-level security on onward_inbox" in text) == (False, True)
    await set_up(owner_url)  # again: it repairs
    assert (await look(as_user(owner_url, "works")))[1] is True


async def test_roles_have_another_prefix_and_a_later_migration_keeps_them(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.database("prefixed")
    older = [m for m in migrate.load("postgres") if m.number < migrate.load("postgres")[-1].number]
    newest = migrate.load("postgres")[-1]
    monkeypatch.setattr(migrate, "load", lambda _: older)
    await set_up(url, "shop")
    monkeypatch.setattr(migrate, "load", lambda _: [*older, newest])
    store = open_store(url)
    await store.open(migrate=True)
    await store.close()
    give_users(url, "shop")
    with psycopg.connect(as_user(url, "serves")) as connection:
        for table in roles.TABLES:
            connection.execute(safe_sql.SQL("SELECT count(*) FROM {}").format(safe_sql.Identifier(table)))
    for prefix, sentence in (
        ("onward", "has roles with the prefix 'shop'"),
        ("Shop", "small letters"),
        ('x"y', "small"),
    ):
        with pytest.raises(UsageError, match=sentence):
            await set_up(url, prefix)


async def test_a_user_who_would_see_nothing_any_more_is_named(postgres: Postgres) -> None:
    url = postgres.database("strangers")
    store = open_store(url)
    await store.open()
    await store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS bystander")
        connection.execute("CREATE ROLE bystander LOGIN")
        connection.execute("GRANT SELECT ON onward_tasks TO bystander")
    with pytest.raises(UsageError, match="bystander may read the tables by rights of their own"):
        await set_up(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("GRANT onward_server TO bystander")
    await set_up(url)


async def test_an_owner_who_may_make_no_roles_is_told_the_statements(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS owned")
        connection.execute("DROP ROLE IF EXISTS proprietor")
        connection.execute("CREATE ROLE proprietor LOGIN")
        connection.execute("CREATE DATABASE owned OWNER proprietor")
    url = as_user(postgres.url_of("owned"), "proprietor")
    with pytest.raises(UsageError, match="let an administrator run: CREATE ROLE land_server NOLOGIN"):
        await set_up(url, "land")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for part in roles.PARTS:
            connection.execute(safe_sql.SQL("CREATE ROLE {} NOLOGIN").format(safe_sql.Identifier(f"land_{part}")))
        connection.execute("GRANT land_tenant TO land_server")
    await set_up(url, "land")


async def test_sqlite_has_no_roles() -> None:
    store = SqliteStore(":memory:")
    await store.open()
    with pytest.raises(UsageError, match="has no roles"):
        await store.migrate(roles="onward")
    await store.close()
