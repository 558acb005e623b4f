"""Friday evening: two hundred deploys arrive at once, and a hotfix behind them. Nothing is lost, and the hotfix goes first.

    $ python -m examples.friday
    $ onward worker examples.friday:app --slots 5     # as many of these as you like, wherever you like
    $ onward list --task deploy

The queue is bounded (ONWARD_QUEUE_LIMIT): what is too much is refused at submit, with the time to come back. The same key is the
same deploy, however often somebody who sees no progress sends it again.
"""

from __future__ import annotations

import asyncio

from onward import Context, Handle, Onward, Retry

app = Onward()
DONE: list[str] = []
"""Services, in the order in which they went live here."""


async def build(service: str) -> str:
    return f"{service}:latest"


async def roll_out(image: str) -> str:
    await asyncio.sleep(0.01)
    DONE.append(image.partition(":")[0])
    return f"{image} is live"


@app.task(retry=Retry(attempts=3), deadline="10m")
async def deploy(ctx: Context, service: str) -> str:
    """Build and roll out; everybody sees how far it is."""
    ctx.progress("building", 1, 2)
    image = await ctx.step(build, service)
    ctx.progress("rolling out", 2, 2)
    return await ctx.step(roll_out, image)


async def evening(app: Onward, services: int = 200) -> list[Handle]:
    """What arrives. The answers come at once; the work is for the workers."""
    routine = [await app.submit(deploy, f"service-{n}", key=f"friday-{n}") for n in range(services)]
    return [await app.submit(deploy, "hotfix", key="hotfix-4711", priority=10), *routine]


async def main() -> None:
    async with app:
        tasks = await evening(app)
        async with app.worker(slots=5):
            print(await tasks[0].result(timeout="1m"), f"({len(DONE) - 1} went live before it)")
            for task in tasks:
                await task.result(timeout="5m")
        print(f"{len(tasks)} deploys, none lost")


if __name__ == "__main__":
    asyncio.run(main())
