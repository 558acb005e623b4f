"""One PostgreSQL for the tests that leave it standing; those that crash it start their own."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from rig.postgres import Postgres
from rig.proxy import Proxy


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def url(postgres: Postgres, request: pytest.FixtureRequest) -> str:
    """An empty database with a table `things`."""
    url = postgres.database(request.node.name)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE things (name text PRIMARY KEY)")
    return url


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", postgres.port) as proxy:
        yield proxy
