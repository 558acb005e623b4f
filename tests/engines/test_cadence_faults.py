"""Workers of Cadence, killed: no recorded step runs again, no stale record, and no `once` effect twice."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from onward.errors import StoreUnavailable
from rig.cadence import Cadence
from rig.ledger import Ledger
from rig.processes import Child
from tests.engines.cadence_histories import last_events
from tests.engines.cadence_worker import STEPS, make_app
from tests.kit import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cadence")]

KILLS = 10
WITHIN_S = 240.0
EVENTS_SHOWN = 30
ERRORS_SHOWN = 40
"""Lines of a failure about the history of the workflow, and about the errors of the worker."""

RUN = uuid.uuid4().hex[:8]
"""Names the task lists of this run: $ONWARD_CADENCE may name a server that has older ones."""

_lists = itertools.count(1)


async def _start(url: str, ledger: Ledger, fault: str) -> Child:
    child = Child.module("tests.engines.cadence_worker", url, str(ledger.path), fault)
    await asyncio.to_thread(child.wait_for, "ready")
    return child


async def _grown(ledger: Ledger, length: int) -> bool:
    """Whether the ledger has so many lines."""
    return len(ledger.read()) >= length


async def _charging(ledger: Ledger) -> bool:
    """Whether a charge has begun."""
    return any(line[0] == "charge" for line in ledger.read())


async def _ended(app: Onward, ledger: Ledger, handle: Any) -> bool:
    """Whether the task has ended. A person looks into the ledger, and decides about charges in doubt and tasks that crashed often."""
    try:
        task = await handle.get()
        if task.reason == "in_doubt":
            charged = ["charge", handle.id] in ledger.read()
            await app.resolve(handle.id, "happened" if charged else "not_happened", "charged")
        elif task.reason == "quarantined":
            await app.resume(handle.id)
    except StoreUnavailable:  # the worker of a busy machine did not answer in time: the test asks again
        return False
    return bool(task.ended)


async def _until(check: Callable[[], Awaitable[bool]], app: Onward, handle: Any, child: Child) -> None:
    """Wait for something about this task; the failure tells where the task, its workflow and the worker are."""
    try:
        await eventually(check, WITHIN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await _account(app, handle, child)}") from error


async def _account(app: Onward, handle: Any, child: Child) -> str:
    """The task, the end of the history of its workflow, its open activities, and the errors of the worker."""
    try:
        task = await handle.get()
        state = f"state {task.state}, reason {task.reason}, attempt {task.attempt}"
    except StoreUnavailable as error:
        state = str(error)
    history = "\n".join(await last_events(app, handle.id, EVENTS_SHOWN))
    errors = "\n".join(child.errors[-ERRORS_SHOWN:])
    return f"task {handle.id}: {state}\n{history}\nthe worker {'runs' if child.running else 'has ended'}; its errors:\n{errors}"


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
                enough = partial(_grown, ledger, len(ledger.read()) + 1 + number % 6)
                await _until(enough if number else partial(_charging, ledger), app, handles[-1], child)
                child.kill9()
                child.close()
                child = await _start(url, ledger, fault)
            for handle in handles:
                await _until(partial(_ended, app, ledger, handle), app, handle, child)
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
