"""Whole agents, with a worker, against a strict OpenAI-compatible server that is not part of this project, through the official SDK.

All requests go through a proxy that refuses a history with an unpaired call, as strict providers do (`rig.strict`); no test
here has a refused request at its end.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from typing import Any

import pytest

from onward import Onward, State
from onward.agent.conversation import Conversation
from onward.agent.models.openai import OpenAIModel
from onward.agent.prices import Prices
from onward.agent.tools import tool
from onward.core import record as r
from onward.core.task import Task
from rig.aimock import AIMock
from rig.strict import Answer, Strict, events
from tests.agent.test_openai import part, piece
from tests.kit import only_memory

GOAL = "What is the weather in Oslo and in Bergen?"
CALLS = [{"name": "get_weather", "arguments": f'{{"city":"{city}"}}'} for city in ("Oslo", "Bergen")]
SCRIPT = [
    {"match": {"turnIndex": 0}, "response": {"content": "Let me look.", "toolCalls": CALLS, "usage": {"prompt_tokens": 100, "completion_tokens": 10}}},
    {"match": {"turnIndex": 1}, "response": {"toolCalls": [{"name": "write_down", "arguments": '{"text":"rain"}'}], "usage": {"prompt_tokens": 200, "completion_tokens": 20}}},
    {"match": {"turnIndex": 2}, "response": {"content": "It rains in both.", "usage": {"prompt_tokens": 300, "completion_tokens": 30}}},
]  # fmt: skip


class World:
    """The world that the tools see and change."""

    def __init__(self) -> None:
        self.looked: list[str] = []
        self.written: list[str] = []

    def tools(self) -> list[Any]:
        @tool
        async def get_weather(city: str) -> str:
            """The weather of a city."""
            self.looked.append(city)
            return f"rain in {city}"

        @tool(risk="write_local")
        async def write_down(ctx: Any, text: str) -> str:
            """Write a text down."""
            self.written.append(f"{ctx.key} {text}")
            return "written"

        return [get_weather, write_down]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def run(app: Onward, door: Strict, world: World) -> Callable[..., Any]:
    async def run(goal: str = GOAL, **options: Any) -> tuple[Task, list[dict[str, Any]]]:
        """Runs a task of the agent to its end; returns it with the records of its model steps."""
        model = OpenAIModel("gpt-5-mini", base_url=door.url, api_key="k", prices=Prices(1.0, 10.0), **options)
        agent = app.agent("weatherman", model=model, instructions="Be short.", tools=world.tools(), retry=1)
        async with app.worker():
            handle = await app.submit(agent, goal)
            task = await app.service.wait(handle.id, 60)
        records = await app.service.journal(handle.id)
        return task, [
            record.value["result"] for record in records if record.kind == r.STEP_DONE and "model" in record.key
        ]

    return run


# ── without trouble ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_agent_streams_calls_tools_and_knows_its_cost(
    run: Callable[..., Any], door: Strict, openai_server: AIMock, world: World
) -> None:
    openai_server.script(SCRIPT)
    task, calls = await run()
    assert task.result == "It rains in both."
    assert sorted(world.looked) == ["Bergen", "Oslo"]
    assert len(world.written) == 1
    assert [(call["usage"]["input"], call["usage"]["output"]) for call in calls] == [(100, 10), (200, 20), (300, 30)]
    assert [call["cost"] for call in calls] == pytest.approx([0.0002, 0.0004, 0.0006])
    assert [call["finish"] for call in calls] == ["tool_calls", "tool_calls", "stop"]
    assert all(seen["stream"] for seen in door.seen)
    assert {"get_weather", "write_down", "ask_user"} <= {spec["function"]["name"] for spec in door.seen[0]["tools"]}
    roles = [message["role"] for message in door.seen[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]


# ── with trouble ─────────────────────────────────────────────────────────────────────────────────────────────────────

SOON_AS_DATE = "in a moment, as a date"


@pytest.mark.slow
@only_memory
@pytest.mark.parametrize(
    ("trouble", "attempts"),
    [
        (Answer(429, headers={"Retry-After": "1"}), 1),
        (Answer(429, headers={"Retry-After": SOON_AS_DATE}), 1),
        (Answer(429, headers={"retry-after-ms": "300"}), 1),
        (Answer(503, headers={"Retry-After": "1"}), 1),
        (Answer(500), 2),
        (Answer(503), 2),
        (events(piece({"content": "It ra"}), done=False), 2),
        (Answer(200, b'data: {"choi', {"Content-Type": "text/event-stream"}, cut=True), 2),
        (events(piece({"content": "It"}), "{nonsense"), 2),
        (events(), 2),
    ],
    ids=[
        "429",
        "429 by date",
        "429 in ms",
        "503 with a time",
        "500",
        "503",
        "broken off",
        "cut",
        "nonsense",
        "nothing",
    ],
)
async def test_the_agent_survives_trouble_and_counts_it_by_kind(
    run: Callable[..., Any],
    door: Strict,
    openai_server: AIMock,
    world: World,
    app: Onward,
    trouble: Answer,
    attempts: int,
) -> None:
    openai_server.script(SCRIPT)
    if trouble.headers.get("Retry-After") == SOON_AS_DATE:
        trouble = Answer(429, headers={"Retry-After": email.utils.formatdate(time.time() + 2, usegmt=True)})
    door.say(trouble)
    task, _ = await run()
    assert (task.state, task.result, task.attempt) == (State.COMPLETED, "It rains in both.", 1)
    assert len(door.seen) == 4, "one question in vain"
    assert len(world.written) == 1
    done = [
        record
        for record in await app.service.journal(task.task_id)
        if record.kind == r.STEP_DONE and record.key == "model"
    ]
    assert done[0].value.get("attempts", 1) == attempts


@only_memory
async def test_the_agent_survives_a_silent_server(
    run: Callable[..., Any], door: Strict, openai_server: AIMock, world: World
) -> None:
    slow = {**SCRIPT[0], "match": {"turnIndex": 0, "sequenceIndex": 0}, "latency": 20_000}
    openai_server.script([slow, *SCRIPT])
    task, _ = await run(first=1.0)
    assert task.result == "It rains in both."
    assert len(door.seen) == 4


@only_memory
@pytest.mark.parametrize(
    ("name", "arguments", "answer_begins"),
    [
        ("get_weather", '{"city":"Os', "error: "),
        ("get_weather", "", "error: "),
        ("get_weather", '["Oslo"]', "error: "),
        ("get_weather", '{"town":"Oslo"}', "error: tool 'get_weather' needs 'city'"),
        ("functions.get weather", '{"city":"Oslo"}', "error: there is no tool 'functions.get weather'"),
        ("", "{}", "error: there is no tool ''"),
    ],
)
async def test_a_call_that_makes_no_sense_is_answered_and_the_history_stays_whole(
    run: Callable[..., Any],
    door: Strict,
    openai_server: AIMock,
    world: World,
    name: str,
    arguments: str,
    answer_begins: str,
) -> None:
    openai_server.script([{"match": {"hasToolResult": True}, "response": {"content": "I see."}}])
    door.say(events(piece(part(0, "call_1", name, arguments)), piece({}, "tool_calls")))
    task, _ = await run()
    assert task.result == "I see."
    assert world.looked == []
    assert door.seen[1]["messages"][-1]["content"].startswith(answer_begins)


@only_memory
async def test_calls_with_one_id_are_answered_each(
    run: Callable[..., Any], door: Strict, openai_server: AIMock, world: World
) -> None:
    openai_server.script([{"match": {"hasToolResult": True}, "response": {"content": "I see."}}])
    twins = [part(0, "a", "get_weather", '{"city":"Oslo"}'), part(1, "a", "get_weather", '{"city":"Bergen"}')]
    door.say(events(*[piece(delta) for delta in twins], piece({}, "tool_calls")))
    task, _ = await run()
    assert task.result == "I see."
    assert sorted(world.looked) == ["Bergen", "Oslo"]


@only_memory
@pytest.mark.parametrize("finish", ["stop", "content_filter", "refusal"])
async def test_why_it_stopped_is_in_the_journal(run: Callable[..., Any], door: Strict, finish: str) -> None:
    delta = {"refusal": "I will not."} if finish == "refusal" else {"content": "Some words."}
    reply = events(piece(delta), piece({}, "stop" if finish == "refusal" else finish))
    door.say(reply, *[events(piece({"content": "Other words."}), piece({}, "stop"))] * (finish == "content_filter"))
    _, calls = await run()
    assert calls[0]["finish"] == finish


@only_memory
async def test_a_provider_that_will_never_take_it_is_asked_once(run: Callable[..., Any], door: Strict) -> None:
    door.say(Answer(401, {"error": {"message": "no such key"}}))
    task, _ = await run()
    assert task.state is State.FAILED
    assert "401" in (task.error or {})["message"]
    assert "check the key" in (task.error or {})["message"]
    assert len(door.seen) == 1


# ── the check itself ─────────────────────────────────────────────────────────────────────────────────────────────────


@only_memory
@pytest.mark.parametrize("lost", ["a result", "a call"])
async def test_a_history_with_something_unpaired_is_refused(
    run: Callable[..., Any], door: Strict, openai_server: AIMock, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The planted fault: the check of the proxy can fail."""
    shown = Conversation.shown

    def losing(self: Conversation, most: int, *artifacts: Any) -> Any:
        refs, left_out = shown(self, most, *artifacts)
        whole = len(refs) > 2  # the goal, the calls, their results
        return (refs if not whole else refs[:-1] if lost == "a result" else [refs[0], *refs[2:]]), left_out

    monkeypatch.setattr(Conversation, "shown", losing)
    openai_server.script(SCRIPT)
    task, calls = await run()
    assert task.state is State.FAILED
    assert len(calls) == 1, "the first question had nothing to lose"
    (why,) = door.refused
    assert ("must be followed by tool messages" in why) or ("no results" in why) or ("must be a response" in why)
    assert why in (task.error or {})["message"]
    door.forget()


async def test_thoughts_and_signatures_come_back_as_they_were(
    app: Onward, door: Strict, openai_server: AIMock, world: World
) -> None:
    openai_server.script([{"match": {"hasToolResult": True}, "response": {"content": "I see."}}])
    thought = {"type": "reasoning.encrypted", "data": "Zm9v/+==\u2028\U0001f600", "index": 0}
    signature = {"google": {"thought_signature": "c2ln"}}
    call = part(0, "call_1", "get_weather", '{"city":')
    call["tool_calls"][0]["extra_content"] = signature
    door.say(
        events(
            piece({"reasoning_details": [thought], "reasoning_content": "hm"}),
            piece({"reasoning_details": [{"type": "reasoning.text", "text": "more"}], "unknown": 1}),
            piece(call),
            piece(part(0, None, None, '"Oslo"}')),
            piece({}, "tool_calls"),
        )
    )
    model = OpenAIModel("gpt-5-mini", base_url=door.url, api_key="k")
    agent = app.agent("weatherman", model=model, tools=world.tools(), retry=1)
    async with app.worker():
        handle = await app.submit(agent, GOAL)
        assert await handle.result(timeout=60) == "I see."
    (reply,) = [message for message in door.seen[-1]["messages"] if message["role"] == "assistant"]
    assert reply["reasoning_details"] == [thought, {"type": "reasoning.text", "text": "more"}]
    assert reply["tool_calls"][0]["extra_content"] == signature
    assert {"reasoning_content", "unknown"}.isdisjoint(reply)
