"""Every call over a real socket for everybody who may not: without a key, with one of another tenant, without the scope, one that
has expired or was revoked, or an agent's own. The calls are those of the server's own table: one without a row here fails.
"""

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
from onward.server.http import app as http
from tests.kit import HandClock, only_memory
from tests.server.conftest import serving
from tests.server.tenants import GHOST, Belongings, everything, subscribed_again, town

Client = httpx2.AsyncClient


@dataclasses.dataclass(frozen=True)
class Row:
    """How a call is made on what a tenant has. `{fixer}` and its like stand for the ids."""

    path: str
    scope: str | None
    """None for calls that are open; empty for those of whoever has a key."""
    body: Any = None
    lists: bool = False
    decides: bool = False
    place: bool = False
    open: bool = False
    """Whether it shows the same to all tenants."""
    counts: bool = False
    """Whether its answer is a number, which for a stranger is that of nothing."""


ROWS: dict[str, Row] = {
    "submit": Row("/api/tasks", SUBMIT, {"task": "quick", "input": {"goal": "on"}, "after": "{done}"}),
    "count": Row("/api/tasks/count?parent={asker}", READ, counts=True),
    "act": Row(
        "/api/tasks/actions",
        SUBMIT,
        {"action": "priority", "priority": -3, "filter": {"parent": "{asker}"}, "count": 5},
        counts=True,
    ),
    "list": Row("/api/tasks", READ, lists=True),
    "get": Row("/api/tasks/{fixer}", READ),
    "result": Row("/api/tasks/{done}/result", READ),
    "events": Row("/api/tasks/{fixer}/events", READ),
    "timeline": Row("/api/tasks/{fixer}/timeline", READ),
    "record": Row("/api/tasks/{fixer}/records/1", READ),
    "turns": Row("/api/tasks/{fixer}/turns", READ),
    "turn": Row("/api/tasks/{fixer}/turns/1", READ),
    "progress": Row("/api/progress?task_id={done}", READ),
    "children": Row("/api/tasks/{asker}/children", READ),
    "usage": Row("/api/usage?by=key", READ, lists=True, open=True),
    "system": Row("/api/system", ADMIN, place=True),
    "pause_schedule": Row("/api/schedules/nightly/pause", ADMIN, place=True),
    "unpause_schedule": Row("/api/schedules/nightly/unpause", ADMIN, place=True),
    "trigger": Row("/api/schedules/nightly/trigger", ADMIN, place=True),
    "drain_queue": Row("/api/queues/other/drain", ADMIN, place=True),
    "priority": Row("/api/tasks/{asker}/priority", SUBMIT, {"priority": -7}),
    "pause": Row("/api/tasks/{asker}/pause", SUBMIT),
    "resume": Row("/api/tasks/{asker}/resume", SUBMIT),
    "fork": Row("/api/tasks/{asker}/fork", SUBMIT, {"at": 1}),
    "signal": Row("/api/tasks/{asker}/signals/go", SUBMIT, {"value": 1}),
    "message": Row("/api/tasks/{fixer}/message", SUBMIT, {"text": "hurry"}),
    "queues": Row("/api/queues", READ, place=True),
    "workers": Row("/api/workers", READ, place=True),
    "stats": Row("/api/stats", READ, place=True),
    "pause_queue": Row("/api/queues/default/pause", ADMIN, place=True),
    "unpause_queue": Row("/api/queues/default/unpause", ADMIN, place=True),
    "approvals": Row("/api/approvals", READ, lists=True),
    "approval": Row("/api/approvals/{approval}", READ),
    "decide": Row("/api/approvals/{approval}", DECIDE, {"decision": "approve"}, decides=True),
    "questions": Row("/api/questions", READ, lists=True),
    "answer": Row("/api/questions/{question}", DECIDE, {"answer": "fast"}, decides=True),
    "doubts": Row("/api/tasks/{doubter}/doubts", READ),
    "resolve": Row("/api/tasks/{doubter}/resolve", DECIDE, {"verdict": "not_happened"}, decides=True),
    "budget": Row("/api/tasks/{fixer}/budget", READ),
    "raise_budget": Row("/api/tasks/{fixer}/budget", DECIDE, {"max_llm_tokens": 2_000_000}, decides=True),
    "state": Row("/api/tasks/{fixer}/state", READ),
    "artifacts": Row("/api/tasks/{asker}/artifacts", READ),
    "artifact": Row("/api/artifacts/{asker}.{artifact}", READ),
    "cancel": Row("/api/tasks/{asker}/cancel", SUBMIT),
    "schedules": Row("/api/schedules", READ, lists=True),
    "whoami": Row("/api/whoami", ""),
    "handlers": Row("/api/handlers", READ, lists=True, open=True),
    "healthz": Row("/healthz", None),
    "readyz": Row("/readyz", None),
    "metrics": Row("/metrics", ADMIN, place=True),
    "hook": Row("/api/hooks/none", None),
    "subscribe": Row(
        "/api/subscriptions", ADMIN, {"url": "https://hooks.example.com/", "types": ["*"], "tenant": "acme"}
    ),
    "subscriptions": Row("/api/subscriptions", ADMIN, lists=True),
    "deliveries": Row("/api/deliveries", ADMIN, lists=True),
    "redeliver": Row("/api/deliveries/{delivery}/redeliver", ADMIN),
    "unsubscribe": Row("/api/subscriptions/{subscription}", ADMIN),
    "keys": Row("/api/keys", ADMIN, lists=True),
    "create_key": Row("/api/keys", ADMIN, {"name": "more", "scopes": ["read"], "tenant": "acme"}),
    "revoke_key": Row("/api/keys/{key}/revoke", ADMIN),
    "quotas": Row("/api/quotas", READ, lists=True, open=True),
    "set_quota": Row("/api/quotas/acme", ADMIN, {"streams": 50}, place=True),
    "reset_quota": Row("/api/quotas/acme", ADMIN, place=True),
    "audit": Row("/api/audit", ADMIN, lists=True),
    "prune": Row("/api/tasks/{done}", ADMIN),
}
"""In an order in which each finds what it is for."""

CALLS = {call.name: call for call in http.ROUTES}


def test_every_call_of_the_server_has_a_row() -> None:
    assert set(ROWS) == set(CALLS), "say here which scope it needs, and how it is made"
    assert {name for name, row in ROWS.items() if row.scope is None} == {n for n, call in CALLS.items() if call.open}


def filled(value: Any, of: Belongings) -> Any:
    if isinstance(value, dict):
        return {name: filled(one, of) for name, one in value.items()}
    return value.format_map(dataclasses.asdict(of)) if isinstance(value, str) else value


class Inspector:
    """Makes calls in the name of all who may not."""

    def __init__(self, app: Onward, client: Client, acme: Belongings) -> None:
        self._app, self._client, self._acme = app, client, acme
        self._tokens: dict[str, str] = {}
        self.cells = 0

    async def prepare(self) -> None:
        """Keys of all kinds: one lacks each scope, one is of another tenant, one has ended …"""
        make = self._app.keys.create
        self._tokens = {f"without {one}": await self._made([s for s in SCOPES if s != one]) for one in SCOPES}
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

    async def ask(self, name: str, who: str | None, of: Belongings | None = None) -> httpx2.Response:
        row, call = ROWS[name], CALLS[name]
        headers = {} if who is None else {"Authorization": f"Bearer {self._tokens[who]}"}
        of = of or self._acme
        body = None if row.body is None else filled(row.body, of)
        return await self._client.request(call.method, filled(row.path, of), json=body, headers=headers)

    async def leaks(self, name: str) -> list[str]:
        row = ROWS[name]
        if row.scope is None:
            return []
        found, before = [], await everything(self._app)
        for who in (None, "unknown", "expired", "revoked"):
            found += await self._refused(name, who, 401, "unauthorized")
        if row.scope:
            found += await self._refused(name, f"without {row.scope}", 403, "forbidden")
        if row.decides:
            found += await self._refused(name, "agent", 403, "own_call")
        for who in ("stranger", "no tenant"):
            if row.scope and (who == "stranger" or not (row.place or row.scope == ADMIN)):
                found += await self._strange(name, row, who)
        after = await everything(self._app)
        return found + [f"{name}: wrote to {table}" for table in after if after[table] != before[table]]

    async def _refused(self, name: str, who: str | None, status: int, code: str) -> list[str]:
        self.cells += 1
        answer = await self.ask(name, who)
        said = answer.json() if answer.headers.get("content-type") == "application/problem+json" else {}
        wrong = (
            [] if (answer.status_code, said.get("code")) == (status, code) else [f"{name} {who}: {answer.text:.200}"]
        )
        wrong += [
            f"{name} {who}: shown {word}" for word in self._acme.names if word in answer.text and code != "own_call"
        ]
        return wrong

    async def _strange(self, name: str, row: Row, who: str) -> list[str]:
        """To the letter what there would be if there were nothing of the sort."""
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
    acme = (await town(app))["acme"]
    async with serving(app) as address, Client(base_url=address, timeout=60) as client:
        look = Inspector(app, client, acme)
        await look.prepare()
        yield look


@pytest.mark.slow
async def test_nobody_gets_what_is_not_for_them(
    inspector: Inspector, kind: str, prove: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)  # what has just ended may be pruned
    names = (
        list(ROWS) if prove or kind != "postgres" else list(ROWS)[::4]
    )  # the door is the same, whatever is behind it
    leaks = [leak for name in names for leak in await inspector.leaks(name)]
    assert leaks == []
    assert inspector.cells > 5 * (len(names) - 3)
    for name, row in ROWS.items():  # and who may, can
        place = row.place or name == "schedules"
        answer = await inspector.ask(name, None if row.scope is None else "place" if place else "right")
        assert answer.is_success or name == "hook", f"{name}: {answer.text}"


@only_memory
async def test_a_call_that_forgets_to_look_is_found(inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A door that does not ask for the scope, that lets everybody into everything, or decides for whoever comes."""
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
        await subscribed_again(inspector._app, inspector._acme)
        for name, row in ROWS.items():
            if row.scope and not row.open:
                assert await inspector._strange(name, row, "stranger"), name

    async def whoever(self: AuthorizedService, task: Any) -> None: ...

    with monkeypatch.context() as planted:
        planted.setattr(AuthorizedService, "_check_own_call", whoever)
        for name in ("decide", "answer", "resolve", "raise_budget"):
            assert await inspector._refused(name, "agent", 403, "own_call"), name


async def test_a_key_that_may_only_submit_has_not_half_done_anything(app: Onward) -> None:
    """A fork and a submit answer with what they made, and are not refused after they made it."""

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


async def test_whoever_may_not_look_is_shown_nothing_by_what_they_may_do(app: Onward) -> None:
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


async def test_keys_over_http_from_the_first_to_its_end(url: str, clock: HandClock) -> None:
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
        assert [{**one, "last_used_at": None} for one in listed] == [key]
        entries = (await client.get("/api/audit", params={"limit": 1}, headers=mine)).json()
        assert [(one["action"], one["subject"]) for one in entries["entries"]] == [("create_key", key["id"])]
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
