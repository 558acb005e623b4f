"""Payloads from before encryption was on: they are sealed while tasks live, and an erasure misses none of their tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onward import Context, Onward, State
from onward.core import wire
from onward.core.caller import Caller
from onward.core.encryption import body_place
from onward.core.sealed import MAGIC
from onward.core.task import Message
from onward.errors import KeyConflict, NotFound, StillNeeded, UsageError
from onward.service import encryption
from onward.service.encryption import SealedPayloads
from onward.service.submission import SubmitRequest
from onward.store.port.core import Content, Store
from onward.store.port.values import Batch
from onward.store.shared import sealing
from onward.store.shared.codec import Item
from tests.kit import HandClock, Lab, claim, completion, encrypt, entry, eventually, join, new, sql, submit

ROOT = Caller(name="root")
PAYLOADS = {
    "tasks": "input",
    "journal": "data",
    "inbox": "data",
    "contents": "data",
    "schedules": "input",
    "outbox": "body",
}


BODY = """INSERT INTO onward_outbox (task_id, seq, subscription, due_at, at, kind, lane, body)
SELECT task_id, 3, 's1', 0, 0, 'task.completed', '', data FROM onward_inbox"""
"""A delivery with a plain body."""


def plainly(store: Store) -> None:
    """Write as a process does for which encryption is off."""
    store._db.codec = None  # type: ignore[attr-defined]


async def plain_payloads(store: Store) -> list[bytes]:
    """All payloads with data of a user that are not sealed."""
    rows = [
        row for table, column in PAYLOADS.items() for row in await sql(store, f"SELECT {column} FROM onward_{table}")
    ]
    return [data for (value,) in rows if b"secret" in (data := bytes(value))]


async def old_task(store: Store) -> Any:
    """A plain task with an input, records, a message and a content."""
    await join(store, "w1")
    await submit(store, new(input=b'{"secret":1}'))
    (held,) = await claim(store, "w1", 1)
    await store.save("w1", Batch([entry(held, n, data=b'{"result":"secret"}') for n in range(1, 25)]))
    await store.save("w1", Batch(contents=[Content(held.id, "c1", b"secret bytes")]))
    await store.send(held.id, Message("m1", "signal", "go", None, b'"secret"'))
    return held


async def test_old_payloads_are_sealed_and_read_as_before(store: Store) -> None:
    plainly(store)
    held = await old_task(store)
    await sql(store, BODY)
    before = await store.journal(held.id)
    assert len(await plain_payloads(store)) == 28
    encrypt(store)
    part = await store.sealing.seal("", 10)
    assert (part.task_ids, part.payloads) == ([held.id], 28)
    assert await plain_payloads(store) == []
    assert await store.journal(held.id) == before
    assert (await store.get(held.id)).input == {"secret": 1}  # type: ignore[union-attr]
    assert (await store.inbox(held.id))[0].data == b'"secret"'
    assert await store.contents(held.id, ["c1"]) == {"c1": b"secret bytes"}
    ((body,),) = await sql(store, "SELECT body FROM onward_outbox")
    assert store.codec is not None
    assert await store.codec.open([Item(held.id, body_place(held.id, 3, "s1"), bytes(body))]) == [b'"secret"']
    encrypt(store, refuse_plain=True)
    assert await store.journal(held.id) == before
    assert (await store.sealing.seal("", 10)).payloads == 0, "twice is once"
    assert (await store.sealing.seal(held.id, 10)).task_ids == []


async def test_the_worker_that_holds_the_task_goes_on(store: Store) -> None:
    plainly(store)
    held = await old_task(store)
    encrypt(store)
    await store.sealing.seal("", 10)
    done = completion(held, 25)
    assert await store.save("w1", done) == set()
    assert await store.save("w1", done) == set(), "the answer was lost: it is still known as its own"
    assert await store.health.census() == []
    assert (await store.get(held.id)).result == 42  # type: ignore[union-attr]


TRIM = """UPDATE onward_journal SET kind = 'pruned', key = '', data = (SELECT f.data FROM onward_journal f WHERE f.seq = 1)
WHERE seq = 3"""
"""Takes the data of a record away, as pruning does. (Record 1 has none.)"""


async def test_a_row_that_changed_meanwhile_is_left_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plainly(store)
    await old_task(store)
    encrypt(store)
    codec = store.codec
    assert codec is not None
    sealed_items = codec.sealed_items

    async def slowly(task_id: str, items: Any) -> list[bytes]:
        await sql(store, TRIM)
        return await sealed_items(task_id, items)

    monkeypatch.setattr(codec, "sealed_items", slowly)
    assert (await store.sealing.seal("", 10)).payloads == 26
    ((kind, data),) = await sql(store, "SELECT kind, data FROM onward_journal WHERE seq = 3")
    assert (kind, bytes(data)) == ("pruned", b"{}")


async def test_a_key_still_gives_the_same_task(app: Onward) -> None:
    @app.task
    async def work(ctx: Context, n: int) -> None: ...

    codec, app.store._db.codec = app.store.codec, None  # type: ignore[attr-defined]
    first = await app.submit(work, 1, key="k")
    app.store._db.codec = codec  # type: ignore[attr-defined]
    assert (await app.submit(work, 1, key="k")).id == first.id
    await app.service.encryption.seal(lambda _: None)
    assert (await app.submit(work, 1, key="k")).id == first.id
    with pytest.raises(KeyConflict):
        await app.submit(work, 2, key="k")
    ((data,),) = await sql(app.store, "SELECT input FROM onward_tasks")
    assert bytes(data)[:4] == MAGIC


async def test_it_works_in_slices_and_goes_on_after_the_last_one(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "SLICE_TASKS", 2)
    codec, app.store._db.codec = app.store.codec, None  # type: ignore[attr-defined]
    await submit(app.store, *[new(input=b'{"secret":1}') for _ in range(5)])
    with pytest.raises(UsageError, match="ONWARD_ENCRYPTION_KEYS"):
        await app.service.encryption.seal(lambda _: None)
    app.store._db.codec = codec  # type: ignore[attr-defined]
    reports: list[SealedPayloads] = []

    def stop(report: SealedPayloads) -> None:
        reports.append(report)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await app.service.encryption.seal(stop)
    assert (reports[0].tasks, reports[0].payloads) == (2, 2)
    rest = await app.service.encryption.seal(reports.append, after=reports[0].last)
    assert (rest.tasks, rest.payloads) == (3, 3)
    assert await plain_payloads(app.store) == []
    assert (await app.service.encryption.status()).plain_tasks == 0


async def test_tasks_live_on_while_their_payloads_are_sealed(app: Onward) -> None:
    @app.task
    async def parent(ctx: Context, word: str) -> list[Any]:
        ids = [await ctx.submit("child", f"{word} {n}") for n in range(3)]
        word = await ctx.signal("go")
        return [word, *[await child.result() for child in ids]]

    @app.task
    async def child(ctx: Context, word: str) -> str:
        await ctx.step(word.upper, name="one")
        await ctx.sleep(0.05)
        return str(await ctx.step(word.lower, name="two"))

    codec, app.store._db.codec = app.store.codec, None  # type: ignore[attr-defined]
    handles = await app.submit_many("parent", ["secret"] * 10)
    async with app.worker():
        await eventually(lambda: _count(app.store, 60))
        app.store._db.codec = codec  # type: ignore[attr-defined]
        stop = asyncio.Event()

        async def seal() -> None:
            while not stop.is_set():
                await app.service.encryption.seal(lambda _: None)

        sealer = asyncio.ensure_future(seal())
        await asyncio.gather(*[app.signal(handle.id, "go", "secret word") for handle in handles])
        results = [await handle.result(timeout=30) for handle in handles]
        stop.set()
        await sealer
    assert results == [["secret word", *[f"secret {n}" for n in range(3)]]] * 10
    assert await plain_payloads(app.store) == []
    assert await app.store.health.census() == []


async def _count(store: Store, records: int) -> bool:
    ((count,),) = await sql(store, "SELECT count(*) FROM onward_journal")
    return bool(count >= records)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_artifacts_outside_the_database_are_sealed_too(clock: HandClock, tmp_path: Path) -> None:
    lab = Lab(clock, artifacts=str(tmp_path))

    @lab.app.task
    async def work(ctx: Context) -> None:
        await ctx.artifact("secret bytes")

    async with lab.app:
        codec, lab.app.store._db.codec = lab.app.store.codec, None  # type: ignore[attr-defined]
        task = await lab.run("work")
        (file,) = files_in(tmp_path)
        assert file.read_bytes() == b"secret bytes"
        lab.app.store._db.codec = codec  # type: ignore[attr-defined]
        await lab.app.service.encryption.seal(lambda _: None)
        assert file.read_bytes()[:4] == MAGIC
        assert await lab.app.service.artifacts.get(task.task_id, file.name) == b"secret bytes"
        await lab.stop()


# ── erasure ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def people(app: Onward, monkeypatch: pytest.MonkeyPatch) -> Onward:
    monkeypatch.setattr(encryption, "TTL_S", 0.0)
    encrypt(app.store, label="person")

    @app.task
    async def waits(ctx: Context, word: str) -> None:
        await ctx.signal("go")

    return app


async def test_an_erasure_misses_no_unfinished_task_with_a_plain_input(people: Onward) -> None:
    codec, people.store._db.codec = people.store.codec, None  # type: ignore[attr-defined]
    ann = await people.submit("waits", "secret", labels={"person": "ann"})
    (below,) = await people.service.submit([SubmitRequest("waits", "secret", parent=ann.id)])
    bob = await people.submit("waits", "secret", labels={"note": '"person":"ann"'})
    people.store._db.codec = codec  # type: ignore[attr-defined]
    label = ("person", "ann")
    with pytest.raises(NotFound, match="1 or more tasks of it are plain: `onward encryption seal`"):
        await people.service.encryption.erase(ROOT, label=label)
    await people.signal(ann.id, "go", "secret")  # sealed with a key of the person
    with pytest.raises(StillNeeded, match=ann.id):
        await people.service.encryption.erase(ROOT, label=label)
    erasure = await people.service.encryption.erase(ROOT, label=label, force=True)
    assert (erasure.keys, erasure.cancelled, erasure.plain_tasks) == (1, 2, 1)
    assert ((await people.get(ann.id)).state, (await people.get(bob.id)).state) == (State.CANCELLED, State.PENDING)
    await people.service.encryption.seal(lambda _: None)
    assert (await people.service.encryption.erase(ROOT, label=label)).plain_tasks == 0
    assert (await people.get(ann.id)).erased
    assert (await people.get(below)).erased, "a child has the subject of its parent"
    assert not (await people.get(bob.id)).erased


async def test_an_erasure_removes_the_schedules_of_the_subject(people: Onward) -> None:
    people.schedule("report", "waits", "secret", every="1h", labels={"person": "ann"})
    people.schedule("other", "waits", "secret", every="1h", labels={"person": "bob"})
    await people.save_schedules()
    label = ("person", "ann")
    with pytest.raises(StillNeeded, match=r"1 schedule \(report\); --force removes the schedules"):
        await people.service.encryption.erase(ROOT, label=label)
    assert len(await people.schedules()) == 2, "a refusal changes nothing"
    erasure = await people.service.encryption.erase(ROOT, label=label, force=True)
    assert erasure.schedules == ("report",)
    assert [row.name for row in await people.schedules()] == ["other"]
    (event,) = [entry for entry in await people.audit() if entry.action == "erase"]
    assert wire.decode(event.data)["schedules"] == ["report"]


async def test_plain_inputs_of_schedules_are_sealed(people: Onward) -> None:
    codec, people.store._db.codec = people.store.codec, None  # type: ignore[attr-defined]
    people.schedule("report", "waits", "secret", every="1h", labels={"person": "ann"})
    await people.save_schedules()
    people.store._db.codec = codec  # type: ignore[attr-defined]
    with pytest.raises(NotFound):
        await people.service.encryption.erase(ROOT, label=("person", "ann"))
    assert (await people.service.encryption.seal(lambda _: None)).payloads == 1
    ((data,),) = await sql(people.store, "SELECT input FROM onward_schedules")
    assert bytes(data)[:4] == MAGIC
    assert (await people.schedules())[0].input == "secret"
    assert sealing.SLICE_ROWS < 24, "the tests above need several slices"
