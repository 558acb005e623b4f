"""An app with something on every page of the console: open approvals and questions of all kinds, queues, schedules, receivers;
and hostile names and texts. For the tests of the pages, and for looking at them: `python -m tests.console.desk FOLDER PORT`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from onward import Budget, Context, Onward, tool
from onward.agent.model import Reply, ToolCall, Usage
from onward.agent.models.scripted import ScriptedModel
from onward.agent.prices import Prices
from onward.store.shared.intakes import IntakeReport
from tests.service.letters import bury

HOSTILE = '<img src=x onerror="window.__ran=1"><script>window.__ran=1</script>\u202egnp.exe\u2066 \x1b[31mred\x1b[0m javascript:alert(1)'
"""What would do harm in a page that is careless with it."""

LETTER = """Dear Ms. Okafor,

thank you for your patience. Your order A-1042 was held up because the courier had the wrong address on file. We have put this right,
and the parcel left our house this morning; it should be with you on Thursday.

As a small apology we have credited your account with 15.00. There is nothing you need to do.

With kind regards
Birch & Daughters"""

app = Onward(
    lease_s=5.0,
    heartbeat_s=0.5,
    poll_s=0.05,
    grace_s=0.5,
    webhook_allow_private="true",
    webhook_secret="whsec_QSBzZWNyZXQgb2YgdGhlIGRlc2ssIGxvbmcgZW5vdWdoIQ==",
)
app.limit_queue("gpu", concurrency=2)


class Priced(ScriptedModel):
    """A model whose price is known."""

    prices = Prices(input_per_mtok=3.0, output_per_mtok=15.0)


@tool(risk="external_action", idempotent=True)
async def send_email(
    ctx: Context, to: list[str], subject: str, body: str, options: dict[str, Any] | None = None
) -> str:
    """Send a mail to a customer, from help@example.com. It cannot be taken back."""
    return f"sent {subject!r} to {', '.join(to)}"


@tool(risk="external_action", idempotent=True)
async def refund(ctx: Context, order: str, amount: float, why: str) -> str:
    """Give money back."""
    return f"{amount:.2f} back for {order}"


MAIL = {
    "to": ["c.okafor@example.com"],
    "subject": "Your order A-1042",
    "body": LETTER,
    "options": {
        "track_opens": False,
        "reply_to": "help@example.com",
        "headers": {"X-Ticket": "4100"},
        "retries": [1, 5, 30],
    },
}
HARM = {"to": [HOSTILE], "subject": HOSTILE, "body": HOSTILE * 40, "options": {HOSTILE: [HOSTILE]}}

app.agent(
    "support.reply",
    model=Priced(
        [
            Reply(
                "The courier had the wrong address, and the parcel is on its way now. Ms. Okafor has waited for nine days, so I "
                "write to her myself, and credit 15.00 as an apology.",
                (ToolCall("call_0_0", "send_email", json.dumps(MAIL)),),
                Usage(1850, 240),
                finish="tool_calls",
            ),
            "The customer was told.",
        ],
        "demo-large",
    ),
    instructions="You answer customers.",
    tools=[send_email, refund],
    approve=["external_action"],
    approval_timeout="2h",
    queue="agents",
)
app.agent(
    "support.twice",
    model=Priced(
        [[("refund", {"order": f"A-{n}", "amount": 15.0 + n, "why": "late"}) for n in (1, 2)], "Both were paid back."],
        "demo-large",
    ),
    tools=[send_email, refund],
    approve=["external_action"],
    queue="agents",
)
app.agent(
    "harm.agent",
    model=ScriptedModel([[("send_email", HARM)], "done"], HOSTILE[:60]),
    tools=[send_email],
    approve=["external_action"],
    approval_timeout="3h",
    queue="agents",
)
app.agent("free.thinker", model=ScriptedModel(["I thought about it."], "house-model"), queue="agents")
app.agent("priced.thinker", model=Priced(["I thought about it, at a price. " * 30], "demo-large"), queue="agents")
app.agent(
    "spender",
    model=ScriptedModel([[("refund", {"order": "x", "amount": 1.0, "why": "y"})]] * 9, "house-model"),
    tools=[refund],
    budget=Budget(max_steps=2),
    queue="agents",
)


@app.task(name="payout.run")
async def payout(ctx: Context, batch: str, usd: float) -> str:
    """After an approval, money moves once."""
    await ctx.approve(
        f"Pay batch {batch}: ${usd:,.2f} to 214 sellers?",
        risk="external_action",
        timeout="8m",
        data={"batch": batch, "usd": usd, "sellers": 214, "account": {"bank": "Nordbank", "last four": "4471"}},
    )
    return f"paid {batch}"


@app.task(name="transfer")
async def transfer(ctx: Context, to: str) -> str:
    """Its effect is in doubt each time."""

    async def wire() -> str:
        raise TimeoutError("the bank did not answer within 30 s")

    return str(await ctx.step(wire, name=f"wire money to {to}", effect="once"))


@app.task(name="seller.onboard")
async def onboard(ctx: Context, seller: str) -> str:
    """Asks for a choice among three."""
    return str(await ctx.ask(f"Which plan does {seller} get?", choices=["Starter", "Growth", "Scale"], timeout="3d"))


@app.task(name="seller.describe")
async def describe(ctx: Context, seller: str) -> str:
    """Asks for anything."""
    return str(await ctx.ask(f"How would you describe {seller} in one sentence?"))


@app.task(name="print_book")
async def print_book(ctx: Context, size: int) -> str:
    """Something large that a person has to allow."""
    await ctx.approve("Print this book?", risk="external_action", data={"pages": "x" * size})
    return "printed"


@app.task(name="echo")
async def echo(ctx: Context, value: Any = None) -> Any:
    """Return the input."""
    return value


@app.task(name="digest.one")
async def digest_one(ctx: Context, page: int) -> int:
    """One of many children."""
    return page


@app.task(name="digest.all")
async def digest_all(ctx: Context, pages: int) -> int:
    """Starts many children."""
    children = [await ctx.submit("digest.one", {"page": page}) for page in range(pages)]
    return sum([await child.result() for child in children])


@app.task(name="render.frame", queue="gpu")
async def render(ctx: Context, frame: int) -> str:
    """Sleeps in its slot, so that it is seen."""
    await asyncio.sleep(600)
    return f"frame {frame}"


@app.task(name="fails", retry=1)
async def fails(ctx: Context, why: str = "the courier has no van") -> None:
    """Always."""
    raise ConnectionError(why)


app.schedule("digest", "echo", {"team": "red"}, cron="0 8 * * mon", timezone="Europe/Berlin", missed="once")
app.schedule(f"harm {HOSTILE[:34]}", "echo", HOSTILE, cron="0 0 29 2 *")
app.schedule("probe", "echo", {"site": "shop.example.com"}, every="15m", queue="probes")
app.schedule("invoices", "fails", {"why": "the printer is out of paper"}, cron="30 6 1 * *")


class Receiver:
    """A receiver of webhooks: /ok answers 204, /gone 410, any other path 503."""

    def __init__(self) -> None:
        self.seen: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805 -- `self` is the receiver
                handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
                self.seen.append(handler.path)
                handler.send_response({"/ok": 204, "/gone": 410}.get(handler.path, 503))
                handler.end_headers()

            def log_message(handler, *args: object) -> None:  # noqa: N805
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()


async def letters() -> None:
    """Intakes that do well and badly, and dead letters."""
    for name, process, state, detail in (
        ("orders", "birch-1:4100:x1", "running", ""),
        ("orders", "birch-2:4100:x2", "waiting", "the queue default is full"),
        ("mail", "birch-1:4100:x3", "away", f"broker shop does not answer {HOSTILE}"),
    ):
        await app.store.intakes.report(
            IntakeReport(name, process, f"shop/{name.upper()}", "echo", None, state, detail, 4100, 3, 2.5, 12)
        )
    await bury(app, b'{"order": "A-1042", "amount": 15.0}', b"\xff\xfe\x00", HOSTILE.encode())
    await bury(app, b"{}", intake="mail", reason=HOSTILE, headers={HOSTILE: HOSTILE}, identity=HOSTILE)


async def fill(receiver: str) -> None:
    """Submits something for every page."""
    await app.service.subscriptions.make(f"{receiver}/ok", ["task.completed"], tenant=None)
    await app.service.subscriptions.make(
        f"{receiver}/busy?token=abc", ["task.failed", "approval.requested"], tenant=None
    )
    await app.service.subscriptions.make(f"{receiver}/gone", ["task.*"], tenant=None)
    await app.save_schedules()
    for name, given, options in [
        ("support.reply", "Tell Ms. Okafor where her order is.", {"labels": {"team": "support", "ticket": "4100"}}),
        ("support.twice", "Pay both back.", {}),
        ("harm.agent", HOSTILE, {"labels": {"name": HOSTILE[:60]}}),
        ("payout.run", {"batch": "B-78", "usd": 18_250.0}, {"labels": {"team": "finance"}, "priority": 5}),
        ("transfer", {"to": "Old Mill Ltd"}, {"labels": {"team": "finance"}}),
        ("seller.onboard", {"seller": "Birch & Daughters"}, {"labels": {"team": "sellers"}}),
        ("seller.describe", {"seller": "Old Mill"}, {"labels": {"team": "sellers"}}),
        ("spender", "Spend all of it.", {}),
        ("digest.all", {"pages": 12}, {}),
        ("fails", {}, {}),
        ("fails", {"why": HOSTILE}, {}),
    ]:
        await app.submit(name, given, **options)
    for n in range(9):
        await app.submit("render.frame", {"frame": n}, queue="gpu")
        await app.submit("priced.thinker", f"Think about {n}.")
        await app.submit("free.thinker", f"Think about {n}, for free.")
        await app.submit("echo", n)
        await app.submit("echo", n, queue="nightly")
    await app.submit("echo", HOSTILE, queue=HOSTILE[:60], delay="1h")
    await app.pause_queue("nightly")
    for n in range(3):
        await app.submit("echo", {"frame": n}, delay="3h")
        await app.trigger("probe")
    await app.trigger("invoices")
    await app.pause_schedule("invoices")


def made(database: str, receiver: str) -> None:
    """The same in a database of its own."""

    async def make() -> None:
        async with app:
            await fill(receiver)
            await letters()

    app.move(database)
    asyncio.run(make())


def buried(database: str) -> None:
    """Intakes and dead letters in a database that is in use."""

    async def make() -> None:
        async with app:
            await letters()

    app.move(database)
    asyncio.run(make())


def main() -> None:
    """Fill a folder, and serve it."""
    folder, port = Path(sys.argv[1]).resolve(), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    database = f"sqlite:///{folder}/desk.db"
    if not (folder / "desk.db").exists():
        made(database, Receiver().address)
    command = [sys.executable, "-m", "onward", "serve", "tests.console.desk:app", "--port", port]
    subprocess.run(command, check=False, env={**os.environ, "ONWARD_DB": database})


if __name__ == "__main__":
    main()
