"""The oracle of the errands: judges from outside what an agent asked, did and answered.

    the ledger   every request as the model got it, every start of a tool, every effect in the world, and each approval
                 of the person
    the store    tables read past Onward
    the marks    which tasks were really killed, and where

Histories are checked by `tests.agent.pairing`, which shares no code with the agent.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onward.core import record as r
from tests.agent.pairing import badly_paired
from tests.faults import verdict
from tests.faults.errands import EFFECTS, TURNS, read_goal
from tests.faults.verdict import Picture, Row


@dataclasses.dataclass
class Finding:
    """The faults, each as a sentence, and counters of the work done."""

    unpaired: list[str] = dataclasses.field(default_factory=list)
    paid_again: list[str] = dataclasses.field(default_factory=list)
    doubled: list[str] = dataclasses.field(default_factory=list)
    run_again: list[str] = dataclasses.field(default_factory=list)
    unapproved: list[str] = dataclasses.field(default_factory=list)
    not_asked: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    torn: list[str] = dataclasses.field(default_factory=list)
    void: list[str] = dataclasses.field(default_factory=list)

    tasks: int = 0
    same: int = 0
    """Tasks that ended with the expected answer."""
    kills: int = 0
    calls: int = 0
    """Model calls."""
    repeated: int = 0
    """Model calls made again, because their answer was lost with its worker."""
    doubts: int = 0
    """Effects in doubt, about which a person was asked."""

    @property
    def faults(self) -> dict[str, list[str]]:
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: sentences for name, sentences in named.items() if isinstance(sentences, list) and sentences}

    def must_be_clean(self) -> None:
        lists = [f"{name} ({len(sentences)}): " + "; ".join(sentences[:5]) for name, sentences in self.faults.items()]
        assert not lists, "\n".join(lists)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills · {self.calls} model calls, {len(self.unpaired)} unpaired, {len(self.paid_again)} paid twice "
            f"({self.repeated} again, whose answer died) · {self.tasks * len(EFFECTS)} effects, {len(self.doubled)} doubled, "
            f"{self.doubts} in doubt and asked for · {len(self.run_again)} run again · "
            f"{self.same} of {self.tasks} with the same answer"
        )


def judge(picture: Picture, ledger: Iterable[list[Any]], home: Path, goals: Mapping[str, str], answer: str) -> Finding:
    """Judges the tasks of `goals` (task id → goal); each of them must end with `answer`."""
    finding = Finding(tasks=len(goals))
    lines: dict[str, list[list[Any]]] = collections.defaultdict(list)
    for line in ledger:
        lines[line[1]].append(line)
    for task, goal in goals.items():
        errand, boundary, _ = read_goal(goal)
        journal = picture.journals.get(task, [])
        killed = (home / "killed" / task).exists()
        finding.kills += killed
        if not killed and boundary != "nowhere":
            finding.void.append(f"{task} was never killed: {goal}")
        _asked(finding, task, home, [line for line in lines[task] if line[0] == "asked"])
        _done(finding, task, errand, lines[task])
        _steps(finding, task, journal, lines[task])
        _announced(finding, task, journal)
        _ended(finding, task, journal, picture, answer)
    return finding


def _asked(finding: Finding, task: str, home: Path, requests: list[list[Any]]) -> None:
    finding.calls += len(requests)
    finding.repeated += len(requests) - TURNS
    for _, _, turn, recorded, request in requests:
        messages = json.loads((home / request).read_text())
        finding.unpaired += [f"{task}, turn {turn}, {fault}" for fault in badly_paired(messages)]
        if recorded > turn:
            finding.paid_again.append(f"{task} paid for turn {turn} when the journal had {recorded} answers")


def _done(finding: Finding, task: str, errand: str, lines: list[list[Any]]) -> None:
    """Each effect changed the world once, and those that need an approval only after it."""
    applied = collections.Counter(line[2].removeprefix(f"{errand} ") for line in lines if line[0] == "applied")
    for effect in EFFECTS:
        if applied[effect] > 1:
            finding.doubled.append(f"{task} did {effect!r} {applied[effect]} times")
        elif not applied[effect]:
            finding.wrong.append(f"{task} never did {effect!r}")
    allowed = False
    for line in lines:
        allowed = allowed or line[0] == "approved"
        if line[0] == "applied" and line[2].endswith("wipe") and not allowed:
            finding.unapproved.append(f"{task} wiped before an approval")


def _steps(finding: Finding, task: str, journal: list[Row], lines: list[list[Any]]) -> None:
    """A tool whose result is recorded never starts again."""
    recorded = {row.key: row for row in journal if row.kind in {r.STEP_DONE, r.STEP_FAILED}}
    for line in lines:
        if line[0] == "start" and (row := recorded.get(line[2])) is not None and line[3] > row.shift:
            finding.run_again.append(f"{task} started {line[2]} in shift {line[3]}, recorded at {row.seq}")
    counted = collections.Counter(row.key for row in journal if row.kind == r.STEP_DONE)
    finding.run_again += [f"{task} has {count} results of {key}" for key, count in counted.items() if count > 1]


def _announced(finding: Finding, task: str, journal: list[Row]) -> None:
    """An announced effect that another shift meets is in doubt: the task asks a person before it does anything else."""
    open_: dict[str, int] = {}
    for row in journal:
        if row.kind == r.DOUBTED:
            finding.doubts += 1
            open_.pop(json.loads(row.data)["step"], None)
        elif row.kind in {r.ANNOUNCED, r.STEP_DONE}:
            if open_.get(row.key, row.shift) != row.shift:
                finding.not_asked.append(f"{task} went on with {row.key} at {row.seq}, and asked no person")
            open_.pop(row.key, None)
            if row.kind == r.ANNOUNCED:
                open_[row.key] = row.shift


def _ended(finding: Finding, task: str, journal: list[Row], picture: Picture, answer: str) -> None:
    state, seq, attempt = picture.outcomes.get(task, ("unfinished", 0, 0))
    result = next((json.loads(row.data).get("result") for row in journal if row.seq == seq), None)
    if (state, result, attempt) == ("completed", answer, 1):
        finding.same += 1
    else:
        how = picture.queue.get(task, ("", "", "ended"))[2]
        finding.wrong.append(f"{task} is {state} ({how}) with {result!r} in attempt {attempt}, and not {answer!r}")
    answers = sum(
        row.kind == r.STEP_DONE and row.key.rpartition("]")[2].partition("#")[0] == "model" for row in journal
    )
    if answers != TURNS:
        finding.wrong.append(f"{task} has {answers} answers of its model, and not {TURNS}")
    whole = verdict.Verdict()
    verdict._journal(whole, task, journal)
    finding.torn += whole.torn + whole.stale
