"""The agent's loop: it comes to its answer, and killed anywhere it goes on with a well-formed history and no doubled effect."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import BaseModel

from onward import Onward, State
from onward.agent.loop import CHECKPOINT_EVERY_TURNS
from onward.agent.model import ModelBusy, ModelRefused, Reply, ToolCall
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core import record as r
from onward.testing import crashes, drain
from tests.agent.pairing import badly_paired
from tests.kit import Lab, eventually


class Disk:
    """The disk that the tools check and clean."""

    def __init__(self) -> None:
        self.looked: list[str] = []
        self.cleaned: list[str] = []

    def tools(self) -> list[Any]:
        @tool
        async def check_disk(path: str = "/") -> str:
            """How full is the disk?"""
            self.looked.append(path)
            return f"{path}: 93 %"

        @tool(risk="write_local", idempotent=True)
        async def clean_logs(ctx: Any, path: str) -> str:
            """Delete old logs."""
            if ctx.key not in self.cleaned:  # like a service that knows effect keys
                self.cleaned.append(ctx.key)
            return "1.2 GB are free"

        return [check_disk, clean_logs]


SCRIPT: Any = [
    [("update_plan", {"plan": ["look", "clean"]}), ("record_fact", {"key": "os", "value": "linux", "source": "user"})],
    [("check_disk", {"path": "/"}), ("check_disk", {"path": "/var"})],
    [("clean_logs", {"path": "/var/log"})],
    "Done: 1.2 GB are free.",
]


def agent(app: Onward, disk: Disk, script: Any = SCRIPT, **options: Any) -> tuple[Any, ScriptedModel]:
    model = ScriptedModel(script)
    return app.agent("devops", model=model, tools=disk.tools(), instructions="You fix disks.", **options), model


async def test_it_comes_to_its_answer(app: Onward) -> None:
    disk = Disk()
    devops, model = agent(app, disk)
    async with app.worker():
        handle = await app.submit(devops, "I'm out of disk space. Fix it.")
        assert await handle.result(timeout=60) == "Done: 1.2 GB are free."
    assert sorted(disk.looked) == ["/", "/var"]
    assert len(disk.cleaned) == 1
    assert [badly_paired(request.messages) for request in model.asked] == [[]] * 4
    last = model.asked[-1].conversation
    assert last[0] == {"role": "system", "content": "You fix disks."}
    assert "Goal: I'm out of disk space. Fix it." in model.asked[-1].state
    assert "1. look" in model.asked[-1].state
    assert "os = linux (user)" in model.asked[-1].state
    assert [message["role"] for message in last[1:]] == [
        "user",
        *["assistant", "tool", "tool"] * 2,
        *["assistant", "tool"],
    ]
    assert last[-1]["content"] == "1.2 GB are free"


@pytest.mark.slow
async def test_killed_anywhere_it_goes_on() -> None:
    points = 0
    async for app in crashes():
        disk = Disk()
        devops, model = agent(app, disk)
        handle = await app.submit(devops, "Fix it.")
        await drain(app)
        assert await handle.result(timeout=1) == "Done: 1.2 GB are free.", app.killed_at
        assert len(disk.cleaned) == 1, app.killed_at
        assert all(badly_paired(request.messages) == [] for request in model.asked), app.killed_at
        assert 4 <= len(model.asked) <= 5, "a model call is paid twice only when its answer was not recorded"
        points += 1
    assert points > 12


async def test_a_long_conversation_goes_on_from_its_checkpoints() -> None:
    turns = 2 * CHECKPOINT_EVERY_TURNS + 5

    def script() -> Any:
        return [[("check_disk", {"path": f"/{number}"})] for number in range(turns)] + ["enough"]

    class Counting(ScriptedModel):
        async def ask(self, request: Any, emit: Any) -> Any:
            self.asked.append(request)
            number = (
                int(request.conversation[-1]["content"].partition(":")[0].strip("/")) + 1 if len(self.asked) > 1 else 0
            )
            return await ScriptedModel([script()[number]]).ask(type(request)(request.conversation[:1]), emit)

    from onward.testing import memory_app

    app = memory_app()
    async with app:
        disk = Disk()
        model = Counting([])
        devops = app.agent("devops", model=model, tools=disk.tools())
        handle = await app.submit(devops, "Look around.")
        await drain(app)
        assert await handle.result(timeout=1) == "enough"
        kinds = [record.kind for record in await app.service.journal(handle.id, limit=1000)]
    assert kinds.count(r.CHECKPOINT) == 2
    assert all(badly_paired(request.messages) == [] for request in model.asked)
    assert len(model.asked[-1].conversation) > 2 * turns


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("no_such_tool", {}), "error: there is no tool 'no_such_tool'; there are ask_user, check_disk"),
        (("check_disk", {"pfad": "/"}), "error: tool 'check_disk' has no 'pfad'"),
        (("read_artifact", {"artifact_id": "../etc/passwd"}), "error: ArtifactNotFound: task "),
    ],
)
async def test_a_wrong_call_is_an_error_for_the_model(lab: Lab, call: Any, sentence: str) -> None:
    devops, model = agent(lab.app, Disk(), [[call], "sorry"])
    task = await lab.run(devops, "x")
    assert task.result == "sorry"
    assert model.asked[-1].conversation[-1]["content"].startswith(sentence)


@pytest.mark.parametrize("id_", ["", "x"])
async def test_calls_of_one_id_get_a_result_each(lab: Lab, id_: str) -> None:
    """An own model may give two calls one id. The history is well formed, and the model reads both results."""
    disk = Disk()
    both = Reply("", tuple(ToolCall(id_, "check_disk", f'{{"path":"{path}"}}') for path in ("/a", "/b")))
    devops, model = agent(lab.app, disk, [both, "done"])
    assert (await lab.run(devops, "look")).result == "done"
    assert badly_paired(model.asked[1].messages) == []
    assert [message["content"] for message in model.asked[1].conversation[-2:]] == ["/a: 93 %", "/b: 93 %"]


async def test_a_large_output_is_an_artifact_that_can_be_read(lab: Lab) -> None:
    @tool
    def logs() -> str:
        """All logs."""
        return "\n".join(f"line {number} {'error' if number == 700 else 'ok'}" for number in range(1, 1001))

    def look(request: Any) -> Any:
        shown = request.conversation[-1]["content"]
        assert len(shown) < 5000
        name = shown.partition("read_artifact('")[2].partition("'")[0]
        return [("read_artifact", {"artifact_id": name, "search": "error"})]

    model = ScriptedModel([[("logs", {})], look, "found it"])
    lab.app.agent("reader", model=model, tools=[logs])
    task = await lab.run("reader", "What is wrong?")
    assert task.result == "found it"
    assert model.asked[-1].conversation[-1]["content"] == "700: line 700 error"
    assert "tool_result.text" in model.asked[-1].messages[-1]["content"]


async def test_a_risky_tool_waits_for_a_person_and_a_no_is_read(app: Onward) -> None:
    disk = Disk()
    script = [[("clean_logs", {"path": "/a"})], [("clean_logs", {"path": "/b"})], "as you wish"]
    devops, model = agent(app, disk, script, approve=["write_local"])
    async with app.worker():
        handle = await app.submit(devops, "Clean up.")
        ask = (await eventually(app.asks))[0]
        assert ask.data == {"tool": "clean_logs", "call": "call_0_0", "arguments": {"path": "/a"}}
        await app.decide(ask.id, "deny", reason="not that one")
        ask = (await eventually(app.asks))[0]
        assert disk.cleaned == []
        await app.decide(ask.id, "approve")
        assert await handle.result(timeout=60) == "as you wish"
    assert len(disk.cleaned) == 1
    assert model.asked[1].conversation[-1]["content"] == "denied: not that one"


async def test_a_question_is_answered_and_kept_as_a_fact(app: Onward) -> None:
    devops, model = agent(app, Disk(), [[("ask_user", {"question": "Which disk?"})], "thanks"])
    async with app.worker():
        handle = await app.submit(devops, "Fix it.")
        ask = (await eventually(app.asks))[0]
        await app.answer(ask.id, "the second")
        assert await handle.result(timeout=60) == "thanks"
    assert model.asked[-1].conversation[-1]["content"] == "the second"
    assert "Which disk? = the second (user)" in model.asked[-1].messages[-1]["content"]


async def test_an_answer_of_a_promised_form(lab: Lab) -> None:
    class Found(BaseModel):
        path: str
        bytes: int

    model = ScriptedModel(["it is /var", '{"path": "/var", "bytes": 7}'])
    lab.app.agent("finder", model=model, result=Found)
    assert (await lab.run("finder", "What is large?")).result == {"path": "/var", "bytes": 7}
    assert "Your answer does not fit" in model.asked[1].conversation[-1]["content"]


async def test_a_busy_model_is_asked_again_when_it_says(lab: Lab) -> None:
    answers: list[Any] = [ModelBusy("m", "too many", 30.0), ModelBusy("m", "too many", None)]
    devops, model = agent(lab.app, Disk(), [lambda _: answers.pop(0) if answers else "at last"])
    start = lab.clock.time
    task = await lab.run(devops, "x")
    assert task.result == "at last"
    assert lab.clock.time - start >= 30
    assert (len(model.asked), task.attempt) == (3, 1)


async def test_a_model_that_refuses_is_not_asked_again(lab: Lab) -> None:
    devops, model = agent(lab.app, Disk(), [ModelRefused("m", "401 no such key")])
    task = await lab.run(devops, "x")
    assert task.state is State.FAILED
    assert "401 no such key" in (task.error or {})["message"]
    assert len(model.asked) == 1


@pytest.mark.parametrize("asks", ["plain", "async"])
async def test_a_tool_with_reconcile_is_not_repeated(asks: str) -> None:
    points = 0
    async for app in crashes():
        sent: list[str] = []

        def happened(to: str, sent: list[str] = sent) -> Any:
            return "sent before" if to in sent else None

        async def happened_async(to: str, sent: list[str] = sent) -> Any:
            return "sent before" if to in sent else None

        @tool(risk="external_action", reconcile=happened if asks == "plain" else happened_async)
        async def send(to: str, sent: list[str] = sent) -> str:
            """Send a letter."""
            sent.append(to)
            return "sent"

        model = ScriptedModel([[("send", {"to": "Ada"})], "done"])
        handle = await app.submit(app.agent("post", model=model, tools=[send]), "Write to Ada.")
        await drain(app)
        assert await handle.result(timeout=1) == "done", app.killed_at
        assert sent == ["Ada"], app.killed_at
        points += 1
    assert points > 6


@pytest.mark.parametrize(
    ("verdict", "value", "read"),
    [
        ("happened", "7 euros are paid", "7 euros are paid"),
        ("happened", {"paid": 7}, '{"paid":7}'),
        ("happened", None, "it happened; its result is not known"),
        ("not_happened", None, "paid"),
        ("undo", None, "error: Undone: a person had it undone, as it was unknown whether it happened"),
    ],
)
async def test_the_verdict_of_a_person_on_an_effect_in_doubt_is_read(
    lab: Lab, verdict: str, value: Any, read: str
) -> None:
    did: list[int] = []

    @tool(risk="external_action")
    async def pay(euros: int) -> str:
        """Pay."""
        did.append(euros)
        if len(did) == 1:
            raise ConnectionError("did it arrive?")
        return "paid"

    model = ScriptedModel([[("pay", {"euros": 7})], [("update_plan", {"plan": []})], "done"])
    lab.app.agent("payer", model=model, tools=[pay])
    await lab.start()
    task_id = await lab.submit("payer", "Pay the bill.")
    assert (await lab.settled(task_id)).reason == "in_doubt"
    await lab.app.resolve(task_id, verdict, value)
    task = await lab.ended(task_id)
    assert (task.state, task.result) == (State.COMPLETED, "done"), task.error
    assert [request.conversation[3]["content"] for request in model.asked[1:]] == [read, read]
    assert len(did) == (2 if verdict == "not_happened" else 1)


async def test_a_model_is_asked_in_the_loop(lab: Lab) -> None:
    """A coroutine made in a thread would never be awaited when the shift ends before the thread returns."""
    devops, _ = agent(lab.app, Disk(), [[("check_disk", {})], "done"])
    assert (await lab.run(devops, "x")).result == "done"
    assert lab.worker.threads._idle == [], "nothing here needs a thread"


async def test_most_of_a_request_is_the_beginning_of_the_next_one(app: Onward) -> None:
    """Providers charge less for a beginning that they have seen. Only the state changes, and it stands last."""

    @tool
    async def look(n: int) -> str:
        """Look."""
        return f"{n}: nothing"

    turns = 50
    script: list[Any] = [[("look", {"n": turn})] for turn in range(turns)]
    script[::5] = [[("update_plan", {"plan": ["look", f"tell {turn}"]})] for turn in range(0, turns, 5)]
    script[1::5] = [
        [("record_fact", {"key": f"k{turn}", "value": turn, "source": "me"})] for turn in range(1, turns, 5)
    ]
    model = ScriptedModel([*script, "done"])
    agent = app.agent("looker", model=model, tools=[look], instructions="Look.")
    async with app.worker():
        assert await (await app.submit(agent, "Look around.")).result(timeout=60) == "done"
    assert len(model.asked) == turns + 1
    same = total = 0
    for before, after in itertools.pairwise(model.asked):
        pairs = zip(before.messages, after.messages, strict=False)
        same += sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        total += len(before.messages)
    assert same / total >= 0.95, (same, total)
    assert len({request.state for request in model.asked}) > 1, "the state changes"


async def test_opaque_parts_of_a_reply_come_back_after_a_kill_anywhere() -> None:
    thought = {"thinking_blocks": [{"type": "thinking", "thinking": "Hm.\u2028", "signature": "c2ln+/="}]}
    signed = ToolCall("c1", "look", "{}", {"extra_content": {"google": {"thought_signature": "x"}}})

    async for app in crashes():

        @tool
        async def look() -> str:
            """Look."""
            return "nothing"

        model = ScriptedModel([Reply("", (signed,), finish="tool_calls", extra=thought), "done"])
        agent = app.agent("looker", model=model, tools=[look])
        handle = await app.submit(agent, "Look.")
        await drain(app)
        assert (await app.get(handle.id)).result == "done", app.killed_at
        (reply,) = [message for message in model.asked[-1].messages if message["role"] == "assistant"]
        assert reply["thinking_blocks"] == thought["thinking_blocks"]
        assert reply["tool_calls"][0]["extra_content"] == signed.extra["extra_content"]
