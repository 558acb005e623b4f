"""open and migrate: from nothing, twice, by many at once; a database of another version is refused with a sentence."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import pytest

from onward.app.connect import open_store
from onward.core.task import State
from onward.errors import SchemaMismatch, StoreUnavailable
from onward.store import migrate
from onward.store.port.core import Store
from tests.kit import join, new, not_memory, only_file, only_postgres, row, sql, submit

NEXT = migrate.load("sqlite")[-1].number + 1
"""The number of the migration after the last."""


def plus_one(store: Any, sql: str = "CREATE TABLE onward_extra (n INTEGER)") -> Store:
    """The same store in a program that is one migration ahead."""
    newest = store._migrations[-1].number
    store._migrations = [*store._migrations, migrate.Migration(newest + 1, f"{newest + 1:04}_extra", sql)]
    return store  # type: ignore[no-any-return]


async def test_from_nothing(fresh_url: str) -> None:
    store = open_store(fresh_url)
    await store.open()
    newest, ours = await store.version()
    assert newest == ours >= 1
    assert await store.migrate() == [], "there is nothing left to do"
    await store.close()


async def test_open_twice_and_close_twice(fresh_url: str) -> None:
    store = open_store(fresh_url)
    await store.close()
    await store.open()
    await store.open()
    await submit(store)
    await store.close()
    await store.close()


async def test_before_open_and_after_close_there_is_a_sentence(fresh_url: str) -> None:
    store = open_store(fresh_url)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.get("x")
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.submit([new()])
        await store.open()
        await store.close()


@not_memory
async def test_a_database_is_not_touched_without_migrate(fresh_url: str) -> None:
    store = open_store(fresh_url)
    with pytest.raises(SchemaMismatch, match="onward migrate"):
        await store.open(migrate=False)
    await open_and_close(fresh_url)
    await store.open(migrate=False)
    await store.close()


async def open_and_close(url: str, **options: Any) -> None:
    store = open_store(url)
    await store.open(**options)
    await store.close()


@not_memory
async def test_by_many_at_once(fresh_url: str) -> None:
    stores = [open_store(fresh_url) for _ in range(8)]
    await asyncio.gather(*[store.open() for store in stores])
    for store in stores:
        await join(store, "w1")
        assert await store.migrate() == []
    (task_id,) = await submit(stores[0])
    assert (await stores[7].get(task_id)).state is State.PENDING  # type: ignore[union-attr]
    for store in stores:
        await store.close()


@not_memory
def test_by_many_threads_at_once(fresh_url: str) -> None:
    """Each thread has a loop of its own, so that only the database orders them."""

    def open_store_in_loop(number: int) -> str:
        async def main() -> str:
            store = open_store(fresh_url)
            await store.open()
            try:
                return (await submit(store, new(key=f"k{number}")))[0]
            finally:
                await store.close()

        return asyncio.run(main())

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(open_store_in_loop, range(8)))) == 8


@only_postgres
async def test_an_older_postgres_is_refused_until_it_is_migrated(fresh_url: str) -> None:
    """Many programs share it, so none of them migrates it by itself."""
    await open_and_close(fresh_url)
    ahead = plus_one(open_store(fresh_url))
    with pytest.raises(
        SchemaMismatch,
        match=rf"table version {NEXT - 1} .* needs {NEXT}; run `onward migrate`, it is safe while workers run",
    ):
        await ahead.open()
    await ahead.open(migrate=True)
    assert await ahead.version() == (NEXT, NEXT)
    assert await sql(ahead, "SELECT count(*) FROM onward_extra") == [(0,)]
    await ahead.close()


@only_file
async def test_an_older_file_is_brought_up_to_date(fresh_url: str) -> None:
    await open_and_close(fresh_url)
    ahead = plus_one(open_store(fresh_url))
    await ahead.open()
    assert await ahead.version() == (NEXT, NEXT)
    await ahead.close()


@not_memory
async def test_an_older_database_can_be_migrated_while_workers_run(fresh_url: str) -> None:
    old = open_store(fresh_url)
    await old.open()
    await join(old, "w1")
    ids = await submit(old, *[new() for _ in range(3)])
    ahead = plus_one(open_store(fresh_url))
    await ahead.open(migrate=True)
    held = await old.claim("w1", "default", ["work"], 10)
    assert [c.id for c in held] == ids
    await ahead.close()
    await old.close()


@not_memory
async def test_a_migration_that_fails_half_way_leaves_nothing(fresh_url: str) -> None:
    await open_and_close(fresh_url)
    broken = plus_one(
        open_store(fresh_url), "CREATE TABLE onward_half (n INTEGER); CREATE TABLE onward_half (n INTEGER)"
    )
    with pytest.raises(Exception, match="already exists"):
        await broken.open(migrate=True)
    await open_and_close(fresh_url)  # the tables from before are unchanged
    again = plus_one(open_store(fresh_url), "CREATE TABLE onward_half (n INTEGER)")
    await again.open(migrate=True)
    assert await again.version() == (NEXT, NEXT)
    await again.close()


@not_memory
async def test_a_clone_opens_the_same_database(fresh_url: str) -> None:
    store = open_store(fresh_url)
    await store.open()
    await store.workers.join(row("w1"), 10)

    def beat() -> bool:
        async def main() -> bool:
            twin = store.clone()
            await twin.open(migrate=False)
            try:
                return (await twin.workers.heartbeat("w1", 10, 0)).alive
            finally:
                if twin is not store:
                    await twin.close()

        return asyncio.run(main())

    assert await asyncio.to_thread(beat)
    await store.close()
    await store.clone().close()


@only_file
async def test_only_the_owner_may_read_the_file(fresh_url: str, tmp_path: Any) -> None:
    await open_and_close(fresh_url)
    assert (tmp_path / "fresh.db").stat().st_mode & 0o077 == 0


async def test_files_that_cannot_be(tmp_path: Any) -> None:
    (tmp_path / "text.db").write_text("this is no database, whatever its name says" * 100)
    for url, sentence in [
        (f"sqlite:///{tmp_path}/none/x.db", "cannot be opened; check that its folder exists"),
        (f"sqlite:///{tmp_path}", "cannot be opened"),
        (f"sqlite:///{tmp_path}/text.db", "is not an Onward database"),
    ]:
        with pytest.raises(StoreUnavailable, match=sentence):
            await open_store(url).open()


@only_postgres
async def test_servers_that_cannot_be(fresh_url: str) -> None:
    for wrong, sentence in [
        (fresh_url.replace("/fresh", "/none"), "refuses the connection"),
        ("postgresql://postgres@127.0.0.1:1/x", "cannot be reached"),
    ]:
        with pytest.raises(StoreUnavailable, match=sentence):
            await open_store(wrong).open()
    secret = open_store("postgresql://me:secret@127.0.0.1:1/x")
    with pytest.raises(StoreUnavailable) as refused:
        await secret.open()
    assert "secret" not in str(refused.value)
    assert "secret" not in secret.where
