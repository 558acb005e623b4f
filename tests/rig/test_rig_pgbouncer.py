"""PgBouncer in transaction mode: a connection is not a session."""

from __future__ import annotations

import os
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest

from rig import server
from rig.pgbouncer import PgBouncer, version
from rig.postgres import Postgres
from rig.proxy import Proxy
from tests.kit import running


@pytest.fixture(scope="module")
def bouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    with running(PgBouncer(postgres.url)) as bouncer:
        yield bouncer


async def test_round_trip(bouncer: PgBouncer, url: str) -> None:
    connection = await asyncpg.connect(bouncer.url_for(url), statement_cache_size=0)
    async with connection.transaction():
        await connection.execute("INSERT INTO things VALUES ($1)", "a")
    assert await connection.fetchval("SELECT count(*) FROM things") == 1
    await connection.close()


def test_two_transactions_of_one_connection_on_two_backends(bouncer: PgBouncer, url: str) -> None:
    def backend(connection: psycopg.Connection[tuple[object, ...]]) -> object:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row
        return row[0]

    through = bouncer.url_for(url)
    with psycopg.connect(through) as first_connection, psycopg.connect(through) as other:
        first = backend(first_connection)
        assert backend(first_connection) == first, "within a transaction there is one backend"
        assert backend(other) != first, "and no other connection has it"
        first_connection.commit()
        other.commit()
        seen = set()
        for _ in range(4):
            seen.add(backend(first_connection))
            first_connection.commit()
    assert len(seen) == 2


def test_it_comes_back_on_the_same_port_and_leaves_nothing(bouncer: PgBouncer, postgres: Postgres) -> None:
    with PgBouncer(postgres.url, pool_mode="session", settings={"default_pool_size": "1"}) as own:
        url, pid = own.url, own.pid
        own.kill()
        own.start()
        assert own.url == url
        with psycopg.connect(own.url) as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
        home = own.home
    assert pid is not None
    assert not server.alive(pid)
    assert not home.exists()


async def test_the_proxy_understands_it_too(bouncer: PgBouncer, url: str) -> None:
    with Proxy("127.0.0.1", bouncer.port) as proxy:
        connection = await asyncpg.connect(proxy.url_for(url), statement_cache_size=0)
        proxy.cut_after_commit(matching="INSERT INTO things")
        with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionError)):
            async with connection.transaction():
                await connection.execute("INSERT INTO things VALUES ($1)", "a")
    with psycopg.connect(url) as direct:
        assert direct.execute("SELECT name FROM things").fetchall() == [("a",)]


def test_its_version(bouncer: PgBouncer) -> None:
    assert version() >= (1, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_where_user_namespaces_are_forbidden(
    bouncer: PgBouncer, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "guise", lambda: server.Guise(uid=server.NOBODY))
    with PgBouncer(postgres.url) as own, psycopg.connect(own.url) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
