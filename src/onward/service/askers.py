"""Askers: the principals that asked for the actions of a task. A part of the service.

Approval rules keep an asker from deciding. These are the principals that submitted, forked or resumed the task or one above it, or sent one
of them a message, a signal, a patch, an answer or a verdict. A fork, and a task that goes on `after` another, also has the askers of
that one.
"""

from __future__ import annotations

from onward.core import wire
from onward.store.port.core import Store


class Askers:
    """Finds the askers of a task."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, task_id: str) -> frozenset[str]:
        """The askers of a task, and of all tasks above it."""
        askers: set[str] = set()
        line, ids = [task_id], [task_id]
        while ids:
            relatives = await self._store.listing.kin(ids)
            for task in relatives:
                askers.update(wire.decode(task.options).get("askers", ()))
            ids = [task.parent for task in relatives if task.parent is not None]
            line += ids
        return frozenset(askers | await self._store.approvals.askers(line))
