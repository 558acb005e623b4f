"""Brokers of the tests: one server for each kind in a test process, started when the first test needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rig.base import Server
from rig.kafka import Kafka
from rig.nats import Nats
from rig.rabbitmq import RabbitMQ
from rig.server import Unavailable
from rig.valkey import Valkey
from tests.brokers.producers import KAFKA_SETTINGS, KafkaProducer, NatsProducer, Producer, RabbitProducer, RedisProducer

KINDS: dict[str, tuple[Callable[[], Server], Callable[[Any], Producer]]] = {
    "redis": (Valkey, RedisProducer),
    "nats": (Nats, NatsProducer),
    "kafka": (lambda: Kafka(settings=KAFKA_SETTINGS), KafkaProducer),
    "rabbitmq": (RabbitMQ, RabbitProducer),
}
QUICK = "redis"
"""The broker of the quick tests. `make test-full` runs them on all."""

_STARTED: dict[str, Server] = {}


def _started(kind: str) -> Server:
    """The server of this process; the test is skipped where it cannot be had."""
    try:
        if kind not in _STARTED:
            _STARTED[kind] = KINDS[kind][0]()
        return _STARTED[kind].start()
    except Unavailable as why:
        pytest.skip(str(why))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test with a producer runs on each broker. Those of one broker run in one process, so that it starts once."""
    if "broker" in metafunc.fixturenames:
        metafunc.parametrize("broker", [_param(kind) for kind in KINDS])


def _param(kind: str) -> Any:
    marks = [] if kind == QUICK else [pytest.mark.xdist_group(kind), pytest.mark.slow]
    return pytest.param(kind, marks=marks)


@pytest.fixture
def producer(broker: str) -> Producer:
    """A program that sends messages to a place of its own at a broker, with the client of the broker alone."""
    return KINDS[broker][1](_started(broker))


def _redis_producer() -> RedisProducer:
    server = _started("redis")
    assert isinstance(server, Valkey)
    return RedisProducer(server)


@pytest.fixture
def redis_producer() -> RedisProducer:
    return _redis_producer()


@pytest.fixture
def second_redis_producer() -> RedisProducer:
    return _redis_producer()


@pytest.fixture
def rabbit_producer() -> RabbitProducer:
    server = _started("rabbitmq")
    assert isinstance(server, RabbitMQ)
    return RabbitProducer(server)
