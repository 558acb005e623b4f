"""Databases that may be crashed, and the size of the proofs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.pgbouncer import PgBouncer
from rig.postgres import Postgres
from tests.faults.band import Place
from tests.kit import running

_names = itertools.count(1)


@pytest.fixture(scope="session")
def prove(pytestconfig: pytest.Config) -> bool:
    """Whether the proofs run at full size."""
    return bool(pytestconfig.getoption("--prove", default=False))


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A PostgreSQL with durability on, for tests that kill its clients."""
    with running(Postgres(settings={"max_connections": "400"})) as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    """One for tests that kill the server itself."""
    with running(Postgres(settings={"max_connections": "400"})) as server:
        yield server


@pytest.fixture
def sqlite(tmp_path: Path) -> Place:
    return Place("sqlite", f"sqlite:///{tmp_path / 'onward.db'}", tmp_path)


@pytest.fixture
def postgres_place(server: Postgres, tmp_path: Path) -> Place:
    return Place("postgres", server.database(f"f{next(_names)}"), tmp_path, server)


@pytest.fixture
def pooled_place(server: Postgres, tmp_path: Path) -> Iterator[Place]:
    """A database behind a pooler that gives each transaction another session."""
    url = server.database(f"f{next(_names)}")
    with running(PgBouncer(server.url, settings={"default_pool_size": "40"})) as bouncer:
        yield Place("pooled", bouncer.url_for(url), tmp_path, server, url)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    """A database of each kind, empty."""
    selected: Place = request.getfixturevalue("sqlite" if request.param == "sqlite" else "postgres_place")
    return selected
