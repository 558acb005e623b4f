"""Subscriptions and the outbox on SQLite: there is one writer, so what is taken is read and written in one transaction."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import apsw

from onward.core.crash import crashpoint
from onward.store.port import outbox
from onward.store.port.outbox import DeliveryRow, Key, Lane, Settled, SubscriptionRow, Taken
from onward.store.sqlite.execute import S, first, run

SOME = 1000
WIDE = 1000


class SqliteOutbox:
    """See `Outbox` for what each verb promises."""

    _reading: Any
    _writing: Any

    async def watch(self, *, busy: bool) -> None:
        wanted = {"onward_outbox_tasks": f"{S['watch_tasks'].sql}\n{S['to_outbox'].sql}"}
        if busy:
            wanted["onward_outbox_busy"] = f"{S['watch_busy'].sql}\n{S['to_outbox'].sql}"

        def job(connection: apsw.Connection) -> None:
            there = dict(run(connection, "watched"))
            for name, text in wanted.items():
                if there.get(name) != text:  # made by an older version
                    connection.execute(f"DROP TRIGGER IF EXISTS {name}")
                    connection.execute(text)

        if (await self._reading(lambda c: dict(run(c, "watched")))).items() >= wanted.items():
            return
        await self._writing(job)

    async def subscribe(self, row: SubscriptionRow, *, offered: bool = False) -> None:
        await self._writing(lambda c: run(c, "subscribe", offered=offered, **row._asdict()))

    async def unsubscribe(self, subscription: str) -> bool:
        def job(connection: apsw.Connection) -> bool:
            run(connection, "unsend", id=subscription)
            return first(connection, "unsubscribe", id=subscription) is not None

        return bool(await self._writing(job))

    async def disable(self, subscription: str, why: str) -> None:
        def job(connection: apsw.Connection) -> None:
            run(connection, "disable", id=subscription, why=why)
            run(connection, "fail_all", id=subscription, why=why)

        await self._writing(job)

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
        found = await self._reading(lambda c: list(run(c, name, **asked)))
        return [SubscriptionRow(*row) for row in found]

    async def lanes(self, after: str = "", most: int = 1000) -> list[Lane] | None:
        def job(connection: apsw.Connection) -> list[Lane] | None:
            if first(connection, "subscribed") == (0,):
                return None
            return [Lane(*row) for row in run(connection, "lanes", after=after, most=most)]

        found: list[Lane] | None = await self._reading(job)
        return found

    async def take(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        def job(connection: apsw.Connection) -> list[Taken]:
            keys = [Key(*row) for row in run(connection, "due_rows", lane=lane, room=room, wide=WIDE)]
            for key in keys:
                run(connection, "hold", holder=holder, lease=lease, **key._asdict())
            if len(keys) < room:
                run(connection, "line_up", lane=lane, wide=WIDE)
            found = [first(connection, "take_one", **key._asdict()) for key in keys]
            return [outbox.taken(row) for row in found if row is not None]

        taken: list[Taken] = await self._writing(job)
        return taken

    async def keep_bodies(self, holder: str, bodies: Sequence[tuple[Key, bytes]]) -> None:
        await self._each("keep_body", [key._asdict() | {"body": body, "holder": holder} for key, body in bodies])

    async def extend(self, holder: str, keys: Sequence[Key], lease: float) -> None:
        await self._each("extend", [key._asdict() | {"lease": lease, "holder": holder} for key in keys])

    async def _each(self, name: str, values: Sequence[dict[str, Any]]) -> None:
        await self._writing(lambda c: c.executemany(S[name].sql, [S[name](**one) for one in values]))

    async def settle_deliveries(self, holder: str, settled: Sequence[Settled]) -> None:
        def job(connection: apsw.Connection) -> None:
            crashpoint("deliver.before")
            for one in settled:
                values = one._asdict() | one.key._asdict() | {"holder": holder}
                run(connection, "skip_delivery" if one.state == outbox.SKIPPED else "settle_delivery", **values)
                if one.state != outbox.PENDING:
                    run(connection, "next_in_line", task_id=one.key.task_id, subscription=one.key.subscription)

        await self._writing(job)
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
        found = await self._reading(lambda c: list(run(c, name, limit=limit, before=before, **asked)))
        return [DeliveryRow._make((*row[:-1], bool(row[-1]))) for row in found]

    async def redeliver(self, key: Key) -> bool:
        return await self._writing(lambda c: first(c, "redeliver", **key._asdict())) is not None

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
        def job(connection: apsw.Connection) -> bool:
            done = [0]
            for state, age in ((outbox.DELIVERED, delivered), (outbox.FAILED, failed)):
                gone = [row[0] for row in run(connection, "forget_deliveries", state=state, age=age, some=SOME)]
                done.append(len(gone))
                for subscription in set(gone):
                    run(connection, "forget_webhook", id=subscription)
            for lane in strange:
                done.append(len(list(run(connection, "give_up", lane=lane, age=waiting, some=SOME))))
            return max([*done, *(_crowd(connection, lane, most) for lane in lanes)]) >= SOME

        return bool(await self._writing(job))


def _crowd(connection: apsw.Connection, lane: str, most: int) -> int:
    crowd = first(connection, "crowd", lane=lane, most=most)
    if crowd is None:
        return 0
    dropped = [row[0] for row in run(connection, "drop_crowd", lane=lane, due_at=crowd[0], some=SOME)]
    for subscription, count in collections.Counter(dropped).items():
        run(connection, "count_dropped", id=subscription, count=count)
    return len(dropped)
