"""The test suites of frameworks, run against Onward.

No foreign code is in this repository. `fetch` downloads the source archive of a pinned version from the package index into `.cache/`, with the
packages that its tests need, and `run` runs those tests in a process of its own with a plugin of ours, which puts Onward in the place of the
framework's own checkpointer, store or runner.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from rig.install import CACHE, once, pip
from rig.install import run as pip_run

ROOT = Path(__file__).resolve().parents[3]
SUITES = CACHE / "suites"
PLUGINS = Path(__file__).parent / "plugins"
"""Not a package: suites have a package `tests` of their own."""

TESTS_FAILED = 1
"""The exit status of pytest when tests failed, and nothing else."""

MAX_AGAIN = 3
"""How many failures of a suite are run again."""

PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]


def fetch(package: str, version: str, needs: Sequence[str]) -> Path:
    """The folder of a suite; `site/` in it has the packages that it needs. Raises Unavailable."""
    folder = SUITES / f"{package}-{version}"
    with once("suites"):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            archive = f"{package}=={version}"
            pip_run([*PIP, "download", "--no-deps", "--no-binary", package, "-d", folder, archive])
            pip(folder / "site", *needs)
            with tarfile.open(next(folder.glob("*.tar.gz"))) as tar:
                tar.extractall(folder, filter="data")
            (folder / "complete").touch()
    return folder


def fetch_wheel(package: str, version: str) -> Path:
    """The folder with a package that is too large for the tools of developers. Raises Unavailable."""
    folder = SUITES / f"{package}-{version}"
    with once("suites"):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            pip(folder, f"{package}=={version}")
            (folder / "complete").touch()
    return folder


def run(folder: Path, plugin: str, *words: str, url: str, processes: int = 2, timeout: float = 1200) -> str:
    """Run the tests of a suite; the last line that pytest prints. Raises AssertionError with the failures.

    Some tests of frameworks compare times of 10 ms, and fail on a busy machine. A few failures are run once more, one at a time: those that
    fail again count."""
    done = _pytest(folder, plugin, words, url, processes, timeout)
    failed = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    if done.returncode == TESTS_FAILED and 0 < len(failed) <= MAX_AGAIN:
        options = words[next((n for n, word in enumerate(words) if word.startswith("-")), len(words)) :]
        again = _pytest(folder, plugin, (*failed, *options), url, 0, timeout)
        assert again.returncode == 0, (again.stdout[-6000:], again.stderr[-2000:])
    else:
        assert done.returncode == 0, (done.stdout[-6000:], done.stderr[-2000:])
    return done.stdout.strip().splitlines()[-1]


def _pytest(
    folder: Path, plugin: str, words: Sequence[str], url: str, processes: int, timeout: float
) -> subprocess.CompletedProcess[str]:
    (source,) = [path for path in folder.iterdir() if path.is_dir() and (path / "tests").is_dir()]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "ONWARD_"))}
    env |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(PLUGINS), str(source), str(folder / "site")]),
        "NO_DOCKER": "true",
        "LANGSMITH_TRACING": "false",
        "ONWARD_SUITE_DB": url,
    }
    options = ["-q", "-p", "no:cacheprovider", "-p", plugin, "-n", str(processes)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words],
        check=False, cwd=source, env=env, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
