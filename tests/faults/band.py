"""The test's side of a crew: its database, its living workers, and methods to kill and freeze them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import apsw
import psycopg

from onward import Onward
from onward.app.connect import open_store
from onward.errors import StoreUnavailable
from rig.ledger import Ledger
from rig.postgres import Postgres
from rig.processes import Child
from tests.faults import verdict
from tests.faults.crew import Act, build, story
from tests.faults.verdict import Picture, Verdict

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Place:
    """A database of one kind, and the ledger beside it."""

    kind: str
    url: str
    home: Path
    server: Postgres | None = None
    direct: str = ""
    """The URL past a pooler, for the test itself."""

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.home / "ledger")

    def app(self, **settings: Any) -> Onward:
        return build(self.url, str(self.ledger.path), **settings)

    def options(self, mode: str, **more: Any) -> str:
        return json.dumps({"mode": mode, "db": self.url, "ledger": str(self.ledger.path)} | more)

    def child(self, mode: str, **more: Any) -> Child:
        return Child.module("tests.faults.crew", self.options(mode, **more), cwd=ROOT)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement that goes past Onward, for checks and for planted faults."""
        if self.kind == "sqlite":
            connection = apsw.Connection(self.url.removeprefix("sqlite:///"))
            connection.set_busy_timeout(20_000)
            try:
                return [tuple(row) for row in connection.execute(sql)]
            finally:
                connection.close()
        with psycopg.connect(self.direct or self.url, autocommit=True) as connection_:
            cursor = connection_.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def look(self) -> Picture:
        return verdict.look(self.direct or self.url)

    async def judge(self, acked: dict[str, list[Act]], poison: frozenset[str] = frozenset()) -> Verdict:
        store = open_store(self.direct or self.url)
        await store.open()
        try:
            census = await store.health.census()
        finally:
            await store.close()
        return verdict.judge(self.look(), self.ledger.read(), acked, census, poison=poison)


class Crew:
    """Workers in processes of their own; one that dies is replaced at once."""

    def __init__(self, place: Place, workers: int, **options: Any) -> None:
        self._news = threading.Condition()
        self.alive: dict[int, str] = {}
        """pid → the name of its worker, for living processes."""
        self.names: dict[str, int] = {}
        """Every name that a worker ever had → its pid."""
        self.died: dict[str, float] = {}
        """Name → the moment at which the test killed it."""
        self.ends: list[tuple[int, int]] = []
        """pid and exit status of the ended processes, in order."""
        self.leader = place.child("lead", workers=workers, **options)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                words = self.leader.line(timeout=3600).split()
                with self._news:
                    self._note_event(*words)
                    self._news.notify_all()

    def _note_event(self, event: str, pid: str, *more: str) -> None:
        if event in {"ready", "renamed"}:
            self.alive[int(pid)] = more[0]
            self.names[more[0]] = int(pid)
        elif event == "died":
            self.alive.pop(int(pid), None)
            self.ends.append((int(pid), int(more[0])))

    def until(self, fact: Callable[[], Any], timeout: float = 60) -> None:
        """Waits until `fact` is true; checks it after each event of the crew."""
        with self._news:
            if not self._news.wait_for(fact, timeout):
                raise TimeoutError(f"{self.alive}, {self.ends[-5:]}\n" + "\n".join(self.leader.errors[-40:]))

    def ready(self, count: int, timeout: float = 60) -> Self:
        self.until(lambda: len(self.alive) >= count, timeout)
        return self

    def pick(self, rng: random.Random, count: int = 1) -> list[int]:
        with self._news:
            return rng.sample(sorted(self.alive), min(count, len(self.alive)))

    def kill9(self, pid: int) -> None:
        with self._news:
            name = self.alive.pop(pid, None)
            if name is not None:
                self.died[name] = time.time()
                os.kill(pid, signal.SIGKILL)

    def freeze(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)

    def thaw(self, pid: int) -> None:
        os.kill(pid, signal.SIGCONT)

    def stop(self, timeout: float = 60) -> int:
        """Sends SIGTERM to all; returns the first exit status that is not 0, else 0."""
        self.leader.terminate()
        status = self.leader.wait(timeout)
        self._listener.join(5)
        return status

    @property
    def unexpected_errors(self) -> str:
        """The tracebacks in the crew's log: each of them is a bug."""
        lines = self.leader.errors
        places = [
            number for number, line in enumerate(lines) if line.startswith("Traceback") or "never retrieved" in line
        ]
        return "\n".join("\n".join(lines[max(0, place - 2) : place + 40]) for place in places[:3])

    @property
    def log(self) -> str:
        return "\n".join(self.leader.errors[-60:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pid in list(self.alive):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.leader.close()
        self._listener.join(5)
        if error is not None:
            print("\n".join(self.leader.errors[-80:]))


class Client:
    """Submits stories, and keeps the acknowledged ones."""

    def __init__(self, app: Onward, rng: random.Random, name: str = "client") -> None:
        self.app, self._rng, self._name = app, rng, name
        self.acked: dict[str, list[Act]] = {}
        self.refused = 0
        self._number = 0

    async def submit(self, acts: list[Act] | None = None, task: str = "story", **options: Any) -> str:
        """Submits with a key: when the answer is lost, the client sends the same request again."""
        acts = story(self._rng) if acts is None else acts
        self._number += 1
        key = f"{self._name}-{self._number}"
        while True:
            try:
                handle = await self.app.submit(task, {"acts": acts}, key=key, **options)
            except StoreUnavailable:
                self.refused += 1
                await asyncio.sleep(0.05)
            else:
                self.acked[handle.id] = acts
                return handle.id

    async def keep_busy(
        self, place: Place, about: int, acts: Callable[[], list[Act]] | None = None, task: str = "story"
    ) -> None:
        """Keeps `about` tasks unfinished, until it is cancelled."""
        while True:
            try:
                unfinished = (await asyncio.to_thread(place.rows, "SELECT count(*) FROM onward_queue"))[0][0]
            except psycopg.Error:
                unfinished = about
            for _ in range(about - unfinished):
                await self.submit(acts() if acts else None, task)
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def busy(place: Place, client: Client, about: int, **more: Any) -> AsyncIterator[None]:
    """A stream of tasks while the block lasts."""
    feeding = asyncio.create_task(client.keep_busy(place, about, **more))
    try:
        yield
        if feeding.done():
            feeding.result()
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def until(fact: Callable[[], Any], timeout: float = 60, every: float = 0.02) -> Any:
    """Waits for the first true value of `fact`, which runs in a thread, as it may query the database."""
    end = time.monotonic() + timeout
    while not (answer := await asyncio.to_thread(fact)):
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {timeout:g} s")
        await asyncio.sleep(every)
    return answer


async def until_all_ended(place: Place, timeout: float) -> float:
    """Waits until all tasks have ended, are quarantined or parked; returns the seconds. After `timeout` it returns too: the verdict then
    finds the unfinished tasks."""
    start = time.monotonic()
    while time.monotonic() - start < timeout:
        with contextlib.suppress(psycopg.OperationalError):
            sql = "SELECT count(*) FROM onward_queue WHERE reason NOT IN ('quarantined', 'parked')"
            if (await asyncio.to_thread(place.rows, sql))[0][0] == 0:
                break
        await asyncio.sleep(0.05)
    return time.monotonic() - start


async def resume_quarantined(place: Place, app: Onward) -> int:
    """Resumes the quarantined tasks, which several kills in a row hit by chance; returns how many."""
    ids = verdict.quarantined_tasks(place.look())
    for task_id in ids:
        await app.resume(task_id)
    return len(ids)
