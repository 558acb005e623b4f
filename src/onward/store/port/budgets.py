"""Purses: where budgets are kept. A change is read, decided and written in one transaction, with the messages it leads to.

Outside the group commit, because many tasks share a purse and the journal must not wait for it. Purse rows are locked in the
order of their ids, and before any queue row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from onward.core.audit import AuditEvent
from onward.core.budget import BudgetLedger, Granted

Change = Callable[[Mapping[str, BudgetLedger]], Granted]
"""What becomes of purses, given those that are there. It may be called again, and must not do anything else."""


class Purses(Protocol):
    """What every Store keeps about budgets. The promises of all verbs of the Store hold here too."""

    async def purse(self, task_id: str) -> BudgetLedger | None:
        """The purse of a task, or None when it has none, or has not begun to spend."""
        ...

    async def change_purses(self, holders: Sequence[str], change: Change, deed: AuditEvent | None = None) -> Granted:
        """Change the purses of these tasks, send the messages that this leads to, and write down the deed: all or nothing.
        Raises what the change raises, and then nothing is written."""
        ...
