"""Whole clusters by the seed: with nothing planted no seed breaks, and each planted fault is found.

A failure names its seed; `.venv/bin/python -m tests.sim SEED --trace` runs that one alone and tells its story.
"""

from collections import Counter

import pytest

from tests.sim.cluster import run
from tests.sim.planted import PLANTED

CHUNK = 20
ENOUGH = 120
"""Seeds within which a planted fault must have been found."""

SOMETIMES = {
    "a client sent a call again",
    "a process died in the middle of a call",
    "a cancel came before the end, with a worker at it",
    "a save of unknown fate was mine",
    "a stranger was given back",
    "a suspect ran alone",
    "a task was quarantined",
    "a task was rescued",
    "a task was resumed",
    "a worker stopped in good order",
    "a worker that was declared dead came back",
    "a write was fenced",
    "several records of a task were fenced together",
    "the answer to a claim was lost",
    "the same key gave the same task",
}
"""What a suite that proves anything has to have met."""


def seeds(first: int, last: int) -> Counter[str]:
    """Run them; what they met on the way."""
    met = Counter[str]()
    broken = []
    for seed in range(first, last):
        report = run(seed, None)
        met += report.seen
        broken += [str(report)] if report.faults else []
    assert not broken, "\n".join(broken)
    return met


def test_no_seed_breaks_and_the_faults_were_really_met() -> None:
    met = seeds(0, 3 * CHUNK)
    assert not SOMETIMES - met.keys()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(4))
def test_more_seeds(chunk: int, prove: bool) -> None:
    """A tenth of what `make prove` runs."""
    size = 10 * CHUNK if prove else CHUNK
    first = 1000 + chunk * 10 * CHUNK
    met = seeds(first, first + size)
    print(f"simulator · seeds {first} to {first + size - 1} · 0 broken · {sum(met.values()):,} events of {len(met)} kinds")


def test_the_same_seed_is_the_same_run() -> None:
    first, second = run(7, None), run(7, None)
    assert (first.digest, first.verbs, first.turns) == (second.digest, second.verbs, second.turns)
    assert run(8, None).digest != first.digest


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_fault_is_found(name: str) -> None:
    for seed in range(ENOUGH):
        report = run(seed, PLANTED[name])
        if report.faults:
            print(f"planted · {name} · found by seed {seed}: {report.faults[0][:120]}")
            return
    pytest.fail(f"the planted fault {name!r} was not found in {ENOUGH} seeds")
