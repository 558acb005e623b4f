"""Subscriptions and the outbox on PostgreSQL."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Sequence
from typing import Any

import asyncpg

from onward.core.crash import crashpoint
from onward.core.task import NewTask
from onward.errors import StoreUnavailable
from onward.store.port import outbox
from onward.store.port.outbox import DeliveryRow, Key, Lane, Settled, SubscriptionRow, Taken
from onward.store.postgres.execute import S, first, run
from onward.store.shared import rows

SOME = 1000
WIDE = 1000
TRIES = 5


class PostgresOutbox:
    """See `Outbox` for what each verb promises."""

    where: str
    _fetch: Any
    _execute: Any
    _connection: Any

    async def watch(self, *, busy: bool) -> None:
        for _ in range(TRIES):
            try:
                await self._fetch("watch", busy=busy)
            except asyncpg.LockNotAvailableError:  # somebody's long transaction; whoever writes must not wait behind us
                await asyncio.sleep(0)
            else:
                return
        raise StoreUnavailable(
            f"{self.where}: the first subscription has to change a table, and a long transaction has it; try again soon"
        )

    async def insert_with_webhooks(self, new: Sequence[NewTask]) -> set[str]:
        """Tasks and who is told of their ends, in one transaction; the ids of those that were not there before."""
        insert = S["submit_grouped" if any(task.group for task in new) else "submit"]
        async with self._connection() as connection, connection.transaction():
            found = await connection.fetch(insert.sql, *insert(**rows.submit_values(new)))
            created = {row[0] for row in found}
            now = await connection.fetchval(S["now"].sql)
            for task in new:
                if task.id in created and task.webhook is not None:
                    await run(connection, "subscribe_task", id=task.id, now=now, **task.webhook._asdict())
        return created

    async def subscribe(self, row: SubscriptionRow, *, offered: bool = False) -> None:
        await self._execute("subscribe", offered=offered, **row._asdict())

    async def unsubscribe(self, subscription: str) -> bool:
        async with self._connection() as connection, connection.transaction():
            await run(connection, "unsend", id=subscription)
            return await first(connection, "unsubscribe", id=subscription) is not None

    async def disable(self, subscription: str, why: str) -> None:
        async with self._connection() as connection, connection.transaction():
            await run(connection, "disable", id=subscription, why=why)
            await run(connection, "fail_all", id=subscription, why=why)

    async def subscriptions(
        self,
        *,
        tenant: str | None,
        limit: int,
        after: str = "",
        id: str | None = None,  # noqa: A002
    ) -> list[SubscriptionRow]:
        name = "subscriptions" if id is None else "subscription"
        asked = {"tenant": tenant, "any_tenant": tenant is None, "id": id, "limit": limit, "after": after}
        return [SubscriptionRow(*row) for row in await self._fetch(name, **asked)]

    async def lanes(self, after: str = "", most: int = 1000) -> list[Lane] | None:
        found = await self._fetch("lanes", after=after, most=most)
        if not found and not (await self._fetch("subscribed"))[0][0]:
            return None
        return [Lane(*row) for row in found]

    async def take(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        asked = {"lane": lane, "room": room, "holder": holder, "lease": lease, "wide": WIDE}
        found = [tuple(row) for row in await self._fetch("take_deliveries", **asked)]
        if not found or found[0][-1]:
            await self._execute("line_up", lane=lane, wide=WIDE)
        return [outbox.taken(row[:-1]) for row in found]

    async def keep_bodies(self, holder: str, bodies: Sequence[tuple[Key, bytes]]) -> None:
        await self._each("keep_body", [key._asdict() | {"body": body, "holder": holder} for key, body in bodies])

    async def extend(self, holder: str, keys: Sequence[Key], lease: float) -> None:
        await self._each("extend", [key._asdict() | {"lease": lease, "holder": holder} for key in keys])

    async def _each(self, name: str, values: Sequence[dict[str, Any]]) -> None:
        async with self._connection() as connection:
            await connection.executemany(S[name].sql, [S[name](**one) for one in values])

    async def settle_deliveries(self, holder: str, settled: Sequence[Settled]) -> None:
        crashpoint("deliver.before")
        ordered = sorted(settled)
        done = sorted({(one.key.task_id, one.key.subscription) for one in ordered if one.state != outbox.PENDING})
        async with self._connection() as connection, connection.transaction():
            for statement, skipped in ((S["settle_delivery"], False), (S["skip_delivery"], True)):
                some = [one for one in ordered if (one.state == outbox.SKIPPED) == skipped]
                values = [one._asdict() | one.key._asdict() | {"holder": holder} for one in some]
                await connection.executemany(statement.sql, [statement(**one) for one in values])
            following = S["next_in_line"]
            asked = [following(task_id=task_id, subscription=subscription) for task_id, subscription in done]
            await connection.executemany(following.sql, asked)
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
        before: int = outbox.LAST,
    ) -> list[DeliveryRow]:
        asked: dict[str, Any] = {
            "state": state,
            "task": task,
            "seq": seq,
            "subscription": subscription,
            "tenant": tenant,
        }
        asked |= {f"any_{name}": value is None for name, value in asked.items()}
        name = "deliveries" if task is None else "deliveries_of"
        return [DeliveryRow(*row) for row in await self._fetch(name, limit=limit, before=before, **asked)]

    async def redeliver(self, key: Key) -> bool:
        return bool(await self._fetch("redeliver", **key._asdict()))

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
        done = [0]
        for state, age in ((outbox.DELIVERED, delivered), (outbox.FAILED, failed)):
            gone = [row[0] for row in await self._fetch("forget_deliveries", state=state, age=age, some=SOME)]
            done.append(len(gone))
            for subscription in sorted(set(gone)):
                await self._execute("forget_webhook", id=subscription)
        for lane in strange:
            done.append(len(await self._fetch("give_up", lane=lane, age=waiting, some=SOME)))
        await self._execute("forget_strays", lanes=list(lanes), wide=WIDE)
        for lane in lanes:
            done.append(await self._crowd(lane, most))
        return max(done) >= SOME

    async def _crowd(self, lane: str, most: int) -> int:
        crowd = await self._fetch("crowd", lane=lane, most=most)
        if not crowd:
            return 0
        async with self._connection() as connection, connection.transaction():
            statement = S["drop_crowd"]
            dropped = await connection.fetch(statement.sql, *statement(lane=lane, due_at=crowd[0][0], some=SOME))
            for subscription, count in sorted(collections.Counter(row[0] for row in dropped).items()):
                await run(connection, "count_dropped", id=subscription, count=count)
        return len(dropped)
