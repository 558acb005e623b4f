"""The proof of the agent demo, from the journal, the disk and its ledger, and the exit statuses of the workers. Pure."""

from __future__ import annotations

import collections
import dataclasses
from functools import cached_property
from typing import Any

from onward.cli.demo.proof import KILLED, Claim, Proof
from onward.cli.demo.workers import Kill
from onward.core import record as r
from onward.core.journal.reader import fields, step_name
from onward.core.journal.turns import model_call
from onward.core.task import State
from onward.core.text import count, span
from onward.demo.agent import SCRIPTED, delete_logs


@dataclasses.dataclass(frozen=True)
class AgentProof(Proof):
    """`before` and `after` are the digests of the files on the disk."""

    before: dict[str, str]
    after: dict[str, str]
    model: str

    # ── counts ───────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def deletions(self) -> dict[str, int]:
        """How often each file was deleted."""
        return dict(collections.Counter(line["path"] for line in self._lines("deleted")))

    @cached_property
    def freed(self) -> int:
        """The bytes of the deleted files."""
        sizes = {line["path"]: line["bytes"] for line in self._lines("deleting")}
        return sum(sizes.get(path, 0) for path in self.deletions)

    @cached_property
    def turns(self) -> list[dict[str, Any]]:
        """The model calls in the journal."""
        return [call for record in self.records if (call := model_call(record)) is not None]

    @property
    def answers(self) -> int:
        """The number of answers that the model gave, with those that the journal does not have."""
        return len(self._lines("answered"))

    @property
    def tokens(self) -> int | None:
        """The tokens of all turns; None if the model is scripted or does not count them."""
        if self.model == SCRIPTED:
            return None
        usages = [turn.get("usage") or {} for turn in self.turns]
        counts = [usage.get(name) for usage in usages for name in ("input", "output")]
        known = [number for number in counts if isinstance(number, int)]
        return sum(known) if len(known) == len(counts) else None

    def _lines(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.ledger if line["what"] == what]

    @cached_property
    def approved(self) -> set[str]:
        """The files of all approved calls."""
        approvals = {record.seq: fields(record) for record in self.records if record.kind == r.APPROVAL}
        messages = [fields(record) for record in self.records if record.kind == r.MESSAGE]
        decisions = [message for message in messages if message.get("kind") == "decision"]
        approving = [decision for decision in decisions if decision["value"].get("decision") == "approve"]
        calls = [(approvals.get(yes.get("ref", 0), {}).get("data") or {}).get("arguments") or {} for yes in approving]
        return {path.lstrip("/") for call in calls for path in call.get("paths", ())}

    # ── claims ───────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def claims(self) -> list[Claim]:
        kills = [self._killed(kill) for kill in self.kills]
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

    def _killed(self, kill: Kill) -> Claim:
        ended = f"worker {kill.worker} was ended by signal 9"
        deleted = len(self._deleted_before(kill))
        if kill.waiting:
            return (
                f"{ended} while the task waited for a yes, and nothing was deleted",
                kill.status == KILLED and deleted == 0,
            )
        recorded = delete_logs.name in map(step_name, kill.recorded)
        return (
            f"{ended} when {count(deleted, 'file')} had been deleted and the journal did not know",
            kill.status == KILLED and deleted > 0 and not recorded,
        )

    def _deleted_before(self, kill: Kill) -> set[str]:
        return {line["path"] for line in self._lines("deleted") if line["at"] <= kill.at}

    def _went_on(self) -> list[Claim]:
        """The claim about the kill in the middle of a deletion."""
        kills = [kill for kill in self.kills if not kill.waiting]
        if not kills:
            return []
        kill = kills[0]
        resumed = [record.at for record in self.records if record.kind == r.SHIFT and record.at > kill.at]
        later = [line for line in self.ledger if line.get("at", 0) > kill.at]
        checked = [line for line in later if line["what"] == "asked" and line["gone"]]
        deleted_before = self._deleted_before(kill)
        again = [line for line in later if line["what"] in {"deleting", "deleted"} and line["path"] in deleted_before]
        took = span(resumed[0] - kill.at) if resumed else "never"
        return [
            (
                f"{took} later worker {kill.worker + 1} went on: it asked the disk, and deleted nothing again",
                bool(resumed) and bool(checked) and not again,
            )
        ]

    def _once(self) -> list[Claim]:
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

    def _untouched(self) -> Claim:
        left = {path: digest for path, digest in self.before.items() if path not in self.deletions}
        which = "all other files" if self.deletions else f"nothing was deleted: all {count(len(left), 'file')}"
        return f"{which} are there, byte for byte", self.after == left

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "kills": [{"worker": kill.worker, "status": kill.status, "waiting": kill.waiting} for kill in self.kills],
            "deleted": self.deletions,
            "freed_bytes": self.freed,
            "turns": len(self.turns),
            "answers": self.answers,
            "tokens": self.tokens,
            "report": self.task.result,
        }
