"""The weather of a seed: the size of the cluster, its tasks, and its kinds of fault.

Every seed leaves some kinds of fault out altogether (swarm testing): a run with all faults at once hides those that show
only when few others happen.
"""

from __future__ import annotations

import dataclasses
import random

CALM = 0.0
BRANCHES = 1_000_000
"""From this seed on, programs have branches that wait for signals."""


@dataclasses.dataclass
class Weather:
    """Rates of the faults of a call (per call), and mean seconds between the faults of the cluster (0: never)."""

    horizon: float = 60.0
    workers: int = 2
    slots: int = 4
    orders: int = 8
    lease: float = 10.0
    heartbeat: float = 2.0
    poll: float = 0.5
    disorder: float = 1.0
    lag: float = 0.002

    fail: float = CALM
    lose: float = CALM
    late: float = CALM
    twice: float = CALM
    slow: float = CALM
    hang: float = CALM
    die: float = CALM
    freeze: float = CALM
    nudge_lost: float = CALM
    poison: float = CALM
    waits: float = CALM
    """The share of programs that have branches that wait."""

    kill_every: float = CALM
    pause_every: float = CALM
    stop_every: float = CALM
    cut_every: float = CALM
    outage_every: float = CALM
    jump_every: float = CALM
    night_every: float = CALM

    def calm(self) -> None:
        """Ends the storm: from here on all tasks must come to their end."""
        for name in self.faults():
            setattr(self, name, CALM)

    def faults(self) -> list[str]:
        """The kinds of fault of this weather, without poison."""
        return [
            field.name
            for field in dataclasses.fields(self)
            if field.default == CALM
            and field.name not in {"nudge_lost", "poison", "waits"}
            and getattr(self, field.name) != CALM
        ]

    def __str__(self) -> str:
        words = [
            f"{f.name}={value:.3g}"
            for f in dataclasses.fields(self)
            if (value := getattr(self, f.name)) != CALM or f.default != CALM
        ]
        return " ".join(words)


def forecast(rng: random.Random) -> Weather:
    """The weather of a seed."""

    def some(low: float, high: float, chance: float = 0.5) -> float:
        return rng.uniform(low, high) if rng.random() < chance else CALM

    lease, heartbeat = rng.choice([(10.0, 2.0), (4.0, 1.0), (6.0, 3.0), (20.0, 2.0)])
    kind = rng.random()
    weather = Weather(
        horizon=rng.choice([20.0, 40.0, 60.0, 90.0]),
        workers=rng.choice([1, 2, 2, 3, 3, 4]),
        slots=rng.choice([1, 2, 4, 16]),
        orders=rng.randint(3, 14),
        lease=lease,
        heartbeat=heartbeat,
        poll=rng.choice([0.5, 1.0, 2.0]),
        disorder=rng.choice([0.0, 0.2, 1.0, 1.0]),
        lag=rng.choice([0.0005, 0.002, 0.02, 0.1]),
        nudge_lost=rng.choice([0.0, 0.3, 1.0]),
    )
    if kind < 0.15:  # fair weather, half of it with poison: then no other task may be suspected
        weather.poison = some(0.1, 0.4)
        return weather
    weather.poison = some(0.05, 0.2, 0.2)
    weather.fail = some(0.005, 0.1)
    weather.lose = some(0.005, 0.1)
    weather.late = some(0.002, 0.03, 0.3)
    weather.twice = some(0.01, 0.2, 0.3)
    weather.slow = some(0.005, 0.05)
    weather.hang = some(0.002, 0.01, 0.3)
    weather.die = some(0.0005, 0.01, 0.4)
    weather.freeze = some(0.01, 0.08, 0.4)
    weather.kill_every = some(5, 40)
    weather.pause_every = some(3, 25)
    weather.stop_every = some(10, 40, 0.3)
    weather.cut_every = some(5, 30)
    weather.outage_every = some(10, 60, 0.3)
    weather.jump_every = some(10, 60, 0.25)
    weather.night_every = some(15, 60, 0.3)
    return weather
