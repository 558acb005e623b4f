"""An app for processes of their own: a secret from the environment, a secret that a step makes, and a step in which the process
is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from onward import Onward

app = Onward()
KEY = app.secret("STRIPE_KEY")
DIARY = Path(os.environ.get("DIARY", "/dev/null"))


def login(key: str) -> str:
    _write(f"login {key}")
    return f"session-for-{len(key)}"


def charge(token: str, key: str, amount: int) -> str:
    _write(f"charge {token} {key} {amount}")
    if amount == 2 and os.environ.get("DIE") == "yes":
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"charged {amount} with {key} and {token}", flush=True)
    return f"{amount} with {key} and {token}"


def _write(line: str) -> None:
    with DIARY.open("a", encoding="utf-8") as diary:
        diary.write(f"{line}\n")


@app.task
async def pay(ctx: Any, key: SecretStr) -> Any:
    """Log in, and pay three times."""
    session = await ctx.step(login, KEY, makes="SESSION")
    done = [await ctx.step(charge, session, KEY, amount) for amount in (1, 2, 3)]
    return [*done, key]
