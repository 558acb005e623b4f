"""Subscriptions and deliveries: who hears of what, and what came of it. A part of the service."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from onward.core import event
from onward.core.ids import Ids
from onward.core.task import Webhook
from onward.errors import BadSetting, NotFound, UsageError
from onward.store.port.core import Store
from onward.store.port.outbox import AFTER_LAST, DELIVERED, FAILED, PENDING, DeliveryRow, Key, SubscriptionRow

STATES = (PENDING, DELIVERED, FAILED)
FUNCTION = "on:"
MOST = 1000


class NotSentAgain(UsageError):
    """A delivery that cannot be sent again just now."""

    code = "not_sent_again"
    status = 409

    def __init__(self, delivery: str, why: str) -> None:
        super().__init__(f"delivery {delivery} is not sent again: {why}")


class Webhooks(Protocol):
    """What knows about webhooks."""

    def check(self, url: str, *, own: bool, tenant: str | None = None) -> str:
        """The lane of a URL that may be told. Raises what is wrong with it."""
        ...

    def secret(self, subscription: str) -> str:
        """The secret of a subscription, for its receiver."""
        ...

    def secret_of(self, tenant: str) -> str | None:
        """What signs the webhooks that a tenant gives at submit."""
        ...


def no_webhooks() -> Webhooks:
    """For a service that tells nobody of anything."""
    raise UsageError("webhooks are sent by an app (onward.Onward), and this service has none")


@dataclasses.dataclass(frozen=True, slots=True)
class Subscription:
    """Who hears of what. `secret` is there only in the answer to `make`."""

    id: str
    types: tuple[str, ...]
    sink: str
    """A URL, or `on:NAME` for a function of an app."""
    task_id: str | None
    tenant: str | None
    created_at: float
    offered_at: float | None
    """When a process with that function was seen last."""
    disabled: str | None
    """Why nothing is sent any more."""
    dropped: int
    """Events that were dropped because too many waited."""
    secret: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one receiver."""

    id: str
    subscription: str
    task_id: str
    seq: int
    type: str
    state: str
    sink: str | None
    attempts: int
    said: str | None
    """What came of the last attempt."""
    at: float
    due_at: float | None
    done_at: float | None
    sending: bool


Deliveries = Sequence[Delivery]
Heard = Sequence[Subscription]
"""For classes that have a verb named `list`, or `subscriptions`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """A function that code wants to be called with events."""

    name: str
    types: tuple[str, ...]


class Subscriptions:
    """All verbs about subscriptions and deliveries. A tenant of None is whoever runs the place, and sees all."""

    def __init__(self, store: Store, ids: Ids, webhooks: Callable[[], Webhooks]) -> None:
        self._store, self._ids, self._webhooks = store, ids, webhooks
        self._watching: set[bool] = set()

    def check(self, url: str, types: Iterable[str]) -> None:
        """Raises what is wrong with a subscription."""
        event.known_types(types)
        self._webhooks().check(url, own=True)

    async def make(self, url: str, types: Iterable[str], *, tenant: str | None = None) -> Subscription:
        """Have events of these types sent to a URL, from now on; with the secret that signs them. Raises BadWebhook."""
        wanted = event.known_types(types)
        webhooks, name = self._webhooks(), self._ids()
        lane = webhooks.check(url, own=True)
        row = SubscriptionRow(name, None, tenant, " ".join(wanted), event.kinds(wanted), url, lane)
        await self._watch(row.kinds)
        await self._store.outbox.subscribe(row)
        self._store.nudge("outbox")
        return dataclasses.replace(await self.get(name), secret=webhooks.secret(name))

    def secret_of(self, tenant: str | None) -> str | None:
        """What signs the webhooks that a tenant gives at submit, for whoever makes its keys."""
        return None if tenant is None else self._webhooks().secret_of(tenant)

    async def webhook(self, url: str, tenant: str | None = None) -> Webhook:
        """What a submit with a webhook writes beside the task. Raises BadWebhook, before anything is written."""
        lane, kinds = self._webhooks().check(url, own=False, tenant=tenant), event.kinds(event.ENDINGS)
        await self._watch(kinds)
        return Webhook(url, lane, " ".join(event.ENDINGS), kinds)

    async def save(self, declared: Sequence[Declared]) -> None:
        """Have the functions that code declares in the store, and say that they are here."""
        for one in declared:
            kinds = event.kinds(one.types)
            await self._watch(kinds)
            lane = FUNCTION + one.name
            row = SubscriptionRow(lane, None, None, " ".join(one.types), kinds, lane, lane)
            await self._store.outbox.subscribe(row, offered=True)

    async def _watch(self, kinds: str) -> None:
        busy = event.busy(kinds)
        if not self._watching & {busy, True}:
            await self._store.outbox.watch(busy=busy)
            self._watching.add(busy)

    async def list(
        self, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> tuple[Sequence[Subscription], str | None]:
        """Subscriptions that somebody made, by their ids, and the cursor for the next page. Webhooks of single tasks are with
        their deliveries."""
        found = await self._store.outbox.subscriptions(tenant=tenant, limit=_limit(limit) + 1, after=cursor or "")
        return [_subscription(row) for row in found[:limit]], found[limit - 1].id if len(found) > limit else None

    async def get(self, subscription: str, *, tenant: str | None = None) -> Subscription:
        """One of them. Raises NotFound."""
        for row in await self._store.outbox.subscriptions(tenant=tenant, limit=1, id=subscription):
            return _subscription(row)
        raise NotFound(f"there is no subscription {subscription!r:.80}; `app.subscriptions.list()` shows them")

    async def remove(self, subscription: str, *, tenant: str | None = None) -> None:
        """Tell of nothing more; what was still to be sent is not. Where code still declares it (`@app.on`), the next worker that
        starts brings it back. Raises NotFound."""
        await self.get(subscription, tenant=tenant)
        await self._store.outbox.unsubscribe(subscription)

    async def deliveries(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        subscription: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> tuple[Sequence[Delivery], str | None]:
        """Deliveries, newest first, and the cursor for the next page."""
        if state is not None and state not in STATES:
            raise BadSetting("state", state, f"one of {', '.join(STATES)}")
        if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
            raise UsageError(f"{cursor!r:.40} is no cursor of a list of deliveries; use `next` of the page before")
        found = await self._store.outbox.deliveries(
            state=state,
            task=task,
            subscription=subscription,
            tenant=tenant,
            limit=_limit(limit) + 1,
            before=AFTER_LAST if cursor is None else int(cursor),
        )
        last = str(found[limit - 1].number) if len(found) > limit else None
        return [_delivery(row) for row in found[:limit]], last

    async def delivery(self, delivery: str, *, tenant: str | None = None) -> Delivery:
        """One of them. Raises NotFound."""
        return _delivery(await self._row(delivery, tenant))

    async def redeliver(self, delivery: str, *, tenant: str | None = None) -> Delivery:
        """Send it again now: the same id, the same bytes. Raises NotFound and NotSentAgain."""
        row = await self._row(delivery, tenant)
        if not await self._store.outbox.redeliver(row.key):
            row = await self._row(delivery, tenant)
            why = "it is being sent just now" if row.sending else "its subscription is gone or disabled; make a new one"
            raise NotSentAgain(delivery, why)
        self._store.nudge("outbox")
        return _delivery(await self._row(delivery, tenant))

    async def _row(self, delivery: str, tenant: str | None) -> DeliveryRow:
        key = Key.parse(delivery)
        if key is not None:
            task_id, seq, subscription = key
            found = await self._store.outbox.deliveries(task=task_id, seq=seq, subscription=subscription, tenant=tenant)
            if found:
                return found[0]
        raise NotFound(f"there is no delivery {delivery!r:.120}; `onward deliveries` lists them")


def _limit(limit: int) -> int:
    if not 1 <= limit <= MOST:
        raise BadSetting("limit", limit, f"between 1 and {MOST}")
    return limit


def _subscription(row: SubscriptionRow) -> Subscription:
    return Subscription(
        row.id,
        tuple(row.types.split(" ")),
        row.sink,
        row.task_id,
        row.tenant,
        row.created_at,
        row.offered_at,
        row.disabled,
        row.dropped,
    )


def _delivery(row: DeliveryRow) -> Delivery:
    return Delivery(
        str(row.key),
        row.subscription,
        row.task_id,
        row.seq,
        row.kind,
        row.state,
        row.sink,
        row.attempts,
        row.said,
        row.at,
        row.due_at if row.state == PENDING else None,
        row.done_at,
        row.sending,
    )
