"""axe-core, the accessibility checker that nobody here wrote, from the npm registry into the repository's .cache/.

    findings(page)              # what axe finds on a page of Playwright: a line for each serious or critical finding
"""

from __future__ import annotations

import fcntl
import functools
from typing import Any

from rig.aimock import CACHE, _run, npm

VERSION = "4.14.0"
HOME = CACHE / f"axe-core-{VERSION}"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SERIOUS = ("serious", "critical")


@functools.cache
def source() -> str:
    """Its program, fetched once for all processes of a test run. Raises Unavailable."""
    program = HOME / "node_modules" / "axe-core" / "axe.min.js"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "axe-core.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            quietly = ("--silent", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=20000")
            _run([*npm(), "install", *quietly, "--prefix", HOME, f"axe-core@{VERSION}"])
    return program.read_text(encoding="utf-8")


def findings(page: Any, impacts: tuple[str, ...] = SERIOUS) -> list[str]:
    """What is wrong with what a page (of Playwright's sync API) shows now, as lines."""
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(source())
    found = page.evaluate("(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags}, resultTypes: ['violations']})", TAGS)
    return [
        f"{one['impact']} {one['id']}: {one['help']}: {node['html'][:160]} {node.get('failureSummary', '')[:300]}"
        for one in found["violations"]
        if one["impact"] in impacts
        for node in one["nodes"][:3]
    ]
