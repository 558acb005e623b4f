"""Keys: rotation while tasks live, a worker without a key, erasure, and payloads that were tampered with."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from typing import Any

import pytest

from onward import Onward, State
from onward.artifacts.keeper import Artifacts
from onward.core import wire
from onward.core.audit import AuditEvent
from onward.core.caller import Caller
from onward.core.encryption import LocalKeys, Subject, parse_keys
from onward.core.sealed import MAGIC
from onward.core.task import Message
from onward.errors import (
    BadSetting,
    DataErased,
    EncryptionKeyMissing,
    NotFound,
    PayloadDamaged,
    StillNeeded,
    StoreUnavailable,
    UsageError,
)
from onward.store.port.core import Content, Store
from onward.store.shared.data_keys import TTL_S
from tests.kit import (
    TEST_KEYS,
    Batch,
    HandClock,
    Lab,
    Time,
    begun,
    claim,
    completion,
    encrypt,
    entry,
    eventually,
    join,
    new,
    not_memory,
    sql,
    submit,
)
from tests.service.letters import bury

OTHER = "k2=" + base64.b64encode(bytes(range(32, 64))).decode()
ANN = b'{"labels":{"person":"ann"}}'
ROOT = Caller(name="root")


async def blobs(store: Store) -> bytes:
    rows = await sql(store, "SELECT input FROM onward_tasks") + await sql(store, "SELECT data FROM onward_journal")
    return b"".join(bytes(row[0]) for row in rows)


# ── the format ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["", "k1", "k1=AAAA", f"{TEST_KEYS},{TEST_KEYS}", "a b=="])
def test_a_setting_that_is_no_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(BadSetting) as refused:
        parse_keys(text)
    assert "AAAA" not in str(refused.value)


async def test_a_payload_is_sealed_and_bound_to_its_place(store: Store) -> None:
    first, second = await begun(store), new(input=b'{"n":2}')
    await submit(store, second)
    rows = dict(await sql(store, "SELECT id, input FROM onward_tasks"))
    assert all(bytes(data).startswith(MAGIC) for data in rows.values())
    assert (await store.get(second.id)).input == {"n": 2}  # type: ignore[union-attr]
    await sql(
        store,
        f"UPDATE onward_tasks SET input = (SELECT input FROM onward_tasks WHERE id = '{first.id}') WHERE id = '{second.id}'",
    )
    (held,) = await claim(store)
    assert held.input != b'{"n":1}', "the input of another task is not taken for its own"
    with pytest.raises(PayloadDamaged):
        wire.decode(held.input)


async def test_a_record_cannot_be_moved_within_its_journal(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", Batch([entry(held, 1), entry(held, 2, data=b'{"result":2}')]))
    await sql(
        store,
        f"UPDATE onward_journal SET data = (SELECT data FROM onward_journal j WHERE j.task_id = '{held.id}' AND j.seq = 3) WHERE task_id = '{held.id}' AND seq = 4",
    )
    third, fourth = (await store.journal(held.id))[2:]
    assert third.value == {"result": 1}
    with pytest.raises(PayloadDamaged):
        _ = fourth.value


async def test_no_payload_of_one_tenant_can_be_opened_in_a_row_of_another(store: Store) -> None:
    """A place has no tenant in it: it has the task, whose id no other tenant has, and the key is the tenant's own."""
    await join(store, "w1")
    a, b = new(tenant="a", group="a"), new(tenant="b", group="b")
    await submit(store, a, b)
    for held in await claim(store):
        await store.save("w1", Batch(contents=[Content(held.id, wire.content_id(b"bytes"), b"bytes")]))
        await store.send(held.id, Message("m1", "signal", "go", None, b'"go"'))
    for table, column in (("tasks", "input"), ("inbox", "data"), ("contents", "data")):
        key = "id" if table == "tasks" else "task_id"
        of_a = f"SELECT o.{column} FROM onward_{table} o WHERE o.{key} = '{a.id}'"
        await sql(store, f"UPDATE onward_{table} SET {column} = ({of_a}) WHERE {key} = '{b.id}'")
    (message,) = await store.inbox(b.id)
    with pytest.raises(PayloadDamaged):
        wire.decode(message.data)
    with pytest.raises(PayloadDamaged):
        await store.contents(b.id, [wire.content_id(b"bytes")])
    task = await store.get(b.id)
    assert task is not None
    assert task.left_out == ("input",)
    assert (await store.get(a.id)).input == {"n": 1}  # type: ignore[union-attr]


@not_memory
async def test_a_data_key_cannot_be_given_to_another_tenant(open_another: Any) -> None:
    store: Store = await open_another()
    await submit(store, new(tenant="a", group="a"))
    await sql(store, "UPDATE onward_data_keys SET tenant = 'b'")
    other: Store = await open_another()  # a process that has no key in memory
    with pytest.raises(EncryptionKeyMissing):
        await submit(other, new(tenant="b", group="b"))
    (task,) = await other.listing.list(limit=10, before=None)
    assert task.left_out == ("input",), "the wrapped key names its tenant"


async def test_rows_of_before_are_read_and_plain_ones_can_be_refused(
    open_another: Any, time: Time, encrypted: bool
) -> None:
    store = await open_another()
    store._db.codec = None
    held = await begun(store)
    await store.save("w1", completion(held))
    encrypt(store)
    assert (await store.get(held.id)).result == 42
    encrypt(store, refuse_plain=True)
    task = await store.get(held.id)
    assert (task.input, task.result, task.left_out) == (None, None, ("input", "result"))


# ── master keys ──────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_a_rolling_change_of_the_master_key_loses_nothing(url: str) -> None:
    """Tasks are submitted all the time, and one worker follows the other: without the new key, with it as the second, as the first."""

    def app_with(keys: str) -> Onward:
        app = Onward(url, encryption_keys=keys, lease_s=2.0, heartbeat_s=0.2, poll_s=0.05)

        async def double(number: int) -> int:
            await asyncio.sleep(0.002)
            return number * 2

        @app.task
        async def work(ctx: Any, number: int) -> int:
            for _ in range(3):
                number = await ctx.step(double, number)
            return number

        return app

    handles: list[tuple[int, Any]] = []
    async with app_with(f"{TEST_KEYS},{OTHER}") as client:

        async def feed() -> None:
            for number in range(60):
                handles.append((number, await client.submit("work", number)))
                await asyncio.sleep(0.01)

        feeding = asyncio.ensure_future(feed())
        for keys in (TEST_KEYS, f"{TEST_KEYS},{OTHER}", f"{OTHER},{TEST_KEYS}"):
            app = app_with(keys)
            async with app.worker():
                await asyncio.sleep(0.2)
                if keys.startswith("k2"):
                    assert await app.service.encryption.rotate(lambda _: None, data_keys=True) == 1
                    await feeding
                    assert [await handle.result(20) for _, handle in handles] == [8 * number for number, _ in handles]
                    assert set(await app.store.data_keys.masters()) == {"k2"}
    async with app_with(OTHER) as app:
        assert {(await app.get(handle.id)).result for _, handle in handles} == {8 * number for number, _ in handles}


async def test_rotation_is_resumable_and_bounded(store: Store) -> None:
    await submit(store, *[new(tenant=f"t{n}", group="g") for n in range(5)])
    encrypt(store, f"{OTHER},{TEST_KEYS}")
    after, count = await store.data_keys.rewrap("", 2)
    assert (after is not None, count) == (True, 2)
    assert await store.data_keys.masters() == {"k1": 3, "k2": 2}
    while after is not None:
        after, count = await store.data_keys.rewrap(after, 2)
    assert await store.data_keys.masters() == {"k2": 5}


@not_memory
async def test_a_worker_without_the_key_hands_the_task_back_and_another_ends_it(url: str, open_another: Any) -> None:
    async def work(ctx: Any, number: int) -> int:
        return number

    with_key, without = Onward(url, poll_s=0.05), Onward(url, encryption_keys=OTHER, poll_s=0.05)
    for app in (with_key, without):
        app.task(work)
    async with with_key, without:
        async with without.worker():
            handle = await with_key.submit("work", 7)

            async def handed_back() -> bool:
                return (await with_key.get(handle.id)).reason == "delayed"

            await eventually(handed_back, 20)
            task = await with_key.get(handle.id)
            assert task.state is State.PENDING, "it has not failed"
            assert "encryption key k1" in (await with_key.service.explainer.of([task]))[handle.id].text
        await sql(with_key.store, "UPDATE onward_queue SET due_at = NULL, reason = 'queued'")
        async with with_key.worker():
            assert await handle.result(20) == 7
        with pytest.raises(EncryptionKeyMissing, match="k1"):
            await without.store.data_keys.check()
        with pytest.raises(EncryptionKeyMissing):
            await without.submit("work", 8)


async def test_a_kms_that_does_not_answer_is_an_outage(store: Store) -> None:
    class Down(LocalKeys):
        async def wrap(self, data_key: bytes, context: bytes) -> bytes:
            raise ConnectionError("no route")

    store.data_keys.use(Down({"kms": os.urandom(32)}), inline=store.inline)
    with pytest.raises(StoreUnavailable, match="'kms' does not answer"):
        await submit(store, new(tenant="fresh", group="g"))


# ── erasure ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def erase(app: Onward, clock: HandClock, **what: Any) -> Any:
    return await clock.until(app.service.encryption.erase(ROOT, **what))


@pytest.fixture
async def people(clock: HandClock) -> Any:
    lab = Lab(clock, encryption_label="person")

    @lab.app.task
    async def work(ctx: Any, text: str) -> str:
        await ctx.artifact(text + " in a file")
        child = await ctx.submit("leaf", text)
        return str(await child.result())

    @lab.app.task
    async def leaf(ctx: Any, text: str) -> str:
        return text.upper()

    @lab.app.task
    async def waits(ctx: Any, text: str) -> str:
        return str(await ctx.signal("go"))

    async with lab.app:
        yield lab
        await lab.stop()


async def test_an_erased_person_is_unreadable_and_the_journal_stays_whole(people: Lab) -> None:
    app = people.app
    ann, bob = [await people.run("work", f"I am {who}", labels={"person": who}) for who in ("ann", "bob")]
    assert ann.result == "I AM ANN"
    (artifact,) = await app.artifacts(ann.task_id)
    before = await app.store.journal(ann.task_id)
    erasure = await erase(app, people.clock, label=("person", "ann"))
    assert (erasure.keys, erasure.cancelled, erasure.plain_tasks) == (1, 0, 0)
    task = await app.get(ann.task_id)
    assert (task.state, task.erased, task.input, task.result) == (State.COMPLETED, True, None, None)
    with pytest.raises(DataErased):
        await app.service.result(ann.task_id)
    with pytest.raises(DataErased):
        await app.service.artifacts.get(ann.task_id, artifact.artifact_id)
    with pytest.raises(DataErased):
        await app.fork(ann.task_id, 3)
    after = await app.store.journal(ann.task_id)
    assert [(r.seq, r.kind, r.key, r.at) for r in after] == [(r.seq, r.kind, r.key, r.at) for r in before]
    (child,) = await app.store.listing.offspring([ann.task_id], 10)
    assert (await app.get(child.id)).erased, "a child has the subject of its parent"
    assert await app.store.health.census() == []
    assert (await app.get(bob.task_id)).result == "I AM BOB"
    (tombstone,) = [row for row in await app.store.data_keys.list() if row.erased_at is not None]
    assert (tombstone.value, tombstone.wrapped, tombstone.erased_by) == ("ann", None, "root")
    assert [entry.action for entry in await app.audit()] == ["erase"]
    again = await people.run("work", "I am back", labels={"person": "ann"})
    assert again.result == "I AM BACK", "a new task of the person has a new key"


async def test_unfinished_tasks_refuse_an_erasure_or_are_cancelled(people: Lab) -> None:
    app = people.app
    await people.start()
    task_id = await people.submit("waits", "x", labels={"person": "ann"})
    await people.settled(task_id)
    with pytest.raises(StillNeeded, match="1 unfinished task"):
        await erase(app, people.clock, label=("person", "ann"))
    assert (await erase(app, people.clock, label=("person", "ann"), force=True)).cancelled == 1
    task = await app.get(task_id)
    assert (task.state, task.erased) == (State.CANCELLED, True)
    with pytest.raises(NotFound):
        await erase(app, people.clock, label=("person", "ann"))
    with pytest.raises(UsageError, match="ONWARD_ENCRYPTION_LABEL"):
        await erase(app, people.clock, label=("team", "x"))


async def test_the_dead_letters_of_an_erased_tenant_are_unreadable(people: Lab) -> None:
    app = people.app
    await bury(app, b"I am acme", tenant="acme")
    await bury(app, b"I am globex", tenant="globex")
    await erase(app, people.clock, tenant="acme")
    (globex, acme), _ = await app.dead_letters.list()
    assert (acme.erased, acme.reason) == (True, "")
    assert (globex.erased, globex.reason) == (False, "no task takes b'I am globex'")
    shown = await app.dead_letters.get(acme.id)
    assert (shown.erased, shown.body, shown.headers) == (True, None, {})
    await app.dead_letters.redrive(acme.id)
    assert await app.store.intakes.take("orders", 10, 60.0) == []
    assert "erased" in (await app.dead_letters.get(acme.id)).reason


async def test_another_process_stops_within_the_lifetime_of_its_cache(open_another: Any, time: Time) -> None:
    store = await open_another()
    held = await begun(store)
    await store.save("w1", completion(held))
    other = await open_another() if "memory" not in store.where else store
    other.data_keys._clock = time._clock  # on PostgreSQL a store has the clock of the system
    assert (await other.get(held.id)).result == 42
    keys = await store.data_keys.of("", None)
    await store.data_keys.destroy(keys, "root", AuditEvent("erase", "all"), "all")
    time._clock.jump(TTL_S + 1)
    assert (await other.get(held.id)).erased


async def test_an_erased_tenant_leaves_others_alone(store: Store) -> None:
    await join(store, "w1")
    await submit(store, new(tenant="a", group="a"), new(tenant="b", group="b"))
    for held in await claim(store):
        await store.save("w1", completion(held))
    await store.data_keys.destroy(await store.data_keys.of("a", None), "root", AuditEvent("erase", "a"), "a")
    tasks = await store.listing.list(limit=10, before=None)
    assert {(task.tenant, task.erased) for task in tasks} == {("a", True), ("b", False)}


async def test_a_search_never_matches_ciphertext(store: Store) -> None:
    await submit(store, *[new(input=b'{"word":"needle"}') for _ in range(50)])
    assert await store.listing.list(limit=100, before=None, text="needle") == []
    assert await store.listing.list(limit=100, before=None, text="q") == []


async def test_a_key_of_a_rolled_back_transaction_is_not_used_again(lab: Lab) -> None:
    assert await lab.store.data_keys.list() == []
    key = await lab.store.data_keys.for_subject(Subject("t"), add=_forget)
    assert await lab.store.data_keys.for_subject(Subject("t")) is not key


async def _forget(row: Any) -> None:
    """The caller's transaction is rolled back."""


async def test_a_process_without_keys_lists_tasks_and_names_the_key(store: Store) -> None:
    held = await begun(store)
    await store.save("w1", completion(held))
    await store.save("w1", Batch(contents=[Content(held.id, wire.content_id(b"bytes"), b"bytes")]))
    codec, store._db.codec = store._db.codec, None
    task = await store.get(held.id)
    assert task is not None
    assert (task.input, task.result, task.left_out, task.erased) == (None, None, ("input", "result"), False)
    with pytest.raises(EncryptionKeyMissing, match="data key"):
        _ = (await store.journal(held.id))[-1].value
    with pytest.raises(EncryptionKeyMissing, match="the artifact"):
        await Artifacts(store).get(held.id, wire.content_id(b"bytes"))
    store._db.codec = codec
    assert await Artifacts(store).get(held.id, wire.content_id(b"bytes")) == b"bytes"


# ── a store for another thread ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_clone_encrypts_while_the_event_loop_is_blocked(store: Store) -> None:
    """A heartbeat writes the verdict on a task that blocks its worker, so its store must not need the loop of that worker."""
    clone = store.clone()
    ids: list[str] = []

    async def write() -> None:
        await clone.open()
        ids.extend(await submit(clone, new(input=b'"of a clone"')))
        if clone is not store:
            await clone.close()

    thread = threading.Thread(target=lambda: asyncio.run(write()))
    thread.start()
    thread.join(30)  # which blocks this loop
    assert len(ids) == 1
    task = await store.get(ids[0])
    assert task is not None
    assert task.input == "of a clone"
    assert b"of a clone" not in await blobs(store)
