"""An app for worker processes: an agent whose model fails in several ways, and then answers.

The model notes each attempt in a file, so that it knows which one this is, whichever process it is in.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from onward import Onward, Retry
from onward.agent.model import ModelUnavailable, Reply, Request

HOME = Path(os.environ.get("OUTSIDE_HOME", "."))
FAILURES = int(os.environ.get("OUTSIDE_FAILURES", "4"))
GOOD = " ".join(f"word{number}" for number in range(12))
WAYS = ("error", "kill", "pause", "error", "wait")

app = Onward(lease_s=1.0, heartbeat_s=0.2, poll_s=0.05, grace_s=1.0)


class Unlucky:
    """A model that emits some text and breaks off several times, and then emits all of it."""

    name = "unlucky"

    async def ask(self, request: Request, emit: Any) -> Reply:
        """One attempt."""
        attempt = _noted("attempts")
        for word in GOOD.split()[:8]:
            await asyncio.sleep(0.1)
            emit(f"bad{attempt} " if attempt <= FAILURES else f"{word} ")
        if attempt <= FAILURES:
            await self._fail(WAYS[attempt % len(WAYS)])
        return Reply(GOOD)

    async def _fail(self, way: str) -> None:
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "pause":
            _noted("pause")
            await asyncio.sleep(1.5)  # meanwhile the task is paused
        error = ModelUnavailable(self.name, "it broke off")
        error.retry_after = 0.05 if way == "error" else 1.2  # type: ignore[attr-defined]
        raise error


def _noted(name: str) -> int:
    with (HOME / name).open("ab") as file:
        file.write(b".")
    return (HOME / name).stat().st_size


app.agent("talker", model=Unlucky(), retry=Retry(attempts=10_000, first=0.05, cap=0.05))
