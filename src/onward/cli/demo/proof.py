"""The proof of a demo: claims about its task, and whether each holds. Pure."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, TypeVar

from onward.cli.demo.workers import Kill
from onward.core.record import Record
from onward.core.task import Task
from onward.service.serialize import record_json, task_json

KILLED = -9
"""The exit status of a process that was ended by signal 9."""

Claim = tuple[str, bool]
"""A sentence, and whether it holds."""


@dataclasses.dataclass(frozen=True)
class Proof(abc.ABC):
    """The task and its journal, the kills, and the ledger of the world that the task changes. Each demo adds its claims."""

    task: Task
    records: list[Record]
    kills: list[Kill]
    ledger: list[dict[str, Any]]

    @property
    @abc.abstractmethod
    def claims(self) -> list[Claim]:
        """Sentences about the run, and whether each holds."""

    @property
    @abc.abstractmethod
    def figures(self) -> dict[str, Any]:
        """The counts of this demo as JSON."""

    @property
    def holds(self) -> bool:
        return all(true for _, true in self.claims)

    def as_json(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "claims": [{"claim": sentence, "holds": true} for sentence, true in self.claims],
            **self.figures,
            "task": task_json(self.task),
            "journal": [record_json(record) for record in self.records],
        }


P = TypeVar("P", bound=Proof)
