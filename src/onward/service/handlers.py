"""Handlers as the outside sees them: what can be asked for, and what it takes. A part of the service.

Those of this process are known as they are; of others what a worker said when it started, for as long as the database remembers
it. A handler that no living worker has is shown too: its tasks would wait.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onward.core import wire
from onward.service.submission import HandlerSpec
from onward.store.port.core import Store


@dataclasses.dataclass(frozen=True, slots=True)
class HandlerView:
    """A handler: what does tasks of a name."""

    name: str
    doc: str
    """What it is for, as its code says."""
    schema: dict[str, Any]
    """JSON schema of the input."""
    kind: str
    """"task", or "agent" where a model decides what it does."""
    queue: str
    here: bool
    """Whether the process that answers has it."""
    workers: int
    """Living workers that have it."""
    version: str | None
    """The version of Onward that they are of, the highest where they differ; None when there is none."""


class Handlers:
    """All verbs about them."""

    def __init__(self, store: Store, offers: Mapping[str, HandlerSpec]) -> None:
        self._store, self._offers = store, offers

    async def list(self) -> list[HandlerView]:
        """All of them, by name."""
        told = {name: wire.decode(data) for name, data in (await self._store.handlers.registered()).items()}
        told |= {name: offer.said() for name, offer in self._offers.items() if offer.said is not None}
        now, _ = await self._store.overview.held()
        versions: dict[str, list[str]] = {}
        for worker in await self._store.workers.list():
            for name in worker.names if worker.lease_until > now else ():
                versions.setdefault(name, []).append(worker.version)
        return [self._view(name, told[name], versions.get(name, [])) for name in sorted(told)]

    async def attempts(self, names: Collection[str]) -> dict[str, int]:
        """How often a task of each of these names is tried, where anybody has said so."""
        told: dict[str, Mapping[str, Any]] = {
            name: offer.said() for name, offer in self._offers.items() if name in names and offer.said is not None
        }
        if told.keys() < set(names):
            told = {name: wire.decode(data) for name, data in (await self._store.handlers.registered()).items()} | told
        return {name: said["attempts"] for name, said in told.items() if name in names and "attempts" in said}

    def _view(self, name: str, said: Mapping[str, Any], versions: Sequence[str]) -> HandlerView:
        schema = dict(said.get("input", {}))
        doc = str(said.get("doc", schema.get("description", "")))
        kind = "agent" if said.get("agent") else "task"
        queue = str(said.get("queue", "default"))
        return HandlerView(
            name, doc, schema, kind, queue, name in self._offers, len(versions), max(versions, default=None)
        )
