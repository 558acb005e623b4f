"""A worker in a process of its own, for tests that kill it: `python -m tests.encryption.crew URL`. Its keys are in the environment."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from onward import Onward

LABEL = "person"
NAME_LENGTH = 40
"""Times that an artifact repeats its word."""


def build(url: str, **settings: Any) -> Onward:
    """The app of the workers and of the client: its tasks use steps, artifacts, children and signals."""
    app = Onward(url, encryption_label=LABEL, lease_s=2.0, heartbeat_s=0.2, poll_s=0.05, **settings)

    @app.task
    async def order(ctx: Any, number: int) -> list[Any]:
        word = await ctx.step(_word, number, name="word")
        artifact = await ctx.artifact(artifact_of(number))
        child = await ctx.submit("leaf", word)
        signal_value = await ctx.signal("go")
        result = await child.result()
        again = await ctx.step(_word, number, name="again")
        return [word, again, signal_value, result, artifact.artifact_id]

    @app.task
    async def leaf(ctx: Any, word: str) -> str:
        await ctx.sleep(0.02)
        return str(await ctx.step(word.upper, name="upper"))

    return app


def artifact_of(number: int) -> str:
    """The text that the order of this number leaves as an artifact."""
    return f"artifact {number} " * NAME_LENGTH


def expected(number: int) -> list[str]:
    """The result of the order of this number, without the id of its artifact."""
    word = f"word {number}"
    return [word, word, f"go {number}", word.upper()]


async def _word(number: int) -> str:
    await asyncio.sleep(0.002)
    return f"word {number}"


async def main(url: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with build(url).worker(slots=20):
        print("ready")
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
