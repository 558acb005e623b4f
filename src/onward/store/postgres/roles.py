"""Roles of PostgreSQL with the rights that each part of Onward needs, and row-level security by tenant.

`onward migrate --roles` makes four roles without a login. The operator grants them to the users of the processes:

- *server*: for `onward serve` and for commands of an operator. It may become *tenant*.
- *worker*: for `onward worker`. It cannot read or create keys.
- *reader*: for reports and backups of rows. It reads everything but the hashes of keys.
- *tenant*: for reads on behalf of a tenant (`tenancy.py`). Row-level security shows it the rows of the tenant that the setting
  `onward.tenant` names, and none without that setting.

Only the owner of the tables can change them or the roles' rights. For the first three roles the policies are `true`, which the planner
removes. It still treats the table as one with row-level security: an equality over an expression that is not leakproof gives no order
then, and a claim would sort all ready tasks of a handler. So the queue has no policies. The role of tenants has no right to it, and reads a
view of it instead, which shows the rows of the tenant (`tenancy.py` puts its name into the statements).

A new table gets a row in `TABLES`, or a test fails. Each run of `onward migrate` that changes tables applies the rights anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncpg

from onward.errors import UsageError

PARTS = ("server", "worker", "reader", "tenant")
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,39}")

NO_RIGHTS = ""
READS = "SELECT"
ADDS = "SELECT, INSERT"
ADDS_AND_DROPS = "SELECT, INSERT, DELETE"
CHANGES = "SELECT, INSERT, UPDATE, DELETE"

BY_COLUMN = "tenant = ({setting})"
BY_TASK = "(SELECT t.tenant FROM {schema}.onward_tasks t WHERE t.id = task_id) = ({setting})"
BY_SUBSCRIPTION = "(SELECT s.tenant FROM {schema}.onward_subscriptions s WHERE s.id = subscription) = ({setting})"
# A subquery, so that it is read once for a statement and not once for a row.
SETTING = "SELECT current_setting('onward.tenant', true)"


class Rights(NamedTuple):
    """The rights to a table. A lock of a row needs UPDATE on some column: where a table has such rows and is never changed, that is the
    column of least use."""

    server: str
    worker: str
    tenant_rows: str | None = None
    """The condition for rows of a tenant; None for a table that has none."""
    reader: str = READS
    tenant: str = NO_RIGHTS
    """The rights of the role of tenants to a table without rows of tenants."""
    view: str | None = None
    """The name of the view that tenants read instead of the table; the table then has no row-level security."""


QUEUE_VIEW = "onward_queue_of_tenant"

_LOCKED_TASKS = f"{ADDS_AND_DROPS}, UPDATE (priority)"
_SEALED_AGAIN = f"{ADDS_AND_DROPS}, UPDATE (data)"
_LOCKED_OUTCOMES = f"{ADDS_AND_DROPS}, UPDATE (attempt)"
_TRIMMED_JOURNAL = f"{ADDS_AND_DROPS}, UPDATE (kind, key, data)"
_KEY_COLUMNS = "id, name, tenant, scopes, agent, created_at, expires_at, revoked_at, last_used_at"
_SESSION_COLUMNS = "id, person, name, roles, tenant, created_at, last_used_at, idle_s, expires_at"

TABLES: dict[str, Rights] = {
    "onward_tasks": Rights(_LOCKED_TASKS, _LOCKED_TASKS, BY_COLUMN),
    "onward_queue": Rights(CHANGES, CHANGES, BY_TASK, view=QUEUE_VIEW),
    "onward_journal": Rights(_TRIMMED_JOURNAL, _TRIMMED_JOURNAL, BY_TASK),
    "onward_outcomes": Rights(_LOCKED_OUTCOMES, _LOCKED_OUTCOMES, BY_TASK),
    "onward_inbox": Rights(_SEALED_AGAIN, _SEALED_AGAIN, BY_TASK),
    "onward_contents": Rights(_SEALED_AGAIN, _SEALED_AGAIN, BY_TASK),
    "onward_purses": Rights(CHANGES, CHANGES, BY_TASK),
    "onward_subscriptions": Rights(CHANGES, CHANGES, BY_COLUMN),
    "onward_outbox": Rights(CHANGES, CHANGES, BY_SUBSCRIPTION),
    "onward_keys": Rights(
        f"{ADDS}, UPDATE (revoked_at, last_used_at)", NO_RIGHTS, BY_COLUMN, reader=f"SELECT ({_KEY_COLUMNS})"
    ),
    "onward_sessions": Rights(CHANGES, NO_RIGHTS, BY_COLUMN, reader=f"SELECT ({_SESSION_COLUMNS})"),
    "onward_askers": Rights(ADDS_AND_DROPS, ADDS_AND_DROPS, BY_TASK),
    "onward_data_keys": Rights(CHANGES, CHANGES, BY_COLUMN, reader=NO_RIGHTS),
    "onward_audit": Rights(ADDS, READS, BY_COLUMN),
    "onward_audit_end": Rights(f"{READS}, UPDATE", READS),
    "onward_tenant_quotas": Rights(CHANGES, READS, BY_COLUMN),
    "onward_dead_letters": Rights(CHANGES, CHANGES, BY_COLUMN),
    "onward_intakes": Rights(CHANGES, CHANGES, BY_COLUMN),
    "onward_locks": Rights(CHANGES, CHANGES, BY_COLUMN),
    "onward_lock_counters": Rights("SELECT, UPDATE", "SELECT, UPDATE"),
    "onward_documents": Rights(CHANGES, CHANGES, BY_COLUMN),
    "onward_schedules": Rights(CHANGES, CHANGES),
    "onward_limits": Rights(CHANGES, CHANGES),
    "onward_buckets": Rights(CHANGES, CHANGES),
    "onward_quotas": Rights(READS, CHANGES),
    "onward_workers": Rights(f"{READS}, UPDATE (lease_until, rate)", CHANGES, tenant="SELECT (id, lease_until)"),
    "onward_handlers": Rights(READS, f"{ADDS}, UPDATE"),
    "onward_epochs": Rights(READS, READS),
    "onward_minutes": Rights(READS, CHANGES, tenant=NO_RIGHTS),
    "onward_migrations": Rights(READS, READS),
    "onward_schema": Rights(READS, READS),
}
"""All tables. (The server's `UPDATE (lease_until, rate)`: it reads the clock with a heartbeat of no worker.)"""

FIND_PREFIX = """
SELECT left(r.rolname, -length('_tenant'))
FROM pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS o(oid) JOIN pg_roles r ON r.oid = o.oid
WHERE p.polrelid = to_regclass('onward_tasks') AND p.polname = 'onward_tenant_rows' AND r.rolname LIKE '%\\_tenant'
"""
MISSING_ROLES = """
SELECT n FROM unnest($1::text[]) WITH ORDINALITY AS w(n, place) WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = n) ORDER BY place
"""
# Users with rights of their own to the tasks. With row-level security and no role of ours they would see no row.
STRANGERS = """
SELECT DISTINCT COALESCE(r.rolname, 'PUBLIC') FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE c.oid = to_regclass('onward_tasks') AND a.grantee <> c.relowner AND (a.grantee = 0 OR NOT (r.rolname = ANY($1::text[]) OR r.rolsuper
      OR r.rolbypassrls OR EXISTS (SELECT 1 FROM unnest($2::text[]) AS o(n) WHERE pg_has_role(r.oid, o.n, 'MEMBER'))))
ORDER BY 1
"""
POLICIES = """
SELECT c.relname, p.polname FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid WHERE c.relnamespace = current_schema()::regnamespace
"""
SECURED = """
SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relrowsecurity
"""
SEQUENCES = """
SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'S' AND relname LIKE 'onward\\_%' ORDER BY 1
"""
PRESENT = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'onward\\_%'"


def check_prefix(prefix: str) -> str:
    """Raises UsageError for a prefix that would need quotes in SQL."""
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(
            f"the prefix of roles is {prefix!r:.60}; it has small letters, digits and underscores, at most 40, and begins with no digit"
        )
    return prefix


def names(prefix: str) -> dict[str, str]:
    """The names of the roles, by part."""
    return {part: f"{prefix}_{part}" for part in PARTS}


async def prefix_of(connection: Any) -> str | None:
    """The prefix of the roles of this database; None where no roles are set up."""
    prefix = await connection.fetchval(FIND_PREFIX)
    return None if prefix is None else str(prefix)


async def set_up(connection: Any, prefix: str, where: str) -> None:
    """Make the roles, their rights and the policies, in the transaction of this connection; roles and policies that exist stay. Raises
    UsageError where the user of this connection may not, or another user would lose its sight of the tables."""
    roles = names(check_prefix(prefix))
    present = await prefix_of(connection)
    if present not in {None, prefix}:
        raise UsageError(
            f"{where} has roles with the prefix {present!r} already; run `onward migrate --roles {present}`, or drop its policies first"
        )
    await _make_roles(connection, roles, where)
    secured = {row[0] for row in await connection.fetch(SECURED)}
    if "onward_tasks" not in secured:
        await _check_strangers(connection, roles, where)
    schema = await connection.fetchval("SELECT quote_ident(current_schema())")
    tables = [row[0] for row in await connection.fetch(PRESENT) if row[0] in TABLES]
    policies = {(row[0], row[1]) for row in await connection.fetch(POLICIES)}
    statements = [f"GRANT USAGE ON SCHEMA {schema} TO {', '.join(roles.values())}"]
    for table in tables:
        rights = TABLES[table]
        statements += _rights(schema, table, rights, roles)
        if rights.view is not None:
            statements += _view(schema, table, rights, roles)
            continue
        statements += [sql for name, sql in _policies(schema, table, rights, roles) if (table, name) not in policies]
        if table not in secured:
            statements.append(f"ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY")
    both = f"{roles['server']}, {roles['worker']}"
    for (sequence,) in await connection.fetch(SEQUENCES):  # `submit` reads where the line of a queue ends
        statements.append(f"GRANT USAGE, SELECT ON SEQUENCE {schema}.{sequence} TO {both}")
    statements += [
        f"REVOKE EXECUTE ON FUNCTION {schema}.onward_watch(boolean) FROM PUBLIC",
        f"GRANT EXECUTE ON FUNCTION {schema}.onward_watch(boolean) TO {both}",
    ]
    try:
        await connection.execute(";\n".join(statements))
    except asyncpg.InsufficientPrivilegeError as error:
        raise UsageError(f"{where}: {error}; run `onward migrate --roles` as the owner of the tables") from None


async def _make_roles(connection: Any, roles: dict[str, str], where: str) -> None:
    new = [row[0] for row in await connection.fetch(MISSING_ROLES, list(roles.values()))]
    statements = [f"CREATE ROLE {name} NOLOGIN" for name in new]
    member = (
        await connection.fetchval("SELECT pg_has_role($1::name, $2::name, 'MEMBER')", roles["server"], roles["tenant"])
        if not new
        else False
    )
    if not member:
        statements.append(f"GRANT {roles['tenant']} TO {roles['server']}")
    try:
        for statement in statements:
            await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError as error:
        script = "; ".join(statements)
        raise UsageError(
            f"{where}: the user of this connection may not make roles ({error}); let an administrator run: {script}; and then run "
            "`onward migrate --roles` again as the owner of the tables"
        ) from None


async def _check_strangers(connection: Any, roles: dict[str, str], where: str) -> None:
    ours = [roles[part] for part in ("server", "worker", "reader")]
    strangers = [row[0] for row in await connection.fetch(STRANGERS, list(roles.values()), ours)]
    if strangers:
        grants = "; ".join(f"GRANT {roles['server']} TO {name}" for name in strangers if name != "PUBLIC")
        raise UsageError(
            f"{where}: {', '.join(strangers)} may read the tables by rights of their own, and would see no row any more; give each a role "
            f"({grants or 'by name'}) or revoke those rights, and run this again"
        )


def _rights(schema: str, table: str, rights: Rights, roles: dict[str, str]) -> list[str]:
    tenant = READS if rights.tenant_rows and rights.view is None else rights.tenant
    given = {"server": rights.server, "worker": rights.worker, "reader": rights.reader, "tenant": tenant}
    statements = [f"REVOKE ALL ON {schema}.{table} FROM {', '.join(roles.values())}"]
    return statements + [
        f"GRANT {right} ON {schema}.{table} TO {roles[part]}" for part, right in given.items() if right
    ]


def _policies(schema: str, table: str, rights: Rights, roles: dict[str, str]) -> Sequence[tuple[str, str]]:
    all_rows = ", ".join(roles[part] for part in PARTS if part != "tenant" or not rights.tenant_rows)
    policies = [
        (
            "onward_all_rows",
            f"CREATE POLICY onward_all_rows ON {schema}.{table} TO {all_rows} USING (true) WITH CHECK (true)",
        )
    ]
    if rights.tenant_rows is not None:
        condition = rights.tenant_rows.format(schema=schema, setting=SETTING)
        sql = (
            f"CREATE POLICY onward_tenant_rows ON {schema}.{table} FOR SELECT TO {roles['tenant']} USING ({condition})"
        )
        policies.append(("onward_tenant_rows", sql))
    return policies


def _view(schema: str, table: str, rights: Rights, roles: dict[str, str]) -> list[str]:
    """The view is made anew, with the columns that the table has now. (A migration that removes one of them has to drop the view first.)"""
    condition = (rights.tenant_rows or "").format(schema=schema, setting=SETTING)
    return [
        f"DROP VIEW IF EXISTS {schema}.{rights.view}",
        f"CREATE VIEW {schema}.{rights.view} WITH (security_barrier) AS SELECT * FROM {schema}.{table} WHERE {condition}",  # noqa: S608 -- ours
        f"GRANT SELECT ON {schema}.{rights.view} TO {roles['tenant']}",
    ]


# ── for `onward doctor` ──────────────────────────────────────────────────────────────────────────────────────────────

LOOK = """
SELECT current_user AS name, r.rolsuper AS super, r.rolbypassrls AS bypasses,
       pg_has_role((SELECT relowner FROM pg_class WHERE oid = to_regclass('onward_tasks')), 'MEMBER') AS owner
FROM pg_roles r WHERE r.rolname = current_user
"""


async def check(connection: Any) -> tuple[str, bool | None, str]:
    """The check of `onward doctor`: whether roles are set up, and whether this process has more rights than it needs."""
    user = await connection.fetchrow(LOOK)
    too_much = [
        reason
        for reason, holds in (
            ("a superuser", user["super"]),
            ("exempt from row-level security (BYPASSRLS)", user["bypasses"] and not user["super"]),
            ("the owner of the tables", user["owner"] and not user["super"]),
        )
        if holds
    ]
    described = f"connected as {user['name']}" + (f", {' and '.join(too_much)}" if too_much else "")
    prefix = await prefix_of(connection)
    if prefix is None:
        return "roles", None, f"not set up: {described}; `onward migrate --roles` makes roles with fewer rights"
    secured = {row[0] for row in await connection.fetch(SECURED)}
    present = {row[0] for row in await connection.fetch(PRESENT)}
    present -= {table for table, rights in TABLES.items() if rights.view is not None}
    if bare := sorted(present - secured):
        return "roles", False, f"no row-level security on {', '.join(bare)}: run `onward migrate --roles {prefix}`"
    if too_much:
        return "roles", False, f"set up, but {described}: connect as a member of {prefix}_server or {prefix}_worker"
    return "roles", True, f"set up, row-level security by tenant; {described}"
