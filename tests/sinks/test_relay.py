"""Functions that hear of events: in their order, at least once, also after a restart; what nobody offers stays; what is old goes."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections import defaultdict
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from onward.core.caller import Caller
from onward.core.event import Event
from onward.core.views import Delivery
from onward.engine.worker import relay as relay_module
from onward.errors import NotFound, UsageError
from onward.server.access.service import AuthorizedService
from onward.service.submission import SubmitRequest
from onward.store.port.core import Batch, Store
from onward.store.port.outbox import NO_KEY
from onward.testing import drain, memory_app
from tests.kit import (
    TEST_KEYS,
    Time,
    calm,
    claim,
    completion,
    encrypt,
    entry,
    eventually,
    not_memory,
    row,
    sql,
    together,
)
from tests.sinks.conftest import Office
from tests.sinks.receiver import Receiver


class Ears:
    """What was heard, by task."""

    def __init__(self) -> None:
        self.heard: dict[str, list[int]] = defaultdict(list)
        self.events: list[Event] = []

    async def __call__(self, event: Event) -> None:
        await asyncio.sleep(0)
        self.events.append(event)
        self.heard[event.task_id].append(event.seq)

    def in_order(self) -> bool:
        return all(seqs == sorted(seqs) for seqs in self.heard.values())


async def busy_tasks(office: Office, count: int, steps: int) -> None:
    """Tasks with many records, written together."""
    await office.app.submit_many("work", [None] * count)
    await office.store.workers.join(row("w1"), 1e9)
    held = await claim(office.store, "w1", count)
    assert len(held) == count
    batch = together(*[Batch([entry(one, ahead)]) for one in held for ahead in range(1, steps + 1)])
    assert await office.store.save("w1", batch) == set()
    assert await office.store.save("w1", together(*[completion(one, steps + 1) for one in held])) == set()


async def test_each_event_once_and_those_of_a_task_in_their_order(office: Office) -> None:
    ears = Ears()
    office.app.on("*", name="ears")(ears)
    await office.app.save_subscriptions()
    await busy_tasks(office, 12, 6)
    await office.send_all()
    assert len(ears.events) == len({one.id for one in ears.events}) == 12 * (6 + 3)
    assert ears.in_order()
    assert {one.type for one in ears.events} == {r.SUBMITTED, r.SHIFT, r.STEP_DONE, r.COMPLETED}
    (ended, *_) = [one for one in ears.events if one.type == r.COMPLETED]
    assert ended.data["result"] == 42
    assert ended.data["state"] == "completed"


async def test_two_relays_share_the_work_and_keep_the_order(office: Office) -> None:
    ears = Ears()
    office.app.on("*", name="ears")(ears)
    await office.app.save_subscriptions()
    await busy_tasks(office, 12, 6)
    pair = [office.relay(), office.relay()]
    while any(lane.due_in <= 0 for lane in await office.store.outbox.lanes() or ()):
        await asyncio.gather(*[office.send(one) for one in pair])
    assert len(ears.events) == len({one.id for one in ears.events}) == 12 * 9
    assert ears.in_order()


@pytest.mark.usefixtures("plain_payloads")
async def test_one_that_fails_holds_up_its_own_task_and_no_other(office: Office) -> None:
    heard: list[tuple[str, int]] = []
    bad = ""

    @office.app.on("*", name="picky")
    def picky(event: Event) -> None:
        if event.task_id == bad and event.type == r.SHIFT and len(heard) < 100 and not fixed:
            raise ValueError("not now")
        heard.append((event.task_id, event.seq))

    fixed = False
    await office.app.save_subscriptions()
    await busy_tasks(office, 3, 2)
    bad = (await office.app.list())[0][0].task_id
    await office.send_all()
    assert [seq for task_id, seq in heard if task_id == bad] == [1]
    assert len(heard) == 1 + 2 * 5
    waiting = await office.deliveries(state="pending", task=bad)
    assert sorted((one.seq, one.attempts) for one in waiting) == [(2, 1), (3, 0), (4, 0), (5, 0)]
    assert [one.said for one in waiting if one.attempts] == ["ValueError: not now"]
    fixed = True
    office.time.move(6)
    await office.send_all()
    assert [seq for task_id, seq in heard if task_id == bad] == [1, 2, 3, 4, 5]


async def test_a_function_that_always_fails_is_given_up_and_the_next_goes_on(office: Office) -> None:
    seen: list[str] = []

    @office.app.on(r.SUBMITTED, r.COMPLETED, name="broken")
    def broken(event: Event) -> None:
        seen.append(event.type)
        if event.type == r.SUBMITTED:
            raise ValueError("never")

    await office.app.save_subscriptions()
    await office.complete()
    for _ in range(12):
        await office.send_all()
        office.time.move(100_000)
    assert seen == [r.SUBMITTED] * 10 + [r.COMPLETED]
    assert [one.type for one in await office.deliveries(state="failed")] == [r.SUBMITTED]


async def test_what_a_dead_relay_had_is_sent_by_another_when_its_lease_ends(office: Office) -> None:
    ears = Ears()
    office.app.on(r.COMPLETED, name="ears")(ears)
    await office.app.save_subscriptions()
    await office.complete()
    taken = await office.store.outbox.take("on:ears", 8, "somebody who died", relay_module.LEASE_S)
    assert [one.attempts for one in taken] == [1]
    await office.send_all()
    assert not ears.events
    (one,) = await office.deliveries()
    assert one.sending
    office.time.move(relay_module.LEASE_S + 1)
    await office.send_all()
    assert len(ears.events) == 1
    from onward.store.port.outbox import FAILED, Settled

    await office.store.outbox.settle("somebody who died", [Settled(taken[0].key, 1, FAILED, 0.0, "late")])
    assert [one.state for one in await office.deliveries()] == ["delivered"], "a word that comes late changes nothing"


async def test_a_long_function_keeps_its_lease(office: Office) -> None:
    opened, calls = asyncio.Event(), 0

    @office.app.on(r.COMPLETED, name="slow")
    async def slow(event: Event) -> None:
        nonlocal calls
        calls += 1
        await opened.wait()

    await office.app.save_subscriptions()
    await office.complete()
    relay, other = office.relay(), office.relay()
    await relay.look()
    await eventually(lambda: _true(calls == 1))
    for _ in range(10):
        before = (await office.deliveries())[0].due_at
        office.time.move(relay_module.LEASE_S / 2)
        await eventually(lambda before=before: _later(office, before))
        await office.send(other)
    assert calls == 1
    opened.set()
    await office.send(relay)
    assert [one.state for one in await office.deliveries()] == ["delivered"]


async def _true(value: bool) -> bool:
    return value


async def _later(office: Office, before: float | None) -> bool:
    await calm()
    due = (await office.deliveries())[0].due_at
    return due is not None and before is not None and due > before


async def test_plain_functions_run_in_threads(office: Office) -> None:
    where: list[str] = []
    office.app.on(r.COMPLETED, name="plain")(lambda event: where.append(threading.current_thread().name))
    await office.app.save_subscriptions()
    await office.complete()
    await office.send_all()
    assert where != []
    assert where != [threading.main_thread().name]


# ── what nobody offers, and what is old ──────────────────────────────────────────────────────────────────────────────


async def test_what_nobody_offers_stays_and_is_heard_by_who_comes_later(
    office: Office, store: Store, time: Time
) -> None:
    office.app.on(r.COMPLETED, name="later")(lambda event: None)
    await office.app.save_subscriptions()
    stranger = Office(store, time)
    ids = [await stranger.complete() for _ in range(3)]
    await stranger.send()
    assert [one.state for one in await office.deliveries()] == ["pending"] * 3
    time.move(6 * 86_400)
    await stranger.send()
    ears = Ears()
    newcomer = Office(store, time)
    newcomer.app.on(r.COMPLETED, name="later")(ears)
    await newcomer.app.save_subscriptions()
    await newcomer.send_all()
    assert sorted(one.task_id for one in ears.events) == sorted(ids)
    ((shown,), _) = await office.app.subscriptions.list()
    assert shown.offered_at == time.now


async def test_after_a_week_it_is_given_up_by_strangers_and_by_nobody_else(
    office: Office, store: Store, time: Time
) -> None:
    ears = Ears()
    office.app.on(r.COMPLETED, name="f")(ears)
    await office.app.save_subscriptions()
    await office.complete()
    stranger = Office(store, time)
    await stranger.complete()
    relay = stranger.relay()
    time.move(8 * 86_400)
    await office.send(office.relay())
    assert len(ears.events) == 2, "however long everything was off"
    await office.complete()
    time.move(8 * 86_400)
    await stranger.send(relay)
    assert [one.said for one in await office.deliveries(state="failed")] == ["no process took it"]


async def test_too_many_are_dropped_and_counted(
    office: Office, store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "MAX_WAITING", 5)
    office.app.on(r.COMPLETED, name="f")(lambda event: None)
    await office.app.save_subscriptions()
    stranger = Office(store, time)
    ids = []
    for _ in range(8):
        ids.append(await stranger.complete())
        time.move(1)
    relay = stranger.relay()
    time.move(100)
    await stranger.send(relay)
    left = await office.deliveries()
    ((shown,), _) = await office.app.subscriptions.list()
    assert len(left) + shown.dropped == 8
    assert len(left) == 5
    assert {one.task_id for one in left} <= set(ids)


async def test_what_was_told_is_forgotten_after_a_while_and_so_is_the_webhook(
    office: Office, receiver: Receiver
) -> None:
    await office.complete(webhook=receiver.url())
    open_task = await office.submit(webhook=receiver.url())
    await office.send_all()
    office.time.move(relay_module.KEEP_DELIVERED_S + 100)
    office.app.on(r.SUBMITTED, name="other")(lambda event: None)
    await office.app.save_subscriptions()
    await office.submit()  # the relay sweeps when there is something to do at all
    await office.send()
    assert [one.task_id for one in await office.deliveries() if one.type != r.SUBMITTED] == []
    assert [
        one for (one,) in await sql(office.store, "SELECT task_id FROM onward_subscriptions WHERE task_id IS NOT NULL")
    ] == [open_task]


# ── the life of a subscription ───────────────────────────────────────────────────────────────────────────────────────


async def test_other_types_in_the_code_are_other_types_in_the_store(office: Office, store: Store, time: Time) -> None:
    office.app.on(r.COMPLETED, name="f")(lambda event: None)
    await office.app.save_subscriptions()
    other = Office(store, time)
    other.app.on(r.SUBMITTED, name="f")(lambda event: None)
    await other.app.save_subscriptions()
    await office.complete()
    assert [one.type for one in await office.deliveries()] == [r.SUBMITTED]
    await office.app.subscriptions.remove("on:f")
    assert await office.deliveries() == []
    with pytest.raises(NotFound):
        await office.app.subscriptions.remove("on:f")


def test_two_of_one_name_and_nonsense_are_refused() -> None:
    app = Onward("sqlite://:memory:")
    app.on("task.completed", name="f")(lambda event: None)
    with pytest.raises(UsageError, match="two functions"):
        app.on("task.failed", name="f")(lambda event: None)
    with pytest.raises(UsageError, match="events of type"):
        app.on("task.done", name="g")(lambda event: None)
    with pytest.raises(UsageError, match="ASCII"):
        app.on("task.failed", name="ä")(lambda event: None)

    @app.on("task.failed")
    def alarm(event: Event) -> None: ...

    assert any(name.endswith("alarm") for name in app._listeners)


async def test_tenants_hear_of_their_own(office: Office, receiver: Receiver) -> None:
    whose = {"/all": None, "/none": "", "/acme": "acme", "/globex": "globex"}
    for path, tenant in whose.items():
        await office.app.subscriptions.make(receiver.url(path), ["task.cancelled"], tenant=tenant)
    tasks: dict[str | None, str] = {}
    for tenant in (None, "acme", "globex"):
        door = AuthorizedService(office.app.service, Caller(tenant))
        wish = SubmitRequest("work", key="the same", tenant=tenant, webhook=receiver.url(f"/webhook-{tenant}"))
        (tasks[tenant],) = await door.submit([wish])
        await door.cancel(tasks[tenant])
    await office.send_all()
    heard = sorted((got.path, got.json["subject"]) for got in receiver.got)
    wanted = [(path, tasks[tenant or None]) for path, tenant in whose.items() if tenant is not None]
    wanted += [("/all", task_id) for task_id in tasks.values()]
    wanted += [(f"/webhook-{tenant}", task_id) for tenant, task_id in tasks.items()]
    assert heard == sorted(wanted)
    assert {got.json["data"]["key"] for got in receiver.got} == {"the same"}, "without the name of the tenant"

    mine, _ = await office.app.subscriptions.list(tenant="acme")
    assert [one.sink.rpartition("/")[2] for one in mine] == ["acme"]
    seen, _ = await office.app.subscriptions.deliveries(tenant="acme")
    assert {one.task_id for one in seen} == {tasks["acme"]}
    assert len(seen) == 2
    theirs, _ = await office.app.subscriptions.deliveries(tenant="globex")
    for one in theirs:
        with pytest.raises(NotFound):
            await office.app.subscriptions.redeliver(one.id, tenant="acme")
        with pytest.raises(NotFound):
            await office.app.subscriptions.remove(one.subscription, tenant="acme")


async def test_pages(office: Office) -> None:
    office.app.on("*", name="f")(lambda event: None)
    await office.app.save_subscriptions()
    await busy_tasks(office, 5, 2)
    seen, cursor = [], None
    while True:
        page, cursor = await office.app.deliveries(limit=7, cursor=cursor)
        seen += [one.id for one in page]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 25
    for wrong in ("x", "-1", "9" * 30):
        with pytest.raises(UsageError):
            await office.app.deliveries(cursor=wrong)


# ── in a worker ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_tells_of_what_it_does(app: Onward) -> None:
    heard = asyncio.Queue[Event]()

    @app.task
    async def hello(ctx: Any) -> str:
        return await ctx.step(lambda: "there", name="greet")

    @app.on("task.completed", "task.started", "step.completed", name="ears")
    async def ears(event: Event) -> None:
        await heard.put(event)

    async with app.worker():
        task = await app.submit(hello)
        found = [await asyncio.wait_for(heard.get(), 60) for _ in range(3)]
    assert [one.type for one in found] == ["task.started", "step.completed", "task.completed"]
    assert {one.task_id for one in found} == {task.id}
    assert found[1].data["step"] == "greet"
    assert found[2].data["result"] == "there"


@not_memory
async def test_a_relay_without_a_worker_tells_of_what_others_do(app: Onward, url: str) -> None:
    heard = asyncio.Queue[Event]()
    app.task(name="work")(lambda ctx: 1)
    listener = Onward(url, poll_s=0.05)
    listener.on("task.completed", name="ears")(heard.put)
    async with listener.relay(), app.worker():
        task = await app.submit("work")
        assert (await asyncio.wait_for(heard.get(), 60)).task_id == task.id


async def test_drain_tells_too() -> None:
    app = Onward("sqlite://:memory:")
    app.task(name="work")(lambda ctx: 1)
    heard: list[str] = []
    app.on("task.*", name="ears")(lambda event: heard.append(event.type))
    memory = memory_app(app)
    async with memory:
        await memory.save_subscriptions()
        await memory.submit("work")
        assert await drain(memory) == []
    assert heard == ["task.submitted", "task.completed"]


# ── a key that is missing ────────────────────────────────────────────────────────────────────────────────────────────

OTHER_KEYS = "k2=" + base64.b64encode(bytes(range(32, 64))).decode()


class Halves:
    """Two processes on one database. Only the first has the key of the events of its task."""

    def __init__(self, store: Store, other: Store, time: Time) -> None:
        self.ears, self.time = Ears(), time
        self.with_key, self.without = Office(store, time), Office(other, time)
        for office, keys in ((self.with_key, TEST_KEYS), (self.without, OTHER_KEYS)):
            encrypt(office.store, keys)
            office.app.on("*", name="ears")(self.ears)

    async def begin(self) -> tuple[str, str]:
        """A task of which only the first process can read the events, and one of the second."""
        await self.with_key.app.save_subscriptions()
        return await _with_a_step(self.with_key, "acme"), await _with_a_step(self.without, "globex")

    async def deliveries(self, task_id: str) -> dict[int, Delivery]:
        return {delivery.seq: delivery for delivery in await self.without.deliveries(task=task_id)}


async def _with_a_step(office: Office, tenant: str) -> str:
    """A task with a step: the step and the result have payloads, the two events before them have none."""
    task_id = await office.submit(tenant=tenant)
    held = await office.begin(f"worker of {tenant}")
    batch = together(Batch([entry(held)]), completion(held, 2))
    batch.entries = [(*one[:-1], office.time.now) for one in batch.entries]
    assert await office.store.save(f"worker of {tenant}", batch) == set()
    return task_id


@pytest.fixture
async def halves(store: Store, open_another: Any, time: Time) -> Halves:
    return Halves(store, await open_another(), time)


@not_memory
async def test_an_event_that_cannot_be_decrypted_holds_up_its_task_alone(halves: Halves) -> None:
    locked, other = await halves.begin()
    await halves.without.send_all()
    assert halves.ears.heard == {locked: [1, 2], other: [1, 2, 3, 4]}
    deliveries = await halves.deliveries(locked)
    assert (deliveries[3].state, deliveries[3].said, deliveries[3].attempts) == ("pending", NO_KEY, 0)
    assert deliveries[4].state == "pending"
    (check,) = [check for check in await halves.without.app.service.health.checks() if check.name == "encrypted events"]
    assert check.fine is False
    assert check.detail.startswith("1 event cannot be decrypted")
    assert "ONWARD_ENCRYPTION_KEYS" in check.detail


@not_memory
async def test_it_is_sent_when_a_relay_has_the_key_however_often_others_tried(halves: Halves) -> None:
    locked, _ = await halves.begin()
    for _ in range(len(relay_module.ATTEMPT_DELAYS_S) + 2):
        await halves.without.send_all()
        halves.time.move(relay_module.KEY_RETRY_S + 1)
    await halves.with_key.send_all()
    assert halves.ears.heard[locked] == [1, 2, 3, 4]
    assert {delivery.attempts for delivery in (await halves.deliveries(locked)).values()} == {1}
    checks = await halves.without.app.service.health.checks()
    assert "encrypted events" not in {check.name for check in checks}


@not_memory
async def test_it_fails_after_three_days_without_the_key(halves: Halves) -> None:
    locked, _ = await halves.begin()
    await halves.without.send_all()
    halves.time.move(relay_module.KEY_WAIT_S + 1)
    await halves.without.send_all()
    deliveries = await halves.deliveries(locked)
    assert [(deliveries[seq].state, deliveries[seq].said) for seq in (3, 4)] == [
        ("failed", f"{NO_KEY} for three days")
    ] * 2
    assert halves.ears.heard[locked] == [1, 2]
