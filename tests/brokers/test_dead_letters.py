"""Intakes from outside: an intake as a process, `onward doctor`, metrics, traces."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from onward import Onward, telemetry
from onward.brokers.check import check_brokers
from onward.brokers.connect import open_source
from onward.core import wire
from onward.core.clock import SystemClock
from onward.core.views import Check
from rig.processes import Child
from tests.brokers.producers import Producer, RedisProducer, cloud_event, json_bodies
from tests.brokers.test_intake import drained, inputs, make_app
from tests.kit import eventually, not_memory, only_file, sql

ROOT = Path(__file__).parents[2]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def checks(app: Onward) -> dict[str, Check]:
    return {check.name: check for check in await app.service.health.checks()}


@only_file
async def test_an_intake_runs_as_a_process_of_its_own(url: str, producer: Producer) -> None:
    environment = {**os.environ, "ONWARD_BROKER_SHOP": producer.url, "PLACE": producer.place}
    words = ("intake", "tests.brokers.shop:app", "--db", url, "--json")
    await producer.send(json_bodies(20))
    with Child.module("onward", *words, cwd=ROOT, env=environment) as child:
        child.wait_for("ready", timeout=60)
        async with Onward(url, brokers={"shop": producer.url}) as app:
            await drained(app, producer)
            assert await inputs(app) == list(range(20))

            async def runs() -> bool:
                return [(intake.state, intake.target) for intake in await app.service.intakes.list()] == [
                    ("running", "ship")
                ]

            await eventually(runs, 20)
        child.signal(signal.SIGTERM)
        child.wait_for("20 messages taken", timeout=30)
        assert child.wait(30) == 0


@not_memory
async def test_the_doctor_looks_at_brokers_and_places(url: str, redis_producer: RedisProducer) -> None:
    app = make_app(url, redis_producer)
    app.intake("orders", from_=f"shop/{redis_producer.place}", task="ship")
    async with app:
        found = (await checks(app))[f"broker shop/{redis_producer.place}"]
        assert (found.fine, found.detail) == (
            None,
            f"there is no stream {redis_producer.place} yet; the intake makes it",
        )
        await redis_producer.send(json_bodies(1))
        found = (await checks(app))[f"broker shop/{redis_producer.place}"]
        assert (found.fine, found.detail) == (True, "reachable")
    async with Onward(url, brokers={"shop": redis_producer.url, "away": "redis://127.0.0.1:1"}) as app:
        found = (await checks(app))["broker away"]
        assert found.fine is False
        assert "broker away" in found.detail
        assert "ONWARD_BROKER_AWAY" in found.detail


@only_file
async def test_the_doctor_warns_of_a_server_that_loses_messages(url: str, redis_producer: RedisProducer) -> None:
    async with redis.asyncio.Redis.from_url(redis_producer.url.partition("?")[0]) as client:
        await client.set(redis_producer.place, "no stream")
        await client.config_set("appendfsync", "everysec")
        await client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            (found,) = await _looked_at(redis_producer)
            await client.config_set("appendonly", "no")
            (worse,) = await _looked_at(redis_producer)
        finally:
            for name, value in (("appendonly", "yes"), ("appendfsync", "always"), ("maxmemory-policy", "noeviction")):
                await client.config_set(name, value)
    assert found.fine is False
    for words in ("appendfsync everysec", "set appendfsync always", "set noeviction", "is a string and no stream"):
        assert words in found.detail
    assert "set appendonly yes" in worse.detail


async def _looked_at(producer: Producer) -> list[Check]:
    def source(broker: str, place: str) -> Any:
        return open_source(broker, producer.url, place, "group", "me", SystemClock())

    return await check_brokers(["shop"], {"shop": [producer.place]}, source)


@only_file
async def test_messages_are_counted(url: str, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "counters", telemetry.Counters())
    telemetry.counters.on = True
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task={"order.created": "ship"})
    await producer.send([cloud_event(1), cloud_event(2), cloud_event(2), cloud_event(3, "order.unknown")])
    async with app, app.intakes() as running:
        await drained(app, producer)
        await eventually(lambda: _is(lambda: running.taken == 4), 20)
        await running._intakes[0].report()
    numbers, _ = telemetry.counters.snapshot()
    assert numbers[telemetry.MESSAGES, ("orders", "received")] == 2
    assert numbers[telemetry.MESSAGES, ("orders", "repeated")] == 1
    assert numbers[telemetry.MESSAGES, ("orders", "dead")] == 1
    assert numbers[telemetry.INTAKE_LAG, ("orders",)] == 0


async def _is(check: Any) -> bool:
    return bool(check())


@only_file
async def test_a_trace_goes_on_through_a_message(url: str, producer: Producer) -> None:
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task="ship")
    await producer.send(json_bodies(1), {"traceparent": TRACE})
    async with app, app.intakes():
        await drained(app, producer)
        ((options,),) = await sql(app.store, "SELECT options FROM onward_tasks")
    assert wire.decode(options)["trace"] == {"traceparent": TRACE}
