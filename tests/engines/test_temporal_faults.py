"""Workers and the server of Temporal, killed and frozen: no recorded step runs again, and no `once` effect happens twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from rig.ledger import Ledger
from rig.processes import Child
from rig.temporal import Temporal
from tests.engines.temporal_worker import STEPS, make_app
from tests.kit import eventually, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("temporal")]

TASKS = 6

_queues = itertools.count(1)


@pytest.fixture
def server() -> Iterator[Temporal]:
    """A server of its own: the tests kill it."""
    with running(Temporal(), "no Temporal server") as server:
        yield server


async def _start(url: str, ledger: Ledger) -> Child:
    child = Child.module("tests.engines.temporal_worker", url, str(ledger.path))
    await asyncio.to_thread(child.wait_for, "ready")
    return child


async def _begun(ledger: Ledger, steps: int) -> None:
    """Wait until so many steps have begun."""

    async def enough() -> bool:
        return len(ledger.read()) >= steps

    await eventually(enough)


async def _all_ended(app: Onward, ledger: Ledger, handles: list[Any]) -> None:
    """Wait until all tasks have ended. A person who looks into the ledger decides about a charge in doubt."""
    for handle in handles:

        async def ended(handle: Any = handle) -> bool:
            task = await handle.get()
            if task.reason == "in_doubt":
                charged = ["charge", handle.id] in ledger.read()
                await app.resolve(handle.id, "happened" if charged else "not_happened", "charged")
            return bool(task.ended)

        await eventually(ended, 120)


async def _check(app: Onward, ledger: Ledger, handles: list[Any]) -> int:
    """Compare journals and ledger; how many steps ran more than once."""
    again = 0
    for handle in handles:
        records = await app.service.journal(handle.id)
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        runs = await handle.result(10)
        assert len(runs) == STEPS
        for number, run in enumerate(runs):
            begun = [line[3] for line in ledger.read() if line[:3] == ["step", handle.id, number]]
            assert begun[-1] == run, "a recorded step ran again"
            again += len(begun) - 1
        assert ledger.read().count(["charge", handle.id]) == 1
    return again


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_workers_die_and_hang(server: Temporal, tmp_path: Path, fault: str) -> None:
    url, ledger = f"{server.url}?queue=faults-{next(_queues)}", Ledger(tmp_path / "ledger")
    app = make_app(url, ledger)
    async with app:
        children = [await _start(url, ledger)]
        try:
            handles = [await app.submit("work") for _ in range(TASKS)]
            await _begun(ledger, 2 * TASKS)
            (children[0].kill9 if fault == "kill" else children[0].freeze)()
            children.append(await _start(url, ledger))
            await _begun(ledger, 4 * TASKS)
            if fault == "freeze":
                children[0].thaw()
            await _all_ended(app, ledger, handles)
            again = await _check(app, ledger, handles)
            assert again <= 2 * TASKS, "only steps that were under way, also on a machine that is slow"
        finally:
            for child in children:
                child.close()


async def test_the_server_dies(server: Temporal, tmp_path: Path) -> None:
    url, ledger = f"{server.url}?queue=faults-{next(_queues)}", Ledger(tmp_path / "ledger")
    app = make_app(url, ledger)
    async with app:
        child = await _start(url, ledger)
        try:
            handles = [await app.submit("work") for _ in range(TASKS)]
            await _begun(ledger, 2 * TASKS)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await _all_ended(app, ledger, handles)
            await _check(app, ledger, handles)
        finally:
            child.close()
