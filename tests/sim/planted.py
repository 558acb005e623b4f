"""Faults planted on purpose. A suite that cannot find them proves nothing when it finds none.

Most are one guard taken out: a clause of a statement, a line of a method. A statement that no longer contains the clause
makes its fault fail loudly instead of quietly planting nothing.
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
    """What is broken: the store's class, what is patched for the time of a run, or a part of the cluster."""

    name: str = ""
    store: type[SqliteStore] = SqliteStore
    patches: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    parts: Callable[[Cluster], None] = lambda _cluster: None


PLANTED: dict[str, Planted] = {}


def plant(name: str, **what: Any) -> None:
    PLANTED[name] = Planted(name, **what)


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
plant("key-is-nobodys", patches=without("submit_task", "?5, ?6,", "?5, NULL,"))
plant(
    "beat-for-nobody", patches=without("beat", "lease_until = onward_now() + ?1", "lease_until = lease_until + 0 * ?1")
)


# ── the fence ────────────────────────────────────────────────────────────────────────────────────────────────────


class Overwriting(SqliteStore):
    """The last one to write is right."""

    def _write_batch(self, connection: apsw.Connection, batch: Batch) -> None:
        with _saying("INSERT OR REPLACE"):
            super()._write_batch(connection, batch)


class Ignoring(SqliteStore):
    """A number that is taken is passed over in silence."""

    def _write_batch(self, connection: apsw.Connection, batch: Batch) -> None:
        with _saying("INSERT OR IGNORE"):
            super()._write_batch(connection, batch)


class RowByRow(SqliteStore):
    """Each record for itself: n+1 is refused, and n+2 is taken."""

    def _save_part(self, connection: apsw.Connection, part: Batch) -> bool:
        whole = True
        for entry in part.entries:
            last = entry is part.entries[-1]
            single = Batch([entry], part.ends if last else [], part.waits if last else [])
            whole = super()._save_part(connection, single) and whole
        return whole


class MineWhosoever(SqliteStore):
    """A record that is there already is taken for one's own by its kind."""

    def _save_part(self, connection: apsw.Connection, part: Batch) -> bool:
        return super()._save_part(connection, part) or bool(
            list(connection.execute("SELECT 1 FROM onward_journal WHERE task_id = ? AND seq = ?", part.entries[0][:2]))
        )


@contextlib.contextmanager
def _saying(words: str) -> Iterator[None]:
    changed = {
        name: Statement(sqlite.S[name].sql.replace("INSERT", words), sqlite.S[name].names)
        for name in ("save", "save_many", "end_outcome")
    }
    with mock.patch.dict(sqlite.S, changed):
        yield


plant("no-fence-overwrite", store=Overwriting)
plant("no-fence-ignore", store=Ignoring)
plant("row-by-row", store=RowByRow)
plant("mine-whosoever", store=MineWhosoever)


# ── acknowledged too soon ────────────────────────────────────────────────────────────────────────────────────────


def too_soon(verb: str, answer: Callable[[Message], Any]) -> Callable[[Cluster], None]:
    """The answer goes out first, and the write with its process, when that ends before it."""

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


def instead(owner: Any, name: str, what: Any) -> Callable[[], Any]:
    """A method replaced; it has to exist."""
    return lambda: mock.patch.object(owner, name, what)


def never(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    """An attribute that keeps one value, whatever is written to it."""
    return lambda: mock.patch.object(owner, name, property(lambda _: value, _nothing), create=True)


def _nothing(*_: Any, **__: Any) -> None: ...


async def _nothing_later(*_: Any, **__: Any) -> None: ...


def _lose_only(self: writer.Writer, holds: Any) -> None:
    for _ in holds:  # they are told, and what they have in the line goes on
        pass


async def _read_page_once(self: shift.Shift, task_id: str, after: int | None, limit: int) -> Any:
    return await self._services.store.journal(task_id, after, limit)


def _crash_is_attempt(self: SqliteStore, *args: Any, **kwargs: Any) -> Any:
    async def claim() -> Any:
        claimed = await _CLAIM(self, *args, **kwargs)
        return [one._replace(attempt=one.attempt + one.crashes) for one in claimed]

    return claim()


@contextlib.contextmanager
def _stop_begins_shifts() -> Iterator[None]:
    """A claim that is answered after the stop began is begun, the stop does not wait for its answer, and a writer that has ended
    takes records in for ever."""

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
    if now:  # what is to stop at its next step goes on
        _STOP(self, why, now=now)


plant("line-goes-on", patches=instead(writer.Writer, "lose", _lose_only))
plant("pause-confirmed-and-ignored", patches=instead(shift.Shift, "stop", _stop_only_now))
plant("strangers-stay", patches=instead(maintenance.Maintenance, "_give_back", _nothing_later))
plant("stranger-too-soon", patches=never(claiming.Claiming, "_claims_sent_then", 0))
plant("dead-and-deaf", patches=instead(worker.Worker, "_declared_dead", _nothing))
plant("nobody-rescues", patches=instead(maintenance.Maintenance, "_rescue", _nothing_later))
plant("replay-forgets", patches=instead(replay.Replay, "next", _nothing))
plant("outage-is-failure", patches=instead(shift.Shift, "_read_page", _read_page_once))
plant("crash-is-attempt", patches=instead(SqliteStore, "claim", _crash_is_attempt))
plant("stop-begins-shifts", patches=_stop_begins_shifts)
plant("restless-nap", patches=instead(claiming.Claiming, "_ring", lambda self, _alarm: self.wake()))


# ── what shows only where branches wait ──────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _several_readers() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for (owner, name), put in READERS.items():
            stack.enter_context(mock.patch.object(owner, name, put))
        yield


SEVERAL_READERS = Planted("several-readers", patches=_several_readers)
