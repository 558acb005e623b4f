"""Deletes data: pruning deletes ended tasks, trimming deletes data of records that a checkpoint stands for.

Pruning deletes whole trees. A fence is left of a task where another actor took over from a shift (another shift, a cancel, a resume): the
record that took the next number stays, without its data, and so does the last record of the shift, whose answer the shift may not have
got. A worker that slept through all of it finds the number taken, as before. A task that one shift did from its beginning to its
end leaves nothing: a writer without an answer to that end asks whether the task exists before it writes again. No child can be
submitted for a task that is gone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from onward.core import wire
from onward.core.record import DROPPED, Record
from onward.core.sealed import CODECS
from onward.core.task import INTAKE_MARK
from onward.store.port.pruning import CHILD, RECENT, UNFINISHED, UNKNOWN, UNTOLD, Pruned
from onward.store.shared.codec import Codec, record_item
from onward.store.shared.database import Connection, OverDatabase

DELETE_TIMEOUT_S = 600.0
"""Seconds for one statement of a prune: a tree may have millions of records."""

DELETES = (
    *("prune_tasks", "prune_outcomes", "prune_inbox", "prune_askers", "prune_contents", "prune_purses", "prune_outbox"),
    *("prune_subscriptions", "fence_off", "prune_journal"),
)


class Member(NamedTuple):
    """One task of a tree, and the reasons to keep it."""

    id: str
    root: str
    ended: bool
    old: bool
    owes: bool


class Pruning(OverDatabase):
    """Deletes data of tasks. Each verb is safe at any time, for any caller, and twice."""

    async def prunable(self, age: float, after: str, until: str, limit: int, *, intake_age: float = 0.0) -> list[str]:
        """Ids between `after` and `until`, in order, of tasks without a parent that ended so many seconds ago; a task of an intake also
        `intake_age` seconds ago."""
        values = {"age": age, "after": after, "until": until, "limit": limit}
        rows = await self._db.fetch("prunable", intake_keys=f"%{INTAKE_MARK}%", intake_age=intake_age, **values)
        return [row[0] for row in rows]

    async def prune(self, ids: Sequence[str], age: float) -> Pruned:
        """Delete these tasks and all that they started, with all that belongs to them: journals, messages, contents, budgets,
        deliveries, their own subscriptions, and their keys. A tree goes or stays as a whole. It goes when all of its tasks have ended so
        many seconds ago and all of its events are delivered."""
        return await self._db.transact(lambda c: _prune(c, list(ids), age))

    async def trim(self, task_id: str, keep: int, before: float) -> int:
        """Keep the last `keep` checkpoints of a task, and those saved after the time `before`. Delete the data of older records, as far
        as they are from before that time too. Returns how many records that were.

        The records stay, with their numbers, kinds, keys and times, so the fence and all counters stay right. Questions, answers,
        messages, children, failures, announced effects, shifts and ends keep their data. A task with fewer checkpoints is left as it
        is. A shift reads from the last checkpoint on, and that one is always kept."""
        codec = self._db.codec
        if codec is None:
            return await self._db.transact(lambda c: _trim(c, None, task_id, keep, before))
        return await codec.with_keys(lambda: self._db.transact(lambda c: _trim(c, codec, task_id, keep, before)))


async def _prune(connection: Connection, ids: list[str], age: float) -> Pruned:
    parents = {row[0]: row[1] for row in await connection.fetch("parents", ids=ids)}
    # Outcomes are locked in the order of their ids, as a resume locks them, before the trees are read. A fork locks the row of its
    # origin, so it copies all of the task or finds nothing.
    await connection.lock("lock_trees", ids=ids)
    pruned = _decide(ids, parents, await connection.fetch("trees", ids=ids, age=age))
    if pruned.gone:
        for name in DELETES:
            await connection.run(name, timeout_s=DELETE_TIMEOUT_S, ids=pruned.gone, nothing=b"")
    return pruned


def _decide(ids: Iterable[str], parents: Mapping[str, str | None], rows: Iterable[Any]) -> Pruned:
    """Which tasks go, and why the others stay. `parents` are those of the ids that exist."""
    trees: dict[str, list[Member]] = {}
    for row in rows:
        member = Member(*row)
        trees.setdefault(member.root, []).append(member)
    kept = {
        task_id: UNKNOWN if task_id not in parents else CHILD
        for task_id in ids
        if task_id not in parents or parents[task_id] is not None
    }
    gone: list[str] = []
    for root, tree in trees.items():
        if reason := _reason_to_keep(tree):
            kept[root] = reason
        else:
            gone += [member.id for member in tree]
    gone_ids = set(gone)
    return Pruned(sorted(gone), {task_id: reason for task_id, reason in kept.items() if task_id not in gone_ids})


def _reason_to_keep(tree: list[Member]) -> str | None:
    if not all(member.ended for member in tree):
        return UNFINISHED
    if not all(member.old for member in tree):
        return RECENT
    return UNTOLD if any(member.owes for member in tree) else None


async def _trim(connection: Connection, codec: Codec | None, task_id: str, keep: int, before: float) -> int:
    # Two workers that trim the same task (one of them was wrongly declared dead) do it one after the other.
    await connection.lock("lock_rows", ids=[task_id])
    row = await connection.first("oldest_kept", id=task_id, behind=keep - 1, before=before)
    oldest = None if row is None else Record(*row)
    if oldest is None or oldest.dropped:  # another caller keeps fewer checkpoints, and this one stands for nothing
        return 0
    if codec is not None:
        (data,) = codec.open_now([record_item(task_id, oldest)])
        if data[:1] in CODECS:  # erased meanwhile, or this process lacks the key: there is nothing to gain
            return 0
        oldest = dataclasses.replace(oldest, data=data)
    values: dict[str, Any] = {"id": task_id, "seq": oldest.seq, "before": before, "size": len(DROPPED), "mark": DROPPED}
    return await connection.run("drop_data", data=wire.encode({"dropped": oldest.value["number"]}), **values)
