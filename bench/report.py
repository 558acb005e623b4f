"""The table: every figure with its ratio to the bare limit and to the best neighbour, under the facts it depends on.

A ratio above 1 is better than what it is compared with, be it a rate or a time. The bare limit is that of the same store;
the best neighbour is the best on any store, for who chooses an engine chooses its store as well.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sysconfig
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import apsw
import psycopg

from bench.bare import SQLITE_PRAGMAS, fdatasync_microseconds
from bench.measure import BARE, ONWARD, ORDER, Figure, amount

HEADINGS = ("workload", "system", "store", "value", "unit", "x bare", "x best peer", "how")
PACKAGES = ("asyncpg", "apsw", "psycopg", "uvloop", "onward")
POSTGRES_SETTINGS = ("fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "shared_buffers")

Facts = dict[str, str]


def facts(postgres_url: str | None, directory: Path, peers: Sequence[str]) -> Facts:
    """All that the figures depend on and that differs between two machines or two days."""
    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "disk": f"fdatasync of 8 kB takes {fdatasync_microseconds(directory):.0f} us",
        "Python": f"{platform.python_version()} ({_build()}), {', '.join(_versions(PACKAGES))}",
        "SQLite": f"{apsw.sqlite_lib_version()}, "
        + ", ".join(f"{name} {value}" for name, value in SQLITE_PRAGMAS.items()),
    }
    if postgres_url:
        found["PostgreSQL"] = _postgres(postgres_url)
    if peers:
        found["peers"] = ", ".join(peers)
    return found


def _build() -> str:
    """A Python that was built without profile-guided optimisation runs our code, and nobody else's C, a fifth slower."""
    said = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return "optimised build" if "--enable-optimizations" in said else "build without optimisations"


def company(probes: Sequence[float]) -> Facts:
    """What others took of the cores just before and after each measurement; a run beside busy others is not worth quoting."""
    return {
        "company": f"others took {statistics.median(probes):.0%} of all cores in the median, {max(probes):.0%} at worst"
    }


def text(found: Facts, figures: Sequence[Figure]) -> str:
    rows = [HEADINGS, *_rows(figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    width = max(map(len, found))
    return "\n".join(
        [
            *(f"{name:<{width}}  {value}" for name, value in found.items()),
            "",
            *("  ".join(_pad(row, widths)).rstrip() for row in rows),
            "",
        ]
    )


PREFACE = """# Benchmarks

Read this page when you want to know how fast Onward is. The table is the last run of `make bench PEERS=1`: Onward, the bare limits of the machine
and other systems (peers), in one run. Bodies do nothing, so that the engine's own cost shows. Durability is on everywhere. Read the ratios, not the figures.

- `x bare` is the share of the bare limit (no fence, no queue, no serialising).
- `x best peer` is how many times better Onward is than the best peer.
- A figure marked DISTURBED was taken while other programs used a fifth of the cores or more, and is too low.
- The docstring of `bench/__init__.py` describes each workload.

"""


def markdown(found: Facts, figures: Sequence[Figure]) -> str:
    return PREFACE + "\n".join(
        [
            *(f"- {name}: {value}" for name, value in found.items()),
            "",
            f"| {' | '.join(HEADINGS)} |",
            "|---|---|---|--:|---|--:|--:|---|",
            *(f"| {' | '.join(row)} |" for row in _rows(figures)),
            "",
        ]
    )


def _rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    return [
        (
            figure.workload,
            figure.system,
            figure.store,
            amount(figure.value),
            figure.unit,
            _ratio(figure, _bare(figure, figures)),
            _ratio(figure, _best_peer(figure, figures)),
            figure.note,
        )
        for figure in sorted(figures, key=_place)
    ]


def _place(figure: Figure) -> tuple[int, int, str, str]:
    ours_first = {BARE: 0, ONWARD: 1}
    return ORDER.index(figure.workload), ours_first.get(figure.system, 2), figure.system, figure.store


def _bare(figure: Figure, figures: Iterable[Figure]) -> Figure | None:
    if figure.system == BARE:
        return None
    same = (other for other in figures if (other.workload, other.store) == (figure.workload, figure.store))
    return next((other for other in same if other.system == BARE), None)


def _best_peer(figure: Figure, figures: Iterable[Figure]) -> Figure | None:
    if figure.system == BARE:
        return None
    peers = [other for other in figures if other.workload == figure.workload and other.system not in (BARE, ONWARD)]
    best = max if figure.is_rate else min
    return best(peers, key=lambda peer: peer.value, default=None)


def _ratio(figure: Figure, reference: Figure | None) -> str:
    times = figure.times_better_than(reference) if reference else None
    if times is None:
        return "-"
    return f"{times:.2f}" if times >= 0.1 else f"{times:.3f}"


def _pad(row: tuple[str, ...], widths: list[int]) -> list[str]:
    numbers = {HEADINGS.index(heading) for heading in ("value", "x bare", "x best peer")}
    cells = zip(row, widths, strict=True)
    return [cell.rjust(width) if at in numbers else cell.ljust(width) for at, (cell, width) in enumerate(cells)]


def _postgres(url: str) -> str:
    with psycopg.connect(url) as connection:
        shown = {name: connection.execute(f"SHOW {name}").fetchone() for name in ("server_version", *POSTGRES_SETTINGS)}
    version, *settings = [f"{name} {value[0]}" for name, value in shown.items() if value]
    return ", ".join([version.removeprefix("server_version "), *settings])


def _versions(packages: Iterable[str]) -> list[str]:
    installed = {distribution.name for distribution in importlib.metadata.distributions()}
    return [f"{name} {importlib.metadata.version(name)}" for name in packages if name in installed]


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none"


def busy(seconds: float) -> float:
    """What others take of the cores while we sleep."""
    idle, total = _ticks()
    time.sleep(seconds)
    idle_later, total_later = _ticks()
    return 1 - (idle_later - idle) / max(1, total_later - total)


def _ticks() -> tuple[int, int]:
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks[:8])
