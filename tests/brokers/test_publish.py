"""Events of tasks on real brokers: each once and in order, whatever is away, refused, or changed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Onward
from onward.engine.worker import relay as relay_module
from onward.errors import BadSetting, StoreUnavailable, UsageError
from onward.store.port.core import Batch, Store
from rig.nats import Nats
from rig.server import Unavailable, free_port
from rig.valkey import Valkey
from tests.brokers.outlets import BROKERS, QUICK, NatsOutlet, Outlet, outlet_of, verdict
from tests.docs.test_guides import GUIDES, code_of
from tests.kit import Time, claim, completion, entry, eventually, row, together
from tests.sinks.conftest import Office

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture(params=BROKERS)
async def outlet(request: pytest.FixtureRequest) -> Outlet:
    return await outlet_of(request.param)


@pytest.fixture(params=QUICK)
async def quick_outlet(request: pytest.FixtureRequest) -> Outlet:
    return await outlet_of(request.param)


@pytest.fixture
async def offices(store: Store, time: Time) -> AsyncIterator[list[Office]]:
    made: list[Office] = []
    yield made
    for office in made:
        for relay in office.relays:
            await relay.stop(0)


async def open_office(
    offices: list[Office], store: Store, time: Time, outlet: Outlet, url: str = "", types: tuple[str, ...] = ("*",)
) -> Office:
    office = Office(store, time, brokers={"events": url or outlet.url})
    office.app.publish("audit", to=f"events/{outlet.place}", types=types)
    await office.app.save_subscriptions()
    offices.append(office)
    return office


async def work(office: Office, count: int, steps: int, **options: Any) -> set[tuple[str, int]]:
    """Tasks with many records; the task and number of each."""
    tasks = await office.app.submit_many("work", [None] * count, **options)
    await office.store.workers.join(row("w1"), 1e9)
    held = await claim(office.store, "w1", count)
    batch = together(*[Batch([entry(one, ahead)]) for one in held for ahead in range(1, steps + 1)])
    assert await office.store.save("w1", batch) == set()
    assert await office.store.save("w1", together(*[completion(one, steps + 1) for one in held])) == set()
    return {(task.id, seq) for task in tasks for seq in range(1, steps + 4)}


def clean(found: dict[str, int]) -> bool:
    return set(found.values()) == {0}


async def test_each_event_once_and_those_of_a_task_in_their_order(
    offices: list[Office], store: Store, time: Time, outlet: Outlet
) -> None:
    office = await open_office(offices, store, time, outlet)
    wanted = await work(office, 20, 40)
    await office.send_all()
    arrived = await outlet.read()
    assert clean(verdict(arrived, wanted))
    assert {event.id for event in arrived} == {f"{task_id}.{seq}.publish:audit" for task_id, seq in wanted}
    assert await office.deliveries() == [], "what the broker has is not kept"


async def test_a_foreign_consumer_reads_cloud_events_and_the_trace(
    offices: list[Office], store: Store, time: Time, outlet: Outlet
) -> None:
    office = await open_office(offices, store, time, outlet, types=("task.*",))
    (task_id,) = await office.app.service.submit([_traced()])
    held = await office.begin()
    assert held.id == task_id
    assert await store.save("w1", completion(held)) == set()
    await office.send_all()
    arrived = await outlet.read()
    events = [event.cloud_event() for event in arrived]
    assert [event.get_type() for event in events] == ["dev.onward.task.submitted", "dev.onward.task.completed"]
    assert [event.get_id() for event in events] == [event.id for event in arrived]
    assert {event.get_subject() for event in events} == {task_id}
    assert {event.get_source() for event in events} == {"/onward/work"}
    assert events[-1].get_data()["result"] == 42
    assert {event.headers["traceparent"] for event in arrived} == {TRACE["traceparent"]}
    assert [event.get_extension("sequence") for event in events] == ["1", "3"]


def _traced() -> Any:
    from onward.service.submission import SubmitRequest

    return SubmitRequest("work", None, trace=TRACE)


async def test_a_repeat_has_the_same_id_and_the_broker_leaves_it_out(
    offices: list[Office], store: Store, time: Time, quick_outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = await open_office(offices, store, time, quick_outlet)
    wanted = await work(office, 5, 4)
    finish = store.outbox.finish

    async def lose(*_: Any) -> None:
        raise StoreUnavailable("the relay dies here")

    monkeypatch.setattr(store.outbox, "finish", lose)
    await office.send()
    monkeypatch.setattr(store.outbox, "finish", finish)
    assert len(await quick_outlet.read()) == len(wanted)
    await office.send()
    assert len(await office.deliveries(state="pending")) == len(wanted), "until its lease ends, no other relay sends it"
    time.move(relay_module.LEASE_S + 1)
    await office.send_all()
    assert await office.deliveries() == []
    assert clean(verdict(await quick_outlet.read(), wanted))


async def test_a_broker_that_is_away_costs_no_attempt_and_loses_nothing(
    offices: list[Office], store: Store, time: Time, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = _own(Valkey(password="not-for-eyes"))
    with broker:
        outlet = await outlet_of("redis")
        outlet.server = broker
        office = await open_office(offices, store, time, outlet)
        relay, waits = office.relay(), []
        await work(office, 1, 1)
        await office.send()
        broker.kill()
        monkeypatch.setattr(relay_module, "MAX_WAITING", 3)
        wanted = await work(office, 10, 3)
        time.move(1)
        with caplog.at_level(logging.WARNING, "onward.relay"):
            for _ in range(9):
                await office.send()
                (pace,) = relay._paces.values()
                waits.append(pace.rests_until - time._clock.monotonic())
                time.move(6)
        longest = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5)
        assert all(0.9 * most <= rest <= most for most, rest in zip(longest, waits, strict=True)), waits
        time.move(30 * 86_400)
        await office.send()
        waiting = await office.deliveries(state="pending", limit=1000)
        assert len(waiting) == len(wanted)
        assert {(one.attempts, one.sink) for one in waiting} == {(0, f"events/{outlet.place}")}
        warnings = [line.getMessage() for line in caplog.records if "takes no events" in line.getMessage()]
        assert warnings[0].startswith(f"events/{outlet.place} takes no events now; {len(wanted)} wait for it")
        assert "not-for-eyes" not in caplog.text
        broker.start()
        time.move(6)
        await office.send_all()
        assert wanted <= {event.line for event in await outlet.read()}
        assert await office.deliveries() == []


async def test_doctor_counts_the_events_that_wait(offices: list[Office], store: Store, time: Time) -> None:
    outlet = await outlet_of("redis")
    office = await open_office(offices, store, time, outlet, url=f"redis://:hush-hush@127.0.0.1:{free_port()}")
    assert not [check for check in await office.app.service.health.checks() if check.name.startswith("events")]
    wanted = await work(office, 2, 1)
    time.move(100)
    await office.send()
    (check,) = [check for check in await office.app.service.health.checks() if check.name.startswith("events")]
    assert (check.name, check.fine) == (f"events for events/{outlet.place}", False)
    assert check.detail.startswith(f"{len(wanted)} events wait")
    assert "hush-hush" not in repr(await office.app.subscriptions.list())
    assert "hush-hush" not in repr(await office.deliveries())


async def test_an_event_that_the_broker_refuses_fails_alone(offices: list[Office], store: Store, time: Time) -> None:
    with _own(Nats(max_payload=4096)) as broker:
        outlet = NatsOutlet(broker)
        await outlet.make()
        office = await open_office(offices, store, time, outlet)
        task_id, held = await office.submit(), await office.begin()
        large = entry(held, 1, data=b'{"result":"%s"}' % (b"x" * 8000))
        assert await store.save("w1", together(Batch([large, entry(held, 2)]), completion(held, 3))) == set()
        await office.send_all()
        assert [event.line for event in await outlet.read()] == [(task_id, seq) for seq in (1, 2, 4, 5)]
        (failed,) = await office.deliveries()
        assert (failed.task_id, failed.seq, failed.state) == (task_id, 3, "failed")
        assert "bytes; the server takes less" in str(failed.said)


@pytest.mark.slow
@pytest.mark.xdist_group("kafka")
async def test_a_topic_that_takes_small_batches_gets_all_events_but_the_large_ones_in_order(
    offices: list[Office], store: Store, time: Time
) -> None:
    outlet = await outlet_of("kafka")
    outlet.place += ".small"
    outlet.server.topic(outlet.place, partitions=3, settings={"max.message.bytes": "9000"})
    office = await open_office(offices, store, time, outlet)
    sink, lane = office.relay()._sinks[-1], f"broker:events/{outlet.place}"

    async def topic_is_known() -> bool:
        return await sink.connect(lane) is None

    await eventually(topic_is_known, 20)
    wanted = await work(office, 5, 40)
    task_id = (await office.app.submit("work", None)).id
    held = await office.begin()
    assert held.id == task_id
    # A first record batch of 128 kB, which the topic refuses, and a second one, which it would take.
    large, middle = (b'{"result":"%s"}' % (b"x" * size) for size in (12_000, 1_000))
    entries = [entry(held, ahead, data=large if ahead in {7, 20} else middle) for ahead in range(1, 76)]
    assert await store.save("w1", together(Batch(entries), completion(held, 76))) == set()
    wanted |= {(task_id, seq) for seq in range(1, 79)} - {(task_id, 9), (task_id, 22)}
    await office.send_all()
    assert clean(verdict(await outlet.read(), wanted))
    failed = await office.deliveries(state="failed")
    assert {(delivery.task_id, delivery.seq) for delivery in failed} == {(task_id, 9), (task_id, 22)}
    assert "too large" in str(failed[0].said).lower()


async def test_a_subject_without_a_stream_waits_for_one(offices: list[Office], store: Store, time: Time) -> None:
    outlet = await outlet_of("nats")
    outlet.place += ".elsewhere"
    office = await open_office(offices, store, time, outlet)
    trouble = await office.relay()._sinks[-1].connect(f"broker:events/{outlet.place}")
    assert trouble is not None
    assert "no JetStream stream takes the subject" in trouble
    wanted = await work(office, 2, 2)
    await office.send()
    await outlet.make()
    time.move(6)
    await office.send_all()
    assert clean(verdict(await outlet.read(), wanted))


async def test_a_place_that_no_process_serves_keeps_its_events(
    offices: list[Office], store: Store, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    outlet = await outlet_of("redis")
    office = await open_office(offices, store, time, outlet)
    wanted = await work(office, 3, 1)
    with caplog.at_level(logging.WARNING, "onward.brokers"):
        stranger = Office(store, time)
        stranger.app.publish("audit", to=f"events/{outlet.place}", types=["*"])
        offices.append(stranger)
        await stranger.send()
    assert "set ONWARD_BROKER_EVENTS" in caplog.text
    for _ in range(3):
        time.move(10 * 86_400)
        await stranger.send()
    assert len(await office.deliveries(state="pending", limit=1000)) == len(wanted)
    await office.send_all()
    assert clean(verdict(await outlet.read(), wanted))


async def test_events_that_wait_go_to_the_place_that_code_names_now(
    offices: list[Office], store: Store, time: Time
) -> None:
    before, now = await outlet_of("redis"), await outlet_of("redis")
    office = await open_office(offices, store, time, before)
    wanted = await work(office, 3, 1)
    other = await open_office(offices, store, time, now)
    await other.send_all()
    assert clean(verdict(await now.read(), wanted))
    assert await before.read() == []
    (subscription,) = (await other.app.subscriptions.list())[0]
    assert (subscription.id, subscription.sink) == ("publish:audit", f"events/{now.place}")


async def test_two_relays_share_the_work_and_keep_the_order(offices: list[Office], store: Store, time: Time) -> None:
    outlet = await outlet_of("redis")
    office = await open_office(offices, store, time, outlet)
    wanted = await work(office, 30, 40)
    relays = [office.relay(), office.relay()]
    for _ in range(20):
        for relay in relays:
            await office.send(relay)
        time.move(1)
    assert clean(verdict(await outlet.read(), wanted))


def test_what_cannot_be_published_is_said_when_it_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Onward("sqlite://:memory:", brokers={"events": "nats://127.0.0.1:1", "odd": "gopher://x"})
    app.publish("audit", to="events/onward.tasks", types=["task.*"])
    for wrong in ("events", "events/", "/place"):
        with pytest.raises(BadSetting, match="BROKER/PLACE"):
            app.publish("other", to=wrong, types=["task.*"])
    with pytest.raises(UsageError, match="two publications are named 'audit'"):
        app.publish("audit", to="events/x", types=["task.*"])
    with pytest.raises(UsageError, match="no events of type"):
        app.publish("other", to="events/x", types=["task.nonsense"])
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nats" else found(name))
    with pytest.raises(UsageError, match=r"pip install 'onward\[nats\]'"):
        app._make_relay()


def test_brokers_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_BROKER_EVENTS", "redis://x")
    assert Onward("sqlite://:memory:").settings.brokers == {"events": "redis://x"}
    assert Onward("sqlite://:memory:", brokers={"events": "redis://y"}).settings.brokers == {"events": "redis://y"}


async def test_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = await outlet_of("redis")
    app = code_of("publishing.md", "shop.py")["app"]
    outlet.place = "onward.tasks"
    app.settings = dataclasses.replace(app.settings, brokers={"events": outlet.url}, poll_s=0.05)
    app.move("sqlite://:memory:")
    async with app, app.worker():
        task = await app.submit("ship", "order 7")
        assert await task.result("30s") == "order 7 is on its way"

        async def arrived() -> list[dict[str, Any]]:
            events = [event.json for event in await outlet.read()]
            return events if events and events[-1]["type"] == "dev.onward.task.completed" else []

        *_, last = await eventually(arrived)
    (shown,) = re.findall(r"```json\n(.*?)```", (GUIDES / "publishing.md").read_text(encoding="utf-8"), re.DOTALL)
    assert json.loads(shown).keys() == last.keys()
    assert last["data"]["result"] == json.loads(shown)["data"]["result"]
    assert json.loads(shown)["data"].keys() <= last["data"].keys()


def _own(server: Any) -> Any:
    """A server for one test."""
    try:
        return server.start()
    except Unavailable as why:
        pytest.skip(str(why))
