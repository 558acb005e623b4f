"""Workers that trace are killed with -9 in the middle: over the whole life of a task there is one trace, one span for each recorded
step, and none for replayed ones."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core.record import Record
from onward.telemetry import span_id_of
from rig.processes import Child
from tests.cli.conftest import ROOT
from tests.kit import not_memory

STEPS = 20
TASKS = 4


def judged(journals: dict[str, list[Record]], spans: list[dict[str, Any]], kills: int) -> list[str]:
    """The faults of these spans, compared with the journals of all tasks."""
    wrong: list[str] = []
    mine = collections.defaultdict(list)
    for span in spans:
        mine[span["attributes"].get("onward.task.id")].append(span)
    lost = 0
    for task_id, records in journals.items():
        recorded = {(record.key, record.shift) for record in records if record.kind == "step.completed"}
        done = [span for span in mine[task_id] if span["attributes"].get("onward.outcome") == "completed"]
        steps = [span["attributes"] for span in done if span["name"].startswith("onward.step")]
        span_keys = [(attributes["onward.step.key"], attributes["onward.shift"]) for attributes in steps]
        wrong += [
            f"{task_id}: step {key} has {count} spans"
            for key, count in collections.Counter(key for key, _ in span_keys).items()
            if count > 1
        ]
        wrong += [
            f"{task_id}: {key_and_shift} has a span and is not in the journal"
            for key_and_shift in set(span_keys) - recorded
        ]
        lost += len(recorded - set(span_keys))
        traces = {span["context"]["trace_id"] for span in mine[task_id]}
        wrong += [f"{task_id}: it is in {len(traces)} traces"] if len(traces) != 1 else []
        wrong += _links(task_id, records, mine[task_id])
    if lost > kills * TASKS * 3:  # steps recorded in the very moment of a kill, by each branch that ran
        wrong.append(f"{lost} recorded steps have no span after {kills} kills")
    return wrong


def _links(task_id: str, records: list[Record], spans: list[dict[str, Any]]) -> list[str]:
    shifts = [record.seq for record in records if record.kind == "shift.started"]
    before = {f"0x{span_id_of(task_id, now):016x}": last for last, now in itertools.pairwise(shifts)}
    wrong = []
    for span in spans:
        if span["name"].startswith("invoke_") and span["context"]["span_id"] in before:
            linked = [link["context"]["span_id"] for link in span["links"]]
            wanted = [f"0x{span_id_of(task_id, before[span['context']['span_id']]):016x}"]
            wrong += [] if linked == wanted else [f"{task_id}: a shift links {linked} instead of {wanted}"]
    return wrong


async def lives(url: str, file: Path, kills: int, plant: str = "") -> list[str]:
    """Runs tasks from their submits to their ends, with `kills` kills on the way; returns the faults."""
    env = {"ONWARD_DB": url, "SPANS": str(file), "PLANT": plant, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    app, rng = Onward(url), random.Random(7)

    def start() -> Child:
        child = Child.module("onward", "worker", "tests.telemetry.walkers:app", env=env, cwd=ROOT)
        child.wait_for("ready", 60)
        return child

    async with app:
        worker = await asyncio.to_thread(start)  # it registers the handlers
        tasks = [await app.submit("walk", STEPS) for _ in range(TASKS)]
        try:
            for _ in range(kills):
                await asyncio.sleep(rng.uniform(0.15, 0.4))
                worker.kill9()
                worker.close()
                worker = await asyncio.to_thread(start)
            for task in tasks:
                assert await task.result(timeout=60) == sum(range(STEPS)) + 3
        finally:
            worker.close()
        ended_tasks, _ = await app.list(limit=1000)
        journals = {task.task_id: await app.store.journal(task.task_id) for task in ended_tasks}
    assert len(journals) == 2 * TASKS
    lines = await asyncio.to_thread(file.read_text)
    spans = [json.loads(line) for line in lines.splitlines() if line.endswith("}")]
    shifts = sum(record.kind == "shift.started" for records in journals.values() for record in records)
    assert shifts > 2 * TASKS, "no kill hit anything"
    return judged(journals, spans, kills)


@pytest.mark.slow
@not_memory
async def test_one_trace_and_one_span_for_each_step_after_kills(url: str, tmp_path: Path, prove: bool):
    assert await lives(url, tmp_path / "spans", 20 if prove else 3) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite file"], indirect=True)
async def test_a_worker_with_spans_for_replayed_steps_is_found(url: str, tmp_path: Path):
    wrong = await lives(url, tmp_path / "spans", 3, "replay")
    assert any("has 2 spans" in sentence for sentence in wrong)
