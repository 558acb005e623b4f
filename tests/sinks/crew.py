"""A relay in a process of its own: `python -m tests.sinks.crew URL SECRET FAULT`. It lets go of what it took after a second."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

from onward import Onward
from onward.core import crash
from onward.engine.worker import relay as relay_module
from onward.store.port.outbox import DELIVERED, Settled


def plant(fault: str, app: Onward) -> None:
    """What the proof has to see."""
    if fault == "marked first":
        take = app.store.outbox.take

        async def take_and_mark(lane: str, room: int, holder: str, lease: float, **options: Any) -> Any:
            taken = await take(lane, room, holder, lease, **options)
            await app.store.outbox.settle(holder, [Settled(one.key, one.attempts, DELIVERED, 0.0, "") for one in taken])
            crash.crashpoint("deliver.marked")
            return taken

        app.store.outbox.take = take_and_mark  # type: ignore[method-assign]
    if fault == "new bytes":
        made, body = itertools.count(), relay_module.body

        async def forgets(holder: str, bodies: Any) -> None: ...

        app.store.outbox.keep_bodies = forgets  # type: ignore[method-assign]
        relay_module.body = lambda event: body(event)[:-1] + b', "n":%d}' % next(made)  # type: ignore[assignment]


async def main(url: str, secret: str, fault: str) -> None:
    relay_module.LEASE_S = 1.0
    relay_module.MIN_INTERVAL_S = 0.01
    app = Onward(url, webhook_secret=secret, webhook_allow_private="true", poll_s=0.05)
    plant(fault, app)
    async with app.relay():
        print("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
