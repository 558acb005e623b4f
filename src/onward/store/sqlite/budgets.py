"""Purses on SQLite: there is one writer, so nothing has to be locked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw

from onward.core.audit import AuditEvent
from onward.core.budget import BudgetLedger, Granted
from onward.core.crash import crashpoint
from onward.store.port import budgets as purses
from onward.store.sqlite import access as sqlite_access
from onward.store.sqlite import control as sqlite_steer
from onward.store.sqlite.execute import S, run


class SqlitePurses:
    """See `Purses` for what each verb promises."""

    _reading: Any
    _writing: Any

    async def purse(self, task_id: str) -> BudgetLedger | None:
        found: dict[str, BudgetLedger] = await self._reading(lambda c: _read(c, [task_id]))
        return found.get(task_id)

    async def change_purses(
        self, holders: Sequence[str], change: purses.Change, deed: AuditEvent | None = None
    ) -> Granted:
        def job(connection: apsw.Connection) -> Granted:
            crashpoint("purse.before")
            before = _read(connection, holders)
            granted = change(before)
            connection.executemany(S["save_purse"].sql, purses.changed(before, granted))
            for task_id, message in purses.messages(granted):
                sqlite_steer.send(connection, task_id, message)
            if deed is not None:
                sqlite_access.write_down(connection, deed)
            return granted

        granted: Granted = await self._writing(job)
        crashpoint("purse.after")
        return granted


def _read(connection: apsw.Connection, holders: Sequence[str]) -> dict[str, BudgetLedger]:
    return purses.unpacked(run(connection, "purses", ids=json.dumps(list(holders))))
