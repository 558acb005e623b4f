"""A relay in a process of its own: `python -m tests.brokers.publish_crew DB BROKER_URL FAULT`. It lets go of what it took after a second."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

from onward import Onward
from onward.brokers import publishing
from onward.core import crash
from onward.engine.worker import relay as relay_module


def plant(fault: str, app: Onward) -> None:
    """Plant a fault that the proof has to see."""
    if fault == "settled first":
        take = app.store.outbox.take

        async def take_and_finish(lane: str, room: int, holder: str, lease: float, *, runs: bool = False) -> Any:
            taken = await take(lane, room, holder, lease, runs=runs)
            await app.store.outbox.finish(holder, [one.number for one in taken])
            crash.crashpoint("deliver.marked")
            return taken

        app.store.outbox.take = take_and_finish  # type: ignore[method-assign]
    if fault == "new ids":
        made, publication = itertools.count(), publishing.Publication
        publishing.Publication = lambda first, *rest: publication(f"{first}.{next(made)}", *rest)  # type: ignore[assignment,misc]


async def main(url: str, broker: str, fault: str) -> None:
    relay_module.LEASE_S = 1.0
    relay_module.MIN_INTERVAL_S = 0.01
    publishing.MAX_BATCH = 100
    publishing.Brokers.rules = publishing.Brokers.rules._replace(rows=100)
    app = Onward(url, brokers={"events": broker}, poll_s=0.05)
    plant(fault, app)
    async with app.relay():
        print("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
