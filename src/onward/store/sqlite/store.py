"""The Store on SQLite: one file, one writer thread, durable at every commit.

The library is apsw's own, because the one that Python bundles often has the WAL-reset bug (3.7.0 to 3.51.2). WAL with
`synchronous=FULL`: an acknowledged commit survives a power cut. Every write begins with BEGIN IMMEDIATE, so two processes
wait for each other instead of failing half-way.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import apsw

from onward.core.clock import Clock, SystemClock
from onward.core.crash import crashpoint
from onward.core.record import SHIFT, Entry, Record, shift_data
from onward.core.task import NEVER, NewTask
from onward.core.tenant_quota import turn_groups
from onward.errors import TaskNotFound, UsageError
from onward.store import migrate
from onward.store.migrate import State, Tell, silent
from onward.store.nudge import Bell
from onward.store.port.core import Batch, Claimed, Foreign, Outlook, Store, Submitted
from onward.store.port.listing import MAX_BYTES
from onward.store.shared import limits as shared_limits
from onward.store.shared import predecessor, rows
from onward.store.shared.database import Connection
from onward.store.shared.external_transaction import ON_SQLITE, submit_through
from onward.store.shared.follow import Tails
from onward.store.shared.schedules import Schedules
from onward.store.shared.store import SharedStore
from onward.store.sqlite import limits
from onward.store.sqlite.backup import SqliteBackups
from onward.store.sqlite.database import SqliteConnection, SqliteDatabase, finish
from onward.store.sqlite.execute import SIZES, S, check_heard, first, insert, run, save
from onward.store.sqlite.file import Plainly
from onward.store.sqlite.health import SqliteHealth
from onward.store.sqlite.nudges import SqliteNudges
from onward.store.sqlite.outbox import SqliteOutbox
from onward.store.sqlite.transaction import Taken, borrow
from onward.store.sqlite.workers import SqliteWorkers

_TASK, _QUEUE, _RECORD = (itemgetter(*S[name].names) for name in ("submit_task", "submit_queue", "submit_record"))


class SqliteStore(SharedStore):
    """See `port.core.Store` for what each verb promises."""

    out_of_process = True
    one_machine = True
    libraries = ON_SQLITE
    receives_nudges = False
    bell: Bell | None = None

    _db: SqliteDatabase

    def __init__(self, path: str, *, clock: Clock | None = None, inline: bool = False) -> None:
        self._clock = clock or SystemClock()
        database = SqliteDatabase(path, self._clock, inline=inline)
        super().__init__(database, self._clock)
        self.path, self.inline, self.where = path, inline, database.where
        self._migrations = migrate.load("sqlite")
        self.backups = SqliteBackups(
            path, database.where, self._clock, lambda copy: SqliteStore(copy, clock=self._clock)
        )
        self._nudges = SqliteNudges(database)
        self._limited: set[str] = set()
        self._looked_at = ""
        self.health = SqliteHealth(database)
        self.outbox = SqliteOutbox(database)
        self.schedules = Schedules(database, self._submit_within)
        self.tails = Tails(database, self._nudges)
        self.workers = SqliteWorkers(database, self._nudges)

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, *, migrate: bool | None = None, tell: Tell = silent) -> None:
        if self._db.writer is not None:
            return
        self._db.open()
        try:
            if migrate is not False:
                await self.migrate(tell)
            await self._check()
            self._db.protect()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._nudges.close()
        self._db.close()

    def clone(self) -> Store:
        return self

    async def migrate(self, tell: Tell = silent, roles: str | None = None) -> list[str]:
        if roles is not None:
            raise UsageError(f"{self.where} has no roles: the rights to it are those of its file; leave --roles out")
        names: list[str] = []
        while done := await self._db.writing(self._migrate_some):
            for name in done:
                tell(migrate.Progress(name, "done"))
            names += done
        return names

    def _migrate_some(self, connection: apsw.Connection) -> list[str]:
        """Run the next missing migration, so that other programs can write in between; all of them in an empty database."""
        state = self._state(connection)
        migrate.check_age(self.where, self._migrations, state)
        todo = migrate.missing(self._migrations, state)
        todo = todo[:1] if state.done else todo
        if todo:
            connection.execute(migrate.TABLES)
        for step in todo:
            connection.execute(step.whole)
            row = (step.number, step.name, step.checksum)
            connection.execute("INSERT INTO onward_migrations (number, name, checksum) VALUES (?, ?, ?)", row)
            if step.oldest:
                connection.execute(
                    "INSERT INTO onward_schema (name, value) VALUES (?, ?) "
                    "ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
                    (migrate.OLDEST, step.oldest),
                )
        return [step.name for step in todo]

    async def version(self) -> tuple[int, int]:
        state = await self._db.reading(self._state)
        await self._check_epoch(state)
        return state.newest, self._migrations[-1].number

    @staticmethod
    def _state(connection: apsw.Connection) -> State:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        done = connection.execute(migrate.READ) if "onward_migrations" in tables else ()
        marks = dict(connection.execute(migrate.MARKS)) if "onward_schema" in tables else {}
        return State(
            frozenset(number for (number,) in done), marks.get(migrate.OLDEST, 0), mirror=migrate.MIRROR in marks
        )

    async def _check(self) -> None:
        state = await self._db.reading(self._state)
        migrate.check(self.where, self._migrations, state)
        await self._check_mirror(marked=state.mirror)
        await self._enter_epoch(state)

    # ── ways in ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _insert_tasks(self, new: Sequence[NewTask], connection: Any) -> list[Submitted]:
        if connection is not None:
            in_epoch = (self.where, self._db.epoch)
            return await submit_through(connection, new, self._clock.now(), ON_SQLITE, in_epoch)
        return await self._db.writing(lambda c: [self._submit_one(c, task) for task in new])

    def _submit_one(self, connection: apsw.Connection, new: NewTask) -> Submitted:
        if new.parent is not None and first(connection, "parent", id=new.parent) is None:
            raise TaskNotFound(new.parent)  # pruned, while the worker that submits the child slept
        now = self._clock.now()
        turn = None if new.group is None else limits.turn(connection, new)
        values = {**new._asdict(), "now": now, "turn": turn}
        connection.execute(S["submit_task"].sql, _TASK(values))
        if connection.changes() == 0:
            row = first(connection, "submitted", id=new.id, key=new.key)
            assert row is not None
            return Submitted(row[0], row[0] == new.id, row[1])
        connection.execute(S["submit_queue"].sql, _QUEUE(values))
        if new.parent is not None:
            run(connection, "born_paused", id=new.id, parent=new.parent, never=NEVER)
        connection.execute(S["submit_record"].sql, _RECORD(values))
        if new.webhook is not None:
            run(connection, "subscribe_task", now=now, id=new.id, **new.webhook._asdict())
        crashpoint("submit.before")
        return Submitted(new.id, True, new.fingerprint)

    async def _submit_within(self, connection: Connection, tasks: Sequence[NewTask]) -> None:
        assert isinstance(connection, SqliteConnection)
        for task in tasks:
            self._submit_one(connection.raw, task)

    async def transact(
        self, body: Callable[[Any], Awaitable[Entry]], seconds: float, known: float | None = None
    ) -> bool:
        assert self._db.writer is not None

        codec = self._db.codec

        async def wrapped(connection: Any) -> Entry:
            try:
                entry = await body(connection)
            except Exception as error:
                raise Foreign(error) from error
            return entry if codec is None else await codec.sealed_entry(entry)

        try:
            with Plainly(self.where):
                await borrow(self._db.writer, wrapped, seconds, known)
        except Taken:
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
            "names": json.dumps(list(names)),
            "room": room,
            "alone": alone,
            "without": json.dumps([group for tenant in without for group in turn_groups(tenant)]),
            "scan": shared_limits.scan_of(room),
            "data": shift_data(worker, version),
        }
        statement = "ready_suspect" if alone else "ready_beside" if without else "ready"

        def job(connection: apsw.Connection) -> list[Claimed]:
            now, mark = self._clock.now(), values["data"]
            ready = list(run(connection, statement, **values))
            if not ready and shared_limits.rules(run(connection, "limits"), queue, names):
                self._limited.add(queue)
                return []
            insert(connection, "begin_shift", [(row[0], row[9] + 1, row[9] + 1, SHIFT, "", mark, now) for row in ready])
            connection.execute(S["take"].sql, (worker, json.dumps([row[0] for row in ready])))
            crashpoint("claim.before")
            return [limits.claimed(row, now) for row in ready]

        def limited(connection: apsw.Connection, most: int, wide: int) -> shared_limits.Round:
            if rules := shared_limits.rules(run(connection, "limits"), queue, names):
                return limits.claim(connection, values, rules, most, wide, self._clock.now())
            self._limited.discard(queue)
            return shared_limits.Round([])

        if queue not in self._limited:
            claimed = await self._db.writing(job)
            if claimed or queue not in self._limited:
                return claimed
        claimed = await shared_limits.in_rounds(
            lambda most, wide: self._db.writing(lambda c: limited(c, most, wide)), room, self.nudge
        )
        return claimed if queue in self._limited else await self._db.writing(job)

    async def _save(self, worker: str, batch: Batch) -> set[str]:  # noqa: ARG002 -- the journal's numbers are the fence
        def job(connection: apsw.Connection) -> None:
            crashpoint("save.before")
            self._write_batch(connection, batch)

        try:
            alone = (
                not (batch.ends or batch.waits or batch.contents or batch.unlocks) and len(batch.entries) <= SIZES[-1]
            )
            await self._db.writing(job, single=alone)
        except apsw.ConstraintError:
            refused = await self._db.writing(lambda c: self._save_parts(c, batch))
        else:
            refused = set()
        crashpoint("save.after")
        return refused

    def _save_parts(self, connection: apsw.Connection, batch: Batch) -> set[str]:
        return {part.entries[0][0] for part in batch.split() if not self._save_part(connection, part)}

    def _save_part(self, connection: apsw.Connection, part: Batch) -> bool:
        connection.execute("SAVEPOINT part")
        try:
            self._write_batch(connection, part)
        except apsw.ConstraintError:
            connection.execute("ROLLBACK TO part")
            entry = part.entries[0]
            taker = first(connection, "taker", id=entry[0], seq=entry[1])
            if taker is None:
                predecessor.tell(self.where, entry)
            return taker is not None and predecessor.is_own(taker, entry)
        finally:
            connection.execute("RELEASE part")
        return True

    def _write_batch(self, connection: apsw.Connection, batch: Batch) -> None:
        if batch.contents:
            connection.executemany(S["keep"].sql, batch.contents)
        save(connection, batch.entries, batch.witnesses, batch.known)
        if batch.ends:
            check_heard(connection, batch.ends)
            now = self._clock.now()
            connection.execute(S["end_queue"].sql, (json.dumps([end.id for end in batch.ends]),))
            insert(connection, "end_outcome", [(e.id, e.state.value, e.attempt, e.seq, now) for e in batch.ends])
        if batch.waits:
            connection.executemany(S["part"].sql, batch.waits)
        if ends := rows.child_ends(batch):
            finish(SqliteConnection(connection).tell_parents(ends))
        if batch.gates:
            limits.release(connection, batch.gates.values())
        for task_id, key in batch.unlocks:
            run(connection, "drop_locks_of", id=task_id, key=key)

    async def _journal(
        self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = MAX_BYTES
    ) -> list[Record]:
        name = "last_journal" if after is None else "journal"
        if most == MAX_BYTES:
            return [Record(*row) for row in await self._db.fetch(name, id=task_id, limit=limit, after=after)]
        return await self._db.reading(lambda c: _up_to(run(c, name, id=task_id, limit=limit, after=after), most))

    async def wake(self, names: Sequence[str] | None = None, *, absent: float | None = None) -> Outlook:  # noqa: ARG002 -- the kernel tells of a dead process
        outlook, quota = await self._db.reading(lambda c: (_look(c, names, woken=False), first(c, "quota")))
        if quota == (1,):
            self._looked_at = await self._db.writing(lambda c: limits.look(c, self._looked_at))
        if outlook.next_due_in is None or outlook.next_due_in > 0:
            return outlook
        await self._db.writing(lambda c: run(c, "wake"))
        return await self._db.reading(lambda c: _look(c, names, woken=True))

    async def release(self, worker: str, task_ids: Sequence[str], before: float, *, suspect: bool = False) -> None:
        values = [(worker, task_id, before, suspect) for task_id in task_ids]
        await self._db.writing(lambda c: c.executemany(S["release"].sql, values))

    # ── nudges ───────────────────────────────────────────────────────────────────────────────────────────────────

    def nudge(self, topic: str, tasks: Sequence[str] = ()) -> None:
        self._nudges.hub.nudge(topic, tasks)

    def listen(self, topic: str, callback: Callable[..., None]) -> Callable[[], None]:
        return self._nudges.hub.listen(topic, callback)


def _up_to(cursor: Iterator[tuple[Any, ...]], most: int) -> list[Record]:
    """Records up to the one with which their data has `most` bytes. SQLite reads the others not at all."""
    records: list[Record] = []
    size = 0
    for row in cursor:
        records.append(Record(*row))
        size += len(records[-1].data)
        if size >= most:
            break
    return records


def _look(connection: apsw.Connection, names: Sequence[str] | None, *, woken: bool) -> Outlook:
    ((due,),) = run(connection, "due")
    wanted = None if names is None else set(names)
    queues = sorted({queue for queue, task in run(connection, "ready_pairs") if wanted is None or task in wanted})
    suspects = tuple(queue for (queue,) in run(connection, "suspects"))
    ((workers, newest, lost, children, tick, locks),) = run(connection, "place")
    crew = (workers, newest)
    return Outlook(woken, tuple(queues), due, suspects, crew, bool(lost), bool(children), tick, bool(locks))
