"""The proof of the deploy demo, from the journal, the ledger of the cloud, and the exit status of the worker. Pure."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

from onward.cli.demo.proof import KILLED, Claim, Proof
from onward.cli.output.text import span
from onward.core.record import HANDED_BACK, SHIFT, STEP_DONE, Record
from onward.core.task import State
from onward.demo.deploy import FATAL_STEP, STEPS


@dataclasses.dataclass(frozen=True)
class StepCount:
    """The requests of one step in the ledger of the cloud."""

    step: str
    calls: int
    effects: int
    keys: int
    processes: int


@dataclasses.dataclass(frozen=True)
class DeployProof(Proof):
    """`recorded` are the steps that the journal had when the worker was dead."""

    requests: list[dict[str, Any]]
    made: int
    status: int
    killed_at: float
    recorded: list[str]

    @cached_property
    def counts(self) -> list[StepCount]:
        """The counts of all steps."""
        return [self._count(name) for name, _, _ in STEPS]

    def _count(self, step: str) -> StepCount:
        requests = [request for request in self.requests if request["what"].startswith(step)]
        return StepCount(
            step,
            calls=len(requests),
            effects=sum(request["effect"] for request in requests),
            keys=len({request["key"] for request in requests}),
            processes=len({request["pid"] for request in requests}),
        )

    @cached_property
    def shifts(self) -> list[Record]:
        return [record for record in self.records if record.kind == SHIFT]

    @property
    def resumed_after(self) -> float:
        """Seconds from the kill to the claim of the next worker."""
        return self.shifts[-1].at - self.killed_at

    def _claims(self) -> list[Claim]:
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

    def _figures(self) -> dict[str, Any]:
        return {
            "steps": [dataclasses.asdict(count) for count in self.counts],
            "resumed_after_s": round(self.resumed_after, 3),
        }
