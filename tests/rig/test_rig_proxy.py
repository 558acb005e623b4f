"""The proxy's faults as a client meets them; above all a commit whose answer the client never gets."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import psycopg
import pytest

from rig.postgres import Postgres
from rig.proxy import Proxy

INSERT = "INSERT INTO things VALUES ($1)"
WITH = "WITH new AS (INSERT INTO things VALUES ($1) RETURNING name) SELECT name FROM new"
LOST = (asyncpg.ConnectionDoesNotExistError, ConnectionError)


def names(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM things ORDER BY name")]


async def test_round_trip(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    await connection.execute(INSERT, "a")
    assert await connection.fetchval("SELECT repeat('x', 1000000)") == "x" * 1_000_000
    await connection.executemany(INSERT, [[str(number)] for number in range(100)])
    await connection.close()
    assert len(names(url)) == 101


def test_round_trip_with_psycopg_and_its_ssl_request(proxy: Proxy, url: str) -> None:
    with psycopg.connect(proxy.url_for(url), sslmode="prefer") as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
        with connection.cursor().copy("COPY things FROM STDIN") as copy:
            copy.write_row(["copied"])
    assert names(url) == ["copied"]
    with pytest.raises(psycopg.OperationalError, match="SSL"):
        psycopg.connect(proxy.url_for(url), sslmode="require")


async def test_a_query_can_be_cancelled_through_it(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    with pytest.raises(TimeoutError):
        await connection.execute("SELECT pg_sleep(60)", timeout=0.1)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


async def test_the_last_message_of_the_server_gets_through(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    with pytest.raises(LOST, match="terminating connection due to administrator command"):
        await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def test_commit_unknown_after_execute(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    proxy.cut_after_commit()
    with pytest.raises(LOST):
        await connection.execute(INSERT, "a")
    assert connection.is_closed()
    assert names(url) == ["a"]
    assert proxy.fired == 1
    again = await asyncpg.connect(proxy.url_for(url))
    await again.execute(INSERT, "b")
    await again.close()
    assert proxy.fired == 1


async def test_commit_unknown_after_a_with_insert_select(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    proxy.cut_after_commit(matching="INSERT INTO things")
    assert await connection.fetchval(WITH, "a") == "a", "to the server it is a SELECT"
    proxy.cut_after_commit(matching="INSERT INTO things", any=True)
    with pytest.raises(LOST):
        await connection.fetch(WITH, "b")
    assert names(url) == ["a", "b"]
    assert proxy.fired == 1


async def test_a_statement_prepared_before_is_known_by_its_text(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    insert = await connection.prepare(INSERT)
    await connection.execute("CREATE TABLE others (name text)")
    other = await connection.prepare("INSERT INTO others VALUES ($1)")
    proxy.cut_after_commit(matching="INTO things")
    await other.fetch("a")
    await connection.execute("INSERT INTO others VALUES ('simple')")
    with pytest.raises(LOST):
        await insert.fetch("a")
    assert names(url) == ["a"]


async def test_in_a_transaction_it_is_the_commit_that_is_lost(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    proxy.cut_after_commit(matching="INTO things")
    with pytest.raises(LOST):
        async with connection.transaction():
            await connection.execute(INSERT, "a")
            assert await connection.fetchval("SELECT count(*) FROM things") == 1, (
                "the connection stands until the commit"
            )
    assert names(url) == ["a"]


async def test_a_rollback_loses_no_answer(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    proxy.cut_after_commit(matching="INTO things")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(INSERT, "a")
    await transaction.rollback()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await connection.execute("INSERT INTO things VALUES ('b'); SELECT 1 / 0")
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.executemany(INSERT, [["c"], ["c"]])
    assert proxy.fired == 0
    with pytest.raises(LOST):
        await connection.execute(INSERT, "d")
    assert names(url) == ["d"]


async def test_several_times_and_disarmed(proxy: Proxy, url: str) -> None:
    async def insert(name: str) -> None:
        connection = await asyncpg.connect(proxy.url_for(url))
        try:
            await connection.execute(INSERT, name)
        finally:
            connection.terminate()

    proxy.cut_after_commit(2)
    results = await asyncio.gather(*map(insert, "abcd"), return_exceptions=True)
    assert [isinstance(result, LOST) for result in results].count(True) == proxy.fired == 2
    proxy.cut_after_commit()
    proxy.disarm()
    await insert("e")
    assert names(url) == list("abcde")


def test_commit_unknown_with_psycopg(proxy: Proxy, url: str) -> None:
    proxy.cut_after_commit()
    with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.url_for(url)) as connection:
        connection.execute("INSERT INTO things VALUES (%s)", ["a"])
    with psycopg.connect(proxy.url_for(url), autocommit=True) as connection:
        proxy.cut_after_commit()
        with pytest.raises(psycopg.OperationalError), connection.pipeline():
            connection.execute("INSERT INTO things VALUES (%s)", ["b"])
            connection.execute("INSERT INTO things VALUES (%s)", ["c"])
    assert proxy.fired == 2
    assert names(url) == ["a", "b", "c"]


async def test_cut(proxy: Proxy, url: str) -> None:
    connections = [await asyncpg.connect(proxy.url_for(url)) for _ in range(3)]
    assert proxy.connections == 3
    busy = asyncio.create_task(connections[0].execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0.05)
    proxy.cut()
    assert proxy.connections == 0
    with pytest.raises(LOST):
        await busy
    for connection in connections[1:]:
        with pytest.raises((*LOST, asyncpg.InterfaceError)):
            await connection.execute("SELECT 1")
    await (await asyncpg.connect(proxy.url_for(url))).close()


async def test_pause_and_resume(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    proxy.pause()
    insert = asyncio.create_task(connection.execute(INSERT, "a"))
    newcomer = asyncio.create_task(asyncpg.connect(proxy.url_for(url)))
    await asyncio.sleep(0.2)
    assert not insert.done()
    assert not newcomer.done()
    assert names(url) == []
    proxy.resume()
    await insert
    assert names(url) == ["a"]
    await (await newcomer).close()
    await connection.close()


async def test_cut_while_paused(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    proxy.pause()
    insert = asyncio.create_task(connection.execute(INSERT, "a"))
    await asyncio.sleep(0.05)
    proxy.cut()
    with pytest.raises(LOST):
        await insert
    assert names(url) == []


async def test_delay(proxy: Proxy, url: str) -> None:
    connection = await asyncpg.connect(proxy.url_for(url))
    proxy.delay = 0.1
    start = time.monotonic()
    await connection.execute("SELECT 1")
    assert time.monotonic() - start >= 0.2
    start = time.monotonic()
    await connection.execute("SELECT repeat('x', 3000000)")
    assert time.monotonic() - start < 4, "46 pieces or more, one delay"
    proxy.delay = 0
    await connection.close()


@pytest.mark.slow
async def test_a_server_that_is_down_and_comes_back() -> None:
    with Postgres() as own, Proxy("127.0.0.1", own.port) as proxy:
        connection = await asyncpg.connect(proxy.url_for(own.url))
        own.kill()
        with pytest.raises((*LOST, asyncpg.InterfaceError)):
            await connection.execute("SELECT 1")
        with pytest.raises(LOST):
            await asyncpg.connect(proxy.url_for(own.url))
        own.start()
        await (await asyncpg.connect(proxy.url_for(own.url))).close()


def test_a_url_keeps_its_other_parts() -> None:
    with Proxy("127.0.0.1", 1) as proxy:
        got = proxy.url_for("postgresql://me:secret@db.example:5432/one?application_name=x")
        assert got == f"postgresql://me:secret@127.0.0.1:{proxy.port}/one?application_name=x"
        proxy.close()
