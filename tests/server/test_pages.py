"""Every list of the HTTP API comes in pages, which have a bound in number and in bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.app.application import VERSION
from onward.artifacts import keeper
from onward.client import Client
from onward.core.budget import Amount, Budget, BudgetLedger
from onward.core.caller import READ, Caller
from onward.core.views import Spent
from onward.errors import UnknownTask
from onward.server.access.service import AuthorizedService
from onward.server.http.app import ROUTES
from onward.server.http.routes.approvals import _budget
from onward.server.schema import shapes
from onward.server.schema.openapi import document
from onward.service import cluster, handlers
from onward.service.submission import SubmitRequest
from onward.store.port.listing import PAGE_BYTES
from onward.store.port.workers import WorkerRow
from onward.store.shared import intakes as shared_intakes
from onward.store.shared.intakes import IntakeReport
from tests.kit import eventually, sql
from tests.server.conftest import Ends, serving
from tests.service.letters import bury

Json = dict[str, Any]

MANY = 1_200
"""More than a page has."""

# ── all routes ───────────────────────────────────────────────────────────────────────────────────────────────────────

WITHOUT_PAGES = {
    "labels left_out choices reasons states scopes roles types quotas meters tools": "a few values of one item, which is bounded when it is written",
    "headers": "of one dead letter, which `MAX_HEADER_BYTES` bounds",
    "rule votes": "of one approval, which is bounded with it in bytes",
    "upcoming": "the next three ticks of a schedule",
    "waiters": "the first `SHOWN_WAITERS` of a lock",
    "processes": "of one intake: the reports of a page are bounded",
    "POST /api/tasks/actions": "`MAX_REFUSALS`, with the number of all",
    "POST /api/tasks/{id}/fork": "`MAX_REPEATED`, with the number of all",
    "GET /api/usage": "groups of the newest `MAX_REPORT_TASKS` tasks",
    "GET /api/system": "`MAX_QUEUES` queues and `MAX_CHECKED` intakes have a check of their own",
    "GET /api/tasks/{id}/timeline": "ends after ten thousand bars or 4 MB; `after` goes on",
    "GET /api/tasks/{id}/turns/{n}": "the messages of one turn, which are one record",
    "GET /api/tasks/{id}/doubts": "`MAX_DOUBTS`, with the number of all",
    "GET /api/tasks/{id}/budget": "`MAX_WAITING`, with the number of all",
    "POST /api/tasks/{id}/budget": "the same",
    "GET /api/tasks/{id}/state": "one value, which the agent holds in memory and writes as one record",
    "POST /api/tasks/{id}/state": "the same",
    "GET /api/history": "a piece for each minute of an hour, or for each quarter of an hour of a day",
    "GET /api/versions": "`MAX_VERSIONS`",
    "GET /api/encryption": "the master keys that the operator keeps, one for each rotation",
}
"""Lists in responses that have no pages: fields by their names, or routes; and the reason."""

FIELDS = {field for names in WITHOUT_PAGES if " /" not in names for field in names.split()}


def test_every_route_that_returns_a_list_has_pages_or_a_reason() -> None:
    api = document(ROUTES, VERSION)
    unbounded, used = set[str](), set[str]()
    for path, methods in api["paths"].items():
        for method, call in methods.items():
            route = f"{method.upper()} {path}"
            lists = {name for schema in _schemas(call) for name in _lists(schema, api["components"]["schemas"])}
            parameters = {parameter["name"]: parameter["schema"] for parameter in call["parameters"]}
            if not lists - FIELDS:
                continue
            if "limit" in parameters:
                assert parameters["limit"]["maximum"] <= 1_000, route
                assert {"cursor", "after"} & parameters.keys(), f"{route} has no way to the next page"
            elif route in WITHOUT_PAGES:
                used.add(route)
            else:
                unbounded.add(f"{route}: {', '.join(sorted(lists - FIELDS))}")
    assert not unbounded, "give these a `limit`, or a reason in WITHOUT_PAGES"
    assert used == {route for route in WITHOUT_PAGES if " /" in route}, "a reason without a route"


def _schemas(call: Json) -> Iterator[Json]:
    for status, response in call["responses"].items():
        if int(status) < 300:
            for content in response.get("content", {}).values():
                yield content.get("schema", {})


def _lists(schema: Json, known: Json, name: str = "", inside: tuple[str, ...] = ()) -> set[str]:
    """The names of the fields that are lists, or objects with any keys."""
    if "$ref" in schema:
        part = schema["$ref"].rpartition("/")[2]
        return set() if part in inside else _lists(known[part], known, name, (*inside, part))
    lists: set[str] = set()
    for choice in ("anyOf", "oneOf", "allOf"):
        for option in schema.get(choice, ()):
            lists |= _lists(option, known, name, inside)
    if schema.get("type") == "array":
        lists |= {name} | _lists(schema["items"], known, name, inside)
    if isinstance(schema.get("additionalProperties"), dict):
        lists |= {name} | _lists(schema["additionalProperties"], known, name, inside)
    for field, value in schema.get("properties", {}).items():
        nested = _lists(value, known, field, inside)
        lists |= {name} if name in FIELDS and nested else nested
    return lists


def test_a_list_without_pages_is_noticed() -> None:
    schema = {"properties": {"next": {"type": "string"}, "rows": {"anyOf": [{"$ref": "#/components/schemas/Rows"}]}}}
    known = {
        "Rows": {"type": "array", "items": {"properties": {"labels": {"additionalProperties": {"type": "string"}}}}}
    }
    assert _lists(schema, known) == {"rows", "labels"}


# ── pages with many rows ─────────────────────────────────────────────────────────────────────────────────────────────


async def _pages(client: httpx2.AsyncClient, path: str, name: str, **query: Any) -> AsyncIterator[list[Json]]:
    cursor: str | None = None
    while True:
        response = await client.get(path, params={**query, **({} if cursor is None else {"cursor": cursor})})
        assert response.status_code == 200, response.text
        assert len(response.content) < 1.5 * PAGE_BYTES
        document = response.json()
        yield document[name]
        if (cursor := document["next"]) is None:
            return


async def _numbers(client: httpx2.AsyncClient, path: str, name: str, key: str, expected: list[str]) -> None:
    """The pages have these items, in this order, a thousand in a page, or as many as the caller wants."""
    pages = [page async for page in _pages(client, path, name)]
    assert [len(page) for page in pages] == [1_000, len(expected) - 1_000]
    assert [item[key] for page in pages for item in page] == expected
    small = _pages(client, path, name, limit=7)
    assert [item[key] for item in await anext(small)] == expected[:7]
    assert [item[key] for item in await anext(small)] == expected[7:14]
    for limit in ("0", "1001", "x"):
        assert (await client.get(path, params={"limit": limit})).status_code == 422


async def test_queues(app: Onward, client: httpx2.AsyncClient) -> None:
    names = [f"q{n:04}" for n in range(MANY)]
    await app.service.submit([SubmitRequest("work", queue=name) for name in names[:-2]], unchecked=True)
    await app.pause_queue(names[-2])
    worker = WorkerRow("w1", "m", "h", 1, 1, ("work",), (names[-1],), "", "1")
    await app.store.workers.join(worker, 1000)
    await _numbers(client, "/api/queues", "queues", "name", names)
    assert [queue.name for queue in await app.queues()] == names
    assert (await app.stats()).states["pending"] == MANY - 2
    assert (await app.service.cluster.queue(names[3])).waiting == 1
    reader = AuthorizedService(app.service, Caller(None, frozenset({READ}), "key", "key"))
    page = await reader.queues(limit=5, cursor=names[-4])
    assert [queue.name for queue in page] == names[-3:]
    checks = [check for check in await app.service.health.checks() if "queue" in check.name]
    assert len(checks) <= 105
    assert f"{MANY - 2 - 99:,} tasks waiting in smaller queues" in checks[-1].detail


async def test_workers(app: Onward, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"w{n:04}" for n in range(MANY)]
    rows = ", ".join(f"('{name}', 4e9, 1, 0, 'm', 'h', 1, 1, '[\"work\"]', '[]', '', '1')" for name in names)
    columns = "id, lease_until, started_at, rate, machine, host, pid, slots, names, queues, address, version"
    await sql(app.store, f"INSERT INTO onward_workers ({columns}) VALUES {rows}")
    await _numbers(client, "/api/workers", "workers", "id", names)
    assert [worker.id for worker in await app.workers()] == names
    monkeypatch.setattr(cluster, "PAGE_BYTES", 100)  # each has a handler with four letters
    assert [len(page) async for page in _pages(client, "/api/workers", "workers", limit=1000)] == [25] * (MANY // 25)


async def test_handlers(app: Onward, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(name="h0500")
    async def own(ctx: Any) -> None:
        """A handler of this process."""

    @app.task(name="i")
    async def last(ctx: Any) -> None: ...

    names = [f"h{n:04}" for n in range(MANY - 1)]
    await app.store.handlers.register([(name, b'{"doc":"stored"}') for name in names if name != "h0501"])
    await app.store.handlers.register([("h0501", json.dumps({"input": {"description": "x" * 1_000_000}}).encode())])
    await _numbers(client, "/api/handlers", "handlers", "name", [*names, "i"])
    (view,) = [view for view in await app.service.handlers.list() if view.here and view.name == "h0500"]
    assert view.doc == "A handler of this process."
    assert await app.service.handlers.attempts(["h0003", "i"]) == {"i": app.handlers["i"].retry.attempts}
    monkeypatch.setattr(handlers, "PAGE_BYTES", 1_000_000)
    pages = [page async for page in _pages(client, "/api/handlers", "handlers")]
    assert [page[-1]["name"] for page in pages] == ["h0501", "i"], "a page ends with the handler that fills it"


async def test_intakes(app: Onward, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"i{n:04}" for n in range(MANY)]
    columns = "name, process, source, target, state, detail, taken, dead, rate, started_at, seen_at"
    rows = ", ".join(f"('{name}', 'p', 's', 't', 'stopped', '', 1, 0, 0, 1, 4e9)" for name in names[:-1])
    await sql(app.store, f"INSERT INTO onward_intakes ({columns}) VALUES {rows}")
    await bury(app, b"{}", intake=names[-1])
    await _numbers(client, "/api/intakes", "intakes", "name", names)
    checks = [check for check in await app.service.health.checks() if "intake" in check.name]
    assert len(checks) == 101
    assert "after i0099" in checks[-1].detail
    report = IntakeReport("i0001", "q", "s", "t", None, "running", "", 5, 0, 0.5, None)
    for process in ("q", "r"):
        await app.store.intakes.report(report._replace(process=process))
    await sql(app.store, "DELETE FROM onward_intakes WHERE name > 'i0020'")
    names = [*names[:21], names[-1]]
    monkeypatch.setattr(shared_intakes, "MAX_REPORTS", 4)
    pages = [page async for page in _pages(client, "/api/intakes", "intakes", limit=1000)]
    assert {len(page) for page in pages[1:-1]} <= {3, 4}
    assert [intake["name"] for page in pages for intake in page] == names
    monkeypatch.setattr(shared_intakes, "MAX_REPORTS", 2)
    pages = [page async for page in _pages(client, "/api/intakes", "intakes", limit=4)]
    assert [intake["name"] for page in pages for intake in page] == names, "an intake with more reports is cut"


async def test_artifacts(app: Onward, client: httpx2.AsyncClient, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def work(ctx: Any) -> None:
        for n in (*range(12), 3):
            await ctx.artifact(f"content {n}", type="text/plain", summary=f"{n} {'x' * 1000}")

    async with app.worker(), serving(app) as address, Client(address) as reader:
        task = await app.submit(work)
        await ends(task.id)
        path = f"/api/tasks/{task.id}/artifacts"
        expected = [ref.artifact_id for ref in await app.artifacts(task.id)]
        assert len(expected) == 12
        pages = [page async for page in _pages(client, path, "artifacts", limit=5)]
        assert [len(page) for page in pages] == [5, 5, 2]
        assert [ref["artifact_id"] for page in pages for ref in page] == expected
        monkeypatch.setattr(keeper, "PAGE_BYTES", 2_500)
        pages = [page async for page in _pages(client, path, "artifacts")]
        assert [len(page) for page in pages] == [3, 3, 3, 3]
        assert await reader.artifacts(task.id) == await app.artifacts(task.id)
        for cursor in ("x", "../../etc", "0" * 31):
            answer = await client.get(path, params={"cursor": cursor})
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_setting")
        assert (await client.get(path, params={"cursor": "0" * 32})).json() == {"artifacts": [], "next": None}


async def test_the_client_reads_all_pages(app: Onward) -> None:
    names = [f"q{n:04}" for n in range(MANY)]
    await app.service.submit([SubmitRequest("work", queue=name) for name in names], unchecked=True)
    await app.store.handlers.register([(name, b"{}") for name in names])
    async with serving(app) as address, Client(address) as client:
        assert [queue.name for queue in await client.queues()] == names
        assert [handler.name for handler in await client.handlers()] == names
    assert str(UnknownTask("x", names)).count("q0") == 20
    assert "q0019 and 1,180 more)" in str(UnknownTask("x", names))


# ── lists that say how many more there are ───────────────────────────────────────────────────────────────────────────


async def test_effects_in_doubt_are_bounded(
    app: Onward, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(retry=1)
    async def work(ctx: Any) -> None:
        async def charge() -> None:
            await asyncio.Event().wait()

        await ctx.step(charge, effect="once", timeout=0.01, retry=1)

    async with app.worker():
        task = await app.submit(work)

        async def in_doubt() -> bool:
            return len(await app.doubts(task.id)) == 1

        await eventually(in_doubt, 60)
        path = f"/api/tasks/{task.id}/doubts"
        whole = (await client.get(path)).json()
        assert ([doubt["step"] for doubt in whole["doubts"]], whole["more"]) == (["charge"], 0)
        monkeypatch.setattr(shapes, "MAX_DOUBTS", 0)
        assert (await client.get(path)).json() == {"doubts": [], "more": 1}


def test_the_tasks_that_wait_for_a_budget_are_bounded() -> None:
    ids = [f"t{n}" for n in range(1_005)]
    ledger = BudgetLedger(Budget(max_llm_tokens=1), 0.0, waiting={task_id: Amount(llm_tokens=5) for task_id in ids})
    body: Any = _budget(Spent("t", ledger, 1.0)).value
    assert (body["waiting"], [*body["needs"]], body["more"]) == (ids[:1_000], ids[:1_000], 5)
