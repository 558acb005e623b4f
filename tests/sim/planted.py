"""Faults planted on purpose, to prove that the suite finds such faults.

Most take out one guard: a clause of a statement, a line of a method. A statement that no longer contains the clause
makes its fault raise instead of planting nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import apsw

from onward.engine.shift import replay, shift
from onward.engine.worker import claiming, maintenance, worker
from onward.store import writer
from onward.store.port.core import Batch, Submitted
from onward.store.sqlite import store as sqlite
from onward.store.sqlite.store import SqliteStore
from onward.store.statements import Statement
from tests.faults.branching import READERS

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.door import Message


@dataclasses.dataclass
class Planted:
    """A planted fault: a class of store, patches for the time of a run, or a change of the cluster."""

    name: str = ""
    store: type[SqliteStore] = SqliteStore
    patches: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    parts: Callable[[Cluster], None] = lambda _cluster: None


PLANTED: dict[str, Planted] = {}


def plant(name: str, **parts: Any) -> None:
    PLANTED[name] = Planted(name, **parts)


# ── one clause of one statement ──────────────────────────────────────────────────────────────────────────────────


def without(statement: str, clause: str, instead: str = "") -> Callable[[], Any]:
    """The statement without a clause."""

    def patch() -> Any:
        old = sqlite.S[statement]
        if clause not in old.sql:
            raise LookupError(f"the statement {statement!r} has no {clause!r} to take out; plant this fault anew")
        return mock.patch.dict(sqlite.S, {statement: Statement(old.sql.replace(clause, instead), old.names)})

    return patch


plant("claim-without-lease", patches=without("ready", "AND lease_until > onward_now()"))
plant("claim-of-the-held", patches=without("ready", "i.worker IS NULL AND"))
plant("claim-of-sleepers", patches=without("ready", "AND i.due_at IS NULL"))
plant("claim-without-crashes", patches=without("ready", "AND i.crashes < 3"))
plant("claim-in-no-order", patches=without("ready", "q.priority DESC, "))
plant("rescue-of-the-living", patches=without("bury", "lease_until <", "lease_until - 3 <"))
plant("rescue-without-count", patches=without("rescue", "crashes + 1", "crashes"))
plant("wake-too-early", patches=without("wake", "due_at <= onward_now()", "due_at <= onward_now() + 9"))
plant("settle-keeps-queue-row", patches=without("end_queue", "WHERE", "WHERE 0 AND"))
plant("wait-keeps-worker", patches=without("part", "worker = NULL,"))
plant("leave-keeps-tasks", patches=without("let_go", "WHERE", "WHERE 0 AND"))
plant("prune-without-fence", patches=without("fence_off", "b.shift > 0", "b.shift > 1e9"))
plant("key-is-not-stored", patches=without("submit_task", "?5, ?6,", "?5, NULL,"))
plant(
    "beat-without-lease",
    patches=without("beat", "lease_until = onward_now() + ?1", "lease_until = lease_until + 0 * ?1"),
)


# ── the fence ────────────────────────────────────────────────────────────────────────────────────────────────────


class Overwriting(SqliteStore):
    """The last write wins."""

    def _write_batch(self, connection: apsw.Connection, batch: Batch) -> None:
        with _inserting_with("INSERT OR REPLACE"):
            super()._write_batch(connection, batch)


class Ignoring(SqliteStore):
    """A taken number is skipped without an error."""

    def _write_batch(self, connection: apsw.Connection, batch: Batch) -> None:
        with _inserting_with("INSERT OR IGNORE"):
            super()._write_batch(connection, batch)


class RowByRow(SqliteStore):
    """Saves each record alone: n+1 is refused, and n+2 is accepted."""

    def _save_part(self, connection: apsw.Connection, part: Batch) -> bool:
        whole = True
        for entry in part.entries:
            last = entry is part.entries[-1]
            single = Batch([entry], part.ends if last else [], part.waits if last else [])
            whole = super()._save_part(connection, single) and whole
        return whole


class AnyRecordIsMine(SqliteStore):
    """An existing record counts as the worker's own, also when another worker wrote it."""

    def _save_part(self, connection: apsw.Connection, part: Batch) -> bool:
        return super()._save_part(connection, part) or bool(
            list(connection.execute("SELECT 1 FROM onward_journal WHERE task_id = ? AND seq = ?", part.entries[0][:2]))
        )


@contextlib.contextmanager
def _inserting_with(words: str) -> Iterator[None]:
    changed = {
        name: Statement(sqlite.S[name].sql.replace("INSERT", words), sqlite.S[name].names)
        for name in ("save", "save_many", "end_outcome")
    }
    with mock.patch.dict(sqlite.S, changed):
        yield


plant("no-fence-overwrite", store=Overwriting)
plant("no-fence-ignore", store=Ignoring)
plant("row-by-row", store=RowByRow)
plant("any-record-is-mine", store=AnyRecordIsMine)


# ── acknowledged too soon ────────────────────────────────────────────────────────────────────────────────────────


def too_soon(verb: str, answer: Callable[[Message], Any]) -> Callable[[Cluster], None]:
    """The answer goes out before the write, and the write is lost when its process ends in between."""

    def parts(cluster: Cluster) -> None:
        network = cluster.network
        arrive = network._arrive

        def later(message: Message) -> None:
            if not message.door.process.dead and network.rng.random() < 0.9:
                network._carry_out(message)

        def early(message: Message) -> None:
            if message.verb == verb and message.fate == "fine" and not network.closed:
                network._answer(message, answer(message))
                network._after(network.rng.random() / 2, later, message)
            else:
                arrive(message)

        network._arrive = early  # type: ignore[method-assign]

    return parts


plant("ack-before-save", parts=too_soon("save", lambda _: set()))
plant(
    "ack-before-submit",
    parts=too_soon("submit", lambda m: [Submitted(new.id, True, new.fingerprint) for new in m.args[0]]),
)


# ── one line of the engine ───────────────────────────────────────────────────────────────────────────────────────


def replaced(owner: Any, name: str, replacement: Any) -> Callable[[], Any]:
    """Replaces a method, which must exist."""
    return lambda: mock.patch.object(owner, name, replacement)


def constant(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    """An attribute that keeps one value, whatever is written to it."""
    return lambda: mock.patch.object(owner, name, property(lambda _: value, _nothing), create=True)


def _nothing(*_: Any, **__: Any) -> None: ...


async def _nothing_later(*_: Any, **__: Any) -> None: ...


def _lose_only(self: writer.Writer, holds: Any) -> None:
    for _ in holds:  # the records that wait in the writer are not dropped
        pass


async def _read_page_once(self: shift.Shift, task_id: str, after: int | None, limit: int) -> Any:
    return await self._services.store.journal(task_id, after, limit)


def _crash_is_attempt(self: SqliteStore, *args: Any, **kwargs: Any) -> Any:
    async def claim() -> Any:
        claimed = await _CLAIM(self, *args, **kwargs)
        return [task._replace(attempt=task.attempt + task.crashes) for task in claimed]

    return claim()


@contextlib.contextmanager
def _stop_begins_shifts() -> Iterator[None]:
    """The worker begins the tasks of a claim that is answered after the stop began, the stop does not wait for that answer, and
    a writer that has ended takes records for ever."""

    async def kept(_self: claiming.Claiming, _me: str, claimed: Any) -> Any:
        return claimed

    async def until_idle(self: worker.Worker, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self._shifts and self.clock.monotonic() < end:
            await self.clock.sleep(0.01)

    async def end_once(tasks: Any, *_: Any) -> list[Any]:
        chores = [task for task in tasks if not task.get_name().startswith("onward-task-")]
        for task in chores:
            task.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        return []

    with (
        mock.patch.object(claiming.Claiming, "_keep_unless_stopping", kept),
        mock.patch.object(worker.Worker, "_until_idle", until_idle),
        mock.patch.object(worker, "end_tasks", end_once),
        mock.patch.object(writer.Writer, "close", _nothing),
    ):
        yield


_CLAIM = SqliteStore.claim
_STOP = shift.Shift.stop


def _stop_only_now(self: shift.Shift, why: Any, *, now: bool) -> None:
    if now:  # a shift that should stop at its next step goes on
        _STOP(self, why, now=now)


plant("line-goes-on", patches=replaced(writer.Writer, "lose", _lose_only))
plant("pause-confirmed-and-ignored", patches=replaced(shift.Shift, "stop", _stop_only_now))
plant("strangers-stay", patches=replaced(maintenance.Maintenance, "_give_back", _nothing_later))
plant("stranger-too-soon", patches=constant(claiming.Claiming, "_claims_sent_then", 0))
plant("dead-and-deaf", patches=replaced(worker.Worker, "_declared_dead", _nothing))
plant("no-rescue", patches=replaced(maintenance.Maintenance, "_rescue", _nothing_later))
plant("replay-forgets", patches=replaced(replay.Replay, "next", _nothing))
plant("outage-is-failure", patches=replaced(shift.Shift, "_read_page", _read_page_once))
plant("crash-is-attempt", patches=replaced(SqliteStore, "claim", _crash_is_attempt))
plant("stop-begins-shifts", patches=_stop_begins_shifts)
plant("restless-nap", patches=replaced(claiming.Claiming, "_ring", lambda self, _alarm: self.wake()))


# ── a fault that shows only where branches wait ──────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _several_readers() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for (owner, name), put in READERS.items():
            stack.enter_context(mock.patch.object(owner, name, put))
        yield


SEVERAL_READERS = Planted("several-readers", patches=_several_readers)
