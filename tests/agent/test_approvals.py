"""Approvals of an agent's tool calls: for the shown arguments, decided once, with other arguments, always, or too late."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward, tool
from onward.agent.loop import CHECKPOINT_EVERY_TURNS
from onward.agent.model import Reply, ToolCall
from onward.agent.models.scripted import ScriptedModel
from onward.core import record as r
from onward.core import wire
from onward.core.views import Ask
from onward.errors import (
    AlreadyDecided,
    AskExpired,
    BadSetting,
    InvalidInput,
    StaleDecision,
    UsageError,
    Withdrawn,
)
from onward.testing import crashes, drain, memory_app
from tests.kit import Lab, inline_app


class Bank:
    """Tools that need an approval."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []
        self.keys: set[str] = set()

    def tools(self) -> list[Any]:
        @tool(risk="external_action", idempotent=True)
        async def pay(ctx: Any, to: str, cents: int = 1) -> str:
            """Pay a person."""
            if ctx.key not in self.keys:  # like a bank that knows effect keys
                self.keys.add(ctx.key)
                self.paid.append((to, cents))
            return f"{to} has {cents}"

        @tool(risk="external_action", approval_timeout="5m", approval_default="approve")
        async def remind(name: str) -> str:
            """Send a reminder."""
            self.paid.append((name, 0))
            return f"{name} knows"

        return [pay, remind]


def teller(app: Onward, bank: Bank, script: Any, **options: Any) -> ScriptedModel:
    model = ScriptedModel(script)
    app.agent("teller", model=model, tools=bank.tools(), **{"approve": ["external_action"], **options})
    return model


async def open_approvals(lab: Lab, task_id: str) -> list[Ask]:
    """The open approvals of a task, once it only waits."""
    assert (await lab.settled(task_id, no_more="queued")).reason == "approval"
    return [ask for ask in await lab.app.asks("approval") if ask.task_id == task_id]


async def decisions(app: Onward, task_id: str) -> list[dict[str, Any]]:
    records = await app.service.journal(task_id, limit=1000)
    return [
        record.value["value"] for record in records if record.kind == r.MESSAGE and record.value["kind"] == "decision"
    ]


def results(model: ScriptedModel) -> list[str]:
    """The results of calls in the last request to the model."""
    return [message["content"] for message in model.asked[-1].conversation if message["role"] == "tool"]


TWO = [[("pay", {"to": "Ada"}), ("pay", {"to": "Ada"}), ("pay", {"to": "Eve"})], "done"]


async def test_all_calls_of_a_turn_are_asked_for_at_once_and_run_in_their_order(lab: Lab) -> None:
    bank = Bank()
    model = teller(lab.app, bank, TWO)
    await lab.start()
    task_id = await lab.submit("teller", "Pay them.")
    first, second, third = await open_approvals(lab, task_id)
    assert [ask.arguments for ask in (first, second, third)] == [{"to": "Ada"}, {"to": "Ada"}, {"to": "Eve"}]
    assert [(ask.tool, ask.risk) for ask in (first, second)] == [("pay", "external_action")] * 2
    assert len({first.hash, second.hash, third.hash}) == 3, "the same arguments of another call are another matter"
    await lab.app.decide(third.id, "approve", by="Lin", hash=third.hash)
    await lab.app.decide(second.id, "deny", reason="once is enough", by="Lin")
    assert await open_approvals(lab, task_id) == [first]
    assert bank.paid == [], "nothing runs before all of them are decided"
    await lab.app.decide(first.id, "approve", by="Kim")
    assert (await lab.ended(task_id)).result == "done"
    assert bank.paid == [("Ada", 1), ("Eve", 1)]
    assert results(model) == ["Ada has 1", "denied: once is enough", "Eve has 1"]
    decided = await decisions(lab.app, task_id)
    assert {decision["hash"]: (decision["decision"], decision["by"]) for decision in decided} == {
        third.hash: ("approve", "Lin"),
        second.hash: ("deny", "Lin"),
        first.hash: ("approve", "Kim"),
    }


async def test_changed_arguments_run_and_are_shown_to_the_model(lab: Lab) -> None:
    bank = Bank()
    model = teller(lab.app, bank, [[("pay", {"to": "Ada", "cents": 5000})], "done"])
    await lab.start()
    task_id = await lab.submit("teller", "Pay Ada.")
    (ask,) = await open_approvals(lab, task_id)
    await lab.app.decide(ask.id, "approve", arguments={"to": "Ada", "cents": 50}, reason="a zero too many", by="Lin")
    assert (await lab.ended(task_id)).result == "done"
    assert bank.paid == [("Ada", 50)]
    assert results(model) == [
        '(a person approved this with other arguments, {"to": "Ada", "cents": 50}, because: a zero too many)\nAda has 50'
    ]
    (decision,) = await decisions(lab.app, task_id)
    assert (decision["hash"], decision["arguments"]) == (ask.hash, {"to": "Ada", "cents": 50})
    (step,) = [
        record
        for record in await lab.app.service.journal(task_id)
        if record.kind == r.STEP_DONE and record.key == "pay"
    ]
    assert step.value["args"] == wire.fingerprint([[decision["arguments"]], {}]), "the approved call ran"


async def test_the_same_arguments_in_another_order_are_no_change(lab: Lab) -> None:
    bank = Bank()
    model = teller(lab.app, bank, [[("pay", {"to": "Ada", "cents": 5})], "done"])
    await lab.start()
    task_id = await lab.submit("teller", "Pay Ada.")
    (ask,) = await open_approvals(lab, task_id)
    await lab.app.decide(ask.id, "approve", arguments={"cents": 5, "to": "Ada"})
    await lab.ended(task_id)
    assert results(model) == ["Ada has 5"]


@pytest.mark.parametrize("wrong", [{"to": "Ada", "cents": "many"}, {}, {"to": "Ada", "from": "Eve"}, ["Ada"], "Ada"])
async def test_other_arguments_that_do_not_fit_never_run(lab: Lab, wrong: Any) -> None:
    bank = Bank()
    model = teller(lab.app, bank, [[("pay", {"to": "Ada"})], [("pay", {"to": "Ada"})], "done"])
    await lab.start()
    task_id = await lab.submit("teller", "Pay Ada.")
    (ask,) = await open_approvals(lab, task_id)
    with pytest.raises(InvalidInput, match="pay"):
        await lab.app.decide(ask.id, "approve", arguments=wrong)
    assert await open_approvals(lab, task_id) == [ask], "nothing was decided"
    if isinstance(wrong, dict):  # an app without the agent cannot check them; the agent can
        await inline_app(lab.clock, lab.store).decide(ask.id, "approve", arguments=wrong)
    else:
        await lab.app.decide(ask.id, "deny")
    (again,) = await open_approvals(lab, task_id)
    assert (again.id != ask.id, bank.paid) == (True, [])
    await lab.app.decide(again.id, "deny", reason="enough")
    await lab.ended(task_id)
    assert bank.paid == []
    if isinstance(wrong, dict):
        assert "error: nothing was done, they do not fit: tool 'pay'" in results(model)[0]


async def test_always_is_for_this_tool_in_this_task_and_outlives_checkpoints_and_crashes(lab: Lab) -> None:
    bank = Bank()
    turns = CHECKPOINT_EVERY_TURNS + 3
    script = [*[[("pay", {"to": "Ada", "cents": n})] for n in range(turns)], [("remind", {"name": "Ada"})], "done"]
    model = teller(lab.app, bank, script)
    await lab.start()
    task_id, other = await lab.submit("teller", "Pay Ada."), await lab.submit("teller", "Pay Ada too.")
    (ask,) = await open_approvals(lab, task_id)
    await lab.app.decide(ask.id, "approve", always=True)
    (ask,) = await open_approvals(lab, task_id)
    assert (ask.tool, len(bank.paid)) == ("remind", turns), "another tool is another matter"
    (elsewhere,) = await open_approvals(lab, other)
    assert elsewhere.arguments == {"to": "Ada", "cents": 0}, "another task as well"
    kinds = [record.kind for record in await lab.app.service.journal(task_id, limit=1000)]
    assert r.CHECKPOINT in kinds
    await lab.crash()
    await lab.start()
    await lab.app.decide(ask.id, "deny")
    assert (await lab.ended(task_id)).result == "done"
    assert len(bank.paid) == turns
    assert results(model)[-1] == "denied: a person said no"
    await lab.app.cancel(other)


async def test_always_after_a_checkpoint_is_remembered_by_the_checkpoint_alone(lab: Lab) -> None:
    bank = Bank()
    turns = CHECKPOINT_EVERY_TURNS + 3

    def turn(request: Any) -> Any:
        n = sum(message["role"] == "assistant" for message in request.conversation)
        return (
            [("pay", {"to": "Ada", "cents": n})]
            if n != CHECKPOINT_EVERY_TURNS
            else [("ask_user", {"question": "Go on?"})]
        )

    teller(lab.app, bank, [*[turn] * turns, "done"])
    await lab.start()
    task_id = await lab.submit("teller", "Pay Ada.")
    (ask,) = await open_approvals(lab, task_id)
    await lab.app.decide(ask.id, "approve", always=True)
    assert (await lab.settled(task_id)).reason == "question"
    await lab.crash()  # the next shift reads the journal from the checkpoint on, and the decision is before it
    await lab.start()
    (question,) = await lab.app.asks("question")
    await lab.app.answer(question.id, "yes")
    assert (await lab.ended(task_id)).result == "done"
    assert len(bank.paid) == turns - 1


async def test_always_decides_the_open_approvals_of_the_same_tool(lab: Lab) -> None:
    bank = Bank()
    teller(lab.app, bank, [[*TWO[0], ("remind", {"name": "Kim"})], "done"], approval_timeout="1h")
    await lab.start()
    task_id = await lab.submit("teller", "Pay them.")
    first, second, third, other = await open_approvals(lab, task_id)
    await lab.app.decide(second.id, "deny")
    await lab.app.decide(first.id, "approve", by="Lin", always=True)
    assert await open_approvals(lab, task_id) == [other]
    with pytest.raises(AlreadyDecided, match="approve"):
        await lab.app.decide(third.id, "deny")
    await lab.app.decide(other.id, "deny")
    await lab.ended(task_id)
    assert bank.paid == [("Ada", 1), ("Eve", 1)]
    by_hash = {decision["hash"]: decision for decision in await decisions(lab.app, task_id)}
    assert by_hash[third.hash]["through"] == first.id, "and the journal says how it came to that"


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_default_counts_after_the_timeout() -> None:
    bank, app = Bank(), memory_app()
    calls = [("pay", {"to": "Ada"}), ("remind", {"name": "Kim"})]
    model = teller(app, bank, [calls, "done"], approval_timeout="1h")
    async with app:
        start = app.clock.now()
        task = await app.submit("teller", "Pay Ada.")
        async with app.worker():
            while len(asks := await app.asks()) < 2:
                await app.clock.move(0.1)
        assert [(ask.tool, ask.default) for ask in asks] == [("pay", "deny"), ("remind", "approve")]
        times = [round(ask.expires_at - start, -2) for ask in asks if ask.expires_at is not None]
        assert times == [3600, 300], "a tool may have a time of its own"
        for due in ("5m", "55m"):
            await app.clock.move(due)
            left = await drain(app)
        assert left == []
        assert await task.result() == "done"
        assert results(model) == ["denied: nobody decided in time", "Kim knows"]
        assert bank.paid == [("Kim", 0)]
        for ask in asks:
            with pytest.raises(AskExpired, match="its time was up"):
                await app.decide(ask.id, "approve")


async def test_a_late_decision_is_refused_even_when_no_worker_ran(lab: Lab) -> None:
    bank = Bank()
    model = teller(lab.app, bank, [[("pay", {"to": "Ada"})], "done"], approval_timeout="1h")
    await lab.start()
    task_id = await lab.submit("teller", "Pay Ada.")
    (ask,) = await open_approvals(lab, task_id)
    await lab.stop()
    lab.clock.jump(3601)
    assert await lab.app.asks() == []
    with pytest.raises(AskExpired) as late:
        await lab.app.decide(ask.id, "approve", hash=ask.hash)
    assert (late.value.status, late.value.code) == (410, "ask_expired")
    assert await lab.store.inbox(task_id) == []
    await lab.start()
    assert (await lab.ended(task_id)).result == "done"
    assert (bank.paid, results(model)) == ([], ["denied: nobody decided in time"])


def test_the_default_is_approve_or_deny(app: Onward) -> None:
    with pytest.raises(BadSetting, match="'approve' or 'deny'"):
        app.agent("x", model="openai:y", approval_default="perhaps")
    with pytest.raises(BadSetting, match="'approve' or 'deny'"):
        tool(approval_default="yes")(len)


# ── refused decisions ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_decision_is_for_the_arguments_that_were_shown(lab: Lab) -> None:
    bank = Bank()
    teller(lab.app, bank, TWO)
    await lab.start()
    task_id = await lab.submit("teller", "Pay them.")
    first, second, _ = await open_approvals(lab, task_id)
    for seen in (second.hash, "", "0" * 24):
        with pytest.raises(StaleDecision, match="is not the one that you saw") as stale:
            await lab.app.decide(first.id, "approve", hash=seen)
        assert stale.value.status == 409
    with pytest.raises(UsageError, match="give a reason instead"):
        await lab.app.decide(first.id, "deny", arguments={"to": "Ada"})
    with pytest.raises(UsageError, match="give a reason instead"):
        await lab.app.decide(first.id, "deny", always=True)
    with pytest.raises(InvalidInput, match="cannot be kept as JSON"):
        await lab.app.decide(first.id, "approve", arguments={"to": float("inf")})
    assert len(await open_approvals(lab, task_id)) == 3
    assert await lab.store.inbox(task_id) == []
    await lab.app.cancel(task_id)


async def test_an_approval_of_a_handler_has_nothing_to_change(lab: Lab) -> None:
    @lab.app.task
    async def ship(ctx: Any) -> Any:
        return await ctx.approve("Ship?", data={"tool": "ship"})

    await lab.start()
    task_id = await lab.submit(ship)
    (ask,) = await open_approvals(lab, task_id)
    for change in ({"arguments": {"tool": "no"}}, {"always": True}):
        with pytest.raises(UsageError, match="is for no tool call of an agent"):
            await lab.app.decide(ask.id, "approve", **change)
    await lab.app.decide(ask.id, "approve", hash=ask.hash)
    decided = {"decision": "approve", "hash": ask.hash, "digest": ask.digest, "named": True}
    assert (await lab.ended(task_id)).result == decided


async def test_an_approval_of_a_cancelled_saga_cannot_be_decided(lab: Lab) -> None:
    """The undo takes time; meanwhile a person answers an ask for which the task no longer waits."""

    @lab.app.task
    async def trip(ctx: Any) -> Any:
        async def back() -> None:
            await lab.clock.sleep(100)

        async with ctx.saga():
            await ctx.step(len, "flight", name="flight", undo=lambda _: back())
            return await ctx.gather(ctx.approve("Go?"), ctx.ask("Where?"))

    await lab.start()
    task_id = await lab.submit(trip)
    await lab.settled(task_id)
    approval, question = await lab.app.asks()
    await lab.app.cancel(task_id)
    for late in (lab.app.decide(approval.id, "approve"), lab.app.answer(question.id, "home")):
        with pytest.raises(Withdrawn, match="is being cancelled, or has undone the step that asked") as refusal:
            await late
        assert refusal.value.status == 409
    assert await lab.store.inbox(task_id) == []
    assert (await lab.ended(task_id)).state == "cancelled"


@pytest.mark.parametrize(
    "text", ['{"to": "\\ud800"}', '{"to": "Ada", "cents": 1e999}', '{"to": ' + "[" * 900 + "]" * 900 + "}"]
)
async def test_arguments_that_no_record_can_hold_are_an_error_for_the_model(lab: Lab, text: str) -> None:
    bank = Bank()
    model = teller(lab.app, bank, [Reply("", (ToolCall("c1", "pay", text),)), "sorry"])
    task = await lab.run("teller", "Pay.")
    assert task.result == "sorry", task.error
    assert results(model)[0].startswith("error: ")
    assert bank.paid == []


async def test_a_question_of_the_model_needs_no_approval(lab: Lab) -> None:
    teller(lab.app, Bank(), [[("ask_user", {"question": "Why?"})], "done"], approve=["read"])
    await lab.start()
    task_id = await lab.submit("teller", "Ask.")
    assert (await lab.settled(task_id)).reason == "question"
    await lab.app.cancel(task_id)


# ── crashes and forks ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_killed_anywhere_each_approved_call_runs_once_and_no_other() -> None:
    points = 0
    async for app in crashes():
        bank = Bank()
        model = teller(app, bank, TWO)
        task = await app.submit("teller", "Pay them.")
        await drain(app)
        first, second, third = await app.asks()
        await app.decide(second.id, "deny", reason="no")
        await app.decide(third.id, "approve", arguments={"to": "Eve", "cents": 7})
        await drain(app)
        await app.decide(first.id, "approve")
        await drain(app)
        assert await task.result(timeout=1) == "done", app.killed_at
        assert bank.paid == [("Ada", 1), ("Eve", 7)], app.killed_at
        assert results(model)[1] == "denied: no"
        points += 1
    assert points > 12


async def test_a_fork_inherits_decisions(lab: Lab) -> None:
    bank = Bank()
    teller(lab.app, bank, [*TWO[:1], [("pay", {"to": "Kim"})], "done"])
    await lab.start()
    task_id = await lab.submit("teller", "Pay them.")
    for ask in await open_approvals(lab, task_id):
        await lab.app.decide(ask.id, "approve")
    (last,) = await open_approvals(lab, task_id)
    await lab.app.decide(last.id, "approve")
    assert (await lab.ended(task_id)).result == "done"
    at = max(
        record.seq
        for record in await lab.app.service.journal(task_id)
        if record.kind == r.STEP_DONE and record.key == "model#2"
    )
    fork = await lab.app.fork(task_id, at)
    (anew,) = await open_approvals(lab, fork.id)
    assert (anew.arguments, anew.hash == last.hash) == ({"to": "Kim"}, False), "later calls need new approvals"
    with pytest.raises(StaleDecision):
        await lab.app.decide(anew.id, "approve", hash=last.hash)
    await lab.app.decide(anew.id, "approve", hash=anew.hash)
    assert (await lab.ended(fork.id)).result == "done"
    assert [to for to, _ in bank.paid] == ["Ada", "Ada", "Eve", "Kim", "Kim"]
