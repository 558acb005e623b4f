"""Friday evening: two hundred deploys arrive at once, and a hotfix behind them. Nothing is lost, and the hotfix goes first.

    $ python -m examples.friday                          # all of it in one process

    $ onward serve examples.friday:app --no-worker       # or over HTTP: a server,
    $ onward worker examples.friday:app --slots 5        # as many of these as you like, wherever you like,
    $ python -m examples.friday http://127.0.0.1:8765    # and a client that submits and follows

The queue is bounded (ONWARD_QUEUE_LIMIT): a full queue refuses a submit and says when to come back, and a client tries again then. The
same key is the same deploy, however often a person sends it again. A worker may be killed in the middle of a roll-out: the next one
checks whether the service is live before it does anything.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from onward import Client, Context, Onward, Retry

app = Onward()


def live() -> list[str]:
    """Services, in the order in which they went live. (A file stands for the outside world.)"""
    world = _world()
    return world.read_text().split() if world.exists() else []


def _world() -> Path:
    return Path(os.environ.get("FRIDAY", "friday.log"))


async def build(service: str) -> str:
    return f"{service}:latest"


async def roll_out(image: str) -> str:
    await asyncio.sleep(float(os.environ.get("ROLL_OUT_S", "0.01")))
    with _world().open("a") as world:
        world.write(f"{image.partition(':')[0]}\n")
    return f"{image} is live"


async def is_live(image: str) -> str | None:
    return f"{image} is live" if image.partition(":")[0] in live() else None


@app.task(retry=Retry(attempts=3), deadline="10m")
async def deploy(ctx: Context, service: str) -> str:
    """Build and roll out, with progress."""
    ctx.progress("building", 1, 2)
    image = await ctx.step(build, service)
    ctx.progress("rolling out", 2, 2)
    return await ctx.step(roll_out, image, reconcile=is_live)


async def evening(target: Onward | Client, services: int = 200) -> list[Any]:
    """Submit all deploys, to an app or over HTTP. Each submit returns at once; the workers do the work."""
    submits = [target.submit("deploy", f"service-{n}", key=f"friday-{n}") for n in range(services)]
    routine = await asyncio.gather(*submits)
    return [await target.submit("deploy", "hotfix", key="hotfix-4711", priority=10), *routine]


async def main() -> None:
    async with app:
        tasks = await evening(app)
        async with app.worker(slots=5):
            print(await tasks[0].result(timeout="1m"), f"({len(live()) - 1} went live before it)")
            for task in tasks:
                await task.result(timeout="5m")
        print(f"{len(tasks)} deploys, none lost")


async def over_http(url: str) -> None:
    async with Client(url) as client:
        hotfix, *others = await evening(client)
        async for update in hotfix.follow():
            print(f"hotfix: {update.step} of {update.total_step}, {update.status} {update.message}")
        await asyncio.gather(*(task.result(timeout="5m") for task in others))
        print(f"{len(others) + 1} deploys, none lost")


if __name__ == "__main__":
    asyncio.run(over_http(sys.argv[1]) if sys.argv[1:] else main())
