"""What a seed brings: how big the cluster is, what its tasks are, and which faults are about.

Every seed leaves some kinds of fault out altogether (swarm testing): a run in which everything goes wrong at once hides
what only goes wrong when little does.
"""

from __future__ import annotations

import dataclasses
import random

CALM = 0.0
BRANCHES = 1_000_000
"""From this seed on, programs have branches that wait for signals."""


@dataclasses.dataclass
class Weather:
    """Rates of what can happen to a call (per call), and mean seconds between what happens to the cluster (0: never)."""

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
    """How many of the programs have branches that wait."""

    kill_every: float = CALM
    pause_every: float = CALM
    stop_every: float = CALM
    cut_every: float = CALM
    outage_every: float = CALM
    jump_every: float = CALM
    night_every: float = CALM

    def calm(self) -> None:
        """The storm is over: from here on everything must come to its end."""
        for name in self.faults():
            setattr(self, name, CALM)

    def faults(self) -> list[str]:
        """The faults that are about, poison aside."""
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
    if kind < 0.15:  # fair weather; in half of it, poison: then nobody else may come under suspicion
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
