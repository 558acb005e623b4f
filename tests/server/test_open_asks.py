"""Lists of open approvals and questions are bounded in number and bytes, and one of them can be read in full."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.client import Client
from onward.core import record as r
from onward.core import wire
from onward.core.asks import ordered
from onward.core.caller import ADMIN, DECIDE, READ, Caller
from onward.errors import BadSetting, NotFound
from onward.server.access.service import AuthorizedService
from onward.service import asks as reading
from onward.store.port import listing
from onward.store.port.core import Batch, Wait
from onward.store.shared import asks as pages
from tests.kit import claim, encrypt, entry, join, new, not_memory, submit
from tests.server.conftest import serving
from tests.server.test_bounded import _resident
from tests.server.test_fuzz import serve

MEGABYTE = 1_000_000


async def ask(store: Any, *payloads: dict[str, Any], tenant: str | None = None) -> list[str]:
    """The ids of approvals (or questions) that one new task asks for, in the order of the fields that a worker writes."""
    await join(store, "w1", lease=3600)
    await submit(store, new(tenant=tenant, group=tenant))
    (held,) = await claim(store, "w1", 1)
    entries = []
    for number, payload in enumerate(payloads, 1):
        kind = r.QUESTION if "question" in payload else r.APPROVAL
        entries.append(entry(held, number, kind, f"ask#{number}", wire.encode(payload)))
    await store.save("w1", Batch(entries, waits=[Wait(held.id, float("inf"), "approval", held.attempt)]))
    return [f"{held.id}.{record[1]}" for record in entries]


def large(what: str, size: int = MEGABYTE, **more: Any) -> dict[str, Any]:
    return ordered({"what": what, "risk": "high", "data": {"text": "x" * size}, **more})


async def read(client: httpx2.AsyncClient, path: str = "/api/approvals", **query: Any) -> dict[str, Any]:
    response = await client.get(path, params=query)
    assert response.status_code == 200, response.text[:500]
    assert len(response.content) < listing.PAGE_BYTES * 1.5
    document: dict[str, Any] = response.json()
    return document


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
@pytest.mark.usefixtures("plain_payloads")
async def test_a_list_of_large_approvals_is_bounded_in_bytes_and_each_can_be_read_and_decided(app: Onward) -> None:
    until = time.time() + 3600
    ids = [(await ask(app.store, large(f"pay {number}", until=until, default="deny")))[0] for number in range(7)]
    ids += await ask(app.store, {"what": "small", "data": 1})
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        document = await read(client)
        assert document["next"] is None
        shown = {approval["id"]: approval for approval in document["approvals"]}
        assert sorted(shown) == sorted(ids), "all are listed"
        whole = [approval["id"] for approval in document["approvals"] if not approval["left_out"]]
        assert whole == [*ids[:3], ids[-1]], "the first that there is room for, and all small ones"
        cut = shown[ids[5]]
        assert cut["left_out"] == ["arguments", "data", "digest", "hash", "tool"]
        assert (cut["text"], cut["risk"], cut["default"]) == ("pay 5", "high", "deny")
        assert cut["expires_at"] == shown[ids[0]]["expires_at"] is not None
        assert (cut["data"], cut["hash"], cut["digest"]) == (None, None, None)
        alone = (await client.get(f"/api/approvals/{ids[5]}")).json()
        assert (alone["left_out"], len(alone["data"]["text"])) == ([], MEGABYTE)
        decision = {"decision": "approve", "digest": shown[ids[0]]["digest"]}
        assert (await client.post(f"/api/approvals/{ids[5]}", json=decision)).status_code == 409, "of another one"
        decision["digest"] = alone["digest"]
        assert (await client.post(f"/api/approvals/{ids[5]}", json=decision)).status_code == 200
        assert ids[5] not in [approval["id"] for approval in (await read(client))["approvals"]]
        async with Client(address) as remote:
            assert sorted(one.id for one in await remote.approvals()) == sorted({*ids} - {ids[5]})
            assert (await remote.approval(ids[5])).digest == alone["digest"]


async def test_approvals_of_one_task_are_bounded_too_and_always_approves_all_of_a_tool(app: Onward) -> None:
    """Also those for which the list has no room."""
    calls = [{"tool": tool, "call": str(n), "arguments": {"text": "x" * 900_000}} for n, tool in enumerate("aaaaab")]
    ids = await ask(app.store, *[ordered({"what": f"call {call['tool']}", "data": call}) for call in calls])
    page = await app.asks("approval")
    assert [approval.id for approval in page] == ids
    assert sum(bool(approval.left_out) for approval in page) == 2
    assert [approval.tool for approval in page] == ["a"] * 4 + [None, None], "what is not read is not guessed"
    await app.decide(ids[0], "approve", always=True)
    assert [approval.id for approval in await app.asks()] == ids[5:]
    assert (await app.ask(ids[5])).tool == "b"


@not_memory
@pytest.mark.usefixtures("plain_payloads")
async def test_many_approvals_of_middle_size_are_bounded(app: Onward) -> None:
    payloads = [large(f"pay {number}", 7_000) for number in range(150)]
    ids = [one for _ in range(6) for one in await ask(app.store, *payloads)]
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        document = await read(client)
        assert len(document["approvals"]) == len(ids)
        assert {approval["text"] for approval in document["approvals"]} == {f"pay {number}" for number in range(150)}
        whole = [approval for approval in document["approvals"] if not approval["left_out"]]
        room = listing.PAGE_BYTES // 7_000
        assert room - 100 < len(whole) < room + listing.SLICE_ASKS


@pytest.mark.usefixtures("plain_payloads")
async def test_a_large_approval_of_an_older_version_says_what_is_not_known(app: Onward) -> None:
    """That version wrote the small fields behind the large ones."""
    old = {"what": "pay", "risk": "high", "data": "x" * 5 * MEGABYTE, "default": "approve", "until": time.time() + 60}
    (one,) = await ask(app.store, old)
    (shown,) = await app.asks()
    assert (shown.text, shown.risk, shown.expires_at) == ("pay", "high", None)
    assert {"expires_at", "default", "rule", "votes", "data", "digest"} <= {*shown.left_out}
    assert (await app.ask(one)).expires_at == old["until"]


@pytest.mark.usefixtures("plain_payloads")
async def test_a_large_text_is_cut(app: Onward) -> None:
    (one,) = await ask(app.store, ordered({"question": "why? " * MEGABYTE, "choices": ["a", "b"], "until": 4e9}))
    (shown,) = await app.asks("question")
    assert shown.text.startswith("why? why?")
    assert len(shown.text) < 1000
    assert shown.left_out == ("choices", "text")
    assert shown.expires_at == 4e9
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        alone = (await client.get(f"/api/questions/{one}")).json()
        assert (len(alone["text"]), alone["choices"]) == (5 * MEGABYTE, ["a", "b"])
        wrong = await client.get(f"/api/approvals/{one}")
        assert (wrong.status_code, wrong.json()["code"]) == (404, "not_found")
        assert (await client.get(f"/api/questions/{one[:-1]}9")).status_code == 404


async def test_the_data_of_an_encrypted_approval_is_left_out_where_it_cannot_be_read(app: Onward) -> None:
    """A sealed record can only be opened as a whole."""
    encrypt(app.store)
    ids = [(await ask(app.store, large(f"pay {number}", 1_500_000)))[0] for number in range(4)]
    shown = await app.asks()
    assert [(approval.text, bool(approval.left_out)) for approval in shown] == [
        ("pay 0", False),
        ("pay 1", False),
        ("", True),
        ("", True),
    ]
    assert {"text", "risk", "data", "digest"} <= {*shown[-1].left_out}
    assert (await app.ask(ids[-1])).text == "pay 3"


@not_memory
@pytest.mark.usefixtures("plain_payloads")
async def test_an_approval_for_which_there_is_no_key_does_not_hide_the_others(app: Onward, url: str) -> None:
    """The whole list failed."""
    (plain,) = await ask(app.store, {"what": "plain", "data": 1})
    encrypt(app.store)
    (sealed,) = await ask(app.store, {"what": "sealed", "data": 1})
    async with Onward(url) as other:
        shown = {approval.id: approval for approval in await other.asks()}
    assert (shown[plain].text, shown[plain].left_out) == ("plain", ())
    assert shown[sealed].text == ""
    assert {"text", "data", "digest"} <= {*shown[sealed].left_out}


# ── number ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def in_pages(app: Onward, limit: int, **query: Any) -> AsyncIterator[list[str]]:
    cursor = None
    while True:
        page = await app.asks(limit=limit, cursor=cursor, **query)
        assert len(page) <= limit
        yield [one.id for one in page]
        cursor = page.next
        if cursor is None:
            return


@pytest.mark.parametrize("slice_", [1, 3, 200])
async def test_pages_have_each_open_one_once(app: Onward, slice_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listing, pages):
        monkeypatch.setattr(module, "SLICE_ASKS", slice_)
    ids = []
    for number in range(9):
        payloads: list[dict[str, Any]] = [{"what": f"{number}"}, {"question": f"{number}"}] * (number % 3)
        ids += await ask(app.store, *payloads, {"what": "last"})
    approvals = [one for one in ids if (await app.ask(one)).kind == "approval"]
    for limit in (1, 4, 5, 1000):
        assert [one for page in [page async for page in in_pages(app, limit)] for one in page] == ids
        assert [one async for page in in_pages(app, limit, kind="approval") for one in _each(page)] == approvals
    (first, *_), *rest = [page async for page in in_pages(app, 1)]
    assert len(rest) == len(ids) - 1, "the last page is not empty"
    page = await app.asks(limit=5)
    for one in page:
        kind = (await app.ask(one.id)).kind
        await (app.decide(one.id, "approve") if kind == "approval" else app.answer(one.id, "so"))
    assert [one.id for one in await app.asks(cursor=page.next)] == ids[5:], "the cursor is of one that was decided"
    with pytest.raises(NotFound):
        await app.ask(f"{first}9")


def _each(page: list[str]) -> Any:
    return page


async def test_a_page_ends_where_too_many_tasks_were_looked_at(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listing, pages):
        monkeypatch.setattr(module, "SLICE_ASKS", 2)
    monkeypatch.setattr(pages, "MAX_ASKED_TASKS", 4)
    ids = [(await ask(app.store, {"what": str(number)}, tenant=None if number else "acme"))[0] for number in range(11)]
    service = AuthorizedService(app.service, Caller(scopes=frozenset({READ}), tenant="acme"))
    page = await service.asks()
    assert [one.id for one in page] == ids[:1]
    assert page.next is not None, "it does not know yet whether there is more"
    assert [one async for page in in_pages(app, 1000) for one in _each(page)] == ids


async def test_an_expired_one_is_in_no_page(app: Onward) -> None:
    await ask(app.store, *[{"what": "late", "until": time.time() - 1}] * 3)
    (open_,) = await ask(app.store, {"what": "open", "until": time.time() + 60})
    assert [one.id for one in await app.asks()] == [open_]
    seen = [page async for page in in_pages(app, 2)]
    assert seen == [[], [open_]]


@pytest.mark.parametrize("cursor", ["", "x", "a.b", "a\0.1", "a.1" + "0" * 20])
async def test_a_cursor_that_is_none_is_refused(app: Onward, cursor: str) -> None:
    with pytest.raises(BadSetting):
        await app.asks(cursor=cursor)
    with pytest.raises(BadSetting):
        await app.asks(limit=0)
    with pytest.raises(BadSetting):
        await app.asks(limit=1001)
    with pytest.raises(BadSetting):
        await app.asks("doubt")


async def test_a_tenant_pages_through_its_own_alone(app: Onward) -> None:
    """Whatever cursor it sends."""
    tenants = ["acme", "globex", None]
    ids: dict[str | None, list[str]] = {tenant: [] for tenant in tenants}
    for number in range(12):
        tenant = tenants[number % 3]
        ids[tenant] += await ask(app.store, {"what": str(number)}, {"what": f"{number} too"}, tenant=tenant)
    service = AuthorizedService(app.service, Caller(scopes=frozenset({READ, DECIDE}), tenant="acme"))
    seen, cursor = list[str](), None
    while True:
        page = await service.asks(limit=3, cursor=cursor)
        seen += [one.id for one in page]
        cursor = page.next
        if cursor is None:
            break
    assert seen == ids["acme"]
    for foreign in (*ids["globex"], *(ids[None])):
        assert {one.id for one in await service.asks(cursor=foreign)} <= {*ids["acme"]}
        with pytest.raises(NotFound):
            await service.ask(foreign)


# ── votes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_votes_are_listed_and_bounded(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"risks": [], "tools": [], "handlers": [], "approvers": ["key:a", "key:b"], "votes": 2, "asker": True}
    ids = await ask(app.store, *[{"what": f"pay {number}", "rule": rule} for number in range(3)])
    voter = AuthorizedService(app.service, Caller(key="a", scopes=frozenset({READ, DECIDE, ADMIN}), name="ann"))
    for one in ids:
        decided = await voter.decide(one, "approve", reason="r" * 500)
        assert not decided.decided
    page = await app.asks()
    assert [[vote.by for vote in one.votes] for one in page] == [["ann"]] * 3
    assert not any(one.left_out for one in page)
    monkeypatch.setattr(reading, "PAGE_BYTES", 2_000)
    page = await app.asks()
    assert [(len(one.votes), one.left_out) for one in page] == [(1, ()), (1, ()), (0, ("votes",))]


# ── real sizes ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@not_memory
async def test_a_hundred_approvals_of_four_megabytes_cost_little_memory_and_time(app: Onward, url: str) -> None:
    ids = [(await ask(app.store, large(f"pay {number}", 3_800_000)))[0] for number in range(100)]
    child, address = await asyncio.to_thread(serve, url)
    with child:
        async with httpx2.AsyncClient(base_url=address, timeout=120) as client:
            await read(client, "/api/questions")
            before = most = _resident(child.pid)
            slowest, over = 0.0, asyncio.Event()

            async def watch() -> None:
                nonlocal slowest, most
                while not over.is_set():
                    began = time.monotonic()
                    assert (await client.get("/healthz")).status_code == 200
                    slowest, most = max(slowest, time.monotonic() - began), max(most, _resident(child.pid))
                    await asyncio.sleep(0.01)

            watching = asyncio.create_task(watch())
            began = time.monotonic()
            documents = await asyncio.gather(*[read(client) for _ in range(10)])
            took = time.monotonic() - began
            over.set()
            await watching
            for document in documents:
                assert sorted(approval["id"] for approval in document["approvals"]) == sorted(ids)
            alone = (await client.get(f"/api/approvals/{ids[-1]}")).json()
            decision = {"decision": "deny", "digest": alone["digest"]}
            assert (await client.post(f"/api/approvals/{ids[-1]}", json=decision)).status_code == 200
            print(f"10 lists of 100 approvals: {took:.1f} s, {(most - before) / 1e6:.0f} MB, /healthz {slowest:.2f} s")
            assert most - before < 200 * MEGABYTE
            assert slowest < 2.0
