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
from rig.processes import Child
from tests.kit import only_postgres

WORKERS, SLOTS = 3, 2
LIMIT = 120
"""Tasks that may wait; two hundred come at once."""


@dataclasses.dataclass
class Evening:
    """What was seen of one, and what the database says of it."""

    sent: set[str]
    live: list[str]
    refused: int
    deepest: int
    heard: dict[str, list[tuple[int, str]]]
    records: dict[str, list[tuple[int, str]]]
    before: int
    """Deploys that waited when the hotfix came."""
    overtaken: int
    """Of all deploys, those that were started between its coming and its start."""
    shifts: Counter[str]
    states: Counter[str]

    def wrong(self) -> set[str]:
        """What should not be."""
        found = {
            "lost": set(self.live) != self.sent or self.states != {"completed": len(self.sent)},
            "doubled": max(Counter(self.live).values()) > 1,
            "there was no evening": self.before < LIMIT // 3,
            "the hotfix waited": self.overtaken > WORKERS * SLOTS,  # what was being claimed when it came
            "the queue has no bound": self.deepest > LIMIT or not self.refused,
            "somebody saw something else": self.heard != self.records,
            "nobody was killed in the middle": max(self.shifts.values()) < 2,
        }
        return {what for what, is_so in found.items() if is_so}


class Place:
    """The server and the workers, and a look into their database."""

    def __init__(self, url: str, tmp_path: Path) -> None:
        self.url, self._children = url, list[Child]()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._env = {
            "ONWARD_DB": url,
            "ONWARD_QUEUE_LIMIT": str(LIMIT),
            "ONWARD_HEARTBEAT_S": "0.2",
            "FRIDAY": str(tmp_path / "friday.log"),
            "ROLL_OUT_S": "0.25",
        }

    def start(self, *arguments: str) -> Child:
        self._children.append(Child.module("onward", *arguments, env=self._env))
        return self._children[-1]

    def ask(self, sql: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()

    def kill_one_in_the_middle(self, workers: list[Child]) -> None:
        """One that holds tasks while it is killed: it stands still while we look."""
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


async def played(place: Place, services: int = 200, hotfix_priority: int = 10) -> Evening:
    """One evening."""
    app = "examples.friday:app"
    place.start("serve", app, "--no-worker", "--port", str(place.port))
    workers = [place.start("worker", app, "--slots", str(SLOTS)) for _ in range(WORKERS)]
    refused = 0

    async def look(response: Any) -> None:
        nonlocal refused
        refused += response.status_code == 429

    async with Client(f"http://127.0.0.1:{place.port}", patience=60, event_hooks={"response": [look]}) as client:
        sent: set[str] = set()
        heard: dict[str, list[tuple[int, str]]] = {}

        async def deploy(service: str, **options: Any) -> str:
            """Send it, and watch it to its end."""
            sent.add(service)
            task = await client.submit("deploy", service, key=service, **options)
            accepted.append(service)
            heard[task.id] = [(record.seq, record.kind) async for record in task.tail()]
            return str(task.id)

        accepted: list[str] = []
        watching = [asyncio.ensure_future(deploy(f"afternoon-{n}")) for n in range(40)]
        while len(friday.live()) < 10:  # noqa: ASYNC110 -- other processes; all are at work, and know how quick they are
            await asyncio.sleep(0.05)
        watching += [asyncio.ensure_future(deploy(f"service-{n}")) for n in range(services)]
        while len(accepted) < 40 + LIMIT // 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        hotfix = asyncio.ensure_future(deploy("hotfix", priority=hotfix_priority))
        await asyncio.to_thread(place.kill_one_in_the_middle, workers)
        deepest = 0
        while not all(one.done() for one in watching):
            ((waiting,),) = await asyncio.to_thread(place.ask, "SELECT count(*) FROM onward_queue WHERE worker IS NULL")
            deepest = max(deepest, waiting)
            await asyncio.wait(watching, timeout=0.1)
        await asyncio.gather(*watching)
        return Evening(sent, friday.live(), refused, deepest, heard, **_written(place, await hotfix))


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
async def test_the_hotfix_goes_first_nothing_is_lost_and_everybody_sees_progress(place: Place) -> None:
    seen = await played(place)
    print(
        f"refused {seen.refused} times, {seen.deepest} waited at most, {seen.before} when the hotfix came, {seen.overtaken} went before it"
    )
    assert seen.wrong() == set()
    some = next(iter(seen.heard))
    for what, would_be in {
        "lost": {"live": seen.live[1:]},
        "doubled": {"live": [*seen.live, seen.live[0]]},
        "the queue has no bound": {"refused": 0},
        "somebody saw something else": {"heard": {**seen.heard, some: seen.heard[some][1:]}},
    }.items():
        assert dataclasses.replace(seen, **would_be).wrong() == {what}, "the judge would not see it"


@pytest.mark.slow
@only_postgres
async def test_a_hotfix_that_waits_for_its_turn_is_noticed(place: Place) -> None:
    seen = await played(place, services=150, hotfix_priority=0)
    assert "the hotfix waited" in seen.wrong()
