"""An app whose time is moved by hand, on every store, and a relay that looks when the test says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Onward
from onward.core.ids import Ids
from onward.core.views import Delivery
from onward.engine.worker.relay import Relay
from onward.service.submission import SubmitRequest
from onward.store.port.core import Claimed, Store
from tests.kit import SEEDS, Time, claim, completion, join
from tests.sinks.receiver import Receiver

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


class Office:
    """An app with one handler, `work`, whose tasks the test itself does; and what tells others of them."""

    def __init__(self, store: Store, time: Time, **settings: Any) -> None:
        settings = {"webhook_secret": SECRET, "webhook_allow_private": "127.0.0.0/8"} | settings
        self.rng = random.Random(next(SEEDS))
        self.app = Onward(store=store, clock=time._clock, rng=self.rng, **settings)
        self.app.task(name="work")(_work)
        self.store, self.time = store, time
        self.relays: list[Relay] = []

    async def submit(self, value: Any = None, tenant: str | None = None, **options: Any) -> str:
        if tenant is not None:  # who asks with a key of a tenant
            return (await self.app.service.submit([SubmitRequest("work", value, tenant=tenant, **options)]))[0]
        return (await self.app.submit("work", value, **options)).id

    async def begin(self, worker: str = "w1") -> Claimed:
        await join(self.store, worker, lease=1e9)
        (one,) = await claim(self.store, worker, 1)
        return one

    async def complete(self, **options: Any) -> str:
        """A task from its submit to its end."""
        task_id = await self.submit(**options)
        held = await self.begin()
        assert held.id == task_id
        batch = completion(held)
        batch.entries = [(*one[:-1], self.time.now) for one in batch.entries]  # by the clock of this database
        assert await self.store.save("w1", batch) == set()
        return task_id

    def relay(self) -> Relay:
        relay = self.app._make_relay()
        relay._ids = Ids(self.time._clock.now, self.rng)
        self.relays.append(relay)
        return relay

    async def send(self, relay: Relay | None = None) -> None:
        """One look, and all that it begins."""
        relay = relay or (self.relays[0] if self.relays else self.relay())
        await relay.look()
        while relay._sending:
            await asyncio.gather(*relay._sending)

    async def send_all(self, rounds: int = 50) -> None:
        for _ in range(rounds):
            await self.send()
            if not any(lane.due_in <= 0 for lane in await self.store.outbox.lanes() or ()):
                return
        raise AssertionError("there is always more to send")

    async def deliveries(self, **asked: Any) -> list[Delivery]:
        found, _ = await self.app.deliveries(**asked)
        return list(found)


async def _work(ctx: Any, value: Any = None) -> None: ...


@pytest.fixture
async def office(store: Store, time: Time) -> AsyncIterator[Office]:
    office = Office(store, time)
    yield office
    for relay in office.relays:
        await relay.stop(0)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().open() as receiver:
        yield receiver
