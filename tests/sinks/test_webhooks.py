"""Webhooks: signed, the same bytes at every attempt, on a schedule, and what receivers can do wrong."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from standardwebhooks import Webhook

from onward.core import record as r
from onward.core.event import BODY_LIMIT
from onward.core.task import State
from onward.core.views import Check
from onward.engine.worker import relay as relay_module
from onward.engine.worker import sinks
from onward.errors import BadSetting, BadWebhook, UsageError
from onward.sinks import webhook as sink
from onward.store.port.core import Batch, End, Store
from onward.store.port.outbox import NO_CLIENT, UNSIGNED
from tests.kit import Time, entry, eventually, not_memory, sql
from tests.sinks.conftest import SECRET, Office
from tests.sinks.receiver import OK, Received, Receiver, answer


def verified(secret: str, got: Received) -> Any:
    """What the library of the standard makes of a request; it raises when the signature is not right."""
    hook = Webhook(secret)
    return hook.verify(got.body, {**got.headers, "webhook-timestamp": got.headers["webhook-timestamp"]})


@pytest.fixture(autouse=True)
def _any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library compares the time of a request with its own clock, and ours is moved by hand."""
    monkeypatch.setattr(Webhook, "_Webhook__verify_timestamp", lambda self, stamp: _when(stamp), raising=False)


def _when(stamp: str) -> Any:
    import datetime

    return datetime.datetime.fromtimestamp(float(stamp), tz=datetime.UTC)


async def test_the_end_of_a_task_is_told_signed_and_once(office: Office, receiver: Receiver) -> None:
    task_id = await office.complete(webhook=receiver.url("/hook?token=1"))
    await office.send_all()
    (got,) = receiver.got
    told = verified(SECRET, got)
    assert (got.path, got.headers["host"]) == ("/hook?token=1", f"127.0.0.1:{receiver.port}")
    assert told["type"] == "dev.onward.task.completed"
    assert told["subject"] == task_id
    assert told["id"] == got.id == f"{task_id}.3"
    assert told["data"]["state"] == "completed"
    assert told["data"]["result"] == 42
    (one,) = await office.deliveries()
    assert (one.state, one.attempts, one.said, one.id) == ("delivered", 1, "HTTP 200", got.id)
    await office.send_all()
    assert len(receiver.got) == 1


async def test_the_signature_is_over_these_very_bytes(office: Office, receiver: Receiver) -> None:
    await office.complete(webhook=receiver.url())
    await office.send_all()
    (got,) = receiver.got
    got.body = got.body.replace(b"42", b"43")
    with pytest.raises(Exception, match=r"(?i)signature"):
        verified(SECRET, got)


async def test_with_two_secrets_both_sign(store: Store, time: Time, receiver: Receiver) -> None:
    new = "whsec_" + base64.b64encode(b"n" * 32).decode()
    office = Office(store, time, webhook_secret=f"{new}, {SECRET}")
    await office.complete(webhook=receiver.url())
    await office.send_all()
    (got,) = receiver.got
    assert len(got.headers["webhook-signature"].split(" ")) == 2
    assert verified(SECRET, got) == verified(new, got)


@pytest.mark.parametrize("tenant", ["shop", "a:b/c d ü"])
async def test_a_tenant_has_a_secret_of_its_own(office: Office, receiver: Receiver, tenant: str) -> None:
    """Ours makes all others, so no tenant's receiver may need it."""
    await office.complete(webhook=receiver.url(), tenant=tenant)
    await office.send_all()
    (got,) = receiver.got
    own = office.app.service.subscriptions.secret_of(tenant)
    assert own is not None
    assert verified(own, got)["type"] == "dev.onward.task.completed"
    for other in (SECRET, office.app.service.subscriptions.secret_of("another") or ""):
        with pytest.raises(Exception, match=r"(?i)signature"):
            verified(other, got)


async def test_a_subscription_has_a_secret_of_its_own(office: Office, receiver: Receiver) -> None:
    made = await office.app.subscriptions.make(receiver.url(), ["task.completed"])
    other = await office.app.subscriptions.make(receiver.url("/other"), ["task.completed"])
    assert made.secret
    assert other.secret
    assert len({made.secret, other.secret, SECRET}) == 3
    task_id = await office.complete()
    await office.send_all()
    by_path = {got.path: got for got in receiver.got}
    assert verified(made.secret, by_path["/hook"])["subject"] == task_id
    with pytest.raises(Exception, match=r"(?i)signature"):
        verified(other.secret, by_path["/hook"])
    kept = await sql(office.store, "SELECT * FROM onward_subscriptions")
    assert made.secret not in str(kept)
    assert [one.secret for one in (await office.app.subscriptions.list())[0]] == [None, None]


async def test_the_schedule_and_the_same_bytes_at_every_attempt(office: Office, receiver: Receiver) -> None:
    receiver.says = [answer(500)]
    await office.complete(webhook=receiver.url())
    await office.send()
    for number, pause in enumerate(relay_module.ATTEMPT_DELAYS_S[1:], 2):
        office.time.move(pause * 0.89)
        await office.send()
        assert len(receiver.got) == number - 1, "not before its time"
        office.time.move(pause * 0.22)
        await office.send()
        assert len(receiver.got) == number
    assert len({(got.id, got.body) for got in receiver.got}) == 1
    assert len({got.headers["webhook-timestamp"] for got in receiver.got}) == len(receiver.got), "each has its own time"
    (one,) = await office.deliveries(state="failed")
    assert (one.attempts, one.said, one.due_at) == (10, "HTTP 500", None)
    office.time.move(1e6)
    await office.send()
    assert len(receiver.got) == 10, "given up"


async def test_what_was_given_up_can_be_sent_again(office: Office, receiver: Receiver) -> None:
    receiver.says = [answer(410), OK]
    made = await office.app.subscriptions.make(receiver.url(), ["task.completed"])
    await office.complete()
    await office.send_all()
    (one,) = await office.deliveries(state="failed")
    with pytest.raises(UsageError, match="disabled"):
        await office.app.redeliver(one.id)
    await office.app.subscriptions.remove(made.id)
    await office.app.subscriptions.make(receiver.url(), ["task.completed"])

    receiver.says = [answer(400), OK]
    await office.complete()
    await office.send_all()
    (two,) = await office.deliveries(state="pending")
    again = await office.app.redeliver(two.id)
    assert again.state == "pending"
    assert again.attempts == 0
    await office.send_all()
    assert (receiver.got[-1].id, receiver.got[-1].body) == (receiver.got[-2].id, receiver.got[-2].body)
    assert (await office.deliveries(state="delivered"))[0].id == two.id


async def test_410_disables_the_subscription(office: Office, receiver: Receiver) -> None:
    receiver.says = [answer(410)]
    made = await office.app.subscriptions.make(receiver.url(), ["task.completed"])
    await office.complete()
    await office.complete()
    await office.send_all()
    await office.complete()
    await office.send_all()
    assert {one.state for one in await office.deliveries()} == {"failed"}
    ((shown,), _) = await office.app.subscriptions.list()
    assert shown.id == made.id
    assert shown.disabled
    assert "410" in shown.disabled
    assert len(await office.deliveries()) == 2, "what came after is not written at all"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_retry_after_is_honoured(office: Office, receiver: Receiver, status: int) -> None:
    receiver.says = [answer(status, "Retry-After: 120\r\n"), OK]
    await office.complete(webhook=receiver.url())
    await office.complete(webhook=receiver.url("/other"))
    await office.send()
    first = len(receiver.got)
    office.time.move(60)
    await office.send()
    assert len(receiver.got) == first, "it is left alone, with everything"
    office.time.move(70)
    await office.send_all()
    assert {one.state for one in await office.deliveries()} == {"delivered"}


async def test_a_date_is_understood_and_nonsense_is_not(office: Office, receiver: Receiver) -> None:
    hooks = office.app.webhooks
    assert hooks._retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert hooks._retry_after_s("soon") is None
    assert hooks._retry_after_s("") is None
    assert hooks._retry_after_s("9" * 400) == sink.MAX_RETRY_AFTER_S


async def test_a_redirect_is_a_failure_and_never_followed(office: Office, receiver: Receiver) -> None:
    async with Receiver().open() as inside:
        for status in (301, 302, 303, 307, 308):
            receiver.says = [answer(status, f"Location: {inside.url('/latest/meta-data')}\r\n")]
            await office.complete(webhook=receiver.url(f"/{status}"))
            await office.send()
        assert inside.connections == 0
    assert [one.state for one in await office.deliveries()] == ["pending"] * 5
    assert all("redirect" in (one.said or "") for one in await office.deliveries())


async def test_a_receiver_that_is_not_there_is_tried_again(office: Office) -> None:
    async with Receiver().open() as receiver:
        url = receiver.url()
    await office.complete(webhook=url)
    await office.send()
    (one,) = await office.deliveries()
    assert one.state == "pending"
    assert "ConnectError" in (one.said or "")


async def test_one_that_never_answers_is_left_after_a_while(
    office: Office, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "ATTEMPT_TIMEOUT_S", 0.05)

    async def never(got: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def drop_by_drop(got: Received, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"H")
            await writer.drain()
            await asyncio.sleep(0.01)

    for behaviour in (never, drop_by_drop):
        receiver.says = [behaviour]
        await office.complete(webhook=receiver.url())
        await office.send()
        office.time.move(2)  # one that is down is left alone for a while
    assert all("no answer" in (one.said or "") and one.state == "pending" for one in await office.deliveries())


async def test_one_that_dies_after_the_request_hears_of_it_again(office: Office, receiver: Receiver) -> None:
    async def dies(got: Received, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    receiver.says = [dies, OK]
    await office.complete(webhook=receiver.url())
    await office.send()
    office.time.move(6)
    await office.send_all()
    first, second = receiver.got
    assert (first.id, first.body) == (second.id, second.body)
    assert (await office.deliveries())[0].state == "delivered"


async def test_a_huge_answer_is_not_read(office: Office, receiver: Receiver) -> None:
    sent = 0

    async def floods(got: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1000000000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    receiver.says = [floods]
    await office.complete(webhook=receiver.url())
    await office.send_all()
    assert (await office.deliveries())[0].state == "delivered"
    assert sent < 20_000_000, "what the sockets hold, and no more"


@pytest.mark.parametrize(
    "broken", [b"", b"\r\n\r\n", b"HTTP/1.1 99999 X\r\n\r\n", b"\x00" * 1000, b"HTTP/1.1 200 " + b"x" * 200_000]
)
async def test_what_is_not_http_is_a_failure(office: Office, receiver: Receiver, broken: bytes) -> None:
    receiver.says = [broken]
    await office.complete(webhook=receiver.url())
    await office.send()
    assert [one.state for one in await office.deliveries()] == ["pending"]


async def _is_there(receiver: Receiver) -> bool:
    return bool(receiver.got)


async def test_a_slow_receiver_delays_no_other(office: Office, receiver: Receiver) -> None:
    release = asyncio.Event()

    async def waits(got: Received, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(OK)

    async with Receiver(waits).open() as slow:
        for _ in range(30):
            await office.complete(webhook=slow.url())
        await office.complete(webhook=receiver.url())
        relay = office.relay()
        await relay.look()
        await eventually(lambda: _is_there(receiver))  # the others of the slow one are still under way
        assert slow.connections <= sinks.MAX_ATTEMPTS_PER_LANE, "and it is not asked by all at once"
        assert not [one for one in await office.deliveries(state="delivered") if "slow" in (one.sink or "")]
        release.set()
        await office.send_all()
        assert len(slow.got) == 30


async def test_a_large_result_is_left_out_and_said_to_be(office: Office, receiver: Receiver) -> None:
    task_id = await office.submit(webhook=receiver.url(), labels={"a": "b"})
    held = await office.begin()
    data = json.dumps({"result": "x" * 100_000}).encode()
    batch = Batch([entry(held, 1, r.COMPLETED, "", data)], [End(held.id, State.COMPLETED, 1, held.shift + 1)])
    assert await office.store.save("w1", batch) == set()
    await office.send_all()
    (got,) = receiver.got
    assert len(got.body) < BODY_LIMIT
    told = got.json["data"]
    assert told["truncated"] is True
    assert told["path"] == f"/api/tasks/{task_id}"
    assert told["state"] == "completed"
    assert "result" not in told
    assert told["labels"] == {"a": "b"}


async def test_a_resume_is_told_and_so_is_the_end_after_it(office: Office, receiver: Receiver) -> None:
    from tests.kit import completion

    task_id = await office.submit(webhook=receiver.url())
    held = await office.begin()
    await office.store.save("w1", completion(held, state=State.FAILED))
    await office.app.resume(task_id)
    again = await office.begin()
    await office.store.save("w1", completion(again))
    await office.send_all()
    kinds = [got.json["type"].removeprefix("dev.onward.") for got in receiver.got]
    assert kinds == ["task.failed", "task.resumed", "task.completed"]
    assert receiver.got[0].json["data"]["error"] == {"type": "E", "message": "m"}


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_bad_url_is_refused_at_submit_and_nothing_is_written(store: Store, time: Time) -> None:
    office = Office(store, time, webhook_allow_private="")
    for url in ("http://example.com/", "https://127.0.0.1/", "ftp://example.com", "nonsense", ""):
        with pytest.raises(BadWebhook):
            await office.submit(webhook=url)
    assert (await office.app.list())[0] == []
    assert await sql(store, "SELECT * FROM onward_subscriptions") == []


async def test_without_a_secret_a_webhook_is_refused_with_what_to_do(store: Store, time: Time) -> None:
    office = Office(store, time, webhook_secret="")
    with pytest.raises(BadSetting, match="ONWARD_WEBHOOK_SECRET"):
        await office.submit(webhook="https://example.com/")
    assert (await office.app.list())[0] == []


async def test_the_same_key_with_another_webhook_is_another_submit(office: Office, receiver: Receiver) -> None:
    from onward.errors import KeyConflict

    first = await office.submit(key="k", webhook=receiver.url())
    assert await office.submit(key="k", webhook=receiver.url()) == first
    with pytest.raises(KeyConflict):
        await office.submit(key="k", webhook=receiver.url("/other"))
    with pytest.raises(KeyConflict):
        await office.submit(key="k")
    assert len(await sql(office.store, "SELECT * FROM onward_subscriptions")) == 1


async def test_a_relay_without_a_secret_leaves_webhooks_to_others(
    office: Office, store: Store, time: Time, receiver: Receiver
) -> None:
    await office.complete(webhook=receiver.url())
    other = Office(store, time, webhook_secret="")
    await other.send(other.relay())
    assert receiver.connections == 0
    await office.send_all()
    assert len(receiver.got) == 1


@not_memory
async def test_a_relay_without_a_secret_says_so_and_another_sends_it_later(
    office: Office, open_another: Any, time: Time, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    await office.complete(webhook=receiver.url())
    other = Office(await open_another(), time, webhook_secret="")
    relay = other.relay()
    await other.send(relay)
    assert [delivery.said for delivery in await other.deliveries()] == [None], (
        "another relay may be just about to send it"
    )
    assert "webhooks" not in await _checks(other)
    time.move(relay_module.UNSENT_AFTER_S + 1)
    for _ in range(3):
        await other.send(relay)
        time.move(relay_module.UNSENT_INTERVAL_S + 1)
    (delivery,) = await other.deliveries()
    assert (delivery.state, delivery.attempts, delivery.said) == ("pending", 0, UNSIGNED)
    assert [record.levelname for record in caplog.records if "ONWARD_WEBHOOK_SECRET" in record.message] == ["WARNING"]
    check = (await _checks(other))["webhooks"]
    assert check.fine is False
    assert check.detail.startswith("1 not sent, the oldest from ")
    assert "ONWARD_WEBHOOK_SECRET" in check.detail
    await office.send_all()
    assert len(receiver.got) == 1
    (delivery,) = await office.deliveries()
    assert (delivery.state, delivery.attempts, delivery.said) == ("delivered", 1, "HTTP 200")
    assert "webhooks" not in await _checks(other)
    await relay.stop(0)


async def test_a_relay_without_an_http_client_says_so(
    office: Office, time: Time, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_httpcore_installed", lambda: False)
    await office.complete(webhook=receiver.url())
    time.move(relay_module.UNSENT_AFTER_S + 1)
    await office.send()
    assert [delivery.said for delivery in await office.deliveries()] == [NO_CLIENT]
    assert "onward[client]" in (await _checks(office))["webhooks"].detail


async def test_a_function_of_another_program_is_not_reported(office: Office, store: Store, time: Time) -> None:
    office.app.on("task.completed", name="theirs")(lambda event: None)
    await office.app.save_subscriptions()
    await office.complete()
    time.move(relay_module.UNSENT_AFTER_S + 1)
    other = Office(store, time, webhook_secret="")
    await other.send(other.relay())
    assert [delivery.said for delivery in await other.deliveries()] == [None]


async def _checks(office: Office) -> dict[str, Check]:
    return {check.name: check for check in await office.app.service.health.checks()}
