"""Workers and the server of Temporal, killed and frozen: no recorded step runs again, and no `once` effect happens twice.

Outside of `make prove` the leases are short and each fault comes twice. With `--prove` the settings are the defaults, and the counts are those
that the guide names. Each test prints its figures. The next fault comes when the tasks of the last one have gone on: otherwise a task that is hit
again and again would count as one that takes long to recover. In the end the mirror has to equal the workflows, record for record.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.measure import percentile
from onward import Onward
from onward.errors import OnwardError, StoreUnavailable
from rig.ledger import Ledger
from rig.processes import Child
from rig.temporal import Temporal
from tests.engines.kit import differences
from tests.engines.temporal_worker import EARLY, POLLING, STEPS, ZOMBIE, make_app
from tests.kit import eventually, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("temporal")]

TASKS = 6
"""New tasks with each fault."""

WORKERS = 2

FAULTS = {"kill": 50, "freeze": 50, "server": 10}
"""How often each fault comes with `--prove`."""

FEW = 2

MAX_RECOVERY_S = 15.0
"""Seconds from the kill of a worker until another one goes on with its tasks, at the 95th percentile, with default settings."""

ENDED_WITHIN_S = 180.0

PLODDERS = 20
"""Tasks with one long step. The server gives the first ones to the polls of the frozen worker."""

LOOK_EVERY_S = 1.0
"""Seconds between the looks of the person who decides about charges in doubt."""

QUIET_S = 5.0
"""Seconds without a step after which the person looks at a task."""

_queues = itertools.count(1)


@pytest.fixture
def server() -> Iterator[Temporal]:
    """A server of its own: the tests kill it."""
    with running(Temporal(), "no Temporal server") as server:
        yield server


@pytest.fixture(autouse=True)
def _short_leases(prove: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not prove:
        monkeypatch.setenv("ONWARD_LEASE_S", "2")
        monkeypatch.setenv("ONWARD_HEARTBEAT_S", "0.3")


@dataclasses.dataclass
class Storm:
    """Tasks, and workers that are replaced whenever one is killed or frozen."""

    server: Temporal
    ledger: Ledger
    planted: str = ""
    db: str = ""
    """The mirror; an empty string means none."""
    kills: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    """The process and the time of each fault of a worker."""

    def __post_init__(self) -> None:
        self.url = f"{self.server.url}?queue=faults-{next(_queues)}"
        self.app: Onward = make_app(self.url, self.ledger, self.db or None)
        self.lease_s = self.app.settings.lease_s
        self._workers: list[Child] = []
        """Those that work, the oldest first."""
        self._children: list[Child] = []
        self._thaws: list[asyncio.Task[None]] = []
        self.handles: list[Any] = []
        self.doubted: set[str] = set()
        """The tasks that waited for the person."""

    async def run(self, fault: str, times: int) -> None:
        """Submit tasks and bring the fault while they run, so many times; then wait until all have ended."""
        async with self.app:
            person = asyncio.create_task(self._decide())
            try:
                for _ in range(WORKERS):
                    await self.start()
                for _ in range(times):
                    await self._begin_tasks()
                    await getattr(self, f"_{fault}")()
                    await eventually(self._all_gone_on, ENDED_WITHIN_S)
                await asyncio.gather(*self._thaws)
                for handle in self.handles:
                    await eventually(lambda handle=handle: self._ended(handle), ENDED_WITHIN_S)
                await self._check()
            finally:
                for task in (*self._thaws, person):
                    task.cancel()
                self.close()

    def close(self) -> None:
        """End all workers."""
        for child in self._children:
            child.close()

    async def start(self) -> Child:
        """Start one more worker."""
        worker = Child.module("tests.engines.temporal_worker", self.url, str(self.ledger.path), self.db, self.planted)
        self._children.append(worker)
        await asyncio.to_thread(worker.wait_for, "ready")
        self._workers.append(worker)
        return worker

    async def _begin_tasks(self) -> None:
        """Submit some tasks, and wait until they have done some steps, the more the later they come."""
        new = [await self.app.submit("work") for _ in range(TASKS)]
        self.handles += new
        ids, wanted = {handle.id for handle in new}, TASKS * (1 + len(self.handles) // TASKS % 7)

        async def enough() -> bool:
            return sum(line[1] in ids for line in self.ledger.read()) >= wanted

        await eventually(enough, ENDED_WITHIN_S)

    async def _kill(self) -> None:
        worker = self._workers.pop(0)
        self.kills.append((worker.pid, time.time()))
        await asyncio.to_thread(worker.kill9)
        await self.start()

    async def _freeze(self) -> None:
        worker = self._workers.pop(0)
        self.kills.append((worker.pid, time.time()))
        worker.freeze()
        self._thaws.append(asyncio.create_task(self._thaw(worker)))
        await self.start()

    async def _thaw(self, child: Child) -> None:
        """Wake a worker when another one has its tasks, and end it when it had time to do harm."""
        await asyncio.sleep(self.lease_s + 2)
        child.thaw()
        await asyncio.sleep(3)
        child.close()

    async def _server(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    async def _ended(self, handle: Any) -> bool:
        return bool((await handle.get()).ended)

    async def _decide(self) -> None:
        """Look into the ledger, as a person does, and decide about each charge in doubt."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            lines = self.ledger.read()
            latest = {line[1]: line for line in lines}
            for task_id, line in latest.items():
                # A query of every task would cost the server more than the steps do.
                if line[2] == STEPS - 1 or time.time() - line[5] < QUIET_S:
                    continue
                with contextlib.suppress(OnwardError):  # the server may be away
                    if (await self.app.get(task_id)).reason == "in_doubt":
                        self.doubted.add(task_id)
                        charged = any(line[:2] == ["charge", task_id] for line in lines)
                        await self.app.resolve(task_id, "happened" if charged else "not_happened", "charged")

    async def _check(self) -> None:
        """Compare journals and ledger, and print figures."""
        lines, again = self.ledger.read(), 0
        for handle in self.handles:
            records = await self.app.service.journal(handle.id)
            assert [record.seq for record in records] == list(range(1, len(records) + 1))
            shifts = [record.shift for record in records if record.shift]
            assert shifts == sorted(shifts), "a stale record: an older shift wrote after a newer one"
            runs = await handle.result(60)
            assert len(runs) == STEPS
            for number, run in enumerate(runs):
                begun = [line[3] for line in lines if line[:3] == ["step", handle.id, number]]
                assert begun[-1] == run, "a recorded step ran again"
                again += len(begun) - 1
            charges = sum(line[:2] == ["charge", handle.id] for line in lines)
            assert charges == 1, "an effect that happens once happened more often, or never"
            assert not self.db or await differences(self.app, handle.id) == [], "the mirror has another journal"
        recovered = self.recoveries()
        p95 = percentile(recovered, 95) if recovered else 0.0
        print(
            f"\n{len(self.handles)} tasks, {len(self.kills)} faults of workers: 0 recorded steps again, 0 stale records, "
            f"{again} steps under way ran again; {len(recovered)} tasks went on after p50 "
            f"{percentile(recovered, 50) if recovered else 0:.1f} s, p95 {p95:.1f} s"
        )

    def _held(self, lines: list[list[Any]], pid: int, at: float) -> set[str]:
        """The tasks whose last step before this time began in this process."""
        latest = {line[1]: line for line in lines if line[5] <= at}
        return {task_id for task_id, line in latest.items() if line[4] == pid}

    async def _all_gone_on(self) -> bool:
        """Whether each task of the last worker that was killed or frozen goes on elsewhere, has ended, or waits for the person."""
        if not self.kills:
            return True
        lines = self.ledger.read()
        pid, at = self.kills[-1]
        elsewhere = {line[1] for line in lines if line[5] > at and line[4] != pid}
        return all([await self._rests(task_id) for task_id in self._held(lines, pid, at) - elsewhere])

    async def _rests(self, task_id: str) -> bool:
        try:
            task = await self.app.get(task_id)
        except StoreUnavailable:  # no worker answered the query in time
            return False
        return task.ended or task.reason == "in_doubt"

    def recoveries(self) -> list[float]:
        """For each task of each worker that was killed or frozen: the seconds until a step of it began on another worker.

        A task in doubt waits for a person, so it does not count.
        """
        lines = self.ledger.read()
        seconds = []
        for pid, at in self.kills:
            for task_id in self._held(lines, pid, at) - self.doubted:
                later = [line[5] - at for line in lines if line[1] == task_id and line[5] > at and line[4] != pid]
                seconds += later[:1]
        return seconds


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_workers_die_and_hang(server: Temporal, tmp_path: Path, fault: str, prove: bool) -> None:
    storm = Storm(server, Ledger(tmp_path / "ledger"), db=f"sqlite:///{tmp_path}/mirror.db")
    await storm.run(fault, FAULTS[fault] if prove else FEW)
    if prove and fault == "kill":  # the server gives tasks to a frozen worker too, and waits for their timeouts
        assert percentile(storm.recoveries(), 95) <= MAX_RECOVERY_S


async def test_a_thawed_worker_begins_no_step_that_another_one_does(server: Temporal, tmp_path: Path) -> None:
    """The server gave some tasks to the frozen worker first, and has given that up. The journals have not grown yet: the steps take long."""
    storm = Storm(server, Ledger(tmp_path / "ledger"), POLLING)
    async with storm.app:
        try:
            frozen = await storm.start()
            await storm.start()
            frozen.freeze()
            tasks = [await storm.app.submit("plod") for _ in range(PLODDERS)]

            async def all_begun() -> bool:
                return {line[1] for line in storm.ledger.read()} == {task.id for task in tasks}

            await eventually(all_begun, ENDED_WITHIN_S)
            frozen.thaw()
            assert [await task.result(120) for task in tasks] == ["done"] * PLODDERS
            assert len(storm.ledger.read()) == PLODDERS, "a step began on both workers"
        finally:
            storm.close()


async def test_the_server_dies(server: Temporal, tmp_path: Path, prove: bool) -> None:
    storm = Storm(server, Ledger(tmp_path / "ledger"), db=f"sqlite:///{tmp_path}/mirror.db")
    await storm.run("server", FAULTS["server"] if prove else FEW)


@pytest.mark.parametrize(("fault", "planted"), [("kill", EARLY), ("freeze", ZOMBIE)])
async def test_planted_faults_are_found(
    server: Temporal, tmp_path: Path, fault: str, planted: str, at_length: None
) -> None:
    """A worker that goes on before its records are durable, and one that does not notice that it was frozen."""
    storm = Storm(server, Ledger(tmp_path / "ledger"), planted)
    with pytest.raises(AssertionError, match=r"ran again|happened more often|stale"):
        await storm.run(fault, FAULTS[fault] // 5)
