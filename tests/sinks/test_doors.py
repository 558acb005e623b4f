"""Subscriptions and deliveries over HTTP and on the command line."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.cli.commands import serve
from onward.core.caller import Caller
from onward.errors import Forbidden, NotFound
from onward.server.access.service import AuthorizedService
from tests.cli.conftest import Run, onward
from tests.kit import eventually, not_memory
from tests.server.conftest import serving
from tests.sinks.conftest import SECRET
from tests.sinks.receiver import Receiver, answer

__all__ = ["onward"]


@pytest.fixture
async def hooked(url: str) -> Any:
    app = Onward(url, poll_s=0.05, webhook_secret=SECRET, webhook_allow_private="127.0.0.1", grace_s=1.0)
    app.task(name="work")(lambda ctx, value=None: value)
    async with app:
        yield app


async def test_from_subscription_to_redelivery_over_http(hooked: Onward, receiver: Receiver) -> None:
    async with serving(hooked) as address, httpx2.AsyncClient(base_url=address) as client, hooked.worker():
        made = await client.post("/api/subscriptions", json={"url": receiver.url("/s"), "types": ["task.completed"]})
        assert made.status_code == 201
        subscription = made.json()
        assert subscription["secret"].startswith("whsec_")
        sent = await client.post("/api/tasks", json={"task": "work", "input": 7, "webhook_url": receiver.url("/w")})
        task_id = sent.json()["task_id"]
        await eventually(lambda: _count(receiver, 2))
        assert {got.path for got in receiver.got} == {"/s", "/w"}
        assert {got.json["data"]["result"] for got in receiver.got} == {7}

        page = (await client.get("/api/subscriptions")).json()
        assert [one["id"] for one in page["subscriptions"]] == [subscription["id"]]
        assert "secret" not in page["subscriptions"][0]
        await eventually(lambda: _delivered(client, 2))
        found = (await client.get("/api/deliveries", params={"task": task_id, "limit": 1})).json()
        assert len(found["deliveries"]) == 1
        assert found["next"] is not None
        again = await client.post(f"/api/deliveries/{found['deliveries'][0]['id']}/redeliver")
        assert again.status_code == 202
        await eventually(lambda: _count(receiver, 3))

        assert (await client.delete(f"/api/subscriptions/{subscription['id']}")).status_code == 204
        assert (await client.delete(f"/api/subscriptions/{subscription['id']}")).status_code == 404
        gone = await client.post(f"/api/deliveries/{task_id}.3.{subscription['id']}/redeliver")
        assert gone.status_code == 409, "there is nobody to send it to"


async def _count(receiver: Receiver, count: int) -> bool:
    return len(receiver.got) >= count


async def _delivered(client: httpx2.AsyncClient, count: int) -> bool:
    found = await client.get("/api/deliveries", params={"state": "delivered"})
    return len(found.json()["deliveries"]) >= count


@not_memory
async def test_a_server_without_a_worker_sends_too(hooked: Onward, receiver: Receiver, url: str) -> None:
    worker = Onward(url, poll_s=0.05)  # without a secret: it tells nobody
    worker.task(name="work")(lambda ctx, value=None: value)
    async with serve._worker(hooked, Namespace(no_worker=True, no_intake=False)) as none, worker.worker():
        assert none is None
        await hooked.submit("work", webhook=receiver.url())
        await eventually(lambda: _count(receiver, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/subscriptions", {"url": "http://169.254.169.254/", "types": ["task.*"]}, 422),
        ("POST", "/api/subscriptions", {"url": "https://example.com/", "types": ["nonsense"]}, 400),
        ("POST", "/api/subscriptions", {"url": "https://example.com/", "types": []}, 422),
        ("POST", "/api/subscriptions", {"url": "https://example.com/", "types": ["*"], "x": 1}, 422),
        ("POST", "/api/tasks", {"task": "work", "webhook_url": "https://10.0.0.1/"}, 422),
        ("POST", "/api/tasks", {"task": "work", "webhook_url": ""}, 422),
        ("POST", "/api/deliveries/nonsense/redeliver", None, 404),
        ("POST", "/api/deliveries/a.1.b/redeliver", None, 404),
        ("GET", "/api/deliveries?state=x", None, 422),
        ("GET", "/api/deliveries?cursor=x", None, 400),
    ],
)
async def test_what_is_wrong_is_told(hooked: Onward, method: str, path: str, body: Any, status: int) -> None:
    async with serving(hooked) as address, httpx2.AsyncClient(base_url=address) as client:
        said = await client.request(method, path, json=body)
        assert (said.status_code, said.headers["content-type"]) == (status, "application/problem+json")
        assert (await client.get("/api/tasks")).json()["tasks"] == []
        assert (await client.get("/api/subscriptions")).json()["subscriptions"] == []


async def test_only_who_runs_the_place_may_and_only_for_its_tenant(hooked: Onward, receiver: Receiver) -> None:
    service = hooked.service
    reader = AuthorizedService(service, Caller(scopes=frozenset({"read", "submit", "decide"})))
    for asked in (
        reader.subscribe(receiver.url(), ["*"]),
        reader.subscriptions(10, None),
        reader.unsubscribe("x"),
        reader.deliveries(),
        reader.redeliver("x"),
    ):
        with pytest.raises(Forbidden):
            await asked
    acme, other = AuthorizedService(service, Caller("acme")), AuthorizedService(service, Caller("other"))
    made = await acme.subscribe(receiver.url(), ["*"])
    assert [one.id for one in (await acme.subscriptions(10, None))[0]] == [made.id]
    assert (await other.subscriptions(10, None))[0] == []
    with pytest.raises(NotFound):
        await other.unsubscribe(made.id)


def test_the_command_line(onward: Run, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    db = f"sqlite:///{tmp_path / 'o.db'}"
    monkeypatch.setenv("ONWARD_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("ONWARD_WEBHOOK_ALLOW_PRIVATE", "true")
    assert "no deliveries" in onward("deliveries", "--db", db).err
    refused = onward("submit", "work", "--anyway", "--db", db, "--webhook", "nonsense")
    assert refused.status == 2
    assert "no webhook is sent" in refused.sentence

    async def one_that_fails() -> str:
        async with Receiver(answer(410)).open() as receiver:
            words = ("submit", "work", "--anyway", "--db", db, "--webhook", receiver.url("/x?token=s3cret"))
            task_id = (await asyncio.to_thread(onward, *words)).out.strip()
            app = Onward(db, poll_s=0.05)
            app.task(name="work")(lambda ctx: 1)
            async with app.worker():
                await eventually(lambda: _failed(app))
        return task_id

    task_id = asyncio.run(one_that_fails())
    listed = onward("deliveries", "--failed", "--db", db, "--json").json["deliveries"]
    assert [(one["task_id"], one["state"], one["attempts"]) for one in listed] == [(task_id, "failed", 1)]
    header, line = onward("deliveries", "--db", db).out.splitlines()[:2]
    assert header.split() == ["ID", "TYPE", "STATE", "TRIES", "TO", "WHEN", "SAID"]
    assert "s3cret" not in line
    assert onward("deliveries", "--pending", "--db", db, "--json").json["deliveries"] == []
    assert "disabled" in onward("deliveries", "redeliver", f"{task_id}.3", "--db", db).sentence
    assert onward("deliveries", "redeliver", "nonsense", "--db", db).status == 4
    assert onward("deliveries", "--failed", "--pending", "--db", db).status == 2


async def _failed(app: Onward) -> bool:
    return bool((await app.deliveries(state="failed"))[0])
