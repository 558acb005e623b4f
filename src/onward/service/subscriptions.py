"""Subscriptions, and deliveries of their events. A part of the service."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from onward.core import event
from onward.core.ids import Ids
from onward.core.task import Webhook
from onward.core.view_json import from_row
from onward.core.views import Delivery, Subscription
from onward.errors import BadSetting, NotFound, NotSentAgain, UsageError
from onward.store.port.core import Store
from onward.store.port.outbox import (
    AFTER_LAST,
    BROKER_LANE,
    DELIVERED,
    FAILED,
    FUNCTION_LANE,
    PENDING,
    DeliveryRow,
    Key,
    SubscriptionRow,
)

STATES = (PENDING, DELIVERED, FAILED)
PUBLICATION = "publish:"
"""The id of a subscription that publishes to a broker begins with this."""
MAX_PAGE = 1000


class Webhooks(Protocol):
    """Checks URLs of webhooks, and has their secrets."""

    def check(self, url: str, *, own: bool, tenant: str | None = None) -> str:
        """The lane of a URL. Raises BadWebhook for a URL that may not be called."""
        ...

    def secret(self, subscription: str) -> str:
        """The secret of a subscription, for its receiver."""
        ...

    def secret_of(self, tenant: str) -> str | None:
        """The secret that signs the webhooks that a tenant names at submit."""
        ...


def no_webhooks() -> Webhooks:
    """For a service without an app, which sends no webhooks."""
    raise UsageError("webhooks are sent by an app (onward.Onward), and this service has none")


Deliveries = Sequence[Delivery]
SubscriptionList = Sequence[Subscription]
"""Aliases for classes that have a verb named `list`, or `subscriptions`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """A subscription that code declares: of a function, or of a place of a broker."""

    id: str
    types: tuple[str, ...]
    sink: str
    lane: str

    @classmethod
    def function(cls, name: str, types: tuple[str, ...]) -> Declared:
        """The subscription of a function of an app."""
        return cls(FUNCTION_LANE + name, types, FUNCTION_LANE + name, FUNCTION_LANE + name)

    @classmethod
    def publication(cls, name: str, types: tuple[str, ...], to: str) -> Declared:
        """The subscription that publishes to `BROKER/PLACE`."""
        return cls(PUBLICATION + name, types, to, BROKER_LANE + to)


class Subscriptions:
    """Makes, lists and removes subscriptions; lists and repeats deliveries. A tenant of None is the operator, who sees all."""

    def __init__(self, store: Store, ids: Ids, webhooks: Callable[[], Webhooks]) -> None:
        self._store, self._ids, self._webhooks = store, ids, webhooks
        self._watching: set[bool] = set()

    def check(self, url: str, types: Iterable[str]) -> None:
        """Raises UsageError or BadWebhook for a subscription that cannot be made."""
        event.known_types(types)
        self._webhooks().check(url, own=True)

    async def make(self, url: str, types: Iterable[str], *, tenant: str | None = None) -> Subscription:
        """Send events of these types to a URL from now on. The answer has the secret that signs them. Raises BadWebhook."""
        wanted = event.known_types(types)
        webhooks, name = self._webhooks(), self._ids()
        lane = webhooks.check(url, own=True)
        row = SubscriptionRow(name, None, tenant, " ".join(wanted), event.kinds(wanted), url, lane)
        await self._watch(row.kinds)
        await self._store.outbox.subscribe(row)
        self._store.nudge("outbox")
        return dataclasses.replace(await self.get(name), secret=webhooks.secret(name))

    def secret_of(self, tenant: str | None) -> str | None:
        """The secret that signs the webhooks that a tenant names at submit; the operator who makes its keys needs it."""
        return None if tenant is None else self._webhooks().secret_of(tenant)

    async def webhook(self, url: str, tenant: str | None = None) -> Webhook:
        """The row that a submit with a webhook writes beside the task. Raises BadWebhook, before anything is written."""
        lane, kinds = self._webhooks().check(url, own=False, tenant=tenant), event.kinds(event.ENDINGS)
        await self._watch(kinds)
        return Webhook(url, lane, " ".join(event.ENDINGS), kinds)

    async def save(self, declared: Sequence[Declared]) -> None:
        """Write the subscriptions that code declares, and that this process declares them."""
        for subscription in declared:
            kinds = event.kinds(subscription.types)
            await self._watch(kinds)
            row = SubscriptionRow(
                subscription.id, None, None, " ".join(subscription.types), kinds, subscription.sink, subscription.lane
            )
            await self._store.outbox.subscribe(row, offered=True)

    async def _watch(self, kinds: str) -> None:
        busy = event.busy(kinds)
        if not self._watching & {busy, True}:
            await self._store.outbox.watch(busy=busy)
            self._watching.add(busy)

    async def list(
        self, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> tuple[Sequence[Subscription], str | None]:
        """Subscriptions by their ids, and the cursor for the next page. Webhooks of single tasks are not listed here; their deliveries
        are."""
        rows = await self._store.outbox.subscriptions(tenant=tenant, limit=_limit(limit) + 1, after=cursor or "")
        return [_subscription(row) for row in rows[:limit]], rows[limit - 1].id if len(rows) > limit else None

    async def get(self, subscription: str, *, tenant: str | None = None) -> Subscription:
        """One subscription. Raises NotFound."""
        for row in await self._store.outbox.subscriptions(tenant=tenant, limit=1, id=subscription):
            return _subscription(row)
        raise NotFound(f"there is no subscription {subscription!r:.80}; `app.subscriptions.list()` shows them")

    async def remove(self, subscription: str, *, tenant: str | None = None) -> None:
        """Remove a subscription; its pending deliveries are not sent. If code still declares it (`@app.on`, `app.publish`), the next worker that starts
        makes it again. Raises NotFound."""
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
        rows = await self._store.outbox.deliveries(
            state=state,
            task=task,
            subscription=subscription,
            tenant=tenant,
            limit=_limit(limit) + 1,
            before=AFTER_LAST if cursor is None else int(cursor),
        )
        last = str(rows[limit - 1].number) if len(rows) > limit else None
        return [_delivery(row) for row in rows[:limit]], last

    async def delivery(self, delivery: str, *, tenant: str | None = None) -> Delivery:
        """One delivery. Raises NotFound."""
        return _delivery(await self._row(delivery, tenant))

    async def redeliver(self, delivery: str, *, tenant: str | None = None) -> Delivery:
        """Send a delivery again now: the same id, the same bytes. Raises NotFound and NotSentAgain."""
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
            rows = await self._store.outbox.deliveries(task=task_id, seq=seq, subscription=subscription, tenant=tenant)
            if rows:
                return rows[0]
        raise NotFound(f"there is no delivery {delivery!r:.120}; `onward deliveries` lists them")


def _limit(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise BadSetting("limit", limit, f"between 1 and {MAX_PAGE}")
    return limit


def _subscription(row: SubscriptionRow) -> Subscription:
    return from_row(Subscription, row, types=tuple(row.types.split(" ")), secret=None)


def _delivery(row: DeliveryRow) -> Delivery:
    due_at = row.due_at if row.state == PENDING else None
    return from_row(Delivery, row, id=str(row.key), type=row.kind, due_at=due_at)
