"""Models: the scripted one, and OpenAI's SDK against a strict server that nobody here wrote."""

from __future__ import annotations

import email.utils
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.agent.model import (
    ModelBusy,
    ModelRefused,
    ModelUnavailable,
    Reply,
    Request,
    ToolCall,
    Usage,
    seconds_to_wait,
)
from onward.agent.models.openai import OpenAIModel
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.errors import UsageError
from rig.aimock import AIMock

ASK = {"role": "user", "content": "What is the weather in Oslo?"}


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


class Words(list[str]):
    """Collects what is emitted."""

    def __call__(self, word: str) -> None:
        self.append(word)


# ── scripted ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_script_is_said_from_the_place_that_the_conversation_is_at() -> None:
    model = ScriptedModel([[("get_weather", {"city": "Oslo"})], "It rains.", RuntimeError("boo")])
    words = Words()
    first = await model.ask(Request([ASK]), words)
    assert first.calls == (ToolCall("call_0_0", "get_weather", '{"city": "Oslo"}'),)
    told = [ASK, first.message, {"role": "tool", "tool_call_id": "call_0_0", "content": "rain"}]
    for _ in range(2):  # asked the same, it says the same
        assert (await model.ask(Request(told), words)).text == "It rains."
    assert "".join(words).split() == ["It", "rains."] * 2
    said = {"role": "assistant", "content": ""}
    with pytest.raises(RuntimeError, match="boo"):
        await model.ask(Request([ASK, said, said]), words)
    with pytest.raises(UsageError, match="the script has 3 answers"):
        await model.ask(Request([ASK, said, said, said]), words)


async def test_a_line_may_be_made_of_the_request() -> None:
    model = ScriptedModel([lambda request: f"You said {request.messages[-1]['content']}"])
    assert (await model.ask(Request([ASK]), Words())).text == "You said What is the weather in Oslo?"


# ── OpenAI ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def model_at(server: AIMock, **options: Any) -> OpenAIModel:
    return OpenAIModel("gpt-5-mini", base_url=server.url, api_key="test", **options)


async def test_an_answer_comes_in_pieces_and_with_its_usage(openai_server: AIMock) -> None:
    openai_server.script([{"match": {"userMessage": "weather"}, "response": {"content": "It rains in Oslo, as ever."}}])
    words = Words()
    reply = await model_at(openai_server).ask(Request([ASK], max_tokens=99, temperature=0.5), words)
    assert (reply.text, reply.calls, reply.finish) == ("It rains in Oslo, as ever.", (), "stop")
    assert "".join(words) == reply.text
    assert len(words) > 1
    assert reply.usage.input is not None
    assert reply.usage.total == (reply.usage.input or 0) + (reply.usage.output or 0)
    (asked,) = openai_server.requests()
    assert (asked["model"], asked["stream"], asked["max_completion_tokens"]) == ("gpt-5-mini", True, 99)


async def test_tools_are_called_and_answered(openai_server: AIMock) -> None:
    openai_server.script(
        [
            {
                "match": {"userMessage": "weather", "hasToolResult": False},
                "response": {
                    "toolCalls": [
                        {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
                        {"name": "get_weather", "arguments": '{"city":"Bergen"}'},
                    ]
                },
            },
            {"match": {"userMessage": "weather", "hasToolResult": True}, "response": {"content": "It rains."}},
        ]
    )
    model = model_at(openai_server)
    reply = await model.ask(Request([ASK], tools=[get_weather.spec()]), Words())
    assert [(one.name, one.arguments) for one in reply.calls] == [
        ("get_weather", '{"city":"Oslo"}'),
        ("get_weather", '{"city":"Bergen"}'),
    ]
    assert len({one.id for one in reply.calls}) == 2
    results = [{"role": "tool", "tool_call_id": one.id, "content": "rain"} for one in reply.calls]
    after = await model.ask(Request([ASK, reply.message, *results], tools=[get_weather.spec()]), Words())
    assert after.text == "It rains."


@pytest.mark.parametrize(
    ("response", "kind", "retry_after"),
    [
        ({"error": {"message": "slow down"}, "status": 429, "retryAfter": 7}, ModelBusy, 7.0),
        ({"error": {"message": "overloaded"}, "status": 529}, ModelBusy, None),
        ({"error": {"message": "oops"}, "status": 500}, ModelUnavailable, None),
        ({"error": {"message": "bad gateway"}, "status": 502}, ModelUnavailable, None),
        ({"error": {"message": "no such key"}, "status": 401}, ModelRefused, None),
        ({"error": {"message": "no such model"}, "status": 404}, ModelRefused, None),
    ],
)
async def test_what_a_provider_says_no_with(
    openai_server: AIMock, response: dict[str, Any], kind: type[Exception], retry_after: float | None
) -> None:
    openai_server.script([{"match": {"userMessage": "weather"}, "response": response}])
    with pytest.raises(kind, match=response["error"]["message"]) as caught:
        await model_at(openai_server).ask(Request([ASK]), Words())
    if kind is ModelBusy and retry_after is not None:
        assert caught.value.retry_after == retry_after  # type: ignore[attr-defined]
    assert len(openai_server.requests()) == 1, "the SDK's own retries are off"


@pytest.mark.parametrize("fault", [{"truncateAfterChunks": 2}, {"disconnectAfterMs": 1, "latency": 50}])
async def test_an_answer_that_breaks_off_is_no_answer(openai_server: AIMock, fault: dict[str, Any]) -> None:
    openai_server.script([{"match": {"userMessage": "weather"}, "response": {"content": "word " * 100}, **fault}])
    with pytest.raises(ModelUnavailable, match="gave no whole answer"):
        await model_at(openai_server).ask(Request([ASK]), Words())


async def test_silence_is_no_answer(openai_server: AIMock) -> None:
    openai_server.script(
        [{"match": {"userMessage": "weather"}, "response": {"content": "word " * 9}, "latency": 30_000}]
    )
    with pytest.raises(ModelUnavailable, match="timed out"):
        await model_at(openai_server, silence=0.3).ask(Request([ASK]), Words())


async def test_nobody_there() -> None:
    model = OpenAIModel("x", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ModelUnavailable, match="Connection error"):
        await model.ask(Request([ASK]), Words())


def test_without_a_key_and_a_server_of_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelRefused, match="set OPENAI_API_KEY, or OPENAI_BASE_URL"):
        OpenAIModel("gpt-5-mini")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert OpenAIModel("gpt-5-mini").name == "gpt-5-mini"


# ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": email.utils.formatdate(1060, usegmt=True)}, 60.0),
        ({"retry-after": email.utils.formatdate(900, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "²"}, None),
    ],
)
def test_when_to_come_back(headers: dict[str, str], seconds: float | None) -> None:
    assert seconds_to_wait(headers, lambda: 1000.0) == seconds


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text(max_size=20)))
def test_whatever_a_header_says_it_is_a_time_or_nothing(headers: dict[str, str]) -> None:
    found = seconds_to_wait(headers)
    assert found is None or found >= 0


def test_usage_that_is_unknown_is_unknown() -> None:
    assert Usage().total is None
    assert Usage(3).total is None
    assert Usage(3, 4).total == 7
    assert Reply("x").message == {"role": "assistant", "content": "x"}
