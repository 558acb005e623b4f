"""The engines on which the tests of this folder run: Onward's own, on SQLite and on PostgreSQL, Temporal and Cadence."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from onward import Onward
from rig.cadence import Cadence
from rig.temporal import Temporal
from tests.engines.kit import Engine, Foreign, OwnEngine
from tests.kit import HandClock, inline_app, running

ENGINES = (
    "sqlite",
    pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.postgres]),
    pytest.param("temporal", marks=[pytest.mark.slow, pytest.mark.xdist_group("temporal")]),  # one server for all tests
    pytest.param("cadence", marks=[pytest.mark.slow, pytest.mark.xdist_group("cadence")]),
)

RUN = uuid.uuid4().hex[:8]
"""Names the task lists of this run: $ONWARD_CADENCE may name a server that has older ones."""

_queues = itertools.count(1)


@pytest.fixture(scope="session")
def temporal() -> Iterator[Temporal]:
    with running(Temporal(), "no Temporal server") as server:
        yield server


@pytest.fixture(scope="session")
def cadence() -> Iterator[Cadence]:
    pytest.importorskip("cadence", reason="the client of Cadence is not installed: pip install 'onward[cadence]'")
    with running(Cadence(), "no Cadence server") as server:
        yield server


@pytest.fixture(params=ENGINES)
def engine_url(request: pytest.FixtureRequest, encrypted: bool) -> str:
    """Where the engine of the test has its tasks; empty for SQLite in memory."""
    if request.param == "temporal":
        if encrypted:
            pytest.skip("payloads on Temporal are encrypted by a codec of its SDK")
        return f"{request.getfixturevalue('temporal').url}?queue=test-{next(_queues)}"
    if request.param == "cadence":
        if encrypted:
            pytest.skip("payloads on Cadence are not encrypted")
        return f"{request.getfixturevalue('cadence').url}?tasklist=test-{RUN}-{next(_queues)}"
    return "" if request.param == "sqlite" else str(request.getfixturevalue("recycled").empty())


@pytest.fixture
async def engine(engine_url: str, clock: HandClock) -> AsyncIterator[Engine]:
    """An engine; the test adds handlers to `engine.app`. On SQLite the test runs on a clock that is moved by hand."""
    engine: Engine
    if not engine_url:
        engine = OwnEngine(inline_app(clock), clock)
    elif engine_url.startswith(("temporal:", "cadence:")):
        engine = Foreign(Onward(engine=engine_url, lease_s=5.0, heartbeat_s=0.5))
    else:
        engine = OwnEngine(Onward(engine_url, lease_s=1.0, heartbeat_s=0.1, poll_s=0.05, grace_s=1.0))
    async with engine.app:
        yield engine
        await engine.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.postgres])])
def mirror_db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database for a mirror."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/mirror.db"
    if request.config.getoption("--roles"):
        pytest.skip("the owner of the tables makes a database a mirror")
    return str(request.getfixturevalue("recycled").empty())
