"""Live text through failed attempts: a client that drops withdrawn text shows the good text in the end, once.

Workers are killed with -9, the task is paused and resumed, and the provider breaks off. The client follows over HTTP, is cut off
now and then, and comes back with the last id that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward import Client, State
from rig.processes import Child
from tests.kit import eventually, not_memory
from tests.outside.talker import GOOD

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60.0


class Watcher:
    """Shows the live text of the model, and never withdrawn text again."""

    def __init__(self, rng: random.Random) -> None:
        self.shown: dict[tuple[int, int], str] = {}
        self.withdrawn: set[tuple[int, int]] = set()
        self.never_shown: list[tuple[int, int]] = []
        self.order: list[int] = []
        self.cuts, self._rng, self._last = 0, rng, ""

    async def watch(self, url: str, task_id: str) -> None:
        """Follow until the task has ended."""
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
            while True:
                headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self._last} if self._last else {})
                with contextlib.suppress(httpx2.TransportError):
                    async with http.stream("GET", f"{url}/api/progress?task_id={task_id}", headers=headers) as answer:
                        if answer.status_code == 204:
                            return
                        await self._read(answer)

    async def _read(self, answer: httpx2.Response) -> None:
        name, left = "", self._rng.randint(5, 60)
        async for line in answer.aiter_lines():
            field, _, value = line.partition(": ")
            if field == "id":
                self._last = value
            elif field == "event":
                name = value
            elif field == "data" and name == "text":
                self._hear(json.loads(value))
            elif not line:
                name, left = "", left - 1
                if left <= 0:
                    self.cuts += 1
                    return

    def _hear(self, piece: dict[str, Any]) -> None:
        at = piece["turn"], piece["attempt"]
        if piece.get("withdrawn"):
            self.never_shown += [at] if at not in self.shown and at not in self.withdrawn else []
            self.withdrawn.add(at)
            self.shown.pop(at, None)
        elif at not in self.withdrawn:
            self.order.append(piece["attempt"])
            self.shown[at] = self.shown.get(at, "")[: piece["offset"]] + piece["text"]


@not_memory
@pytest.mark.slow
async def test_after_many_failed_attempts_the_good_text_is_shown_once(url: str, tmp_path: Path, prove: bool) -> None:
    failures = 100 if prove else 6
    env = {"OUTSIDE_HOME": str(tmp_path), "OUTSIDE_FAILURES": str(failures)}
    onward = ["-m", "onward"]
    with Child(*onward, "serve", "--no-worker", "--port", "0", "--db", url, env=env, cwd=ROOT) as server:
        line = await asyncio.to_thread(server.wait_for, "http://")
        address = next(word for word in line.split() if word.startswith("http://")).rstrip("/,.")
        async with Client(address) as client:
            worker = Child(*onward, "worker", "tests.outside.talker:app", "--db", url, env=env, cwd=ROOT)
            handle = await _submitted(client)
            watcher = Watcher(random.Random(7))
            watching = asyncio.ensure_future(watcher.watch(address, handle.id))
            paused = 0
            for _ in range(int(TIMEOUT_S * 15 * (10 if prove else 1))):
                if watching.done():
                    break
                if not worker.running:
                    worker.close()
                    worker = Child(*onward, "worker", "tests.outside.talker:app", "--db", url, env=env, cwd=ROOT)
                wanted = (tmp_path / "pause").stat().st_size if (tmp_path / "pause").exists() else 0
                if wanted > paused:
                    paused = wanted
                    await client.pause(handle.id)
                    await eventually(lambda: _rests(client, handle.id))
                    await client.resume(handle.id)
                elif (await client.get(handle.id)).reason == "quarantined":
                    await client.resume(handle.id)
                await asyncio.sleep(0.05)
            worker.close()
            assert watching.done(), (await client.get(handle.id), (tmp_path / "attempts").stat().st_size)
            watching.result()
            task = await client.get(handle.id)
    assert (task.state, task.result) == (State.COMPLETED, GOOD)
    assert (tmp_path / "attempts").stat().st_size > failures
    assert watcher.never_shown == [], "an attempt was withdrawn of which nothing had been shown"
    assert len(watcher.shown) == 1, "the good text, and nothing of any attempt that failed"
    (text,) = watcher.shown.values()
    assert text
    assert GOOD.startswith(text.strip())
    assert len(watcher.withdrawn) >= failures // 2
    assert watcher.order == sorted(watcher.order), "numbers grow"
    assert paused


async def _rests(client: Client, task_id: str) -> bool:
    return (await client.get(task_id)).state is not State.RUNNING


async def _submitted(client: Client) -> Any:
    """Submits the task, once a worker has registered its handlers."""
    for _ in range(int(TIMEOUT_S * 10)):
        with contextlib.suppress(Exception):
            return await client.submit("talker", "speak")
        await asyncio.sleep(0.1)
    raise AssertionError("no worker started")
