"""Votes and askers: who counts as the asker, whatever door is used; what a vote may not do; and what is recorded of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onward import ApprovalRule, Context, Denied, Onward, tool
from onward.agent.models.scripted import ScriptedModel
from onward.core import event as events
from onward.core import record as r
from onward.core.approval import MAX_NAMES, MAX_VOTES, StoredVote, read_votes
from onward.core.audit import AuditKey
from onward.core.caller import ANONYMOUS, ANYBODY, SCOPES, Caller
from onward.core.event import Origin
from onward.core.task import Message
from onward.core.views import Ask
from onward.errors import (
    AlreadyDecided,
    AskExpired,
    AuditKeyMissing,
    BadSetting,
    KeyConflict,
    NotApprover,
    OwnCall,
    StaleDecision,
    UsageError,
)
from onward.server.access.service import AuthorizedService
from onward.service import asks as reading
from onward.service.submission import SubmitRequest
from onward.testing import drain, memory_app
from tests.docs.test_guides import code_of
from tests.kit import HandClock, Lab
from tests.service.test_approval_rules import person

ANN, ADA, BO, KIM = (person(name, role) for name, role in (("ann", "admin"), ("ada", "admin"), ("bo", "approver"), ("kim", "approver")))  # fmt: skip
ANY = ApprovalRule()
"""Any person or key, but not the asker."""
TWO = ApprovalRule(approvers=["role:approver", "role:admin"], votes=2)


def ship(app: Onward, *rules: ApprovalRule) -> None:
    """Handlers that ask for an approval: by themselves, in a child, after a question, after a signal."""
    app.approval_rules = rules

    @app.task(retry=1)
    async def send(ctx: Context, what: Any = "it") -> str:
        try:
            decision = await ctx.approve(f"send {what}", risk="external_action", timeout="2m")
        except Denied as denied:
            return f"denied: {denied.reason}"
        return f"sent, said {decision['by']}"

    @app.task(retry=1)
    async def boss(ctx: Context) -> Any:
        return await (await ctx.submit("send", "a child")).result()

    @app.task(retry=1)
    async def asks(ctx: Context) -> str:
        where = await ctx.ask("where?")
        await ctx.approve(f"send to {where}")
        return "sent"

    @app.task(retry=1)
    async def told(ctx: Context) -> str:
        await ctx.approve(f"send to {await ctx.signal('where')}")
        return "sent"

    app.schedule("nightly", send, "every night", cron="0 0 1 1 *")


@pytest.fixture
async def shop(clock: HandClock) -> Any:
    lab = Lab(clock)
    ship(lab.app, ANY)
    async with lab.app:
        await lab.start()
        yield lab
        await lab.stop()


def act(lab: Lab, caller: Caller) -> AuthorizedService:
    return AuthorizedService(lab.app.service, caller)


async def submit(lab: Lab, caller: Caller, name: str = "send", value: Any = None, **options: Any) -> str:
    (task_id,) = await act(lab, caller).submit([SubmitRequest(name, value, **options)])
    return task_id


async def approval(lab: Lab, task_id: str) -> Ask:
    """The open approval of a task, or of one below it."""

    async def look() -> Ask:
        while True:
            asks = [ask for ask in await lab.app.service.asks.of(await lab.app.get(task_id)) if ask.rule]
            if asks:
                return asks[0]
            await lab.clock.sleep(0.05)

    return await lab.clock.until(look())


async def refused(lab: Lab, ask: Ask, *callers: Caller) -> None:
    for caller in callers:
        for decision in ("approve", "deny"):
            with pytest.raises(NotApprover, match=r"asked for it|not known who asked") as error:
                await act(lab, caller).decide(ask.id, decision)
            assert (error.value.status, error.value.code) == (403, "not_approver")
            assert "Nothing was written" in str(error.value)
    assert [
        message.kind for message in await lab.store.inbox(ask.task_id) if message.kind in {"vote", "decision"}
    ] == []


# ── who asked ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_submitted_the_task_or_the_root_of_its_tree_is_the_asker(shop: Lab) -> None:
    for name in ("send", "boss"):
        ask = await approval(shop, await submit(shop, ANN, name))
        await refused(shop, ask, ANN)
        assert (await act(shop, BO).decide(ask.id, "approve")).decided


async def test_who_submits_the_task_again_with_its_key_is_an_asker_too(shop: Lab) -> None:
    task_id = await submit(shop, ANN, key="order 1")
    assert await submit(shop, ADA, key="order 1") == task_id == await submit(shop, ADA, key="order 1")
    ask = await approval(shop, task_id)
    await refused(shop, ask, ANN, ADA)
    other = person("eve", "admin")
    with pytest.raises(KeyConflict):
        await submit(shop, other, value="something else", key="order 1")
    assert (await act(shop, other).decide(ask.id, "approve")).decided, "it asked for another task"


async def test_who_sends_the_same_signal_again_is_an_asker_too(shop: Lab) -> None:
    task_id = await submit(shop, ANN, "told")
    for caller in (ADA, eve := person("eve", "admin")):
        await act(shop, caller).signal(task_id, "where", "to our account", id="s1")
    await refused(shop, await approval(shop, task_id), ANN, ADA, eve)


async def test_who_forked_a_task_is_an_asker_of_the_fork_and_so_is_who_submitted_the_origin(shop: Lab) -> None:
    origin = await submit(shop, ANN, labels={"a": "b"})
    await act(shop, BO).decide((await approval(shop, origin)).id, "approve")
    await shop.ended(origin)
    fork = await act(shop, ADA).fork(origin, input={"what": "more"})
    ask = await approval(shop, fork)
    await refused(shop, ask, ANN, ADA)
    second = await act(shop, KIM._replace(scopes=frozenset(SCOPES))).fork(fork, 1)
    await refused(shop, await approval(shop, second), ANN, ADA, KIM)
    assert (await shop.app.get(second)).labels == {"a": "b"}
    assert (await act(shop, BO).decide(ask.id, "approve")).decided
    in_python = await shop.app.fork(origin, 1)
    await refused(shop, await approval(shop, in_python.id), ANN)


async def test_who_resumed_a_task_or_one_above_it_is_an_asker(shop: Lab) -> None:
    for name, by_filter in (("send", False), ("boss", False), ("send", True)):
        task_id = await submit(shop, ANN, name)
        ask = await approval(shop, task_id)
        await act(shop, ANN).pause(task_id)
        if by_filter:
            assert (await act(shop, ADA).act("resume", 1, reason="paused")).done == 1
        else:
            await act(shop, ADA).resume(task_id)
        await refused(shop, ask, ANN, ADA)
        assert (await act(shop, BO).decide(ask.id, "approve")).decided


async def test_who_sent_a_task_something_is_an_asker(shop: Lab) -> None:
    task_id = await submit(shop, ANN, "told")
    await act(shop, ADA).signal(task_id, "where", "to my own account")
    await refused(shop, await approval(shop, task_id), ANN, ADA)
    task_id = await submit(shop, ANN, "asks")
    while not (questions := await shop.app.asks("question")):
        await shop.clock.until(shop.clock.sleep(0.05))
    await act(shop, BO).answer(questions[0].id, "to my own account")
    ask = await approval(shop, task_id)
    await refused(shop, ask, BO)
    await act(shop, ADA).message(task_id, "hurry up")
    await refused(shop, ask, ADA)
    assert (await act(shop, KIM).decide(ask.id, "approve")).decided


async def test_who_sent_a_child_something_is_an_asker_of_its_parent(shop: Lab) -> None:
    @shop.app.task(retry=1)
    async def where(ctx: Context) -> str:
        return str(await ctx.signal("where"))

    @shop.app.task(retry=1)
    async def sends(ctx: Context) -> str:
        await ctx.approve(f"send to {await (await ctx.submit('where')).result()}")
        return "sent"

    await shop.stop()
    await shop.start()
    task_id = await submit(shop, ANN, "sends")
    while not (children := await shop.store.children(task_id)):
        await shop.clock.until(shop.clock.sleep(0.05))
    await act(shop, ADA).signal(children[0], "where", "my own account")
    ask = await approval(shop, task_id)
    await refused(shop, ask, ANN, ADA)
    assert (await act(shop, BO).decide(ask.id, "approve")).decided


async def test_who_denied_with_a_reason_is_an_asker_of_what_comes_next(shop: Lab) -> None:
    @shop.app.task(retry=1)
    async def tries(ctx: Context) -> str:
        amount = "10"
        for _ in range(3):
            try:
                await ctx.approve(f"pay {amount}")
                return amount
            except Denied as denied:
                amount = denied.reason or amount
        return "nothing"

    await shop.stop()
    await shop.start()
    task_id = await submit(shop, ANN, "tries")
    await act(shop, BO).decide((await approval(shop, task_id)).id, "deny")
    second = await approval(shop, task_id)
    assert (await act(shop, BO).decide(second.id, "deny", reason="666")).decided, (
        "a denial without a reason steers nothing"
    )
    third = await approval(shop, task_id)
    for caller in (ANN, BO):
        with pytest.raises(NotApprover, match="asked for it"):
            await act(shop, caller).decide(third.id, "approve")
    assert (await act(shop, KIM).decide(third.id, "approve")).decided


async def test_a_task_that_goes_on_after_another_has_the_askers_of_that_one_too(clock: HandClock) -> None:
    lab = Lab(clock, approval_rules=[ANY])

    @tool(risk="external_action", idempotent=True)
    async def pay(to: str) -> str:
        """Pay."""
        return "paid"

    script = ScriptedModel(["not yet", [("pay", {"to": "me"})], "done"])
    lab.app.agent("clerk", model=script, tools=[pay], approve=["external_action"])
    async with lab.app:
        await lab.start()
        first = await submit(lab, ANN, "clerk", "remember to pay me")
        await lab.ended(first)
        (second,) = await act(lab, ADA).submit([SubmitRequest("clerk", "go on")], after=first)
        ask = await approval(lab, second)
        await refused(lab, ask, ANN, ADA)
        await act(lab, BO).decide(ask.id, "approve")
        assert (await lab.ended(second)).result == "done"
        await lab.stop()


async def test_a_schedule_has_no_asker_but_its_trigger_has(shop: Lab) -> None:
    await shop.app.save_schedules()
    await refused(shop, await approval(shop, await act(shop, ANN).trigger("nightly")), ANN)
    row = (await shop.store.schedules.list()).rows[0]
    (tick,) = await shop.store.submit([row.task_at(1.0, "06g0000000000000000000000t")])
    ask = await approval(shop, tick.id)
    assert (await act(shop, ANN).decide(ask.id, "approve")).decided, "code asked for it"


async def test_keys_of_one_person_count_as_that_person(shop: Lab) -> None:
    async def key_of(maker: Caller, name: str) -> Caller:
        made = await act(shop, maker).create_key(name, list(SCOPES))
        assert made.key.owner == maker.principal
        row = await shop.store.keys.get(made.key.id)
        assert row is not None
        return Caller(None, frozenset(SCOPES), row.id, row.name, owner=row.owner)

    first, second = await key_of(ANN, "first"), await key_of(ANN, "second")
    grandchild = await key_of(first, "of a key")
    everything_of_ann = (ANN, first, second, grandchild)
    for way_in in everything_of_ann:
        ask = await approval(shop, await submit(shop, way_in))
        await refused(shop, ask, *everything_of_ann)
        assert (await act(shop, BO).decide(ask.id, "approve")).decided
    named = await shop.app.keys.create("of bo", list(SCOPES), owner=BO.principal)
    of_bo = Caller(None, frozenset(SCOPES), named.key.id, "of bo", owner=named.key.owner)
    await refused(shop, await approval(shop, await submit(shop, of_bo)), BO, of_bo)
    odd = ("person: ", "person:bo ", "person:b\ufe0fo", "person:" + "b" * 256, "key:", "key:../x", "key:K1")
    for wrong in ("bo", "person:", "role:admin", *odd):
        with pytest.raises(BadSetting, match="owner"):
            await shop.app.keys.create("x", ["read"], owner=wrong)
    for wrong in ("", "person:b\x1b[2Jo", "person:b\u202eo", "person:" + "b" * 600):
        with pytest.raises(UsageError, match="owner must be a string of 1 to 512 printable characters"):
            await shop.app.keys.create("x", ["read"], owner=wrong)
    key = await shop.app.keys.create("of a key", ["read"], owner=f"key:{named.key.id}")
    assert key.key.owner == f"key:{named.key.id}"
    on_the_database = await shop.app.keys.create("robot", list(SCOPES))
    assert on_the_database.key.owner is None
    robot = Caller(None, frozenset(SCOPES), on_the_database.key.id, "robot")
    of_robot = await key_of(robot, "made with a key")
    await refused(shop, await approval(shop, await submit(shop, of_robot)), robot, of_robot)
    ask = await approval(shop, await submit(shop, ANN))
    assert (await act(shop, of_robot).decide(ask.id, "approve")).decided, "a key is a caller too"


async def test_a_person_and_their_key_have_one_vote(shop: Lab) -> None:
    shop.app.approval_rules = shop.worker.approval_rules = (ApprovalRule(votes=2),)
    ask = await approval(shop, await submit(shop, ANN))
    key = Caller(None, frozenset(SCOPES), "k1", "a key of ada", owner=ADA.principal)
    for caller in (ADA, key, ADA):
        assert (await act(shop, caller).decide(ask.id, "approve")).votes == 1
    assert (await act(shop, BO).decide(ask.id, "approve")).decided


async def test_nobody_decides_on_a_task_of_an_anonymous_caller(shop: Lab) -> None:
    task_id = await submit(shop, ANYBODY)
    ask = await approval(shop, task_id)
    assert ANYBODY.principal == ANONYMOUS
    await refused(shop, ask, ANN, BO)
    with pytest.raises(NotApprover, match="a caller without a key is not among those"):
        await act(shop, ANYBODY).decide(ask.id, "approve")
    await act(shop, ANN).cancel(task_id)


async def test_an_agent_with_its_own_key_decides_no_more_than_before(shop: Lab) -> None:
    own = Caller(None, frozenset(SCOPES) - {"admin"}, "k2", "robot", agent="send")
    with pytest.raises(OwnCall):
        await act(shop, own).decide((await approval(shop, await submit(shop, ANN))).id, "approve")


async def test_an_asker_may_decide_where_the_rule_says_so(shop: Lab) -> None:
    shop.worker.approval_rules = (ApprovalRule(asker=True),)
    ask = await approval(shop, await submit(shop, ANN))
    assert (await act(shop, ANN).decide(ask.id, "approve")).decided


# ── other doors ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_command_line_and_python_decide_only_where_a_rule_lists_them(shop: Lab) -> None:
    lin = Caller(name="cli:lin@desk")
    ask = await approval(shop, await submit(shop, ANN))
    with pytest.raises(NotApprover, match=r"cli:lin@desk is not among those .* one vote of any person or key"):
        await act(shop, lin).decide(ask.id, "approve")
    for by in ("", "bo", "id-bo", "person:id-bo", "cli:lin@desk"):
        with pytest.raises(NotApprover, match="python"):
            await shop.app.decide(ask.id, "approve", by=by)
    shop.worker.approval_rules = (ApprovalRule(approvers=["cli:lin@desk", "python:Kim", "person:id-bo"], votes=2),)
    ask = await approval(shop, await submit(shop, ANN))
    assert (await act(shop, lin).decide(ask.id, "approve")).decided is False
    assert await shop.app.decide(ask.id, "approve", by="Kim") is True
    task = await shop.ended(ask.task_id)
    assert task.result == "sent, said cli:lin@desk, Kim"
    mine = await approval(shop, await submit(shop, lin))
    await refused(shop, mine, lin)


async def test_an_account_is_one_caller_at_two_doors(shop: Lab) -> None:
    cli, mcp = Caller(name="cli:lin@desk"), Caller(name="mcp:lin@desk")
    shop.worker.approval_rules = (ApprovalRule(approvers=[cli.name, mcp.name, "role:approver"], votes=2),)
    for one, other in ((cli, mcp), (mcp, cli)):
        await refused(shop, await approval(shop, await submit(shop, one)), one, other)
    ask = await approval(shop, await submit(shop, ANN))
    assert [(await act(shop, caller).decide(ask.id, "approve")).votes for caller in (cli, mcp)] == [1, 1]
    assert (await act(shop, BO).decide(ask.id, "approve")).decided


async def test_a_program_names_the_person_for_whom_it_submits(shop: Lab) -> None:
    task = await shop.app.submit("send", asker=ANN.principal)
    await refused(shop, await approval(shop, task.id), ANN)
    (task,) = await shop.app.submit_many("send", [{"what": "it"}], asker=ADA.principal)
    await refused(shop, await approval(shop, task.id), ADA)
    ask = await approval(shop, (await shop.app.submit("send")).id)
    assert (await act(shop, ANN).decide(ask.id, "approve")).decided, "the program asked by itself"
    with pytest.raises(UsageError, match="asker"):
        await shop.app.submit("send", asker="")


async def test_a_program_that_knows_no_rules_cannot_approve(shop: Lab) -> None:
    """A server of an earlier version writes a decision without votes."""
    task_id = await submit(shop, ANN)
    ask = await approval(shop, task_id)
    old = json.dumps({"decision": "approve", "by": "ann"}).encode()
    await shop.store.send(task_id, Message("m", "decision", "", ask.seq, old))
    shop.store.nudge("ready")
    assert "does not know approval rules" in (await shop.ended(task_id)).result
    assert (await shop.app.replay(task_id)).agrees


async def test_a_rule_of_a_newer_version_is_not_guessed(shop: Lab) -> None:
    ask = await approval(shop, await submit(shop, ANN))
    records = await shop.store.journal(ask.task_id, ask.seq - 1, 1)
    newer = {**records[0].value, "rule": {**records[0].value["rule"], "hours": "9-17"}}
    read = reading._ask(ask.task_id, ask.task, ask.seq, r.APPROVAL, newer, 0.0)
    assert read.rule is not None
    with pytest.raises(NotApprover, match="cannot read all of it"):
        await shop.app.service.messages._votes.check(read, read.rule, BO, None, False)


# ── what a vote may not do ───────────────────────────────────────────────────────────────────────────────────────────


@tool(risk="external_action", idempotent=True)
async def refund(order: int, cents: int = 1) -> str:
    """Give money back."""
    return f"{cents} for {order}"


async def refunds(app: Any, *rules: ApprovalRule, calls: int = 1) -> list[Ask]:
    app.approval_rules = rules
    script: list[Any] = [[("refund", {"order": number}) for number in range(calls)], "done"]
    app.agent("clerk", model=ScriptedModel(script), tools=[refund], approve=["external_action"])
    await app.submit("clerk", "refund")
    await drain(app)
    asks: list[Ask] = await app.asks("approval")
    return asks


async def test_under_a_rule_no_vote_changes_arguments_or_approves_always() -> None:
    for rule in (TWO, ApprovalRule(), ApprovalRule(asker=True, votes=2)):
        app = memory_app()
        async with app:
            (ask,) = await refunds(app, rule)
            service = AuthorizedService(app.service, BO)
            with pytest.raises(UsageError, match="has a rule: a caller that changes the arguments"):
                await service.decide(ask.id, "approve", arguments={"order": 1, "cents": 5})
            with pytest.raises(UsageError, match="decide this one without 'always'"):
                await service.decide(ask.id, "approve", always=True)
            assert await app.store.inbox(ask.task_id) == []
    app = memory_app()
    async with app:
        (ask,) = await refunds(app, ApprovalRule(tools=["refund"], asker=True))
        decided = await AuthorizedService(app.service, BO).decide(ask.id, "approve", arguments={"order": 7})
        assert decided.decided
        await drain(app)
        assert (await app.get(ask.task_id)).result == "done"


async def test_always_for_a_call_without_a_rule_approves_none_with_one() -> None:
    app = memory_app(approval_rules=[ApprovalRule(risks=["high"])])

    @app.task
    async def two(ctx: Context) -> None:
        call = {"tool": "refund", "call": "c", "arguments": {}}
        await ctx.gather(*[ctx.approve(risk, risk=risk, data=call) for risk in ("low", "high", "lower")])

    async with app:
        await app.submit("two")
        await drain(app)
        low, _, _ = await app.asks("approval")
        await app.decide(low.id, "approve", always=True)
        assert [ask.risk for ask in await app.asks("approval")] == ["high"]


async def test_rules_are_checked_when_the_app_is_made() -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("approvers", {"approvers": ["ada"]}),
        ("approvers", {"approvers": ["role:boss"]}),
        ("approvers", {"approvers": ["person:"]}),
        ("approvers", {"approvers": ["person:a\n"]}),
        ("approvers", {"approvers": [f"person:{n}" for n in range(MAX_NAMES + 1)]}),
        ("risks", {"risks": [""]}),
        ("votes", {"votes": 0}),
        ("votes", {"votes": MAX_VOTES + 1}),
        ("votes", {"votes": True}),
        ("votes", {"votes": 2, "approvers": ["person:a"]}),
        ("votes", {"votes": 2, "approvers": ["person:a", "person:a"]}),
        ("asker", {"asker": "no"}),
    ]
    for name, fields in wrong:
        with pytest.raises(BadSetting, match=name):
            memory_app(approval_rules=[ApprovalRule(**fields)])
    with pytest.raises(BadSetting, match="tools"):
        ApprovalRule(tools="refund")  # type: ignore[arg-type]
    memory_app(approval_rules=[ApprovalRule(approvers=["role:approver"], votes=3)])


# ── what is recorded and shown ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_rule_that_matches_is_written_down_and_stays() -> None:
    app = memory_app()
    async with app:
        other = ApprovalRule(tools=["other"])
        by_handler = ApprovalRule(handlers=["someone"])
        (ask,) = await refunds(app, other, by_handler, ApprovalRule(risks=["external_action"], votes=2), ANY)
        assert ask.rule == ApprovalRule(risks=["external_action"], votes=2)
        assert ask.digest == code_of("approvals.md", "digest.py")["digest"](
            {**{name: getattr(ask, name) for name in ("id", "task", "text", "risk", "data")}, "rule": RULE_JSON}
        )
        app.approval_rules = ()
        (still,) = await app.asks("approval")
        assert still == ask
        with pytest.raises(StaleDecision):
            await AuthorizedService(app.service, BO).decide(ask.id, "approve", digest="0" * 64)
        voted = await AuthorizedService(app.service, BO).decide(ask.id, "approve", reason="fine", digest=ask.digest)
        assert (voted.decided, voted.votes, voted.needed) == (False, 1, 2)
        await drain(app)
        (shown,) = await app.asks("approval")
        assert [(vote.voter, vote.by, vote.decision, vote.reason) for vote in shown.votes] == [
            ("person:id-bo", "bo", "approve", "fine")
        ]
        assert await app.service.asks.get(ask.id) == shown
        assert shown.digest == ask.digest, "votes are not part of what is decided on"


RULE_JSON = {
    "risks": ["external_action"], "tools": [], "handlers": [], "approvers": [], "votes": 2, "asker": False,
}  # fmt: skip


async def test_each_vote_has_an_event_an_audit_entry_and_a_record(shop: Lab) -> None:
    shop.worker.approval_rules = (TWO,)
    task_id = await submit(shop, ANN)
    ask = await approval(shop, task_id)
    await act(shop, ADA).decide(ask.id, "approve", digest=ask.digest)
    await act(shop, ADA).decide(ask.id, "approve")
    await act(shop, KIM).decide(ask.id, "approve", reason="so be it")
    assert (await shop.ended(task_id)).result == "sent, said ada, kim"
    with pytest.raises(AlreadyDecided):
        await act(shop, BO).decide(ask.id, "approve")
    entries = [entry for entry in await shop.app.audit(limit=100) if entry.subject == ask.id]
    data = [json.loads(entry.data) for entry in entries]
    assert [(entry.action, entry.name) for entry in entries] == [("approve", "ada"), ("approve", "kim")]
    assert [(one["votes"], one["needed"], one.get("outcome")) for one in data] == [(1, 2, None), (2, 2, "approve")]
    assert [one["digest"] for one in data] == [ask.digest] * 2
    records = [record for record in await shop.store.journal(task_id) if record.kind == r.MESSAGE]
    assert [record.value["kind"] for record in records] == ["vote", "vote", "decision"]
    assert records[-1].value["value"]["votes"] == [
        {"voter": "person:id-ada", "by": "ada"},
        {"voter": "person:id-kim", "by": "kim"},
    ]
    types = [events.type_of(["approval.voted"], record, first=True) for record in records]
    assert types == ["approval.voted", "approval.voted", None]
    sent = events.event(task_id, records[1], "approval.voted", Origin("send", 0.0)).data
    assert (sent["approval_id"], sent["by"], sent["decision"], sent["voter"]) == (
        ask.id, "kim", "approve", "person:id-kim",
    )  # fmt: skip
    assert (await shop.app.replay(task_id)).agrees


async def test_an_approver_may_still_deny_and_one_denial_denies(shop: Lab) -> None:
    shop.worker.approval_rules = (TWO,)
    task_id = await submit(shop, ANN)
    ask = await approval(shop, task_id)
    assert (await act(shop, ADA).decide(ask.id, "approve")).votes == 1
    denied = await act(shop, ADA).decide(ask.id, "deny", reason="I was wrong")
    assert (denied.decided, denied.votes) == (True, 0)
    assert (await shop.ended(task_id)).result == "denied: I was wrong"


async def test_votes_do_not_stop_the_clock(shop: Lab) -> None:
    shop.worker.approval_rules = (TWO,)
    task_id = await submit(shop, ANN)
    ask = await approval(shop, task_id)
    await act(shop, ADA).decide(ask.id, "approve")
    assert (await shop.ended(task_id)).result == "denied: nobody decided in time"
    with pytest.raises(AskExpired):
        await act(shop, BO).decide(ask.id, "approve")


async def test_a_vote_that_cannot_be_audited_is_not_written(shop: Lab) -> None:
    ask = await approval(shop, await submit(shop, ANN))
    shop.store.audit.keys = (AuditKey(b"k" * 32),)
    await act(shop, ANN).prioritize(ask.task_id, 3)
    shop.store.audit.keys = ()
    with pytest.raises(AuditKeyMissing):
        await act(shop, BO).decide(ask.id, "approve")
    assert await shop.store.inbox(ask.task_id) == []
    (still,) = await shop.app.asks("approval")
    assert still.votes == ()


async def test_decisions_answers_and_verdicts_in_python_are_audited(shop: Lab) -> None:
    shop.worker.approval_rules = ()
    task = await shop.app.submit("asks")

    async def asked(kind: str) -> Ask:
        while not (asks := await shop.app.asks(kind)):
            await shop.clock.sleep(0.05)
        return asks[0]

    question = await shop.clock.until(asked("question"))
    await shop.app.answer(question.id, "there")
    ask = await shop.clock.until(asked("approval"))
    await shop.app.decide(ask.id, "approve", by="Lin")
    assert (await shop.ended(task.id)).result == "sent"
    assert [(entry.action, entry.subject, entry.name) for entry in await shop.app.audit()] == [
        ("answer", question.id, "python"),
        ("approve", ask.id, "python:Lin"),
    ]


def test_only_votes_on_this_approval_count() -> None:
    """A fork has copies of the messages of its origin, also of votes on a record of the same number."""
    vote = {"voter": "person:a", "by": "a", "decision": "approve", "digest": "of the origin"}
    stored = [
        StoredVote("t", 3, json.dumps({**vote, "digest": shown}).encode(), 1.0) for shown in ("of the origin", "d")
    ]
    assert len(read_votes(stored, "d")) == len(read_votes(stored, "of the origin")) == 1
    assert read_votes(stored[:1], "d") == ()
