"""An app for the console to show: steps that come one by one, approvals, a worker that dies, and an agent whose texts are all
hostile."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from onward import ApprovalRule, Budget, Context, Onward, tool
from onward.agent.models.scripted import ScriptedModel

app = Onward(approval_rules=[ApprovalRule(risks=["two of them"], votes=2)])

HTML = "<img src=x onerror=window.__ran=1><script>window.__ran=1</script><b>bold</b>"
ADDRESS = "javascript:window.__ran=1"
ANSI = "\x1b[31mred\x1b]0;title\x07"
BIDI = "safe\u202egnp.exe\u2066\u200b"
CLOSING = "</script></pre></textarea>'\"`><svg onload=window.__ran=1>"
HOSTILE = {"html": HTML, "address": ADDRESS, "ansi": ANSI, "bidi": BIDI, "closing": CLOSING}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="window.__ran=1"><script>window.__ran=1</script></svg>'


class Line(BaseModel):
    """A line of an order."""

    sku: str
    count: int = Field(default=1, ge=1, le=9)


@app.task
async def order(
    ctx: Context, name: str, lines: list[Line], speed: Literal["slow", "fast"] = "slow", gift: bool = False
) -> dict[str, Any]:
    """Pack an order."""
    for line in lines:
        await ctx.step(lambda sku=line.sku, count=line.count: f"{count} × {sku}", name=f"pack {line.sku}")
    return {"name": name, "lines": len(lines), "speed": speed, "gift": gift}


def gate(name: str) -> Path:
    return Path(os.environ["STAGE"]) / name


@app.task
async def rows(ctx: Context, name: str, count: int) -> int:
    """Steps that come one by one, each when the test has created its file."""

    async def row(n: int) -> int:
        while not gate(f"{name}-{n}").exists():  # noqa: ASYNC110 -- another process makes it
            await asyncio.sleep(0.02)
        return n

    for n in range(count):
        await ctx.step(row, n, name=f"row {n}")
    return count


@app.task
async def many(ctx: Context, count: int) -> int:
    """A task with this number of records."""

    async def record(n: int) -> None:
        await ctx.step(lambda: None, name=f"record {n}")

    for n in range(0, count - 1, 500):  # side by side, so that they share their commits
        await ctx.gather(*[record(m) for m in range(n, min(n + 500, count - 1))])
    await record(count - 1)  # alone, so that a test knows which record is the last
    return count


@app.task
async def pay(ctx: Context, usd: int) -> str:
    """A payment that needs an approval."""
    await ctx.step(lambda: "reserved", name="reserve")
    await ctx.approve(f"Pay ${usd}?", risk="external_action", timeout="1d")
    return "paid"


@app.task
async def wire(ctx: Context, usd: int) -> str:
    """A payment that two callers have to allow."""
    await ctx.approve(
        f"Wire ${usd}?", risk="two of them", data={"tool": "wire", "call": "1", "arguments": {"usd": usd}}
    )
    return "wired"


@app.task(retry=1)
async def breaks(ctx: Context, text: str) -> None:
    """Fails with its input as the message."""
    await ctx.step(lambda: text, name=text[:60])
    raise LookupError(text)


@app.task(retry=1)
async def snaps(ctx: Context) -> None:
    """Fails in a step."""

    def charge() -> None:
        raise OSError("no network")

    await ctx.step(charge, retry=1)


@app.task
async def swells(ctx: Context) -> str:
    """Ten megabytes, wherever there is room for them."""
    text = "x" * 10_000_000 + HTML
    await ctx.step(lambda: text, name="swell")
    await ctx.artifact(text, type="text", summary="much")
    return text


@app.task
async def gallery(ctx: Context) -> int:
    """Leaves artifacts that are images, and artifacts that only claim to be images."""
    left = {
        "image/svg+xml": SVG,
        "text/html": HTML.encode(),
        "image/png": b"\x89PNG\r\n\x1a\n" + HTML.encode(),
        HTML: PIXEL,
        "x/y": bytes(range(256)),
    }
    for type_, data in left.items():
        await ctx.artifact(data, type=type_, summary=f"{type_} {HTML} {BIDI}")
    return len(left)


@tool
def look(what: str) -> str:
    """Look at something."""
    return f"{HTML} {what} {ANSI} {BIDI}"


def script() -> list[Any]:
    facts = [{"key": HTML, "value": CLOSING, "source": ADDRESS}]
    return [
        [
            ("update_plan", {"plan": [HTML, BIDI]}),
            *[("record_fact", fact) for fact in facts],
            ("look", {"what": CLOSING}),
        ],
        f"{HTML} {CLOSING} {ANSI} {BIDI}",
    ]


app.agent("villain", model=ScriptedModel(script()), instructions=HTML, tools=[look], budget=Budget(max_steps=9))
app.agent("poor", model=ScriptedModel([[("look", {"what": "up"})]]), tools=[look], budget=Budget(max_steps=1))
