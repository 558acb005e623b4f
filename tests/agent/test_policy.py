"""The policy: it decides the next action of an agent; and useless replies of models."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel

from onward import State
from onward.agent import loop
from onward.agent.model import ModelBusy, Reply, Request, ToolCall
from onward.agent.models.scripted import ScriptedModel
from onward.agent.policy import MAX_REPEATED_TURNS, MAX_USELESS_REPLIES, Action, Answer, Ask, Do, Say, Seen, Stop, usual
from onward.agent.tools import tool
from onward.core.state import BUDGET_PRESSURE, AgentState, Fact, StatePatch
from onward.testing import crashes, drain
from tests.agent.pairing import badly_paired
from tests.kit import Lab

STATE = AgentState(goal="g")
CALL = ToolCall("c1", "look", "{}")


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        (Seen(STATE), Ask()),
        (Seen(STATE, reply=Reply("", (CALL,), finish="tool_calls")), Do((CALL,))),
        (Seen(STATE, reply=Reply("so", (CALL,))), Do((CALL,))),
        (Seen(STATE, reply=Reply("done"), answer="done"), Answer("done")),
        (Seen(STATE, repeated=MAX_REPEATED_TURNS - 1), Ask()),
    ],
)
def test_the_usual_policy(seen: Seen, action: Action) -> None:
    assert usual(seen) == action


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Seen(STATE, reply=Reply("half a sen", finish="length")), "cut off"),
        (Seen(STATE, reply=Reply("", (ToolCall("c", "delete", ""),), finish="length")), "nothing of it was done"),
        (Seen(STATE, reply=Reply("", finish="content_filter")), "content filter"),
        (Seen(STATE, reply=Reply(" \n")), "empty"),
        (Seen(STATE, reply=Reply("x"), wrong="Your answer does not fit: no JSON."), "does not fit"),
        (Seen(STATE, repeated=MAX_REPEATED_TURNS), "3 times in a row"),
    ],
)
def test_a_useless_reply_gets_a_hint_and_after_a_few_the_agent_stops(seen: Seen, words: str) -> None:
    hint = usual(seen)
    assert isinstance(hint, Say)
    assert words in hint.text
    given_up = usual(dataclasses.replace(seen, useless=MAX_USELESS_REPLIES - 1))
    if seen.reply is None:
        assert given_up == hint, "a hint is not a failure"
    else:
        assert isinstance(given_up, Stop)
        assert "another model" in given_up.why or "model that" in given_up.why


class Lines:
    """A model that replies with one line after the other, for any request."""

    name = "lines"

    def __init__(self, *lines: Reply) -> None:
        self.lines = list(lines)
        self.asked: list[Request] = []

    async def ask(self, request: Request, emit: Any) -> Reply:
        self.asked.append(request)
        return self.lines[min(len(self.asked), len(self.lines)) - 1]


@pytest.mark.parametrize("finish", ["length", "content_filter", "stop"])
async def test_a_model_with_useless_replies_is_asked_again_and_given_up(lab: Lab, finish: str) -> None:
    model = Lines(Reply("", finish=finish), Reply("fine"))
    lab.app.agent("one", model=model)
    assert (await lab.run("one", "x")).result == "fine"
    assert [message["role"] for message in model.asked[1].conversation[1:]] == ["user", "assistant", "user"]
    assert model.asked[1].conversation[2]["content"], "a message with nothing in it is refused by some providers"
    lab.app.agent("two", model=(silent := Lines(Reply("", finish=finish))))
    task = await lab.run("two", "x")
    assert (task.state, (task.error or {})["type"]) == (State.FAILED, "NoAnswer")
    assert "gave 3 replies in a row that are of no use" in (task.error or {})["message"]
    assert len(silent.asked) == MAX_USELESS_REPLIES
    assert (await lab.app.replay(task.task_id)).agrees


async def test_a_call_that_was_cut_off_is_not_done(lab: Lab) -> None:
    done: list[str] = []

    @tool(risk="write_local")
    def delete(path: str = "/") -> str:
        """Delete a folder."""
        done.append(path)
        return "gone"

    model = Lines(Reply("", (ToolCall("c", "delete", ""),), finish="length"), Reply("better not"))
    lab.app.agent("cleaner", model=model, tools=[delete])
    assert (await lab.run("cleaner", "x")).result == "better not"
    assert done == []
    assert badly_paired(model.asked[1].messages) == []
    assert [message["content"] for message in model.asked[1].conversation[-2:-1]] == ["not done"]


async def test_an_answer_that_never_has_the_promised_form_ends(lab: Lab) -> None:
    class Found(BaseModel):
        path: str

    lab.app.agent("finder", model=(model := Lines(Reply("it is /var"))), result=Found)
    task = await lab.run("finder", "x")
    assert "promise a simpler form" in (task.error or {})["message"]
    assert len(model.asked) == MAX_USELESS_REPLIES


async def test_the_same_calls_again_and_again_get_a_hint(lab: Lab) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "the same"

    script: Any = [[("look", {})]] * 5 + ["enough"]
    lab.app.agent("looker", model=(model := ScriptedModel(script)), tools=[look])
    assert (await lab.run("looker", "x")).result == "enough"
    hinted = ["very same calls" in str(request.conversation[-1]["content"]) for request in model.asked]
    assert hinted == [False, False, False, True, False, False]
    assert all(badly_paired(request.messages) == [] for request in model.asked)


async def test_a_checkpoint_keeps_the_memory_of_the_policy(lab: Lab, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_TURNS", 2)

    @tool
    def look() -> str:
        """Look."""
        return "the same"

    class Leaving(Lines):
        """Busy right after the checkpoint, for so long that the task leaves memory and goes on from it."""

        left = False

        async def ask(self, request: Request, emit: Any) -> Reply:
            if len(self.asked) == 2 and not self.left:
                self.left = True
                raise ModelBusy("lines", "come back", 30.0)
            return await super().ask(request, emit)

    calls = [Reply("", (ToolCall(f"c{n}", "look", "{}"),)) for n in range(3)]
    lab.app.agent("looker", model=(looker := Leaving(*calls, Reply("enough"))), tools=[look])
    assert (await lab.run("looker", "x")).result == "enough"
    assert "very same calls 3 times" in looker.asked[-1].conversation[-1]["content"]
    lab.app.agent("silent", model=(silent := Leaving(Reply(""))))
    assert ((await lab.run("silent", "x")).error or {})["type"] == "NoAnswer"
    assert len(silent.asked) == MAX_USELESS_REPLIES
    assert looker.left
    assert silent.left


async def test_an_own_policy_acts_without_the_model_and_is_replayed() -> None:
    @tool(normalize=lambda output: StatePatch(append_facts=(Fact(key="disk", value=output, source="df"),)))
    def check_disk(path: str) -> str:
        """How full?"""
        return f"{path}: 93 %"

    def look_first(seen: Seen) -> Action:
        """Calls the tool before the first model call, and makes the answer from the reply and the fact."""
        if seen.state.fact("disk") is None:
            return Do((ToolCall("mine", "check_disk", '{"path": "/"}'),))
        if seen.reply is not None:
            return Answer([seen.reply.text, seen.state.fact("disk")])
        return usual(seen)

    async for app in crashes():
        model = ScriptedModel(["unused", "It is full."])
        handle = await app.submit(app.agent("devops", model=model, tools=[check_disk], policy=look_first), "Look.")
        await drain(app)
        assert await handle.result(timeout=1) == ["It is full.", "/: 93 %"], app.killed_at
        assert badly_paired(model.asked[0].messages) == []
        assert "disk = /: 93 % (df)" in model.asked[0].messages[-1]["content"]
        assert app.killed_at or (await app.replay(handle.id)).agrees


async def test_calls_that_a_policy_leaves_out_are_not_done(lab: Lab) -> None:
    done: list[str] = []

    @tool
    def look(at: str) -> str:
        """Look."""
        done.append(at)
        return at

    def only_first(seen: Seen) -> Action:
        action = usual(seen)
        return Do(action.calls[:1]) if isinstance(action, Do) else action

    model = ScriptedModel([[("look", {"at": "a"}), ("look", {"at": "b"})], "ok"])
    lab.app.agent("looker", model=model, tools=[look], policy=only_first)
    assert (await lab.run("looker", "x")).result == "ok"
    assert done == ["a"]
    assert [message["content"] for message in model.asked[1].conversation[-2:]] == ["a", "not done"]


async def test_a_normaliser_that_fails_is_flagged_and_the_tool_is_done_once(lab: Lab) -> None:
    done: list[int] = []

    @tool(risk="write_local", idempotent=True, normalize=lambda output: output["no such part"])
    def write() -> dict[str, int]:
        """Write."""
        done.append(1)
        return {"written": 1}

    lab.app.agent("writer", model=(model := ScriptedModel([[("write", {})], "ok"])), tools=[write])
    task = await lab.run("writer", "x")
    assert (task.result, done) == ("ok", [1])
    assert (await lab.app.state(task.task_id)).risk_flags == ("the output of write was not understood: 'no such part'",)
    assert model.asked[1].conversation[-1]["content"] == '{"written":1}'


async def test_a_tool_that_was_reconciled_is_normalised_too() -> None:
    async for app in crashes():
        sent: list[str] = []

        def happened(to: str, sent: list[str] = sent) -> Any:
            return to if to in sent else None

        def known(to: str) -> StatePatch:
            return StatePatch(append_facts=(Fact(key="sent", value=to, source="post"),))

        @tool(risk="external_action", reconcile=happened, normalize=known)
        async def send(to: str, sent: list[str] = sent) -> str:
            """Send a letter."""
            sent.append(to)
            return to

        model = ScriptedModel([[("send", {"to": "Ada"})], "done"])
        handle = await app.submit(app.agent("post", model=model, tools=[send]), "Write to Ada.")
        await drain(app)
        assert (await app.state(handle.id)).fact("sent") == "Ada", app.killed_at
        assert sent == ["Ada"]


async def test_an_agent_that_is_short_of_budget_or_time_gets_a_hint(lab: Lab) -> None:
    class Slow(Lines):
        async def ask(self, request: Request, emit: Any) -> Reply:
            reply = await super().ask(request, emit)
            if len(self.asked) == 1:
                lab.clock.jump(5)
            elif len(self.asked) == 2:
                lab.clock.jump(3)
            return reply

    @tool(normalize=lambda _: StatePatch(flag_risks=(BUDGET_PRESSURE,)))
    async def spend() -> str:
        """Spend."""
        return "spent"

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    calls = [Reply("", (ToolCall(f"c{n}", name, "{}"),)) for n, name in enumerate(["look", "look", "spend"])]
    model = Slow(*calls, Reply("ok"))
    lab.app.agent("late", model=model, tools=[look, spend], deadline=10)
    assert (await lab.run("late", "x")).result == "ok"
    hurried = [request.messages[-1]["content"].splitlines()[-1] for request in model.asked]
    assert [line.startswith("Your ") for line in hurried] == [False, False, True, True]
    assert "Your time is nearly over" in hurried[2]
    assert "Your budget is nearly over" in hurried[3]
