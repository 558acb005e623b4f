"""An intake in a process of its own: `python -m tests.brokers.crew DB URL PLACE FAULT`."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Sequence
from typing import Any

from onward import Onward
from onward.brokers.intake import Intake
from onward.brokers.message import Received
from onward.core.crash import crashpoint

BATCH = 10
FAULTS = ("acknowledged before the commit", "no key")


def plant(fault: str) -> None:
    """Break the intake, so that the proof has something to see."""
    if fault == "acknowledged before the commit":
        read_all = Intake._read_all

        async def acknowledge_first(self: Intake, received: Sequence[Received], size: int) -> Any:
            assert self._source is not None
            await self._source.acknowledge(received)
            return await read_all(self, received, size)

        Intake._read_all = acknowledge_first  # type: ignore[method-assign]
    elif fault == "no key":
        request, numbers = Intake._request, itertools.count()

        def without_key(self: Intake, item: Any) -> Any:
            made = request(self, item)
            return made._replace(key=f"{self._process} {next(numbers)}")

        Intake._request = without_key  # type: ignore[method-assign]
    elif fault:
        raise ValueError(fault)


def make_app(db: str, url: str, place: str) -> Onward:
    app = Onward(db, brokers={"shop": url})
    app.task(name="ship")(lambda ctx, n: n)
    app.intake("orders", from_=f"shop/{place}", task="ship", batch=BATCH)
    return app


async def main(db: str, url: str, place: str, fault: str = "") -> None:
    plant(fault)
    async with make_app(db, url, place).intakes():
        print("ready")
        crashpoint("crew.ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
