"""Events of an app: the functions and brokers that get them, the subscriptions, and the deliveries. Part of `Onward`."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from onward.config import Settings
from onward.core.clock import Clock
from onward.core.ids import Ids
from onward.core.views import Delivery
from onward.engine.background import Spawn, spawn
from onward.engine.worker.relay import Relay
from onward.engine.worker.sinks import Functions, Sink, Urls
from onward.service.service import Service
from onward.service.subscriptions import Declared, Deliveries, Subscriptions
from onward.store.port.core import Store

if TYPE_CHECKING:
    from onward.sinks.webhook import Webhooks


class Events:
    """The methods of `Onward` for events."""

    store: Store
    service: Service
    settings: Settings
    _clock: Clock
    _rng: random.Random
    _ids: Ids
    _listeners: dict[str, Any]
    _publications: dict[str, tuple[str, tuple[str, ...]]]
    __aenter__: Any
    __aexit__: Any

    @functools.cached_property
    def webhooks(self) -> Webhooks:
        """The sink that sends events to URLs."""
        from onward.sinks.webhook import Webhooks  # noqa: PLC0415 -- most programs send none

        return Webhooks(self.settings.webhook_secret, self.settings.webhook_allow_private, self._clock)

    @contextlib.asynccontextmanager
    async def relay(self) -> AsyncIterator[Relay]:
        """Deliver events in this process while the block lasts, without doing tasks. Every worker delivers events too."""
        async with self, self._export_heads():
            relay = self._make_relay()
            await relay.start()
            try:
                yield relay
            finally:
                await relay.stop()

    @contextlib.asynccontextmanager
    async def _export_heads(self) -> AsyncIterator[None]:
        """Export the heads of the audit log while the block lasts, where the settings say to where."""
        if not self.settings.audit_heads:
            yield
            return
        from onward.sinks.audit_heads import HeadExporter, exporting, parse_outlets  # noqa: PLC0415 -- most programs export none

        outlets = parse_outlets(self.settings.audit_heads, lambda: self.webhooks)
        async with exporting(HeadExporter(self.store.audit, outlets, self._clock, self.settings.audit_heads_s)):
            yield

    def _make_relay(self, spawn: Spawn = spawn) -> Relay:
        """A relay that is not started yet."""
        sinks: list[Sink] = [
            Functions({name: function for name, (_, function) in self._listeners.items()}, self.store),
            Urls(lambda: self.webhooks),
        ]
        if self.settings.brokers or self._publications:
            from onward.brokers.publishing import Brokers  # noqa: PLC0415 -- most programs have none

            sinks.append(Brokers(self.settings.brokers, [to for to, _ in self._publications.values()]))
        return Relay(
            self.store,
            self._clock,
            self._rng,
            self._ids,
            sinks=sinks,
            save=self.save_subscriptions,
            spawn=spawn,
            poll=self.settings.poll_s,
        )

    async def save_subscriptions(self) -> None:
        """Write the subscriptions that `@app.on` and `app.publish` declare to the store, as a worker does when it starts. The store keeps
        events for them from then on."""
        functions = [Declared.function(name, types) for name, (types, _) in self._listeners.items()]
        places = [Declared.publication(name, types, to) for name, (to, types) in self._publications.items()]
        await self.service.subscriptions.save(functions + places)

    @property
    def subscriptions(self) -> Subscriptions:
        """The subscriptions: `make(url, types)`, `list()`, `remove(id)`."""
        return self.service.subscriptions

    async def deliveries(
        self, *, state: str | None = None, task: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> tuple[Deliveries, str | None]:
        """Deliveries, newest first, and the cursor for the next page. A delivery is pending, delivered, or failed for good."""
        return await self.service.subscriptions.deliveries(state=state, task=task, limit=limit, cursor=cursor)

    async def redeliver(self, delivery_id: str) -> Delivery:
        """Send an event again now, with the same id and the same bytes."""
        return await self.service.subscriptions.redeliver(delivery_id)
