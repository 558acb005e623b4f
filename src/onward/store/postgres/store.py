"""The Store on PostgreSQL, through asyncpg: many machines, one database.

Every verb is one statement, or a short transaction. Only the connection of the listener keeps a session: it receives nudges (LISTEN) and
holds the presence locks of workers. Behind a transaction pooler, which the store recognises by its backend ids, there is no listener:
polling and the lease are enough, and statements are not prepared.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg

from onward.core.crash import crashpoint
from onward.core.record import Entry, Record, shift_data
from onward.core.task import NewTask
from onward.core.tenant_quota import turn_groups
from onward.errors import TaskNotFound
from onward.store import migrate
from onward.store.migrate import State, Tell, silent
from onward.store.nudge import Bell
from onward.store.port.core import Batch, Claimed, Foreign, Outlook, Store, Submitted
from onward.store.port.listing import MAX_BYTES
from onward.store.postgres import limits
from onward.store.postgres import migrate as postgres_migrate
from onward.store.postgres.backup import PostgresBackups
from onward.store.postgres.database import PostgresDatabase
from onward.store.postgres.execute import REFUSED, S, records, run, there
from onward.store.postgres.health import PostgresHealth
from onward.store.postgres.marks import Marks
from onward.store.postgres.nudges import PostgresNudges
from onward.store.postgres.outbox import PostgresOutbox
from onward.store.postgres.save import write
from onward.store.postgres.session import MIN_BYTES_PER_S, STATEMENT_TIMEOUT_S, plain
from onward.store.postgres.workers import PostgresWorkers
from onward.store.shared import limits as shared_limits
from onward.store.shared import predecessor, rows
from onward.store.shared.codec import Codec
from onward.store.shared.database import Connection
from onward.store.shared.external_transaction import ON_POSTGRES, submit_through
from onward.store.shared.follow import Tails
from onward.store.shared.predecessor import WitnessLost
from onward.store.shared.schedules import Schedules
from onward.store.shared.store import SharedStore

_SUBMIT_NEW = operator.attrgetter(*S["submit_new"].names)

PART_BYTES = 4_000_000
"""Bytes of a journal that one statement reads, with the record that goes beyond them."""


class PostgresStore(SharedStore):
    """See `port.core.Store` for what each verb promises."""

    inline = False
    out_of_process = True
    one_machine = False
    libraries = ON_POSTGRES

    _db: PostgresDatabase

    def __init__(self, url: str, *, connections: int = 6, epoch: str | None = None) -> None:
        database = PostgresDatabase(url, connections, epoch)
        super().__init__(database)
        self.url, self.where = url, database.where
        self._migrations = migrate.load("postgres")
        self.backups = PostgresBackups(url, database.where)
        self._marks = Marks()
        self._nudges = PostgresNudges(database, self._marks)
        self._limited: set[str] = set()
        self._looked_at = ""
        self.health = PostgresHealth(database, self._nudges)
        self.outbox = PostgresOutbox(database)
        self.schedules = Schedules(database, self._submit_within)
        self.tails = Tails(database, self._nudges)
        self.workers = PostgresWorkers(database, self._nudges)

    @property
    def receives_nudges(self) -> bool:
        return self._nudges.received

    @property
    def bell(self) -> Bell | None:
        return self._nudges.bell

    @bell.setter
    def bell(self, bell: Bell | None) -> None:
        self._nudges.bell = bell

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, *, migrate: bool | None = None, tell: Tell = silent) -> None:
        if self._db.pool is not None:
            return
        await self._db.open()
        try:
            if migrate or (migrate is None and not (await self._state()).done):
                await self.migrate(tell)
            await self._check()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._nudges.close()
        await self._db.close()

    def clone(self) -> Store:
        clone = PostgresStore(self.url, connections=1, epoch=self._db.epoch)
        clone.data_keys.use_same(self.data_keys)
        return clone

    async def _state(self) -> State:
        async with self._db.connection() as connection:
            return await postgres_migrate.state(connection)

    async def migrate(self, tell: Tell = silent, roles: str | None = None) -> list[str]:
        migrator = postgres_migrate.Migrator(self.url, self.where, self._migrations, tell, pooled=self._db.pooled)
        try:
            return await migrator.run(roles)
        except Exception as error:
            if (translated := plain(error, self.where)) is error:
                raise
            raise translated from None

    async def version(self) -> tuple[int, int]:
        state = await self._state()
        await self._check_epoch(state)
        return state.newest, self._migrations[-1].number

    async def _check(self) -> None:
        state = await self._state()
        migrate.check(self.where, self._migrations, state)
        await self._check_mirror(marked=state.mirror)
        await self._enter_epoch(state)

    # ── ways in ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _insert_tasks(self, new: Sequence[NewTask], connection: Any) -> list[Submitted]:
        if connection is not None:
            (row,) = await self._db.fetch("now")
            return await submit_through(connection, new, row[0], ON_POSTGRES, (self.where, self._db.epoch))
        while True:
            created = await self._insert(new)
            self._nudges.submitted = frozenset(created)
            if len(created) == len(new):
                return [Submitted(n.id, True, n.fingerprint) for n in new]
            submitted = await self._submitted(new, created)
            if None not in submitted:
                return [task for task in submitted if task is not None]
            await self._check_parents(new)  # the task that had the key or id was pruned just now

    async def _insert(self, new: Sequence[NewTask]) -> set[str]:
        """Insert tasks; the ids of those that were not there before."""
        if any(task.webhook for task in new):
            return await self.outbox.insert_with_webhooks(new)
        if len(new) != 1 or new[0].group is not None:
            return {row[0] for row in await self._insert_many(new)}
        (task,) = new
        if task.key is not None or task.parent is not None:
            return {row[0] for row in await self._db.write("submit_one", **task._asdict())}
        try:
            async with self._db.connection() as connection:
                await connection.fetch(S["submit_new"].sql, *_SUBMIT_NEW(task))
        except asyncpg.UniqueViolationError:
            return set()
        return {task.id}

    async def _insert_many(self, new: Sequence[NewTask]) -> list[Any]:
        grouped = any(n.group for n in new)
        statement = S["submit_grouped" if grouped else "submit"]
        seconds = STATEMENT_TIMEOUT_S + sum([len(n.input) for n in new]) / MIN_BYTES_PER_S  # all or none: not in parts
        async with self._db.connection() as connection:
            values = statement(**rows.submit_values(new))
            return await connection.fetch(statement.sql, *values, timeout=seconds)  # type: ignore[no-any-return]

    async def _check_parents(self, new: Sequence[NewTask]) -> None:
        wanted = {n.parent for n in new if n.parent is not None}
        for gone in wanted - {row["id"] for row in await self._db.fetch("parents", ids=sorted(wanted))}:
            raise TaskNotFound(gone)

    async def _submitted(self, new: Sequence[NewTask], created: set[str]) -> list[Submitted | None]:
        others = [n for n in new if n.id not in created]
        existing = await self._db.fetch(
            "submitted", ids=[n.id for n in others], keys=[n.key for n in others if n.key is not None]
        )
        ids, keys = {row["id"]: row for row in existing}, {row["key"]: row for row in existing}
        submitted: list[Submitted | None] = []
        for n in new:
            row = ids.get(n.id) or (keys.get(n.key) if n.key is not None else None)
            if n.id in created:
                submitted.append(Submitted(n.id, True, n.fingerprint))
            else:
                submitted.append(row and Submitted(row["id"], row["id"] == n.id, row["fingerprint"]))
        return submitted

    async def _submit_within(self, connection: Connection, tasks: Sequence[NewTask]) -> None:
        await connection.run("submit", **rows.submit_values(tasks))

    async def transact(
        self, body: Callable[[Any], Awaitable[Entry]], seconds: float, known: float | None = None
    ) -> bool:
        try:
            async with asyncio.timeout(seconds), self._db.connection() as connection, connection.transaction():
                await _append_with(connection, body, known, self._db.codec)
        except _Refused:
            return False
        except Foreign as foreign:
            raise foreign.error from None
        return True

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _claim(
        self,
        worker: str,
        queue: str,
        names: Sequence[str],
        room: int,
        *,
        alone: bool = False,
        without: Sequence[str] = (),
        version: str = "",
    ) -> list[Claimed]:
        values = {
            "worker": worker,
            "queue": queue,
            "names": list(names),
            "room": room,
            "alone": alone,
            "without": [group for tenant in without for group in turn_groups(tenant)],
            "scan": shared_limits.scan_of(room),
            "data": shift_data(worker, version),
        }
        if queue not in self._limited:
            claimed_rows = await self._claim_unlimited(values)
            if claimed_rows or not shared_limits.rules(await self._db.fetch("limits"), queue, names):
                return [Claimed._make(row) for row in claimed_rows]
            self._limited.add(queue)
        claimed = await shared_limits.in_rounds(
            lambda most, wide: self._claim_round(values, most, wide), room, self.nudge
        )
        if queue in self._limited:
            return claimed
        # There is no limit any more.
        return await self._claim(worker, queue, names, room, alone=alone, without=without, version=version)

    async def _claim_unlimited(self, values: dict[str, Any]) -> list[Any]:
        if values["alone"]:
            return await self._db.write("claim_suspect", **values)
        if values["without"]:
            return await self._db.write("claim_beside", **values)
        queue, names, time = values["queue"], values["names"], asyncio.get_running_loop().time
        began = time()
        if marks := self._marks.of(queue, names, began):
            return await self._db.write("claim_from", **values, **marks)
        claimed = await self._db.write("claim", **values)
        if self._marks.wants_survey(queue, time() - began, time()):
            began = time()
            fronts = await self._db.fetch("survey", queue=queue, names=names)
            self._marks.set(queue, names, fronts, time() - began, time())
        return claimed

    async def _claim_round(self, values: dict[str, Any], most: int, wide: int) -> shared_limits.Round:
        async with self._db.connection() as connection, connection.transaction():
            rules = shared_limits.rules(await connection.fetch(S["limits"].sql), values["queue"], values["names"])
            if rules:
                return await limits.claim(connection, values, rules, most, wide)
        self._limited.discard(values["queue"])
        return shared_limits.Round([])

    async def _save(self, worker: str, batch: Batch) -> set[str]:
        crashpoint("save.before")
        try:
            await self._write_batch(batch)
        except REFUSED:
            if batch.witnesses and (await self._db.fetch("there", **there(batch.witnesses)))[0]["there"] is None:
                raise WitnessLost from None
            refused = {part.entries[0][0] for part in batch.split() if not await self._save_part(worker, part)}
        else:
            refused = set()
        crashpoint("save.after")
        return refused

    async def _save_part(self, worker: str, part: Batch) -> bool:  # noqa: ARG002 -- the journal's numbers are the fence
        try:
            await self._write_batch(part)
        except REFUSED:
            first = part.entries[0]
            takers = await self._db.fetch("taker", id=first[0], seq=first[1])
            if not takers:
                predecessor.tell(self.where, first)
            return bool(takers) and predecessor.is_own(takers[0], first)
        return True

    async def _write_batch(self, batch: Batch) -> None:
        async with self._db.connection() as connection:
            await write(connection, batch)

    async def _journal(
        self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = MAX_BYTES
    ) -> list[Record]:
        records: list[Record] = []
        name = "last_journal_part" if after is None else "journal_part"
        while True:  # in parts that a slow line carries within the time limit of a statement
            left = limit - len(records)
            part_bytes = min(most, PART_BYTES)
            part = await self._db.fetch(name, id=task_id, after=after, limit=left, most=part_bytes)
            records += [Record(*row.values()) for row in part]
            size = sum([len(row["data"]) for row in part])
            most -= size
            if len(records) >= limit or size < part_bytes or most <= 0:
                return records
            name, after = "journal_part", records[-1].seq

    async def wake(self, names: Sequence[str] | None = None, *, absent: float | None = None) -> Outlook:
        values = {"names": list(names or ()), "any_name": names is None, "lease": absent}
        (row,) = await self._db.fetch("outlook", **values)
        if woken := row["next_due_in"] is not None and row["next_due_in"] <= 0:
            await self._db.write("wake")
            self._marks.drop()
            (row,) = await self._db.fetch("outlook", **values)
        if row["quota"]:
            async with self._db.connection() as connection:
                self._looked_at = await limits.look(connection, self._looked_at)
        return Outlook(
            woken,
            tuple(row["queues"]),
            row["next_due_in"],
            tuple(row["suspects"]),
            (row["workers"], row["newest"]),
            row["lost"],
            row["children"],
            row["next_tick_in"],
            row["locks"],
            frozenset(row["absent"]),
        )

    async def release(self, worker: str, task_ids: Sequence[str], before: float, *, suspect: bool = False) -> None:
        async with self._db.connection() as connection, connection.transaction():
            await run(connection, "lock_rows", ids=list(task_ids))
            await run(connection, "release", worker=worker, ids=list(task_ids), before=before, suspect=suspect)

    # ── nudges ───────────────────────────────────────────────────────────────────────────────────────────────────

    def nudge(self, topic: str, tasks: Sequence[str] = ()) -> None:
        self._nudges.nudge(topic, tasks)

    def listen(self, topic: str, callback: Callable[..., None]) -> Callable[[], None]:
        return self._nudges.listen(topic, callback)


class _Refused(Exception):
    """The record of a transaction is refused: its number is taken, or its predecessor is gone."""


async def _append_with(
    connection: Any, body: Callable[[Any], Awaitable[Entry]], known: float | None, codec: Codec | None
) -> None:
    """Run the body, and append the record that it returns."""
    try:
        entry = await body(connection)
    except Exception as error:
        raise Foreign(error) from error
    entry = entry if codec is None else await codec.sealed_entry(entry)
    try:
        await connection.execute(S["save"].sql, *S["save"](**records([entry], [], {entry[0]: known})))
    except REFUSED:
        raise _Refused from None
