"""Submit in the caller's own transaction: the task is there with the caller's data, or not at all.

On PostgreSQL the connection may be asyncpg's, psycopg's (sync or async) or SQLAlchemy's (Connection, Session and their async twins); on
SQLite it is apsw's. On both it may be the one of a `ctx.transaction`. The store uses it as it is: it begins, commits and rolls back
nothing. The statements are plain ones that every library runs; only their placeholders differ.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from onward.core.epoch import FIRST
from onward.core.task import NEVER, NewTask
from onward.errors import EpochEnded, UsageError
from onward.store import statements
from onward.store.port.values import Submitted

# The second and third find the row of the first, or nothing: where a key or an id is taken, all three have no effect. (A task that has
# ended has no queue row, but always a journal.)
_INSERTS = (
    "INSERT INTO onward_tasks (id, task, queue, priority, created_at, key, fingerprint, input, options, parent, grp, tenant) "
    "VALUES (:id, :task, :queue, :priority, :now, :key, :fingerprint, :input, :options, :parent, :group, "
    "COALESCE((SELECT p.tenant FROM onward_tasks p WHERE p.id = :parent), :tenant)) ON CONFLICT DO NOTHING",
    "INSERT INTO onward_queue (task_id, queue, task, priority, parent, grp, turn_group, turn, due_at, reason) "
    "SELECT id, queue, task, priority, parent, grp, :turn_group, :turn, :due_at, :reason FROM onward_tasks WHERE id = :id "
    "AND NOT EXISTS (SELECT 1 FROM onward_journal WHERE task_id = :id) ON CONFLICT DO NOTHING",
    "INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) "
    "SELECT id, 1, 0, 'task.submitted', '', :empty, created_at FROM onward_tasks WHERE id = :id ON CONFLICT DO NOTHING",
)
_TURN = statements.text("turn")
_WEBHOOK = statements.text("subscribe_task")
_BORN_PAUSED = statements.text("born_paused")
ADD_DATA_KEY = statements.text("data_key_add_through")
_SUBMITTED = (
    "SELECT id, fingerprint, (SELECT e.id FROM onward_epochs e ORDER BY e.number DESC LIMIT 1) AS epoch "
    "FROM onward_tasks WHERE id = :id OR key = :key"
)
_PARAMETER = re.compile(r":([a-z_]+)")
_OWN = "onward"
_DOLLARS = {"asyncpg", _OWN}
"""Libraries whose placeholders are $1, $2 and so on."""

ON_POSTGRES = ("asyncpg", "psycopg", "sqlalchemy", _OWN)
ON_SQLITE = ("apsw", _OWN)


async def submit_through(
    connection: Any, new: Sequence[NewTask], now: float, allowed: tuple[str, ...], in_epoch: tuple[str, str | None]
) -> list[Submitted]:
    """Submit with the caller's connection, which must be of an allowed library. `in_epoch` is the name of the database, and the epoch in
    which this process may write; raises EpochEnded in another."""
    check_library(connection, allowed)
    submitted = []
    for task in new:
        values = task._asdict() | {
            "now": now,
            "empty": b"{}",
            "due_at": now + task.delay if task.delay > 0 else None,
            "reason": "delayed" if task.delay > 0 else "queued",
            "turn": None,
        }
        task_row, *others = _INSERTS
        await run_through(connection, task_row, values)
        if (
            task.group is not None
        ):  # not before the first write: SQLite would refuse to write in a transaction that began with a read
            (row,) = await run_through(connection, _TURN, values, rows=True)
            (values["turn"],) = row.values() if isinstance(row, dict) else row
        for statement in others:
            await run_through(connection, statement, values)
        if task.parent is not None:
            await run_through(connection, _BORN_PAUSED, values | {"never": NEVER})
        if task.webhook is not None:
            await run_through(connection, _WEBHOOK, values | task.webhook._asdict())
        (row,) = await run_through(connection, _SUBMITTED, values, rows=True)
        # The caller may have set a row factory.
        task_id, fingerprint, epoch = row.values() if isinstance(row, dict) else row
        if (epoch or FIRST.id) != in_epoch[1]:
            raise EpochEnded(in_epoch[0])
        submitted.append(Submitted(task_id, task_id == task.id, fingerprint))
    return submitted


def _library(connection: Any) -> str:
    """The library of a connection, also where its class is a subclass of the caller."""
    modules = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    return next((name for name in modules if name in {*ON_POSTGRES, *ON_SQLITE, "sqlite3"}), "")


def check_library(connection: Any, allowed: tuple[str, ...]) -> None:
    """Raise UsageError unless the connection is of an allowed library."""
    library = _library(connection)
    if library in allowed:
        return
    if allowed is ON_SQLITE and library in {"sqlite3", "sqlalchemy"}:
        raise UsageError(
            f"submit(connection=…) on SQLite takes a connection of apsw, not of {library}: Onward has the file open with the SQLite "
            "library of apsw, and Python's sqlite3 is another one. Two of them in one process do not see each other's locks, and destroy "
            "the file when both write. Open it with apsw.Connection(path), or keep your tables in a file of their own"
        )
    names = "asyncpg, psycopg or SQLAlchemy" if allowed is ON_POSTGRES else "apsw"
    raise UsageError(f"submit(connection=…) takes a connection of {names} here, not {type(connection).__name__}")


async def run_through(connection: Any, sql: str, values: Mapping[str, Any], *, rows: bool = False) -> list[Any]:
    """Run a statement with the caller's connection, which has an allowed library."""
    library = _library(connection)
    names = _PARAMETER.findall(sql)
    ordered = [values[name] for name in names]
    if library in _DOLLARS:
        counter = iter(range(1, len(names) + 1))
        text = _PARAMETER.sub(lambda _: f"${next(counter)}", sql)
        return list(await connection.fetch(text, *ordered)) if rows else [await connection.execute(text, *ordered)]
    if library == "sqlalchemy":
        return await _sqlalchemy(connection, sql, {name: values[name] for name in names}, rows=rows)
    text = _PARAMETER.sub("%s" if library == "psycopg" else "?", sql)
    cursor = await _settled(connection.execute(text, ordered))
    return list(await _settled(cursor.fetchall())) if rows else []


async def _sqlalchemy(connection: Any, sql: str, values: dict[str, Any], *, rows: bool) -> list[Any]:
    from sqlalchemy import text  # noqa: PLC0415 -- the caller has it, or could not have given its connection

    cursor = await _settled(connection.execute(text(sql), values))
    return list(cursor.fetchall()) if rows else []


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
