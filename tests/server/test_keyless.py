"""Without keys a server answers only programs on its own machine, wherever it is mounted and behind every proxy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from onward import Onward
from onward.core.caller import SCOPES
from onward.server.access import auth
from tests.kit import eventually, not_memory, only_memory
from tests.server.conftest import serving

SENTENCE = "onward keys create"
NEW_KEY = {"name": "mallory", "scopes": list(SCOPES)}
LOCAL = [("127.0.0.1", 5), ("::1", 5), ("127.8.8.8", 5), ("::ffff:127.0.0.1", 5)]
ELSEWHERE = [
    ("192.168.1.5", 5),
    ("10.0.0.1", 5),
    ("::ffff:10.0.0.1", 5),
    ("testclient", 5),
    ("", 0),
    ("fe80::1%eth0", 1),
    None,
]
OWN_HOSTS = [
    "localhost",
    "localhost:8765",
    "127.0.0.1:80",
    "[::1]:8765",
    "[::1]",
    "LOCALHOST",
    "shop.localhost:1",
    "localhost.",
]
OTHER_HOSTS = [
    "evil.example",
    "",
    "localhost.evil.example",
    "127.0.0.1.nip.io:8765",
    "onward.example.com:443",
    "10.0.0.1",
    "a:b:c",
]
PROXIED = [
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "x-forwarded-host",
    "X-Forwarded-Prefix",
    "Forwarded",
    "Via",
    "X-Real-IP",
    "CF-Connecting-IP",
]


def connection(client: Any, host: str, *headers: str) -> HTTPConnection:
    raw = [(b"host", host.encode()), *((name.lower().encode(), b"x") for name in headers)]
    return HTTPConnection({"type": "http", "client": client, "headers": raw})


def test_peer_host_and_headers_all_have_to_be_of_this_machine() -> None:
    for client, host in itertools.product(LOCAL, OWN_HOSTS):
        assert auth.outside_reason(connection(client, host)) is None, (client, host)
        for header in PROXIED:
            assert header.lower() in (auth.outside_reason(connection(client, host, header)) or ""), header
        for elsewhere in ELSEWHERE:
            assert auth.outside_reason(connection(elsewhere, host)) is not None, elsewhere
    for client, host in itertools.product(LOCAL, OTHER_HOSTS):
        assert "host" in (auth.outside_reason(connection(client, host)) or ""), (client, host)


async def refused(client: httpx2.AsyncClient, prefix: str = "", **headers: str) -> None:
    """Requests over HTTP and MCP are refused; and no key is created."""
    for method, path in (
        ("GET", "/api/tasks"),
        ("GET", "/metrics"),
        ("GET", "/api/progress"),
        ("POST", "/mcp"),
        ("GET", "/mcp"),
    ):
        response = await client.request(method, prefix + path, headers=headers)
        assert (response.status_code, response.json()["code"]) == (401, "no_keys_yet"), (method, path, response.text)
        assert SENTENCE in response.json()["detail"]
    made = await client.post(f"{prefix}/api/keys", json=NEW_KEY, headers=headers)
    assert made.status_code == 401, made.text
    assert (await client.get(f"{prefix}/healthz", headers=headers)).status_code == 200


async def socket_refused(url: str, **headers: str) -> None:
    with pytest.raises(InvalidStatus) as no:
        await connect(f"ws{url.removeprefix('http')}/api/tasks/x/ws", additional_headers=headers)
    assert no.value.response.status_code == 401
    assert SENTENCE in json.loads(no.value.response.body)["detail"]


@not_memory
async def test_behind_the_documented_proxy_requests_without_a_key_are_refused(url: str) -> None:
    app = Onward(url)
    hosts = {"localhost", "127.0.0.1", "onward.example.com"}
    async with app, serving(app, hosts=hosts) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        for proxied in (
            {"X-Forwarded-For": "203.0.113.9"},
            {"Host": "onward.example.com"},
            {"Forwarded": "for=203.0.113.9"},
        ):
            await refused(client, **proxied)
            if "Host" not in proxied:  # the client writes its own
                await socket_refused(address, **proxied)
        assert (await client.get("/api/tasks")).status_code == 200, "this machine is answered"
        made = await client.post("/api/keys", json=NEW_KEY)
        assert made.status_code == 201, made.text
        shown = {
            "Authorization": f"Bearer {made.json()['token']}",
            "X-Forwarded-For": "203.0.113.9",
            "Host": "onward.example.com",
        }
        assert (await client.get("/api/tasks", headers=shown)).status_code == 200, (
            "a key is good wherever it comes from"
        )


async def _started(server: uvicorn.Server) -> bool:
    return server.started


@contextlib.asynccontextmanager
async def mounted(app: Onward, path: Path | None = None, **options: Any) -> AsyncIterator[str]:
    """As in the guide: in an app of another framework, at a port or a unix socket."""
    site = Starlette(routes=[Mount("/onward", app=app.asgi(**options))])
    with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as bound:
        bound.bind(str(path) if path else ("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(site, log_config=None, lifespan="off"))
        running = asyncio.create_task(server.serve([bound]))
        try:
            await eventually(lambda: _started(server))
            yield "http://localhost" if path else f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


@only_memory
async def test_a_mount_without_keys_and_without_keyless_refuses_requests(app: Onward) -> None:
    async with mounted(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        await refused(client, "/onward")
        await socket_refused(f"{address}/onward")
        assert "keyless=True" in (await client.get("/onward/api/tasks")).json()["detail"]
        assert (await client.get("/onward/")).status_code == 200, "the files of the console contain no data"


@only_memory
async def test_a_keyless_mount_answers_this_machine_and_logs_a_warning(
    app: Onward, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "onward.http"):
        async with mounted(app, keyless=True) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
            assert "every program on this machine may do everything" in caplog.text
            assert (await client.get("/onward/api/tasks")).status_code == 200
            caplog.clear()
            await refused(
                client, "/onward", **{"X-Real-IP": "203.0.113.9"}
            )  # uvicorn believes some of these, and hides them
            await refused(client, "/onward", **{"X-Forwarded-For": "127.0.0.1"})
            await refused(client, "/onward", Host="rebound.example")
            await socket_refused(f"{address}/onward", **{"X-Forwarded-For": "127.0.0.1"})
            assert len([line for line in caplog.records if "was refused" in line.message]) == 1, (
                "it does not fill the log"
            )


@only_memory
async def test_a_unix_socket_counts_as_a_proxy(app: Onward, tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with mounted(app, path, keyless=True) as address:
        transport = httpx2.AsyncHTTPTransport(uds=str(path))
        async with httpx2.AsyncClient(transport=transport, base_url=address, timeout=60) as client:
            await refused(client, "/onward")
            token = (await app.keys.create("ada", SCOPES)).token
            await asyncio.sleep(auth.CACHE_TTL_S)
            shown = {"Authorization": f"Bearer {token}"}
            assert (await client.get("/onward/api/tasks", headers=shown)).status_code == 200


@only_memory
async def test_in_process_clients_have_the_address_that_they_give(app: Onward) -> None:
    """The client of a test has no socket. It has the address that it gives; without an address it is unknown."""
    asgi = app.asgi(keyless=True)
    for client, host, status in (
        (("127.0.0.1", 1), "localhost", 200),
        (("127.0.0.1", 1), "testserver", 401),
        (("testclient", 1), "localhost", 401),
        (None, "localhost", 401),
    ):
        transport = httpx2.ASGITransport(app=asgi, client=client)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as inside:
            assert (await inside.get("/api/tasks")).status_code == status, (client, host)
