"""The Friday evening, for real: two hundred deploys over HTTP and a hotfix behind them, on PostgreSQL, with a server and three
workers in processes of their own, of which one is killed with -9 on the way."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples import friday
from onward import Client
from onward.errors import QueueFull
from rig.processes import Child
from tests.kit import only_postgres

WORKERS, SLOTS = 3, 2
SERVICES = 200
QUEUE_LIMIT = 105
"""Tasks that may wait."""
HASTY_SUBMITTERS = 20
"""Submitters that do not retry after a refusal; the test retries for them."""


@dataclasses.dataclass
class Evening:
    """The observations of one evening, and the figures of its database."""

    sent: set[str]
    live: list[str]
    refused: int
    waiting: int
    """The moments of refusals."""
    updates: dict[str, list[tuple[int, str]]]
    records: dict[str, list[tuple[int, str]]]
    before: int
    """Deploys that waited when the hotfix came."""
    overtaken: int
    """Deploys that were started between the submit of the hotfix and its start."""
    shifts: Counter[str]
    states: Counter[str]

    def wrong(self) -> set[str]:
        """The names of the faults."""
        facts = {
            "lost": set(self.live) != self.sent or self.states != {"completed": len(self.sent)},
            "doubled": max(Counter(self.live).values()) > 1,
            "there was no evening": self.before < SERVICES // 2,
            "the hotfix waited": self.overtaken > WORKERS * SLOTS,  # deploys that were just being claimed
            "the queue has no bound": (self.waiting, self.refused)
            != (QUEUE_LIMIT, HASTY_SUBMITTERS - (QUEUE_LIMIT - SERVICES // 2 - 1)),
            "a client saw other updates": self.updates != self.records,
            "no worker was killed in the middle": max(self.shifts.values()) < 2,
        }
        return {fault for fault, is_so in facts.items() if is_so}


class Place:
    """The server and the workers, and a look into their database."""

    def __init__(self, url: str, tmp_path: Path) -> None:
        self.url, self._children = url, list[Child]()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._env = {
            "ONWARD_DB": url,
            "ONWARD_QUEUE_LIMIT": str(QUEUE_LIMIT),
            "ONWARD_HEARTBEAT_S": "1",
            "FRIDAY": str(tmp_path / "friday.log"),
            "ROLL_OUT_S": "0.1",
        }

    def start(self, *arguments: str) -> Child:
        self._children.append(Child.module("onward", *arguments, env=self._env))
        return self._children[-1]

    def ask(self, sql: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()

    def at_work(self) -> bool:
        """Whether the store knows the pace of the workers; without it a refusal says to wait for half a minute."""
        ((rate,),) = self.ask("SELECT COALESCE(sum(rate), 0) FROM onward_workers")
        return rate > 2 or len(friday.live()) > SERVICES // 3

    def kill_one_in_the_middle(self, workers: list[Child]) -> None:
        """Kills a worker while it holds tasks: it is frozen while the test looks."""
        for worker in [*workers] * 100:
            worker.freeze()
            held = "SELECT count(*) FROM onward_queue q JOIN onward_workers w ON w.id = q.worker WHERE w.pid = "
            ((count,),) = self.ask(f"{held}{worker.pid}")
            if count:
                worker.kill9()
                return
            worker.thaw()
            time.sleep(0.05)
        raise AssertionError("no worker holds anything")

    def close(self) -> None:
        for child in self._children:
            child.close()


@pytest.fixture
def place(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("FRIDAY", str(tmp_path / "friday.log"))
    place = Place(url, tmp_path)
    yield place
    place.close()


async def played(place: Place, hotfix_priority: int = 10) -> Evening:
    """One evening: half of the deploys, the hotfix, more than the queue takes; then the workers start, and the refused
    submitters come back, with the rest."""
    app = "examples.friday:app"
    place.start("serve", app, "--no-worker", "--port", str(place.port))
    address = f"http://127.0.0.1:{place.port}"
    names = [f"service-{n}" for n in range(SERVICES)]
    updates: dict[str, list[tuple[int, str]]] = {}

    async def deploy(client: Client, service: str, **options: Any) -> str:
        task = await client.submit("deploy", service, key=service, **options)
        if task.id not in updates:
            updates[task.id] = []
            watching.append(asyncio.ensure_future(watch(task)))
        return str(task.id)

    async def watch(task: Any) -> None:
        async for record in task.tail():
            updates[task.id].append((record.seq, record.kind))

    async with Client(address, patience=60) as client, Client(address, patience=0) as hasty:
        watching: list[asyncio.Task[Any]] = []
        await asyncio.gather(*(deploy(client, name) for name in names[: SERVICES // 2]))
        hotfix = await deploy(client, "hotfix", priority=hotfix_priority)
        refused = 0
        for name in names[SERVICES // 2 :][:HASTY_SUBMITTERS]:
            try:
                await deploy(hasty, name)
            except QueueFull:
                refused += 1
        ((waiting,),) = place.ask("SELECT count(*) FROM onward_queue WHERE worker IS NULL")
        workers = [place.start("worker", app, "--slots", str(SLOTS)) for _ in range(WORKERS)]
        while not await asyncio.to_thread(place.at_work):  # noqa: ASYNC110 -- other processes
            await asyncio.sleep(0.05)
        coming = [asyncio.ensure_future(deploy(client, name)) for name in names[SERVICES // 2 :]]
        await asyncio.to_thread(place.kill_one_in_the_middle, workers)
        await asyncio.gather(*coming)
        await asyncio.gather(*watching)
    return Evening({"hotfix", *names}, friday.live(), refused, waiting, updates, **_written(place, hotfix))


def _written(place: Place, hotfix: str) -> dict[str, Any]:
    records: dict[str, list[tuple[int, str]]] = {}
    for task_id, seq, kind in place.ask("SELECT task_id, seq, kind FROM onward_journal ORDER BY task_id, seq"):
        records.setdefault(task_id, []).append((seq, kind))
    began = dict(place.ask("SELECT task_id, min(at) FROM onward_journal WHERE kind = 'shift.started' GROUP BY task_id"))
    came = dict(place.ask("SELECT task_id, at FROM onward_journal WHERE seq = 1"))
    return {
        "records": records,
        "before": sum(came[task] < came[hotfix] < at for task, at in began.items()),
        "overtaken": sum(came[hotfix] < at < began[hotfix] for at in began.values()),
        "shifts": Counter({task: sum(kind == "shift.started" for _, kind in all_) for task, all_ in records.items()}),
        "states": Counter(state for (state,) in place.ask("SELECT state FROM onward_outcomes")),
    }


@pytest.mark.slow
@only_postgres
async def test_the_hotfix_goes_first_nothing_is_lost_and_all_clients_see_progress(place: Place) -> None:
    seen = await played(place)
    print(f"refused {seen.refused} times, {seen.before} when the hotfix came, {seen.overtaken} went before it")
    assert seen.wrong() == set()
    some = next(iter(seen.updates))
    for fault, would_be in {
        "lost": {"live": seen.live[1:]},
        "doubled": {"live": [*seen.live, seen.live[0]]},
        "the queue has no bound": {"refused": 0},
        "a client saw other updates": {"updates": {**seen.updates, some: seen.updates[some][1:]}},
    }.items():
        assert dataclasses.replace(seen, **would_be).wrong() == {fault}, "the judge would not see it"


@pytest.mark.slow
@only_postgres
async def test_a_hotfix_that_waits_for_its_turn_is_noticed(place: Place) -> None:
    seen = await played(place, hotfix_priority=0)
    assert "the hotfix waited" in seen.wrong()
