"""One life of a cluster, from a seed to a report."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.sim.cluster import Cluster
from tests.sim.door import drive
from tests.sim.loop import TimeStandsStill
from tests.sim.planted import Planted
from tests.sim.watch import Broken


@dataclasses.dataclass
class Report:
    """The outcome of a seed."""

    seed: int
    faults: list[str]
    seen: Counter[str]
    digest: str
    seconds: float
    verbs: int
    turns: int
    trace: list[str] | None
    weather: str
    planted: str = ""

    def __str__(self) -> str:
        name = f" {self.planted}" if self.planted else ""
        fault = self.faults[0] if self.faults else "nothing broke"
        return f"seed {self.seed}{name}: {fault} — alone: .venv/bin/python -m tests.sim {self.seed}{name} --trace"


class _ErrorLog(logging.Handler):
    """The errors that the engine logged. Failures of tasks are expected; all others are faults."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "onward.shift" and " failed: " in record.getMessage():
            return
        error = record.exc_info[1] if record.exc_info else None
        self.errors.append(f"{record.getMessage()} {error!r}" if error else record.getMessage())


@contextmanager
def _collecting_errors() -> Iterator[_ErrorLog]:
    log, log_of_errors = logging.getLogger("onward"), _ErrorLog()
    before = log.propagate, log.level
    log.addHandler(log_of_errors)
    log.propagate = False
    log.setLevel(logging.ERROR)
    try:
        yield log_of_errors
    finally:
        log.removeHandler(log_of_errors)
        log.propagate = before[0]
        log.setLevel(before[1])


def run(seed: int, planted: Planted | None = None, *, trace: bool = False) -> Report:
    """One life of a cluster."""
    planted = planted or Planted()
    cluster = Cluster(seed, planted, trace=trace)
    faults = cluster.watch.faults
    asyncio.set_event_loop(cluster.loop)
    with planted.patches(), _collecting_errors() as log_of_errors:
        try:
            cluster.loop.run_until_complete(cluster.live())
        except Broken:
            pass
        except TimeStandsStill as error:
            faults.append(str(error))
        except RuntimeError as error:
            if not faults:
                faults.append(repr(error))
        except Exception as error:
            faults.append(f"the simulator fell: {error!r}")
        faults += [f"the engine logged: {text}" for text in log_of_errors.errors if "has been stuck" not in text]
        faults += cluster.loop.unhandled
        report = Report(
            seed,
            list(faults),
            +cluster.seen,
            cluster.watch.digest(),
            cluster.loop.time(),
            cluster.watch.verbs,
            cluster.loop.turns,
            cluster.watch.trace,
            cluster.weather_text,
            planted.name,
        )
    _bury(cluster)
    return report


def _bury(cluster: Cluster) -> None:
    cluster.loop.begin_anew()
    burying = cluster.loop.create_task(cluster.bury())
    try:
        while not burying.done():
            try:
                cluster.loop.run_until_complete(burying)
            except RuntimeError:  # a stop of the loop from before
                continue
    finally:
        asyncio.set_event_loop(None)
        cluster.loop.close()
        drive(cluster.store.close())
