"""One agent with a real model, small and offline: its answers are not scripted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from onward import Onward
from onward.agent.model import Request
from onward.agent.models.openai import OpenAIModel
from onward.agent.prices import Prices
from onward.core import record as r
from rig.smollm import SmolLM
from rig.strict import Strict
from tests.kit import only_file, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def smol() -> Iterator[SmolLM]:
    with running(SmolLM(), "no small model") as model:
        yield model


class Capital(BaseModel):
    """The form of the answer."""

    city: str


@only_file
async def test_an_agent_with_a_real_model_comes_to_an_answer(app: Onward, smol: SmolLM) -> None:
    with Strict(smol.url) as door:
        model = OpenAIModel("smollm2", base_url=door.url, prices=Prices(1.0, 1.0))
        agent = app.agent("geographer", model=model, instructions="Answer in one word.", result=Capital)
        async with app.worker():
            handle = await app.submit(agent, "What is the capital of France?")
            result = await handle.result(timeout=120)
        (call,) = [
            record.value["result"] for record in await app.service.journal(handle.id) if record.kind == r.STEP_DONE
        ]
    assert list(result) == ["city"]
    assert result["city"]
    assert call["usage"]["input"] > 10
    assert call["usage"]["output"] > 1
    assert call["cost"] == pytest.approx((call["usage"]["input"] + call["usage"]["output"]) / 1_000_000)
    assert door.refused == []


async def test_it_streams_and_stops_at_its_token_limit(smol: SmolLM) -> None:
    model, words = OpenAIModel("smollm2", base_url=smol.url), []
    ask = [{"role": "user", "content": "Tell me a long story about the sea."}]
    reply = await model.ask(Request(ask, max_tokens=12, temperature=0.0), words.append)
    await model.close()
    assert (reply.finish, reply.usage.output) == ("length", 12)
    assert "".join(words) == reply.text
    assert len(words) > 3
