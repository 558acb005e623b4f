"""The Store on SQLite: one file, one writer thread, durable at every commit.

The library is apsw's own, because the one that Python bundles often has the WAL-reset bug (3.7.0 to 3.51.2). WAL with
`synchronous=FULL`: an acknowledged commit survives a power cut. Every write begins with BEGIN IMMEDIATE, so two processes
wait for each other instead of failing half-way.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar

import apsw

from onward.core.audit import AuditEvent
from onward.core.clock import Clock, SystemClock
from onward.core.crash import crashpoint
from onward.core.limit import LimitRow
from onward.core.record import SHIFT, Entry, Record
from onward.core.schedule import ScheduleRow, Timetable
from onward.core.task import NEVER, Message, NewTask, Task
from onward.errors import StoreUnavailable, TaskNotFound
from onward.store import migrate
from onward.store.migrate import State, Tell, silent
from onward.store.nudge import Datagrams, Hub, News
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
from onward.store.shared import limits, predecessor, rows
from onward.store.shared.census import Faults, Seen, in_slices, unseen
from onward.store.shared.external_transaction import ON_SQLITE, submit_through
from onward.store.sqlite import access
from onward.store.sqlite import control as steer
from onward.store.sqlite import file as sqlite_file
from onward.store.sqlite import limits as gates
from onward.store.sqlite import schedules as timed
from onward.store.sqlite.access import SqliteAccess
from onward.store.sqlite.budgets import SqlitePurses
from onward.store.sqlite.execute import SIZES, S, first, insert, run, save, views
from onward.store.sqlite.file import MEMORY, Files, health, plainly, sound, sound_file
from onward.store.sqlite.follow import SqliteTails
from onward.store.sqlite.fork import fork
from onward.store.sqlite.gauges import SqliteGauges
from onward.store.sqlite.guard import Guard
from onward.store.sqlite.lane import Inline, Lane, Threaded
from onward.store.sqlite.nudges import SqliteNudges
from onward.store.sqlite.outbox import SqliteOutbox
from onward.store.sqlite.overview import SqliteOverview
from onward.store.sqlite.pruning import SqlitePruning
from onward.store.sqlite.quotas import SqliteQuotas
from onward.store.sqlite.transaction import Taken, borrow
from onward.store.sqlite.trimming import SqliteTrimming

T = TypeVar("T")
_TASK, _QUEUE, _RECORD = (itemgetter(*S[name].names) for name in ("submit_task", "submit_queue", "submit_record"))


class SqliteStore(
    SqliteAccess,
    SqliteGauges,
    SqliteNudges,
    SqliteOutbox,
    SqliteOverview,
    SqlitePruning,
    SqlitePurses,
    SqliteQuotas,
    SqliteTails,
    SqliteTrimming,
):
    """See `Store` for what each verb promises."""

    apart = True
    one_machine = True
    hears = False

    def __init__(self, path: str, *, clock: Clock | None = None, inline: bool = False) -> None:
        self.path, self.inline = path, inline
        self.where = "SQLite in memory" if path == MEMORY else f"SQLite file {path}"
        self._clock = clock or SystemClock()
        self._migrations = migrate.load("sqlite")
        self._write: Lane | None = None
        self._read: Lane | None = None
        self._files = Files(MEMORY, self.where)
        self._guard = Guard()
        self._hub = Hub(None if path == MEMORY else self._send)
        self._news = News(self._hub)
        self._ears: Datagrams | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._limited: set[str] = set()
        self._looked_at = self._parents_after = ""

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, *, migrate: bool | None = None, tell: Tell = silent) -> None:
        if self._write is not None:
            return
        with plainly(self.where):
            self._write = self._lane("BEGIN IMMEDIATE", "onward-writer")
            # In memory there is one connection: a second would see another database.
            self._read = self._write if self.path == MEMORY or self.inline else self._lane("BEGIN", "onward-reader")
        try:
            if migrate is not False:
                await self.migrate(tell)
            await self._check()
            self._files = Files(self.path, self.where)
            if self.path != MEMORY:
                self._guard.hold(self.path)
        except BaseException:
            await self.close()
            raise

    def _lane(self, begin: str, name: str) -> Lane:
        connect = functools.partial(sqlite_file.connect, self.path, self._clock)
        if self.inline:
            return Inline(connect, begin)
        reads = begin == "BEGIN"
        return Threaded(
            connect, name, begin, check=lambda: self._files.check_now_and_then() if reads else self._files.check()
        )

    async def close(self) -> None:
        self._hub.close()
        for task in self._sending:
            task.cancel()
        if self._ears is not None:
            self._ears.close()
        with self._guard.released():
            for lane in {id(lane): lane for lane in (self._write, self._read) if lane is not None}.values():
                lane.close()
        self._write = self._read = self._ears = None
        self._files = Files(MEMORY, self.where)

    def twin(self) -> Store:
        return self

    async def migrate(self, tell: Tell = silent) -> list[str]:
        names: list[str] = []
        while done := await self._writing(self._migrate_some):
            for name in done:
                tell(migrate.Progress(name, "done"))
            names += done
        return names

    def _migrate_some(self, connection: apsw.Connection) -> list[str]:
        """The next migration that is missing, so that others write in between; all of them in an empty database."""
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
        return (await self._reading(self._state)).newest, self._migrations[-1].number

    @staticmethod
    def _state(connection: apsw.Connection) -> State:
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        done = connection.execute(migrate.READ) if "onward_migrations" in there else ()
        marks = dict(connection.execute(migrate.MARKS)) if "onward_schema" in there else {}
        return State(frozenset(number for (number,) in done), marks.get(migrate.OLDEST, 0))

    async def _check(self) -> None:
        migrate.check(self.where, self._migrations, await self._reading(self._state))

    # ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _writing(self, job: Callable[[apsw.Connection], T], *, urgent: bool = False, single: bool = False) -> T:
        if self._write is None:
            raise StoreUnavailable(f"{self.where} is not open; use `async with app:` around what you do")
        with plainly(self.where):
            return await self._write.run(job, urgent=urgent, single=single)

    async def _reading(self, job: Callable[[apsw.Connection], T]) -> T:
        if self._read is None:
            raise StoreUnavailable(f"{self.where} is not open; use `async with app:` around what you do")
        with plainly(self.where):
            return await self._read.run(job)

    # ── ways in ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, new: Sequence[NewTask], connection: Any = None) -> list[Submitted]:
        if connection is not None:
            return await submit_through(connection, new, self._clock.now(), ON_SQLITE)
        return await self._writing(lambda c: [self._submit_one(c, task) for task in new])

    def _submit_one(self, connection: apsw.Connection, new: NewTask) -> Submitted:
        if new.parent is not None and first(connection, "parent", id=new.parent) is None:
            raise TaskNotFound(new.parent)  # pruned, while whoever asks slept
        now = self._clock.now()
        turn = None if new.group is None else gates.turn(connection, new.queue, new.group, new.priority)
        values = {**new._asdict(), "now": now, "turn": turn}
        connection.execute(S["submit_task"].sql, _TASK(values))
        if connection.changes() == 0:
            found = first(connection, "submitted", id=new.id, key=new.key)
            assert found is not None
            return Submitted(found[0], found[0] == new.id, found[1])
        connection.execute(S["submit_queue"].sql, _QUEUE(values))
        if new.parent is not None:
            run(connection, "born_paused", id=new.id, parent=new.parent, never=NEVER)
        connection.execute(S["submit_record"].sql, _RECORD(values))
        if new.webhook is not None:
            run(connection, "subscribe_task", now=now, id=new.id, **new.webhook._asdict())
        crashpoint("submit.before")
        return Submitted(new.id, True, new.fingerprint)

    async def keyed(self, keys: Sequence[str]) -> dict[str, Submitted]:
        def job(connection: apsw.Connection) -> dict[str, Submitted]:
            found = {key: first(connection, "submitted", id="", key=key) for key in keys}
            return {key: Submitted(row[0], False, row[1]) for key, row in found.items() if row is not None}

        return await self._reading(job)

    async def depth(self, queue: str) -> Depth:
        row = await self._reading(lambda c: first(c, "depth", queue=queue))
        assert row is not None
        return Depth(*row)

    async def cancel(self, task_id: str) -> Stopped:
        return await self._writing(lambda c: steer.cancel(c, task_id))

    async def resume(self, task_id: str) -> bool:
        return await self._writing(lambda c: steer.resume(c, task_id))

    async def pause(self, task_id: str) -> bool | None:
        found = await self._writing(lambda c: first(c, "pause", id=task_id))
        return None if found is None else found[0] is not None

    async def unconfirmed_pauses(self, task_ids: Sequence[str]) -> list[str]:
        ids = json.dumps(list(task_ids))
        return await self._reading(lambda c: [row[0] for row in run(c, "unconfirmed_pauses", ids=ids)])

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
        await self._writing(lambda c: fork(c, task_id, origin, at, input, inbox, told, said))

    async def children(self, task_id: str) -> list[str]:
        return await self._reading(lambda c: [row[0] for row in run(c, "children", id=task_id)])

    async def orphans(self) -> list[str]:
        found = await self._reading(lambda c: list(run(c, "orphans", after=self._parents_after, most=limits.PARENTS)))
        self._parents_after = next((parent for _, parent in found if parent is not None), "")
        return [task_id for task_id, _ in found if task_id is not None]

    async def send(self, task_id: str, message: Message, deed: AuditEvent | None = None) -> Sent:
        return await self._writing(lambda c: access.send(c, task_id, message, deed))

    async def resolve_ended(
        self,
        task_id: str,
        message: Message,
        deed: AuditEvent | None = None,
        *,
        undo: str | None = None,
        input: bytes = b"",  # noqa: A002
    ) -> Sent:
        return await self._writing(lambda c: access.resolve_ended(c, task_id, message, deed, undo, input))

    async def inbox(self, task_id: str, after: int = 0, limit: int = ALL) -> list[Message]:
        return await self._reading(
            lambda c: [Message(*row) for row in run(c, "inbox", id=task_id, after=after, limit=limit)]
        )

    async def asks(self, task_id: str | None = None, whose: str | None = None) -> list[Ask]:
        name, values = "asks_of" if task_id else "asks", {"id": task_id, **seen_by(whose)}
        return await self._reading(lambda c: [*map(Ask._make, run(c, name, **values))])

    async def doubts(self) -> list[str]:
        return await self._reading(lambda c: [row[0] for row in run(c, "doubts")])

    async def transact(
        self, body: Callable[[Any], Awaitable[Entry]], seconds: float, known: float | None = None
    ) -> bool:
        assert self._write is not None

        async def apart(connection: Any) -> Entry:
            try:
                return await body(connection)
            except Exception as error:
                raise Foreign(error) from error

        try:
            with plainly(self.where):
                await borrow(self._write, apart, seconds, known)
        except Taken:
            return False
        except Foreign as foreign:
            raise foreign.error from None
        return True

    async def prioritize(self, task_id: str, priority: int) -> bool:
        return await self._writing(lambda c: first(c, "prioritize", id=task_id, priority=priority) is not None)

    async def offer(self, handlers: Sequence[tuple[str, bytes]]) -> None:
        await self._writing(lambda c: c.executemany(S["offer"].sql, handlers))

    async def limit(self, limits: Sequence[LimitRow]) -> None:
        await self._writing(lambda c: gates.set_limits(c, limits))

    async def offered(self) -> dict[str, bytes]:
        return await self._reading(lambda c: dict(run(c, "offered")))

    async def schedules(self, *, soonest: int | None = None) -> Timetable:
        return await self._reading(lambda c: timed.schedules(c, soonest))

    async def turn(self, name: str, seen: str | None, to: ScheduleRow | None, tasks: Sequence[NewTask] = ()) -> bool:
        done = await self._writing(lambda c: timed.turn(c, name, seen, to, tasks, self._submit_one))
        if tasks:
            crashpoint("tick.after")
        return done

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(
        self, worker: str, queue: str, names: Sequence[str], room: int, *, alone: bool = False
    ) -> list[Claimed]:
        asked = {"worker": worker, "queue": queue, "names": json.dumps(list(names)), "room": room, "alone": alone}

        def job(connection: apsw.Connection) -> list[Claimed]:
            now, mark = self._clock.now(), json.dumps({"worker": worker}).encode()
            found = list(run(connection, "ready_suspect" if alone else "ready", **asked))
            if not found and limits.rules(run(connection, "limits"), queue, names):
                self._limited.add(queue)
                return []
            insert(connection, "begin_shift", [(row[0], row[9] + 1, row[9] + 1, SHIFT, "", mark, now) for row in found])
            connection.execute(S["take"].sql, (worker, json.dumps([row[0] for row in found])))
            crashpoint("claim.before")
            return [gates.claimed(row, now) for row in found]

        def limited(connection: apsw.Connection, most: int, wide: int) -> limits.Round:
            if rules := limits.rules(run(connection, "limits"), queue, names):
                return gates.claim(connection, asked, rules, most, wide, self._clock.now())
            self._limited.discard(queue)
            return limits.Round([])

        if queue not in self._limited:
            claimed = await self._writing(job)
            if claimed or queue not in self._limited:
                return claimed
        claimed = await limits.in_rounds(
            lambda most, wide: self._writing(lambda c: limited(c, most, wide)), room, self.nudge
        )
        return claimed if queue in self._limited else await self._writing(job)

    async def save(self, worker: str, batch: Batch) -> set[str]:  # noqa: ARG002 -- the journal's numbers are the fence
        def job(connection: apsw.Connection) -> None:
            crashpoint("save.before")
            self._write_batch(connection, batch)

        try:
            alone = not (batch.ends or batch.waits or batch.contents) and len(batch.entries) <= SIZES[-1]
            await self._writing(job, single=alone)
        except apsw.ConstraintError:
            refused = await self._writing(lambda c: self._save_parts(c, batch))
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
            steer.check_heard(connection, batch.ends)
            now = self._clock.now()
            connection.execute(S["end_queue"].sql, (json.dumps([end.id for end in batch.ends]),))
            insert(connection, "end_outcome", [(e.id, e.state.value, e.attempt, e.seq, now) for e in batch.ends])
        if batch.waits:
            connection.executemany(S["part"].sql, batch.waits)
        for told in rows.tidings(batch):
            steer.tell(connection, *told)
        if batch.gates:
            gates.let_go(connection, batch.gates.values())

    async def journal(self, task_id: str, after: int | None = 0, limit: int = 1000) -> list[Record]:
        asked = {"id": task_id, "limit": limit} | ({} if after is None else {"after": after})
        name = "last_journal" if after is None else "journal"
        return await self._reading(lambda c: [Record(*row) for row in run(c, name, **asked)])

    async def contents(self, task_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        return await self._reading(lambda c: dict(run(c, "contents", id=task_id, ids=json.dumps(list(ids)))))

    async def wake(self, names: Sequence[str] | None = None, *, absent: float | None = None) -> Outlook:  # noqa: ARG002 -- the kernel knows better
        outlook, quota = await self._reading(lambda c: (_look(c, names, woken=False), first(c, "quota")))
        if quota == (1,):
            self._looked_at = await self._writing(lambda c: gates.look(c, self._looked_at))
        if outlook.next_due_in is None or outlook.next_due_in > 0:
            return outlook
        await self._writing(lambda c: run(c, "wake"))
        return await self._reading(lambda c: _look(c, names, woken=True))

    async def release(self, worker: str, task_ids: Sequence[str], before: float, *, suspect: bool = False) -> None:
        wanted = [(worker, task_id, before, suspect) for task_id in task_ids]
        await self._writing(lambda c: c.executemany(S["release"].sql, wanted))

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, row: WorkerRow, lease: float) -> float:
        await self._writing(lambda c: run(c, "join", lease=lease, **rows.worker_values(row)))
        return self._clock.now()

    async def beat(self, worker: str, lease: float, rate: float, resting: Sequence[str] = ()) -> Beat:
        def job(connection: apsw.Connection) -> Beat:
            if resting:
                run(connection, "confirm_pause", worker=worker, ids=json.dumps(list(resting)))
            run(connection, "beat", worker=worker, lease=lease, rate=rate)
            alive = connection.changes() > 0
            held = list(run(connection, "held", worker=worker))
            paused = frozenset(task_id for task_id, stop in held if stop)
            return Beat(alive, self._clock.now(), frozenset(task_id for task_id, _ in held), paused)

        return await self._writing(job, urgent=True)

    async def leave(self, worker: str) -> None:
        def job(connection: apsw.Connection) -> None:
            run(connection, "let_go", worker=worker)
            run(connection, "leave", worker=worker)

        await self._writing(job)

    async def rescue(self, dead: Sequence[str], lease: float | None = None, now: float | None = None) -> int:
        asked = self._clock.now() if now is None else min(now, self._clock.now())

        def job(connection: apsw.Connection) -> int:
            run(connection, "bury", dead=json.dumps(list(dead)), sweep=lease is not None, asked=asked)
            run(connection, "rescue")
            return connection.changes()

        return await self._writing(job)

    async def workers(self) -> list[WorkerRow]:
        return [rows.worker(row) for row in await self._reading(lambda c: views(run(c, "workers")))]

    async def absent(self, lease: float) -> set[str]:  # noqa: ARG002 -- the kernel knows better
        return set()

    # ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str, whose: str | None = None) -> Task | None:
        found = await self._reading(lambda c: views(run(c, "get", id=task_id, most=WHOLE, **seen_by(whose))))
        return rows.task(found[0]) if found else None

    async def census(self, seen: Seen = unseen) -> Faults:
        async def bound(low: str, records: int) -> str | None:
            found = await self._reading(lambda c: first(c, "census_bound", low=low, records=records))
            return found[0] if found else None

        async def look(low: str, high: str) -> Faults:
            return await self._reading(lambda c: [(row[0], row[1]) for row in run(c, "census", low=low, high=high)])

        return await in_slices(bound, look, seen)

    async def census_lately(self, most: int) -> Faults:
        return await self._reading(lambda c: [(row[0], row[1]) for row in run(c, "census_lately", most=most)])

    async def doctor(self, *, deep: bool = False) -> list[tuple[str, bool, str]]:
        found = await self._reading(lambda c: health(c, self.path))
        if deep and (self.path == MEMORY or self.inline):
            return [*found, await self._reading(sound)]
        if deep:  # a connection of its own: it reads every page, and nobody waits behind it
            with plainly(self.where):
                return [*found, await asyncio.to_thread(sound_file, self.path, self._clock)]
        return found


def _look(connection: apsw.Connection, names: Sequence[str] | None, *, woken: bool) -> Outlook:
    ((due,),) = run(connection, "due")
    wanted = None if names is None else set(names)
    queues = sorted({queue for queue, task in run(connection, "ready_pairs") if wanted is None or task in wanted})
    suspects = tuple(queue for (queue,) in run(connection, "suspects"))
    ((workers, newest, lost, children, tick),) = run(connection, "place")
    return Outlook(woken, tuple(queues), due, suspects, (workers, newest), bool(lost), bool(children), tick)
