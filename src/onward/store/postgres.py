"""The Store on PostgreSQL, through asyncpg: many machines, one database.

Every verb is one statement, or a short transaction; nothing is kept in a session but the listener's connection, which
hears nudges (LISTEN) and holds the worker's presence lock. Behind a transaction pooler, which is recognised by its
backend ids, even that is left out: polling and the lease are enough, and statements are not prepared.
"""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from onward.core.crash import crashpoint
from onward.core.deed import Deed
from onward.core.ending import end_tasks
from onward.core.limit import LimitRow
from onward.core.record import Entry, Record
from onward.core.schedule import ScheduleRow, Timetable
from onward.core.task import Message, NewTask, Task
from onward.errors import StoreUnavailable, TaskNotFound
from onward.store import limits, migrate, rows
from onward.store import postgres_access as access
from onward.store import postgres_limits as gates
from onward.store import postgres_schedules as timed
from onward.store import postgres_steer as steer
from onward.store.access import seen_by
from onward.store.borrowed import submit_through
from onward.store.listener import Listener
from onward.store.nudge import Hub, News
from onward.store.overview import WHOLE
from onward.store.pool import Pool
from onward.store.port import (
    Ask,
    Batch,
    Beat,
    Claimed,
    Depth,
    Foreign,
    Outlook,
    Sent,
    Stopped,
    Store,
    Submitted,
    WorkerRow,
)
from onward.store.postgres_access import PostgresAccess
from onward.store.postgres_fork import fork
from onward.store.postgres_gauges import PostgresGauges
from onward.store.postgres_nudges import PostgresNudges
from onward.store.postgres_outbox import PostgresOutbox
from onward.store.postgres_overview import PostgresOverview
from onward.store.postgres_prune import PostgresPruning
from onward.store.postgres_purses import PostgresPurses
from onward.store.postgres_quotas import PostgresQuotas
from onward.store.postgres_run import S, run
from onward.store.postgres_save import write
from onward.store.postgres_session import Loan, behind_a_pooler, connect, health, plain
from onward.store.postgres_tails import PostgresTails
from onward.store.postgres_trim import PostgresTrimming

T = TypeVar("T")
_SUBMIT_NEW = operator.attrgetter(*S["submit_new"].names)
MIGRATION_LOCK = 7_205_759_403
log = logging.getLogger("onward.store")

CLOSED_WITHIN = 5.0
"""Seconds that a close waits for nudges that are being sent."""


class PostgresStore(
    PostgresAccess,
    PostgresGauges,
    PostgresNudges,
    PostgresOutbox,
    PostgresOverview,
    PostgresPruning,
    PostgresPurses,
    PostgresQuotas,
    PostgresTails,
    PostgresTrimming,
):
    """See `Store` for what each verb promises."""

    inline = False
    apart = True
    one_machine = False

    def __init__(self, url: str, *, connections: int = 6) -> None:
        parts = urllib.parse.urlsplit(url)
        self.url, self._most = url, connections
        self.where = f"PostgreSQL {parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
        self._migrations = migrate.load("postgres")
        self._pool: Pool | None = None
        self._pooled = False
        self._hub = Hub(self._send)
        self._news = News(self._hub, self._send_news)
        self._listener: Listener | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._limited: set[str] = set()
        self._looked_at = ""

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, *, migrate: bool | None = None) -> None:
        if self._pool is not None:
            return
        try:
            self._pooled = await behind_a_pooler(self.url)
        except Exception as error:
            raise plain(error, self.where) from None
        self._pool = Pool(lambda: connect(self.url, pooled=self._pooled), self._most)
        try:
            if migrate or (migrate is None and not await self._done()):
                await self.migrate()
            await self._check()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._hub.close()
        self._news.close()
        await end_tasks(list(self._sending), CLOSED_WITHIN, log, "closing the store")
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    def twin(self) -> Store:
        return PostgresStore(self.url, connections=1)

    async def _done(self) -> set[int]:
        async with self._connection() as connection:
            if await connection.fetchval("SELECT to_regclass('onward_migrations')") is None:
                return set()
            return {row[0] for row in await connection.fetch(migrate.READ)}

    async def migrate(self) -> list[str]:
        async with self._connection() as connection, connection.transaction():
            await connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            await connection.execute(migrate.TABLE)
            done = {row[0] for row in await connection.fetch(migrate.READ)}
            if max(done, default=0) > self._migrations[-1].number:
                migrate.check(self.where, self._migrations, done)
            for step in (todo := migrate.missing(self._migrations, done)):
                await connection.execute(step.sql)
                await connection.execute(
                    "INSERT INTO onward_migrations VALUES ($1, $2, $3)", step.number, step.name, step.checksum
                )
        return [step.name for step in todo]

    async def version(self) -> tuple[int, int]:
        return max(await self._done(), default=0), self._migrations[-1].number

    async def _check(self) -> None:
        migrate.check(self.where, self._migrations, await self._done())

    # ── connections and errors ───────────────────────────────────────────────────────────────────────────────────

    def _connection(self) -> Loan:
        if self._pool is None:
            raise StoreUnavailable(f"{self.where} is not open; use `async with app:` around what you do")
        return Loan(self._pool, self.where, pooled=self._pooled)

    async def _fetch(self, name: str, /, **values: Any) -> list[Any]:
        statement = S[name]
        async with self._connection() as connection:
            return await connection.fetch(statement.sql, *statement(**values))  # type: ignore[no-any-return]

    async def _execute(self, name: str, /, **values: Any) -> int:
        statement = S[name]
        async with self._connection() as connection:
            return _count(await connection.execute(statement.sql, *statement(**values)))

    # ── ways in ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, new: Sequence[NewTask], connection: Any = None) -> list[Submitted]:
        if connection is not None:
            (row,) = await self._fetch("now")
            return await submit_through(connection, new, row[0])
        while True:
            created = await self._insert(new)
            if len(created) == len(new):
                return [Submitted(n.id, True, n.fingerprint) for n in new]
            answers = await self._submitted(new, created)
            if None not in answers:
                return [answer for answer in answers if answer is not None]
            await self._check_parents(new)  # what was in the way is not there any more: pruned just now

    async def _insert(self, new: Sequence[NewTask]) -> set[str]:
        """The ids of those that were not there before."""
        if any(task.webhook for task in new):
            return await self.insert_with_webhooks(new)
        if len(new) != 1 or new[0].group is not None:
            return {row[0] for row in await self._insert_many(new)}
        (task,) = new
        if task.key is not None or task.parent is not None:
            return {row[0] for row in await self._fetch("submit_one", **task._asdict())}
        try:
            async with self._connection() as connection:
                await connection.fetch(S["submit_new"].sql, *_SUBMIT_NEW(task))
        except asyncpg.UniqueViolationError:
            return set()
        return {task.id}

    async def _insert_many(self, new: Sequence[NewTask]) -> list[Any]:
        grouped = any(n.group for n in new)
        return await self._fetch("submit_grouped" if grouped else "submit", **rows.submit_values(new))

    async def _check_parents(self, new: Sequence[NewTask]) -> None:
        wanted = {n.parent for n in new if n.parent is not None}
        for gone in wanted - {row["id"] for row in await self._fetch("parents", ids=sorted(wanted))}:
            raise TaskNotFound(gone)

    async def _submitted(self, new: Sequence[NewTask], created: set[str]) -> list[Submitted | None]:
        there = [n for n in new if n.id not in created]
        found = await self._fetch(
            "submitted", ids=[n.id for n in there], keys=[n.key for n in there if n.key is not None]
        )
        ids, keys = {row["id"]: row for row in found}, {row["key"]: row for row in found}
        answers: list[Submitted | None] = []
        for n in new:
            row = ids.get(n.id) or (keys.get(n.key) if n.key is not None else None)
            if n.id in created:
                answers.append(Submitted(n.id, True, n.fingerprint))
            else:
                answers.append(row and Submitted(row["id"], row["id"] == n.id, row["fingerprint"]))
        return answers

    async def keyed(self, keys: Sequence[str]) -> dict[str, Submitted]:
        found = await self._fetch("submitted", ids=[], keys=list(keys))
        return {row["key"]: Submitted(row["id"], False, row["fingerprint"]) for row in found}

    async def depth(self, queue: str) -> Depth:
        ((waiting, rate),) = await self._fetch("depth", queue=queue)
        return Depth(waiting, rate)

    async def cancel(self, task_id: str) -> Stopped:
        return await self._from_outside(lambda c: steer.cancel(c, task_id))

    async def resume(self, task_id: str) -> bool:
        return await self._from_outside(lambda c: steer.resume(c, task_id))

    async def fork(self, task_id: str, origin: str, at: int, *, input: bytes, inbox: int, told: bytes = b"") -> None:  # noqa: A002
        await self._from_outside(lambda c: fork(c, task_id, origin, at, input, inbox, told))

    async def _from_outside(self, job: Callable[[Any], Awaitable[T]]) -> T:
        """A transaction that appends as nobody's shift; looks again when a worker was quicker with the next number."""
        while True:
            try:
                async with self._connection() as connection, connection.transaction():
                    return await job(connection)
            except asyncpg.UniqueViolationError:
                await asyncio.sleep(0)

    async def pause(self, task_id: str) -> bool | None:
        found = await self._fetch("pause", id=task_id)
        return found[0]["worker"] is not None if found else None

    async def children(self, task_id: str) -> list[str]:
        return [row["task_id"] for row in await self._fetch("children", id=task_id)]

    async def orphans(self) -> list[str]:
        return [row["task_id"] for row in await self._fetch("orphans")]

    async def send(self, task_id: str, message: Message, deed: Deed | None = None) -> Sent:
        return await self._from_outside(lambda c: access.send(c, task_id, message, deed))

    async def inbox(self, task_id: str, after: int = 0) -> list[Message]:
        return [Message(*row.values()) for row in await self._fetch("inbox", id=task_id, after=after)]

    async def asks(self, task_id: str | None = None, whose: str | None = None) -> list[Ask]:
        name = "asks_of" if task_id else "asks"
        return [Ask(*row.values()) for row in await self._fetch(name, id=task_id, **seen_by(whose))]

    async def doubts(self) -> list[str]:
        return [row["task_id"] for row in await self._fetch("doubts")]

    async def transact(self, body: Callable[[Any], Awaitable[Entry]], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds), self._connection() as connection, connection.transaction():
                await steer.record_with(connection, body)
        except steer.Taken:
            return False
        except Foreign as foreign:
            raise foreign.error from None
        return True

    async def prioritize(self, task_id: str, priority: int) -> bool:
        return bool(await self._fetch("prioritize", id=task_id, priority=priority))

    async def offer(self, handlers: Sequence[tuple[str, bytes]]) -> None:
        ordered = sorted(handlers)
        await self._execute("offer", names=[name for name, _ in ordered], schemas=[schema for _, schema in ordered])

    async def limit(self, limits: Sequence[LimitRow]) -> None:
        async with self._connection() as connection, connection.transaction():
            await gates.set_limits(connection, limits)

    async def offered(self) -> dict[str, bytes]:
        return {row["name"]: row["schema"] for row in await self._fetch("offered")}

    async def schedules(self, *, soonest: int | None = None) -> Timetable:
        async with self._connection() as connection:
            return await timed.schedules(connection, soonest)

    async def turn(self, name: str, seen: str | None, to: ScheduleRow | None, tasks: Sequence[NewTask] = ()) -> bool:
        async with self._connection() as connection, connection.transaction():
            done = await timed.turn(connection, name, seen, to, tasks)
        if tasks:
            crashpoint("tick.after")
        return done

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(
        self, worker: str, queue: str, names: Sequence[str], room: int, *, alone: bool = False
    ) -> list[Claimed]:
        asked = {"worker": worker, "queue": queue, "names": list(names), "room": room, "alone": alone}
        if queue not in self._limited:
            found = await self._fetch("claim", data=json.dumps({"worker": worker}).encode(), **asked)
            if found or not limits.rules(await self._fetch("limits"), queue, names):
                return [Claimed._make(row) for row in found]
            self._limited.add(queue)
        claimed = await limits.in_rounds(lambda most, wide: self._claim_round(asked, most, wide), room, self.nudge)
        if queue in self._limited:
            return claimed
        return await self.claim(worker, queue, names, room, alone=alone)  # there is no limit any more

    async def _claim_round(self, asked: dict[str, Any], most: int, wide: int) -> limits.Round:
        async with self._connection() as connection, connection.transaction():
            rules = limits.rules(await connection.fetch(S["limits"].sql), asked["queue"], asked["names"])
            if rules:
                return await gates.claim(connection, asked, rules, most, wide)
        self._limited.discard(asked["queue"])
        return limits.Round([])

    async def save(self, worker: str, batch: Batch) -> set[str]:
        crashpoint("save.before")
        try:
            await self._write_batch(batch)
        except asyncpg.UniqueViolationError:
            refused = {part.entries[0][0] for part in batch.split() if not await self._save_part(worker, part)}
        else:
            refused = set()
        crashpoint("save.after")
        return refused

    async def _save_part(self, worker: str, part: Batch) -> bool:  # noqa: ARG002 -- the journal's numbers are the fence
        try:
            await self._write_batch(part)
        except asyncpg.UniqueViolationError:
            first = part.entries[0]
            found = await self._fetch("taker", id=first[0], seq=first[1])
            return bool(found) and tuple(found[0]) == first[2:4]
        return True

    async def _write_batch(self, batch: Batch) -> None:
        async with self._connection() as connection:
            await write(connection, batch)

    async def journal(self, task_id: str, after: int | None = 0, limit: int = 1000) -> list[Record]:
        if after is None:
            found = await self._fetch("last_journal", id=task_id, limit=limit)
        else:
            found = await self._fetch("journal", id=task_id, after=after, limit=limit)
        return [Record(*row.values()) for row in found]

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        return {row["id"]: row["data"] for row in await self._fetch("contents", id=task_id, ids=list(ids))}

    async def wake(self) -> Outlook:
        (row,) = await self._fetch("outlook")
        if woken := row["next_due_in"] is not None and row["next_due_in"] <= 0:
            await self._execute("wake")
            (row,) = await self._fetch("outlook")
        if row["quota"]:
            async with self._connection() as connection:
                self._looked_at = await gates.look(connection, self._looked_at)
        return Outlook(woken, tuple(row["queues"]), row["next_due_in"], tuple(row["suspects"]))

    async def release(self, worker: str, task_ids: Sequence[str], before: float, *, suspect: bool = False) -> None:
        async with self._connection() as connection, connection.transaction():
            await run(connection, "lock_rows", ids=list(task_ids))
            await run(connection, "release", worker=worker, ids=list(task_ids), before=before, suspect=suspect)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, row: WorkerRow, lease: float) -> float:
        await self._execute("join", lease=lease, **rows.worker_values(row))
        (answer,) = await self._fetch("now")
        return float(answer[0])

    async def beat(self, worker: str, lease: float, rate: float) -> Beat:
        (row,) = await self._fetch("beat", worker=worker, lease=lease, rate=rate)
        return Beat(row["alive"] > 0, row["now"], frozenset(row["held"]), frozenset(row["paused"]))

    async def leave(self, worker: str) -> None:
        async with self._connection() as connection, connection.transaction():
            await run(connection, "leave", worker=worker)  # its row first, as in a rescue
            await run(connection, "lock_held", worker=worker)
            await run(connection, "let_go", worker=worker)
        if self._listener is not None:
            await self._listener.let_go(worker)

    async def rescue(self, dead: Sequence[str], lease: float | None = None, now: float | None = None) -> int:
        async with self._connection() as connection, connection.transaction():
            await run(connection, "bury", dead=list(dead), lease=lease, now=now)
            return _count(await connection.execute(S["rescue"].sql))

    async def workers(self) -> list[WorkerRow]:
        return [rows.worker(row) for row in await self._fetch("workers")]

    async def absent(self, lease: float) -> set[str]:
        return {row["id"] for row in await self._fetch("absent", lease=lease)}

    # ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str, whose: str | None = None) -> Task | None:
        found = await self._fetch("get", id=task_id, most=WHOLE, **seen_by(whose))
        return rows.task(found[0]) if found else None

    async def census(self) -> list[tuple[str, str]]:
        return [(row["task_id"], row["fault"]) for row in await self._fetch("census")]

    async def doctor(self) -> list[tuple[str, bool, str]]:
        (row,) = await self._fetch("health")
        return health(row, pooled=self._pooled)


def _count(tag: str) -> int:
    return int(tag.rsplit(" ", 1)[-1])
