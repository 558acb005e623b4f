"""One suite, every store: a file, memory, and a real PostgreSQL, each test with a database of its own.

`url` and everything above it run once for each kind of database; a test that is about one kind says so with
`only_postgres` and its like from `tests.kit`. Each process of pytest-xdist has its own PostgreSQL.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from onward import Onward
from onward.app import open_store
from onward.store.port import Store
from onward.store.sqlite import SqliteStore
from rig.postgres import Postgres
from rig.server import Unavailable
from tests.kit import KINDS, HandClock, Time

_names = itertools.count(1)

settings.register_profile(
    "onward",
    derandomize=True,  # the same examples on every machine and in every run
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("onward")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prove", action="store_true", help="run the proofs at full size")


@pytest.fixture(scope="session")
def prove(pytestconfig: pytest.Config) -> bool:
    """Whether the proofs run at full size."""
    return bool(pytestconfig.getoption("--prove"))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ONWARD_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Nothing here pulls the plug, so nothing has to reach the disk; tests that crash a server start their own."""
    try:
        server = Postgres(settings={"fsync": "off", "max_connections": "400"}).start()
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database."""
    match kind:
        case "sqlite file":
            yield f"sqlite:///{tmp_path / 'onward.db'}"
        case "sqlite memory":
            yield "sqlite://:memory:"
        case _:
            server: Postgres = request.getfixturevalue("postgres")
            name = f"t{next(_names)}"
            yield server.database(name)
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def time(clock: HandClock, kind: str, url: str) -> AsyncIterator[Time]:
    """The time of the database `url`, moved by hand: it stands still otherwise."""
    if kind != "postgres":
        yield Time(clock)
        return
    await open_and_close(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE hand_clock AS SELECT %s::float8 AS t", (clock.time,))
        connection.execute(
            "CREATE OR REPLACE FUNCTION onward_now() RETURNS float8 LANGUAGE sql STABLE AS 'SELECT t FROM hand_clock'"
        )
        yield Time(clock, lambda now: connection.execute("UPDATE hand_clock SET t = %s", (now,)) and None)


async def open_and_close(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.close()


@pytest.fixture
async def open_another(url: str, clock: HandClock) -> AsyncIterator[Any]:
    """Call it for one more store on the same database, opened. (In memory that is a database of its own.)"""
    opened: list[Store] = []

    async def another(**options: Any) -> Store:
        store = open_store(url, clock)
        opened.append(store)
        await store.open(**options)
        return store

    yield another
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_another: Any, time: Time) -> Store:
    """An opened store whose time is moved by hand (`time.move(seconds)`)."""
    found: Store = await open_another()
    return found


@pytest.fixture
async def app(url: str) -> AsyncIterator[Onward]:
    """An app on real time with a short lease, opened; handlers are the test's own."""
    app = Onward(url, lease_s=1.0, heartbeat_s=0.1, poll_s=0.05, grace_s=1.0, slots=10)
    async with app:
        yield app


@pytest.fixture
async def inline_store(clock: HandClock) -> AsyncIterator[SqliteStore]:
    """SQLite in memory inside the test's own loop: no threads, and time moved by hand."""
    store = SqliteStore(":memory:", clock=clock, inline=True)
    await store.open()
    yield store
    await store.close()
