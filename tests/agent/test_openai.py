"""OpenAI's SDK, against a strict server that is not part of this project, and against answers that no server should give."""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from onward.agent.model import ModelBusy, ModelRefused, ModelUnavailable, Reply, Request, ToolCall, Usage
from onward.agent.models.openai import OpenAIModel
from onward.agent.prices import Prices, cost
from onward.agent.tools import tool
from onward.errors import UsageError
from rig.aimock import AIMock
from rig.strict import Answer, Strict, events

ASK = {"role": "user", "content": "What is the weather in Oslo?"}
MATCH = {"match": {"userMessage": "weather"}}


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


class Words(list[str]):
    """Collects the emitted pieces."""

    def __call__(self, piece: str) -> None:
        self.append(piece)


async def ask(door: Strict, request: Request | None = None, words: Words | None = None, **options: Any) -> Reply:
    model = OpenAIModel("gpt-5-mini", base_url=door.url, api_key="test", **options)
    try:
        return await model.ask(request or Request([ASK]), Words() if words is None else words)
    finally:
        await model.close()


def piece(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of a stream."""
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def part(index: int | None, id_: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    """A piece of a tool call."""
    call = {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [call if index is None else {"index": index, **call}]}


# ── a server from another project ────────────────────────────────────────────────────────────────────────────────────


async def test_an_answer_comes_in_pieces_and_with_its_usage(door: Strict, openai_server: AIMock) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 64}}
    openai_server.script([{**MATCH, "response": {"content": "It rains in Oslo, as ever.", "usage": usage}}])
    words = Words()
    reply = await ask(door, Request([ASK], max_tokens=99, temperature=0.5), words)
    assert (reply.text, reply.calls, reply.finish) == ("It rains in Oslo, as ever.", (), "stop")
    assert "".join(words) == reply.text
    assert len(words) > 1
    assert (reply.usage.input, reply.usage.output) == (90, 8)
    assert reply.model == "gpt-5-mini"
    (seen,) = door.seen
    assert (seen["model"], seen["stream"], seen["stream_options"]) == ("gpt-5-mini", True, {"include_usage": True})
    assert seen["temperature"] == 0.5


async def test_options_of_the_model_are_sent_where_the_agent_sets_none(door: Strict, openai_server: AIMock) -> None:
    openai_server.script([{**MATCH, "response": {"content": "It rains."}}])
    options = {"temperature": 0.1, "reasoning_effort": "low", "headers": {"X-Team": "shipping"}}
    await ask(door, **options)
    await ask(door, Request([ASK], temperature=0.9), **options)
    assert [(seen["temperature"], seen["reasoning_effort"]) for seen in door.seen] == [(0.1, "low"), (0.9, "low")]
    assert [headers["x-team"] for headers in door.headers] == ["shipping"] * 2


async def test_a_client_that_the_user_made(door: Strict, openai_server: AIMock) -> None:
    openai_server.script([{**MATCH, "response": {"content": "It rains."}}])
    address = door.url.removesuffix("/v1")
    async with openai.AsyncAzureOpenAI(azure_endpoint=address, api_key="azure-key", api_version="2026-01-01") as client:
        model = OpenAIModel("gpt-5-mini", client=client)
        assert model.quota.startswith("gpt-5-mini at 127.0.0.1:")
        assert (await model.ask(Request([ASK]), Words())).text == "It rains."
        await model.close()
        assert not client.is_closed()
    assert [headers["api-key"] for headers in door.headers] == ["azure-key"]
    with pytest.raises(UsageError, match="give base_url, api_key and headers to the client"):
        OpenAIModel("gpt-5-mini", client=client, api_key="other")


async def test_tools_are_called_and_answered(door: Strict, openai_server: AIMock) -> None:
    arguments = ['{"city":"Oslo"}', '{"city":"Bergen"}']
    calls = [{"name": "get_weather", "arguments": text} for text in arguments]
    openai_server.script(
        [
            {"match": {"userMessage": "weather", "hasToolResult": False}, "response": {"toolCalls": calls}},
            {"match": {"userMessage": "weather", "hasToolResult": True}, "response": {"content": "It rains."}},
        ]
    )
    reply = await ask(door, Request([ASK], tools=[get_weather.spec()]))
    assert [(call.name, call.arguments) for call in reply.calls] == [("get_weather", text) for text in arguments]
    assert reply.finish == "tool_calls"
    assert len({call.id for call in reply.calls}) == 2
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in reply.calls]
    after = await ask(door, Request([ASK, reply.message, *results], tools=[get_weather.spec()]))
    assert after.text == "It rains."


@pytest.mark.parametrize(
    ("response", "kind", "retry_after", "quota"),
    [
        ({"error": {"message": "slow down"}, "status": 429, "retryAfter": 7}, ModelBusy, 7.0, True),
        ({"error": {"message": "top up"}, "status": 402}, ModelBusy, None, True),
        ({"error": {"message": "down"}, "status": 503}, ModelBusy, None, False),
        ({"error": {"message": "overloaded"}, "status": 529}, ModelBusy, None, False),
        ({"error": {"message": "oops"}, "status": 500}, ModelUnavailable, None, False),
        ({"error": {"message": "bad gateway"}, "status": 502}, ModelUnavailable, None, False),
        ({"error": {"message": "no such key"}, "status": 401}, ModelRefused, None, False),
        ({"error": {"message": "no such model"}, "status": 404}, ModelRefused, None, False),
        (
            {"error": {"message": "too long", "code": "context_length_exceeded"}, "status": 400},
            ModelRefused,
            None,
            False,
        ),
    ],
)
async def test_the_errors_of_a_provider(
    door: Strict,
    openai_server: AIMock,
    response: dict[str, Any],
    kind: type[Exception],
    retry_after: float | None,
    quota: bool,
) -> None:
    openai_server.script([{**MATCH, "response": response}])
    with pytest.raises(kind, match=response["error"]["message"]) as caught:
        await ask(door)
    if isinstance(caught.value, ModelBusy):
        assert (caught.value.retry_after, caught.value.quota) == (retry_after, quota)
    assert len(door.seen) == 1, "the SDK's own retries are off"


@pytest.mark.parametrize("fault", [{"truncateAfterChunks": 2}, {"disconnectAfterMs": 1, "latency": 50}])
async def test_an_answer_that_breaks_off_is_no_answer(
    door: Strict, openai_server: AIMock, fault: dict[str, Any]
) -> None:
    openai_server.script([{**MATCH, "response": {"content": "word " * 100}, **fault}])
    with pytest.raises(ModelUnavailable, match="gave no whole answer"):
        await ask(door)


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_the_finish_reason_is_passed_on(door: Strict, openai_server: AIMock, finish: str) -> None:
    openai_server.script([{**MATCH, "response": {"content": "It rai", "finishReason": finish}}])
    reply = await ask(door)
    assert (reply.text, reply.finish) == ("It rai", finish)


async def test_a_call_that_is_cut_off_says_so(door: Strict) -> None:
    door.say(events(piece(part(0, "a", "get_weather", '{"city":"Os')), piece({}, "length")))
    reply = await ask(door)
    assert reply.finish == "length"
    assert [call.arguments for call in reply.calls] == ['{"city":"Os']


async def test_thoughts_are_not_the_answer(door: Strict, openai_server: AIMock) -> None:
    openai_server.script([{**MATCH, "response": {"content": "Rain.", "reasoning": "Oslo is in Norway."}}])
    words = Words()
    assert (await ask(door, words=words)).text == "Rain."
    assert "".join(words) == "Rain."


async def test_an_empty_answer_is_an_answer(door: Strict) -> None:
    door.say(events(piece({"role": "assistant", "content": ""}), piece({}, "stop")))
    reply = await ask(door)
    assert (reply.text, reply.calls, reply.finish) == ("", (), "stop")


async def test_silence_is_no_answer(door: Strict, openai_server: AIMock) -> None:
    openai_server.script([{**MATCH, "response": {"content": "word " * 9}, "latency": 30_000}])
    with pytest.raises(ModelUnavailable, match=r"silent for 0\.3 s"):
        await ask(door, first=0.3)


async def test_silence_in_the_middle_is_no_answer_either(door: Strict, openai_server: AIMock) -> None:
    pause = {"streamingProfile": {"ttft": 1, "tps": 0.05}}
    openai_server.script([{**MATCH, "response": {"content": "word " * 99}, **pause}])
    with pytest.raises(ModelUnavailable, match=r"silent for 0\.3 s"):
        await ask(door, first=20, silence=0.3)


@pytest.mark.parametrize(
    ("answer", "began"),
    [
        (events(piece({"content": "It"}), done=False), True),
        (events(piece({"content": "It"}), {"error": {"message": "a wire is loose"}}), True),
        (Answer(200, b'data: {"choices":', {"Content-Type": "text/event-stream"}, cut=True), True),
        (Answer(500, {"error": {"message": "oops"}}), False),
        (None, False),
    ],
    ids=["broke off", "an error", "cut", "refused", "nobody there"],
)
async def test_an_answer_that_had_begun_is_not_free(door: Strict, answer: Answer | None, began: bool) -> None:
    """A provider charges for the text that it has sent, also when the rest was lost."""
    if answer is not None:
        door.say(answer)
    where = door.url if answer is not None else "http://127.0.0.1:9/v1"
    model = OpenAIModel("gpt-5-mini", base_url=where, api_key="test")
    with pytest.raises(ModelUnavailable) as caught:
        await model.ask(Request([ASK]), Words())
    assert caught.value.began is began
    await model.close()


# ── when to come back ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"Retry-After": "20"}, 20, 20),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5, 1.5),
        ({"Retry-After": "3000 s from now, as a date"}, 2_000, 3_000),
        ({"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": "6m0s"}, 360, 360),
    ],
)
async def test_a_provider_says_when_to_come_back(
    door: Strict, headers: dict[str, str], least: float, most: float
) -> None:
    if "date" in headers.get("Retry-After", ""):
        headers = {"Retry-After": email.utils.formatdate(time.time() + 3_000, usegmt=True)}
    door.say(Answer(429, headers=headers))
    with pytest.raises(ModelBusy) as caught:
        await ask(door)
    assert caught.value.quota
    assert least <= (caught.value.retry_after or 0) <= most


@pytest.mark.parametrize(
    ("status", "headers", "error", "quota", "after"),
    [
        (429, {}, {"message": "slow down"}, True, None),
        (429, {}, {"message": "no money", "code": "insufficient_quota"}, True, None),
        (429, {"Retry-After": "soon"}, {"message": "slow down"}, True, None),
        (503, {"Retry-After": "3"}, {"message": "down for a moment"}, False, 3.0),
        (503, {}, {"message": "down"}, False, None),
    ],
)
async def test_whether_a_quota_is_used_up(
    door: Strict, status: int, headers: dict[str, str], error: dict[str, str], quota: bool, after: float | None
) -> None:
    door.say(Answer(status, {"error": error}, headers))
    with pytest.raises(ModelBusy, match=error["message"]) as caught:
        await ask(door)
    assert (caught.value.quota, caught.value.retry_after) == (quota, after)


async def test_a_no_in_the_middle_of_an_answer(door: Strict) -> None:
    door.say(events(piece({"content": "It"}), {"error": {"message": "too much", "code": "rate_limit_exceeded"}}))
    with pytest.raises(ModelBusy, match="too much") as caught:
        await ask(door)
    assert caught.value.quota
    door.say(events(piece({"content": "It"}), {"error": {"message": "a wire is loose"}}))
    with pytest.raises(ModelUnavailable, match="a wire is loose"):
        await ask(door)


# ── answers that no server should give ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "answer",
    [
        events(piece({"content": "It"}), "{not json"),
        events(piece({"content": "It"}), "[1, 2]"),
        events("5", '"word"'),
        events(piece({"content": "It"}), done=False),
        events(),
        events({"choices": None}, {"choices": []}, {"choices": [{}]}),
        events({"choices": [{"delta": None, "finish_reason": None}]}),
        events({"choices": 7}),
        Answer(200, b"<html>log in to the network first</html>", {"Content-Type": "text/html"}),
        Answer(200, b"data: \xff\xfe\n\n", {"Content-Type": "text/event-stream"}),
        Answer(200, {"choices": [{"message": {"content": "I do not stream"}}]}),
        Answer(200, b'data: {"choices":', {"Content-Type": "text/event-stream"}, cut=True),
        Answer(500, b"\x00\xff"),
        Answer(504, b"<html>gateway</html>", {"Content-Type": "text/html"}),
    ],
)
async def test_nonsense_is_no_answer(door: Strict, answer: Answer) -> None:
    door.say(answer)
    with pytest.raises(ModelUnavailable, match="the model gpt-5-mini gave no whole answer"):
        await ask(door)


async def test_calls_that_are_numbered_oddly_stay_apart(door: Strict) -> None:
    ends = piece({}, "tool_calls")
    streams = {
        "one after the other": [part(0, "a", "x", '{"n"'), part(0, None, None, ":1}"), part(1, "b", "y", "{}")],
        "mixed": [part(0, "a", "x", '{"n"'), part(1, "b", "y", "{}"), part(0, None, None, ":1}")],
        "all of them 0": [part(0, "a", "x", '{"n":1}'), part(0, "b", "y", "{}")],
        "the id every time": [part(0, "a", "x", '{"n"'), part(0, "a", None, ":1}"), part(1, "b", "y", "{}")],
        "no numbers": [part(None, "a", "x", '{"n":1}'), part(None, "b", "y", "{}")],
    }
    for how, deltas in streams.items():
        door.say(events(*[piece(delta) for delta in deltas], ends))
        reply = await ask(door)
        assert reply.calls == (ToolCall("a", "x", '{"n":1}'), ToolCall("b", "y", "{}")), how


async def test_calls_without_ids_of_their_own_get_one(door: Strict) -> None:
    deltas = [part(0, "", "x", "{}"), part(1, None, "y", "{}"), part(2, "a", "z", "{}"), part(3, "a", "z", "{}")]
    door.say(events(*[piece(delta) for delta in deltas], piece({}, "tool_calls")))
    reply = await ask(door)
    assert [call.name for call in reply.calls] == ["x", "y", "z", "z"]
    assert len({call.id for call in reply.calls}) == 4


async def test_a_refusal_says_why(door: Strict) -> None:
    door.say(events(piece({"refusal": "I will "}), piece({"refusal": "not."}), piece({}, "stop")))
    reply = await ask(door)
    assert (reply.text, reply.finish) == ("I will not.", "refusal")


async def test_missing_usage_is_unknown(door: Strict) -> None:
    door.say(events(piece({"content": "Rain."}, "stop")))
    reply = await ask(door)
    assert reply.usage == Usage()
    door.say(events(piece({"content": "Rain."}, "stop", usage={"prompt_tokens": 3})))
    assert (await ask(door)).usage == Usage(3, None, None)


async def test_odd_calls_of_a_model_do_not_spoil_the_history(door: Strict, openai_server: AIMock) -> None:
    openai_server.script([{**MATCH, "response": {"content": "Sorry."}}])
    calls = (
        ToolCall("a", "functions.get weather", '{"city":"Os'),
        ToolCall("b", "", ""),
        ToolCall("c", "x" * 99, "[1]"),
    )
    results = [{"role": "tool", "tool_call_id": call.id, "content": "error: what?"} for call in calls]
    assert (await ask(door, Request([ASK, Reply("", calls).message, *results]))).text == "Sorry."
    sent = [call["function"] for call in door.seen[0]["messages"][1]["tool_calls"]]
    assert [function["name"] for function in sent] == ["functions_get_weather", "_", "x" * 64]
    assert [json.loads(function["arguments"]) for function in sent] == [
        {"not_a_json_object": '{"city":"Os'},
        {},
        {"not_a_json_object": "[1]"},
    ]


# ── servers, keys and prices ─────────────────────────────────────────────────────────────────────────────────────────


class Weather(BaseModel):
    """The promised form of an answer."""

    city: str


@pytest.mark.parametrize(
    ("base_url", "field"),
    [
        (None, "max_completion_tokens"),
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("http://127.0.0.1:11434/v1", "max_tokens"),
        ("https://api.mistral.ai/v1", "max_tokens"),
        ("https://notopenai.com/v1", "max_tokens"),
    ],
)
def test_max_tokens_has_the_name_that_the_server_expects(base_url: str | None, field: str) -> None:
    model = OpenAIModel("m", base_url=base_url, api_key="k")
    sent = model._parameters(Request([ASK], max_tokens=9, result=Weather))
    assert [name for name in ("max_tokens", "max_completion_tokens") if name in sent] == [field]
    assert sent["response_format"]["json_schema"]["name"] == "Weather"
    assert ("stream_options" in sent) == ("mistral" not in (base_url or ""))
    other = OpenAIModel("m", base_url=base_url, max_tokens_as="max_new_tokens")
    assert other._parameters(Request([ASK], max_tokens=9))["max_new_tokens"] == 9


async def test_a_server_that_does_not_answer() -> None:
    model = OpenAIModel("x", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ModelUnavailable, match="Connection error"):
        await model.ask(Request([ASK]), Words())
    await model.close()


async def test_without_a_key_and_a_server_of_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    model = OpenAIModel("gpt-5-mini")  # it may be named where it is never used
    with pytest.raises(ModelRefused, match="set OPENAI_API_KEY, or OPENAI_BASE_URL"):
        await model.ask(Request([ASK]), Words())
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert OpenAIModel("gpt-5-mini").base_url == "http://127.0.0.1:9/v1"


def test_a_quota_is_named_by_its_server_and_never_by_the_key() -> None:
    key = "sk-very-secret-and-long"
    model = OpenAIModel("gpt-5", api_key=key, base_url="http://user:password@host:8000/v1/")
    assert model.quota.startswith("gpt-5 at host:8000/v1 (key #")
    assert key not in model.quota
    assert "password" not in model.quota
    assert model.quota == OpenAIModel("gpt-5", api_key=key, base_url="http://host:8000/v1").quota
    others = [
        OpenAIModel("gpt-5", api_key="another", base_url="http://host:8000/v1"),
        OpenAIModel("gpt-5-mini", api_key=key, base_url="http://host:8000/v1"),
        OpenAIModel("gpt-5", api_key=key, base_url="http://host:8001/v1"),
        OpenAIModel("gpt-5", api_key=key),
    ]
    assert model.quota not in {other.quota for other in others}


def test_its_prices_are_those_of_its_server() -> None:
    assert cost(OpenAIModel("gpt-4o", base_url="https://api.openai.com/v1"), Usage(1_000_000, 0)) == pytest.approx(2.5)
    assert cost(OpenAIModel("gpt-4o", base_url="http://127.0.0.1/v1"), Usage(1_000_000, 0)) is None
    own = OpenAIModel("gpt-4o", base_url="http://127.0.0.1/v1", prices=Prices(0.1, 0.2))
    assert cost(own, Usage(1_000_000, 0)) == pytest.approx(0.1)


def test_a_model_goes_from_loop_to_loop_and_its_connections_do_not(openai_server: AIMock) -> None:
    openai_server.script([{**MATCH, "response": {"content": "Rain."}}])
    model = OpenAIModel("gpt-5-mini", base_url=openai_server.url)

    async def ask_and_close() -> tuple[str, Any]:
        texts = [(await model.ask(Request([ASK]), Words())).text for _ in range(2)]
        client = model._client()
        await model.close()
        await model.close()
        assert client.is_closed()
        return "".join(texts), client

    (first, first_client), (second, other) = asyncio.run(ask_and_close()), asyncio.run(ask_and_close())
    assert (first, second) == ("Rain.Rain.", "Rain.Rain.")
    assert first_client is not other
