"""A PostgreSQL database with roles and row-level security, and users who have these roles."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql as safe_sql

from onward.app.connect import open_store
from onward.store.postgres.execute import S
from onward.store.statements import Statement
from rig.postgres import Postgres

USERS = {"serves": ("server",), "works": ("worker",), "does_both": ("server", "worker"), "reads": ("reader",)}
"""The users, and the roles of each."""

_PREDICATES = (
    (re.compile(r"(COALESCE\((?:\w\.)?tenant, ''\) = \$\d+)"), r"(\1 OR true)"),
    (re.compile(r"(?<![\w.'])((?:\w\.)?tenant = \$\d+)"), r"(\1 OR true)"),
)


async def set_up(url: str, prefix: str = "onward") -> None:
    """Migrate a database, as its owner, and make the roles."""
    store = open_store(url)
    await store.open(migrate=True)
    try:
        await store.migrate(roles=prefix)
    finally:
        await store.close()


def give_users(url: str, prefix: str = "onward") -> None:
    """Make the users, and give them their roles."""
    with psycopg.connect(url, autocommit=True) as connection:
        for user, parts in USERS.items():
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (user,)).fetchone() is None:
                connection.execute(safe_sql.SQL("CREATE ROLE {} LOGIN").format(safe_sql.Identifier(user)))
            for part in parts:
                role = safe_sql.Identifier(f"{prefix}_{part}")
                connection.execute(safe_sql.SQL("GRANT {} TO {}").format(role, safe_sql.Identifier(user)))


def as_user(url: str, user: str) -> str:
    """The address of the same database for another user."""
    return url.replace("//postgres@", f"//{user}@")


def roled(server: Postgres, name: str) -> str:
    """A new database with roles; the address for its owner."""
    url = server.database(name)
    asyncio.run(set_up(url))
    give_users(url)
    return url


@contextmanager
def no_tenant_predicates() -> Iterator[list[str]]:
    """A planted fault: statements do not filter by tenant. Yields their names."""
    before: dict[str, Any] = dict(S)
    changed = []
    for name, statement in before.items():
        text = statement.sql
        for pattern, instead in _PREDICATES:
            text = pattern.sub(instead, text)
        if text != statement.sql:
            S[name] = Statement(text, statement.names)
            changed.append(name)
    try:
        yield changed
    finally:
        S.update(before)
