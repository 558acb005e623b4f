"""The mirror equals the workflows, record for record, after workers and the server of Temporal were killed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.engines.copy import Copier, TaskCopy
from rig.ledger import Ledger
from rig.processes import Child
from rig.temporal import Temporal
from tests.engines.kit import differences
from tests.engines.temporal_worker import make_app
from tests.kit import eventually, running

pytestmark = pytest.mark.slow

TASKS = 6
KILLS = 4
"""How often the worker is killed. Before the second kill the server is killed as well."""


@pytest.fixture(autouse=True)
def _plain(plain_payloads: None) -> None:
    """Encryption is refused on Temporal."""


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_LEASE_S", "2")
    monkeypatch.setenv("ONWARD_HEARTBEAT_S", "0.3")


@pytest.fixture
def server() -> Iterator[Temporal]:
    """A server of its own: the test kills it."""
    with running(Temporal(), "no Temporal server") as server:
        yield server


async def test_the_mirror_equals_the_workflows_after_kills(server: Temporal, tmp_path: Path, mirror_db: str) -> None:
    url, ledger = f"{server.url}?queue=kills", Ledger(tmp_path / "ledger")
    app = make_app(url, ledger, mirror_db)
    async with app:
        child = await _start(url, ledger, mirror_db)
        try:
            handles = [await app.submit("work") for _ in range(TASKS)]
            for number in range(1, KILLS + 1):
                await _begun(app, ledger, handles, number * TASKS * 2)
                child.kill9()
                if number == 2:
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                child = await _start(url, ledger, mirror_db)
            await _ended(app, ledger, handles)
            assert [await differences(app, handle.id) for handle in handles] == [[]] * TASKS
        finally:
            child.close()


async def test_a_record_that_was_not_written_is_seen(
    server: Temporal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison of the test above finds a gap: this mirror leaves a record out."""
    write = Copier.write

    async def leave_out(self: Copier, task: TaskCopy, contents: Mapping[str, bytes]) -> None:
        records = [record for record in task.records if record.seq != 5]
        await write(self, dataclasses.replace(task, records=records), contents)

    monkeypatch.setattr(Copier, "write", leave_out)
    ledger = Ledger(tmp_path / "ledger")
    app = make_app(f"{server.url}?queue=gap", ledger, f"sqlite:///{tmp_path}/mirror.db")
    async with app.worker():
        handle = await app.submit("work")
        await _ended(app, ledger, [handle])
        (difference,) = await differences(app, handle.id)
        assert difference.startswith("records: ")


async def _start(url: str, ledger: Ledger, db: str) -> Child:
    child = Child.module("tests.engines.temporal_worker", url, str(ledger.path), db)
    await asyncio.to_thread(child.wait_for, "ready")
    return child


async def _resolved(app: Onward, ledger: Ledger, handles: list[Any]) -> bool:
    """Whether all tasks have ended in the mirror. A person who looks into the ledger decides about a charge in doubt."""
    tasks = [await handle.get() for handle in handles]
    for task in tasks:
        if task.reason == "in_doubt":
            charged = any(line[:2] == ["charge", task.task_id] for line in ledger.read())
            await app.resolve(task.task_id, "happened" if charged else "not_happened", "charged")
    return all(task.ended for task in tasks)


async def _begun(app: Onward, ledger: Ledger, handles: list[Any], steps: int) -> None:
    """Wait until so many steps have begun, or all tasks have ended."""

    async def enough() -> bool:
        return len(ledger.read()) >= steps or await _resolved(app, ledger, handles)

    await eventually(enough, 120)


async def _ended(app: Onward, ledger: Ledger, handles: list[Any]) -> None:
    await eventually(lambda: _resolved(app, ledger, handles), 120)
