"""What a relay does over days: receivers that stay down, what is old, what belongs to nobody, secrets in what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import asyncpg
import pytest

from onward import Onward
from onward.core import mask
from onward.core import record as r
from onward.core.audit import AuditEvent
from onward.core.event import Event
from onward.engine.context.secrets import learn
from onward.engine.worker import relay as relay_module
from onward.errors import StoreUnavailable
from onward.store.postgres import outbox as postgres_outbox
from onward.store.shared import outbox as shared_outbox
from tests.kit import eventually, only_postgres, sql
from tests.sinks.conftest import Office

NOBODY = "http://127.0.0.1:1/"


async def test_a_receiver_that_is_down_for_days_is_still_left_alone_for_a_minute(office: Office) -> None:
    await office.complete(webhook=NOBODY)
    relay = office.relay()
    pace = relay._paces.setdefault("hook:http://127.0.0.1:1", relay_module._Pace(down=5_000))
    await office.send(relay)
    assert [one.attempts for one in await office.deliveries()] == [1]
    assert pace.down == 5_001
    assert pace.rests_until - office.time._clock.monotonic() == pytest.approx(relay_module.MAX_REST_S)


async def test_what_is_old_goes_also_when_nothing_is_to_be_sent(office: Office) -> None:
    office.app.on(r.COMPLETED, name="f")(lambda event: None)
    await office.app.save_subscriptions()
    await office.complete()
    await office.send_all()
    office.time.move(relay_module.KEEP_DELIVERED_S + 100)
    await office.send()
    assert await office.deliveries() == []
    ((shown,), _) = await office.app.subscriptions.list()
    assert shown.offered_at == office.time.now, "and it was said that somebody is there"


async def test_what_is_old_goes_as_fast_as_it_comes(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_outbox, "MAX_SWEPT", 2)
    office.app.on(r.COMPLETED, name="f")(lambda event: None)
    await office.app.save_subscriptions()
    for _ in range(7):
        await office.complete()
    await office.send_all()
    office.time.move(relay_module.KEEP_DELIVERED_S + 100)
    relay = office.relays[0]
    looks = [await relay.look() for _ in range(5)]
    assert await office.deliveries() == []
    assert max(looks[:3]) <= relay_module.MIN_INTERVAL_S, "while there is more, it is not put off to the next minute"


async def test_what_a_function_says_as_it_fails_is_kept_without_secrets(office: Office) -> None:
    secret = "sk-7hT0pS3cr3tV4lue"
    learn("API_KEY", secret)
    try:

        @office.app.on(r.COMPLETED, name="leaky")
        def leaky(event: Event) -> None:
            raise ValueError("x" * 270 + " 401 for " + secret)

        await office.app.save_subscriptions()
        await office.complete()
        await office.send_all()
        (row,) = await sql(office.store, "SELECT said FROM onward_outbox")
    finally:
        mask.forget("API_KEY", secret)
    assert "sk-7hT" not in row[0]
    assert len(row[0]) <= 300


@only_postgres
async def test_what_was_written_for_a_subscription_that_was_just_removed_goes(office: Office) -> None:
    for name in ("f", "other"):
        office.app.on(r.COMPLETED, name=name)(lambda event: None)
    await office.app.save_subscriptions()
    await office.submit()
    held = await office.begin()
    record = (
        "INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES ($1, $2, $2, $3, '', '{}', 1e9)"
    )
    async with office.store._db.connection() as connection:  # type: ignore[attr-defined]
        async with connection.transaction():
            await connection.execute(record, held.id, held.shift + 1, r.COMPLETED)
            await office.app.subscriptions.remove("on:f")
    assert len(await office.deliveries()) == 2, "the record had found the subscription"
    relay = office.relay()
    del office.app._listeners["f"]
    for _ in range(2):
        await office.send(relay)
        office.time.move(100)
    assert [one.subscription for one in await office.deliveries()] == ["on:other"]
    assert await office.store.outbox.lanes() == []


@only_postgres
async def test_a_worker_whose_subscriptions_cannot_be_written_does_not_start(
    app: Onward, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_outbox, "MAX_TRIES", 1)
    before = {thread.name for thread in threading.enumerate()}
    app.task(name="work")(lambda ctx: 1)
    app.on(r.COMPLETED, name="f")(lambda event: None)
    async with app:
        await sql(app.store, "DROP TRIGGER IF EXISTS onward_outbox_tasks ON onward_journal")
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            await connection.execute("LOCK TABLE onward_journal IN ROW EXCLUSIVE MODE")
            with pytest.raises(StoreUnavailable, match="long transaction"):
                await app._make_worker().start()
        await connection.close()
        assert await app.store.workers.list() == [], "and nothing of it is left behind"
    left = {task.get_name() for task in asyncio.all_tasks()} | {thread.name for thread in threading.enumerate()}
    assert not [name for name in left - before if name.startswith("onward-") and "reader" not in name]


@only_postgres
async def test_who_adds_to_the_audit_does_not_wait_for_the_first_subscription(
    office: Office, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_outbox, "MAX_TRIES", 1)
    await sql(office.store, "DROP TRIGGER IF EXISTS onward_outbox_tasks ON onward_journal")
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute("LOCK TABLE onward_journal IN ROW EXCLUSIVE MODE")
        watching = asyncio.ensure_future(office.store.outbox.watch(busy=False))
        await eventually(lambda: connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        await office.store.audit.append(AuditEvent("pause", "queue", None, None, "ann", {}))
        assert not watching.done()
    with contextlib.suppress(StoreUnavailable):  # its second may be over by now
        await watching
    await connection.close()
