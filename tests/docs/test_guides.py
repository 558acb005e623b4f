"""The guides are true: the code in them runs, and does what they say."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import re
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from onward import Budget, Context, Onward
from onward.agent.models.scripted import ScriptedModel
from onward.app import backup
from onward.cli.args.parser import parse
from onward.core.task import State
from onward.errors import Fatal, TaskCancelled
from onward.service.submission import SubmitRequest
from onward.testing import crashes, drain, memory_app
from tests.kit import sql

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"


def code_of(guide: str, file: str) -> dict[str, Any]:
    """The names that a file of a guide defines."""
    text = (GUIDES / guide).read_text(encoding="utf-8")
    (code,) = re.findall(rf"```python\n# {re.escape(file)}\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": file.removesuffix(".py")}
    exec(compile(code, f"docs/guides/{guide}", "exec", dont_inherit=True), names)
    return names


def test_every_guide_is_run_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for guide in GUIDES.glob("*.md"):
        assert guide.name in tests, f"no test runs the code of {guide.name}"


def test_the_threat_model_names_tests_that_exist() -> None:
    text = (GUIDES / "threat-model.md").read_text(encoding="utf-8")
    table = text.partition("where that is tested")[2].partition("\n## ")[0]
    rows = [row.rsplit("|", 2)[1] for row in table.splitlines() if row.startswith("|")][2:]
    assert len(rows) > 15
    for row in rows:
        folder = ROOT
        for path in re.findall(r"`([^`]+)`", row):
            file = ROOT / path if "/" in path else folder / path
            assert file.exists(), f"threat-model.md names {path}"
            folder = file.parent


@pytest.mark.parametrize(
    "guide",
    [
        "running.md",
        "backup.md",
        "agents.md",
        "approvals.md",
        "artifacts.md",
        "secrets.md",
        "encryption.md",
        "progress.md",
        "keys.md",
        "console.md",
        "hardening.md",
        "dead-letters.md",
        "engines.md",
        "deploying.md",
        "upgrades.md",
        "managed-postgres.md",
    ],
)
def test_the_commands_of_a_guide_are_commands(guide: str) -> None:
    text = (GUIDES / guide).read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (?:.* -- )?(?:\w+=\S+ )?(onward .*)$", text, re.MULTILINE)
    inline = re.findall(r"`(onward \w+ [^`]+)`", text)
    for command in [*commands, *inline]:
        words = shlex.split(command.replace("--turn N", "--turn 3"), comments=True)[1:]
        assert "--help" in words or parse(words).command == words[0]
    assert commands or "`onward " in text


def test_every_command_that_a_page_names_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {(page.name, word) for page in pages for word in re.findall(r"`onward ([a-z]\w*)", page.read_text("utf-8"))}
    known = set(re.findall(r"^## onward (\w+)$", (ROOT / "docs" / "cli.md").read_text("utf-8"), re.MULTILINE))
    assert len(named) > 200
    assert sorted((page, word) for page, word in named if word not in known) == []


async def test_values() -> None:
    names = code_of("values.md", "invoices.py")
    async with memory_app(names["app"]) as app:
        task = await app.submit("month", ["a", "b"])
        await drain(app)
        ((day, invoices),) = (await task.result()).items()
    assert day == datetime.date(2026, 12, 1)
    assert [type(invoice) for invoice in invoices] == [names["Invoice"]] * 2
    assert invoices[0].total == decimal.Decimal("19.90")


async def test_plain_functions(url: str) -> None:
    names = code_of("sync.md", "shop.py")
    names["app"].move(url)
    async with memory_app(names["app"]) as app:
        task = await app.submit("pay", {"order": "7", "cents": 500})
        await drain(app)
        (approval,) = await app.approvals()
        await app.decide(approval.id, "approve", by="ada")
        await drain(app)
        assert await task.result() == "charged 500 for 7, shipped by ada"

    def program() -> None:
        task_id = names["view"]("8")["task"]
        assert names["view"]("8")["task"] == task_id, "the same key is the same task"
        assert names["approve_all"]("ada") == 0
        names["app"].sync.cancel(task_id)
        with pytest.raises(TaskCancelled):
            names["wait"](task_id)
        names["app"].sync.close()

    await asyncio.to_thread(program)


async def test_backup(tmp_path: Path) -> None:
    """The task ends after the backup; after the restore a person says that its courier was called."""
    names = code_of("backup.md", "orders.py")
    app, folder = names["app"], tmp_path / "copy"
    app.move(f"sqlite:///{tmp_path / 'onward.db'}")
    quiet: dict[str, Any] = {"tell": lambda _: None}
    async with app:
        task = await app.submit("order", "7")
        await backup.back_up(app.store.backups, None, folder, where="", version="", **quiet)
        async with app.worker():
            await task.result(timeout=60)
    await backup.restore(app.store.backups, None, folder, overwrite=True, lease_s=0.0, **quiet)
    async with app, app.worker():
        for _ in range(600):
            if await app.store.listing.doubts(1):
                break
            await asyncio.sleep(0.1)
        await app.resolve(task.id, "happened", "courier 9")
        assert await task.result(timeout=60) == "courier 9"
    assert names["sent"] == ["7"]


async def test_effects() -> None:
    names = code_of("effects.md", "payments.py")
    async for app in crashes(names["app"]):
        names["bank"].clear()
        task = await app.submit("pay", {"order": "7", "cents": 500})
        left = await drain(app)
        if left:
            assert [item.reason for item in left] == ["in_doubt"]
            await app.resolve(task.id, "not_happened")
            await drain(app)
        assert await task.result() == "courier for 7"
        assert list(names["bank"].values()) == [500, 500]


async def test_what_a_handler_must_not_do() -> None:
    names = code_of("effects.md", "ship.py")
    for decision, said in (("approve", "7 is on its way"), ("deny", "7 stays: decided by drain(decide=…)")):
        names["told"].clear()
        async with memory_app(names["app"]) as app:
            await app.submit("ship", "7")
            await drain(app)
            assert names["told"] == [], "nothing is told while it waits"
            await drain(app, decide=lambda _, decision=decision: decision)  # type: ignore[misc]
            assert names["told"] == [said]


async def test_what_ends_a_shift_is_no_exception_and_cleanup_around_a_wait_runs_at_each_wait() -> None:
    app, cleaned = memory_app(), list[str]()

    @app.task
    async def wait(ctx: Context) -> None:
        try:
            await ctx.signal("go")
        except Exception:
            cleaned.append("except")
        finally:
            cleaned.append("finally")

    async with app:
        task = await app.submit(wait)
        await drain(app)
        assert cleaned == ["finally"], "the task still waits"
        await task.cancel()
        await drain(app)
        assert cleaned == ["finally"], "a task that is cancelled while it waits does not come back"


async def test_a_saga_does_not_undo_the_step_that_fails_unless_it_can_ask() -> None:
    held: set[str] = set()

    async def reserve() -> str:
        held.add("room")
        raise ConnectionError("the answer was lost")

    async def was_reserved() -> str | None:
        return "room" if held else None

    async def release() -> None:
        held.clear()

    app = memory_app()

    @app.task(retry=1)
    async def book(ctx: Context, ask: bool) -> None:
        async with ctx.saga():
            await ctx.step(reserve, undo=release, retry=2, reconcile=was_reserved if ask else None)
            raise LookupError("no train")

    async with app:
        for ask, left in ((False, {"room"}), (True, set[str]())):
            held.clear()
            await app.submit(book, {"ask": ask})
            await drain(app)
            assert held == left


async def test_writes_in_the_same_database(url: str) -> None:
    app = Onward(url)
    app.handlers |= (names := code_of("effects.md", "stock.py"))["app"].handlers
    app._handler_specs |= names["app"]._handler_specs
    async with app.worker():
        await sql(app.store, "DROP TABLE IF EXISTS stock")
        await sql(app.store, "CREATE TABLE stock (item TEXT, n INTEGER)")
        await sql(app.store, "INSERT INTO stock VALUES ('pear', 3)")
        assert await (await app.submit("sell", "pear")).result(60) == 2


async def test_sagas() -> None:
    names = code_of("sagas.md", "trip.py")
    app = memory_app(names["app"])
    async with app:
        task = await app.submit("trip")
        await drain(app)
        ended = await task.get()
        assert ended.state is State.FAILED
        assert ended.error is not None
        assert ended.error["undone"] == ["[saga]book#2", "[saga]book"]
        assert names["booked"] == []


async def test_waiting() -> None:
    names = code_of("waiting.md", "order.py")
    for decision in ("approve", "deny"):
        app = memory_app(names["app"])
        async with app:
            task = await app.submit("order", {"items": ["hat", "coat"]})
            async with app.worker():
                while not (asks := await app.asks()):
                    await app.clock.move(0.1)
                await app.answer(asks[0].id, "L")
                while not (asks := await app.asks("approval")):
                    await app.clock.move(0.1)
            assert asks[0].text == "Ship 2 items in size L?"
            await app.decide(asks[0].id, decision, reason="too late")
            await drain(app)
            expected = "hat packed, coat packed, to the shop" if decision == "approve" else "not shipped: too late"
            assert await task.result() == expected


@pytest.mark.parametrize("test", ["test_a_month_takes_milliseconds", "test_a_crash_changes_nothing"])
async def test_testing(test: str) -> None:
    names = code_of("testing.md", "test_reminder.py")
    await names[test]()
    assert len(names["sent"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("service", "decision", "expect"),
    [("web", "approve", "web is live"), ("web", "deny", None), ("broken", None, None), ("web", "cancel", None)],
)
async def test_the_deploy_of_the_examples(service: str, decision: str | None, expect: str | None) -> None:
    from examples import deploy

    async for app in crashes(deploy.app):
        deploy.WORLD.clear()
        task = await app.submit("deploy", {"service": service})
        await drain(app)
        for _ in range(2):  # a deploy that was denied is tried once more
            for ask in await app.asks():
                if decision == "cancel":
                    await app.cancel(task.id)
                else:
                    await app.decide(ask.id, decision or "deny", reason="not today")
                await drain(app)
        ended = await task.get()
        assert ended.result == expect, app.killed_at
        assert sorted(deploy.WORLD) == (
            [f"{kind}/web" for kind in ("certificate", "container", "dns", "monitoring")] if expect else []
        )
        assert ended.state is {"approve": State.COMPLETED, "cancel": State.CANCELLED}.get(decision or "", State.FAILED)


@pytest.mark.slow
async def test_secrets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = code_of("secrets.md", "shop.py")
    app = memory_app(names["app"], secrets={"STRIPE_KEY": "a value for tests"})
    async with app:
        task = await app.submit("pay", {"amount": 5, "token": {"$secret": "STRIPE_KEY"}})
        assert await drain(app) == []
        assert await task.result() == "charged 5 with [secret STRIPE_KEY]"
    assert capsys.readouterr().out == "17\n"
    assert list(names["refund"].spec()["function"]["parameters"]["properties"]) == ["amount"]
    own = memory_app(code_of("secrets.md", "per_tenant.py")["app"])
    async with own:
        for tenant, left in (("acme", 0), ("globex", 0), ("initech", 1)):
            (task_id,) = await own.service.submit([SubmitRequest("pay", 5, tenant=tenant)])
            assert len(await drain(own)) == left
            assert (await own.get(task_id)).result == (None if left else "charged 5 with [secret PAY_KEY]")
    session = code_of("secrets.md", "session.py")
    turns = [[("log_in", {"user": "me"})], [("read", {"page": 1, "session": {"$secret": "SESSION"}})], "read"]
    session["app"].agent("reader", model=ScriptedModel(turns), tools=[session["log_in"], session["read"]])
    async for crashed in crashes(session["app"]):
        crawl, reader = await crashed.submit("crawl", "me"), await crashed.submit("reader", "read it")
        assert await drain(crashed) == []
        assert (await crawl.result(), await reader.result()) == ([f"page {n}" for n in range(3)], "read")


async def test_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    names = code_of("artifacts.md", "report.py")
    module = types.ModuleType("report")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "report", module)
    await code_of("artifacts.md", "test_report.py")["test_the_report_is_there_whatever_is_killed"]()
    assert "report" in names["app"].handlers


@pytest.mark.slow
async def test_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    names = code_of("agents.md", "janitor.py")
    assert "janitor" in names["app"].handlers
    module = types.ModuleType("janitor")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "janitor", module)
    await code_of("agents.md", "test_janitor.py")["test_it_deletes_once"]()
    assert len(set(names["deleted"])) == 1


@pytest.mark.slow
async def test_an_agent_that_undoes_its_effects() -> None:
    names = code_of("agents.md", "trips.py")
    async for app in crashes():
        names["booked"].clear()
        model = ScriptedModel([[("book", {"name": name})] for name in ("flight", "hotel")] + [Fatal("no seats")])
        task = await app.submit(app.agent("trip", model=model, tools=[names["book"]], undo=True), "Off to the sea.")
        await drain(app)
        assert names["booked"] == set(), app.killed_at
        undone = ((await app.get(task.id)).error or {})["undone"]
        assert [key.rpartition("]")[2] for key in undone] == ["book#2", "book"]


async def test_budgets() -> None:
    names = code_of("budgets.md", "budgets.py")
    async with memory_app(names["app"]) as app:
        model = ScriptedModel([[("read_page", {"number": 1})], "nothing"])
        reader = app.agent("scripted reader", model=model, tools=[names["read_page"]])
        task = await app.submit(reader, "Read.", budget=Budget(max_steps=1))
        (left,) = await drain(app)
        assert left.reason == "budget"
        await app.raise_budget(task.id, max_steps=2)
        assert await drain(app) == []
        assert await task.result() == "nothing"


async def test_approvals() -> None:
    names = code_of("approvals.md", "refunds.py")
    assert names["app"]._handler_specs["clerk"].tools.keys() == {"refund", "note"}
    calls = [("refund", {"order": order, "cents": cents}) for order, cents in ((6, 100), (7, 5000), (8, 5000))]
    model = ScriptedModel([calls, [("note", {"text": "three refunds"})], "done"])
    app = memory_app()
    tools = [names["refund"], names["note"]]
    clerk = app.agent("clerk", model=model, tools=tools, approve=["external_action"], approval_timeout="1h")
    async with app:
        task = await app.submit(clerk, "Three customers want their money back.")
        async with app.worker():
            while not await app.asks():
                await app.clock.move(0.1)
        assert len(await app.asks()) == 3
        await code_of("approvals.md", "decide.py")["decide_all"](app)
        await drain(app)
        await app.clock.move("10m")  # the note has a time of its own
        await drain(app)
        assert await task.result() == "done"
    assert names["refunded"] == [(6, 100), (7, 100)]
    results = [message["content"] for message in model.asked[-1].conversation if message["role"] == "tool"]
    assert results[1].startswith('(a person approved this with other arguments, {"order": 7, "cents": 100})')
    assert results[2:] == ["denied: that was a gift", "noted"], "the note had no decision for ten minutes"


@pytest.mark.slow
async def test_several_agents() -> None:
    names = code_of("agents.md", "team.py")
    async for app in crashes(names["app"]):
        task = await app.submit("boss", "When were they born?")
        await drain(app)
        assert await task.result() == "Both in 1815.", app.killed_at
        children, _ = await app.list(task="researcher")
        assert [child.result for child in children] == [1815, 1815]
        assert (await app.state(children[0].task_id)).fact("born") == 1815
        again = await app.submit("researcher", "And Ada again?", after=children[0].task_id)
        await drain(app)
        assert await again.result() == 1815


async def test_checkpoints() -> None:
    names = code_of("checkpoints.md", "pages.py")
    async for app in crashes(names["app"]):
        names["stored"].clear()
        task = await app.submit("copy")
        await drain(app)
        assert await task.result() == 5
        assert list(dict.fromkeys(names["stored"])) == list("abcde")


async def test_keys() -> None:
    names = code_of("keys.md", "tenants.py")
    async with names["app"]:
        assert await names["of_two_tenants"]() == (1, 2)
