"""The official conformance suite, its latest release and the next one, against the product's server.

baseline.yml has a line with a reason for each expected failure. The suite also fails when such a line is no longer needed. The
test counts the checks that passed, so that a suite that runs nothing fails.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from rig.conformance import LATEST, NEXT, Conformance, Report
from rig.processes import Child
from rig.server import Unavailable
from tests.kit import not_memory

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

CHECKS = {LATEST: 44, NEXT: 231}
"""Checks that passed when this was written."""

TASKS = (
    "lifecycle",
    "capability-negotiation",
    "wire-fields",
    "request-state-removal",
    "mrtr-input",
    "request-headers",
    "dispatch-and-envelope",
    "required-task-error",
    "mrtr-composition",
)


async def checked(version: str, db: str, tmp_path: Path) -> Report:
    suite = Conformance(version)
    try:
        await asyncio.to_thread(suite.obtain)
    except Unavailable as why:
        pytest.skip(str(why))
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    with Child.module("tests.server.mcp.everything", db, env=env, cwd=tmp_path) as server:
        url = await asyncio.to_thread(server.wait_for, "http://", 60)
        return await asyncio.to_thread(lambda: suite.run(url, baseline=HERE / "baseline.yml"))


@pytest.mark.slow
@not_memory
@pytest.mark.parametrize("version", [LATEST, NEXT])
async def test_the_official_suite_passes(version: str, url: str, kind: str, tmp_path: Path, prove: bool) -> None:
    if kind == "postgres" and (version == LATEST or not prove):
        pytest.skip("tried on SQLite; on PostgreSQL the version with tasks alone is for `make prove`")
    report = await checked(version, url, tmp_path)
    assert report.as_expected, report.text[-6000:]
    assert report.passed >= CHECKS[version], report.text[-6000:]
    assert report.failed == 1, report.text[-6000:]
    if version == NEXT:
        for name in TASKS:
            (passed,) = re.findall(rf"^✓ tasks-{name}: (\d+) passed, 0 failed", report.text, re.MULTILINE)
            assert int(passed) >= 2, name


async def test_each_expected_failure_has_a_reason() -> None:
    lines = (HERE / "baseline.yml").read_text().splitlines()
    listed = [n for n, line in enumerate(lines) if line.strip().startswith("- ")]
    assert listed
    assert all(lines[n - 1].strip().startswith("#") for n in listed)
