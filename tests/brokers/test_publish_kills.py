"""Brokers and relays that are killed with -9, and answers that get lost: nothing is missing, and what comes twice has the same id."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onward import Onward
from onward.store.port.core import Batch
from rig.kafka import Kafka
from rig.processes import Child
from rig.proxy import HttpProxy
from rig.server import Unavailable
from tests.brokers.outlets import DROPS_REPEATS, KafkaOutlet, Outlet, outlet_of, verdict
from tests.kit import claim, completion, entry, eventually, not_memory, row, together
from tests.sinks.conftest import SECRET
from tests.sinks.receiver import Receiver

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
STEPS = 17
"""Records of a task, with those of its submit, start and end 20 in all."""

ANSWERED = {"redis": b"EVALSHA", "nats": b"Nats-Msg-Id", "rabbitmq": b"publish:audit"}
"""Bytes of the requests whose answers are lost."""


@pytest.fixture(params=["redis", "nats", "kafka", "rabbitmq"])
async def outlet(request: pytest.FixtureRequest) -> Outlet:
    return await outlet_of(request.param)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().open() as receiver:
        yield receiver


def app_of(url: str, outlet: Outlet, broker: str = "") -> Onward:
    app = Onward(url, brokers={"events": broker or outlet.url}, poll_s=0.05)
    app.task(name="work")(lambda ctx: None)
    app.publish("audit", to=f"events/{outlet.place}", types=["*"])
    return app


async def produce(app: Onward, tasks: int) -> set[tuple[str, int]]:
    """Tasks with many records that wait to be sent; the task and number of each record."""
    await app.save_subscriptions()
    handles = await app.submit_many("work", [None] * tasks)
    worker = app._ids()
    await app.store.workers.join(row(worker), 1e9)
    held = await claim(app.store, worker, tasks)
    batch = together(*[Batch([entry(one, ahead)]) for one in held for ahead in range(1, STEPS + 1)])
    assert await app.store.save(worker, batch) == set()
    assert await app.store.save(worker, together(*[completion(one, STEPS + 1) for one in held])) == set()
    return {(handle.id, seq) for handle in handles for seq in range(1, STEPS + 4)}


async def waiting(app: Onward) -> int:
    return sum(depth.events for depth in await app.store.outbox.depths("broker:"))


def relay(url: str, broker: str, fault: str = "", crash: str = "") -> Child:
    env = {"ONWARD_CRASH": crash} if crash else {}
    return Child.module("tests.brokers.publish_crew", url, broker, fault, cwd=ROOT, env=env)


async def all_sent(app: Onward, seconds: float = 120) -> None:
    async def none() -> bool:
        return await waiting(app) == 0

    await eventually(none, seconds)


def judge(outlet: Outlet, found: dict[str, int]) -> None:
    assert (found["lost"], found["strange"], found["changed"], found["late"]) == (0, 0, 0, 0), found
    if outlet.kind in DROPS_REPEATS:
        assert found["twice"] == 0, found


@not_memory
async def test_a_broker_that_is_killed_in_mid_stream(url: str, prove: bool, outlet: Outlet) -> None:
    kills = 20 if prove else 2
    app = app_of(url, outlet)
    async with app:
        wanted = await produce(app, kills * 40)
        with relay(url, outlet.url) as child:
            await asyncio.to_thread(child.wait_for, "ready")
            for kill in range(kills):
                goal = len(wanted) * (kills - kill) // (kills + 1)

                async def far_enough(goal: int = goal) -> bool:
                    return await waiting(app) <= goal

                await eventually(far_enough, 120)
                await asyncio.to_thread(outlet.server.kill)
                await asyncio.to_thread(outlet.server.start)
            await all_sent(app)
    found = verdict(await outlet.read(), wanted)
    print(f"  {outlet.kind}: {len(wanted)} events, {kills} kills of the broker: {found}")
    judge(outlet, found)


@not_memory
@pytest.mark.parametrize("outlet_kind", ["redis", "nats", "rabbitmq"])
async def test_answers_that_get_lost(url: str, prove: bool, outlet_kind: str) -> None:
    outlet = await outlet_of(outlet_kind)
    app = app_of(url, outlet)
    async with app:
        wanted: set[tuple[str, int]] = set()
        with HttpProxy("127.0.0.1", outlet.server.port) as proxy, relay(url, proxy.url_for(outlet.url)) as child:
            await asyncio.to_thread(child.wait_for, "ready")
            for _ in range(10 if prove else 2):  # after each lost answer in a row the relay waits for longer
                proxy.cut_after_request(ANSWERED[outlet.kind], 4)
                wanted |= await produce(app, 100)
                await all_sent(app)
            assert proxy.fired > 0
    found = verdict(await outlet.read(), wanted)
    print(f"  {outlet.kind}: {len(wanted)} events, {proxy.fired} answers lost: {found}")
    judge(outlet, found)


@not_memory
async def test_answers_of_kafka_that_get_lost(url: str, prove: bool) -> None:
    """A Kafka client goes to the address that the broker names: here it names the proxy."""
    kafka = Kafka()
    with HttpProxy("127.0.0.1", kafka.port) as proxy:
        controller = kafka._settings()["listeners"].partition(",")[2]
        kafka.settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port},{controller}"}
        try:
            await asyncio.to_thread(kafka.start)
        except Unavailable as why:
            pytest.skip(str(why))
        with kafka:
            outlet = KafkaOutlet(kafka)
            await outlet.make()
            app = app_of(url, outlet)
            async with app:
                wanted = await produce(app, 100)
                proxy.cut_after_request(b"publish:audit", 40 if prove else 6)
                with relay(url, proxy.url_for(outlet.url)) as child:
                    await asyncio.to_thread(child.wait_for, "ready")
                    await all_sent(app)
            assert proxy.fired > 0
            found = verdict(await outlet.read(), wanted)
            print(f"  kafka: {len(wanted)} events, {proxy.fired} answers lost: {found}")
            judge(outlet, found)


async def killed_relays(url: str, app: Onward, outlet: Outlet, kills: int, fault: str = "") -> None:
    """Relays that die at points that hurt and at any other, and at last one that lives."""
    rng = random.Random(7)
    for _ in range(kills):
        point = rng.choice(["deliver.sent", "deliver.before", "deliver.after", "deliver.marked", ""])
        with relay(url, outlet.url, fault, f"{point}:{rng.randint(1, 2)}" if point else "") as child:
            left = await waiting(app)
            await asyncio.to_thread(child.wait_for, "ready")
            for _ in range(200):
                if await waiting(app) < left - rng.randint(0, 150):
                    break
                await asyncio.sleep(0.01)
            child.kill9()
    with relay(url, outlet.url, fault) as child:
        await asyncio.to_thread(child.wait_for, "ready")
        await all_sent(app)


@not_memory
async def test_a_relay_that_is_killed(url: str, prove: bool, outlet: Outlet) -> None:
    kills = 20 if prove else 4
    app = app_of(url, outlet)
    async with app:
        wanted = await produce(app, kills * 15)
        await killed_relays(url, app, outlet, kills)
    found = verdict(await outlet.read(), wanted)
    print(f"  {outlet.kind}: {len(wanted)} events, {kills} relays killed: {found}")
    judge(outlet, found)


@not_memory
@pytest.mark.parametrize(("fault", "shows"), [("settled first", "lost"), ("new ids", "changed")])
async def test_the_proof_sees_what_is_planted(url: str, fault: str, shows: str) -> None:
    outlet = await outlet_of("redis")
    app = app_of(url, outlet)
    wanted: set[tuple[str, int]] = set()
    async with app:
        for _ in range(5):  # a kill shows the fault when it comes between two instructions, which not every one does
            wanted |= await produce(app, 90)
            await killed_relays(url, app, outlet, 6, fault)
            if verdict(await outlet.read(), wanted)[shows] > 0:
                return
    pytest.fail("the proof did not see what was planted")


@not_memory
async def test_a_broker_that_is_away_holds_up_nothing_else(url: str, prove: bool, receiver: Receiver) -> None:
    """Tasks are done and webhooks are sent meanwhile, and all events arrive afterwards."""
    seconds = 600 if prove else 5
    outlet = await outlet_of("redis")
    app = Onward(url, brokers={"events": outlet.url}, poll_s=0.05, webhook_secret=SECRET, webhook_allow_private="true")

    async def work(ctx: object) -> int:
        return 1

    app.task(name="work")(work)
    app.publish("audit", to=f"events/{outlet.place}", types=["*"])
    wanted: set[tuple[str, int]] = set()
    hooked: set[str] = set()
    async with app, app.worker():
        await asyncio.to_thread(outlet.server.kill)
        try:
            for _ in range(seconds * 4):
                tasks = await app.submit_many("work", [None] * 42)  # three records each: some 500 a second
                one = await app.submit("work", webhook=receiver.url())
                assert await one.result("30s") == 1
                wanted |= {(task.id, seq) for task in [*tasks, one] for seq in (1, 2, 3)}
                hooked.add(f"{one.id}.3")
                await asyncio.sleep(0.25)

            async def hooks() -> bool:
                return {received.id for received in receiver.got} >= hooked

            await eventually(hooks, 60)
            assert await waiting(app) >= len(wanted) - 126
        finally:
            await asyncio.to_thread(outlet.server.start)
        await all_sent(app, 300)
    found = verdict(await outlet.read(), wanted)
    print(f"  the broker was away for {seconds} s: {len(wanted)} events, {len(hooked)} webhooks meanwhile: {found}")
    judge(outlet, found)
