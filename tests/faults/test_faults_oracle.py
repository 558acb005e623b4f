"""The oracle finds faults. Each test makes one witness lie, and the verdict must notice."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward.core import record as r
from onward.store.port.core import SUSPECT_AFTER
from tests.faults import verdict
from tests.faults.band import Client, Place
from tests.faults.crew import Act, expected_answers, story
from tests.faults.verdict import Picture, Row, Verdict, judge, percentile, resume_times

STORY: list[Act] = [
    {"act": "step", "name": "a", "ms": 1},
    {"act": "trip", "times": 1},
    {"act": "flaky", "name": "b", "ms": 1, "times": 1},
    {"act": "thread", "name": "c", "ms": 1},
]


@dataclasses.dataclass
class Case:
    """A run without faults, and methods that spoil it."""

    place: Place
    acked: dict[str, list[Act]]

    @property
    def task(self) -> str:
        return min(self.acked)

    def sql(self, statement: str) -> None:
        self.place.rows(statement.replace("TASK", f"'{self.task}'"))

    def note(self, event: str, step: str, shift: int, *, at: float | None = None, effect: str | None = None) -> None:
        self.place.ledger.write(
            event, self.task, step, shift, 1, 1, time.time() if at is None else at, effect or f"{self.task}:{step}"
        )

    def reopen(self) -> None:
        self.sql("DELETE FROM onward_outcomes WHERE task_id = TASK")
        self.sql(
            "INSERT INTO onward_queue (task_id, priority, queue, task, reason) VALUES (TASK, 0, 'default', 'story', 'queued')"
        )

    async def verdict(self, **more: Any) -> Verdict:
        return await self.place.judge(self.acked, **more)


@pytest.fixture
async def case(tmp_path: Path) -> Case:
    place = Place("sqlite", f"sqlite:///{tmp_path / 'onward.db'}", tmp_path)
    async with place.app(poll_s=0.02) as app:
        client = Client(app, random.Random(21))
        async with app.worker(slots=3):
            for _ in range(3):
                await app.handle(await client.submit(STORY)).result(timeout=60)
    return Case(place, client.acked)


async def test_a_good_run_is_clean(case: Case) -> None:
    verdict = await case.verdict()
    verdict.must_be_clean()
    assert (verdict.ended, verdict.steps, verdict.refused) == (3, 9, 0)
    assert "3 tasks · 9 steps" in str(verdict)


async def test_nothing_tried_is_void(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="VOID"):
        judge(Picture(set(), {}, {}, {}, {}), [], {}).must_be_clean()


PLANTED: dict[str, tuple[str, Callable[[Case], None]]] = {
    "the task is gone": ("lost", lambda case: case.sql("DELETE FROM onward_tasks WHERE id = TASK")),
    "its outcome is gone": ("lost", lambda case: case.sql("DELETE FROM onward_outcomes WHERE task_id = TASK")),
    "it never ended": ("stuck", lambda case: case.reopen()),
    "it failed": ("wrong", lambda case: case.sql("UPDATE onward_outcomes SET state = 'failed' WHERE task_id = TASK")),
    "an attempt was burned": (
        "wrong",
        lambda case: case.sql("UPDATE onward_outcomes SET attempt = 3 WHERE task_id = TASK"),
    ),
    "its result is another": (
        "wrong",
        lambda case: case.sql(
            """UPDATE onward_journal SET data = CAST('{"result":["a done"]}' AS BLOB) WHERE task_id = TASK AND kind = 'task.completed'"""
        ),
    ),
    "a record was lost": ("torn", lambda case: case.sql("DELETE FROM onward_journal WHERE task_id = TASK AND seq = 3")),
    "a record after the end": (
        "torn",
        lambda case: case.sql(
            "INSERT INTO onward_journal SELECT task_id, max(seq) + 1, max(shift), 'step.completed', 'z', CAST('{}' AS BLOB), 1.0 "
            "FROM onward_journal WHERE task_id = TASK"
        ),
    ),
    "a stale record was accepted": (
        "stale",
        lambda case: case.sql(
            "UPDATE onward_journal SET shift = 2 WHERE task_id = TASK AND kind = 'step.completed' AND key = 'c'"
        ),
    ),
    "a step has two records": (
        "run_again",
        lambda case: case.sql(
            "UPDATE onward_journal SET key = 'a' WHERE task_id = TASK AND kind = 'step.completed' AND key = 'c'"
        ),
    ),
    "a recorded step starts in a later shift": ("run_again", lambda case: case.note("start", "a", 99)),
    "a recorded step starts again in its own shift": ("run_again", lambda case: case.note("start", "a", 2)),
    "a worker that lost the task starts its step late": (
        "run_again",
        lambda case: case.note("start", "c", 2, at=time.time() + 60),
    ),
    "a step has another effect key": ("wrong", lambda case: case.note("end", "a", 2, effect="other")),
    "a record of what was never done": (
        "wrong",
        lambda case: case.sql(
            "UPDATE onward_journal SET key = 'never' WHERE task_id = TASK AND kind = 'step.completed' AND key = 'c'"
        ),
    ),
    "the census finds an orphan": (
        "census",
        lambda case: case.sql(
            "INSERT INTO onward_queue (task_id, priority, queue, task, reason, worker) VALUES (TASK, 0, 'default', 'story', 'running', 'nobody')"
        ),
    ),
}


@pytest.mark.parametrize("lie", PLANTED)
async def test_a_planted_violation_is_caught(case: Case, lie: str) -> None:
    name, plant = PLANTED[lie]
    plant(case)
    verdict = await case.verdict()
    assert name in verdict.faults, verdict
    with pytest.raises(AssertionError, match=name):
        verdict.must_be_clean()


def _journal(*kinds: str) -> list[Row]:
    """A journal of these kinds; numbers and shifts as a worker would write them."""
    rows, shift = [Row("t", 1, 0, r.SUBMITTED, "", b"{}", 0.0)], 0
    for seq, kind in enumerate(kinds, start=2):
        shift = seq if kind == r.SHIFT else shift
        rows.append(Row("t", seq, shift, kind, "s", b'{"worker":"w%d"}' % seq, float(seq)))
    return rows


def _quarantine(*kinds: str, poison: frozenset[str] = frozenset()) -> list[str]:
    picture = Picture({"t"}, {"t": (None, None, "quarantined", 0, 1)}, {}, {"t": _journal(*kinds)}, {})
    return judge(picture, [], {}, poison=poison).quarantined


def test_quarantine_needs_its_crashes() -> None:
    crash = [r.SHIFT, r.STEP_STARTED]
    enough = crash * (SUSPECT_AFTER + 1) + [r.SHIFT, r.QUARANTINED]
    assert not _quarantine(*enough)
    assert _quarantine(*crash * SUSPECT_AFTER, r.SHIFT, r.QUARANTINED)
    assert _quarantine(*crash * SUSPECT_AFTER, r.SHIFT, r.STEP_DONE, r.STEP_STARTED, r.SHIFT, r.QUARANTINED)
    assert _quarantine(*enough, poison=frozenset({"another"})), "an innocent neighbour"
    assert not _quarantine(*enough, poison=frozenset({"t"}))
    assert _quarantine(*crash, poison=frozenset({"t"})), "a poison that is at large"


def test_resume_times_are_of_killed_workers() -> None:
    journal = _journal(r.SHIFT, r.STEP_DONE, r.SHIFT, r.HANDED_BACK, r.SHIFT)
    picture = Picture({"t"}, {}, {}, {"t": journal}, {})
    assert resume_times(picture, {"w2": 3.5}) == [0.5]
    assert resume_times(picture, {"w4": 5.5}) == [], "it had let go before"
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0


def test_the_expected_answers_of_a_story_count_its_steps() -> None:
    rng = random.Random(22)
    for _ in range(50):
        acts = story(rng)
        assert len(expected_answers(acts)) == sum(act["act"] in {"step", "thread", "flaky"} for act in acts)
    assert verdict.quarantined_tasks(Picture(set(), {"t": (None, None, "quarantined", 4, 1)}, {}, {}, {})) == ["t"]
