"""Subscriptions and the outbox: which events have to be delivered, and to whom.

Triggers on the journal write the rows, in the transaction of the record. So every writer is covered: a worker of an older version, a
transaction of the caller, a statement of a later version. The triggers exist from the first subscription on (`watch`), so that a
database without subscriptions pays nothing. How rows are taken, and how the triggers are made, is in `sqlite/outbox.py` and
`postgres/outbox.py`.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from onward.core import wire
from onward.core.crash import crashpoint
from onward.core.encryption import body_place
from onward.core.event import Origin
from onward.core.record import Record
from onward.store.port.outbox import (
    AFTER_LAST,
    BROKER_LANE,
    DELIVERED,
    FAILED,
    MAX_LANE_DEPTHS,
    PENDING,
    SKIPPED,
    DeliveryRow,
    Key,
    Lane,
    LaneDepth,
    Settled,
    SubscriptionRow,
    Taken,
)
from onward.store.shared.codec import Item
from onward.store.shared.database import Connection, OverDatabase

MAX_SWEPT = 1000
"""Rows that one statement of a sweep removes."""

SEARCHED_ROWS = 1000
"""Rows of a receiver, in the order in which they are due, among which the first of each line are looked for."""


class Outbox(OverDatabase, abc.ABC):
    """Subscriptions, and the rows that are to be delivered."""

    @abc.abstractmethod
    async def watch(self, *, busy: bool) -> None:
        """Make the triggers that compare records with the subscriptions: records `task.…`, and with `busy` all others too. A caller does this
        before it adds the first subscription that needs them."""

    async def subscribe(self, row: SubscriptionRow, *, offered: bool = False) -> None:
        """Add a subscription, or change the types and the receiver of one with this id. `offered` says that a process that declares it
        runs now."""

        async def job(connection: Connection) -> None:
            before = await connection.first("lane_of", id=row.id)
            await connection.run("subscribe", offered=offered, **row._asdict())
            if before is not None and before[0] != row.lane:
                await connection.run("realign", lane=before[0])

        await self._db.transact(job)

    async def realign(self, lane: str) -> None:
        """Send the rows of a receiver to the receivers that their subscriptions have now. `subscribe` does this too; a record that was being
        committed meanwhile may have left a row behind."""
        await self._db.write("realign", lane=lane)

    async def unsubscribe(self, subscription: str) -> bool:
        """Remove a subscription and its pending rows; False when there is none."""

        async def job(connection: Connection) -> bool:
            await connection.run("unsend", id=subscription)
            return await connection.first("unsubscribe", id=subscription) is not None

        return await self._db.transact(job)

    async def disable(self, subscription: str, why: str) -> None:
        """Send nothing for a subscription any more; its pending rows have failed."""

        async def job(connection: Connection) -> None:
            await connection.run("disable", id=subscription, why=why)
            await connection.run("fail_all", id=subscription, why=why)

        await self._db.transact(job)

    async def subscriptions(
        self,
        *,
        tenant: str | None,
        limit: int,
        after: str = "",
        id: str | None = None,  # noqa: A002 -- the name of the column
    ) -> list[SubscriptionRow]:
        """Subscriptions that are not the webhook of a task, by their ids; or the one with this id, also when it is a webhook of a task. Of one
        tenant, or of all (None)."""
        name = "subscriptions" if id is None else "subscription"
        filters = {"tenant": tenant, "any_tenant": tenant is None, "id": id}
        return [SubscriptionRow(*row) for row in await self._db.fetch(name, limit=limit, after=after, **filters)]

    async def lanes(self, after: str = "", most: int = 1000) -> list[Lane] | None:
        """Receivers with pending rows, by name; None when there is no subscription at all."""

        async def job(connection: Connection) -> list[Lane] | None:
            lanes = [Lane(*row) for row in await connection.fetch("lanes", after=after, most=most)]
            if not lanes and not (await connection.first("subscribed"))[0]:
                return None
            return lanes

        return await self._db.read(job)

    async def take(self, lane: str, room: int, holder: str, lease: float, *, runs: bool = False) -> list[Taken]:
        """Take rows of a receiver that are due. The holder has them for `lease` seconds, and each take is an attempt. Of each subscription
        and task only the first pending row is taken, so that the order is kept. With `runs`, the rows that follow it without a gap are
        taken too, and the caller keeps the order."""
        rows = await (self._take_runs if runs else self._take)(lane, room, holder, lease)
        if (codec := self._db.codec) is None or not rows:
            return rows
        records = await codec.tails([(row.key.task_id, row.record) for row in rows])
        with_body = [row for row in rows if row.body is not None]
        items = [Item(row.key.task_id, body_place(*row.key), row.body or b"") for row in with_body]
        bodies = dict(zip([row.key for row in with_body], await codec.open(items), strict=True))
        return [
            dataclasses.replace(row, record=record, body=bodies.get(row.key))
            for row, (_, record) in zip(rows, records, strict=True)
        ]

    @abc.abstractmethod
    async def _take(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        """The rows that `take` returns, as they are stored."""

    @abc.abstractmethod
    async def _take_runs(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        """The same with `runs`."""

    async def finish(self, holder: str, numbers: Sequence[int]) -> None:
        """Delete rows that a broker has. A row that the holder does not have any more is left as it is."""

        async def job(connection: Connection) -> None:
            crashpoint("deliver.before")
            await connection.run("finish_rows", holder=holder, numbers=list(numbers))

        await self._db.transact(job)
        crashpoint("deliver.after")

    async def release(self, holder: str, numbers: Sequence[int], why: str) -> None:
        """Let go of rows that could not be sent: they are due as they were before, and it was no attempt."""
        await self._db.write("release_rows", holder=holder, numbers=list(numbers), why=why)

    async def depths(self, prefix: str) -> list[LaneDepth]:
        """How many events wait for each receiver whose name begins so."""
        beyond = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        rows = await self._db.fetch("lane_depths", first=prefix, beyond=beyond, most=MAX_LANE_DEPTHS)
        return [LaneDepth(*row) for row in rows]

    async def note_unsent(self, lane: str, why: str, overdue: float) -> None:
        """Write down why the caller cannot send the rows of a receiver that have been due for `overdue` seconds. They stay due for others."""
        await self._db.write("note_unsent", lane=lane, why=why, age=overdue, some=MAX_SWEPT)

    async def held_up(self, why: str, most: int) -> tuple[int, float | None]:
        """How many events wait for a relay that can decrypt or send them, counted up to a number, and how many seconds ago the oldest
        happened. `why` is one of the reasons in `port/outbox.py`."""
        ((events, oldest_s),) = await self._db.fetch("held_up_events", why=why, most=most)
        return events, oldest_s

    async def keep_bodies(self, holder: str, bodies: Sequence[tuple[Key, bytes]]) -> None:
        """Store the bodies of these rows before they are sent."""
        stored = [body for _, body in bodies]
        if (codec := self._db.codec) is not None:
            stored = await codec.sealed_bodies(
                [((key.task_id, key.seq, key.subscription), body) for key, body in bodies]
            )
        pairs = zip(bodies, stored, strict=True)
        values = [key._asdict() | {"body": body, "holder": holder} for (key, _), body in pairs]
        await self._db.write_many("keep_body", values)

    async def extend(self, holder: str, keys: Sequence[Key], lease: float) -> None:
        """Hold these rows for `lease` more seconds."""
        await self._db.write_many("extend", [key._asdict() | {"lease": lease, "holder": holder} for key in keys])

    async def settle(self, holder: str, settled: Sequence[Settled]) -> None:
        """Store the results of attempts. A row that the holder does not have any more is left as it is."""
        ordered = sorted(settled)
        lines = sorted({(item.key.task_id, item.key.subscription) for item in ordered if item.state != PENDING})

        async def job(connection: Connection) -> None:
            crashpoint("deliver.before")
            values = [item._asdict() | item.key._asdict() | {"holder": holder} for item in ordered]
            await connection.run_many("settle_delivery", [value for value in values if value["state"] != SKIPPED])
            await connection.run_many("skip_delivery", [value for value in values if value["state"] == SKIPPED])
            following = [{"task_id": task_id, "subscription": subscription} for task_id, subscription in lines]
            await connection.run_many("next_in_line", following)

        await self._db.transact(job)
        crashpoint("deliver.after")

    async def deliveries(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        seq: int | None = None,
        subscription: str | None = None,
        tenant: str | None = None,
        limit: int = 1,
        before: int = AFTER_LAST,
    ) -> list[DeliveryRow]:
        """Rows of the outbox below a number, the newest first; with `seq`, of that record of the `task`."""
        filters: dict[str, Any] = {"state": state, "task": task, "seq": seq}
        filters |= {"subscription": subscription, "tenant": tenant}
        filters |= {f"any_{name}": value is None for name, value in filters.items()}
        name = "deliveries" if task is None else "deliveries_of"
        rows = await self._db.fetch(name, limit=limit, before=before, **filters)
        return [DeliveryRow._make((*columns, bool(sending))) for *columns, sending in rows]

    async def redeliver(self, key: Key) -> bool:
        """Make a row due now, with no attempts counted; False when there is no such row, its subscription is gone or disabled, or a relay
        is sending it."""
        return bool(await self._db.write("redeliver", **key._asdict()))

    async def sweep(
        self,
        lanes: Sequence[str],
        strange: Sequence[str],
        *,
        delivered: float,
        failed: float,
        waiting: float,
        most: int,
    ) -> bool:
        """Remove rows that were delivered, or failed, so many seconds ago. Drop rows beyond `most` for one receiver, and rows of removed
        subscriptions. For the `strange` receivers, which the caller cannot reach, fail rows that no relay took for `waiting` seconds. Rows
        for brokers are never dropped and never fail here. A call does some of it; True when there may be more."""
        limited = [lane for lane in lanes if not lane.startswith(BROKER_LANE)]

        async def job(connection: Connection) -> tuple[int, list[str]]:
            counts = [0]
            for state, age in ((DELIVERED, delivered), (FAILED, failed)):
                rows = await connection.fetch("forget_deliveries", state=state, age=age, some=MAX_SWEPT)
                counts.append(len(rows))
                for subscription in sorted({row[0] for row in rows}):
                    await connection.run("forget_webhook", id=subscription)
            for lane in strange:
                if lane.startswith(BROKER_LANE):
                    continue
                counts.append(len(await connection.fetch("give_up", lane=lane, age=waiting, some=MAX_SWEPT)))
            return max(counts), [lane for lane in limited if await connection.first("crowd", lane=lane, most=most)]

        count, crowded = await self._db.sequence(job)
        for lane in crowded:
            count = max(count, await self._drop_crowd(lane, most))
        return count >= MAX_SWEPT

    async def _drop_crowd(self, lane: str, most: int) -> int:
        return await self._db.transact(lambda c: _drop_crowd(c, lane, most))


async def _drop_crowd(connection: Connection, lane: str, most: int) -> int:
    """Drop rows of a receiver that has more than `most`; how many."""
    row = await connection.first("crowd", lane=lane, most=most)
    if row is None:
        return 0
    rows = await connection.fetch("drop_crowd", lane=lane, due_at=row[0], some=MAX_SWEPT)
    for subscription, count in sorted(collections.Counter(row[0] for row in rows).items()):
        await connection.run("count_dropped", id=subscription, count=count)
    return len(rows)


def taken(row: Sequence[Any]) -> Taken:
    """A row of the section `taken_columns`."""
    key, (attempts, types, sink, body) = Key(*row[:3]), row[3:7]
    shift, kind, record_key, data, at = row[7:12]
    task, created_at, task_key, encoded_options, again, number, epoch = row[12:]
    options = wire.decode(encoded_options)
    # As in rows.py: the key without the tenant.
    own_key = task_key and task_key.rpartition("\n")[2]
    origin = Origin(task, created_at, own_key, options.get("labels"), not again, options.get("trace"), epoch or "")
    record = Record(key.seq, shift, kind, record_key, data, at)
    return Taken(key, attempts, tuple(types.split(" ")), sink, record, origin, body, number)
