"""A database that is worth looking at, made by really running things: agents with scripted models, a shop, a saga that is
undone, a worker that is killed, people who are asked.

    python -m rig.showcase FOLDER            fill FOLDER/showcase.db, and end
    python -m rig.showcase FOLDER --serve    and then serve it at http://127.0.0.1:8765, with a worker beside it

Nothing is written into the journal by hand: every record is there because it happened. It makes the pictures of the README, and is
what the tests of the console look at.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from onward import Budget, Context, Onward, tool
from onward.agent.model import Emit, Reply, Request, ToolCall, Usage
from onward.agent.models.scripted import ScriptedModel
from onward.agent.prices import Prices

DATABASE = os.environ.get("SHOWCASE_DB", "sqlite:///showcase.db")
PACE = float(os.environ.get("SHOWCASE_PACE", "1"))
"""How much slower than necessary everything is: people watch it."""

app = Onward(DATABASE)


async def takes(seconds: float) -> None:
    await asyncio.sleep(seconds * PACE)


# ── a shop ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Item(BaseModel):
    """One line of an order."""

    sku: str = Field(examples=["shirt-blue"])
    count: Annotated[int, Field(ge=1, le=99)] = 1


@app.task(name="order.fulfil", retry=2)
async def fulfil(
    ctx: Context,
    order: str,
    items: list[Item],
    shipping: Literal["standard", "express"] = "standard",
    gift: bool = False,
) -> dict[str, Any]:
    """Charge, pack and ship an order; if it cannot be shipped, everything is undone."""
    rng = random.Random(order)

    async def reserve(sku: str) -> str:
        await takes(rng.uniform(0.05, 0.2))
        return f"{sku}: shelf {rng.randrange(40)}"

    async def release(sku: str) -> None:
        await takes(0.08)

    async def charge() -> dict[str, Any]:
        await takes(0.25)
        return {"receipt": f"rc_{order}", "usd": 19.9 * sum(item.count for item in items)}

    async def refund() -> None:
        await takes(0.2)

    async def book_courier() -> str:
        await takes(0.15)
        if order.endswith("13"):
            raise ConnectionError("courier: no van goes to this address")
        return f"{'EX' if shipping == 'express' else 'ST'}-{rng.randrange(10**6)}"

    async with ctx.saga():
        for item in items:
            await ctx.step(reserve, item.sku, name=f"reserve {item.sku}", undo=release)
        receipt = await ctx.step(charge, undo=refund)
        parcel = await ctx.step(book_courier, retry=3)
    await ctx.step(lambda: takes(0.1), name="send confirmation")
    return {"receipt": receipt["receipt"], "parcel": parcel}


flaky: dict[str, int] = {}


@app.task(name="invoice.send", retry=1)
async def invoice(ctx: Context, customer: str, month: str) -> str:
    """Make an invoice and mail it."""

    async def render() -> str:
        await takes(0.2)
        return f"{customer}-{month}.pdf"

    async def mail(name: str) -> str:
        flaky[customer] = flaky.get(customer, 0) + 1
        await takes(0.15)
        if flaky[customer] < 3 and customer.startswith("a"):
            raise ConnectionError("smtp: connection reset by peer")
        if customer == "nobody":
            raise LookupError("nobody has no mail address")
        return f"sent {name}"

    name = await ctx.step(render)
    return await ctx.step(mail, name, retry=3)


@app.task(name="report.nightly")
async def nightly(ctx: Context, region: str, shops: int = 6) -> dict[str, Any]:
    """Gather the numbers of all shops of a region."""

    async def count(shop: int) -> int:
        await takes(0.1 + (shop % 4) * 0.12)
        return 100 + shop * 7

    ctx.progress("counting", step=1, total=3)
    counts = await ctx.map(count, list(range(shops)), limit=3)
    ctx.progress("adding up", step=2, total=3)
    total = await ctx.step(lambda: sum(counts), name="add up")
    ctx.progress("done", step=3, total=3)
    return {"region": region, "total": total}


@app.task(name="payout.run")
async def payout(ctx: Context, batch: str, usd: float) -> str:
    """Pay a batch of sellers. A person says yes above $1,000, and the transfer is never repeated silently."""
    if usd > 1000:
        await ctx.approve(f"Pay {batch}: ${usd:,.2f}?", risk="external_action", timeout="2d")

    async def transfer() -> str:
        await takes(0.1)
        if batch == "B-77":
            raise TimeoutError("the bank did not answer in time")
        return f"tr_{batch}"

    return await ctx.step(transfer, effect="once")


@app.task(name="onboard.seller")
async def onboard(ctx: Context, seller: str) -> str:
    """Ask for papers, check them, open the shop."""
    await ctx.step(lambda: takes(0.05), name="open file")
    size = await ctx.ask(
        f"Which plan does {seller} get?", choices=["Starter", "Growth", "Scale"], timeout="3d", default="Starter"
    )
    await ctx.sleep("30 d")
    return f"{seller} on {size}"


@app.task(name="import.catalog")
async def catalog(ctx: Context, url: str, rows: int = 40) -> int:
    """Read a catalog, row by row."""
    for row in range(rows):
        await ctx.step(lambda: takes(0.004), name=f"row {row}")
    return rows


@app.task(name="cleanup.images")
async def cleanup(ctx: Context, bucket: str) -> int:
    """Delete what nobody refers to any more; waits for the signal that the backup is done."""
    await ctx.signal("backup-done", timeout="7d", default=None)
    return 0


# ── agents ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Speaking(ScriptedModel):
    """A scripted model that takes its time and knows what it costs."""

    prices = Prices(3.0, 15.0)

    async def ask(self, request: Request, emit: Emit) -> Reply:
        reply = await super().ask(request, lambda _: None)
        for word in reply.text.split(" "):
            emit(f"{word} ")
            await takes(0.03)
        await takes(0.3)
        return reply


def says(text: str, *calls: tuple[str, str]) -> Any:
    def line(request: Request) -> Reply:
        turn = sum(message["role"] == "assistant" for message in request.messages)
        size = sum(len(str(message.get("content"))) for message in request.messages)
        made = tuple(ToolCall(f"call_{turn}_{n}", name, arguments) for n, (name, arguments) in enumerate(calls))
        usage = Usage(900 + size // 4, len(text) // 4 + 30 * len(made) + 5)
        return Reply(text, made, usage, "tool_calls" if made else "stop")

    return line


@tool
async def search_tickets(query: str, most: int = 5) -> list[dict[str, Any]]:
    """Search the support tickets."""
    await takes(0.3)
    words = [
        "cannot sign in after the update",
        "sign-in loops on Android",
        "2FA code never arrives",
        "session ends at once",
        "blank page after sign-in",
    ]
    return [{"ticket": 4100 + n, "title": words[n % 5], "age_days": n + 1} for n in range(most)]


@tool
async def read_logs(service: str, minutes: int = 30) -> str:
    """The last lines of a service's log."""
    await takes(0.25)
    rows = [
        f"12:{n:02}:07 WARN  auth  token rejected: clock skew of {300 + n} s (node auth-{n % 3})" for n in range(24)
    ]
    return "\n".join(rows)


@tool
async def plot(metric: str) -> bytes:
    """Draw a metric of the last day as a picture."""
    await takes(0.2)
    return picture(160, 60)


@tool(risk="external_action", idempotent=True)
async def restart_service(ctx: Context, service: str, nodes: list[str]) -> str:
    """Restart a service on these nodes, one after the other."""
    await takes(0.5)
    return f"{service} restarted on {', '.join(nodes)}"


@tool(risk="external_action", idempotent=True)
async def send_email(ctx: Context, to: str, subject: str, body: str) -> str:
    """Send a mail."""
    await takes(0.2)
    return "sent"


PLAN = '{"plan": ["Find out what people report", "Read the logs of the auth service", "Restart the nodes with a wrong clock", "Tell the team"]}'
TRIAGE = [
    says(
        "I begin with what people report, and then look at the service itself.",
        ("update_plan", PLAN),
        ("search_tickets", '{"query": "sign in", "most": 5}'),
    ),
    says(
        "Five tickets in two days, all about **sign-in**. The titles differ, the cause may not: tokens that are refused. I look into the logs of `auth`.",
        ("read_logs", '{"service": "auth", "minutes": 30}'),
        ("plot", '{"metric": "auth.rejected"}'),
    ),
    says(
        "The clock of one node is off by five minutes, so it takes fresh tokens for expired ones.",
        (
            "record_fact",
            '{"key": "cause", "value": "auth-2: clock skew of about 300 s since 12:00", "source": "read_logs"}',
        ),
        ("record_fact", '{"key": "tickets", "value": [4100, 4101, 4102, 4103, 4104], "source": "search_tickets"}'),
    ),
    says(
        "A restart makes the node fetch the time anew. That touches production, so somebody has to allow it.",
        ("restart_service", '{"service": "auth", "nodes": ["auth-2"]}'),
    ),
    says(
        "The node is back with the right time. I tell the team what happened.",
        (
            "send_email",
            '{"to": "oncall@example.com", "subject": "auth-2: clock skew, restarted", "body": "auth-2 refused fresh tokens because its clock was 300 s behind. It was restarted; tickets 4100-4104 can be closed."}',
        ),
    ),
    says(
        "The cause of all five tickets was a clock that ran 300 s behind on auth-2. The node was restarted and takes tokens again; on-call was told, and tickets 4100–4104 can be closed."
    ),
]
RESEARCH = [
    says(
        "I split this: one look at prices, one at reviews.",
        ("update_plan", '{"plan": ["Collect prices", "Read reviews", "Compare"]}'),
        ("search_tickets", '{"query": "price", "most": 3}'),
    ),
    says(
        "",
        ("read_logs", '{"service": "prices"}'),
        ("record_fact", '{"key": "cheapest", "value": "Nordlicht, 39.90", "source": "read_logs"}'),
    ),
    says(
        "Nordlicht is the cheapest at 39.90 and has the best reviews; Brise costs 8 more and is delivered a day sooner."
    ),
]
ENDLESS = [
    says(f"Page {n + 1} read. There is more.", ("search_tickets", f'{{"query": "page {n + 1}"}}')) for n in range(30)
]


app.agent(
    "support.triage",
    model=Speaking(TRIAGE, "demo-large"),
    instructions="You find out why people cannot use the product, and put it right. Look before you touch anything.",
    tools=[search_tickets, read_logs, plot, restart_service, send_email],
    approve=["external_action"],
    budget=Budget(max_steps=40, max_llm_tokens=60_000, max_cost_usd=0.50),
)
app.agent(
    "market.research",
    model=Speaking(RESEARCH, "demo-small"),
    instructions="You compare offers.",
    tools=[search_tickets, read_logs],
    budget=Budget(max_llm_tokens=40_000),
)
app.agent(
    "archive.reader",
    model=Speaking(ENDLESS, "demo-small"),
    instructions="You read everything.",
    tools=[search_tickets],
    budget=Budget(max_steps=6),
)


@app.task(name="launch.plan")
async def launch(ctx: Context, product: str) -> dict[str, Any]:
    """Have the market looked at and a report made, side by side."""
    await ctx.step(lambda: takes(0.1), name="collect briefs")
    research = await ctx.submit("market.research", f"Compare {product} with what others sell")
    numbers = await ctx.submit("report.nightly", {"region": "north", "shops": 4})
    found = await ctx.gather(research, numbers)
    await ctx.step(lambda: takes(0.15), name="write summary")
    return {"research": found[0], "numbers": found[1]}


def picture(width: int, height: int) -> bytes:
    """A small PNG: bars that rise."""
    rng = random.Random(7)
    heights = [int(height * min(1, 0.15 + x / width * rng.uniform(0.5, 1.1))) for x in range(0, width, 8)]
    rows = b"".join(
        b"\0"
        + b"".join(
            b"\x2f\x5f\xd0" if height - y < heights[x // 8] and x % 8 < 6 else b"\xf4\xf4\xf2" for x in range(width)
        )
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


# ── making it ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fill() -> dict[str, str]:
    """Run all of it. Returns the ids of what is worth a look."""
    shown: dict[str, str] = {}
    async with app:
        crashing = await app.submit(
            "import.catalog", {"url": "https://example.com/catalog.csv", "rows": 600}, labels={"team": "catalog"}
        )
        shown["crash"] = crashing.id
        await _killed(crashing.id)
        async with app.worker(slots=8):
            shown |= await _submit_all()
            await _settled(shown)
        for n in range(5):  # with nobody there to start them
            await app.submit(
                "invoice.send", {"customer": f"zeta-{n}", "month": "2026-12"}, labels={"team": "billing"}, priority=-n
            )
        await app.submit("report.nightly", {"region": "west"}, delay="6h", labels={"team": "numbers"})
    return shown


async def _submit_all() -> dict[str, str]:
    ids: dict[str, str] = {}

    async def submit(name: str, task: str, given: Any, **options: Any) -> None:
        ids[name] = (await app.submit(task, given, **options)).id

    for n in range(8):
        await submit(
            f"order{n}",
            "order.fulfil",
            {"order": f"A-10{n}", "items": [{"sku": "shirt-blue", "count": n % 3 + 1}, {"sku": "mug", "count": 1}]},
            key=f"order:A-10{n}",
            labels={"team": "shop", "channel": "web" if n % 2 else "app"},
        )
    await submit(
        "undone",
        "order.fulfil",
        {"order": "A-113", "items": [{"sku": "lamp", "count": 1}, {"sku": "bulb", "count": 4}], "shipping": "express"},
        key="order:A-113",
        labels={"team": "shop", "channel": "web"},
    )
    for n, customer in enumerate(("acme", "birch", "cedar", "dorn", "nobody")):
        await submit(
            f"invoice-{customer}",
            "invoice.send",
            {"customer": customer, "month": "2026-11"},
            labels={"team": "billing"},
            priority=n,
        )
    for region in ("north", "south", "east"):
        await submit(f"report-{region}", "report.nightly", {"region": region}, labels={"team": "numbers"})
    await submit("launch", "launch.plan", {"product": "a lamp that dims with the sun"}, labels={"team": "market"})
    await submit("doubt", "payout.run", {"batch": "B-77", "usd": 420.0}, labels={"team": "finance"})
    await submit("approval", "payout.run", {"batch": "B-78", "usd": 18_250.0}, labels={"team": "finance"}, priority=5)
    await submit("question", "onboard.seller", {"seller": "Birch & Daughters"}, labels={"team": "sellers"})
    await submit("asleep", "onboard.seller", {"seller": "Old Mill"}, labels={"team": "sellers"})
    await submit("signal", "cleanup.images", {"bucket": "eu-images"}, labels={"team": "catalog"})
    await submit("budget", "archive.reader", "Read the whole archive and say what is in it.", labels={"team": "market"})
    await submit(
        "agent",
        "support.triage",
        "Since yesterday people cannot sign in. Find out why and put it right.",
        labels={"team": "support", "severity": "high"},
        priority=8,
    )
    await submit(
        "agent-done", "support.triage", "Five tickets about sign-in. What is wrong?", labels={"team": "support"}
    )
    await submit("cancelled", "onboard.seller", {"seller": "Never Mind Ltd"}, labels={"team": "sellers"})
    await submit("paused", "cleanup.images", {"bucket": "us-images"}, labels={"team": "catalog"})
    return ids


async def _settled(shown: dict[str, str]) -> None:
    """Until all of it has ended or waits, and people have said what they say."""
    decided: set[str] = set()
    for _ in range(600):
        for ask in await app.asks():
            if ask.id in decided:
                continue
            if ask.task_id == shown["agent-done"] and ask.kind == "approval":
                await app.decide(ask.id, "approve", reason="go ahead")
                decided.add(ask.id)
            if ask.task_id == shown["asleep"] and ask.kind == "question":
                await app.answer(ask.id, "Growth")
                decided.add(ask.id)
        states = {name: (await app.get(one)) for name, one in shown.items()}
        if (
            all(task.state in {"completed", "failed", "cancelled", "waiting"} for task in states.values())
            and states["agent-done"].state != "waiting"
            and states["asleep"].reason == "asleep"
        ):
            break
        await asyncio.sleep(0.25)
    await app.cancel(shown["cancelled"])
    await app.pause(shown["paused"])
    await asyncio.sleep(0.5)


async def _killed(task_id: str) -> None:
    """A worker that is killed in the middle of this task."""
    process = subprocess.Popen(  # noqa: ASYNC220 -- it starts within a moment
        [sys.executable, "-m", "onward", "worker", "rig.showcase:app"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(400):
            if len(await app.service.journal(task_id, 0, 1000)) > 120:
                break
            await asyncio.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill a database that is worth looking at.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--port", default="8765")
    asked = parser.parse_args()
    database = f"sqlite:///{asked.folder.resolve()}/showcase.db"
    if (
        os.environ.get("SHOWCASE_DB") != database
    ):  # the app is made when this module is read, and its workers read it too
        asked.folder.mkdir(parents=True, exist_ok=True)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "rig.showcase", *sys.argv[1:]],
            {**os.environ, "SHOWCASE_DB": database, "ONWARD_DB": database},
        )
    if not (asked.folder / "showcase.db").exists():
        for name, one in asyncio.run(fill()).items():
            print(f"{name}\t{one}")
    if asked.serve:
        os.execv(sys.executable, [sys.executable, "-m", "onward", "serve", "rig.showcase:app", "--port", asked.port])


if __name__ == "__main__":
    main()
