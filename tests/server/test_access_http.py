"""Every call over a real socket for every caller without the permission: without a key, with a key of another tenant, without
the scope, with an expired or revoked key, or with the key of the agent itself. The calls come from the route table of the
server: a call without a row here fails."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.core import key as keys
from onward.core.caller import ADMIN, ANYBODY, DECIDE, READ, SCOPES, SUBMIT
from onward.server.access.auth import CACHE_TTL_S
from onward.server.access.service import AuthorizedService
from tests.kit import HandClock, only_memory
from tests.server.conftest import serving
from tests.server.matrix import CALLS, ROWS, Row
from tests.server.tenants import GHOST, TenantResources, all_rows, make_tenants, restore

Client = httpx2.AsyncClient


def test_every_call_of_the_server_has_a_row() -> None:
    assert {row.call or name for name, row in ROWS.items()} == set(CALLS), (
        "say here which scope it needs, and how it is made"
    )
    assert {name for name, row in ROWS.items() if row.scope is None} == {n for n, call in CALLS.items() if call.open}


def filled(value: Any, of: TenantResources) -> Any:
    if isinstance(value, dict):
        return {name: filled(part, of) for name, part in value.items()}
    return value.format_map(dataclasses.asdict(of)) if isinstance(value, str) else value


class Inspector:
    """Makes calls as every caller without the permission."""

    def __init__(self, app: Onward, client: Client, acme: TenantResources) -> None:
        self._app, self._client, self._acme = app, client, acme
        self._tokens: dict[str, str] = {}
        self.cells = 0

    async def prepare(self) -> None:
        """Keys of all kinds: for each scope a key without it, a key of another tenant, an expired key …"""
        make = self._app.keys.create
        self._tokens = {f"without {scope}": await self._made([s for s in SCOPES if s != scope]) for scope in SCOPES}
        self._tokens["right"] = await self._made(SCOPES)
        self._tokens["agent"] = await self._made([READ, SUBMIT, DECIDE], agent="fixer")
        self._tokens["stranger"] = (await make("stranger", SCOPES, tenant="globex")).token
        self._tokens["no tenant"] = (await make("plain", [READ, SUBMIT, DECIDE])).token
        self._tokens["place"] = (await make("place", SCOPES)).token
        self._tokens["expired"] = await self._made(SCOPES, expires=0)
        gone = await make("gone", SCOPES, tenant="acme")
        await self._app.keys.revoke(gone.key.id)
        self._tokens["revoked"] = gone.token
        self._tokens["unknown"] = keys.new().text

    async def _made(self, scopes: Any, **more: Any) -> str:
        return (await self._app.keys.create("ada", scopes, tenant="acme", **more)).token

    async def ask(self, name: str, who: str | None, of: TenantResources | None = None) -> httpx2.Response:
        row = ROWS[name]
        call = CALLS[row.call or name]
        headers = {} if who is None else self._headers(who)
        of = of or self._acme
        body = None if row.body is None else filled(row.body, of)
        return await self._client.request(call.method, filled(row.path, of), json=body, headers=headers)

    def _headers(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._tokens[who]}"}

    async def leaks(self, name: str) -> list[str]:
        row = ROWS[name]
        if row.scope is None:
            return []
        leaks, before = [], await all_rows(self._app)
        for who in (None, "unknown", "expired", "revoked"):
            leaks += await self._refused(name, who, 401, "unauthorized")
        if row.scope:
            leaks += await self._refused(name, f"without {row.scope}", 403, "forbidden")
        if row.decides:
            leaks += await self._refused(name, "agent", 403, "own_call")
        for who in ("stranger", "no tenant"):
            if row.scope and (who == "stranger" or not (row.place or row.scope == ADMIN)):
                leaks += await self._strange(name, row, who)
        after = await all_rows(self._app)
        return leaks + [f"{name}: wrote to {table}" for table in after if after[table] != before[table]]

    async def _refused(self, name: str, who: str | None, status: int, code: str) -> list[str]:
        self.cells += 1
        answer = await self.ask(name, who)
        problem = answer.json() if answer.headers.get("content-type") == "application/problem+json" else {}
        wrong = (
            [] if (answer.status_code, problem.get("code")) == (status, code) else [f"{name} {who}: {answer.text:.200}"]
        )
        wrong += [
            f"{name} {who}: shown {word}" for word in self._acme.names if word in answer.text and code != "own_call"
        ]
        return wrong

    async def _strange(self, name: str, row: Row, who: str) -> list[str]:
        """The answer is exactly the answer for a resource that does not exist."""
        self.cells += 1
        answer, instead = await self.ask(name, who), await self.ask(name, who, GHOST)
        if row.counts:
            wrong = [] if answer.text == instead.text else [f"{name} {who}: {answer.text:.200}"]
        elif row.lists:
            words = self._acme.names | ({"nightly"} if who == "stranger" else set())
            wrong = [f"{name} {who}: shown {word}" for word in words if word in answer.text]
        else:
            got, wanted = self._plain(answer), self._plain(instead)
            refused = answer.status_code in {403, 404}
            wrong = [] if refused and got == wanted else [f"{name} {who}: {got:.300}; of nothing: {wanted:.300}"]
        return wrong

    def _plain(self, answer: httpx2.Response) -> str:
        text = f"{answer.status_code} {sorted(set(answer.headers) - {'date'})} {answer.text}"
        pairs = zip(dataclasses.astuple(self._acme), dataclasses.astuple(GHOST), strict=True)
        for mine, nobodys in sorted(pairs, key=lambda pair: -len(pair[0])):
            text = text.replace(mine, nobodys)
        return text


@pytest.fixture
async def inspector(app: Onward) -> AsyncIterator[Inspector]:
    acme = (await make_tenants(app))["acme"]
    async with serving(app) as address, Client(base_url=address, timeout=60) as client:
        look = Inspector(app, client, acme)
        await look.prepare()
        yield look


@pytest.mark.slow
async def test_callers_without_permission_get_and_change_nothing(
    inspector: Inspector, kind: str, prove: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)  # tasks that have just ended may be pruned
    names = list(ROWS) if prove or kind != "postgres" else list(ROWS)[::4]  # access does not depend on the store
    leaks = [leak for name in names for leak in await inspector.leaks(name)]
    assert leaks == []
    assert inspector.cells > 5 * (len(names) - 3)
    for name, row in ROWS.items():  # callers with the permission succeed
        place = row.place or name == "schedules"
        answer = await inspector.ask(name, None if row.scope is None else "place" if place else "right")
        assert answer.is_success or name in {"hook", "sign_in", "sign_in_callback"}, f"{name}: {answer.text}"


@only_memory
async def test_the_test_finds_a_call_without_a_check(inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted faults: no check of the scope, no check of the tenant, no check of an agent's own call."""
    with monkeypatch.context() as planted:
        planted.setattr(AuthorizedService, "need", lambda self, scope: None)
        planted.setattr(AuthorizedService, "need_any", lambda self, scopes: None)
        assert all(
            [
                await inspector._refused(name, f"without {row.scope}", 403, "forbidden")
                for name, row in ROWS.items()
                if row.scope in {READ, ADMIN} and not row.place
            ]
        )
    real = AuthorizedService.__init__

    def everybody(self: AuthorizedService, service: Any, caller: Any) -> None:
        real(self, service, caller._replace(tenant=None, scopes=ANYBODY.scopes))

    with monkeypatch.context() as planted:
        planted.setattr(AuthorizedService, "__init__", everybody)
        await restore(inspector._app, inspector._acme)
        for name, row in ROWS.items():
            if row.scope and not row.open:
                assert await inspector._strange(name, row, "stranger"), name

    async def anyone(self: AuthorizedService, task: Any) -> None: ...

    with monkeypatch.context() as planted:
        planted.setattr(AuthorizedService, "_check_own_call", anyone)
        for name in ("decide", "answer", "resolve", "raise_budget"):
            assert await inspector._refused(name, "agent", 403, "own_call"), name


async def test_a_key_with_only_submit_gets_the_answer_to_its_submit_and_fork(app: Onward) -> None:
    """A fork and a submit answer with the task that they made; the server does not refuse them after it made the task."""

    @app.task
    async def work(ctx: Any) -> None: ...

    token = (await app.keys.create("only", [SUBMIT])).token
    async with (
        serving(app) as address,
        Client(base_url=address, headers={"Authorization": f"Bearer {token}"}) as client,
    ):
        made = await client.post("/api/tasks", json={"task": "work"}, headers={"Prefer": "wait=20"})
        assert made.status_code == 202
        task_id = made.json()["task_id"]
        assert (await client.get(f"/api/tasks/{task_id}")).status_code == 403
        fork = await client.post(f"/api/tasks/{task_id}/fork", json={"at": 1})
        assert (fork.status_code, fork.json()["task_id"] != task_id) == (200, True)


async def test_a_caller_without_read_is_shown_nothing_by_its_actions(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, secret: str) -> str:
        return f"result of {secret}"

    @app.task
    async def waits(ctx: Any, secret: str) -> Any:
        return await ctx.signal("go")

    done = await app.submit("work", "what only readers know")
    token = (await app.keys.create("only", [SUBMIT])).token
    async with app.worker():
        await done.result(60)
    kept = await app.submit("waits", "what only readers know")
    async with (
        serving(app) as address,
        Client(base_url=address, headers={"Authorization": f"Bearer {token}"}) as client,
    ):
        for path, body in (
            (f"{done.id}/resume", None),
            (f"{done.id}/fork", {"at": 1}),
            (f"{kept.id}/signals/other", {"value": 1}),
            (f"{kept.id}/message", {"text": "hello"}),
            (f"{kept.id}/priority", {"priority": 1}),
            (f"{kept.id}/pause", None),
            (f"{kept.id}/resume", None),
            (f"{kept.id}/cancel", None),
        ):
            answer = await client.post(f"/api/tasks/{path}", json=body)
            assert answer.status_code == 200, (path, answer.text)
            assert "what only readers know" not in answer.text, path


async def test_a_key_is_created_listed_and_revoked_over_http(url: str, clock: HandClock) -> None:
    app = Onward(url, clock=clock)
    async with app, serving(app) as address, Client(base_url=address) as client:
        assert (await client.get("/api/tasks")).status_code == 200, "no keys yet"
        made = await client.post("/api/keys", json={"name": "ada", "scopes": list(SCOPES)})
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        key = made.json()
        mine = {"Authorization": f"Bearer {key.pop('token')}"}
        assert key.pop("webhook_secret") is None, "it is of no tenant"
        clock.jump(CACHE_TTL_S)
        shut = await client.get("/api/tasks")
        assert (shut.status_code, shut.headers["www-authenticate"]) == (401, 'Bearer realm="onward"')
        assert (await client.get("/healthz")).status_code == 200
        listed = (await client.get("/api/keys", headers=mine)).json()["keys"]
        assert [{**entry, "last_used_at": None} for entry in listed] == [key]
        entries = (await client.get("/api/audit", params={"limit": 1}, headers=mine)).json()
        assert [(entry["action"], entry["subject"]) for entry in entries["entries"]] == [("create_key", key["id"])]
        assert entries["next"] == 1
        gone = await client.post(f"/api/keys/{key['id']}/revoke", headers=mine)
        assert gone.json()["valid"] is False
        clock.jump(CACHE_TTL_S)
        assert (await client.get("/api/tasks", headers=mine)).status_code == 401


async def test_one_key_is_one_task_for_each_tenant(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    tokens = [(await app.keys.create(t, [READ, SUBMIT], tenant=t)).token for t in ("acme", "globex")]
    async with serving(app) as address, Client(base_url=address, timeout=60) as client:
        answers = await asyncio.gather(
            *(
                client.post(
                    "/api/tasks",
                    json={"task": "work", "input": 1},
                    headers={"Idempotency-Key": '"k-1"', "Authorization": f"Bearer {token}"},
                )
                for _ in range(50)
                for token in tokens
            )
        )
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["task_id"] for answer in answers}) == 2
        for token in tokens:
            mine = (await client.get("/api/tasks", headers={"Authorization": f"Bearer {token}"})).json()["tasks"]
            assert [task["key"] for task in mine] == ["k-1"]
