"""The code of the guide openai-agents.md, with the test server in the place of OpenAI."""

from __future__ import annotations

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


async def test_the_shop(openai_server: AIMock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.url)
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
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
