"""Sessions at a real server: which requests may use the cookie, how a session ends, and how records name its person."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from onward import Onward
from onward.core.caller import ROLES, SCOPES
from onward.core.identity import Identity
from onward.errors import NotFound
from onward.server.access import auth
from onward.server.access.session_auth import Cookie, SessionAuthenticator
from onward.server.live import pump
from onward.service.sessions import Sessions
from onward.store.port.core import Store
from tests.kit import HandClock, Through, Time, eventually
from tests.server.conftest import serving
from tests.server.people import CONSOLE, free_address, settings, signed_in

Client = httpx2.AsyncClient
PUBLIC = "https://onward.example.com"


@contextlib.asynccontextmanager
async def house(url: str, **more: Any) -> AsyncIterator[tuple[Onward, str, Client]]:
    """An app with a provider, its address and a client."""
    bound, address = free_address()
    app = Onward(
        url, **{**settings(address), "lease_s": 1.0, "heartbeat_s": 0.1, "poll_s": 0.05, "grace_s": 1.0, **more}
    )

    @app.task
    async def work(ctx: Any) -> str:
        return "done"

    @app.task
    async def asks(ctx: Any) -> Any:
        return await ctx.approve("go on?")

    async with app, serving(app, bound=bound), Client(base_url=address, timeout=60) as client:
        yield app, address, client


# ── the gate ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_with_a_provider_refuses_requests_without_credentials(url: str) -> None:
    async with house(url) as (_, _, client):
        refused = await client.get("/api/tasks")
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        assert refused.json()["sign_in"] == "id.example.com", "the console offers it"
        assert (await client.post("/mcp", json={})).status_code == 401
        assert (await client.get("/healthz")).status_code == 200


async def test_the_roles_of_a_person_give_their_scopes(url: str) -> None:
    async with house(url) as (app, _, client):
        for role, scopes in ROLES.items():
            mine = await signed_in(app, f"the {role}", [role])
            me = (await client.get("/api/whoami", headers=mine)).json()
            assert (me["person"], me["roles"], set(me["scopes"]), me["key"]) == (f"the {role}", [role], scopes, None)
            assert me["name"] == f"the {role}@example.com (the {role})"
            made = await client.post("/api/tasks", json={"task": "work"}, headers=mine)
            assert made.status_code == (202 if "submit" in scopes else 403), made.text
            listed = await client.get("/api/sessions", headers=mine)
            assert listed.status_code == (200 if "admin" in scopes else 403)
        refusal = await client.post(
            "/api/tasks", json={"task": "work"}, headers=await signed_in(app, "ada", ["viewer"])
        )
        assert "ada@example.com (ada) has no role with the scope 'submit'" in refusal.json()["detail"]
        mixed = await signed_in(app, "eve", ["viewer", "approver"])
        assert set((await client.get("/api/whoami", headers=mixed)).json()["scopes"]) == {"read", "decide"}


FOREIGN: dict[str, dict[str, str | None]] = {
    "without the header of the console": {"Onward-Console": None},
    "from another site": {"Sec-Fetch-Site": "cross-site"},
    "from a sister": {"Sec-Fetch-Site": "same-site"},
    "typed by a person": {"Sec-Fetch-Site": "none"},
    "of another origin": {"Origin": "https://evil.example"},
    "of an origin without a name": {"Origin": "null"},
    "of our host under another scheme": {"Origin": "https://{host}"},
}


async def test_the_cookie_is_ignored_in_a_request_of_a_foreign_page(url: str) -> None:
    calls = (("POST", "/api/tasks", {"task": "work"}), ("GET", "/api/tasks", None), ("POST", "/api/sign-out", None))
    async with house(url) as (app, address, client):
        ours = await signed_in(app, "ada", ["admin"])
        host = address.removeprefix("http://")
        for attack, changes in FOREIGN.items():
            theirs = {**ours, **{name: value and value.format(host=host) for name, value in changes.items()}}
            headers = {name: value for name, value in theirs.items() if value is not None}
            for method, path, body in calls:
                answer = await client.request(method, path, json=body, headers=headers)
                assert answer.status_code in {401, 403}, (attack, method, path, answer.text)
        same_site = {**ours, "Sec-Fetch-Site": "same-origin"}
        assert (await client.get("/api/tasks", headers=same_site)).json()["tasks"] == [], "no task was submitted"
        assert (await client.post("/api/tasks", json={"task": "work"}, headers=same_site)).status_code == 202


async def test_a_change_needs_the_origin_header_and_a_read_does_not(url: str) -> None:
    async with house(url) as (app, _, client):
        mine = await signed_in(app, "ada", ["admin"])
        del mine["Origin"]
        assert (await client.get("/api/tasks", headers=mine)).status_code == 200
        for method, path in (("POST", "/api/tasks"), ("DELETE", "/api/quotas/acme"), ("POST", "/api/sign-out")):
            assert (await client.request(method, path, headers=mine)).status_code == 401


async def test_a_key_in_the_header_goes_before_the_cookie(url: str) -> None:
    async with house(url) as (app, _, client):
        token = (await app.keys.create("reader", ["read"])).token
        both = {**await signed_in(app, "ada", ["admin"]), "Authorization": f"Bearer {token}"}
        assert (await client.get("/api/whoami", headers=both)).json()["name"] == "reader"
        wrong = {**both, "Authorization": "Bearer onw_wrong"}
        assert (await client.get("/api/whoami", headers=wrong)).status_code == 401
        alone = {"Authorization": f"Bearer {token}"}
        assert (await client.get("/api/whoami", headers=alone)).status_code == 200, "keys need no header of the console"


async def test_responses_to_a_person_are_not_cached(url: str) -> None:
    async with house(url) as (app, _, client):
        mine = await signed_in(app, "ada", ["viewer"])
        for path in ("/api/tasks", "/api/whoami", "/api/keys", "/api/tasks/nothing"):
            assert (await client.get(path, headers=mine)).headers["cache-control"] == "no-store", path
        task = await app.submit("asks")
        async with client.stream("GET", f"/api/progress?task_id={task.id}", headers=mine) as followed:
            assert "no-" in followed.headers["cache-control"]


async def test_mcp_and_wrong_tokens_take_no_cookie(url: str) -> None:
    async with house(url) as (app, _, client):
        mine = await signed_in(app, "ada", ["admin"])
        assert (await client.post("/mcp", json={}, headers=mine)).status_code == 401
        for value in ("", "x" * 43, "%00", mine["Cookie"].partition("=")[2][:-1], "x" * 5000):
            answer = await client.get("/api/tasks", headers={**mine, "Cookie": f"onward={value}"})
            assert answer.status_code == 401


async def test_a_socket_by_cookie_needs_the_origin_of_the_server(url: str) -> None:
    async with house(url) as (app, address, _):
        mine = await signed_in(app, "ada", ["viewer"])
        task = await app.submit("asks")
        where = f"ws{address.removeprefix('http')}/api/tasks/{task.id}/ws"
        cookie = {"Cookie": mine["Cookie"]}
        async with connect(where, additional_headers={**cookie, "Origin": address}, max_size=None) as socket:
            assert await asyncio.wait_for(socket.recv(), 30)
            await socket.send('{"type": "cancel"}')
            while '"update"' in (answer := str(await asyncio.wait_for(socket.recv(), 30))):
                pass
            assert '"forbidden"' in answer, "a viewer cancels nothing"
        async with connect(where, additional_headers={**cookie, "Origin": address.replace("http", "https")}) as socket:
            await socket.send('{"type": "cancel"}')  # it waits for a key, and the cookie is none
            with pytest.raises(ConnectionClosed):
                while '"unauthorized"' in str(await asyncio.wait_for(socket.recv(), 30)):
                    pass
        for origin in (None, "https://evil.example", "null"):
            more = {} if origin is None else {"Origin": origin}
            with pytest.raises(InvalidStatus) as refused:
                async with connect(where, additional_headers={**cookie, **more}):
                    pass
            assert refused.value.response.status_code == 403


# ── the end of a session ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_sign_out_ends_the_session_at_once_and_in_the_browser(url: str) -> None:
    async with house(url) as (app, _, client):
        mine, other = await signed_in(app, "ada", ["viewer"]), await signed_in(app, "ada", ["viewer"])
        assert (await client.get("/api/tasks", headers=mine)).status_code == 200
        out = await client.post("/api/sign-out", headers=mine)
        assert out.status_code == 204
        assert out.headers["set-cookie"].startswith('onward=""; HttpOnly; Max-Age=0; Path=/; SameSite=lax')
        assert (await client.get("/api/tasks", headers=mine)).status_code == 401
        assert (await client.get("/api/tasks", headers=other)).status_code == 200, "another browser of the same person"
        entries = (await app.audit())[-1:]
        assert [(entry.action, entry.key, entry.name) for entry in entries] == [
            ("sign_out", "person:ada", "ada@example.com (ada)")
        ]
        key = (await app.keys.create("reader", ["read"])).token
        assert (await client.post("/api/sign-out", headers={"Authorization": f"Bearer {key}"})).status_code == 204


async def test_an_admin_lists_and_ends_sessions_of_their_tenant(url: str) -> None:
    async with house(url) as (app, _, client):
        admin = await signed_in(app, "root", ["admin"])
        acme = await signed_in(app, "acme's", ["admin"], "acme")
        ada, bob = await signed_in(app, "ada", ["viewer"], "acme"), await signed_in(app, "bob", ["viewer"], "globex")
        listed = {
            session["person"]: session
            for session in (await client.get("/api/sessions", headers=admin)).json()["sessions"]
        }
        assert set(listed) == {"root", "acme's", "ada", "bob"}
        assert set(listed["ada"]) == {
            "id",
            "person",
            "name",
            "roles",
            "tenant",
            "created_at",
            "last_used_at",
            "until",
            "expires_at",
        }
        seen = (await client.get("/api/sessions", headers=acme)).json()["sessions"]
        assert {session["person"] for session in seen} == {"acme's", "ada"}
        foreign = await client.post(f"/api/sessions/{listed['bob']['id']}/revoke", headers=acme)
        assert foreign.status_code == 404
        assert (await client.get("/api/tasks", headers=bob)).status_code == 200
        assert (await client.post(f"/api/sessions/{listed['ada']['id']}/revoke", headers=acme)).status_code == 200
        with pytest.raises(NotFound):
            await app.service.sessions.revoke(listed["ada"]["id"])
        last = (await app.audit())[-1]
        assert (last.action, last.subject, last.tenant, last.key) == (
            "revoke_session",
            listed["ada"]["id"],
            "acme",
            "person:acme's",
        )

        async def refused() -> bool:
            return (await client.get("/api/tasks", headers=ada)).status_code == 401

        await eventually(refused, 10)


async def test_open_streams_end_with_the_session(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "CACHE_TTL_S", 0.1)
    monkeypatch.setattr(pump.PACE, "check", 0.05)
    async with house(url) as (app, address, client):
        mine = await signed_in(app, "ada", ["viewer"])
        (session,) = await app.service.sessions.list()
        task = await app.submit("asks")
        where = f"ws{address.removeprefix('http')}/api/tasks/{task.id}/ws"
        headers = {"Cookie": mine["Cookie"], "Origin": address}
        async with (
            client.stream("GET", f"/api/progress?task_id={task.id}", headers=mine) as followed,
            connect(where, additional_headers=headers) as socket,
        ):
            assert followed.status_code == 200
            await app.service.sessions.revoke(session.id)
            async for _ in followed.aiter_lines():
                pass
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await asyncio.wait_for(socket.recv(), 30)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.reason == "the key or the session is no longer valid"


@pytest.fixture
def statements() -> list[str]:
    return []


@pytest.fixture
def gate(store: Store, statements: list[str], clock: HandClock) -> SessionAuthenticator:
    def counted(name: str, call: Any) -> Any:
        async def counting(*args: Any) -> Any:
            result = await call(*args)
            statements.append(name)
            return result

        return counting

    verbs = {
        f"sessions.{name}": counted(name, getattr(store.sessions, name)) for name in ("by_hash", "get", "mark_used")
    }
    return SessionAuthenticator(Sessions(Through(store, **verbs)), clock, Cookie("onward", PUBLIC))


ADA = Identity("ada", "ada@example.com", frozenset({"viewer"}), None)


async def admitted(gate: SessionAuthenticator, token: str) -> bool:
    try:
        await gate.caller(token)
    except auth.Unauthorized:
        return False
    return True


async def test_a_session_ends_when_it_is_idle_and_when_its_day_is_over(
    store: Store, gate: SessionAuthenticator, time: Time, statements: list[str]
) -> None:
    used = (await Sessions(store).begin(ADA, idle_s=600, max_s=3600)).token
    idle = (await Sessions(store).begin(ADA, idle_s=600, max_s=3600)).token

    async def use(times: int) -> None:
        """Use it, and wait until the store knows."""

        async def noted() -> bool:
            return statements.count("mark_used") == times

        assert await admitted(gate, used)
        await eventually(noted, 10)

    for times in range(6):
        await use(times)
        time.move(599)
    assert not await admitted(gate, idle)
    await use(6)
    time.move(10)
    assert not await admitted(gate, used), "it was used 10 s ago, and its day is over"


async def test_requests_cost_few_queries_and_streams_do_not_count_as_use(
    store: Store, gate: SessionAuthenticator, time: Time, statements: list[str]
) -> None:
    token = (await Sessions(store).begin(ADA, idle_s=600, max_s=3600)).token
    for _ in range(50):
        caller = await gate.caller(token)
        assert await gate.still_valid(caller)
    assert statements == ["by_hash"]
    time.move(auth.CACHE_TTL_S)
    for _ in range(50):
        assert await gate.still_valid(caller)
    assert statements == ["by_hash", "get"]
    time.move(61)
    await gate.caller(token)

    async def noted() -> bool:
        return "mark_used" in statements

    await eventually(noted, 10)
    for _ in range(61):
        time.move(10)
        still = await gate.still_valid(caller)
    assert not still, "an open stream does not keep it"
    assert statements.count("mark_used") == 1


async def test_the_cookie_of_an_https_server_is_bound_to_its_host() -> None:
    from starlette.responses import Response

    response = Response()
    Cookie("onward", PUBLIC).set(response, "t", 60)
    assert response.headers["set-cookie"] == "__Host-onward=t; HttpOnly; Max-Age=60; Path=/; SameSite=lax; Secure"


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_decision_names_the_person_in_the_journal_and_in_the_audit(url: str) -> None:
    async with house(url) as (app, _, client):
        mine = await signed_in(app, "a-1", ["approver"])
        task = await app.submit("asks")
        async with app.worker():

            async def open_ask() -> Any:
                return (await client.get("/api/approvals", headers=mine)).json()["approvals"]

            (approval,) = await eventually(open_ask, 30)
            decided = await client.post(f"/api/approvals/{approval['id']}", json={"decision": "approve"}, headers=mine)
            assert decided.status_code == 200, decided.text
            await task.result(30)
        last = (await app.audit())[-1]
        assert (last.action, last.key, last.name) == ("approve", "person:a-1", "a-1@example.com (a-1)")
        records = [
            record.data for record in await app.store.journal(task.id) if b"a-1@example.com (a-1)" in record.data
        ]
        assert records, "the journal has the name too"


async def test_a_task_and_the_usage_know_the_person_who_submitted_it(url: str) -> None:
    async with house(url) as (app, _, client):
        mine = await signed_in(app, "a-1", ["operator"], "acme")
        made = (await client.post("/api/tasks", json={"task": "work"}, headers=mine)).json()
        task = await app.get(made["task_id"])
        assert (task.by, task.tenant) == ("person:a-1", "acme")


async def test_the_quotas_of_a_tenant_hold_for_its_people(url: str) -> None:
    async with house(url, quota_key_requests=2) as (app, _, client):
        mine, other = await signed_in(app, "ada", ["viewer"], "acme"), await signed_in(app, "bob", ["viewer"], "acme")
        again = await signed_in(app, "ada", ["viewer"], "acme")
        answers = [await client.get("/api/tasks", headers=headers) for headers in (mine, again) * 5]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused, "two sessions of one person are one caller"
        assert "the person 'ada@example.com (ada)'" in refused[0].json()["detail"]
        assert (await client.get("/api/tasks", headers=other)).status_code == 200


def test_the_server_expects_the_header_that_the_console_sends() -> None:
    from pathlib import Path

    import onward

    text = (Path(onward.__file__).parent / "console" / "api.js").read_text(encoding="utf-8")
    assert all(f'"{name}"' in text for name in CONSOLE)
    assert SCOPES
