"""What the server tells beside the tasks themselves, over a real socket and on every store."""

from __future__ import annotations

from typing import Any

import httpx2

from onward import Onward
from onward.agent.models.scripted import ScriptedModel

Client = httpx2.AsyncClient


# ── who asks, and what there is ──────────────────────────────────────────────────────────────────────────────────────


async def test_who_asks(app: Onward, client: Client) -> None:
    anybody = (await client.get("/api/whoami")).json()
    assert anybody["scopes"] == ["admin", "decide", "read", "submit"]
    assert (anybody["name"], anybody["key"], anybody["tenant"]) == ("", None, None)
    made = await app.keys.create("ada", ["decide"], tenant="acme", agent="fixer")
    who = (await client.get("/api/whoami", headers={"Authorization": f"Bearer {made.token}"})).json()
    version = who.pop("version")
    assert version == (await client.get("/openapi.json")).json()["info"]["version"]
    assert who == {"name": "ada", "key": made.key.id, "scopes": ["decide"], "tenant": "acme", "agent": "fixer"}


async def test_handlers_of_this_process_and_of_others(app: Onward, client: Client) -> None:
    @app.task(queue="mail")
    async def send(ctx: Any, to: str, copies: int = 1) -> None:
        """Send a letter."""

    app.agent("fixer", model=ScriptedModel([]), instructions="You fix.", description="Fixes things.")
    far = b'{"queue": "far", "deadline": null, "input": {"type": "object", "description": "Far away."}}'
    await app.store.offer([("distant", far)])
    distant, fixer, sends = (await client.get("/api/handlers")).json()["handlers"]
    assert (distant["name"], distant["doc"], distant["here"], distant["queue"]) == (
        "distant",
        "Far away.",
        False,
        "far",
    )
    assert (fixer["kind"], fixer["doc"], fixer["here"], fixer["workers"]) == ("agent", "Fixes things.", True, 0)
    assert (sends["kind"], sends["doc"], sends["queue"], sends["version"]) == ("task", "Send a letter.", "mail", None)
    assert sends["schema"]["properties"] == {"to": {"type": "string"}, "copies": {"type": "integer"}}
    assert sends["schema"]["required"] == ["to"]
    async with app.worker():
        again = (await client.get("/api/handlers")).json()["handlers"]
    assert [(one["name"], one["workers"]) for one in again] == [("distant", 0), ("fixer", 1), ("send", 1)]
    assert again[1]["doc"] == "Fixes things."
    assert again[2]["version"]
