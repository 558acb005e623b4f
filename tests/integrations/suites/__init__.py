"""The test suites of frameworks, run against Onward.

No foreign code is in this repository. `fetch` downloads the source archive of a pinned version from the package index into `.cache/`, with the
packages that its tests need, and `run` runs those tests in a process of its own with a plugin of ours, which puts Onward in the place of the
framework's own checkpointer or store.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "suites"
PLUGINS = Path(__file__).parent / "plugins"
"""Not a package: suites have a package `tests` of their own."""

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


class SuiteUnavailable(Exception):
    """The package index did not give the suite."""


def fetch(package: str, version: str, needs: Sequence[str]) -> Path:
    """The folder of a suite; `site/` in it has the packages that it needs. Raises SuiteUnavailable."""
    folder = CACHE / f"{package}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _pip("download", "--no-deps", "--no-binary", package, "-d", str(folder), f"{package}=={version}")
            _pip("install", "--no-deps", "--target", str(folder / "site"), *needs)
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
            (folder / "complete").touch()
    return folder


def _pip(*words: str) -> None:
    done = subprocess.run([*PIP, *words], check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SuiteUnavailable(f"the package index did not give {words[-1]}: {done.stderr.strip()[-300:]}")


def run(folder: Path, plugin: str, *words: str, url: str, processes: int = 2, timeout: float = 1200) -> str:
    """Run the tests of a suite; the last line that pytest prints. Raises AssertionError with the failures."""
    (source,) = [path for path in folder.iterdir() if path.is_dir() and (path / "tests").is_dir()]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "ONWARD_"))}
    env |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(PLUGINS), str(source), str(folder / "site")]),
        "NO_DOCKER": "true",
        "LANGSMITH_TRACING": "false",
        "ONWARD_SUITE_DB": url,
    }
    options = ["-q", "-p", "no:cacheprovider", "-p", plugin, "-n", str(processes)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words],
        check=False, cwd=source, env=env, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-6000:], done.stderr[-2000:])
    return done.stdout.strip().splitlines()[-1]
