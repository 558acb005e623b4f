"""An app for worker processes: an agent that books, and undoes its bookings when its run fails.

The world is a file of lines. A booking has a number of its own, so that booking or cancelling it twice is once. Each run kills its
worker with -9 once: at one of its bookings or cancellations, right before it, right after it, or when all is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

from onward import Context, Onward, tool
from onward.agent.model import Reply, Request, ToolCall
from onward.agent.policy import Stop, usual

HOME = Path(os.environ.get("OUTSIDE_HOME", "."))
BOOKINGS = ("flight", "hotel", "car", "dinner")

app = Onward(lease_s=1.0, heartbeat_s=0.2, poll_s=0.05, grace_s=1.0)


async def _does(event: str, number: str) -> None:
    """Writes the event into the world, and kills the process where this run has to die."""
    task_id, _, name = number.partition("/")
    draw = random.Random(task_id)
    dies_here = draw.choice(("booked", "cancelled")) == event and draw.choice(BOOKINGS) == name
    when = draw.choice(("before", "after", "later")) if dies_here else ""
    if when == "before":
        _dies(task_id)
    with (HOME / "world").open("ab", buffering=0) as file:
        file.write(f"{event} {number}\n".encode())
    await asyncio.sleep(0.02)
    if when == "after":
        _dies(task_id)
    elif when == "later":
        asyncio.get_running_loop().call_later(draw.uniform(0, 0.1), _dies, task_id)


def _dies(task_id: str) -> None:
    with contextlib.suppress(FileExistsError):
        (HOME / f"killed-{task_id}").touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)


async def cancel(name: str, result: Any) -> str:
    """Take a booking back."""
    await _does("cancelled", result["number"])
    return f"{name} is cancelled"


@tool(risk="external_action", idempotent=True, undo=cancel)
async def book(ctx: Context, name: str) -> dict[str, str]:
    """Book it."""
    number = f"{ctx.task_id}/{name}"
    await _does("booked", number)
    return {"number": number}


class Clerk:
    """A model that books one after the other, and then hangs in the runs that are to be cancelled or to run out of time."""

    name = "clerk"

    async def ask(self, request: Request, emit: Any) -> Reply:
        """The next booking."""
        await asyncio.sleep(0.03)
        turn = sum(message["role"] == "assistant" for message in request.messages)
        if not request.tools:  # the last question, on a machine that was slow
            await asyncio.sleep(3600)
        if turn < len(BOOKINGS):
            call = ToolCall(f"c{turn}", "book", f'{{"name": "{BOOKINGS[turn]}"}}')
            return Reply(f"I book {BOOKINGS[turn]}.", (call,), finish="tool_calls")
        if str(request.messages[1]["content"]).startswith(("hang", "cancel")):
            await asyncio.sleep(3600)
        return Reply("all is booked")


def _gives_up(seen: Any) -> Any:
    fails = "fail" in seen.state.goal and seen.reply is not None and not seen.reply.calls
    return Stop("the customer has no money") if fails else usual(seen)


app.agent("trip", model=Clerk(), tools=[book], policy=_gives_up, undo=True)
