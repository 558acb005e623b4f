"""The code of the guide openai-agents.md, with the test server in the place of OpenAI."""

from __future__ import annotations

import openai
import pytest

from onward.testing import memory_app
from rig import openai_agents
from rig.aimock import AIMock
from rig.server import Unavailable
from tests.docs.test_guides import code_of
from tests.integrations.test_guide_pydantic_ai import SCRIPT
from tests.kit import drain

try:
    openai_agents.obtain()
except Unavailable as missing:
    pytest.skip(f"the OpenAI Agents SDK cannot be installed here: {missing}", allow_module_level=True)

import agents


@pytest.fixture(autouse=True)
def client(openai_server: AIMock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK keeps its client for the whole process, and each test has an event loop of its own."""
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    agents.set_default_openai_client(openai.AsyncOpenAI(base_url=openai_server.url, api_key="k"), use_for_tracing=False)


async def test_the_shop(openai_server: AIMock) -> None:
    openai_server.script(SCRIPT)
    names = code_of("openai-agents.md", "shop.py")
    app = memory_app(names["app"])
    async with app:
        task = await app.submit("shop", "Order 7 is broken.")
        await drain(app)
        (ask,) = await app.asks()
        assert ask.text == "refund(number=7, cents=8000)"
        await app.decide(ask.id, "approve")
        assert await drain(app) == []
        assert await task.result() == "It is done."
    assert names["sent"] == ["7: 8000"]
    assert len(openai_server.requests()) == 3


async def test_the_chat(openai_server: AIMock) -> None:
    openai_server.script([{"match": {}, "response": {"content": "Hello."}}])
    names = code_of("openai-agents.md", "chat.py")
    names["app"] = app = memory_app(names["app"])
    names["chat"].__globals__["app"] = app
    async with app:
        for text in ("Hi", "Again"):
            task = await app.submit("chat", {"customer": "7", "text": text})
            assert await drain(app) == []
            assert await task.result() == "Hello."
        items = await names["OnwardSession"](app, "7").get_items()
    assert [item["role"] for item in items] == ["user", "assistant", "user", "assistant"]
