"""One suite, every store: a file, memory, and a real PostgreSQL, each test with a database of its own.

`url` and all fixtures that use it run once for each kind of database; a test of one kind is marked with
`only_postgres` or a similar mark of `tests.kit`. Each process of pytest-xdist has its own PostgreSQL.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from onward import Onward
from onward.app.connect import open_store
from onward.core import mask, secret
from onward.core.audit import BEGINNING
from onward.store.port.core import Store
from onward.store.sqlite.store import SqliteStore
from onward.telemetry import counters
from rig.postgres import Postgres
from tests.kit import KINDS, TEST_KEYS, HandClock, Lab, Time, encrypt, running
from tests.roled import as_user, roled

settings.register_profile(
    "onward",
    derandomize=True,  # the same examples on every machine and in every run
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("onward")

# Hypothesis draws from the constants of all loaded modules: its examples would depend on the tests that ran before in the
# same process. This line gives it none.
providers._get_local_constants = lambda: providers._local_constants

# The collection makes many objects that stay: the garbage collector would need half of its time to look at them again and again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# A shell that starts pytest in the background makes it ignore Ctrl-C, and every process of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prove", action="store_true", help="run the proofs at full size")
    parser.addoption(
        "--files-in-memory", action="store_true", help="keep the files of the tests in memory, if there is room"
    )
    parser.addoption(
        "--roles", action="store_true", help="use PostgreSQL as a user with the roles of servers and workers"
    )


FILES_IN_MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 4_000_000_000
"""More than the files of all processes of the quick tests need. Docker gives a container 64 MB unless told otherwise."""


def pytest_configure(config: pytest.Config) -> None:
    """With `--files-in-memory`, databases and all other files of the tests are in memory, if there is room: on a disk the tests wait
    half of their time for it. A killed process leaves the same file in memory as on a disk."""
    if not config.getoption("--files-in-memory") or not os.access(FILES_IN_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(FILES_IN_MEMORY).free >= MIN_FREE_BYTES:
        os.environ["TMPDIR"] = str(FILES_IN_MEMORY)
        tempfile.tempdir = None  # pytest may have asked for it already


FULL_ONLY = ("outside", "rig")
"""Folders of which `make test` runs nothing."""


FIRST_SERVICE = {"brokers": "redis", "coordinate": "store"}
"""Folders whose tests run with several services. `make test-full` runs them with each service on SQLite's file, and with the first one on
PostgreSQL too; those that kill and freeze processes (`STORMS`) with the first service only. `make prove` runs all of them."""
STORMS = ("test_intake_kills.py", "test_publish_kills.py", "test_fencing.py")
SERVICES = frozenset({"redis", "nats", "kafka", "rabbitmq", "etcd", "store"})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests for `make test-full` (`slow`), and those of them that run one at a time (`alone`). `make test` runs a
    test for several databases on SQLite's file, and the tests of the store on PostgreSQL too. `make test-full` adds
    PostgreSQL everywhere, and `make prove` SQLite in memory, which is the code of the file without the file."""
    kinds: dict[str, set[str]] = {}
    for item in items:
        kinds.setdefault(_of(item), set()).add(_kind(item))
    left_out = []
    for item in items:
        part = item.path.relative_to(config.rootpath / "tests").parts[0]
        kind, others = _kind(item), kinds[_of(item)] - {_kind(item)}
        if kind == "postgres":
            item.add_marker("postgres")
        if kind == "sqlite memory" and others:
            item.add_marker("slow")
            left_out += [item] if not config.getoption("--prove") and part != "store" else []
        elif (kind == "postgres" and others and part != "store") or part in FULL_ONLY:
            item.add_marker("slow")
        storm = item.path.name in STORMS
        if (kind == "postgres" or storm) and part in FIRST_SERVICE and not config.getoption("--prove"):
            left_out += [item] if _services(item) - {FIRST_SERVICE[part]} else []
        if (part == "faults" or item.path.name.endswith("_faults.py")) and item.get_closest_marker("slow"):
            item.add_marker("alone")
    if left_out:
        left_out_ids = set(map(id, left_out))
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if id(item) not in left_out_ids]


AVOIDABLE = (
    "browser",
    "playwright",
    "is not installed here",
    "strace here",
    "EventSource",
    "conformance suite",
    "no OpenAI-compatible",
    "OpenID provider",
)
"""Words of skips that CI can avoid: `.ci/prepare` and the dev requirements install the tools of those tests."""

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append(f"{report.nodeid}: {report.longrepr[2]}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI, a skip that CI could have avoided is a failure."""
    avoidable = [line for line in _skipped if any(word in line for word in AVOIDABLE)]
    if avoidable and os.environ.get("CI") and not hasattr(session.config, "workerinput"):
        print("\nskipped, although CI can run it:", *avoidable, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _services(item: pytest.Item) -> set[str]:
    """The services with which a test runs."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return SERVICES & {str(value) for value in params.values()}


def _kind(item: pytest.Item) -> str:
    return (
        str(item.callspec.params.get("kind", ""))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else ""
    )


@pytest.fixture(scope="session")
def prove(pytestconfig: pytest.Config) -> bool:
    """Whether the proofs run at full size."""
    return bool(pytestconfig.getoption("--prove"))


@pytest.fixture
def print_proof() -> Callable[..., None]:
    """Prints one line for each proof."""

    def line(*parts: object) -> None:
        print("\n  " + " · ".join(map(str, parts)), flush=True)

    return line


@pytest.fixture
def at_length(prove: bool) -> None:
    """Skips a test outside `make prove`: another test covers the same at a smaller size or on one store."""
    if not prove:
        pytest.skip("tried at a smaller size, or on one store; the whole of it is for `make prove`")


ENCRYPTED = bool(os.environ.get("ONWARD_TEST_ENCRYPTION"))
"""Whether all tests run with payloads encrypted."""


@pytest.fixture
def encrypted() -> bool:
    """Whether the test runs with payloads encrypted. `tests/encryption` replaces it, and runs a part of the suites so."""
    return ENCRYPTED


@pytest.fixture
def plain_payloads(encrypted: bool) -> None:
    """Skips a test that changes payloads by SQL, or looks for the message of an error, when payloads are encrypted."""
    if encrypted:
        pytest.skip("it needs payloads that are not encrypted")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, encrypted: bool) -> None:
    for name in [name for name in os.environ if name.startswith("ONWARD_")]:
        monkeypatch.delenv(name)
    if encrypted:
        monkeypatch.setenv("ONWARD_ENCRYPTION_KEYS", TEST_KEYS)


@pytest.fixture(autouse=True)
def _counters_off() -> Iterator[None]:
    """A test that asked a server for its metrics has switched the counters of this process on."""
    yield
    counters.on = False
    counters.clear()


@pytest.fixture(autouse=True)
def _no_secrets_from_outside() -> Iterator[None]:
    """Clears the mask after each test: a secret of one test is an ordinary string in the next. Each test begins without secrets."""
    secret.used = False
    yield
    mask.clear()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server without fsync, as no test crashes it; tests that crash a server start their own."""
    with running(Postgres(settings={"fsync": "off", "max_connections": "400"})) as server:
        yield server


class Recycled:
    """One database, made once and emptied for each test, which costs a tenth of a new one. Its time is the server's
    unless a row in `hand_clock` says otherwise."""

    MAX_BYTES = 1_000_000
    """Bytes of a table up to which its rows are deleted."""
    CLOCK = """
        CREATE TABLE hand_clock (t float8);
        CREATE OR REPLACE FUNCTION onward_now() RETURNS float8 LANGUAGE sql STABLE AS
        'SELECT COALESCE((SELECT t FROM hand_clock), extract(epoch FROM now())::float8)'
    """

    def __init__(self, server: Postgres, *, roles: bool) -> None:
        owner_url = roled(server, "recycled") if roles else server.database("recycled")
        self.url = as_user(owner_url, "does_both") if roles else owner_url
        asyncio.run(_open_and_close(self.url))
        self.connection = psycopg.connect(owner_url, autocommit=True)
        self.connection.execute(self.CLOCK)
        if roles:
            self.connection.execute("GRANT SELECT ON hand_clock TO PUBLIC")
            self.connection.execute("GRANT MAINTAIN ON ALL TABLES IN SCHEMA public TO does_both")  # for ANALYZE
        tables = self.connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' "
            "AND tablename NOT IN ('onward_migrations', 'onward_schema', 'onward_lock_counters')"
        )
        self.tables = [name for (name,) in tables.fetchall()]
        self.connection.execute("SET session_replication_role = replica")  # the audit refuses to be emptied otherwise

    def empty(self) -> str:
        """Deletes all rows, which takes a hundredth of the time of TRUNCATE; a table that has grown is truncated."""
        self.connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        sizes = self.connection.execute(
            "SELECT name, pg_relation_size(name::regclass) FROM unnest(%s::text[]) AS name", (self.tables,)
        )
        grown = [name for name, size in sizes.fetchall() if size > self.MAX_BYTES]
        self.connection.execute(
            "; ".join(f"{'TRUNCATE' if name in grown else 'DELETE FROM'} {name}" for name in self.tables)
        )
        self.connection.execute(f"INSERT INTO onward_audit_end (id, number, hash) VALUES (1, 0, '{BEGINNING}')")
        self.connection.execute("SELECT setval(sequencename::regclass, 1, false) FROM pg_sequences")
        self.connection.execute("DELETE FROM onward_schema WHERE name = 'mirror'")
        return self.url

    def set_clock(self, now: float) -> None:
        self.connection.execute("WITH gone AS (DELETE FROM hand_clock) INSERT INTO hand_clock VALUES (%s)", (now,))


async def _open_and_close(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.close()


@pytest.fixture(scope="session")
def recycled(postgres: Postgres, pytestconfig: pytest.Config) -> Iterator[Recycled]:
    database = Recycled(postgres, roles=pytestconfig.getoption("--roles"))
    yield database
    database.connection.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A database without a task in it."""
    if kind == "postgres":
        database: Recycled = request.getfixturevalue("recycled")
        return database.empty()
    if kind == "sqlite memory":
        return "sqlite://:memory:"
    shutil.copy(request.getfixturevalue("empty_file"), tmp_path / "onward.db")
    return f"sqlite:///{tmp_path / 'onward.db'}"


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables: a copy of it is there sooner than a new one."""
    file = tmp_path_factory.mktemp("sqlite") / "empty.db"
    asyncio.run(_open_and_close(f"sqlite:///{file}"))
    return file


@pytest.fixture
def fresh_url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database without even a table in it."""
    if kind == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        yield server.database("fresh")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS fresh WITH (FORCE)")
    else:
        yield "sqlite://:memory:" if kind == "sqlite memory" else f"sqlite:///{tmp_path / 'fresh.db'}"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def time(clock: HandClock, kind: str, url: str, request: pytest.FixtureRequest) -> Time:
    """The time of the database `url`, moved by hand: it stands still otherwise."""
    if kind != "postgres":
        return Time(clock)
    database: Recycled = request.getfixturevalue("recycled")
    database.set_clock(clock.time)
    return Time(clock, database.set_clock)


@pytest.fixture
async def open_another(url: str, clock: HandClock, encrypted: bool) -> AsyncIterator[Any]:
    """A function that opens one more store on the same database. (In memory that is a database of its own.)"""
    opened: list[Store] = []

    async def another(**options: Any) -> Store:
        store = open_store(url, clock)
        if encrypted:
            encrypt(store)
        opened.append(store)
        await store.open(**options)
        return store

    yield another
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_another: Any, time: Time) -> Store:
    """An opened store whose time is moved by hand (`time.move(seconds)`)."""
    opened: Store = await open_another()
    return opened


@pytest.fixture
async def app(url: str) -> AsyncIterator[Onward]:
    """An app on real time with a short lease, opened; handlers are the test's own."""
    app = Onward(url, lease_s=1.0, heartbeat_s=0.1, poll_s=0.05, grace_s=1.0, slots=10)
    async with app:
        yield app


@pytest.fixture
async def lab(clock: HandClock) -> AsyncIterator[Lab]:
    """An app on a clock moved by hand; see tests.kit.Lab."""
    lab = Lab(clock)
    async with lab.app:
        yield lab
        await lab.stop()


@pytest.fixture
async def inline_store(clock: HandClock, encrypted: bool) -> AsyncIterator[SqliteStore]:
    """SQLite in memory inside the test's own loop: no threads, and time moved by hand."""
    store = SqliteStore(":memory:", clock=clock, inline=True)
    if encrypted:
        encrypt(store)
    await store.open()
    yield store
    await store.close()
