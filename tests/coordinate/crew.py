"""Processes that hold locks: `python -m tests.coordinate.crew MODE DATABASE COORDINATOR RESOURCE …`.

hold COUNT            takes the lock COUNT times; in each turn it waits for the file `go-PID-TURN`, and writes to the resource with its token
work [FAULT]          a worker whose task writes inside `ctx.lock`, when the file `go-PID-TOKEN` is there
turns CONTENDERS N    so many contenders take N turns each
lead                  leads when it can, and writes to the resource with the token of its term
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from onward import Onward
from onward.engine.shift.locks import LockBlock

TTL_S = 1.0


class Resource:
    """A file that refuses a token smaller than the largest that it has seen, and two writers at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS seen (largest INTEGER, inside TEXT)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS writes (token INTEGER, who TEXT, at REAL)")
        self._connection.execute("INSERT INTO seen SELECT 0, NULL WHERE NOT EXISTS (SELECT 1 FROM seen)")

    def write(self, token: int, who: str) -> bool:
        """Write with a token; False when it is refused."""
        self._connection.execute("BEGIN IMMEDIATE")
        changed = self._connection.execute(
            "UPDATE seen SET largest = ? WHERE largest <= ?", (int(token), int(token))
        ).rowcount
        if changed:
            self._connection.execute("INSERT INTO writes VALUES (?, ?, ?)", (int(token), who, time.time()))
        self._connection.execute("COMMIT")
        return bool(changed)

    def enter(self, who: str) -> bool:
        return bool(self._connection.execute("UPDATE seen SET inside = ? WHERE inside IS NULL", (who,)).rowcount)

    def leave(self, who: str) -> bool:
        return bool(self._connection.execute("UPDATE seen SET inside = NULL WHERE inside = ?", (who,)).rowcount)

    def writes(self) -> list[tuple[int, str, float]]:
        return list(self._connection.execute("SELECT token, who, at FROM writes ORDER BY rowid"))


def go_file(resource: Resource, what: object) -> Path:
    return Path(resource.path).parent / f"go-{os.getpid()}-{what}"


async def until_told(resource: Resource, what: object) -> None:
    """Wait for the file with which the test says: go on."""
    while not go_file(resource, what).exists():  # noqa: ASYNC110 -- another process makes it
        await asyncio.sleep(0.005)


async def hold(app: Onward, resource: Resource, count: str) -> None:
    for turn in range(int(count)):
        async with app.lock("deploy", ttl=TTL_S) as lock:
            print(f"held {lock.token}")
            await until_told(resource, turn)
            print("accepted" if resource.write(lock.token, str(os.getpid())) else "refused")


async def work(app: Onward, resource: Resource, fault: str = "") -> None:
    if fault:
        _plant_token_per_holder()

    def write(fence: int) -> bool:
        """In a thread: a worker that wakes cannot cancel it, as it cannot call back a request that is on its way."""
        print(f"in {fence}")
        while not go_file(resource, fence).exists():
            time.sleep(0.005)
        accepted = Resource(resource.path).write(fence, str(os.getpid()))
        print("accepted" if accepted else "refused")
        return accepted

    @app.task(name="deploy", retry=1)
    async def deploy(ctx: Any) -> bool:
        async with ctx.lock("deploy") as lock:
            return bool(await ctx.step(write, fence=lock.token))

    async with app.worker(slots=1):
        print("ready")
        await asyncio.sleep(3600)


async def turns(app: Onward, resource: Resource, contenders: str, count: str) -> None:
    async def contend(who: str) -> None:
        for _ in range(int(count)):
            async with app.lock("deploy", ttl="30s", timeout="10m") as lock:
                if not resource.enter(who) or not resource.write(lock.token, who) or not resource.leave(who):
                    print(f"TWO AT ONCE {who} {lock.token}")

    await asyncio.gather(*[contend(f"{os.getpid()}.{number}") for number in range(int(contenders))])
    print("all served")


async def lead(app: Onward, resource: Resource) -> None:
    print("ready")
    while True:
        async with app.leader("poller", ttl=TTL_S) as term:
            print(f"leads {term.token}")
            while not term.lost.is_set():
                resource.write(term.token, str(os.getpid()))
                await asyncio.sleep(0.02)
            print(f"lost {term.token}")


def _plant_token_per_holder() -> None:
    """The fault: a new shift in the block uses the token of the shift before."""
    enter = LockBlock._enter

    async def token_per_holder(self: LockBlock, known: Any) -> int:
        if known is not None and "token" in known.data:
            return int(known.data["token"])
        return await enter(self, known)

    LockBlock._enter = token_per_holder  # type: ignore[method-assign]


async def main(mode: str, database: str, coordinator: str, resource: str, *more: str) -> None:
    app = Onward(database, coordinator=coordinator, lease_s=TTL_S, heartbeat_s=0.2, poll_s=0.1)
    modes: dict[str, Any] = {"hold": hold, "work": work, "turns": turns, "lead": lead}
    async with app:
        await modes[mode](app, Resource(resource), *more)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
