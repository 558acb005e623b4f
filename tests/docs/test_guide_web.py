"""docs/guides/web.md is true: its tests pass as pasted, and its sites stream under real web servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rig.processes import Child
from tests.docs.test_guides import code_of
from tests.docs.test_pasted_tests import paste, run_pytest
from tests.kit import eventually

for package in ("fastapi", "flask", "django", "gunicorn"):
    pytest.importorskip(package, reason=f"{package} is not installed here")

pytestmark = pytest.mark.slow

ORDER = {"order": "7", "cents": 500}
SERVERS = {
    "fast_site": ("uvicorn", "--uds"),
    "flask_site": ("gunicorn", "--no-control-socket", "--worker-class", "gthread", "--threads", "8", "--bind"),
    "django_site": ("gunicorn", "--no-control-socket", "--worker-class", "gthread", "--threads", "8", "--bind"),
    "django_asgi": ("uvicorn", "--uds"),
}


def test_its_tests_pass_as_pasted(tmp_path: Path) -> None:
    paste("web.md", tmp_path)
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6 passed" in ran.stdout


async def updates(http: httpx2.AsyncClient, task_id: str, last: str = "") -> AsyncIterator[dict[str, Any]]:
    headers = {"Last-Event-ID": last} if last else {}
    async with http.stream("GET", f"/orders/{task_id}/progress", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("site", SERVERS)
async def test_a_browser_follows_an_order_live(site: str, tmp_path: Path) -> None:
    """Under its real server: the approval comes while the stream is open, and an open stream does not keep the server from stopping."""
    paste("web.md", tmp_path)
    module, *options = SERVERS[site]
    address = tmp_path / "socket"
    bound = f"unix:{address}" if module == "gunicorn" else str(address)
    database = f"sqlite:///{tmp_path / 'onward.db'}"
    worker = code_of("web.md", "shop.py")["app"]
    worker.move(database)
    transport = httpx2.AsyncHTTPTransport(uds=str(address))
    with Child.module(module, *options, bound, f"{site}:site", env={"ONWARD_DB": database}, cwd=tmp_path) as child:
        async with worker.worker(), httpx2.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as http:

            async def answers() -> bool:
                with contextlib.suppress(httpx2.TransportError):
                    return (await http.get("/orders/unknown")).status_code == 404
                return False

            await eventually(answers)
            task = (await http.post("/orders", json=ORDER, headers={"Idempotency-Key": "7"})).json()["id"]
            seen = []
            async for update in updates(http, task):
                seen.append(update)
                if ask_id := update.get("ask_id"):
                    decided = await http.post(f"/approvals/{ask_id}", json={"decision": "approve", "by": "ada"})
                    assert decided.json() == {"decided": True}
            assert seen[-1]["message"] == "charged 500 for 7, shipped by ada"
            assert [update async for update in updates(http, task, "1")] == seen[1:]

            other = (await http.post("/orders", json=ORDER, headers={"Idempotency-Key": "8"})).json()["id"]
            async for update in updates(http, other):
                if "ask_id" in update:
                    child.terminate()
        assert await asyncio.to_thread(child.wait, 20) is not None
