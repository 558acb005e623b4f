"""EventSource implementations that are not ours: Node's, and a browser's where there is one. The test cuts the connection again
and again; the client reconnects by itself with its last id, gets every record once, and stops at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from onward import Onward
from onward.server.live import pump
from rig.install import node
from rig.server import Unavailable
from tests.kit import only_memory
from tests.server.sse import served
from tests.server.test_stream_proof import expected

pytestmark = only_memory

FOLLOW = """
const got = [], source = new EventSource(WHERE);
let opened = 0;
source.onopen = () => opened++;
source.onmessage = (event) => got.push([event.lastEventId, JSON.parse(event.data)]);
source.onerror = () => { if (source.readyState === 2) over({got, opened}); };
"""


@contextlib.asynccontextmanager
async def cutting(port: int, rng: random.Random) -> AsyncIterator[tuple[int, list[int]]]:
    """A line to this port that breaks streams off after some bytes, wherever that is; and where it did."""
    cuts: list[int] = []

    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        head = await reader.readuntil(b"\r\n\r\n")
        far_writer.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))  # a stream has a line of its own
        left = rng.randint(200, 3000) if b"/api/progress" in head else 10**9
        asking = asyncio.create_task(_copied(reader, far_writer))
        with contextlib.suppress(OSError):
            while data := await far_reader.read(min(left, 512)):
                writer.write(data)
                left -= len(data)
                if left <= 0:
                    cuts.append(left)
                    break
            await writer.drain()
        asking.cancel()
        far_writer.transport.abort()
        writer.close()

    server = await asyncio.start_server(link, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], cuts


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(4096):
        writer.write(data)


@pytest.fixture
async def followed(app: Onward, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, int, list[int], str]]:
    monkeypatch.setattr(pump.PACE, "retry", 0.02)

    @app.task
    async def walk(ctx: Any, n: int) -> int:
        for number in range(n):
            await ctx.step(_give, number, name="step")
            ctx.progress("weiter, dálšî, 次", step=number + 1, total=n)
            await asyncio.sleep(0.01)
        return n

    async with served(app) as (client, _, server), app.worker():
        task = await app.submit(walk, 60)
        async with cutting(client.base_url.port or 0, random.Random(3)) as (port, cuts):
            yield server, port, cuts, task.id


async def _give(value: Any) -> Any:
    return value


async def judged(app: Onward, task_id: str, report: dict[str, Any], cuts: list[int]) -> None:
    (wanted,) = (await expected(app, [task_id], records=False)).values()
    assert [data for _, data in report["got"]] == wanted
    ids = [int(number) for number, _ in report["got"]]
    assert ids == sorted(set(ids))
    assert len(cuts) >= 5
    assert report["opened"] >= len(cuts)


@pytest.mark.slow
async def test_the_eventsource_of_node(app: Onward, followed: Any) -> None:
    _, port, cuts, task_id = followed
    where = json.dumps(f"http://127.0.0.1:{port}/api/progress?task_id={task_id}")
    over = "const over = (told) => process.stdout.write(JSON.stringify(told), () => process.exit());"
    program = f"setInterval(() => 0, 1000);{over}{FOLLOW.replace('WHERE', where)}"
    try:
        command = [node(), "--experimental-eventsource", "-e", program]
    except Unavailable as reason:
        pytest.skip(str(reason))
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = await asyncio.wait_for(process.communicate(), 120)
    if b"bad option" in errors:
        pytest.skip("this Node has no EventSource")
    assert out, errors.decode()
    await judged(app, task_id, json.loads(out), cuts)


@pytest.mark.slow
async def test_the_eventsource_of_a_browser(app: Onward, followed: Any, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no browser here: chromium comes with the system's packages")
    server, port, cuts, task_id = followed
    report: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def page(_: Request) -> Response:
        over = "const over = (told) => fetch('/told', {method: 'POST', body: JSON.stringify(told)});"
        where = json.dumps(f"/api/progress?task_id={task_id}")
        return HTMLResponse(f"<!doctype html><script>{over}{FOLLOW.replace('WHERE', where)}</script>")

    async def take(request: Request) -> Response:
        report.set_result(await request.json())
        return Response()

    server._asgi.router.routes += [Route("/page", page), Route("/told", take, methods=["POST"])]
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    process = await asyncio.create_subprocess_exec(
        browser,
        *options,
        f"--user-data-dir={tmp_path / 'browser'}",
        f"http://127.0.0.1:{port}/page",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await judged(app, task_id, await asyncio.wait_for(report, 120), cuts)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
