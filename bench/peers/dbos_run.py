"""DBOS Transact: durable steps as a library, on PostgreSQL or SQLite. https://github.com/dbos-inc/dbos-transact-py

Settings, of those tried on two cores: synchronous workflows in 250 threads, so that 200 are under way at once (asynchronous
ones give 190 steps/s); a pool of five connections (2 to 20 within 7 %), without SQLAlchemy's ping before each use. Its own
process calls it in W4, and waits on a future: a client in another process polls. It recovers at once in W5 because the new
process bears the executor id of the dead one; a process of another name would not take the work over.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found]

from bench.measure import W3, W4_STEPS, W5_AGAIN, W5_DONE, Figure, percentile
from bench.peers import child

NAME = "dbos"
TASKS = 200
STEPS = 20
WARM_UP = 40
CRASH_TASKS = 100
CRASH_STEPS = 10
NAP = 0.2


def w3(url: str, quick: bool) -> list[Figure]:
    started: list[float] = []

    def work() -> None:
        started.append(time.monotonic())
        for _ in range(STEPS):
            step()

    step = DBOS.step(name="step")(_do_nothing)
    workflow = DBOS.workflow(name="work")(work)
    _launch(url)
    tasks = 40 if quick else TASKS
    for count in (WARM_UP, tasks):
        started.clear()
        handles = [DBOS.start_workflow(workflow) for _ in range(count)]
        for handle in handles:
            handle.get_result()
    seconds = time.monotonic() - started[0]
    assert len(DBOS.list_workflow_steps(handles[0].get_workflow_id())) == STEPS
    assert len(DBOS.list_workflows(status="SUCCESS")) == WARM_UP + tasks
    DBOS.destroy()
    return [
        Figure(W3, NAME, _store(url), tasks * STEPS / seconds, "steps/s", "synchronous, 250 threads, 5 connections")
    ]


def w4(url: str, quick: bool) -> list[Figure]:
    def work() -> None:
        for _ in range(10):
            step()

    step = DBOS.step(name="step")(_do_nothing)
    workflow = DBOS.workflow(name="work")(work)
    _launch(url)
    taken = []
    for _ in range(15 if quick else 105):
        time.sleep(0.02)
        start = time.monotonic()
        DBOS.start_workflow(workflow).get_result()
        taken.append(time.monotonic() - start)
    DBOS.destroy()
    taken = taken[5:]
    return [
        Figure(
            W4_STEPS, NAME, _store(url), percentile(taken, 50) * 1000, "ms", f"{len(taken)} tasks, in its own process"
        )
    ]


def w5(url: str, quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        ledger = Path(directory) / "ledger"
        ledger.touch()
        with child.Worker("crew", url, ledger, "begin"):
            while _ended(ledger.read_bytes()) < CRASH_TASKS * CRASH_STEPS / 2:
                time.sleep(0.01)
        before = ledger.read_bytes()
        start = time.monotonic()
        with child.Worker("crew", url, ledger, "resume") as worker:
            seconds = worker.hear() - start
        after = ledger.read_bytes()[len(before) :]
    again = len(_steps(before, b"E") & _steps(after, b"S"))
    in_flight = len(_steps(before, b"S") - _steps(before, b"E"))
    note = f"executor id kept; {_ended(before)} steps finished and {in_flight} in flight at the kill"
    return [
        Figure(W5_DONE, NAME, _store(url), seconds, "s", note),
        Figure(W5_AGAIN, NAME, _store(url), again, "steps", f"of {_ended(before)} finished"),
    ]


def crew(url: str, path: str, errand: str) -> None:
    """Begins a hundred tasks, or resumes what a dead crew left, noting each start (S) and end (E) of a step in the ledger."""
    ledger = os.open(path, os.O_WRONLY | os.O_APPEND)

    def nap(task: int, number: int) -> None:
        os.write(ledger, b"S%03d%02d\n" % (task, number))
        time.sleep(NAP)
        os.write(ledger, b"E%03d%02d\n" % (task, number))

    def work(task: int) -> None:
        all_begun.wait()
        for number in range(CRASH_STEPS):
            step(task, number)

    # Without it the first tasks are done before the last are begun, and the kill finds fewer than a hundred.
    all_begun = threading.Event()

    step = DBOS.step(name="nap")(nap)
    workflow = DBOS.workflow(name="work")(work)
    _launch(url)
    if errand == "begin":
        for task in range(CRASH_TASKS):
            with SetWorkflowID(f"task-{task}"):
                DBOS.start_workflow(workflow, task)
    all_begun.set()
    last_steps = {b"E%03d%02d" % (task, CRASH_STEPS - 1) for task in range(CRASH_TASKS)}
    while not last_steps.issubset(Path(path).read_bytes().splitlines()):
        time.sleep(0.01)
    while len(DBOS.list_workflows(status="SUCCESS", load_input=False, load_output=False)) < CRASH_TASKS:
        time.sleep(0.01)
    child.say(time.monotonic())


def _ended(ledger: bytes) -> int:
    return ledger.count(b"E")


def _steps(ledger: bytes, kind: bytes) -> set[bytes]:
    return {line[1:] for line in ledger.splitlines() if line.startswith(kind)}


def _do_nothing() -> dict[str, bool]:
    return {"ok": True}


def _launch(url: str) -> None:
    config: dict[str, Any] = {
        "name": "bench",
        "system_database_url": url,
        "sys_db_pool_size": 5,
        "max_executor_threads": 250,
        "log_level": "ERROR",
    }
    if _store(url) == "postgres":
        config["db_engine_kwargs"] = {"pool_pre_ping": False}
    DBOS(config=config)
    DBOS.launch()


def _store(url: str) -> str:
    return "sqlite" if url.startswith("sqlite") else "postgres"


if __name__ == "__main__":
    child.main({"W3": w3, "W4": w4, "W5": w5}, {"crew": crew})
