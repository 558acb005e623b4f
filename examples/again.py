"""Repeated, and still done once: retries with backoff, idempotency keys, and going on from the step that failed.

$ onward worker examples.again:app
$ onward submit fetch --follow                            tries again after 1, 2 and 4 seconds
$ onward submit create '"report.txt"' --key report --wait
$ onward submit create '"report.txt"' --key report --wait  the same task: nothing is done again
$ onward submit publish '"report.txt"' --follow           fails in its second step, where there is no paper
$ touch paper && onward resume ID                         and goes on there
"""

from __future__ import annotations

from pathlib import Path

from onward import Context, Fatal, Onward, Retry

app = Onward()
CALLS: list[str] = []
"""The functions that were really called in this process."""


@app.task(retry=1)
async def fetch(ctx: Context, away: int = 3) -> str:
    """Call a service that is away for the first attempts. There is no pause after the last one."""

    async def get() -> str:
        CALLS.append("get")
        if CALLS.count("get") <= away:
            raise ConnectionError("the service is away")
        return "the answer"

    return await ctx.step(get, retry=Retry(attempts=4, first="1s", factor=2, jitter=0))


def write_if_missing(path: str, text: str) -> str:
    """Create a file. It may be called again after a crash, so it looks first."""
    CALLS.append("write")
    if Path(path).exists():
        return f"{path} is there"
    Path(path).write_text(text, encoding="utf-8")
    return f"{path} was created"


@app.task
async def create(ctx: Context, path: str) -> str:
    """Create a file once, however often the task is submitted with the same key."""
    await ctx.step(write_if_missing, path, "a report\n")
    return path


def print_out(path: str) -> str:
    """Print a file. Without paper no retry can help: a person has to bring some first."""
    CALLS.append("print")
    if not Path(path).with_name("paper").exists():
        raise Fatal("there is no paper")
    return f"{path} is printed"


@app.task
async def publish(ctx: Context, path: str) -> str:
    """Two steps. A resume does not run the first one again."""
    await ctx.step(write_if_missing, path, "a report\n")
    return await ctx.step(print_out, path)
