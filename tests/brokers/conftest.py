"""Brokers of the tests: one server for each kind in a test process, started when the first test needs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rig.server import Unavailable
from rig.valkey import Valkey
from tests.brokers.producers import Producer, RedisProducer

_STARTED: dict[str, Valkey] = {}


def _started(kind: str, make: Callable[[], Valkey]) -> Valkey:
    """The server of this process; the test is skipped where it cannot be had."""
    if kind not in _STARTED:
        try:
            _STARTED[kind] = make()
        except Unavailable as why:
            pytest.skip(str(why))
    return _STARTED[kind].start()


@pytest.fixture(params=["redis"])
def broker(request: pytest.FixtureRequest) -> str:
    """The kind of broker."""
    kind: str = request.param
    return kind


@pytest.fixture
def producer(broker: str) -> Producer:
    """A program that sends messages to a place of its own at a broker, with the client of the broker alone."""
    return RedisProducer(_started(broker, Valkey))


@pytest.fixture
def redis_producer() -> RedisProducer:
    return RedisProducer(_started("redis", Valkey))


@pytest.fixture
def second_redis_producer() -> RedisProducer:
    return RedisProducer(_started("redis", Valkey))
