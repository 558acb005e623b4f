"""Two tenants, one of them hostile: its load on a server, a queue and the audit log does not affect the other."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from onward import Onward
from onward.core.caller import SCOPES, Caller
from onward.errors import BadSetting, PriorityTooHigh, QueueFull, QuotaExceeded, StepFailed, UsageError
from onward.server.access.service import AuthorizedService
from onward.server.http import bodies
from onward.server.http.state import ServerState
from onward.service import process_use
from onward.service.process_use import ALONE_AFTER_S, BUSIEST_TURNS, TURNS, ProcessUse
from onward.service.submission import SubmitRequest
from tests.kit import HandClock, calm, claim, eventually, join, not_memory, only_memory, only_postgres
from tests.server.conftest import serving
from tests.server.sse import served
from tests.server.test_hooks import declare as declare_hook
from tests.server.test_hooks import signed

Client = httpx2.AsyncClient
HOSTILE, OTHER = "evil", "good"


@pytest.fixture(autouse=True)
def work(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, n: int = 0) -> int:
        return n

    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")


def caller(app: Onward, tenant: str | None, key: str = "") -> AuthorizedService:
    return AuthorizedService(
        app.service, Caller(tenant, frozenset(SCOPES), key or f"key-{tenant}", f"somebody of {tenant}")
    )


async def quotas(app: Onward, tenant: str = HOSTILE, **values: int) -> None:
    await app.service.tenant_quotas.set(tenant, values)


def still(app: Onward) -> HandClock:
    """Stops the clock of the rate limits of this process."""
    clock = HandClock()
    app.service.tenant_quotas.process._clock = clock
    return clock


class Door:
    """A server, and clients of it by tenant."""

    def __init__(self, app: Onward, base: str, state: ServerState) -> None:
        self.app, self.base, self.state = app, base, state
        self._stack = contextlib.AsyncExitStack()

    async def client(self, tenant: str | None, name: str = "") -> Client:
        token = (await self.app.keys.create(name or f"of {tenant}", list(SCOPES), tenant=tenant)).token
        headers = {"Authorization": f"Bearer {token}"}
        limits = httpx2.Limits(max_connections=None)
        return await self._stack.enter_async_context(
            Client(base_url=self.base, headers=headers, timeout=60, limits=limits)
        )

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def door(app: Onward) -> AsyncIterator[Door]:
    async with served(app) as (client, state, _):
        door = Door(app, str(client.base_url), state)
        yield door
        await door.close()


def use(document: dict[str, Any], name: str) -> int:
    return int(next(quota["used"] for quota in document["quotas"] if quota["name"] == name))


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_requests_over_the_quota_are_refused_and_others_are_not(app: Onward, door: Door) -> None:
    evil, good = await door.client(HOSTILE), await door.client(OTHER)
    await quotas(app, requests=3, key_requests=0)
    clock = still(app)
    answers = [await evil.get("/api/tasks") for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 6 + [429]
    refused = answers[-1]
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["code"] == "quota_exceeded"
    assert refused.json()["quota"] == "requests"
    assert refused.json()["retryable"] is True
    assert answers[0].headers["RateLimit-Policy"] == refused.headers["RateLimit-Policy"] == '"tenant";q=6;w=2'
    assert answers[0].headers["RateLimit"] == '"tenant";r=5;t=1'
    assert refused.headers["RateLimit"] == '"tenant";r=0;t=2'
    assert (await good.get("/api/tasks")).status_code == 200
    clock.jump(1.0)
    assert [(await evil.get("/api/tasks")).status_code for _ in range(4)] == [200] * 3 + [429]


@only_memory
async def test_one_key_of_a_tenant_leaves_requests_to_its_other_keys(app: Onward, door: Door) -> None:
    one, two = await door.client(HOSTILE, "one"), await door.client(HOSTILE, "two")
    await quotas(app, requests=3, key_requests=1)
    still(app)
    statuses = [(await one.get("/api/tasks")).status_code for _ in range(5)]
    assert statuses == [200, 200, 429, 429, 429]
    answer = await two.get("/api/tasks")
    assert answer.status_code == 200, "requests refused to one key do not count for the tenant"
    assert answer.headers["RateLimit-Policy"] == '"tenant";q=6;w=2, "key";q=2;w=2'
    assert answer.headers["RateLimit"] == '"tenant";r=3;t=1, "key";r=1;t=1'


@only_memory
async def test_callers_without_a_tenant_have_no_quota(app: Onward, door: Door) -> None:
    admin = await door.client(None)
    still(app)
    answers = [await admin.get("/api/tasks") for _ in range(30)]
    assert {answer.status_code for answer in answers} == {200}
    assert "RateLimit" not in answers[0].headers


@only_memory
async def test_a_refused_request_is_not_read(app: Onward, door: Door) -> None:
    evil = await door.client(HOSTILE)
    await quotas(app, requests=1)
    still(app)
    for _ in range(2):
        assert (await evil.post("/api/tasks", json={"task": "work"})).status_code == 202
    assert (await evil.post("/api/tasks", content=b"{" * 1000)).status_code == 429
    tasks, _ = await app.list()
    assert len(tasks) == 2


@only_memory
async def test_a_large_body_counts_as_several_requests(app: Onward, door: Door) -> None:
    evil = await door.client(HOSTILE)
    await quotas(app, requests=10, key_requests=0)
    still(app)
    statuses = [
        (await evil.post("/api/tasks", json={"task": "waits", "labels": {"n": "x" * 150_000}})).status_code
        for _ in range(4)
    ]
    assert statuses == [202, 202, 429, 429]


async def test_slow_bodies_of_one_tenant_leave_room_for_those_of_others() -> None:
    limiter, part = bodies.BodyLimiter(4000, 4000), {"type": "http.request", "body": b"x" * 300, "more_body": True}

    def begun(tenant: str | None) -> asyncio.Task[bytes]:
        messages: asyncio.Queue[Any] = asyncio.Queue()
        for message in (part, part):
            messages.put_nowait(message)
        return asyncio.ensure_future(limiter._read_all(messages.get, 1000, tenant))

    slow = [begun(HOSTILE) for _ in range(5)]
    others = [begun(tenant) for tenant in (OTHER, "another", None)]
    await calm()
    assert [body.done() for body in slow].count(False) == 1, "600 of 1000 bytes: one body waits for its end"
    assert {body.exception().status for body in slow if body.done()} == {429}  # type: ignore[union-attr]
    assert not any(body.done() for body in others)
    for body in (*slow, *others):
        body.cancel()
    await calm()
    assert limiter._arriving == 4000
    assert not limiter._by_tenant


@only_memory
async def test_refusals_to_a_client_in_a_loop_are_delayed(app: Onward, door: Door) -> None:
    evil = await door.client(HOSTILE)
    await quotas(app, requests=1)
    clock, process = still(app), app.service.tenant_quotas.process
    assert [process.pause_s(HOSTILE) for _ in range(22)] == [0.0] * 20 + [1.0] * 2
    assert process.pause_s(OTHER) == 0.0
    for _ in range(2):
        await evil.get("/api/tasks")
    answering = asyncio.ensure_future(evil.get("/api/tasks"))

    async def held() -> bool:
        return door.state._held_refusals == 1

    await eventually(held)
    assert (await answering).status_code == 429
    clock.jump(1.0)
    assert process.pause_s(HOSTILE) == 0.0


@only_memory
async def test_messages_of_sockets_count_as_requests(app: Onward, door: Door) -> None:
    evil = await door.client(HOSTILE)
    (task_id,) = await caller(app, HOSTILE).submit([SubmitRequest("waits")])
    await quotas(app, requests=1)
    still(app)
    address = f"{door.base}/api/tasks/{task_id}/ws".replace("http:", "ws:")
    headers = {"Authorization": evil.headers["Authorization"]}
    async with connect(address, additional_headers=headers) as socket:
        replies = []
        for _ in range(2):
            await socket.send(json.dumps({"type": "signal", "name": "x"}))
            while (reply := json.loads(await asyncio.wait_for(socket.recv(), 60)))["type"] not in {"ack", "error"}:
                pass
            replies.append(reply)
        assert [reply["type"] for reply in replies] == ["ack", "error"]
        assert (replies[1]["code"], replies[1]["status"]) == ("quota_exceeded", 429)
        with pytest.raises(InvalidStatus) as refused:
            await connect(address, additional_headers=headers)
        assert refused.value.response.status_code == 429
        assert "Retry-After" in refused.value.response.headers


BEGIN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@only_memory
async def test_mcp_requests_count_as_requests(app: Onward, door: Door) -> None:
    evil, good = await door.client(HOSTILE), await door.client(OTHER)
    await quotas(app, requests=1)
    still(app)
    answers = [await evil.post("/mcp", json=BEGIN, headers=ACCEPT) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["RateLimit"] == '"tenant";r=1;t=1, "key";r=199;t=1'
    assert "Retry-After" in answers[2].headers
    assert "RateLimit-Policy" in answers[2].headers
    assert (await good.post("/mcp", json=BEGIN, headers=ACCEPT)).status_code == 200


@only_memory
async def test_mcp_sessions_over_the_quota_are_refused(app: Onward, door: Door) -> None:
    evil, good = await door.client(HOSTILE), await door.client(OTHER)
    await quotas(app, sessions=2)
    answers = [await evil.post("/mcp", json=BEGIN, headers=ACCEPT) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["quota"] == "sessions"
    (shown,) = (await evil.get("/api/quotas")).json()["tenants"]
    assert use(shown, "sessions") == 2
    assert (await good.post("/mcp", json=BEGIN, headers=ACCEPT)).status_code == 200
    ended = {"mcp-session-id": answers[0].headers["mcp-session-id"], **ACCEPT}
    assert (await evil.delete("/mcp", headers=ended)).status_code == 200
    assert (await evil.post("/mcp", json=BEGIN, headers=ACCEPT)).status_code == 200, "a session that ended makes room"


@only_memory
async def test_signed_requests_to_one_hook_have_a_quota(app: Onward, door: Door) -> None:
    declare_hook(app, "github")
    still(app)
    app.service.tenant_quotas._defaults = app.service.tenant_quotas._defaults.with_values({"requests": 1})
    async with Client(base_url=door.base, timeout=60) as outside:
        for _ in range(3):
            bad = await outside.post("/api/hooks/outside", content=b"{}", headers=signed("github", b"[]"))
            assert bad.status_code == 401, "a sender without the secret does not use up the quota"
        statuses = []
        for number in range(3):
            body = json.dumps({"what": "web", "id": f"m{number}"}).encode()
            headers = {**signed("github", body, sent=f"m{number}"), "Content-Type": "application/json"}
            statuses.append((await outside.post("/api/hooks/outside", content=body, headers=headers)).status_code)
    assert statuses == [200, 200, 429]


async def test_calls_of_one_tenant_wait_for_each_other_at_the_database_and_not_for_others() -> None:
    process = ProcessUse(HandClock())
    evil, good = Caller(HOSTILE), Caller(OTHER)
    gate, inside = asyncio.Event(), list[Caller]()

    async def call(who: Caller) -> None:
        async with process.turn(who):
            inside.append(who)
            await gate.wait()

    calls = [asyncio.ensure_future(call(who)) for who in (*[evil] * 10, good, Caller())]
    await calm()
    assert [inside.count(who) for who in (evil, good, Caller())] == [TURNS, 1, 1]
    calls[TURNS].cancel()  # while it waits for a turn
    await calm()
    gate.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert inside.count(evil) == 9
    assert not process._turns
    assert not process._waiting


@pytest.mark.parametrize("early", [True, False])
async def test_the_turn_of_a_cancelled_call_goes_to_the_next(early: bool) -> None:
    process, evil, gate = ProcessUse(HandClock()), Caller(HOSTILE), asyncio.Event()

    async def call(wait: bool) -> None:
        async with process.turn(evil):
            if wait:
                await gate.wait()

    calls = [asyncio.ensure_future(call(number < TURNS)) for number in range(TURNS + 2)]
    await calm()
    if early:
        calls[TURNS].cancel()
    gate.set()
    await asyncio.sleep(0)  # the turns are handed on
    calls[TURNS].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert calls[TURNS + 1].done()
    assert not process._turns
    assert not process._waiting


async def test_the_busiest_tenant_has_one_turn_while_others_are_there_and_all_turns_alone() -> None:
    clock = HandClock()
    process, evil, good = ProcessUse(clock), Caller(HOSTILE), Caller(OTHER)
    gate, inside = asyncio.Event(), list[Caller]()

    async def call(who: Caller) -> None:
        async with process.request_turn(who):
            inside.append(who)
            await gate.wait()

    async def at_once() -> int:
        gate.clear()
        inside.clear()
        calls = [asyncio.ensure_future(call(evil)) for _ in range(6)]
        await calm()
        count = len(inside)
        gate.set()
        await asyncio.gather(*calls)
        await eventually(idle)
        return count

    async def idle() -> bool:
        return not process._turns

    process._add_use(HOSTILE, 10.0)
    assert await at_once() == TURNS, "no other tenant is there"
    async with process.request_turn(good):
        pass
    assert await at_once() == BUSIEST_TURNS
    process._add_use(OTHER, 30.0)
    assert await at_once() == TURNS, "the other one is busier"
    clock.jump(ALONE_AFTER_S + 1)
    assert await at_once() == TURNS
    assert not process._waiting


async def test_a_turn_of_the_busiest_tenant_rests_after_each_call() -> None:
    process, evil, good = ProcessUse(HandClock()), Caller(HOSTILE), Caller(OTHER)
    async with process.stream_turn(good):
        pass
    process._add_use(HOSTILE, 10.0)
    async with process.stream_turn(evil):
        await asyncio.sleep(0.02)
    assert process._turns, "it rests"
    next_one = asyncio.ensure_future(process.stream_turn(evil).__aenter__())
    await calm()
    assert not next_one.done()
    await asyncio.wait_for(next_one, 60)


async def test_a_request_that_waits_for_long_hands_its_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_use, "MAX_TURN_S", 0.01)
    process, gate, begun = ProcessUse(HandClock()), asyncio.Event(), list[int]()

    async def call(number: int) -> None:
        async with process.request_turn(Caller(HOSTILE)):
            begun.append(number)
            await gate.wait()

    calls = [asyncio.ensure_future(call(number)) for number in range(3 * TURNS)]

    async def all_begun() -> bool:
        return len(begun) == 3 * TURNS

    await eventually(all_begun)
    gate.set()
    await asyncio.gather(*calls)
    assert not process._turns


@only_memory
async def test_responses_of_one_tenant_that_take_memory_wait_for_each_other(app: Onward, door: Door) -> None:
    evil, good = await door.client(HOSTILE), await door.client(OTHER)
    process = app.service.tenant_quotas.process
    async with contextlib.AsyncExitStack() as held:
        for _ in range(TURNS):
            await held.enter_async_context(process.loading_turn(Caller(HOSTILE)))
        waiting = asyncio.ensure_future(evil.get("/api/tasks"))

        async def in_line() -> bool:
            return ("loading", HOSTILE) in process._waiting

        await eventually(in_line)
        assert (await good.get("/api/tasks")).status_code == 200
        assert not waiting.done()
    assert (await waiting).status_code == 200


@only_memory
async def test_a_large_response_counts_as_several_requests(app: Onward, door: Door) -> None:
    evil = await door.client(HOSTILE)
    await caller(app, HOSTILE).submit([SubmitRequest("waits", labels={"n": "x" * 1000}) for _ in range(300)])
    await quotas(app, requests=10, key_requests=0)
    still(app)
    answers = [await evil.get("/api/tasks?limit=300") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert len(answers[0].json()["tasks"]) == 300


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_streams_of_all_kinds_share_the_quota_of_their_tenant(app: Onward, door: Door) -> None:
    evil, good = await door.client(HOSTILE), await door.client(OTHER)
    (task_id,) = await caller(app, HOSTILE).submit([SubmitRequest("waits")])
    await quotas(app, streams=2)
    sse = {"Accept": "text/event-stream"}
    address = f"{door.base}/api/tasks/{task_id}/ws".replace("http:", "ws:")
    headers = {"Authorization": evil.headers["Authorization"]}

    async def refused() -> list[int]:
        statuses = [
            (await evil.get(f"/api/tasks/{task_id}/events", headers=sse)).status_code,
            (await evil.get("/api/progress", params={"all": "true"})).status_code,
            (await evil.get(f"/api/tasks/{task_id}/result", params={"timeout_s": 9})).status_code,
            (await evil.get(f"/api/tasks/{task_id}", headers={"Prefer": "wait=9"})).status_code,
            (await evil.get("/mcp", headers=ACCEPT)).status_code,
        ]
        with pytest.raises(InvalidStatus) as answer:
            await connect(address, additional_headers=headers)
        return [*statuses, answer.value.response.status_code]

    async with (
        evil.stream("GET", f"/api/tasks/{task_id}/events", headers=sse) as stream,
        connect(address, additional_headers=headers),
    ):
        assert stream.status_code == 200
        assert await refused() == [429] * 6
        submitted = await evil.post("/api/tasks", json={"task": "work"}, headers={"Prefer": "wait=9"})
        assert submitted.status_code == 202, "it is submitted, and not waited for"
        (shown,) = (await evil.get("/api/quotas")).json()["tenants"]
        assert use(shown, "streams") == 2
        (theirs,) = await caller(app, OTHER).submit([SubmitRequest("waits")])
        async with good.stream("GET", f"/api/tasks/{theirs}/events", headers=sse) as other:
            assert other.status_code == 200

    async def free() -> bool:
        return app.service.tenant_quotas.process.streams(HOSTILE) == 0

    await eventually(free)
    async with evil.stream("GET", f"/api/tasks/{task_id}/events", headers=sse) as stream:
        assert stream.status_code == 200


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_a_tenant_fills_its_share_of_a_queue_and_no_more(url: str) -> None:
    app = Onward(url, queue_limit=20, quota_queue_share=50)

    @app.task
    async def work(ctx: Any, n: int = 0) -> int:
        return n

    async with app:
        evil, good = caller(app, HOSTILE), caller(app, OTHER)
        for _ in range(10):
            await evil.submit([SubmitRequest("work")])
        with pytest.raises(QuotaExceeded) as refused:
            await evil.submit([SubmitRequest("work")])
        assert (refused.value.quota, refused.value.limit) == ("queue_share", 10)
        assert refused.value.retry_after > 0
        await good.submit([SubmitRequest("work", n) for n in range(9)])
        with pytest.raises(QueueFull):
            await caller(app, None).submit([SubmitRequest("work", n) for n in range(2)])


@not_memory
async def test_many_queues_do_not_get_around_the_quota_of_tasks(app: Onward) -> None:
    await quotas(app, tasks=5)
    evil, good = caller(app, HOSTILE), caller(app, OTHER)
    await evil.submit([SubmitRequest("work", queue=f"q{n}", delay="1h" if n % 2 else None) for n in range(4)])
    (first,) = await evil.submit([SubmitRequest("work", key="again")])
    with pytest.raises(QuotaExceeded) as refused:
        await evil.submit([SubmitRequest("work", queue="one-more")])
    assert refused.value.quota == "tasks"
    assert await evil.submit([SubmitRequest("work", key="again")]) == [first], "submitted before, and none is added"
    with pytest.raises(QuotaExceeded):
        await evil.fork(first, 1)
    await good.submit([SubmitRequest("work")])
    await evil.cancel(first)

    async def room() -> bool:
        with contextlib.suppress(QuotaExceeded):
            return bool(await evil.submit([SubmitRequest("work")]))
        return False

    await eventually(room)


@not_memory
async def test_a_tenant_uses_few_queues(app: Onward) -> None:
    await quotas(app, queues=3)
    evil, good = caller(app, HOSTILE), caller(app, OTHER)
    await evil.submit([SubmitRequest("work", queue=f"q{n}") for n in range(3)])
    with pytest.raises(QuotaExceeded, match="submit to a queue that has tasks of this tenant already") as refused:
        await evil.submit([SubmitRequest("work", queue="q3")])
    assert refused.value.quota == "queues"
    await evil.submit([SubmitRequest("work", queue="q0")])
    await good.submit([SubmitRequest("work", queue="q3")])


# ── keys, subscriptions, messages ────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_a_tenant_has_a_bounded_number_of_valid_keys(app: Onward) -> None:
    await quotas(app, keys=2)
    evil, good = caller(app, HOSTILE), caller(app, OTHER)
    first, _ = [await evil.create_key(f"key {n}", ["read"]) for n in range(2)]
    with pytest.raises(QuotaExceeded, match="revoke a key") as refused:
        await evil.create_key("one more", ["read"])
    assert refused.value.quota == "keys"
    await good.create_key("mine", ["read"])
    await evil.revoke_key(first.key.id)
    await evil.create_key("one more", ["read"])
    await caller(app, None).create_key("of the operator", ["read"], tenant=HOSTILE)


@not_memory
async def test_a_tenant_has_a_bounded_number_of_subscriptions(url: str) -> None:
    async with Onward(url, webhook_secret=f"whsec_{base64.b64encode(bytes(32)).decode()}") as app:
        await quotas(app, subscriptions=2)
        evil, good = caller(app, HOSTILE), caller(app, OTHER)
        address = "https://example.com/hook"
        first, _ = [await evil.subscribe(address, ["task.completed"]) for _ in range(2)]
        with pytest.raises(QuotaExceeded, match="remove one") as refused:
            await evil.subscribe(address, ["task.completed"])
        assert refused.value.quota == "subscriptions"
        await good.subscribe(address, ["task.completed"])
        await evil.unsubscribe(first.id)
        await evil.subscribe(address, ["task.completed"])


@not_memory
async def test_a_task_of_a_tenant_gets_a_bounded_number_of_messages(app: Onward) -> None:
    await quotas(app, messages=3)
    evil, good = caller(app, HOSTILE), caller(app, OTHER)
    (task_id,) = await evil.submit([SubmitRequest("waits")])
    (theirs,) = await good.submit([SubmitRequest("waits")])
    for number in range(3):
        await evil.signal(task_id, "x", number)
    for refused in (evil.signal(task_id, "x"), evil.message(task_id, "hello")):
        with pytest.raises(QuotaExceeded, match="messages to one task"):
            await refused
    for number in range(4):
        await good.signal(theirs, "x", number)
    assert len(await app.store.inbox(task_id)) == 3


@not_memory
async def test_forks_and_resumed_tasks_count_as_tasks(app: Onward) -> None:
    good = caller(app, OTHER)

    @app.task(retry=1)
    async def fails(ctx: Any) -> None:
        raise ValueError("no")

    (task_id,) = await good.submit([SubmitRequest("fails")])
    async with app.worker():
        await app.service.wait(task_id, 60)
    (before,) = await app.service.tenant_quotas.list(OTHER)
    await good.resume(task_id)
    await good.fork(task_id, 1)
    (after,) = await app.service.tenant_quotas.list(OTHER)
    assert [next(q.used for q in tenant.quotas if q.name == "tasks") for tenant in (before, after)] == [0, 2]


# ── priorities and turns ─────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_a_tenant_gives_no_higher_priority_than_its_quota(app: Onward) -> None:
    evil = caller(app, HOSTILE)
    (task_id,) = await evil.submit([SubmitRequest("waits", priority=-3)])
    for refused in (
        evil.submit([SubmitRequest("work", priority=1)]),
        evil.submit([SubmitRequest("work"), SubmitRequest("work", priority=1_000_000)]),
        evil.prioritize(task_id, 1),
        evil.act("priority", 5, priority=1, task="waits"),
    ):
        with pytest.raises(PriorityTooHigh, match="may give priorities up to 0"):
            await refused
    assert (await evil.prioritize(task_id, 0)).priority == 0
    assert (await caller(app, None).prioritize(task_id, 7)).priority == 7, "the operator decides for all"
    await quotas(app, priority=10)
    assert (await evil.prioritize(task_id, 10)).priority == 10
    tasks, _ = await app.list()
    assert len(tasks) == 1


@only_memory
async def test_every_api_reports_that_a_priority_is_too_high(app: Onward, door: Door) -> None:
    evil = await door.client(HOSTILE)
    (task_id,) = await caller(app, HOSTILE).submit([SubmitRequest("waits")])
    filter_ = {"action": "priority", "priority": 5, "filter": {"task": ["waits"]}, "count": 1}
    answers = [
        await evil.post("/api/tasks", json={"task": "work", "priority": 5}),
        await evil.post(f"/api/tasks/{task_id}/priority", json={"priority": 5}),
        await evil.post("/api/tasks/actions", json=filter_),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "priority_too_high")] * 3
    address = f"{door.base}/api/tasks/{task_id}/ws".replace("http:", "ws:")
    async with connect(address, additional_headers={"Authorization": evil.headers["Authorization"]}) as socket:
        await socket.send(json.dumps({"type": "priority", "priority": 5}))
        while (reply := json.loads(await asyncio.wait_for(socket.recv(), 60)))["type"] not in {"ack", "error"}:
            pass
        assert reply["code"] == "priority_too_high"
    session = (await evil.post("/mcp", json=BEGIN, headers=ACCEPT)).headers["mcp-session-id"]
    call = {"name": "submit", "arguments": {"task": "work", "input": 1, "priority": 5}}
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    answer = await evil.post("/mcp", json=body, headers={**ACCEPT, "mcp-session-id": session})
    assert "priority_too_high" in answer.text


@only_memory
async def test_a_child_has_no_higher_priority_than_its_tenant_may_give(app: Onward) -> None:
    @app.task
    async def parent(ctx: Any) -> str:
        try:
            await ctx.submit("work", 1, priority=5)
        except StepFailed as error:
            return str(error)
        return "submitted"

    evil, operator = caller(app, HOSTILE), caller(app, None)
    async with app.worker():
        for service, wanted in ((evil, "may give priorities up to 0, not 5"), (operator, "submitted")):
            (task_id,) = await service.submit([SubmitRequest("parent")])
            assert wanted in (await app.service.wait(task_id, 60)).result


@not_memory
@pytest.mark.parametrize("way", ["one by one", "all at once"])
async def test_many_groups_do_not_give_a_tenant_many_turns(app: Onward, way: str) -> None:
    evil, good = caller(app, HOSTILE), caller(app, OTHER)
    requests = [SubmitRequest("work", n, group=f"group {n}") for n in range(200)]
    if way == "all at once":
        await evil.submit(requests)
    else:
        for request in requests:
            await evil.submit([request])
    theirs = await good.submit([SubmitRequest("work", n) for n in range(3)])
    await join(app.store, "w1")
    order = [task.id for task in await claim(app.store, "w1", 50)]
    assert [order.index(task_id) for task_id in theirs if task_id in order] == pytest.approx([3, 8, 13], abs=3)


@not_memory
async def test_groups_of_a_tenant_still_get_their_turns(app: Onward) -> None:
    good = caller(app, OTHER)
    await good.submit([SubmitRequest("work", n, group="large") for n in range(50)])
    (small,) = await good.submit([SubmitRequest("work", 0, group="smaller")])
    await join(app.store, "w1")
    assert small in [task.id for task in await claim(app.store, "w1", 3)]


# ── the audit log ────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_refused_calls_fill_the_audit_log_no_further_than_the_quota(app: Onward) -> None:
    evil, sibling, good = caller(app, HOSTILE), caller(app, HOSTILE, "another"), caller(app, OTHER)
    ids = [(await service.submit([SubmitRequest("work")]))[0] for service in (evil, good)]
    async with app.worker():
        for task_id in ids:
            await app.service.wait(task_id, 60)
    await quotas(app, refused=5)
    clock, before = still(app), len(await app.audit(limit=1000))
    for verb in (evil.cancel, evil.pause, evil.resume, lambda task_id: evil.prioritize(task_id, -1)) * 10:
        with contextlib.suppress(Exception):
            await verb(ids[0])
    entries = (await app.audit(limit=1000))[before:]
    assert len(entries) == 5
    with pytest.raises(QuotaExceeded) as refused:
        await evil.cancel(ids[0])
    assert refused.value.quota == "refused"
    await sibling.resume(ids[0])  # another key of the same tenant, and another tenant
    await good.resume(ids[1])
    clock.jump(12.0)
    await evil.resume(ids[0])
    last = (await app.audit(limit=1000))[-1]
    assert json.loads(last.data)["calls_left_out"] == 36
    assert (await app.service.audit.verify()).sound


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_an_admin_sets_and_resets_quotas_over_http(app: Onward, door: Door) -> None:
    admin, evil, good = [await door.client(tenant) for tenant in (None, HOSTILE, OTHER)]
    answer = await admin.post(f"/api/quotas/{HOSTILE}", json={"requests": 7, "priority": 3})
    assert answer.status_code == 200
    shown = {quota["name"]: quota for quota in answer.json()["quotas"]}
    assert (shown["requests"]["limit"], shown["requests"]["own"]) == (7, True)
    assert (shown["streams"]["limit"], shown["streams"]["own"]) == (100, False)
    await admin.post(f"/api/quotas/{HOSTILE}", json={"streams": 4})
    tenants = {tenant["tenant"]: tenant for tenant in (await admin.get("/api/quotas")).json()["tenants"]}
    assert tenants.keys() == {HOSTILE, OTHER}
    first = (await admin.get("/api/quotas", params={"limit": 1})).json()
    assert ([tenant["tenant"] for tenant in first["tenants"]], first["next"]) == ([HOSTILE], HOSTILE)
    rest = (await admin.get("/api/quotas", params={"after": first["next"]})).json()
    assert ([tenant["tenant"] for tenant in rest["tenants"]], rest["next"]) == ([OTHER], None)
    limits = {quota["name"]: quota["limit"] for quota in tenants[HOSTILE]["quotas"]}
    assert (limits["requests"], limits["streams"], limits["priority"]) == (7, 4, 3)
    for refused in (
        await evil.post(f"/api/quotas/{HOSTILE}", json={"requests": 1000}),
        await evil.delete(f"/api/quotas/{OTHER}"),
    ):
        assert refused.status_code == 403
    assert [t["tenant"] for t in (await good.get("/api/quotas")).json()["tenants"]] == [OTHER]
    for wrong in ({}, {"requests": -1}, {"queue_share": 101}, {"unknown": 1}):
        assert (await admin.post(f"/api/quotas/{OTHER}", json=wrong)).status_code in {400, 422}
    assert (await admin.delete(f"/api/quotas/{HOSTILE}")).status_code == 200
    (tenant,) = (await evil.get("/api/quotas")).json()["tenants"]
    assert not any(quota["own"] for quota in tenant["quotas"])
    assert {"set_quota", "reset_quota"} <= {entry.action for entry in await app.audit(limit=1000)}


@only_memory
async def test_invalid_quotas_are_refused(app: Onward) -> None:
    for values in ({"requests": -1}, {"queue_share": 101}, {"tasks": True}, {"streams": 10**10}):
        with pytest.raises(BadSetting):
            await app.service.tenant_quotas.set(HOSTILE, values)
    for values in ({}, {"unknown": 1}):
        with pytest.raises(UsageError):
            await app.service.tenant_quotas.set(HOSTILE, values)
    with pytest.raises(BadSetting):
        Onward("sqlite://:memory:", quota_requests=-1)


# ── calls that are short, and hold the database for long ─────────────────────────────────────────────────────────────


CONNECTIONS = 6
"""Connections that a server has to PostgreSQL."""

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'onward_dead_letters'::regclass"


@contextlib.asynccontextmanager
async def _locked_table(url: str, table: str) -> AsyncIterator[Any]:
    """No other connection reads this table while the block lasts. Yields the connection that has the lock."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield connection
    finally:
        await connection.close()


@only_postgres
@pytest.mark.parametrize("turns", [True, False])
async def test_calls_of_a_tenant_that_wait_in_the_database_leave_connections_to_others(
    app: Onward, url: str, turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quotas are on, and see nothing: these are a few small requests. Without turns, the other tenant waits for a connection."""
    if not turns:
        monkeypatch.setattr(ProcessUse, "_turn", lambda *_args: contextlib.nullcontext())
    tokens = {
        tenant: (await app.keys.create(tenant, ["read", "submit"], tenant=tenant)).token for tenant in (HOSTILE, OTHER)
    }
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=120) as client:
        headers = {tenant: {"Authorization": f"Bearer {token}"} for tenant, token in tokens.items()}
        async with _locked_table(url, "onward_dead_letters") as watcher:
            reads = [
                asyncio.ensure_future(client.get("/api/dead-letters", headers=headers[HOSTILE])) for _ in range(20)
            ]

            async def blocked() -> bool:
                return int(await watcher.fetchval(WAITING)) >= (BUSIEST_TURNS if turns else CONNECTIONS)

            await eventually(blocked, 60)
            submit = asyncio.ensure_future(client.post("/api/tasks", json={"task": "work"}, headers=headers[OTHER]))
            done, _ = await asyncio.wait([submit], timeout=60 if turns else 2)
            assert bool(done) == turns
        assert (await submit).status_code == 202
        assert {(await read).status_code for read in reads} == {200}
