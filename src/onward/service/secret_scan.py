"""Leaks: where in the database the value of a secret stands all the same, from before it was one, or from a process that did
not know it.

Every row of every table is looked through, and what artifacts hold. Nothing is changed, and no value leaves this process: the
database is not asked for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onward.artifacts.errors import ArtifactDamaged, ArtifactNotFound
from onward.artifacts.keeper import Artifacts, beside
from onward.core import mask, wire
from onward.core import record as r
from onward.core.secret import SecretMissing, UnfitSecret
from onward.store.port.core import Store

MOST = 1_000
"""Leaks that are told one by one."""


class Asked(Protocol):
    """What gives the values of secrets."""

    @property
    def names(self) -> Mapping[str, Any]:
        """The declared ones."""
        ...

    def value(self, name: str) -> str:
        """The value, which the masks know from then on."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Leak:
    """One place at which a value stands."""

    secret: str
    task_id: str
    """Empty where no task is concerned."""
    where: str


@dataclasses.dataclass(slots=True)
class Found:
    """What a look at everything came to."""

    leaks: list[Leak] = dataclasses.field(default_factory=list)
    more: int = 0
    """Further ones, beyond those that are told."""
    rows: int = 0
    secrets: list[str] = dataclasses.field(default_factory=list)
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)
    """Secrets that were not looked for, and why."""

    def add(self, leak: Leak) -> None:
        """One more."""
        if len(self.leaks) < MOST:
            self.leaks.append(leak)
        else:
            self.more += 1


async def find(store: Store, artifacts: Artifacts, secrets: Asked) -> Found:
    """Look for the values of all declared secrets."""
    found = Found()
    for name in sorted(secrets.names):
        try:
            await asyncio.to_thread(secrets.value, name)
            found.secrets.append(name)
        except (SecretMissing, UnfitSecret) as error:
            found.unknown[name] = str(error)
    left: list[tuple[str, str]] = []

    def look(table: str, row: Mapping[str, Any]) -> None:
        found.rows += 1
        for column, said in row.items():
            if (name := _name_in(said)) is not None:
                found.add(Leak(name, _task(table, row), _where(table, row, column)))
        if row.get("kind") == r.ARTIFACT and table == "onward_journal":
            left.append((row["task_id"], wire.decode(row["data"])["artifact_id"]))

    if found.secrets:
        await store.health.scan(look)
        if artifacts.elsewhere:
            await _look_at_artifacts(artifacts, left, found)
    return found


async def _look_at_artifacts(artifacts: Artifacts, left: Sequence[tuple[str, str]], found: Found) -> None:
    for task_id, artifact_id in dict.fromkeys(left):
        try:
            data = await artifacts.get(task_id, artifact_id)
        except (ArtifactNotFound, ArtifactDamaged):
            continue
        found.rows += 1
        name = await beside(len(data), lambda data=data: mask.name_in_bytes(data))  # type: ignore[misc]
        if name is not None:
            found.add(Leak(name, task_id, f"artifact {artifact_id}"))


def _name_in(said: Any) -> str | None:
    if isinstance(said, str):
        said = said.encode("utf-8", "replace")
    return mask.name_in_bytes(said) if isinstance(said, bytes) else None


def _task(table: str, row: Mapping[str, Any]) -> str:
    return str(row.get("task_id") or (row["id"] if table == "onward_tasks" else ""))


def _where(table: str, row: Mapping[str, Any], column: str) -> str:
    """A place as a person can find it."""
    match table:
        case "onward_journal":
            return f"record {row['seq']} ({row['kind']})" + ("" if column == "data" else f", its {column}")
        case "onward_tasks":
            return f"its {column}"
        case "onward_contents":
            return f"contents {row['id']}"
        case "onward_inbox":
            return f"message {row['number']} ({row['kind']})"
        case _:
            told = next((str(row[name]) for name in ("name", "id", "task_id") if row.get(name)), "")
            return f"{table.removeprefix('onward_')} {mask.text(told)}, {column}".replace(" ,", ",")
