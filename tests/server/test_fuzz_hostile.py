"""Thousands of hostile requests, messages and tool answers against a real process: its event loop stays responsive, its memory
bounded, and no status is 500."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from rig.processes import Child
from tests.kit import not_memory
from tests.server import watched
from tests.server.test_fuzz import BODIES, INJECTIONS
from tests.server.test_hostile import HOSTILE

ROOT = Path(__file__).parents[2]
PAUSE, MEMORY = 0.25, 300 << 20
AT_ONCE = 8
TOOLS_AT_ONCE = 12
"""Agents whose tool server harms them. They mostly wait: for a server that never ends, until the tool's timeout."""
PATHS = (
    "/api/tasks", "/api/tasks/actions", "/api/keys", "/api/subscriptions", "/api/tasks/{}/signals/{}", "/api/tasks/{}/message",
    "/api/tasks/{}/budget", "/api/tasks/{}/fork", "/api/tasks/{}/priority", "/api/tasks/{}/resolve", "/api/approvals/{}",
    "/api/questions/{}", "/api/tasks/{}", "/api/tasks/{}/events", "/api/tasks/{}/state", "/api/artifacts/{}", "/api/tasks/count",
    "/api/hooks/outside", "/api/queues/{}/pause", "/console/{}", "/{}", "/openapi.json", "/metrics", "/api/audit",
)  # fmt: skip
JSON = {"Content-Type": "application/json"}


class Fuzz:
    """Hostile clients of one server. One seed determines what they do, and the server's speed their order."""

    def __init__(self, address: str, token: str, reader: str, seed: int) -> None:
        self.address, self.tokens = address, [token, token, reader, "onw_live_x", None]
        self.token, self.rng = token, random.Random(seed)
        self.seen: Counter[Any] = Counter()
        self.done = 0
        self.task = "none"

    async def run(self, count: int) -> None:
        limits = httpx2.Limits(max_connections=AT_ONCE + TOOLS_AT_ONCE)
        async with httpx2.AsyncClient(base_url=self.address, timeout=120, limits=limits) as self.client:
            made = await self.client.post("/api/tasks", json={"task": "waits"}, headers=self.known())
            self.task = made.json()["task_id"]
            tools = [self.tool] * (count * 3 // 100)
            requests = [self.socket] * (count * 2 // 10) + [self.mcp] * (count // 10)
            requests += [self.http] * (count - len(tools) - len(requests))
            self.rng.shuffle(requests)
            clients = self.clients(AT_ONCE, requests) + self.clients(TOOLS_AT_ONCE, tools)
            progress = asyncio.create_task(self.show_progress(count))
            await asyncio.gather(*clients)
            progress.cancel()
            await self.tool(watched.KINDS.index("plain"), deadline_s=600)

    def clients(self, number: int, attacks: list[Callable[[], Awaitable[None]]]) -> list[Awaitable[None]]:
        """This number of clients, who share the attacks."""
        left = iter(attacks)

        async def client() -> None:
            for attack in left:
                await attack()
                self.done += 1

        return [client() for _ in range(number)]

    async def show_progress(self, count: int) -> None:
        """The proof takes minutes: print how far it is."""
        while True:
            await asyncio.sleep(15)
            print(f"{self.done:,} of {count:,} attacks", flush=True)

    def known(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def shown(self) -> dict[str, str]:
        token = self.rng.choice(self.tokens)
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def bytes(self, large: float = 0.05) -> bytes:
        """A body: of the corpus, large, broken in one place, or random."""
        rng = self.rng
        if rng.random() < large:
            data = HOSTILE[rng.choice(list(HOSTILE))]
            return data[: rng.choice([65_000, 400_000, 4_000_000])]
        data = rng.choice([*(body for body, _ in BODIES.values()), json.dumps(self.value(4)).encode()])[:100_000]
        if rng.random() < 0.3 and data:
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(rng.randint(0, 3)) + data[at + rng.randint(0, 2) :]
        return data

    def value(self, deep: int) -> Any:
        rng = self.rng
        if deep and rng.random() < 0.6:
            inner = [self.value(deep - 1) for _ in range(rng.randint(0, 4))]
            names = [
                "task",
                "input",
                "labels",
                "type",
                "id",
                "value",
                "text",
                "filter",
                "jsonrpc",
                "method",
                "params",
                *INJECTIONS,
            ]
            return inner if rng.random() < 0.4 else {rng.choice(names): value for value in inner}
        return rng.choice([None, True, 0, -1, 2**70, 1e308, "echo", "", *INJECTIONS])

    async def http(self) -> None:
        rng = self.rng
        path = rng.choice(PATHS)
        text = rng.choice([self.task, *INJECTIONS, "x" * rng.choice([10, 5_000])])
        path = path.format(*[httpx2.URL("", params={"x": text}).query.decode()[2:]] * path.count("{}"))
        method = rng.choice(["POST"] * 8 + ["GET"] * 3 + ["PUT", "DELETE", "HEAD"])
        headers = {**self.shown(), **JSON, "X-Hub-Signature-256": "sha256=00"}
        params = (
            {rng.choice(["limit", "cursor", "q", "state", "after", "label", "x"]): text[:2_000]}
            if rng.random() < 0.4
            else {}
        )
        body = self.bytes() if method in {"POST", "PUT"} else b""
        with contextlib.suppress(httpx2.TransportError):  # a server may hang up on some
            answer = await self.client.request(method, path, content=body, headers=headers, params=params)
            self.seen["http", answer.status_code] += 1
            return
        self.seen["http", "cut"] += 1

    async def mcp(self) -> None:
        rng = self.rng
        headers = {**self.shown(), **JSON, "Accept": "application/json, text/event-stream"}
        body = self.bytes(0.1)
        if rng.random() < 0.5:
            method = rng.choice(["initialize", "tools/list", "tools/call", "resources/read", "tasks/get", "ping", "x"])
            params = rng.choice(
                [None, {"name": "submit", "arguments": self.value(3)}, {"uri": rng.choice(INJECTIONS)}, self.value(3)]
            )
            body = json.dumps(
                {"jsonrpc": "2.0", "id": rng.choice([1, "a", None, 2**70]), "method": method, "params": params}
            ).encode()
        with contextlib.suppress(httpx2.TransportError):
            answer = await self.client.post("/mcp", content=body, headers=headers)
            self.seen["mcp", answer.status_code] += 1
            return
        self.seen["mcp", "cut"] += 1

    async def socket(self) -> None:
        rng, headers = self.rng, self.shown()
        url = f"ws{self.address.removeprefix('http')}/api/tasks/{self.task}/ws"
        try:
            async with connect(url, additional_headers=headers, open_timeout=60) as connection:
                for _ in range(rng.randint(1, 3)):
                    data = self.bytes(0.2)[: rng.choice([900, 60_000, 70_000])]
                    await connection.send(data if rng.random() < 0.5 else data.decode("utf-8", "replace"))
                async with asyncio.timeout(0.5):
                    async for message in connection:
                        document = json.loads(message)
                        self.seen["socket", document.get("status", document["type"])] += 1
        except (WebSocketException, TimeoutError, OSError):
            self.seen["socket", "closed"] += 1

    async def tool(self, kind: int | None = None, deadline_s: int = 60) -> None:
        """A task of an agent whose tool server is hostile, or of this kind. The task ends in any state."""
        name = f"victim{self.rng.randrange(len(watched.KINDS)) if kind is None else kind}"
        made = await self.client.post(
            "/api/tasks", json={"task": name, "input": "work", "deadline_s": deadline_s}, headers=self.known()
        )
        assert made.status_code == 202, (made.status_code, made.text)
        task_id = made.json()["task_id"]
        for _ in range(deadline_s // 15):
            answer = await self.client.get(
                f"/api/tasks/{task_id}/result", params={"timeout_s": 30}, headers=self.known()
            )
            if answer.status_code == 200:
                break
        self.seen["tool", answer.json().get("state", answer.status_code)] += 1


@contextlib.contextmanager
def server(url: str, *fault: str) -> Iterator[list[str]]:
    """Its address and keys."""
    with Child.module("tests.agent.hostile", cwd=ROOT) as tools:
        where = tools.wait_for("http://", 60).split()[-1]
        with Child.module("tests.server.watched", url, where, *fault, cwd=ROOT) as child:
            yield child.wait_for("ready", 60).split()[-3:]
            assert child.running, child.errors[-20:]


async def watched_values(address: str) -> dict[str, Any]:
    async with httpx2.AsyncClient(base_url=address, timeout=300) as client:
        values: dict[str, Any] = (await client.get("/watch")).json()
        return values


def verdict(
    seen: Counter[Any], watch: dict[str, Any], pause: float, by: str = "pause", memory: float = MEMORY
) -> list[str]:
    """The problems of a run. `by` chooses how a pause of the loop is measured: by the wall clock, or by the CPU time of the loop
    (`busy`), since a busy machine delays any process."""
    wrong = [f"{count} answers of {kind} are 500" for (kind, status), count in seen.items() if status == 500]
    wrong += [f"the loop stood still for {watch['pause']:.3f} s ({watch['busy']:.3f} s of work): {watch['where']}"] * (
        watch[by] > pause
    )
    return wrong + [f"memory grew by {watch['grown'] / 1e6:.0f} MB"] * (watch["grown"] > memory)


@pytest.mark.slow
@not_memory
async def test_hostile_traffic_leaves_the_server_responsive(
    url: str, prove: bool, request: pytest.FixtureRequest
) -> None:
    if url.startswith("postgres"):
        request.getfixturevalue("at_length")
    with server(url) as (address, token, reader):
        fuzz = Fuzz(address, token, reader, seed=6)
        await fuzz.run(10_000 if prove else 150)
        watch = await watched_values(address)
    print(
        f"\nlongest pause {watch['pause']:.3f} s, of work {watch['busy']:.3f} s, of a garbage collection {watch['collection']:.3f} s, memory +{watch['grown'] / 1e6:.0f} MB"
    )
    print(watch["where"])
    print(sorted(fuzz.seen.items(), key=str))
    wrong = (
        verdict(fuzz.seen, watch, PAUSE)
        if prove
        else verdict(fuzz.seen, watch, 20 * PAUSE, by="busy", memory=2 * MEMORY)
    )
    assert wrong == []
    assert fuzz.seen["tool", "completed"], "after the attacks an agent with a well-behaved tool server completes"
    assert fuzz.seen["http", 202] + fuzz.seen["http", 400] + fuzz.seen["http", 401] > 10


@pytest.mark.slow
async def test_a_quadratic_parser_is_caught(tmp_path: Path) -> None:
    """Proves that the test above can fail."""
    with server(f"sqlite:///{tmp_path / 'onward.db'}", "quadratic") as (address, token, _):
        headers = {**JSON, "Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(base_url=address, timeout=300) as client:
            body = HOSTILE["a name twice among many"][:-20]
            names = body[: body.rindex(b",", 0, 200_000)]
            await client.post("/api/tasks", content=names + names[names.rindex(b',"') :] + b"}", headers=headers)
        watch = await watched_values(address)
    assert watch["busy"] > PAUSE
    assert [line for line in verdict(Counter(), watch, PAUSE) if "stood still" in line]
