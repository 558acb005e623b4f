"""Open connections for callers without the permission: streams and sockets of a task of another tenant, and of a revoked key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from onward import Onward
from onward.core.caller import DECIDE, READ, SUBMIT
from onward.server.access import auth
from onward.server.live import pump
from tests.kit import only_memory
from tests.server.conftest import serving
from tests.server.tenants import GHOST, TenantResources, all_rows, make_tenants

pytestmark = only_memory

WAYS = ("/api/progress?task_id={}", "/api/tasks/{}/events")


class Town:
    """A server, the resources of its tenants, and a key of each."""

    def __init__(self, app: Onward, client: httpx2.AsyncClient, tenants: dict[str | None, TenantResources]) -> None:
        self.app, self.client, self.tenants = app, client, tenants
        self.tokens: dict[str, str] = {}
        self.ids: dict[str, str] = {}

    async def key(self, name: str, *scopes: str, tenant: str | None, **more: Any) -> None:
        made = await self.app.keys.create(name, scopes, tenant=tenant, **more)
        self.tokens[name], self.ids[name] = made.token, made.key.id

    def headers(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[name]}", "Accept": "text/event-stream"}

    async def status(self, path: str, name: str, **more: str) -> tuple[int, str]:
        async with self.client.stream("GET", path, headers=self.headers(name) | more) as answer:
            text = "" if answer.is_success else (await answer.aread()).decode()
            return answer.status_code, text

    def socket(self, task_id: str, name: str, **options: Any) -> Any:
        where = f"ws://127.0.0.1:{self.client.base_url.port}/api/tasks/{task_id}/ws"
        return connect(where, additional_headers={"Authorization": f"Bearer {self.tokens[name]}"}, **options)


@pytest.fixture
async def place(app: Onward) -> AsyncIterator[Town]:
    tenants = await make_tenants(app)
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        here = Town(app, client, tenants)
        await here.key("right", READ, SUBMIT, DECIDE, tenant="acme")
        await here.key("no read", SUBMIT, DECIDE, tenant="acme")
        await here.key("stranger", READ, SUBMIT, DECIDE, tenant="globex")
        await here.key("no tenant", READ, SUBMIT, DECIDE, tenant=None)
        await here.key("agent", READ, SUBMIT, DECIDE, tenant="acme", agent="fixer")
        await here.key("expired", READ, tenant="acme", expires=0)
        await here.key("revoked", READ, tenant="acme")
        await app.keys.revoke(here.ids["revoked"])
        yield here


async def test_a_stream_of_another_tenants_task_is_refused(place: Town) -> None:
    acme, before = place.tenants["acme"], await all_rows(place.app)
    for way in WAYS:
        for name in ("expired", "revoked"):
            assert (await place.status(way.format(acme.fixer), name))[0] == 401
        assert (await place.status(way.format(acme.fixer), "no read"))[0] == 403
        for name in ("stranger", "no tenant"):
            for cursor in ({}, {"Last-Event-ID": "3"}):
                status, body = await place.status(way.format(acme.fixer), name, **cursor)
                nothing, instead = await place.status(way.format(GHOST.fixer), name, **cursor)
                assert (status, body.replace(acme.fixer, GHOST.fixer)) == (nothing, instead)
                assert status == 404
        assert (await place.status(way.format(acme.fixer), "right"))[0] == 200
    both = f"/api/progress?task_id={place.tenants['globex'].fixer}&task_id={acme.fixer}"
    assert (await place.status(both, "stranger"))[0] == 404, "also together with a task of its own"
    assert await all_rows(place.app) == before


async def test_the_stream_of_all_tasks_has_only_those_of_the_tenant(place: Town) -> None:
    acme = place.tenants["acme"]
    for name, mine in (("stranger", "globex"), ("no tenant", None), ("right", "acme")):
        text = ""
        async with place.client.stream("GET", "/api/progress?all=true", headers=place.headers(name)) as answer:
            async for line in answer.aiter_lines():
                text += line
                if line.startswith("data:"):
                    break
        assert place.tenants[mine].asker in text
        assert (acme.asker in text) == (mine == "acme")


async def test_a_socket_of_another_tenants_task_is_refused(place: Town) -> None:
    acme, before = place.tenants["acme"], await all_rows(place.app)
    for name, wanted in (("expired", 401), ("revoked", 401), ("no read", 403), ("stranger", 404), ("no tenant", 404)):
        with pytest.raises(InvalidStatus) as refused:
            await place.socket(acme.fixer, name)
        assert refused.value.response.status_code == wanted, name
    assert await all_rows(place.app) == before


async def test_a_message_over_a_socket_cannot_name_a_task_of_another_tenant(place: Town) -> None:
    acme, globex = place.tenants["acme"], place.tenants["globex"]
    before = await all_rows(place.app)

    async def send(socket: Any, **words: Any) -> dict[str, Any]:
        await socket.send(json.dumps(words))
        while True:
            answer: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 60))
            if answer.get("type") in {"ack", "error"}:
                return answer

    async with place.socket(globex.fixer, "stranger") as socket:
        for words in (
            {"type": "approve", "approval_id": acme.approval},
            {"type": "answer", "question_id": acme.question, "answer": "fast"},
        ):
            assert (await send(socket, **words))["code"] == "not_found"
    async with place.socket(acme.fixer, "agent") as socket:
        assert (await send(socket, type="approve", approval_id=acme.approval))["code"] == "own_call"
    assert await all_rows(place.app) == before


async def test_revoking_a_key_ends_its_streams_and_sockets(place: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "CACHE_TTL_S", 0.1)
    monkeypatch.setattr(pump.PACE, "check", 0.05)
    acme = place.tenants["acme"]

    async def follow(way: str) -> None:
        async with place.client.stream("GET", way.format(acme.fixer), headers=place.headers("right")) as answer:
            assert answer.status_code == 200
            opened.release()
            async for _ in answer.aiter_lines():
                pass

    async def listen() -> int:
        async with place.socket(acme.fixer, "right") as socket:
            opened.release()
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await socket.recv()
            return closed.value.rcvd.code if closed.value.rcvd else 0

    opened = asyncio.Semaphore(0)
    running = [asyncio.create_task(follow(way)) for way in WAYS]
    socket = asyncio.create_task(listen())
    for _ in range(3):
        await opened.acquire()
    await place.app.keys.revoke(place.ids["right"])
    await asyncio.wait_for(asyncio.gather(*running), 60)
    assert await asyncio.wait_for(socket, 60) == 1008
