"""What the demo of the agent proves, and from what: the journal, the disk and its ledger, and how the workers ended. Pure."""

from __future__ import annotations

import collections
import dataclasses
from functools import cached_property
from typing import Any

from onward.cli.demo.workers import Kill
from onward.cli.output.text import count, span
from onward.core import record as r
from onward.core.journal.turns import model_call
from onward.core.task import State, Task
from onward.demo.agent import SCRIPTED
from onward.service.serialize import payload, record_json, task_json

KILLED = -9


@dataclasses.dataclass(frozen=True)
class Moment:
    """A kill, and how things stood then: files deleted so far, and whether the journal had the deletion."""

    kill: Kill
    waiting: bool
    deleted: int
    recorded: bool


@dataclasses.dataclass(frozen=True)
class AgentProof:
    """`before` and `after` are what was in each file of the disk."""

    task: Task
    records: list[r.Record]
    ledger: list[dict[str, Any]]
    moments: list[Moment]
    before: dict[str, str]
    after: dict[str, str]
    model: str

    # ── what is counted ──────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def deletions(self) -> dict[str, int]:
        """How often each file was deleted."""
        return dict(collections.Counter(line["path"] for line in self._lines("deleted")))

    @cached_property
    def freed(self) -> int:
        """Bytes."""
        sizes = {line["path"]: line["bytes"] for line in self._lines("deleting")}
        return sum(sizes.get(path, 0) for path in self.deletions)

    @cached_property
    def turns(self) -> list[dict[str, Any]]:
        """The model calls that the journal has."""
        return [said for record in self.records if (said := model_call(record)) is not None]

    @property
    def answers(self) -> int:
        """The answers that the model gave, whatever the journal knows of them."""
        return len(self._lines("answered"))

    @property
    def tokens(self) -> int | None:
        """As the model counts them; None when it does not, or only pretends to."""
        if self.model == SCRIPTED:
            return None
        used = [said.get("usage") or {} for said in self.turns]
        counts = [one.get(name) for one in used for name in ("input", "output")]
        known = [number for number in counts if isinstance(number, int)]
        return sum(known) if len(known) == len(counts) else None

    def _lines(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.ledger if line["what"] == what]

    @cached_property
    def approved(self) -> set[str]:
        """The files of all calls to which somebody said yes."""
        wanted = {record.seq: payload(record) or {} for record in self.records if record.kind == r.APPROVAL}
        said = [payload(record) or {} for record in self.records if record.kind == r.MESSAGE]
        yes = [one for one in said if one.get("kind") == "decision" and one["value"].get("decision") == "approve"]
        calls = [(wanted.get(one.get("ref", 0), {}).get("data") or {}).get("arguments") or {} for one in yes]
        return {path.lstrip("/") for call in calls for path in call.get("paths", ())}

    # ── what is claimed ──────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def claims(self) -> list[tuple[str, bool]]:
        """Sentences, and whether they hold."""
        kills = [self._killed(moment) for moment in self.moments]
        return [
            *(kills or [("a worker was killed on the way", False)]),
            *self._went_on(),
            *self._once(),
            self._untouched(),
            (
                f"{count(len(self.turns), 'turn')}, {count(self.answers, 'answer')} of the model: none was paid for twice",
                self.answers == len(self.turns) > 0,
            ),
            ("the task is completed", self.task.state is State.COMPLETED),
        ]

    def _killed(self, moment: Moment) -> tuple[str, bool]:
        number, status = moment.kill.worker, moment.kill.status
        if moment.waiting:
            return (
                f"worker {number} was ended by signal 9 while the task waited for a yes, and nothing was deleted",
                status == KILLED and moment.deleted == 0,
            )
        return (
            f"worker {number} was ended by signal 9 when {count(moment.deleted, 'file')} had been deleted and the journal did not know",
            status == KILLED and moment.deleted > 0 and not moment.recorded,
        )

    def _went_on(self) -> list[tuple[str, bool]]:
        """After the kill in the middle of a deletion."""
        found = [moment.kill for moment in self.moments if not moment.waiting]
        if not found:
            return []
        resumed = [record.at for record in self.records if record.kind == r.SHIFT and record.at > found[0].at]
        later = [line for line in self.ledger if line.get("at", 0) > found[0].at]
        looked = [line for line in later if line["what"] == "asked" and line["gone"]]
        files = {line["path"] for line in self._lines("deleted") if line["at"] <= found[0].at}
        again = [line for line in later if line["what"] in {"deleting", "deleted"} and line["path"] in files]
        took = span(resumed[0] - found[0].at) if resumed else "never"
        return [
            (
                f"{took} later worker {found[0].worker + 1} went on: it asked the disk, and deleted nothing again",
                bool(resumed) and bool(looked) and not again,
            )
        ]

    def _once(self) -> list[tuple[str, bool]]:
        if not self.deletions:
            return []
        gone = not self.deletions.keys() & self.after.keys()
        return [
            (
                f"each of the {count(len(self.deletions), 'file')} was deleted exactly once, and is gone",
                set(self.deletions.values()) == {1} and gone,
            ),
            ("each of them was on the list that was approved", self.deletions.keys() <= self.approved),
        ]

    def _untouched(self) -> tuple[str, bool]:
        left = {path: digest for path, digest in self.before.items() if path not in self.deletions}
        which = "all other files" if self.deletions else f"nothing was deleted: all {count(len(left), 'file')}"
        return f"{which} are there, byte for byte", self.after == left

    @property
    def holds(self) -> bool:
        return all(true for _, true in self.claims)

    def as_json(self) -> dict[str, Any]:
        """The proof for programs."""
        return {
            "holds": self.holds,
            "model": self.model,
            "claims": [{"claim": sentence, "holds": true} for sentence, true in self.claims],
            "kills": [
                {"worker": one.kill.worker, "status": one.kill.status, "waiting": one.waiting} for one in self.moments
            ],
            "deleted": self.deletions,
            "freed_bytes": self.freed,
            "turns": len(self.turns),
            "answers": self.answers,
            "tokens": self.tokens,
            "report": self.task.result,
            "task": task_json(self.task),
            "journal": [record_json(record) for record in self.records],
        }
