"""The deploy demo: its proof holds, it cleans up, and a flaw in the proof is found."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onward.cli.demo.deploy import DeployProof
from onward.cli.demo.workers import Kill
from onward.core.record import Record
from onward.core.task import State, Task
from onward.demo.deploy import FATAL_STEP, STEPS, Cloud
from tests.cli.conftest import controls, process

NAMES = [name for name, _, _ in STEPS]


@pytest.mark.slow
def test_the_demo_passes(tmp_path: Path):
    output = process("demo", cwd=tmp_path, env={**os.environ, "ONWARD_DB": "nonsense", "TMPDIR": str(tmp_path)})
    assert output.status == 0, output.out + output.err
    assert not controls(output.out)
    assert "✗ worker 1 killed" in output.out
    assert output.out.count("✓") == len(NAMES) * 2 + 1 + 7
    assert "every effect exactly once" in output.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_proof_as_json():
    proof = process("demo", "--json").json
    assert proof["holds"] is True
    assert [step["step"] for step in proof["steps"]] == NAMES
    assert {(step["calls"], step["effects"], step["keys"]) for step in proof["steps"]} == {(1, 1, 1), (2, 1, 1)}
    assert proof["resumed_after_s"] > 0
    assert proof["task"]["state"] == "completed"


@pytest.mark.slow
def test_a_demo_that_is_stopped_takes_its_workers_along(tmp_path: Path):
    demo = subprocess.Popen(
        [sys.executable, "-m", "onward", "demo"], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )  # fmt: skip
    assert demo.stdout is not None
    pid = next(int(line.rsplit(" ", 1)[1]) for line in demo.stdout if "worker 1 started" in line)
    demo.send_signal(signal.SIGTERM)
    demo.stdout.close()
    assert demo.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list(tmp_path.iterdir()) == []


# ── the cloud ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_cloud_knows_its_keys(tmp_path: Path):
    cloud = Cloud(tmp_path)
    first, second, other = cloud.request("x", "k1"), cloud.request("x", "k1"), cloud.request("x", "k2")
    assert second == f"{first} (already done)"
    assert other != first
    assert cloud.count() == 2
    assert [(line["key"], line["effect"]) for line in cloud.ledger.lines()] == [
        ("k1", True),
        ("k1", False),
        ("k2", True),
    ]


# ── a proof that can fail ────────────────────────────────────────────────────────────────────────────────────────────


def good() -> DeployProof:
    task = Task(
        "id", "demo.deploy", State.COMPLETED, None, None, None, None, 0, "demo", 1, 0, 0, 0, None, None, None, {}, None
    )
    requests = [{"what": f"{name} for shop", "key": name, "effect": True, "pid": 1} for name in NAMES]
    requests.append({"what": f"{FATAL_STEP} for shop", "key": FATAL_STEP, "effect": False, "pid": 2})
    kinds = [("shift.started", "")] + [("step.completed", name) for name in NAMES] + [("shift.started", "")]
    records = [Record(n, 0, kind, key, b"{}", float(n)) for n, (kind, key) in enumerate(kinds, 1)]
    kill = Kill(1, -9, 1.0, tuple(NAMES[: NAMES.index(FATAL_STEP)]))
    return DeployProof(task, records, [kill], requests, len(NAMES))


def test_a_proof_built_by_hand_holds():
    assert good().holds
    json.dumps(good().as_json())


@pytest.mark.parametrize(
    "flaw",
    [
        {"kills": [good().kills[0]._replace(status=0)]},
        {"kills": [good().kills[0]._replace(recorded=tuple(NAMES))]},
        {"made": 11},
        {"ledger": good().ledger[:-1]},
        {"ledger": [*good().ledger, good().ledger[0]]},
        {"ledger": [*good().ledger[:-1], {**good().ledger[-1], "key": "another", "effect": True}]},
        {"ledger": [*good().ledger[:-1], {**good().ledger[-1], "pid": 1}]},
        {"records": good().records[1:]},
        {"records": [*good().records, Record(99, 0, "shift.ended", "", b"{}", 1.0)]},
        {"records": good().records[:5] + good().records[6:]},
        {"task": dataclasses.replace(good().task, state=State.FAILED)},
    ],
    ids=lambda flaw: next(iter(flaw)),
)
def test_each_flaw_fails_the_proof(flaw):
    assert not dataclasses.replace(good(), **flaw).holds
