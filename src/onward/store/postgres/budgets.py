"""Purses on PostgreSQL: whoever changes one holds its row until the commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.core.audit import AuditEvent
from onward.core.budget import BudgetLedger, Granted
from onward.store.port import budgets as purses
from onward.store.postgres import access as postgres_access
from onward.store.postgres import control as postgres_steer
from onward.store.postgres.execute import S, run


class PostgresPurses:
    """See `Purses` for what each verb promises."""

    _from_outside: Any

    async def purse(self, task_id: str) -> BudgetLedger | None:
        found: dict[str, BudgetLedger] = await self._from_outside(lambda c: _read(c, "purses", [task_id]))
        return found.get(task_id)

    async def change_purses(
        self, holders: Sequence[str], change: purses.Change, deed: AuditEvent | None = None
    ) -> Granted:
        async def job(connection: Any) -> Granted:
            await run(connection, "lock_purses", ids=sorted(holders))  # also one that is not there yet
            before = await _read(connection, "purses", holders)
            granted = change(before)
            if rows := purses.changed(before, granted):
                ids, datas = zip(*rows, strict=True)
                await run(connection, "save_purses", ids=ids, datas=datas)
            for task_id, message in purses.messages(granted):
                await postgres_steer.send(connection, task_id, message)
            if deed is not None:
                await postgres_access.write_down(connection, deed)
            return granted

        return await self._from_outside(job)  # type: ignore[no-any-return]


async def _read(connection: Any, name: str, holders: Sequence[str]) -> dict[str, BudgetLedger]:
    rows = await connection.fetch(S[name].sql, *S[name](ids=list(holders)))
    return purses.unpacked((row["task_id"], row["data"]) for row in rows)
