"""clients.md and serving.md are true: their code runs against real servers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from onward import Client, Onward
from onward.core.caller import SCOPES
from tests.docs.test_guides import code_of
from tests.kit import eventually
from tests.server.conftest import serving


async def test_clients(app: Onward, capsys: pytest.CaptureFixture[str]) -> None:
    @app.task
    async def deploy(ctx: Any, service: str) -> str:
        return f"{service} is live"

    async with serving(app) as address, app.worker():
        assert await code_of("clients.md", "ship.py")["ship"](address) == "web is live"
        assert await asyncio.to_thread(code_of("clients.md", "ship_sync.py")["ship"], address) == "web is live"
    assert "completed" in capsys.readouterr().out
    client: Client = code_of("clients.md", "patient.py")["client"]
    assert (client.timeout, client.patience) == (5, 120)
    await client.close()


async def _started(server: uvicorn.Server) -> bool:
    return server.started


async def test_an_app_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_DB", f"sqlite:///{tmp_path / 'site.db'}")
    code = code_of("serving.md", "web.py")
    site, app = code["site"], code["app"]
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(site, lifespan="on", log_config=None))
        running = asyncio.ensure_future(server.serve([bound]))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}/onward"
        try:
            async with httpx2.AsyncClient() as http:
                await eventually(lambda: _started(server))
                response = await http.get(f"{address}/api/tasks")
                assert (response.status_code, response.json()["code"]) == (401, "no_keys_yet"), "a mount needs a key"
                key = (await app.keys.create("me", SCOPES)).token
            shown = {"Authorization": f"Bearer {key}"}
            async with Client(address, key=key, patience=30) as client, httpx2.AsyncClient(headers=shown) as http:
                task = await client.submit("deploy", "web")
                assert await task.result(60) == "web is live"
                assert [record.seq async for record in task.tail()] == [1, 2, 3]
                answer = await http.post(f"{address}/api/tasks", json={"task": "deploy", "input": "shop"})
                assert answer.headers["location"].startswith("/onward/api/tasks/"), "where it is from outside"
        finally:
            server.should_exit = True
            await running
