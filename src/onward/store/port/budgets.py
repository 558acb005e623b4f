"""The port of the budgets: ledgers that tasks share.

A change reads ledgers, decides, and writes them in one transaction with the messages that follow from it. It is not part of the group
commit, because many tasks share a ledger and the journal must not wait for it. A transaction locks ledgers in the order of their ids, and
before any queue row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from onward.core.audit import AuditEvent
from onward.core.budget import BudgetLedger, Granted

Change = Callable[[Mapping[str, BudgetLedger]], Granted]
"""Computes the new ledgers from those that exist, by the ids of the tasks that hold them. It may be called again, and must have no
effect of its own."""


class Budgets(Protocol):
    """The ledgers of budgets."""

    async def get(self, task_id: str) -> BudgetLedger | None:
        """The ledger of a task; None when it has none, or has not begun to spend."""
        ...

    async def change(self, holders: Sequence[str], change: Change, event: AuditEvent | None = None) -> Granted:
        """Change the ledgers of these tasks, send the messages that follow from it, and add the audit event: all or nothing. Raises what
        the change raises, and then nothing is written."""
        ...
