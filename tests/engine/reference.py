"""The reference task: ten steps of all kinds that can go wrong when their worker dies.

A keyed effect, one that must happen once and has no key, a question, a child, a timer, a transactional step, two branches
with steps of one name. The world outside is a ledger file that survives any process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onward import Onward
from rig.ledger import Ledger


def make(app: Onward, home: Path) -> Onward:
    """The handlers of the reference task, with their world in this folder."""
    world = Ledger(home / "world")

    @app.task(retry=1)
    async def helper(ctx: Any, n: int) -> int:
        async def work() -> int:
            world.write("child", ctx.key)
            return n + 1

        return int(await ctx.step(work))

    @app.task(retry=1)
    async def reference(ctx: Any) -> dict[str, Any]:
        async def keyed(name: str) -> str:
            world.write(name, ctx.key)
            return name

        async def unkeyed() -> str:
            world.write("unkeyed", "")
            return "sent"

        async def book(connection: Any) -> int:
            await connection.execute("INSERT INTO bookings (task) VALUES ($1)", ctx.task_id)
            return int(await connection.fetchval("SELECT count(*) FROM bookings WHERE task = $1", ctx.task_id))

        async def branch(letter: str) -> str:
            async def step(n: int) -> str:
                return f"{letter}{n}"

            return str(await ctx.step(step, 1) + await ctx.step(step, 2))

        results: dict[str, Any] = {"first": await ctx.step(keyed, "first")}
        results["charge"] = await ctx.step(unkeyed, effect="once")
        results["answer"] = await ctx.ask("Go on?")
        child = await ctx.submit("helper", 1)
        results["branches"] = await ctx.gather(branch("a"), branch("b"))
        results["child"] = await child
        await ctx.sleep(0.01)
        results["booked"] = await ctx.transaction(book)
        results["last"] = await ctx.step(keyed, "last")
        return results

    return app


RESULT = {
    "first": "first",
    "charge": "sent",
    "answer": "yes",
    "branches": ["a1a2", "b1b2"],
    "child": 2,
    "booked": 1,
    "last": "last",
}

if home := os.environ.get("REFERENCE_HOME"):
    app = make(Onward(), Path(home))
