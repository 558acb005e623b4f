"""submit(connection=…): the task is part of the caller's own transaction, whichever library the connection is from."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import apsw
import asyncpg
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from onward import Onward
from onward.core.record import Entry
from onward.core.task import State
from onward.errors import KeyConflict, TaskNotFound, UsageError
from onward.store.port.core import Store
from onward.store.sqlite.store import SqliteStore
from tests.kit import claim, completion, join, new, sql, submit

Maybe = Awaitable[Any] | None


class Borrowed:
    """A connection in an open transaction, and functions that end it."""

    def __init__(self, connection: Any, commit: Callable[[], Maybe], rollback: Callable[[], Maybe]) -> None:
        self.connection, self._commit, self._rollback = connection, commit, rollback

    async def commit(self) -> None:
        await self._settled(self._commit())

    async def rollback(self) -> None:
        await self._settled(self._rollback())

    @staticmethod
    async def _settled(answer: Maybe) -> None:
        if answer is not None:
            await answer


@contextlib.asynccontextmanager
async def from_asyncpg(url: str) -> AsyncIterator[Borrowed]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield Borrowed(connection, transaction.commit, transaction.rollback)
    await connection.close()


@contextlib.asynccontextmanager
async def from_asyncpg_pool(url: str) -> AsyncIterator[Borrowed]:
    async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Borrowed(connection, transaction.commit, transaction.rollback)


@contextlib.asynccontextmanager
async def from_psycopg(url: str, **options: Any) -> AsyncIterator[Borrowed]:
    with psycopg.connect(url, **options) as connection:
        yield Borrowed(connection, connection.commit, connection.rollback)


def from_psycopg_with_dicts(url: str) -> Any:
    return from_psycopg(url, row_factory=psycopg.rows.dict_row)


@contextlib.asynccontextmanager
async def from_psycopg_async(url: str) -> AsyncIterator[Borrowed]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Borrowed(connection, connection.commit, connection.rollback)


def _dialect(url: str, driver: str) -> str:
    if url.startswith("sqlite"):
        return url
    return url.replace("postgresql://", f"postgresql+{driver}://")


@contextlib.asynccontextmanager
async def from_sqlalchemy(url: str) -> AsyncIterator[Borrowed]:
    engine = sqlalchemy.create_engine(_dialect(url, "psycopg"))
    with engine.connect() as connection:
        yield Borrowed(connection, connection.commit, connection.rollback)
    engine.dispose()


class OwnSession(Session):
    """As SQLModel has one."""


@contextlib.asynccontextmanager
async def from_sqlalchemy_session(url: str, kind: type[Session] = Session) -> AsyncIterator[Borrowed]:
    engine = sqlalchemy.create_engine(_dialect(url, "psycopg"))
    with kind(engine) as session:
        yield Borrowed(session, session.commit, session.rollback)
    engine.dispose()


def from_a_subclass_of_session(url: str) -> Any:
    return from_sqlalchemy_session(url, OwnSession)


@contextlib.asynccontextmanager
async def from_sqlalchemy_async(url: str, driver: str = "asyncpg") -> AsyncIterator[Borrowed]:
    engine = create_async_engine(_dialect(url, driver))
    async with engine.connect() as connection:
        yield Borrowed(connection, connection.commit, connection.rollback)
    await engine.dispose()


@contextlib.asynccontextmanager
async def from_sqlalchemy_async_session(url: str) -> AsyncIterator[Borrowed]:
    engine = create_async_engine(_dialect(url, "asyncpg"))
    async with AsyncSession(engine) as session:
        yield Borrowed(session, session.commit, session.rollback)
    await engine.dispose()


@contextlib.asynccontextmanager
async def from_sqlite3(url: str, **options: Any) -> AsyncIterator[Borrowed]:
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), **options)) as connection:
        yield Borrowed(connection, connection.commit, connection.rollback)


class OwnConnection(sqlite3.Connection):
    pass


def from_a_subclass_of_sqlite3(url: str) -> Any:
    return from_sqlite3(url, factory=OwnConnection)


@contextlib.asynccontextmanager
async def from_apsw(url: str) -> AsyncIterator[Borrowed]:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("BEGIN IMMEDIATE")
    yield Borrowed(
        connection, lambda: connection.execute("COMMIT") and None, lambda: connection.execute("ROLLBACK") and None
    )
    connection.close()


POSTGRES = [
    from_asyncpg,
    from_asyncpg_pool,
    from_psycopg,
    from_psycopg_with_dicts,
    from_psycopg_async,
    from_sqlalchemy,
    from_sqlalchemy_session,
    from_a_subclass_of_session,
    from_sqlalchemy_async,
    from_sqlalchemy_async_session,
]
SQLITE = [from_apsw]
OTHER_LIBRARIES = [from_sqlite3, from_a_subclass_of_sqlite3, from_sqlalchemy, from_sqlalchemy_session]
both = pytest.mark.parametrize(
    ("kind", "borrow"),
    [("postgres", b) for b in POSTGRES] + [("sqlite file", b) for b in SQLITE],
    indirect=["kind"],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)


@pytest.mark.slow
@both
async def test_commit_and_the_task_is_there_and_runs(app: Onward, url: str, borrow: Any) -> None:
    @app.task
    async def greet(ctx: Any, name: str) -> str:
        return f"hello {name}"

    async with borrow(url) as owner:
        handle = await app.submit(greet, {"name": "you"}, priority=3, labels={"a": "b"}, connection=owner.connection)
        with pytest.raises(TaskNotFound):
            await handle.get()
        await owner.commit()
        task = await handle.get()
        assert (task.state, task.input, task.priority, task.labels) == (State.PENDING, {"name": "you"}, 3, {"a": "b"})
    async with app.worker():
        assert await handle.result(timeout=60) == "hello you"
    assert await app.store.health.census() == []


@both
async def test_rollback_and_nothing_is_there(app: Onward, url: str, borrow: Any) -> None:
    app.task(_nothing, name="nothing")
    async with borrow(url) as owner:
        handles = await app.submit_many("nothing", [1, 2, 3], connection=owner.connection)
        await owner.rollback()
    for handle in handles:
        with pytest.raises(TaskNotFound):
            await handle.get()
    for table in ("tasks", "queue", "journal"):
        assert await sql(app.store, f"SELECT count(*) FROM onward_{table}") == [(0,)]


@both
async def test_the_same_key_is_the_same_task(app: Onward, url: str, borrow: Any) -> None:
    app.task(_nothing, name="nothing")
    first = await app.submit("nothing", 1, key="k")
    async with borrow(url) as owner:
        again = await app.submit("nothing", 1, key="k", connection=owner.connection)
        fresh = await app.submit("nothing", 1, key="k2", connection=owner.connection)
        twice = await app.submit("nothing", 1, key="k2", connection=owner.connection, asker="person:ada")
        await owner.commit()
    assert again.id == first.id
    assert twice.id == fresh.id != first.id
    assert await app.store.approvals.askers(fresh.id) == {"person:ada"}
    async with borrow(url) as owner:
        with pytest.raises(KeyConflict, match=first.id):
            await app.submit("nothing", 2, key="k", connection=owner.connection)
        await owner.rollback()
    assert await sql(app.store, "SELECT count(*) FROM onward_queue") == [(2,)]
    assert await app.store.health.census() == []


@both
async def test_a_delay(app: Onward, url: str, borrow: Any) -> None:
    app.task(_nothing, name="nothing")
    async with borrow(url) as owner:
        handle = await app.submit("nothing", 1, delay=60, connection=owner.connection)
        await owner.commit()
    task = await handle.get()
    assert task.reason == "delayed"
    assert task.due_at == pytest.approx(task.created_at + 60)


async def _nothing(ctx: Any, n: int = 0) -> None:
    pass


@pytest.mark.parametrize(
    ("kind", "borrow"), [("postgres", from_psycopg), ("sqlite file", from_apsw)], indirect=["kind"]
)
async def test_an_id_sent_again_after_its_task_has_ended_changes_nothing(store: Store, url: str, borrow: Any) -> None:
    """The port: an id that is there already gives the task it belongs to. It does not enter the queue again."""
    wanted = new()
    await submit(store, wanted)
    await join(store, "w1")
    (held,) = await claim(store)
    await store.save("w1", completion(held))
    async with borrow(url) as owner:
        (answer,) = await store.submit([wanted], owner.connection)
        await owner.commit()
    assert answer.id == wanted.id
    assert await store.health.census() == []
    assert (await store.get(wanted.id)).state is State.COMPLETED  # type: ignore[union-attr]


async def test_a_value_that_is_no_connection_is_refused_with_a_sentence(app: Onward) -> None:
    app.task(_nothing, name="nothing")
    with pytest.raises(UsageError, match=r"takes a connection of (asyncpg, psycopg or SQLAlchemy|apsw) here, not dict"):
        await app.submit("nothing", 1, connection={})
    assert await sql(app.store, "SELECT count(*) FROM onward_tasks") == [(0,)]


@pytest.mark.parametrize("kind", ["sqlite file"], indirect=True)
@pytest.mark.parametrize("borrow", OTHER_LIBRARIES)
async def test_another_sqlite_library_is_refused_with_the_way_out(app: Onward, url: str, borrow: Any) -> None:
    app.task(_nothing, name="nothing")
    async with borrow(url) as owner:
        with pytest.raises(UsageError, match=r"destroy the file when both write. Open it with apsw.Connection\(path\)"):
            await app.submit("nothing", 1, connection=owner.connection)
    assert await sql(app.store, "SELECT count(*) FROM onward_tasks") == [(0,)]


@pytest.mark.slow
async def test_the_connection_of_a_transaction(app: Onward) -> None:
    """A task submits another one in its own transaction: the step's record, the writes and the new task commit together."""
    app.task(_nothing, name="nothing")

    async def order(connection: Any, number: int) -> str:
        handle = await app.submit("nothing", number, key=f"order-{number}", connection=connection)
        if number == 2 and len(tries) < 2:
            tries.append(handle.id)
            raise RuntimeError("not yet")
        return handle.id

    tries: list[str] = []

    @app.task
    async def shop(ctx: Any) -> list[str]:
        first = await ctx.transaction(order, 1)
        second = await ctx.transaction(order, 2, retry=3)
        async with ctx.transaction() as connection:
            third = await app.submit("nothing", 3, connection=connection)
        return [first, second, third.id]

    async with app.worker():
        shopping = await app.submit(shop)
        ids = await shopping.result(timeout=60)
        for task_id in ids:
            await app.handle(task_id).result(timeout=60)
    assert await sql(app.store, "SELECT count(*) FROM onward_tasks") == [(4,)]
    assert len(tries) == 2
    assert not {*tries} & {*ids}


@pytest.mark.parametrize("inline", [False, True])
async def test_reads_in_memory_do_not_wait_for_an_open_transaction(inline: bool) -> None:
    """There is one connection: a read during the transaction runs inside it, and one that comes too late runs after it."""
    store = SqliteStore(":memory:", inline=inline)
    await store.open()
    await join(store, "w1")
    await submit(store)
    (held,) = await claim(store)
    child = new()

    async def body(connection: Any) -> Entry:
        assert (await store.queues.depth("default")).waiting == 0
        await store.submit([child], connection)
        late.extend(asyncio.ensure_future(store.get(child.id)) for _ in range(20))
        with pytest.raises(apsw.SQLError):
            await connection.execute("SELECT nothing FROM nowhere")
        return completion(held).entries[0]

    late: list[asyncio.Future[Any]] = []
    async with asyncio.timeout(20):
        assert await store.transact(body, 10.0)
        assert {task.task_id for task in await asyncio.gather(*late)} == {child.id}
        assert (await store.queues.depth("default")).waiting == 1
    await store.close()


@both
async def test_a_group_and_its_turn(store: Store, url: str, borrow: Any) -> None:
    await store.submit([new(group="big") for _ in range(5)])
    async with borrow(url) as borrowed:
        await store.submit([new(group="small") for _ in range(2)], borrowed.connection)
        await borrowed.commit()
    await join(store, "w1")
    first = [(await store.get(task.id)).group for task in await claim(store, room=4)]  # type: ignore[union-attr]
    assert sorted(first) == ["big", "big", "small", "small"]
