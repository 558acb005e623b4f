"""Runs the benchmark: the bare limits, then Onward, then the neighbours, and all of it again for each repeat.

The repeats are the outermost loop, so that whatever drifts on the machine drifts for everybody. Every measurement gets an empty
database after a checkpoint, on one server and one disk for the whole run. What fails is named at the end, and the exit
status is 1; the rest is reported all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg

from bench import bare, bell, engines, events, frameworks, growth, hostile, idle, intake, processes, report
from bench.agent import w7
from bench.measure import Figure, medians
from bench.peers import host
from bench.service import w9
from bench.stream import w8
from bench.workloads import WORKLOADS as SIX
from rig.postgres import Postgres

NAMES = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9")
STORES = ("postgres", "sqlite")
WORKLOADS = {**SIX, "W7": w7, "W8": w8, "W9": w9}
TOLERABLE = 0.2
DIRECTORY = Path(__file__).parents[1] / ".bench"

Measurement = Callable[[], list[Figure]]


class Ground:
    """Where all is measured: a PostgreSQL server and a directory, on one disk."""

    def __init__(self, directory: Path, postgres: Postgres | None) -> None:
        self.directory = directory
        self.postgres = postgres
        self._files = 0

    def empty(self, store: str) -> str:
        """The URL of an empty database. What stood in the last one is gone, so that no vacuum of it disturbs us."""
        if store == "postgres" and self.postgres:
            url = self.postgres.database("bench")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("CHECKPOINT")
            return url
        self._files += 1
        return f"sqlite:///{self.directory}/{self._files}.db"

    def pair(self, store: str) -> tuple[str, str]:
        """Two empty databases side by side."""
        if store == "postgres" and self.postgres:
            return self.postgres.database("before"), self.postgres.database("after")
        return self.empty(store), self.empty(store)

    def forget(self, store: str) -> None:
        """Give back the disk that the last pair took."""
        if store == "postgres":
            self.pair(store)
        for file in self.directory.glob("*.db*"):
            file.unlink()


def _growth(words: list[str]) -> int:
    options = growth.parse(words)
    growth.room(DIRECTORY.parent, options)
    with _ground(options.store, {"max_wal_size": "8GB"}) as ground:
        url = ground.postgres.url if ground.postgres else None
        return growth.run(options, ground, report.facts(url, ground.directory, []))


def _idle(words: list[str]) -> int:
    options = idle.parse(words)
    with _ground(options.store, {"max_connections": "400"}) as ground:
        return idle.run(options, {store: ground.pair(store) for store in options.store})


def _processes(words: list[str]) -> int:
    options = processes.parse(words)
    with _ground(options.store) as ground:
        return processes.run(options, {store: ground.pair(store) for store in options.store})


def _hostile(words: list[str]) -> int:
    options = hostile.parse(words)
    with _ground(options.store) as ground:
        return hostile.run(options, ground.empty)


def _intake(words: list[str]) -> int:
    options = intake.parse(words)
    with _ground(options.store) as ground:
        return intake.run(options, ground.empty)


def _events(words: list[str]) -> int:
    options = events.parse(words)
    with _ground(options.store) as ground:
        return events.run(options, ground.empty)


def _bell(words: list[str]) -> int:
    options = bell.parse(words)
    with _ground(["postgres"]) as ground:
        assert ground.postgres is not None
        return bell.run(options, ground.postgres)


def main() -> int:
    if sys.argv[1:2] == ["bell"]:
        return _bell(sys.argv[2:])
    if sys.argv[1:2] == ["frameworks"]:
        return frameworks.run(frameworks.parse(sys.argv[2:]))
    if sys.argv[1:2] == ["engines"]:
        return engines.run(engines.parse(sys.argv[2:]))
    if sys.argv[1:2] == ["events"]:
        return _events(sys.argv[2:])
    if sys.argv[1:2] == ["hostile"]:
        return _hostile(sys.argv[2:])
    if sys.argv[1:2] == ["growth"]:
        return _growth(sys.argv[2:])
    if sys.argv[1:2] == ["idle"]:
        return _idle(sys.argv[2:])
    if sys.argv[1:2] == ["processes"]:
        return _processes(sys.argv[2:])
    if sys.argv[1:2] == ["intake"]:
        return _intake(sys.argv[2:])
    options = _options()
    with _ground(options.store) as ground:
        peers = [peer for peer in host.PEERS if options.peers and peer.stores & set(options.store)]
        for peer in peers:
            host.environment(peer, DIRECTORY)
        postgres_url = ground.postgres.url if ground.postgres else None
        found = report.facts(postgres_url, ground.directory, [peer.version for peer in peers])
        figures: list[Figure] = []
        failures: list[str] = []
        probes: list[float] = []
        for repeat in range(options.repeat):
            for name, measure in _measurements(ground, options, peers):
                print(f"[{repeat + 1}/{options.repeat}] {name}", file=sys.stderr, flush=True)
                probes.append(report.busy(0.3))
                try:
                    measured = measure()
                    probes.append(report.busy(0.3))
                    figures += _disturbed(measured, max(probes[-2:]))
                except Exception as error:
                    failures.append(f"{name}: {type(error).__name__}: {error}")
    found |= report.company(probes)
    wanted = [figure for figure in medians(figures) if figure.workload.startswith(tuple(options.only))]
    print(report.text(found, wanted))
    if options.markdown:
        grown = (
            options.markdown.read_text().partition(f"\n{growth.SECTION}\n")[1:]
            if options.markdown.exists()
            else ("", "")
        )
        options.markdown.write_text(report.markdown(found, wanted) + "".join(grown))
    for failure in failures:
        print(f"not measured: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _disturbed(figures: list[Figure], others: float) -> list[Figure]:
    """Marks what was measured beside busy others: they disturb whoever is just being measured, and falsify the ratios."""
    if others < TOLERABLE:
        return figures
    return [replace(figure, note=f"{figure.note}; DISTURBED, others took {others:.0%}") for figure in figures]


def _measurements(
    ground: Ground, options: argparse.Namespace, peers: list[host.Peer]
) -> Iterator[tuple[str, Measurement]]:
    """Each is yielded just before it is run, with its own empty database."""
    quick: bool = options.quick
    for store in options.store:
        yield f"bare, {store}", partial(bare.measure, store, ground.empty(store), quick)
    for store in options.store:
        for name in options.only:
            if name in WORKLOADS:
                yield f"onward {name}, {store}", partial(WORKLOADS[name], store, ground.empty(store), quick)
    for peer in peers:
        for store in options.store:
            for name in options.only:
                if name in peer.workloads and store in peer.stores:
                    run = partial(host.run, peer, name, ground.empty(store), quick, DIRECTORY)
                    yield f"{peer.name} {name}, {store}", run


@contextlib.contextmanager
def _ground(stores: list[str], settings: dict[str, str] | None = None) -> Iterator[Ground]:
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / ".gitignore").write_text("*\n")
    # Not under /tmp, which is memory on many machines: a commit there costs nothing.
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=DIRECTORY, prefix="run-")))
        directory.chmod(0o755)  # PostgreSQL may run as somebody else
        postgres = None
        if "postgres" in stores:
            postgres = stack.enter_context(Postgres(directory / "postgres", settings=settings))
        yield Ground(directory, postgres)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures Onward, bare limits and neighbours.")
    parser.add_argument("--peers", action="store_true", help="the neighbours too")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, metavar="W", help="these workloads: W1 to W9"
    )
    parser.add_argument("--store", nargs="+", choices=STORES, default=STORES, help="these stores; the default is both")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: to compare, not to quote")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="report the median of N runs")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
