"""The oracle: finds faults by comparing three independent witnesses.

    the ledger   starts and ends of steps, noted by the steps themselves
    the store    tables read past Onward, in one snapshot
    the client   the acknowledged tasks, each with its story

Nothing here waits or measures time, with one exception: a worker that lost its task must not start a recorded step later
on, which only clocks can show. All else is order: a record's shift, a shift's number, a line's place in the ledger.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import apsw
import psycopg

from onward.core import record as r
from onward.store.port.core import SUSPECT_AFTER
from tests.faults.crew import Act, expected_answers

CLOCK_SLACK_S = 0.5
"""A start may seem to come this much after the record, because the clocks differ a little."""

QUIET = {r.SHIFT, r.STEP_STARTED, r.STEP_RETRY, r.STEP_WAITS, r.ARTIFACT, r.PROGRESS}
"""Records that are no progress: a shift that left nothing else behind left nothing."""

MAY_FOLLOW_THE_END = {r.RESUMED}


class Row(NamedTuple):
    """A record as the tables have it."""

    task: str
    seq: int
    shift: int
    kind: str
    key: str
    data: bytes
    at: float


class Line(NamedTuple):
    """A line of the ledger."""

    event: str
    task: str
    step: str
    shift: int
    attempt: int
    pid: int
    at: float
    effect: str


@dataclasses.dataclass
class Picture:
    """The store at one moment."""

    tasks: set[str]
    queue: dict[str, tuple[str | None, float | None, str, int, int]]
    outcomes: dict[str, tuple[str, int, int]]
    journals: dict[str, list[Row]]
    workers: dict[str, int]

    @property
    def records(self) -> Iterable[Row]:
        for journal in self.journals.values():
            yield from journal


def look(url: str) -> Picture:
    """Read everything, in one transaction."""
    if url.startswith("sqlite"):
        connection: Any = apsw.Connection(url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(20_000)
        connection.execute("BEGIN")
        try:
            return _read(connection)
        finally:
            connection.close()
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return _read(connection)


def _read(connection: Any) -> Picture:
    journals: dict[str, list[Row]] = collections.defaultdict(list)
    for values in connection.execute(
        "SELECT task_id, seq, shift, kind, key, data, at FROM onward_journal ORDER BY task_id, seq"
    ):
        row = Row(*values)
        journals[row.task].append(row)
    return Picture(
        tasks={task for (task,) in connection.execute("SELECT id FROM onward_tasks")},
        queue={
            row[0]: tuple(row[1:])
            for row in connection.execute("SELECT task_id, worker, due_at, reason, crashes, attempt FROM onward_queue")
        },
        outcomes={
            row[0]: tuple(row[1:])
            for row in connection.execute("SELECT task_id, state, seq, attempt FROM onward_outcomes")
        },
        journals=dict(journals),
        workers=dict(connection.execute("SELECT id, pid FROM onward_workers")),
    )


@dataclasses.dataclass
class Verdict:
    """Lists of faults, each as a sentence; and counters that show whether the run did any work."""

    lost: list[str] = dataclasses.field(default_factory=list)
    stuck: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    run_again: list[str] = dataclasses.field(default_factory=list)
    stale: list[str] = dataclasses.field(default_factory=list)
    torn: list[str] = dataclasses.field(default_factory=list)
    quarantined: list[str] = dataclasses.field(default_factory=list)
    census: list[str] = dataclasses.field(default_factory=list)

    ended: int = 0
    """Tasks that have ended."""
    steps: int = 0
    """Steps with a record."""
    resumed: int = 0
    """Shifts that went on with the task of another shift."""
    repeated: int = 0
    """Steps that ran more than once before their record, as they may."""
    refused: int = 0
    """Steps that ended in a worker that had lost the task: their append was refused."""

    @property
    def faults(self) -> dict[str, list[str]]:
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: sentences for name, sentences in named.items() if isinstance(sentences, list) and sentences}

    def must_be_clean(self) -> None:
        lists = [f"{name} ({len(sentences)}): " + "; ".join(sentences[:5]) for name, sentences in self.faults.items()]
        assert not lists, "\n".join(lists)
        assert self.steps, "VOID: no step was ever recorded"

    def __str__(self) -> str:
        return (
            f"{self.ended} tasks · {self.steps} steps · {self.resumed} resumed · {len(self.lost)} lost · "
            f"{len(self.run_again)} run again · {len(self.stale)} stale · {len(self.stuck)} stuck · "
            f"{len(self.wrong)} wrong · {len(self.quarantined)} wrongly quarantined · census {len(self.census)}"
        )


def judge(
    picture: Picture,
    ledger: Iterable[list[Any]],
    acked: Mapping[str, list[Act]],
    census: Iterable[tuple[str, str]] = (),
    *,
    poison: frozenset[str] = frozenset(),
) -> Verdict:
    """`poison` are tasks that are meant to end in quarantine."""
    verdict = Verdict()
    lines = [Line(*line) for line in ledger]
    for task, acts in acked.items():
        _fate(verdict, picture, task, acts, poison)
    for task, journal in picture.journals.items():
        _journal(verdict, task, journal)
    _steps(verdict, picture, lines)
    _quarantine(verdict, picture, poison)
    verdict.census += [f"{task} {fault}" for task, fault in census]
    return verdict


def _fate(verdict: Verdict, picture: Picture, task: str, acts: list[Act], poison: frozenset[str]) -> None:
    """Judges the end of a task that was acknowledged to the client."""
    if task not in picture.tasks or (task not in picture.queue and task not in picture.outcomes):
        verdict.lost.append(f"{task} was acknowledged and is not there")
        return
    if task not in picture.outcomes:
        worker, due_at, reason, crashes, attempt = picture.queue[task]
        if task not in poison:
            verdict.stuck.append(
                f"{task} is {reason} (worker {worker}, due {due_at}, crashes {crashes}, attempt {attempt})"
            )
        return
    verdict.ended += 1
    state, seq, attempt = picture.outcomes[task]
    ending = next((row for row in picture.journals.get(task, []) if row.seq == seq), None)
    if task in poison:
        verdict.wrong.append(f"{task} was meant to be quarantined and is {state}")
    elif state != "completed" or ending is None or json.loads(ending.data).get("result") != expected_answers(acts):
        verdict.wrong.append(f"{task} is {state} with {ending and ending.data!r}, expected {expected_answers(acts)}")
    elif attempt != 1 + sum(act["times"] for act in acts if act["act"] == "trip"):
        verdict.wrong.append(f"{task} needed {attempt} attempts: something burned one")


def _journal(verdict: Verdict, task: str, journal: list[Row]) -> None:
    """Dense, one owner at a time, no step twice, nothing after the end."""
    if [row.seq for row in journal] != list(range(1, len(journal) + 1)):
        verdict.torn.append(f"{task} has the numbers {[row.seq for row in journal]}")
    owner, done, ended, open_shift = 0, set(), False, False
    for row in journal:
        if ended and row.kind not in MAY_FOLLOW_THE_END:
            verdict.torn.append(f"{task} has {row.kind} at {row.seq}, after its end")
        ended = row.kind in r.ENDS
        if row.kind == r.SHIFT:
            if row.shift != row.seq:
                verdict.torn.append(f"{task}: the shift at {row.seq} calls itself {row.shift}")
            verdict.resumed += open_shift
            owner, open_shift = row.seq, True
        elif row.shift not in {owner, 0}:
            verdict.stale.append(f"{task} has {row.kind} at {row.seq} of shift {row.shift}, under shift {owner}")
        if row.kind in {r.HANDED_BACK, r.RETRY, r.QUARANTINED, r.PARKED}:
            open_shift = False
        if row.kind == r.STEP_DONE:
            if row.key in done:
                verdict.run_again.append(f"{task} has two results for step {row.key}")
            done.add(row.key)


def _steps(verdict: Verdict, picture: Picture, lines: list[Line]) -> None:
    """The ledger against the records: a recorded step never starts again, and was done by the shift that recorded it."""
    ledger: dict[tuple[str, str], list[Line]] = collections.defaultdict(list)
    for line in lines:
        ledger[line.task, line.step].append(line)
    recorded = {
        (row.task, row.key): row
        for row in picture.records
        if row.kind == r.STEP_DONE and (row.key not in {"now", "random", "uuid"})
    }
    verdict.steps = len(recorded)
    for (task, step), row in recorded.items():
        theirs = ledger.get((task, step), [])
        if not any(line.event == "end" and line.shift == row.shift for line in theirs):
            verdict.wrong.append(f"{task} has a result for step {step} that shift {row.shift} never had")
        over = False
        for line in theirs:
            if line.event == "start" and (line.shift > row.shift or (line.shift == row.shift and over)):
                verdict.run_again.append(
                    f"{task} started step {step} in shift {line.shift}, recorded at {row.seq} by shift {row.shift}"
                )
            elif line.event == "start" and line.shift < row.shift and line.at > row.at + CLOCK_SLACK_S:
                verdict.run_again.append(
                    f"{task} started step {step} in lost shift {line.shift}, {line.at - row.at:.3f} s after its record"
                )
            over = over or (line.event == "end" and line.shift == row.shift)
        counted = collections.Counter(line.event for line in theirs)
        verdict.repeated += counted["start"] - counted["fail"] > 1
    for (task, step), theirs in ledger.items():
        if len({line.effect for line in theirs}) > 1:
            verdict.wrong.append(f"{task} gave step {step} several effect keys: { ({line.effect for line in theirs}) }")
    verdict.refused = _refused(picture, lines, recorded)


def _refused(picture: Picture, lines: list[Line], recorded: Mapping[tuple[str, str], Row]) -> int:
    """Steps that ended after another shift had begun: their worker must have tried to append, and been refused."""
    shifts = {task: [row for row in journal if row.kind == r.SHIFT] for task, journal in picture.journals.items()}
    count = 0
    for line in lines:
        row = recorded.get((line.task, line.step))
        if line.event == "end" and (row is None or row.shift != line.shift):
            later = [shift for shift in shifts.get(line.task, []) if shift.seq > line.shift]
            count += bool(later) and later[0].at < line.at
    return count


def _quarantine(verdict: Verdict, picture: Picture, poison: frozenset[str]) -> None:
    """A verdict of quarantine needs enough shifts in a row, right before it, that left nothing behind."""
    for task, journal in picture.journals.items():
        crashes = 0
        progress, counted = True, 0
        for row in journal:
            if row.kind == r.SHIFT:
                crashes = 0 if progress else crashes + 1
                progress = False
                counted = crashes
            elif row.kind == r.QUARANTINED:
                if counted <= SUSPECT_AFTER or (poison and task not in poison):
                    verdict.quarantined.append(
                        f"{task} at {row.seq} after {counted} crashes in a row: {_short(journal)}"
                    )
                progress = True
            elif row.kind not in QUIET:
                progress = True
        if task in poison and not any(row.kind == r.QUARANTINED for row in journal):
            verdict.quarantined.append(f"{task} should be in quarantine and is not, after {crashes} crashes")


def _short(journal: list[Row]) -> str:
    return ", ".join(f"{row.seq} {row.kind} {row.key}".strip() for row in journal)


def quarantined_tasks(picture: Picture) -> list[str]:
    """Tasks that are in quarantine now."""
    return [task for task, row in picture.queue.items() if row[2] == "quarantined"]


def resume_times(picture: Picture, died: Mapping[str, float]) -> list[float]:
    """For each shift whose worker was killed in it: seconds until the next shift of that task began. Not of suspects:
    they wait for a worker of their own."""
    seconds = []
    for journal in picture.journals.values():
        worker, fruitless, progress = "", 0, True
        for row in journal:
            if row.kind == r.SHIFT:
                fruitless = 0 if progress else fruitless + 1
                if worker in died and row.at >= died[worker] and fruitless < SUSPECT_AFTER:
                    seconds.append(row.at - died[worker])
                worker, progress = str(json.loads(row.data)["worker"]), False
            elif row.kind not in QUIET:
                progress = True
                if row.kind in r.ENDS | {r.HANDED_BACK, r.RETRY, r.PARKED, r.QUARANTINED}:
                    worker = ""
    return sorted(seconds)


def percentile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else float("nan")
