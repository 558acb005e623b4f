"""The sources of the brokers: options of URLs, places that are missing, and what is acknowledged."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from onward.brokers import Message, intake, kafka, nats, rabbitmq, redis
from onward.brokers.connect import open_source
from onward.brokers.port import Source
from onward.brokers.progress import Progress
from onward.core.clock import SystemClock
from onward.errors import BadSetting, BrokerUnavailable, StoreUnavailable, UsageError
from rig import server
from tests.brokers.producers import Producer, RabbitProducer, RedisProducer, fresh_place, json_bodies
from tests.brokers.test_intake import drained, inputs, make_app
from tests.kit import only_file

URLS = {
    "nats": "nats://127.0.0.1:1",
    "kafka": "kafka://127.0.0.1:1",
    "rabbitmq": "amqp://guest:guest@127.0.0.1:1/",
}
CLIENTS = {"redis": "redis", "nats": "nats", "kafka": "confluent_kafka", "rabbitmq": "aio_pika"}


def source(url: str, place: str = "orders") -> Source:
    return open_source("shop", url, place, "onward-orders", "c1", SystemClock())


def test_progress_ends_before_the_first_gap() -> None:
    progress = Progress(last=4)
    for number in (5, 6, 9, 10):
        progress.deliver(number)
    progress.finish(6)
    assert (progress.last, len(progress)) == (4, 4)
    progress.finish(5)
    assert (progress.last, len(progress)) == (6, 2)
    progress.finish(10)
    progress.finish(9)
    assert (progress.last, len(progress)) == (10, 0)


def test_an_option_that_is_unknown_is_named_without_its_value() -> None:
    for kind in ("nats", "kafka"):
        with pytest.raises(BadSetting, match="ack_weit") as caught:
            source(f"{URLS[kind]}?ack_weit=s3cret")
        assert "s3cret" not in str(caught.value)
    with pytest.raises(BadSetting, match="ack_wait"):
        source("nats://127.0.0.1:1?ack_wait=0.1")
    with pytest.raises(BadSetting, match="prefetch"):
        source("amqp://127.0.0.1:1?prefetch=many")


def test_the_reference_has_the_options_and_their_defaults() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "brokers-reference.md").read_text(encoding="utf-8")
    defaults = {
        "claim_after": redis.CLAIM_IDLE_S,
        "ack_wait": nats.ACK_WAIT_S,
        "session_timeout": kafka.SESSION_TIMEOUT_S,
        "prefetch": rabbitmq.PREFETCH,
    }
    for name, default in defaults.items():
        assert f"| `{name}` | {default:g} |" in guide
    for beginning in kafka.CLIENT_OPTIONS:
        assert f"`{beginning}…`" in guide


@pytest.mark.parametrize("extra", CLIENTS)
def test_a_client_that_is_missing_is_named_with_its_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, CLIENTS[extra], None)
    monkeypatch.delitem(sys.modules, f"onward.brokers.{extra}", raising=False)
    with pytest.raises(UsageError, match=rf"pip install 'onward\[{extra}\]'"):
        source(URLS.get(extra, "redis://127.0.0.1:1"))


@pytest.mark.parametrize("kind", ["nats", "rabbitmq"])
async def test_a_broker_that_is_away_is_named_soon(kind: str) -> None:
    opened = source(URLS[kind].replace(":1", f":{server.free_port()}", 1) if kind == "nats" else URLS[kind])
    with pytest.raises(BrokerUnavailable, match="shop"):
        await opened.open()
    await opened.close()


async def test_a_place_that_is_missing_is_named_with_a_way_to_make_it(broker: str, producer: Producer) -> None:
    """Redis makes the stream, and RabbitMQ the queue."""
    opened = source(producer.url, place := fresh_place())
    try:
        if broker in {"redis", "rabbitmq"}:
            await opened.open()
            assert await opened.lag() == 0
        else:
            with pytest.raises(BrokerUnavailable, match=f"there is no (stream|topic) {place}; make it with `"):
                await opened.open()
    finally:
        await opened.close()


async def test_what_is_not_acknowledged_comes_again_and_counts_as_lag(producer: Producer) -> None:
    await producer.send(json_bodies(30))
    first = source(producer.url, producer.place)
    await first.open()
    received = list(await first.fetch(10, 10.0))
    while len(received) < 10:
        received += await first.fetch(10 - len(received), 10.0)
    assert await first.lag() == 30
    await first.acknowledge(received[:4])
    await first.hold(received[4:])
    await first.close()
    second = source(producer.url, producer.place)
    await second.open()
    bodies: set[bytes] = set()
    done = {item.body for item in received[:4]}
    while len(bodies | done) < 30:
        again = await second.fetch(100, 0.5)
        bodies |= {item.body for item in again}
        if again:
            await second.acknowledge(again)
    assert await second.lag() == 0
    await second.close()
    assert await producer.unacknowledged() == 0


@only_file
async def test_a_function_that_takes_long_is_called_once(
    url: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than the time after which the broker gives the message to another process."""
    monkeypatch.setattr(intake, "HOLD_INTERVAL_S", 0.3)
    app = make_app(url, producer)
    calls: list[int] = []

    @app.intake("mail", from_=f"shop/{producer.place}")
    async def mail(message: Message) -> None:
        calls.append(message.data["n"])
        await asyncio.sleep(2.0)

    await producer.send(json_bodies(3))
    async with app, app.intakes():
        await drained(app, producer)
    assert sorted(calls) == [0, 1, 2]


@only_file
async def test_an_intake_stays_connected_while_the_store_is_away(
    url: str, redis_producer: RedisProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of RabbitMQ counts deliveries: a connection that is closed would count as one for each message."""
    app = make_app(url, redis_producer)
    app.intake("orders", from_=f"shop/{redis_producer.place}", task="ship")
    opened: list[Any] = []
    away = [True] * 3
    make = app._source
    monkeypatch.setattr(app, "_source", lambda spec: opened.append(spec) or make(spec))
    await redis_producer.send(json_bodies(3))
    async with app:
        count = app.store.intakes.count

        async def count_later(name: str, most: int) -> int:
            if away:
                away.pop()
                raise StoreUnavailable("away")
            return await count(name, most)

        monkeypatch.setattr(app.store.intakes, "count", count_later)
        async with app.intakes():
            await drained(app, redis_producer)
        assert await inputs(app) == [0, 1, 2]
    assert not away
    assert len(opened) == 2  # one to see whether the client is installed


@only_file
@pytest.mark.slow
@pytest.mark.xdist_group("rabbitmq")
async def test_an_outage_of_the_store_costs_no_delivery_of_a_queue_with_a_limit(
    url: str, rabbit_producer: RabbitProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ 4 limits the deliveries of each quorum queue, older versions where an argument says so. This queue drops a message that
    comes back once."""
    rabbit_producer.arguments |= {"x-delivery-limit": 0}
    await rabbit_producer.send(json_bodies(3))
    returning = source(rabbit_producer.url, rabbit_producer.place)
    await returning.open()
    assert await returning.fetch(3, 10.0)
    await returning.close()
    await asyncio.sleep(0.2)
    app = make_app(url, rabbit_producer)
    app.intake("orders", from_=f"shop/{rabbit_producer.place}", task="ship")
    away = [True] * 3
    async with app:
        receive = app.service.receive

        async def receive_later(requests: Any) -> Any:
            if away:
                away.pop()
                raise StoreUnavailable("away")
            return await receive(requests)

        monkeypatch.setattr(app.service, "receive", receive_later)
        async with app.intakes():
            await rabbit_producer.send([b'{"n": 7}', b'{"n": 8}'])
            await drained(app, rabbit_producer)
        assert await inputs(app) == [7, 8], "the broker dropped the messages that came back, and no others"
    assert not away


@pytest.mark.xdist_group("rabbitmq")
@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ({"x-queue-type": "quorum"}, None),
        ({"x-queue-type": "quorum", "x-delivery-limit": 7}, 7),
        ({"x-queue-type": "quorum", "x-delivery-limit": 7, "x-max-length": 5000, "x-dead-letter-exchange": "dead"}, 7),
        ({"x-queue-type": "classic", "x-max-length": 5000}, None),
    ],
)
async def test_the_doctor_names_a_limit_of_deliveries(
    rabbit_producer: RabbitProducer, arguments: dict[str, Any], limit: int | None
) -> None:
    rabbit_producer.arguments = arguments
    await rabbit_producer.send(json_bodies(1))
    checked = source(rabbit_producer.url, rabbit_producer.place)
    findings = await checked.check()
    await checked.close()
    assert [finding.fine for finding in findings] == ([] if limit is None else [None])
    assert all(f"after {limit} deliveries" in finding.detail for finding in findings)


@only_file
async def test_a_broker_that_refuses_to_serve_is_asked_less_and_less_often(
    url: str, redis_producer: RedisProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections, and then refuses each fetch."""
    app = make_app(url, redis_producer)
    app.intake("orders", from_=f"shop/{redis_producer.place}", task="ship")
    fetches: list[int] = []

    async def refuse(_source: Source, most: int, _wait: float) -> Any:
        fetches.append(most)
        raise BrokerUnavailable("shop", "not for you")

    monkeypatch.setattr("onward.brokers.redis.RedisSource.fetch", refuse)
    async with app, app.intakes():
        await asyncio.sleep(1.5)
    assert 2 <= len(fetches) <= 5  # after 0, 0.1, 0.3, 0.7 and 1.5 s
