"""`python -m tests.sim SEED [PLANTED] [--trace]`: one seed alone. `python -m tests.sim 0-999`: many of them."""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.sim.life import run
from tests.sim.planted import PLANTED


def main(words: list[str]) -> int:
    trace = "--trace" in words
    seeds, *name = [word for word in words if word != "--trace"]
    first, _, last = seeds.partition("-")
    planted = PLANTED[name[0]] if name else None
    broken, seen, began = 0, Counter[str](), time.monotonic()
    for seed in range(int(first), int(last or first) + 1):
        report = run(seed, planted, trace=trace)
        seen += report.seen
        broken += bool(report.faults)
        if report.trace is not None:
            print("\n".join(report.trace))
        if report.faults or not last:
            print(report, *report.faults[1:6], f"weather: {report.weather}", sep="\n    ", flush=True)
    print(
        f"{broken} broken, {time.monotonic() - began:.1f} s",
        *[f"{n:8} × {event}" for event, n in seen.most_common()],
        sep="\n",
    )
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
