"""An app that prints to stdout, where only the protocol may be."""

from __future__ import annotations

from typing import Any

from onward import Onward

print("imported")
app = Onward(poll_s=0.05)


@app.task
async def shout(ctx: Any, word: str) -> str:
    """Say it louder."""
    print("shouting", word, flush=True)
    return word.upper()
