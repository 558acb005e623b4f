"""The app of `onward demo`: a deploy of ten steps against an imaginary cloud. It is an ordinary app:

    onward worker onward.demo.deploy:app
    onward submit demo.deploy '{"service": "shop", "cloud": "/tmp/cloud"}' --app onward.demo.deploy:app --follow

The cloud is a folder. Every request to it is a line in its ledger; each thing that it made is a file in `effects`. It does what
real clouds do: it answers a request whose idempotency key it has seen with the result of the first one, and makes nothing new.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path
from typing import Any

from onward.app.application import Onward
from onward.demo import QUEUE, default_db
from onward.demo.ledger import Ledger
from onward.engine.context.context import Context

TASK = "demo.deploy"

STEPS: tuple[tuple[str, float, float], ...] = (
    ("build image", 0.5, 0.1),
    ("push image", 0.3, 0.1),
    ("create DNS record", 0.2, 0.1),
    ("issue certificate", 0.4, 0.1),
    ("provision database", 0.6, 0.1),
    ("run migrations", 0.3, 0.1),
    ("start containers", 0.4, 0.1),
    ("route traffic", 0.2, 1.0),
    ("warm caches", 0.4, 0.1),
    ("notify team", 0.2, 0.1),
)
"""Name, and the seconds that each step takes before and after its request to the cloud: ten minutes in fast motion."""

FATAL_STEP = "route traffic"
"""The demo kills the worker in this step: after the effect, before the record of it."""

app = Onward(default_db())


class Cloud:
    """A cloud that remembers idempotency keys."""

    def __init__(self, folder: str | Path) -> None:
        self.ledger = Ledger(Path(folder) / "ledger.jsonl")
        self.effects = Path(folder) / "effects"
        self.effects.mkdir(parents=True, exist_ok=True)

    def request(self, what: str, key: str) -> str:
        """Make something, once for each key; returns its name."""
        name = hashlib.sha256(key.encode()).hexdigest()[:12]
        try:
            (self.effects / name).open("x").close()  # the effect: the file system lets it happen once
        except FileExistsError:
            new = False
        else:
            new = True
        self.ledger.write({"at": time.time(), "what": what, "key": key, "effect": new, "pid": os.getpid()})
        return name if new else f"{name} (already done)"

    def count(self) -> int:
        """How many things the cloud has made."""
        return sum(1 for _ in self.effects.iterdir())


@app.task(name=TASK, queue=QUEUE)
async def deploy(ctx: Context, service: str, cloud: str) -> dict[str, Any]:
    """Deploy a service in ten steps."""
    made: list[str] = []

    async def act(number: int, name: str, before: float, after: float) -> str:
        ctx.progress(name, step=number, total=len(STEPS))
        await asyncio.sleep(before)
        made_name = Cloud(cloud).request(f"{name} for {service}", ctx.key)
        await asyncio.sleep(after)
        return made_name

    for number, (name, before, after) in enumerate(STEPS, 1):
        made.append(await ctx.step(act, number, name, before, after, name=name))
    return {"service": service, "made": made}
