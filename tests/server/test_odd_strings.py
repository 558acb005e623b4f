"""Strings that a database refuses (NUL, halves of characters, a backslash at the end of a pattern), at every place of every operation:
the server refuses them with a sentence or takes them as they are, and never answers with an error of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.server.http.app import ROUTES
from onward.server.http.route import ApiRoute
from onward.server.schema import openapi
from tests.kit import not_memory
from tests.server.conftest import serving

ODD = ("\\", "a\\", "a%\\", "%", "_", "~", "a~", "'", '"', "\0", "a\0b", "\x7f\x1b", "\u202e", "ß:İ", "\U0010ffff", "")
LONE = ("\ud800", "a\udfff", "\udcff\\")
"""Halves of characters: JSON can spell them, and UTF-8 cannot."""
RAW = ("%00", "%FF", "%ED%A0%80", "%C0%80", "%5C", "a%5C", "%25%5C", "%", "%zz", "%E2%80%AE")
"""Bytes of a URL, among them some that are not UTF-8."""
BASES: dict[str, Any] = {
    "task": "echo", "url": "https://example.com/", "types": ["task.completed"], "name": "x", "scopes": ["read"], "decision": "deny",
    "answer": 1, "verdict": "happened", "text": "x", "priority": 1, "action": "pause", "filter": {"task": ["echo"]}, "count": 0,
}  # fmt: skip
ENDLESS = {"/api/progress"}
AT_ONCE = 8


def odd_values(schema: dict[str, Any], components: dict[str, Any], odd: str) -> Iterator[Any]:
    """The odd string at each place where a value of this schema may have one."""
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    for part in [*schema.get("anyOf", ()), *schema.get("allOf", ())]:
        yield from odd_values(part, components, odd)
    kind = schema.get("type")
    if kind == "array":
        yield from ([value] for value in odd_values(schema["items"], components, odd))
    elif kind == "object" and "properties" in schema:
        for name, part in schema["properties"].items():
            yield from ({name: value} for value in odd_values(part, components, odd))
    elif kind == "object":
        yield from ({odd: "x"}, {"x": odd})
    elif kind == "string":
        yield odd
    elif kind is None and "anyOf" not in schema:  # any value
        yield from (odd, {odd: [odd]})


Sent = tuple[ApiRoute, str, Any, dict[str, Any]]


class Sender:
    """Sends requests, and keeps those that the server answered with an error of its own."""

    def __init__(self, client: httpx2.AsyncClient, task_id: str, odd: tuple[str, ...], raw: tuple[str, ...]) -> None:
        self.client, self.task_id, self.odd, self.raw, self.count = client, task_id, odd, raw, 0
        self.failed: list[tuple[str, str, Any, str]] = []
        self.document: Any = openapi.document(ROUTES, "0")

    def path(self, route: ApiRoute, **values: str) -> str:
        known = {"id": self.task_id, "name": "go", "seq": "1", "n": "1"}
        if "approvals" in route.path or "questions" in route.path:
            known["id"] = f"{self.task_id}.3"
        if "artifacts/{id}" in route.path:
            known["id"] = f"{self.task_id}.{'0' * 64}"
        return route.path.format(**{**known, **values})

    def requests(self, route: ApiRoute) -> Iterator[Sent]:
        operation = self.document["paths"][route.path][route.method.lower()]
        base = {name: BASES[name] for name in (route.body.model_fields if route.body else ()) if name in BASES}
        for parameter in operation.get("parameters", ()):
            name, where = parameter["name"], parameter["in"]
            for raw in (*self.raw, *(urllib.parse.quote(odd, safe="") for odd in self.odd if odd.isprintable())):
                if where == "path" and raw:
                    yield route, self.path(route, **{name: raw}), base or None, {}
                elif where == "query" and (route.path not in ENDLESS or name != "all"):
                    yield route, f"{self.path(route)}?{name}={raw}", None, {}
                    yield route, f"{self.path(route)}?{name}=a:{raw}", None, {}
            for odd in self.odd if where == "header" else ():
                yield route, self.path(route), base or None, {name: b"\xff" + odd.encode("utf-8", "replace")}
        if route.body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            for odd in self.odd:
                for value in odd_values(schema, self.document["components"]["schemas"], odd):
                    yield route, self.path(route), base | value, {}

    async def send(self, route: ApiRoute, path: str, body: Any, headers: dict[str, Any]) -> None:
        self.count += 1
        content = None if body is None else json.dumps(body)
        all_headers = {"Content-Type": "application/json", **headers}
        with contextlib.suppress(httpx2.LocalProtocolError):
            async with self.client.stream(route.method, path, content=content, headers=all_headers) as response:
                if response.status_code >= 500:
                    await response.aread()
                    self.failed.append((route.method, path, body, response.text))

    async def send_all(self, requests: Iterator[Sent]) -> None:
        async def some() -> None:
            for request in requests:
                await self.send(*request)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


@pytest.mark.slow
@not_memory
async def test_no_odd_string_is_an_error_of_the_server(url: str, prove: bool) -> None:
    app = Onward(url)

    @app.task
    async def echo(ctx: Any, value: Any = None) -> Any:
        return value

    odd, raw = ((*ODD, *LONE), RAW) if prove else (("\\", "a%\\", "\0", "\ud800"), ("%00", "%ED%A0%80"))
    async with app, serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        made = await client.post("/api/tasks", json={"task": "echo", "delay_s": 3600})
        sender = Sender(client, made.json()["task_id"], odd, raw)
        await sender.send_all(request for route in ROUTES for request in sender.requests(route))
        assert not sender.failed, (len(sender.failed), sender.count, [failed[:3] for failed in sender.failed])
        assert sender.count > 500


CALLS: dict[str, Any] = {
    "get": lambda app, _task_id, odd: app.get(odd),
    "list by name": lambda app, _task_id, odd: app.list(task=odd),
    "list by key": lambda app, _task_id, odd: app.list(key=odd),
    "list by label": lambda app, _task_id, odd: app.list(labels={odd: odd}),
    "list by words": lambda app, _task_id, odd: app.list(text=odd),
    "list by parent": lambda app, _task_id, odd: app.list(parent=odd, cursor=odd),
    "list by tenant": lambda app, _task_id, odd: app.service.list(whose=odd),
    "submit": lambda app, _task_id, odd: app.submit("echo", odd, labels={odd: odd}),
    "submit with a key": lambda app, _task_id, odd: app.submit("echo", key=odd),
    "submit to a queue": lambda app, _task_id, odd: app.submit("echo", queue=odd, group=odd),
    "signal": lambda app, task_id, odd: app.signal(task_id, odd, odd),
    "signal with an id": lambda app, task_id, odd: app.signal(task_id, "x", id=odd),
    "signal nobody": lambda app, _task_id, odd: app.signal(odd, "x"),
    "message": lambda app, task_id, odd: app.message(task_id, odd + "x", id=odd),
    "message nobody": lambda app, _task_id, odd: app.message(odd, "x"),
    "answer": lambda app, _task_id, odd: app.answer(odd, odd),
    "decide": lambda app, _task_id, odd: app.decide(odd, "deny", reason=odd),
    "cancel": lambda app, _task_id, odd: app.cancel(odd),
    "resume": lambda app, _task_id, odd: app.resume(odd),
    "prune": lambda app, _task_id, odd: app.prune(odd),
    "fork": lambda app, _task_id, odd: app.service.forks.fork(odd),
    "resolve": lambda app, task_id, odd: app.resolve(odd or task_id, "happened", step=odd),
    "patch": lambda app, task_id, odd: app.service.agent_states.patch(task_id, {"flag_risks": [odd]}, id=odd),
    "state": lambda app, _task_id, odd: app.state(odd),
    "budget": lambda app, _task_id, odd: app.service.budgets.get(odd),
    "artifacts": lambda app, task_id, odd: app.service.artifacts.read(task_id, odd),
    "subscriptions": lambda app, _task_id, odd: app.service.subscriptions.list(tenant=odd, cursor=odd),
    "unsubscribe": lambda app, _task_id, odd: app.service.subscriptions.get(odd),
    "pause a queue": lambda app, _task_id, odd: app.pause_queue(odd),
    "pause a schedule": lambda app, _task_id, odd: app.service.schedules.pause(odd),
}
"""Calls of Python, which the doors for MCP, sockets, hooks and the command line end in."""


@not_memory
async def test_no_odd_string_breaks_a_call(app: Onward) -> None:
    """The error of a call is an error of ours, which every API shows as the fault of the caller."""

    @app.task
    async def echo(ctx: Any, value: Any = None) -> Any:
        return value

    task_id = (await app.submit("echo", delay=3600)).id
    failed = []
    for name, call in CALLS.items():
        for odd in (*ODD, *LONE):
            try:
                await call(app, task_id, odd)
            except Exception as error:
                failed += [(name, odd, error)] if getattr(error, "status", 500) >= 500 else []
    assert not failed
