"""What everybody who measures here shares: the names of the workloads, the figure, and a little arithmetic.

Standard library only: the neighbours import this from environments in which nothing of ours is installed.
A bare limit bears the name of the workload it bounds, so that a ratio is always between two figures of one name.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

W1_ONE = "W1 submit one by one"
W1_BATCH = "W1 submit in batches"
W2_ONE = "W2 drain, one process"
W2_TWO = "W2 drain, two processes"
W3 = "W3 steps, 200 x 20"
W4_PICKUP = "W4 pick-up, p50"
W4_PICKUP_P99 = "W4 pick-up, p99"
W4_STEPS = "W4 ten steps, p50"
W5_DONE = "W5 kill -9, all 100 done"
W5_TAKEN = "W5 kill -9, taken over, all done"
W5_FIRST = "W5 kill -9, first goes on"
W5_LAST = "W5 kill -9, last goes on"
W5_AGAIN = "W5 finished steps run again"
W6_MEMORY = "W6 memory, 1,000 waiting"
W6_MANY = "W6 memory, 100,000 waiting"
W6_BYTES = "W6 bytes a step, step 1,000 to step 10"
W7_SLICE = "W7 agent, slice, p50"
W7_TURN = "W7 agent, output to model call, p50"
W7_RESUME = "W7 agent, resume at turn 300, p50"
W7_MEMORY = "W7 agent, memory, turn 50 to turn 300"
W7_BYTES = "W7 agent, bytes, last 100 turns to first 100"
W8_LATENCY = "W8 progress, step to client, p50"
W8_LATENCY_P99 = "W8 progress, step to client, p99"
W9_POST = "W9 POST /api/tasks"
ORDER = (
    *(W1_ONE, W1_BATCH, W2_ONE, W2_TWO, W3, W4_PICKUP, W4_PICKUP_P99, W4_STEPS),
    *(W5_DONE, W5_TAKEN, W5_FIRST, W5_LAST, W5_AGAIN, W6_MEMORY, W6_MANY, W6_BYTES),
    *(W7_SLICE, W7_TURN, W7_RESUME, W7_MEMORY, W7_BYTES),
    *(W8_LATENCY, W8_LATENCY_P99, W9_POST),
)

BARE = "bare"
ONWARD = "onward"


@dataclass(frozen=True)
class Figure:
    """One number and what it is of. A unit that ends in "/s" is better high, every other one better low."""

    workload: str
    system: str
    store: str
    value: float
    unit: str
    note: str = ""

    @property
    def is_rate(self) -> bool:
        return self.unit.endswith("/s")

    def times_better_than(self, other: Figure) -> float | None:
        """More than 1: we are better. None where a ratio says nothing, as against nought."""
        if not self.value or not other.value:
            return None
        return self.value / other.value if self.is_rate else other.value / self.value


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank, so that it is a value which really occurred."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def latency(seconds: Sequence[float]) -> str:
    return f"p50 {percentile(seconds, 50) * 1000:.2f} ms, p99 {percentile(seconds, 99) * 1000:.2f} ms"


def medians(figures: Iterable[Figure]) -> list[Figure]:
    """One figure for each thing measured: the median run with its own note, and how far the runs went apart."""
    runs: dict[tuple[str, str, str], list[Figure]] = {}
    for figure in figures:
        runs.setdefault((figure.workload, figure.system, figure.store), []).append(figure)
    return [_median(same) for same in runs.values()]


def _median(same: list[Figure]) -> Figure:
    # The lower median is one of the runs, and so its note belongs to its value.
    middle = statistics.median_low(figure.value for figure in same)
    figure = next(figure for figure in same if figure.value == middle)
    if len(same) == 1:
        return figure
    low, high = (pick(figure.value for figure in same) for pick in (min, max))
    return replace(figure, note=f"{figure.note}; {len(same)} runs: {amount(low)} to {amount(high)}".removeprefix("; "))


def amount(value: float) -> str:
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
