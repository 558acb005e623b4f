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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import asyncpg

from onward.core.audit import AuditEvent
from onward.core.crash import crashpoint
from onward.core.limit import LimitRow
from onward.core.record import Entry, Record
from onward.core.schedule import ScheduleRow, Timetable
from onward.core.shutdown import end_tasks
from onward.core.task import Message, NewTask, Task
from onward.errors import StoreUnavailable, TaskNotFound
from onward.store import migrate
from onward.store.migrate import State, Tell, silent
from onward.store.nudge import Hub, News
from onward.store.port.access import seen_by
from onward.store.port.core import (
    ALL,
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
from onward.store.port.overview import WHOLE
from onward.store.postgres import access, snapshots
from onward.store.postgres import control as steer
from onward.store.postgres import limits as gates
from onward.store.postgres import migrate as postgres_migrate
from onward.store.postgres import schedules as timed
from onward.store.postgres.access import PostgresAccess
from onward.store.postgres.budgets import PostgresPurses
from onward.store.postgres.execute import S, run, there
from onward.store.postgres.follow import PostgresTails
from onward.store.postgres.fork import fork
from onward.store.postgres.gauges import PostgresGauges
from onward.store.postgres.listener import Listener
from onward.store.postgres.marks import Marks
from onward.store.postgres.nudges import PostgresNudges
from onward.store.postgres.outbox import PostgresOutbox
from onward.store.postgres.overview import PostgresOverview
from onward.store.postgres.pool import Pool
from onward.store.postgres.pruning import PostgresPruning
from onward.store.postgres.quotas import PostgresQuotas
from onward.store.postgres.save import write
from onward.store.postgres.session import PATIENCE, SLOWEST, Loan, behind_a_pooler, connect, health, plain
from onward.store.postgres.trimming import PostgresTrimming
from onward.store.shared import limits, predecessor, rows
from onward.store.shared.census import Faults, Seen, in_slices, unseen
from onward.store.shared.external_transaction import ON_POSTGRES, submit_through
from onward.store.shared.predecessor import WitnessLost

T = TypeVar("T")
_SUBMIT_NEW = operator.attrgetter(*S["submit_new"].names)
log = logging.getLogger("onward.store")

PART = 4_000_000
"""Bytes of a journal that one statement reads, and the record that goes beyond them."""

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
        self._looked_at = self._parents_after = ""
        self._marks = Marks()
        self._submitted: frozenset[str] = frozenset()
        """The tasks of the last submit: they stand behind no mark."""

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, *, migrate: bool | None = None, tell: Tell = silent) -> None:
        if self._pool is not None:
            return
        try:
            self._pooled = await behind_a_pooler(self.url)
        except Exception as error:
            raise plain(error, self.where) from None
        self._pool = Pool(lambda: connect(self.url, pooled=self._pooled), self._most)
        try:
            if migrate or (migrate is None and not (await self._state()).done):
                await self.migrate(tell)
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

    async def _state(self) -> State:
        async with self._connection() as connection:
            return await postgres_migrate.state(connection)

    async def migrate(self, tell: Tell = silent) -> list[str]:
        migrator = postgres_migrate.Migrator(self.url, self.where, self._migrations, tell, pooled=self._pooled)
        try:
            return await migrator.run()
        except Exception as error:
            if (told := plain(error, self.where)) is error:
                raise
            raise told from None

    async def version(self) -> tuple[int, int]:
        return (await self._state()).newest, self._migrations[-1].number

    async def _check(self) -> None:
        migrate.check(self.where, self._migrations, await self._state())

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
            return await submit_through(connection, new, row[0], ON_POSTGRES)
        while True:
            created = await self._insert(new)
            self._submitted = frozenset(created)
            if len(created) == len(new):
                return [Submitted(n.id, True, n.fingerprint) for n in new]
            answers = await self._answers(new, created)
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
        statement = S["submit_grouped" if grouped else "submit"]
        seconds = PATIENCE + sum([len(n.input) for n in new]) / SLOWEST  # all or none: it cannot be sent in parts
        async with self._connection() as connection:
            values = statement(**rows.submit_values(new))
            return await connection.fetch(statement.sql, *values, timeout=seconds)  # type: ignore[no-any-return]

    async def _check_parents(self, new: Sequence[NewTask]) -> None:
        wanted = {n.parent for n in new if n.parent is not None}
        for gone in wanted - {row["id"] for row in await self._fetch("parents", ids=sorted(wanted))}:
            raise TaskNotFound(gone)

    async def _answers(self, new: Sequence[NewTask], created: set[str]) -> list[Submitted | None]:
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

    async def fork(
        self,
        task_id: str,
        origin: str,
        at: int,
        *,
        input: bytes,  # noqa: A002 -- the word for it at every door
        inbox: int,
        told: bytes = b"",
        said: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        await self._from_outside(lambda c: fork(c, task_id, origin, at, input, inbox, told, said))

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

    async def unconfirmed_pauses(self, task_ids: Sequence[str]) -> list[str]:
        return [row["task_id"] for row in await self._fetch("unconfirmed_pauses", ids=list(task_ids))]

    async def children(self, task_id: str) -> list[str]:
        return [row["task_id"] for row in await self._fetch("children", id=task_id)]

    async def orphans(self) -> list[str]:
        found = await self._fetch("orphans", after=self._parents_after, most=limits.PARENTS)
        self._parents_after = next((parent for _, parent in found if parent is not None), "")
        return [task_id for task_id, _ in found if task_id is not None]

    async def send(self, task_id: str, message: Message, deed: AuditEvent | None = None) -> Sent:
        return await self._from_outside(lambda c: access.send(c, task_id, message, deed))

    async def resolve_ended(
        self,
        task_id: str,
        message: Message,
        deed: AuditEvent | None = None,
        *,
        undo: str | None = None,
        input: bytes = b"",  # noqa: A002
    ) -> Sent:
        return await self._from_outside(lambda c: access.resolve_ended(c, task_id, message, deed, undo, input))

    async def inbox(self, task_id: str, after: int = 0, limit: int = ALL) -> list[Message]:
        return [Message(*row.values()) for row in await self._fetch("inbox", id=task_id, after=after, limit=limit)]

    async def asks(self, task_id: str | None = None, whose: str | None = None) -> list[Ask]:
        name = "asks_of" if task_id else "asks"
        return [Ask(*row.values()) for row in await self._fetch(name, id=task_id, **seen_by(whose))]

    async def doubts(self) -> list[str]:
        return [row["task_id"] for row in await self._fetch("doubts")]

    async def transact(
        self, body: Callable[[Any], Awaitable[Entry]], seconds: float, known: float | None = None
    ) -> bool:
        try:
            async with asyncio.timeout(seconds), self._connection() as connection, connection.transaction():
                await steer.record_with(connection, body, known)
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
            mark = json.dumps({"worker": worker}).encode()
            found = await self._claim_unlimited(asked | {"data": mark})
            if found or not limits.rules(await self._fetch("limits"), queue, names):
                return [Claimed._make(row) for row in found]
            self._limited.add(queue)
        claimed = await limits.in_rounds(lambda most, wide: self._claim_round(asked, most, wide), room, self.nudge)
        if queue in self._limited:
            return claimed
        return await self.claim(worker, queue, names, room, alone=alone)  # there is no limit any more

    async def _claim_unlimited(self, asked: dict[str, Any]) -> list[Any]:
        if asked["alone"]:
            return await self._fetch("claim_suspect", **asked)
        queue, names, time = asked["queue"], asked["names"], asyncio.get_running_loop().time
        began = time()
        if values := self._marks.of(queue, names, began):
            return await self._fetch("claim_from", **asked, **values)
        found = await self._fetch("claim", **asked)
        if self._marks.wants_survey(queue, time() - began, time()):
            began = time()
            fronts = await self._fetch("survey", queue=queue, names=names)
            self._marks.set(queue, names, fronts, time() - began, time())
        return found

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
        except steer.REFUSED:
            if batch.witnesses and (await self._fetch("there", **there(batch.witnesses)))[0]["there"] is None:
                raise WitnessLost from None
            refused = {part.entries[0][0] for part in batch.split() if not await self._save_part(worker, part)}
        else:
            refused = set()
        crashpoint("save.after")
        return refused

    async def _save_part(self, worker: str, part: Batch) -> bool:  # noqa: ARG002 -- the journal's numbers are the fence
        try:
            await self._write_batch(part)
        except steer.REFUSED:
            first = part.entries[0]
            found = await self._fetch("taker", id=first[0], seq=first[1])
            if not found:
                predecessor.tell(self.where, first)
            return bool(found) and predecessor.is_own(found[0], first)
        return True

    async def _write_batch(self, batch: Batch) -> None:
        async with self._connection() as connection:
            await write(connection, batch)

    async def journal(self, task_id: str, after: int | None = 0, limit: int = 1000) -> list[Record]:
        records: list[Record] = []
        name = "last_journal_part" if after is None else "journal_part"
        while True:  # in parts that a slow line carries in the time of a statement
            left = limit - len(records)
            found = await self._fetch(name, id=task_id, after=after, limit=left, most=PART)
            records += [Record(*row.values()) for row in found]
            if len(records) >= limit or sum([len(row["data"]) for row in found]) < PART:
                return records
            name, after = "journal_part", records[-1].seq

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        return {row["id"]: row["data"] for row in await self._fetch("contents", id=task_id, ids=list(ids))}

    async def wake(self, names: Sequence[str] | None = None, *, absent: float | None = None) -> Outlook:
        asked = {"names": list(names or ()), "any_name": names is None, "lease": absent}
        (row,) = await self._fetch("outlook", **asked)
        if woken := row["next_due_in"] is not None and row["next_due_in"] <= 0:
            await self._execute("wake")
            self._marks.drop()
            (row,) = await self._fetch("outlook", **asked)
        if row["quota"]:
            async with self._connection() as connection:
                self._looked_at = await gates.look(connection, self._looked_at)
        return Outlook(
            woken,
            tuple(row["queues"]),
            row["next_due_in"],
            tuple(row["suspects"]),
            (row["workers"], row["newest"]),
            row["lost"],
            row["children"],
            row["next_tick_in"],
            frozenset(row["absent"]),
        )

    async def release(self, worker: str, task_ids: Sequence[str], before: float, *, suspect: bool = False) -> None:
        async with self._connection() as connection, connection.transaction():
            await run(connection, "lock_rows", ids=list(task_ids))
            await run(connection, "release", worker=worker, ids=list(task_ids), before=before, suspect=suspect)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, row: WorkerRow, lease: float) -> float:
        await self._execute("join", lease=lease, **rows.worker_values(row))
        (answer,) = await self._fetch("now")
        return float(answer[0])

    async def beat(self, worker: str, lease: float, rate: float, resting: Sequence[str] = ()) -> Beat:
        if resting:
            await self._execute("confirm_pause", worker=worker, ids=list(resting))
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

    async def census(self, seen: Seen = unseen) -> Faults:
        async def bound(low: str, records: int) -> str | None:
            found = await self._fetch("census_bound", low=low, records=records)
            return found[0][0] if found else None

        async def look(low: str, high: str) -> Faults:
            return [(row["task_id"], row["fault"]) for row in await self._fetch("census", low=low, high=high)]

        return await in_slices(bound, look, seen)

    async def census_lately(self, most: int) -> Faults:
        return [(row["task_id"], row["fault"]) for row in await self._fetch("census_lately", most=most)]

    async def doctor(self, *, deep: bool = False) -> list[tuple[str, bool, str]]:  # noqa: ARG002 -- the server looks after its pages
        (row,) = await self._fetch("health")
        return [*health(row, pooled=self._pooled), snapshots.check(await self._fetch("snapshots"))]


def _count(tag: str) -> int:
    return int(tag.rsplit(" ", 1)[-1])
