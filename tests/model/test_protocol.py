"""Every interleaving of the whole protocol: no state is wrong, and the search finds each planted fault.

`.venv/bin/python -m tests.model [FAULT]` runs one search alone and prints the moves to a fault.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from onward.core import record
from onward.core.task import Reason
from tests.model import values
from tests.model.checker import Search, broken, canonical
from tests.model.model import (
    BARE_NUMBER,
    BARE_RELEASE,
    BARE_RESCUE,
    EARLY_ACK,
    EARLY_PAUSE,
    FAULTS,
    FORGETFUL,
    NO_COUNTER,
    NO_FENCE,
    NO_PREDECESSOR,
    NUMBERS_BACK,
    PROGRAM,
    ROW_BY_ROW,
    SEVERAL_READERS,
    Protocol,
)
from tests.model.values import Known

ROOT = Path(__file__).parents[2]
SMALL = Protocol(("a", "wait"), messages=1)

MET = {
    "an abandoned commit is written",
    "a rescue buries it: its lease has ended",
    "a rescue buries it: its process is gone",
    "asks again, and its records are there",
    "cancels the task",
    "claims the task, but the answer is lost",
    "decides to hand the task back",
    "dies",
    "ends as requested",
    "fails in step b, and gives the saga up",
    "finds that its code was changed",
    "its records are refused, it drops the work",
    "its records are written, but the answer is lost",
    "its time has come",
    "learns from its heartbeat that the task is not its own",
    "learns that it holds the task, and gives it back",
    "learns that it was declared dead, and starts anew",
    "lets go, to wait for a signal",
    "requests a cancel",
    "resumes the task",
    "runs undo 2",
    "sends a message",
    "the release runs",
}
"""Moves that a search must have met, or it proves nothing."""

ALONE = Protocol(("a",), workers=2, messages=0)
FOUND = {
    NO_FENCE: (ALONE, "a stale record was taken", 5),
    ROW_BY_ROW: (ALONE._replace(program=("saga", "a", "close")), "a stale record was taken", 8),
    NO_COUNTER: (Protocol(("wait",), workers=1, messages=1), "a message that is there, and nothing will wake it", 6),
    NUMBERS_BACK: (ALONE, "a stale record was taken", 6),
    BARE_RESCUE: (ALONE, "for ever, and nothing will wake it", 7),
    EARLY_ACK: (ALONE, "was acknowledged, and it is not there", 3),
    BARE_RELEASE: (ALONE, "step a is recorded, and is run again", 10),
    EARLY_PAUSE: (ALONE._replace(pauses=True), "step a begins, although the pause was answered", 4),
    SEVERAL_READERS: (Protocol(("waits",), workers=1, messages=1), "message 1 was recorded again", 10),
}
"""The smallest protocol in which a fault shows, its message, and the number of moves."""


def test_a_small_protocol_has_no_error() -> None:
    report = Search(SMALL).run()
    assert not report.wrong, str(report)
    assert report.states > 900


def test_branches_that_wait_at_once_have_no_error() -> None:
    report = Search(Protocol(("waits", "b"), workers=2, messages=1, fails=False)).run()
    assert not report.wrong, str(report)
    assert {"comes to another wait", "looks into its inbox", "lets go, to wait for a signal"} <= report.verbs


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found_by_the_shortest_way(fault: str) -> None:
    protocol, wrong, moves = FOUND[fault]
    assert not Search(protocol).run().wrong
    report = Search(protocol._replace(planted=fault)).run()
    assert wrong in report.wrong
    assert len(report.trace) == moves
    assert all(re.match(r" *\d+  (worker \d|outside ) ", line) for line in report.trace)
    assert any("→ 2 shift.started; queue: held by worker 1" in line for line in report.trace)


@pytest.mark.slow
def test_no_step_begins_after_a_pause_was_answered() -> None:
    """Also when the answers of claims and commits are lost, workers die, are declared dead, are cut off or come back."""
    report = Search(Protocol(("a", "wait"), workers=2, messages=1, pauses=True)).run()
    assert not report.wrong, str(report)
    assert {
        "confirms the pause",
        "the pause is answered",
        "lets the task go on, which its worker holds",
    } <= report.verbs


@pytest.mark.slow
@pytest.mark.usefixtures("at_length")
def test_no_step_or_undo_begins_after_a_pause_was_answered() -> None:
    report = Search(Protocol(("saga", "a", "wait", "close", "b"), workers=2, messages=1, pauses=True)).run()
    print(f"\npauses, {report}")
    assert not report.wrong, str(report)


def test_a_task_that_nothing_can_end_is_found() -> None:
    report = Search(Protocol(("wait",), workers=1, messages=0)).run()
    assert report.wrong == "from here no end can be reached, but by a cancel"


@pytest.mark.parametrize("seed", range(20))
def test_the_knowledge_of_a_journal_follows_from_its_records(seed: int) -> None:
    """A long random life without any shortcut of the checker: true numbers, a whole journal."""
    rng, protocol = random.Random(seed), Protocol()
    state = protocol.begin()
    for _ in range(300):
        moves = [move for move in protocol.moves(state) if move.helps or rng.random() < 0.02]
        if not moves:
            break
        move = rng.choice(moves)
        wrong = move.wrong or broken(move.after)
        assert not wrong, move
        state = move.after
    known = Known()
    for number, entry in enumerate(state.journal[1:], 2):
        known = protocol.learn(known, number, entry)
    assert known == state.now


# ── a database that forgets ──────────────────────────────────────────────────────────────────────────────────────────

FORGETS = Protocol(("a",), workers=2, messages=0, fails=False, forgets=1, longest=6)
FORGOTTEN = {
    NO_PREDECESSOR: ("the journal has a gap", 6),
    BARE_NUMBER: ("step a is recorded, and is run again", 8),
}


@pytest.mark.parametrize("fault", FORGETFUL)
def test_each_fault_that_shows_after_a_loss_is_found_by_the_shortest_way(fault: str) -> None:
    report = Search(FORGETS._replace(planted=fault)).run()
    wrong, moves = FORGOTTEN[fault]
    assert wrong in report.wrong
    assert len(report.trace) == moves
    assert any("the database forgets its last commits" in line for line in report.trace)


def test_records_of_living_workers_after_a_loss_are_no_error(prove: bool) -> None:
    """The first states of the search, and many long random lives with three losses each. (Numbers come back, so that the search
    can forget nothing and has no end.)"""
    search = Search(FORGETS)
    with pytest.raises(RuntimeError, match="more than"):
        search.run(most=200_000 if prove else 4_000)
    assert search._report("", []).wrong == ""
    met = set[str]()
    for seed in range(3_000 if prove else 40):
        wrong = _life(Protocol(forgets=3), seed, met)
        assert not wrong, (seed, wrong)
    assert {"the database forgets its last commits", "its records are refused, it drops the work"} <= met


def test_such_lives_find_the_planted_fault() -> None:
    assert any(_life(Protocol(forgets=3, planted=NO_PREDECESSOR), seed, set()) for seed in range(100))


def _life(protocol: Protocol, seed: int, met: set[str]) -> str:
    """A random life of 150 moves; returns its fault, or ""."""
    rng, state = random.Random(seed), protocol.begin()
    for _ in range(150):
        moves = [
            move
            for move in protocol.moves(state)
            if move.helps or rng.random() < (0.3 if move.after.epoch > state.epoch or move.after.backup else 0.02)
        ]
        if not moves:
            break
        move = rng.choice(moves)
        met.add(move.verb)
        if wrong := move.wrong or broken(move.after):
            return wrong
        state = move.after
    return ""


def _follows(bare: Search, most: int) -> int:
    """Checks that each move of a state is a move, or nothing, for its canonical state. Returns how many it compared."""
    compared, seen = 0, dict[values.State, set[values.State]]()
    for state in bare.states[:most]:
        stands = canonical(state)
        if stands not in seen:
            seen[stands] = {stands} | {canonical(move.after) for move in bare.protocol.moves(stands)}
        for move in bare.protocol.moves(state):
            compared += 1
            assert canonical(move.after) in seen[stands], f"{move.verb} is lost:\n{state}\n{stands}"
    return compared


def test_the_parts_that_the_search_forgets_cannot_matter() -> None:
    bare = Search(Protocol(("a",), workers=2, messages=1), lean=False)
    with pytest.raises(RuntimeError, match="more than"):
        bare.run(most=1_000)
    assert _follows(bare, 2_000) > 5_000


def test_the_model_uses_the_names_of_the_code() -> None:
    texts = {text for name, text in vars(values).items() if name.isupper() and isinstance(text, str)}
    kinds = {text for text in texts if "." in text}
    assert len(kinds) == 18
    assert kinds <= {text for name, text in vars(record).items() if name.isupper() and isinstance(text, str)}
    assert {"queued", "running", "signal", "parked", "retrying", "cancelling"} <= {str(reason) for reason in Reason}


# ── the proof ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_whole_protocol_has_no_error() -> None:
    """Three workers, a saga of two steps around a wait, a step after it; any number of everything else."""
    report = Search(Protocol()).run()
    print(f"\nthe whole protocol, {', '.join(PROGRAM)}: {report}")
    assert not report.wrong, str(report)
    assert not MET - report.verbs, "the search is void: this never happened in it"
    assert report.states > 40_000


@pytest.mark.slow
@pytest.mark.usefixtures("at_length")
@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found_in_the_whole_protocol(fault: str) -> None:
    program = ("waits", *PROGRAM[-1:]) if fault == SEVERAL_READERS else PROGRAM
    report = Search(Protocol(program, planted=fault)).run()
    print(f"\n{fault}: {report}")
    assert FOUND[fault][1] in report.wrong


@pytest.mark.slow
@pytest.mark.usefixtures("at_length")
def test_three_workers_with_all_they_have_in_memory() -> None:
    """The same without forgetting anything of workers that were fenced, on a shorter program."""
    report = Search(Protocol(("a", "b"), messages=0, fails=False), lean=False).run()
    print(f"\nthree workers, nothing forgotten: {report}")
    assert not report.wrong, str(report)
    assert "its records are refused, it drops the work" in report.verbs


@pytest.mark.slow
def test_the_parts_that_the_search_forgets_cannot_matter_anywhere() -> None:
    bare = Search(Protocol(("saga", "a", "wait", "close"), workers=2, messages=1), lean=False)
    with pytest.raises(RuntimeError, match="more than"):
        bare.run(most=10_000)
    followed = _follows(bare, 10_000)
    print(f"\n{followed:,} moves of 10,000 states followed")
    assert followed > 50_000
