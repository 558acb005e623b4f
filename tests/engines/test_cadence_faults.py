"""Workers of Cadence, killed: no recorded step runs again, no stale record, and no `once` effect twice."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from rig.cadence import Cadence
from rig.ledger import Ledger
from rig.processes import Child
from tests.engines.cadence_worker import STEPS, make_app
from tests.kit import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cadence")]

KILLS = 10
WITHIN_S = 240.0

RUN = uuid.uuid4().hex[:8]
"""Names the task lists of this run: $ONWARD_CADENCE may name a server that has older ones."""

_lists = itertools.count(1)


async def _start(url: str, ledger: Ledger, fault: str) -> Child:
    child = Child.module("tests.engines.cadence_worker", url, str(ledger.path), fault)
    await asyncio.to_thread(child.wait_for, "ready")
    return child


async def _grown(ledger: Ledger, length: int) -> None:
    """Wait until the ledger has so many lines."""

    async def enough() -> bool:
        return len(ledger.read()) >= length

    await eventually(enough, WITHIN_S)


async def _charging(ledger: Ledger) -> None:
    """Wait until a charge has begun."""

    async def charges() -> bool:
        return any(line[0] == "charge" for line in ledger.read())

    await eventually(charges, WITHIN_S)


async def _all_ended(app: Onward, ledger: Ledger, handles: list[Any]) -> None:
    """Wait until all tasks have ended. A person looks into the ledger, and decides about charges in doubt and tasks that crashed often."""
    for handle in handles:

        async def ended(handle: Any = handle) -> bool:
            task = await handle.get()
            if task.reason == "in_doubt":
                charged = ["charge", handle.id] in ledger.read()
                await app.resolve(handle.id, "happened" if charged else "not_happened", "charged")
            elif task.reason == "quarantined":
                await app.resume(handle.id)
            return bool(task.ended)

        await eventually(ended, WITHIN_S)


async def _check(app: Onward, ledger: Ledger, handles: list[Any]) -> None:
    """Compare journals and ledger."""
    lines = ledger.read()
    for handle in handles:
        records = await app.service.journal(handle.id)
        assert [record.seq for record in records] == list(range(1, len(records) + 1)), "a stale record"
        done = Counter(record.key for record in records if record.kind == r.STEP_DONE)
        assert set(done.values()) == {1}, "a recorded step ran again"
        runs = await handle.result(10)
        assert len(runs) == STEPS
        for number, run in enumerate(runs):
            begun = [line[3] for line in lines if line[:3] == ["step", handle.id, number]]
            assert begun[-1] == run, "a recorded step ran again"
        assert lines.count(["charge", handle.id]) == 1, "an effect happened twice"


async def _kill_workers(cadence: Cadence, folder: Path, kills: int, fault: str = "") -> None:
    """Submit tasks and kill their worker, again and again: early and late in the tasks, and once at least in a charge."""
    url, ledger = f"{cadence.url}?tasklist=faults-{RUN}-{next(_lists)}", Ledger(folder / "ledger")
    app, handles = make_app(url, ledger, fault), []
    async with app:
        child = await _start(url, ledger, fault)
        try:
            for number in range(kills):
                handles.append(await app.submit("work"))
                if number == 0:
                    await _charging(ledger)
                else:
                    await _grown(ledger, len(ledger.read()) + 1 + number % 6)
                child.kill9()
                child.close()
                child = await _start(url, ledger, fault)
            await _all_ended(app, ledger, handles)
            await _check(app, ledger, handles)
        finally:
            child.close()


async def test_ten_workers_die(cadence: Cadence, tmp_path: Path) -> None:
    await _kill_workers(cadence, tmp_path, KILLS)


@pytest.mark.parametrize(
    ("fault", "symptom"), [("forget", "a recorded step ran again"), ("charge again", "an effect happened twice")]
)
async def test_the_test_sees_planted_faults(cadence: Cadence, tmp_path: Path, fault: str, symptom: str) -> None:
    with pytest.raises(AssertionError, match=symptom):
        await _kill_workers(cadence, tmp_path, 1, fault)
