"""Looks for known vulnerabilities of the locked packages (`requirements/*.txt`), with pip-audit. `make audit` runs it.

pip-audit calls packages that it could not look up "skipped" and still succeeds. Here that is a failure with a sentence of its own: an
audit that reached no database says nothing about the packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VULNERABLE, NOT_AUDITED = 1, 3
"""Exit statuses: a package has a known vulnerability; packages could not be looked up."""

TIMEOUT_S = 600


Found = list[dict[str, Any]] | None
"""The packages of a file as pip-audit reports them; None when it reported nothing."""


def main() -> int:
    """Audit all files; the exit status."""
    status, lines = judge({path.name: audit(path) for path in sorted((ROOT / "requirements").glob("*.txt"))})
    print(*lines, sep="\n")
    return status


def judge(audits: dict[str, Found]) -> tuple[int, list[str]]:
    """The exit status, and the lines to print."""
    if vulnerable := sorted({line for dependencies in audits.values() for line in vulnerabilities(dependencies)}):
        return VULNERABLE, vulnerable
    skipped = {each["name"] for dependencies in audits.values() for each in dependencies or () if "skip_reason" in each}
    unread = [name for name, dependencies in audits.items() if not dependencies]
    if unread or skipped:
        of_files = [f"the packages of {', '.join(unread)}"] if unread else []
        packages = " and ".join([*of_files, *([f"{len(skipped)} packages"] if skipped else [])])
        return NOT_AUDITED, [
            f"not audited: the advisory database could not be reached for {packages}; nothing is known about them"
        ]
    return 0, [f"no known vulnerability in {', '.join(audits)}"]


def audit(path: Path) -> Found:
    """Run pip-audit for a file."""
    command = [sys.executable, "-m", "pip_audit", "-r", str(path), "--disable-pip", "--require-hashes", "-f", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return dependencies


def vulnerabilities(dependencies: Found) -> list[str]:
    """A line for each vulnerability."""
    return [
        f"{each['name']} {each['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version yet'}"
        for each in dependencies or ()
        for found in each.get("vulns", ())
    ]


if __name__ == "__main__":
    sys.exit(main())
