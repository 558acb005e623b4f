"""The code of the guide pydantic-ai.md, with the test server in the place of OpenAI."""

from __future__ import annotations

import pytest

from onward import Budget
from onward.testing import crashes, memory_app
from rig.aimock import AIMock
from tests.docs.test_guides import code_of
from tests.kit import drain

SCRIPT = [
    {"match": {"turnIndex": 0}, "response": {"toolCalls": [{"name": "find_order", "arguments": '{"number":7}'}]}},
    {"match": {"turnIndex": 1}, "response": {"toolCalls": [{"name": "refund", "arguments": '{"number":7,"cents":8000}'}]}},
    {"match": {"turnIndex": 2}, "response": {"content": "It is done."}},
]  # fmt: skip


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch, openai_server: AIMock) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.url)


async def test_the_clerk(openai_server: AIMock) -> None:
    openai_server.script(SCRIPT)
    names = code_of("pydantic-ai.md", "clerk.py")
    app = memory_app(names["app"])
    async with app:
        task = await app.submit("clerk", "Order 7 is broken.", budget=Budget(max_steps=3))
        await drain(app)
        (ask,) = await app.asks()
        assert ask.text == "refund(number=7, cents=8000)"
        await app.decide(ask.id, "approve")
        assert await drain(app) == []
        assert await task.result() == "It is done."
    assert names["sent"] == ["7: 8000"]
    assert len(openai_server.requests()) == 3


@pytest.mark.slow
async def test_the_clerk_is_killed_at_every_point(openai_server: AIMock) -> None:
    openai_server.script(SCRIPT)
    names, points = code_of("pydantic-ai.md", "clerk.py"), 0
    async for app in crashes(names["app"]):
        names["sent"].clear()
        task = await app.submit("clerk", "Order 7 is broken.", budget=Budget(max_steps=9))
        while await drain(app):
            for ask in await app.asks():
                await app.decide(ask.id, "approve")
            for _ in await app.doubts(task.id):
                await app.resolve(task.id, *(("happened", "refunded") if names["sent"] else ("not_happened",)))
        assert await task.result() == "It is done."
        assert names["sent"] == ["7: 8000"], app.killed_at
        points += 1
    assert points > 20


async def test_the_newsletter(openai_server: AIMock) -> None:
    openai_server.script([{"match": {"turnIndex": 0}, "response": {"content": "A line."}}])
    names = code_of("pydantic-ai.md", "desk.py")
    app = memory_app(names["app"])
    async with app:
        task = await app.submit("newsletter", {"topics": ["cats", "dogs"]})
        assert await drain(app) == []
        assert await task.result() == ["A line.", "A line."]
    assert len(openai_server.requests()) == 2
