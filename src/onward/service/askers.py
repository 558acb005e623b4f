"""Askers: the principals that asked for the actions of a task. A part of the service.

Approval rules keep an asker from deciding. These are the principals that submitted or forked the task or one above it, also those that
submitted it again with its idempotency key; and those that resumed any task of its tree, sent it a message, a signal, a patch, an answer
or a verdict, or denied an approval of it with a reason: a child gives its result to its parent. A fork, and a task that goes on `after`
another, also has the askers of that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.core import wire
from onward.store.port.core import Store


class Askers:
    """Finds the askers of a task."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, task_id: str) -> frozenset[str]:
        """The askers of a task."""
        askers: set[str] = set()
        root, ids = task_id, [task_id]
        while ids:
            relatives = await self._store.listing.kin(ids)
            for task in relatives:
                askers.update(wire.decode(task.options).get("askers", ()))
            ids = [task.parent for task in relatives if task.parent is not None]
            root = ids[0] if ids else root
        return frozenset(askers | await self._store.approvals.askers(root))

    async def add(self, askers: Sequence[tuple[str, str]], connection: Any = None) -> None:
        """Record that principals submitted tasks that were there already: ids of the tasks and principals. Raises TooManyAskers."""
        if not askers:
            return
        tasks = await self._store.listing.kin(sorted({task_id for task_id, _ in askers}))
        known = {(task.id, asker) for task in tasks for asker in wire.decode(task.options).get("askers", ())}
        if new := [pair for pair in dict.fromkeys(askers) if pair not in known]:
            await self._store.approvals.add(new, connection)
