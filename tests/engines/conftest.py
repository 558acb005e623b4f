"""The engines on which the tests of this folder run: Onward's own, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from onward import Onward
from tests.engines.kit import Engine, OwnEngine
from tests.kit import HandClock, inline_app

ENGINES = ("sqlite", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.postgres]))


@pytest.fixture(params=ENGINES)
def engine_url(request: pytest.FixtureRequest) -> str:
    """Where the engine of the test has its tasks; empty for SQLite in memory."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("recycled").empty())


@pytest.fixture
async def engine(engine_url: str, clock: HandClock) -> AsyncIterator[Engine]:
    """An engine; the test adds handlers to `engine.app`. On SQLite the test runs on a clock that is moved by hand."""
    engine: Engine
    if not engine_url:
        engine = OwnEngine(inline_app(clock), clock)
    else:
        engine = OwnEngine(Onward(engine_url, lease_s=1.0, heartbeat_s=0.1, poll_s=0.05, grace_s=1.0))
    async with engine.app:
        yield engine
        await engine.stop()
