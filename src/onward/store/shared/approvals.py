"""Approvals with a rule: votes, and the principals that asked for the action.

A vote is a message to the task (kind `vote`), and so is the decision. The transaction of a vote locks the task, reads the votes before it,
and writes the vote together with the decision that follows from it. So votes of many processes at once give one decision, and a crash
leaves no count of votes without its decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from onward.core.approval import VOTE, StoredVote
from onward.core.audit import AuditEvent
from onward.core.task import Message
from onward.store.shared.audit import Audit
from onward.store.shared.codec import Item, message_item
from onward.store.shared.database import Connection, Database, OverDatabase
from onward.store.shared.tasks import add_asker, add_asker_through, post_message, sent_before


class Counted(NamedTuple):
    """The result of a count: the decision that follows, if one does, and the audit event; or that the vote was there already."""

    repeated: bool
    decision: Message | None
    event: AuditEvent | None


class Voted(NamedTuple):
    """The answer to a vote: whether the task could take it; and the decision that was there before, if there was one."""

    open: bool
    there: Message | None = None
    counted: Counted | None = None


Count = Callable[[Sequence[StoredVote]], Counted]
"""Counts a new vote together with those before it, which it gets in their order."""


class Approvals(OverDatabase):
    """Votes on approvals, and who asked."""

    def __init__(self, database: Database, audit: Audit) -> None:
        super().__init__(database)
        self._audit = audit

    async def vote(self, task_id: str, seq: int, vote: Message, count: Count, asker: str | None = None) -> Voted:
        """Add a vote on the approval of record `seq`, and the decision and the audit event that `count` makes of it; all or nothing. With
        the vote, `asker` becomes an asker of the task. An
        approval that is decided, or has expired, takes no vote. `count` is called inside the transaction, and may be called again."""
        codec = self._db.codec
        seal = None if codec is None else await codec.message_sealer(task_id)

        async def job(connection: Connection) -> Voted:
            await connection.lock("lock_rows", ids=[task_id])
            if (sent := await sent_before(connection, task_id, vote._replace(ref=seq))) is not None:
                return Voted(True, sent.there)
            rows = await _votes(connection, [f"{task_id}.{seq}"])
            datas = [row.message.data for row in rows] if codec is None else codec.open_now(_items(rows))
            counted = count([row.opened(data) for row, data in zip(rows, datas, strict=True)])
            if counted.repeated:
                return Voted(True, counted=counted)
            for message in (vote, counted.decision):
                stored = message if message is None or seal is None else seal(message)
                if stored is not None and await post_message(connection, task_id, stored) is None:
                    return Voted(False)
            if asker is not None:
                await add_asker(connection, task_id, asker)
            if counted.event is not None:
                await self._audit.append_within(connection, counted.event)
            return Voted(True, counted=counted)

        if codec is None:
            return await self._db.transact(job)
        voted = await codec.with_keys(lambda: self._db.transact(job))
        return voted if voted.there is None else voted._replace(there=(await codec.messages(task_id, [voted.there]))[0])

    async def votes(self, approval_ids: Sequence[str]) -> Sequence[StoredVote]:
        """The votes on these approvals."""
        rows = await self._db.read(lambda connection: _votes(connection, approval_ids))
        codec = self._db.codec
        datas = [row.message.data for row in rows] if codec is None else await codec.open(_items(rows))
        return [row.opened(data) for row, data in zip(rows, datas, strict=True)]

    async def vote_sizes(self, approval_ids: Sequence[str]) -> Mapping[str, int]:
        """The bytes of the votes on each of these approvals that has votes."""
        rows = await self._db.fetch("vote_sizes", tasks=_tasks_of(approval_ids), ids=[*approval_ids])
        return {approval_id: int(size) for approval_id, size in rows}

    async def askers(self, root: str) -> frozenset[str]:
        """The principals that resumed one of the tasks of a tree, sent it something, or submitted it again with its idempotency key."""
        return frozenset(row[0] for row in await self._db.fetch("askers", id=root))

    async def add(self, askers: Sequence[tuple[str, str]], connection: Any = None) -> None:
        """Make principals askers of tasks: ids and principals; over the connection of the caller when there is one. Raises
        TooManyAskers."""
        if connection is None:

            async def job(own: Connection) -> None:
                for task_id, asker in askers:
                    await add_asker(own, task_id, asker)

            await self._db.transact(job)
            return
        ((now,),) = await self._db.fetch("now")
        for task_id, asker in askers:
            await add_asker_through(connection, task_id, asker, now)


class _Row(NamedTuple):
    """A vote as it is stored."""

    task_id: str
    message: Message
    at: float

    def opened(self, data: bytes) -> StoredVote:
        """The vote with its data opened."""
        return StoredVote(self.task_id, int(self.message.name), data, self.at)


async def _votes(connection: Connection, approval_ids: Sequence[str]) -> list[_Row]:
    rows = await connection.fetch("votes", tasks=_tasks_of(approval_ids), ids=[*approval_ids])
    return [_Row(task_id, Message(id_, VOTE, seq, None, data), at) for task_id, id_, seq, data, at in rows]


def _items(rows: Sequence[_Row]) -> list[Item]:
    return [message_item(row.task_id, row.message) for row in rows]


def _tasks_of(approval_ids: Sequence[str]) -> list[str]:
    return sorted({approval_id.rpartition(".")[0] for approval_id in approval_ids})
