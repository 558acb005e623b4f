"""What the demo proves, and from what: the journal, the cloud's ledger, and the exit status of the worker. Pure."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

from onward.cli.output.text import span
from onward.core.record import HANDED_BACK, SHIFT, STEP_DONE, Record
from onward.core.task import State, Task
from onward.demo.deploy import FATAL_STEP, STEPS
from onward.service.serialize import record_json, task_json

KILLED = -9


@dataclasses.dataclass(frozen=True)
class Count:
    """What the cloud knows of one step."""

    step: str
    calls: int
    effects: int
    keys: int
    processes: int


@dataclasses.dataclass(frozen=True)
class Proof:
    """`recorded` is what the journal had when the worker was dead."""

    task: Task
    records: list[Record]
    requests: list[dict[str, Any]]
    made: int
    status: int
    killed_at: float
    recorded: list[str]

    @cached_property
    def counts(self) -> list[Count]:
        """The ledger, step by step."""
        return [self._count(name) for name, _, _ in STEPS]

    def _count(self, step: str) -> Count:
        mine = [request for request in self.requests if request["what"].startswith(step)]
        return Count(
            step,
            calls=len(mine),
            effects=sum(request["effect"] for request in mine),
            keys=len({request["key"] for request in mine}),
            processes=len({request["pid"] for request in mine}),
        )

    @cached_property
    def shifts(self) -> list[Record]:
        return [record for record in self.records if record.kind == SHIFT]

    @property
    def resumed_after(self) -> float:
        """Seconds from the kill to the claim of the next worker."""
        return self.shifts[-1].at - self.killed_at

    @cached_property
    def claims(self) -> list[tuple[str, bool]]:
        """Sentences, and whether they hold."""
        names = [name for name, _, _ in STEPS]
        before = names[: names.index(FATAL_STEP)]
        fatal = self._count(FATAL_STEP)
        done = [record.key for record in self.records if record.kind == STEP_DONE]
        others = [count for count in self.counts if count.step != FATAL_STEP]
        return [
            (f"the first worker was ended by signal 9 (exit status {self.status})", self.status == KILLED),
            (
                f"at that moment the effect of step {len(before) + 1} was there and its record was not",
                self.recorded == before,
            ),
            (
                f"{span(self.resumed_after)} after the kill a second worker went on from the journal alone",
                len(self.shifts) == 2 and not any(record.kind == HANDED_BACK for record in self.records),
            ),
            (
                f"step {len(before) + 1} was called twice, by two processes, with the same key",
                (fatal.calls, fatal.processes, fatal.keys) == (2, 2, 1),
            ),
            ("no other step was called again", all(count.calls == 1 for count in others)),
            (
                f"each of the {len(names)} effects happened exactly once",
                all(count.effects == 1 for count in self.counts) and self.made == len(names),
            ),
            (
                "the deploy is completed, with one record for each step",
                self.task.state is State.COMPLETED and done == names,
            ),
        ]

    @property
    def holds(self) -> bool:
        return all(true for _, true in self.claims)

    def as_json(self) -> dict[str, Any]:
        """The proof for programs."""
        return {
            "holds": self.holds,
            "claims": [{"claim": sentence, "holds": true} for sentence, true in self.claims],
            "steps": [dataclasses.asdict(count) for count in self.counts],
            "resumed_after_s": round(self.resumed_after, 3),
            "task": task_json(self.task),
            "journal": [record_json(record) for record in self.records],
        }
