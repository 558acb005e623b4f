"""docs/guides/changing-code.md is true: its files run, and its commands say what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rig.processes import Child

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "changing-code.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the guide, as a reader would save them."""
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL):
        (tmp_path / name).write_text(code, encoding="utf-8")
    return tmp_path


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("ONWARD")} | {"PYTHONPATH": str(ROOT / "src")}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )


def onward(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "onward", *words)


@pytest.mark.slow
def test_the_guide(folder: Path) -> None:
    with Child.module("onward", "worker", "shop:app", cwd=folder, env=environment()) as worker:
        worker.wait_for("ready", timeout=60)
        task_id = onward(folder, "submit", "order", '"hat"').stdout.strip()
        for _ in range(100):
            if "asleep" in onward(folder, "show", task_id).stdout:
                break
    answers = re.findall(r"\$ onward check (\S+)\n(.*?)```", GUIDE, re.DOTALL)
    assert [target for target, _ in answers] == ["shop_next:app", "shop_marked:app"]
    for status, (target, says) in zip((1, 0), answers, strict=True):
        done = onward(folder, "check", target)
        assert done.returncode == status, done.stderr
        assert done.stdout.replace(task_id, "07…").split() == says.split()
    assert onward(folder, "replay", task_id, "shop:app").returncode == 0
    assert onward(folder, "replay", task_id, "shop_next:app").returncode == 1
    done = run(folder, "again.py")
    assert done.stdout == "will happen again: charge\npending\n", done.stderr
