"""Budgets: ledgers that tasks share.

A change reads ledgers, decides, and writes them in one transaction with the messages that follow from it. It is not part of the group
commit, because many tasks share a ledger and the journal must not wait for it. On PostgreSQL a transaction locks the ledgers that it
changes until its commit, in the order of their ids, and before any queue row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from onward.core.audit import AuditEvent
from onward.core.budget import BudgetLedger, Granted
from onward.core.crash import crashpoint
from onward.core.task import Message
from onward.store.shared import tasks
from onward.store.shared.audit import Audit
from onward.store.shared.database import Connection, Database, OverDatabase

Change = Callable[[Mapping[str, BudgetLedger]], Granted]
"""Computes the new ledgers from those that exist, by the ids of the tasks that hold them. It may be called again, and must have no
effect of its own."""


class Budgets(OverDatabase):
    """The ledgers of budgets."""

    def __init__(self, database: Database, audit: Audit) -> None:
        super().__init__(database)
        self._audit = audit

    async def get(self, task_id: str) -> BudgetLedger | None:
        """The ledger of a task; None when it has none, or has not begun to spend."""
        return _ledgers(await self._db.fetch("purses", ids=[task_id])).get(task_id)

    async def change(self, holders: Sequence[str], change: Change, event: AuditEvent | None = None) -> Granted:
        """Change the ledgers of these tasks, send the messages that follow from it, and add the audit event: all or nothing. Raises what
        the change raises, and then nothing is written."""

        async def job(connection: Connection) -> Granted:
            crashpoint("purse.before")
            await connection.lock("lock_purses", ids=sorted(holders))  # also one that is not there yet
            before = _ledgers(await connection.fetch("purses", ids=list(holders)))
            granted = change(before)
            if changed := _changed(before, granted):
                await connection.run_many("save_purse", changed)
            for wake in sorted(granted.wake):  # the order in which queue rows are locked
                await tasks.send(connection, wake.task_id, Message(wake.message, "budget", "", None, b"null"))
            if event is not None:
                await self._audit.append_within(connection, event)
            return granted

        granted = await self._db.transact(job)
        crashpoint("purse.after")
        return granted


def _ledgers(rows: Iterable[Sequence[bytes]]) -> dict[str, BudgetLedger]:
    return {str(holder): BudgetLedger.unpacked(data) for holder, data in rows}


def _changed(before: Mapping[str, BudgetLedger], granted: Granted) -> list[dict[str, str | bytes]]:
    return [
        {"id": holder, "data": ledger.packed()}
        for holder, ledger in granted.ledgers.items()
        if before.get(holder) != ledger
    ]
