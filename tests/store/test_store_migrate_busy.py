"""migrate on a database that is large or at work: others are not stalled, limits do not end it, it goes on where it was interrupted,
and a program of the version before works on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from onward.app.connect import open_store
from onward.core.task import State
from onward.errors import SchemaMismatch, StoreUnavailable
from onward.store import migrate
from onward.store.migrate import Progress
from onward.store.port.core import Store
from onward.store.postgres import migrate as postgres_migrate
from onward.store.postgres import session as postgres_session
from tests.kit import claim, completion, eventually, join, new, not_memory, only_postgres, sql, submit
from tests.store.test_store_migrate import NEXT, open_and_close, plus_one

INDEX = "CREATE INDEX CONCURRENTLY onward_extra ON onward_tasks (created_at);"
ALTER = "ALTER TABLE onward_tasks ADD COLUMN extra text;"


@contextlib.asynccontextmanager
async def reader(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A session that has read the tasks and leaves its transaction open."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await connection.execute("SELECT count(*) FROM onward_tasks")
        yield connection


class Messages(list[Progress]):
    """The progress messages of a migration."""

    __call__ = list.append

    def has(self, part: str) -> bool:
        return any(part in item.said for item in self)

    async def waits_for(self, part: str, running: asyncio.Future[None]) -> None:
        async def look() -> bool:
            return self.has(part) or running.done()

        await eventually(look)
        if running.done():
            running.result()
        assert self.has(part)


async def valid(store: Store) -> list[tuple[Any, ...]]:
    return await sql(store, "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('onward_extra')")


@pytest.mark.slow
@only_postgres
async def test_an_open_read_stalls_no_one_for_longer_than_the_lock_timeout(fresh_url: str) -> None:
    old = open_store(fresh_url)
    await old.open()
    ahead, messages = plus_one(open_store(fresh_url), ALTER), Messages()
    async with reader(fresh_url):
        running = asyncio.ensure_future(ahead.open(migrate=True, tell=messages))
        longest = 0.0
        while sum("lock" in item.said for item in messages) < 3 and not running.done():
            began = time.monotonic()
            await submit(old)
            longest = max(longest, time.monotonic() - began)
        assert not running.done(), "it tries again for as long as the reader is there"
        assert longest < 10, "it was 15 s; the timeout is a fraction of a second"
        assert messages.has("pid"), "and names the session in the way"
    await asyncio.wait_for(running, 60)
    assert await sql(ahead, "SELECT count(extra) FROM onward_tasks") == [(0,)]
    await ahead.close()
    await old.close()


@only_postgres
async def test_a_reader_that_never_leaves_ends_it_with_a_sentence(
    fresh_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_and_close(fresh_url)
    monkeypatch.setattr(postgres_migrate, "MAX_WAIT_S", 1.0)
    async with reader(fresh_url):
        with pytest.raises(StoreUnavailable, match=r"waited .* for a lock .*run `onward migrate` again"):
            await plus_one(open_store(fresh_url), ALTER).open(migrate=True)
    again = plus_one(open_store(fresh_url), ALTER)
    await again.open(migrate=True)
    await again.close()


@pytest.mark.slow
@only_postgres
async def test_no_limit_of_a_statement_ends_it(fresh_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the limit of the database, nor that of Onward's own connections."""
    await open_and_close(fresh_url)
    with psycopg.connect(fresh_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options) "
            "SELECT lpad(n::text, 26, '0'), 'work', 'default', 0, n, '', '1', '{}' FROM generate_series(1, 200000) n"
        )
        connection.execute("ALTER DATABASE fresh SET statement_timeout = '40ms'")
    monkeypatch.setattr(postgres_session, "STATEMENT_TIMEOUT_S", 0.5)
    ahead = plus_one(open_store(fresh_url), f"{ALTER}\nSELECT pg_sleep(1);\n{INDEX}")
    messages = Messages()
    await ahead.open(migrate=True, tell=messages)
    assert await ahead.version() == (NEXT, NEXT)
    assert await valid(ahead) == [(True,)]
    assert messages.has("onward_extra")
    await ahead.close()


@only_postgres
async def test_an_index_is_made_while_others_write(fresh_url: str) -> None:
    """Also an index without CONCURRENTLY in its script, as in the existing migrations: its table existed before."""
    old = open_store(fresh_url)
    await old.open()
    await join(old, "w1")
    ahead, messages = plus_one(open_store(fresh_url), INDEX.replace("CONCURRENTLY ", "")), Messages()
    async with reader(fresh_url):
        running = asyncio.ensure_future(ahead.open(migrate=True, tell=messages))
        await messages.waits_for("waiting for", running)
        for _ in range(20):
            await submit(old)
        (held, *_) = await claim(old, room=1)
        assert await old.save("w1", completion(held)) == set()
        assert not running.done()
        assert await valid(old) == [(False,)]
    await asyncio.wait_for(running, 60)
    assert await valid(ahead) == [(True,)]
    await ahead.close()
    await old.close()


@only_postgres
async def test_interrupted_it_goes_on(fresh_url: str) -> None:
    """Its script ran and is not run again; the index that was being built is invalid, and is built again."""
    await open_and_close(fresh_url)
    script = f"CREATE TABLE onward_made (n INTEGER);\n{INDEX}"
    first, messages = plus_one(open_store(fresh_url), script), Messages()
    async with reader(fresh_url):
        running = asyncio.ensure_future(first.open(migrate=True, tell=messages))
        await messages.waits_for("waiting for", running)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        old = open_store(fresh_url)
        await old.open()  # the version before goes on
        assert await valid(old) == [(False,)]
        assert await sql(old, "SELECT count(*) FROM onward_made") == [(0,)]
        assert await old.version() == (NEXT - 1, NEXT - 1), "a migration without its indexes has not run"
        await old.close()
    with pytest.raises(SchemaMismatch, match="onward migrate"):
        await plus_one(open_store(fresh_url), script).open()
    again = plus_one(open_store(fresh_url), script)
    await again.open(migrate=True)
    assert await valid(again) == [(True,)]
    assert await again.version() == (NEXT, NEXT)
    await again.close()


@only_postgres
async def test_an_index_that_failed_is_made_anew(fresh_url: str) -> None:
    await open_and_close(fresh_url)
    with psycopg.connect(fresh_url, autocommit=True) as connection:
        connection.execute("INSERT INTO onward_handlers VALUES ('a', '', 1), ('b', '', 1)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("CREATE UNIQUE INDEX CONCURRENTLY onward_extra ON onward_handlers (offered_at)")
    ahead = plus_one(open_store(fresh_url), INDEX)
    await ahead.open(migrate=True)
    assert await valid(ahead) == [(True,)]
    assert "onward_tasks" in str(await sql(ahead, "SELECT pg_get_indexdef('onward_extra'::regclass)"))
    await ahead.close()


@only_postgres
async def test_an_index_that_another_session_builds_is_waited_for(fresh_url: str) -> None:
    """After a kill of `migrate`, the server goes on with its statement for a while."""
    await open_and_close(fresh_url)
    ahead, messages = plus_one(open_store(fresh_url), INDEX), Messages()
    async with await psycopg.AsyncConnection.connect(fresh_url, autocommit=True) as builder:
        async with reader(fresh_url):
            left = asyncio.ensure_future(builder.execute(INDEX))
            watch = open_store(fresh_url)
            await watch.open()

            async def begun() -> Any:
                return await valid(watch)

            await eventually(begun)
            ((made,),) = await sql(watch, "SELECT to_regclass('onward_extra')::oid")
            await watch.close()
            running = asyncio.ensure_future(ahead.open(migrate=True, tell=messages))
            await messages.waits_for("another session", running)
        await asyncio.wait_for(left, 60)
    await asyncio.wait_for(running, 60)
    assert await sql(ahead, "SELECT to_regclass('onward_extra')::oid") == [(made,)]
    assert await valid(ahead) == [(True,)]
    await ahead.close()


@only_postgres
async def test_a_run_that_waits_for_another_has_no_open_transaction(fresh_url: str) -> None:
    """The index of the other run would wait for the end of that transaction, and the two would wait for each other for ever."""
    await open_and_close(fresh_url)
    ahead, messages = plus_one(open_store(fresh_url), INDEX), Messages()
    async with await psycopg.AsyncConnection.connect(fresh_url, autocommit=True) as other:
        await other.execute("SELECT pg_advisory_lock(%s)", [postgres_migrate.LOCK])
        running = asyncio.ensure_future(ahead.open(migrate=True, tell=messages))
        await messages.waits_for("another `onward migrate`", running)

        async def rests() -> bool:
            query = "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'onward migrate'"
            return await (await other.execute(query)).fetchall() == [("idle",)]

        await eventually(rests, 20)
    await asyncio.wait_for(running, 60)
    assert await valid(ahead) == [(True,)]
    await ahead.close()


@pytest.mark.slow
@only_postgres
async def test_two_at_once(fresh_url: str) -> None:
    await open_and_close(fresh_url)
    script = f"CREATE TABLE onward_made (n INTEGER);\n{INDEX}"
    stores = [plus_one(open_store(fresh_url), script) for _ in range(2)]
    message_lists = [Messages(), Messages()]
    async with reader(fresh_url):
        running = [
            asyncio.ensure_future(s.open(migrate=True, tell=t)) for s, t in zip(stores, message_lists, strict=True)
        ]

        async def one_waits() -> bool:
            return any(t.has("another `onward migrate`") for t in message_lists) and any(
                t.has("waiting for") for t in message_lists
            )

        await eventually(one_waits)
    await asyncio.wait_for(asyncio.gather(*running), 60)
    for store in stores:
        assert await store.version() == (NEXT, NEXT)
        assert await valid(store) == [(True,)]
        await store.close()


@not_memory
async def test_the_messages_of_several_migrations(fresh_url: str) -> None:
    await open_and_close(fresh_url)
    ahead = plus_one(plus_one(open_store(fresh_url), ALTER), f"CREATE TABLE onward_made (n INTEGER);\n{INDEX}")
    messages = Messages()
    await ahead.open(migrate=True, tell=messages)
    assert await ahead.version() == (NEXT + 1, NEXT + 1)
    assert [item.migration for item in messages if item.said == "done"] == [f"{n:04}_extra" for n in (NEXT, NEXT + 1)]
    assert await ahead.migrate() == []
    await ahead.close()


# ── a program of the version before ──────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_an_older_program_works_on_newer_tables(fresh_url: str) -> None:
    """Expanding migrations: an upgrade can be taken back."""
    ahead = plus_one(open_store(fresh_url), f"{ALTER}\n{INDEX}")
    await ahead.open(migrate=True)
    await submit(ahead, new(key="a"))
    await ahead.close()
    for migrate_option in (None, True, False):
        old = open_store(fresh_url)
        await old.open(migrate=migrate_option)
        assert await old.version() == (NEXT, NEXT - 1)
        await join(old, "w1")
        (task_id,) = await submit(old)
        held = {task.id: task for task in await claim(old)}
        assert await old.save("w1", completion(held[task_id])) == set()
        assert (await old.get(task_id)).state is State.COMPLETED  # type: ignore[union-attr]
        assert await old.migrate() == []
        await old.workers.leave("w1")
        await old.close()


@not_memory
async def test_a_program_that_is_too_old_is_refused(fresh_url: str) -> None:
    """Contracting migrations: columns that older programs use are gone."""
    ahead = plus_one(
        plus_one(open_store(fresh_url)), f"-- oldest: {NEXT:04}\nALTER TABLE onward_extra RENAME TO onward_rest"
    )
    await ahead.open(migrate=True)
    await ahead.close()
    for migrate_option in (None, True, False):
        old = open_store(fresh_url)
        with pytest.raises(
            SchemaMismatch, match=rf"newer Onward.*{NEXT + 1}.*{NEXT}.*{NEXT - 1}.*upgrade this program"
        ):
            await old.open(migrate=migrate_option)
        with pytest.raises(StoreUnavailable, match="not open"):
            await old.get("x")
    almost = plus_one(open_store(fresh_url))
    await almost.open()
    await almost.close()


def test_no_migration_of_this_major_version_shuts_older_programs_out() -> None:
    for dialect in ("sqlite", "postgres"):
        assert [m.name for m in migrate.load(dialect) if m.oldest] == []


def test_which_indexes_are_made_beside_the_script() -> None:
    migration = migrate.Migration(
        12,
        "0012_x",
        "CREATE TABLE a (n int);\nCREATE INDEX a_n ON a (n);\n"
        "CREATE INDEX b_n ON b (n)\n    WHERE n > 1;\n-- why\nCREATE UNIQUE INDEX CONCURRENTLY c_n ON c (n);\nDROP INDEX d;",
    )
    assert [index.name for index in migration.indexes] == ["b_n", "c_n"]
    assert migration.indexes[0].sql == "CREATE INDEX CONCURRENTLY b_n ON b (n)\n    WHERE n > 1"
    assert migration.indexes[1].sql == "CREATE UNIQUE INDEX CONCURRENTLY c_n ON c (n)"
    assert "CREATE INDEX a_n ON a (n);" in migration.script
    assert "DROP INDEX d;" in migration.script
    assert "b_n" not in migration.script
    assert "c_n" not in migration.script
    assert "CONCURRENTLY" not in migration.whole
    assert migration.whole.count("INDEX") == 4


RELEASED = {
    "postgres": (
        "c83f80f950499635",
        "16b8efa3f8cce3b8",
        "631897de9cd5a212",
        "d3b0ead5e1a4042e",
        "b42e27d8ff60b82e",
        "63d28547a36c5911",
        "b6a74ca9c4c668f0",
        "434548e50bf68a55",
        "a08ddc0b3aeb1872",
        "86095b3adce1d32c",
    ),
    "sqlite": (
        "fba3ac319c94cc06",
        "2920a55e324373fc",
        "7a5e19c70665662a",
        "ccdb8321e7e6a511",
        "50b920ecadd98610",
        "7395192edf8ffde6",
        "9083aaaac8820fb1",
        "57d212ccdac218c6",
        "99090d5a30ffe444",
        "1f9551c38f579da4",
    ),
}
"""The checksums of the first migrations, as databases have them."""


@pytest.mark.parametrize("dialect", RELEASED)
def test_the_migrations_that_databases_have_stay_as_they_are(dialect: str) -> None:
    checksums = [item.checksum for item in migrate.load(dialect)]
    assert tuple(checksums[: len(RELEASED[dialect])]) == RELEASED[dialect], "add another one instead"


@only_postgres
@pytest.mark.owner
async def test_one_by_one_they_make_the_same_tables_as_all_at_once(url: str, fresh_url: str) -> None:
    old: Any = open_store(fresh_url)
    old._migrations = old._migrations[:1]
    await old.open()
    await old.close()
    stepwise, whole = open_store(fresh_url), open_store(url)
    messages = Messages()
    await stepwise.open(migrate=True, tell=messages)
    await whole.open()
    assert messages.has("index onward_tasks_parent: begins")
    for shape in (
        "SELECT pg_get_indexdef(indexrelid), indisvalid FROM pg_index WHERE indrelid::regclass::text LIKE 'onward%' ORDER BY 1",
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns "
        "WHERE table_name LIKE 'onward%' ORDER BY 1, 2",
        "SELECT proname, prosrc FROM pg_proc WHERE proname LIKE 'onward%' AND proname <> 'onward_now' ORDER BY 1",
    ):
        assert await sql(stepwise, shape) == await sql(whole, shape)
    await stepwise.close()
    await whole.close()
