"""A decision is for the action that was shown: the digest of an approval over HTTP, in Python, in events, and in the records of
the decision."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from onward import Onward, tool
from onward.agent.models.scripted import ScriptedModel
from onward.core import event as events
from onward.core.audit import Entry
from onward.core.event import Origin, body
from onward.core.views import Ask
from onward.errors import NotFound, StaleDecision
from onward.server.access.service import AuthorizedService
from onward.testing import drain, memory_app
from tests.docs.test_guides import code_of
from tests.kit import sql
from tests.server.conftest import serving
from tests.server.tenants import caller, make_tenants

LONG = "DROP TABLE customers; " + "-- padding " * 400
"""Far longer than the title of an approval."""


computed: Callable[[dict[str, Any]], str] = code_of("approvals.md", "digest.py")["digest"]
"""The digest as the guide computes it, with nothing but the standard library."""


async def waits(app: Onward, argument: Any = LONG) -> Ask:
    """An open approval of an agent's tool call with a long argument."""

    @tool(risk="external_action", idempotent=True)
    async def query(sql: Any) -> str:
        """Run a query."""
        return "done"

    app.agent(
        "analyst",
        model=ScriptedModel([[("query", {"sql": argument})], "done"]),
        tools=[query],
        approve=["external_action"],
    )
    await app.submit("analyst", "look")
    await drain(app)
    (ask,) = await app.asks("approval")
    return ask


async def decision_of(app: Onward, ask: Ask) -> dict[str, Any]:
    (message,) = [message for message in await app.store.inbox(ask.task_id) if message.ref == ask.seq]
    decision: dict[str, Any] = json.loads(message.data)
    return decision


async def last_entry(app: Onward) -> Entry:
    return (await app.audit(limit=1000))[-1]


async def test_the_digest_covers_the_whole_action_and_can_be_computed_by_a_client() -> None:
    app = memory_app()
    async with app:
        ask = await waits(app, {"ümlaut": [LONG, 1.5, None, True]})
        async with serving(app) as address, httpx2.AsyncClient(base_url=address) as http:
            (listed,) = (await http.get("/api/approvals")).json()["approvals"]
            whole = (await http.get(f"/api/approvals/{ask.id}")).json()
        assert len(ask.text) < 300 < len(LONG), "the title is cut"
        assert whole == listed
        assert whole["arguments"] == {"sql": {"ümlaut": [LONG, 1.5, None, True]}}
        assert whole["digest"] == ask.digest == computed(whole)


async def test_a_decision_with_another_digest_is_refused_and_changes_nothing(app: Onward) -> None:
    acme = (await make_tenants(app))["acme"]
    ada = AuthorizedService(app.service, caller("acme"))
    ask = await ada.ask(acme.approval)
    assert ask.digest is not None
    before = await app.audit(limit=1000)
    for wrong in ("0" * 64, "", ask.digest[:-1], ask.hash):
        with pytest.raises(StaleDecision, match=r"its digest is .* nothing was written") as refused:
            await ada.decide(acme.approval, "approve", digest=wrong)
        assert refused.value.status == 409
        with pytest.raises(StaleDecision):
            await app.decide(acme.approval, "deny", digest=wrong)
    assert await app.audit(limit=1000) == before
    assert [message for message in await app.store.inbox(ask.task_id) if message.ref == ask.seq] == []
    await ada.decide(acme.approval, "approve", digest=ask.digest)
    assert await decision_of(app, ask) == {
        "decision": "approve",
        "by": "somebody of acme",
        "hash": ask.hash,
        "digest": ask.digest,
        "named": True,
    }
    data = json.loads((await last_entry(app)).data)
    assert (data["digest"], data["named"]) == (ask.digest, True)


async def test_a_decision_over_http_names_the_digest_or_not(app: Onward) -> None:
    tenants = await make_tenants(app)
    token = (await app.keys.create("ada", ["read", "decide"], tenant="acme")).token
    other = (await app.keys.create("bob", ["read", "decide"], tenant="globex")).token
    path = f"/api/approvals/{tenants['acme'].approval}"
    async with serving(app) as address, httpx2.AsyncClient(base_url=address) as http:
        mine, theirs = {"Authorization": f"Bearer {token}"}, {"Authorization": f"Bearer {other}"}
        assert (await http.get(path, headers=theirs)).status_code == 404
        question = await http.get(f"/api/approvals/{tenants['acme'].question}", headers=mine)
        assert (question.status_code, "is a question" in question.json()["detail"]) == (404, True)
        document = (await http.get(path, headers=mine)).json()
        refused = await http.post(path, json={"decision": "approve", "digest": "0" * 64}, headers=mine)
        assert (refused.status_code, refused.json()["code"]) == (409, "stale_decision")
        assert (await http.get("/api/approvals", headers=mine)).json()["approvals"] == [document]
        done = await http.post(path, json={"decision": "deny", "digest": document["digest"]}, headers=mine)
        assert done.status_code == 200
        assert (await http.get(path, headers=mine)).json() == document, "a decided approval can be read, too"


async def test_without_a_digest_the_records_have_it_marked_as_not_named(app: Onward) -> None:
    acme = (await make_tenants(app))["acme"]
    ada = AuthorizedService(app.service, caller("acme"))
    ask = await ada.ask(acme.approval)
    await ada.decide(acme.approval, "approve")
    decision = await decision_of(app, ask)
    assert (decision["digest"], "named" in decision) == (ask.digest, False)
    data = json.loads((await last_entry(app)).data)
    assert (data["digest"], "named" in data) == (ask.digest, False)


async def test_with_other_arguments_the_records_have_the_shown_and_the_decided_ones(app: Onward) -> None:
    acme = (await make_tenants(app))["acme"]
    ada = AuthorizedService(app.service, caller("acme"))
    ask = await ada.ask(acme.approval)
    await ada.decide(acme.approval, "approve", digest=ask.digest, arguments={"disk": "/dev/sdb"})
    decision = await decision_of(app, ask)
    fields = {"id": ask.id, "task": ask.task, "text": ask.text, "risk": ask.risk}
    decided = computed({**fields, "data": {**ask.data, "arguments": {"disk": "/dev/sdb"}}})
    assert (decision["digest"], decision["decided"], decision["arguments"]) == (
        ask.digest,
        decided,
        {"disk": "/dev/sdb"},
    )
    data = json.loads((await last_entry(app)).data)
    assert (data["digest"], data["decided"]) == (ask.digest, decided)


async def test_an_event_has_the_digest_also_when_it_is_cut() -> None:
    app = memory_app()
    async with app:
        ask = await waits(app, LONG * 20)
        (record,) = await app.service.journal(ask.task_id, ask.seq - 1, 1)
    event = events.event(ask.task_id, record, record.kind, Origin("analyst", 0.0))
    assert (event.data["approval_id"], event.data["digest"]) == (ask.id, ask.digest)
    sent = json.loads(body(event))["data"]
    assert (sent["truncated"], sent["digest"], sent["approval_id"]) == (True, ask.digest, ask.id)
    assert sent["path"] == f"/api/approvals/{ask.id}", "a way to read the whole"
    least = json.loads(body(event, 700))["data"]
    assert (least["truncated"], least["digest"], least["path"]) == (True, ask.digest, f"/api/approvals/{ask.id}")


async def test_an_approval_whose_record_was_dropped_is_not_found() -> None:
    """A checkpoint replaces the records before it, and their payloads go."""
    app = memory_app()
    async with app:
        ask = await waits(app)
        await app.decide(ask.id, "approve", digest=ask.digest)
        await drain(app)
        where = f"task_id = '{ask.task_id}' AND seq = {ask.seq}"
        await sql(app.store, f"""UPDATE onward_journal SET data = CAST('{{"dropped":9}}' AS BLOB) WHERE {where}""")
        with pytest.raises(NotFound):
            await app.service.asks.get(ask.id)
