"""Models: the scripted one, and the parts that all of them share. (OpenAI's has a file of its own.)"""

from __future__ import annotations

import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.agent.model import Reply, Request, ToolCall, Usage, quota_of, seconds_to_wait
from onward.agent.models import LazyModel
from onward.agent.models.scripted import ScriptedModel
from onward.errors import BadSetting, UsageError

ASK = {"role": "user", "content": "What is the weather in Oslo?"}


class Words(list[str]):
    """Collects the emitted pieces."""

    def __call__(self, piece: str) -> None:
        self.append(piece)


# ── scripted ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_script_goes_on_from_the_place_of_the_conversation() -> None:
    model = ScriptedModel([[("get_weather", {"city": "Oslo"})], "It rains.", RuntimeError("boo")])
    words = Words()
    first = await model.ask(Request([ASK]), words)
    assert first.calls == (ToolCall("call_0_0", "get_weather", '{"city": "Oslo"}'),)
    messages = [ASK, first.message, {"role": "tool", "tool_call_id": "call_0_0", "content": "rain"}]
    for _ in range(2):  # the same request gets the same reply
        assert (await model.ask(Request(messages), words)).text == "It rains."
    assert "".join(words).split() == ["It", "rains."] * 2
    reply = {"role": "assistant", "content": ""}
    with pytest.raises(RuntimeError, match="boo"):
        await model.ask(Request([ASK, reply, reply]), words)
    with pytest.raises(UsageError, match="the script has 3 answers"):
        await model.ask(Request([ASK, reply, reply, reply]), words)


async def test_a_line_may_be_made_of_the_request() -> None:
    model = ScriptedModel([lambda request: f"You said {request.conversation[-1]['content']}"])
    assert (await model.ask(Request([ASK]), Words())).text == "You said What is the weather in Oslo?"


# ── shared parts ─────────────────────────────────────────────────────────────────────────────────────────────────────


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
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20ms"}, 0.02),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1h2m3.5s"}, 3723.5),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "42"}, 42.0),
        ({"x-ratelimit-remaining-tokens": "7", "x-ratelimit-reset-tokens": "42"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "-"}, None),
        ({"x-ratelimit-remaining-tokens": "0"}, None),
        ({"retry-after": "3", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "9s"}, 3.0),
    ],
)
def test_when_to_come_back(headers: dict[str, str], seconds: float | None) -> None:
    assert seconds_to_wait(headers, lambda: 1000.0) == seconds


HEADERS = ["retry-after", "retry-after-ms", "x-ratelimit-remaining-x", "x-ratelimit-reset-x"]
TEXTS = st.text(max_size=20) | st.from_regex(r"[0-9.]{0,5}(ms|m|h|s)?[0-9.]{0,5}(ms|s)?", fullmatch=True) | st.just("0")


@given(st.dictionaries(st.sampled_from(HEADERS), TEXTS))
def test_any_header_gives_a_time_or_none(headers: dict[str, str]) -> None:
    delay = seconds_to_wait(headers)
    assert delay is None or delay >= 0


def test_usage_that_is_unknown_is_unknown() -> None:
    assert Usage().total is None
    assert Usage(3).total is None
    assert Usage(3, 4).total == 7
    assert Reply("x").message == {"role": "assistant", "content": "x"}


async def test_a_model_is_made_at_its_first_use_and_closed_after() -> None:
    class Closable(ScriptedModel):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    mine = Closable(["x"])
    chosen = LazyModel(mine)
    assert chosen() is chosen() is mine
    await chosen.close()
    assert mine.closed == 1
    await LazyModel(ScriptedModel([])).close()  # a model without `close`
    await LazyModel("openai:x").close()  # a model that was never used
    for wrong in ("gpt-5", "openai:", "aol:gpt-5"):
        with pytest.raises(BadSetting, match="openai:NAME"):
            LazyModel(wrong)()


def test_tasks_share_the_quota_of_a_model() -> None:
    model = ScriptedModel([], "one")
    assert quota_of(model) == "one"
    model.quota = "all of mine"  # type: ignore[attr-defined]
    assert quota_of(model) == "all of mine"
