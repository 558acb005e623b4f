"""Searches the database for values of secrets: those that were written before the name was declared, or by a process that did not know
the secret.

The scan reads every row of every table, and all artifacts. It changes nothing, and no value leaves this process: the values are compared
here and not in the database.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onward.artifacts.keeper import Artifacts, run_off_loop
from onward.core import mask, wire
from onward.core import record as r
from onward.core.sealed import is_sealed
from onward.errors import ArtifactDamaged, ArtifactNotFound, SecretMissing, UnfitSecret
from onward.store.port.core import Store

MAX_LEAKS = 1_000
"""Leaks that are listed; further ones are only counted."""


class SecretValues(Protocol):
    """Gives the values of secrets."""

    @property
    def names(self) -> Mapping[str, Any]:
        """The declared secrets."""
        ...

    def learn_values(self, name: str) -> None:
        """Let the masks know the value of a secret, or the values of all tenants. Raises SecretMissing and UnfitSecret."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Leak:
    """One place that has the value of a secret."""

    secret: str
    task_id: str
    """Empty where the place belongs to no task."""
    where: str


@dataclasses.dataclass(slots=True)
class ScanResult:
    """The result of a scan."""

    leaks: list[Leak] = dataclasses.field(default_factory=list)
    more: int = 0
    """Leaks beyond those in `leaks`."""
    rows: int = 0
    sealed: int = 0
    """Payloads that are encrypted. The scan does not look into them."""
    secrets: list[str] = dataclasses.field(default_factory=list)
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)
    """Secrets that were not searched for, and why."""

    def add(self, leak: Leak) -> None:
        """Add a leak."""
        if len(self.leaks) < MAX_LEAKS:
            self.leaks.append(leak)
        else:
            self.more += 1


async def find(store: Store, artifacts: Artifacts, secrets: SecretValues) -> ScanResult:
    """Search for the values of all declared secrets."""
    result = ScanResult()
    for name in sorted(secrets.names):
        try:
            await asyncio.to_thread(secrets.learn_values, name)
            result.secrets.append(name)
        except (SecretMissing, UnfitSecret) as error:
            result.unknown[name] = str(error)
    kept: list[tuple[str, str]] = []

    def scan_row(table: str, row: Mapping[str, Any]) -> None:
        result.rows += 1
        for column, value in row.items():
            result.sealed += isinstance(value, bytes) and is_sealed(value)
            if (name := _name_in(value)) is not None:
                result.add(Leak(name, _task(table, row), _where(table, row, column)))
        if row.get("kind") == r.ARTIFACT and table == "onward_journal" and not is_sealed(row["data"]):
            kept.append((row["task_id"], wire.decode(row["data"])["artifact_id"]))

    if result.secrets:
        await store.health.scan(scan_row)
        if artifacts.elsewhere:
            await _scan_artifacts(artifacts, kept, result)
    return result


async def _scan_artifacts(artifacts: Artifacts, ids: Sequence[tuple[str, str]], result: ScanResult) -> None:
    """Scan artifacts outside the database, by the ids of task and artifact."""
    for task_id, artifact_id in dict.fromkeys(ids):
        try:
            data = await artifacts.get(task_id, artifact_id)
        except (ArtifactNotFound, ArtifactDamaged):
            continue
        result.rows += 1
        name = await run_off_loop(len(data), lambda data=data: mask.name_in_bytes(data))  # type: ignore[misc]
        if name is not None:
            result.add(Leak(name, task_id, f"artifact {artifact_id}"))


def _name_in(value: Any) -> str | None:
    """The name of a secret whose value is in the value of a column."""
    if isinstance(value, str):
        value = value.encode("utf-8", "replace")
    return mask.name_in_bytes(value) if isinstance(value, bytes) else None


def _task(table: str, row: Mapping[str, Any]) -> str:
    return str(row.get("task_id") or (row["id"] if table == "onward_tasks" else ""))


def _where(table: str, row: Mapping[str, Any], column: str) -> str:
    """The place in words that a person can follow."""
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
            row_name = next((str(row[name]) for name in ("name", "id", "task_id") if row.get(name)), "")
            return f"{table.removeprefix('onward_')} {mask.text(row_name)}, {column}".replace(" ,", ",")
