"""Backups under load, restored over the living database, and gone on with: nothing of the backup's moment is lost, no effect is repeated
without a question, each doubtful one is listed, and workers from before the restore write nothing."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.app import backup
from onward.app.application import VERSION
from onward.errors import StoreUnavailable
from tests.faults import payments
from tests.faults.band import Crew, Place

pytestmark = pytest.mark.slow

LEASE_S = 2.0
WORKERS = 4
SETTINGS: dict[str, Any] = {"lease_s": LEASE_S, "heartbeat_s": 0.4, "poll_s": 0.1}
PROGRAM = "tests.faults.payments"
ROUND_TIMEOUT_S = 120.0


@dataclasses.dataclass
class Found:
    """What the rounds have found."""

    acknowledged: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    repeated: list[str] = dataclasses.field(default_factory=list)
    unlisted: list[str] = dataclasses.field(default_factory=list)
    doubts: int = 0
    zombies: list[str] = dataclasses.field(default_factory=list)
    refused: int = 0

    @property
    def faults(self) -> dict[str, list[str]]:
        names = ("lost", "wrong", "repeated", "unlisted", "zombies")
        return {name: getattr(self, name)[:5] for name in names if getattr(self, name)}


class Rounds:
    def __init__(self, place: Place, fault: str = "") -> None:
        self.place, self.found, self.rng = place, Found(), random.Random(12)
        self._since = 0.0
        self.options = {"program": PROGRAM, "fault": fault, "slots": 10, **SETTINGS}

    def app(self) -> Onward:
        return payments.build(self.place.url, str(self.place.ledger.path), **SETTINGS)

    async def run(self, rounds: int) -> None:
        async with self.app():
            pass  # the tables
        with Crew(self.place, WORKERS, **self.options).ready(WORKERS) as crew:
            for number in range(rounds):
                await self._round(crew, self.place.home / f"backup-{number}")

    async def _round(self, crew: Crew, folder: Path) -> None:
        acknowledged: list[str] = []
        self._since = time.time()
        async with self.app() as app:
            load = asyncio.create_task(self._load(app, acknowledged))
            await asyncio.sleep(1.0)
            store, where = app.store.backups, app.store.where
            before = list(acknowledged)
            await backup.back_up(store, None, folder, where=where, version=VERSION, tell=lambda _: None)
            await asyncio.sleep(self.rng.uniform(0.2, 1.0))
            old = set(crew.alive)
            restored = await backup.restore(store, None, folder, overwrite=True, lease_s=LEASE_S, tell=lambda _: None)
            began = time.time()
            await asyncio.sleep(0.3)
            load.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await load
        for pid in self.rng.sample(sorted(old), WORKERS // 2):
            crew.kill9(pid)  # the others live on, in the epoch before; new ones come in their place
        await self._go_on(crew, before, old, began, restored.epoch.restored_at or began)
        for pid in old & set(crew.alive):
            crew.kill9(pid)
        crew.ready(WORKERS)

    async def _load(self, app: Onward, acknowledged: list[str]) -> None:
        while True:
            try:
                handle = await app.submit("sell", self.rng.randint(20, 120))
            except StoreUnavailable:
                self.found.refused += 1
                await asyncio.sleep(0.02)
            else:
                acknowledged.append(handle.id)
                await asyncio.sleep(0.005)

    async def _go_on(self, crew: Crew, before: list[str], old: set[int], began: float, restored_at: float) -> None:
        listed: set[tuple[str, str]] = set()
        async with self.app() as app:
            end = time.monotonic() + ROUND_TIMEOUT_S
            while time.monotonic() < end:
                for task_id, _ in await app.store.listing.doubts(100_000):
                    for doubt in await app.doubts(task_id):
                        listed.add((task_id, doubt.step))
                        happened = self._counts()[task_id, doubt.step] > 0
                        await app.resolve(
                            task_id,
                            "happened" if happened else "not_happened",
                            f"{doubt.step} done",
                            step=doubt.step,
                        )
                if self.place.rows("SELECT count(*) FROM onward_queue")[0][0] == 0:
                    break
                await asyncio.sleep(0.1)
            await self._judge(app, before, listed, old, crew, began, restored_at)

    def _counts(self) -> collections.Counter[tuple[str, str]]:
        return collections.Counter((line[1], line[0]) for line in self.place.ledger.read())

    async def _judge(
        self,
        app: Onward,
        before: list[str],
        listed: set[tuple[str, str]],
        old: set[int],
        crew: Crew,
        began: float,
        restored_at: float,
    ) -> None:
        found, counts = self.found, self._counts()
        found.acknowledged += len(before)
        found.doubts += len(listed)
        ids = {row[0] for row in self.place.rows("SELECT id FROM onward_tasks")}
        ends = dict(self.place.rows("SELECT task_id, state FROM onward_outcomes"))
        found.lost += sorted(set(before) - ids)
        found.wrong += [f"{task} {ends.get(task)}" for task in sorted(ids) if ends.get(task) != "completed"]
        for task in before:
            if task in ids and ends.get(task) == "completed" and (await app.get(task)).result != payments.RESULT:
                found.wrong.append(task)
        found.repeated += [
            f"{task} {step} {counts[task, step]}"
            for task in sorted(ids)
            for step in ("pay", "mail", "ship")
            if counts[task, step] > 1
        ]
        # An effect of this round before the restore, of a task that the backup has unfinished and without its record: a person was
        # asked. (A worker that began in the round before may have done effects after its restore, about which a person was asked then.)
        for name, task, _, pid, at in self.place.ledger.read():
            if task in ids and name in {"pay", "ship"} and pid in old and self._since < at < began:
                recorded = self.place.rows(
                    f"SELECT count(*) FROM onward_journal a JOIN onward_journal b ON b.task_id = a.task_id AND b.kind = 'task.restored' "
                    f"AND b.seq > a.seq WHERE a.task_id = '{task}' AND a.kind = 'step.completed' AND a.key = '{name}'"
                )[0][0]
                lost = self.place.rows(
                    f"SELECT count(*) FROM onward_journal WHERE task_id = '{task}' AND kind = 'task.restored'"
                )[0][0]
                if lost and not recorded and (task, name) not in listed:
                    found.unlisted.append(f"{task} {name}")
        zombies = {name for name, pid in crew.names.items() if pid in old}
        for task, data in self.place.rows(
            f"SELECT task_id, data FROM onward_journal WHERE kind = 'shift.started' AND at > {restored_at}"
        ):
            if json.loads(bytes(data))["worker"] in zombies:
                found.zombies.append(task)


async def test_backups_under_load(place: Place, prove: bool, print_proof: Callable[..., None]) -> None:
    rounds = Rounds(place)
    await rounds.run(20 if prove else 2)
    found = rounds.found
    print_proof("backed up and restored", place.kind, dataclasses.asdict(found))
    assert not found.faults
    assert found.acknowledged > 0, "VOID: nothing was acknowledged before a backup"
    assert found.doubts > 0, "VOID: nothing was in doubt"
    assert found.refused > 0, "VOID: no submit of the client from before the restore was refused"


@pytest.mark.parametrize("fault", ["no fence", "no doubt"])
async def test_the_rounds_find_a_planted_fault(place: Place, fault: str) -> None:
    rounds = Rounds(place, fault)
    if (place.kind, fault) == ("sqlite", "no fence"):  # the restore itself notices that leases are renewed
        with pytest.raises(StoreUnavailable, match="workers are started again and again"):
            await rounds.run(2)
        return
    await rounds.run(2)
    assert rounds.found.faults
