"""The code of the guide langgraph.md."""

from __future__ import annotations

from onward.testing import memory_app
from tests.docs.test_guides import code_of
from tests.kit import drain, not_memory


async def test_the_letters() -> None:
    names = code_of("langgraph.md", "letters.py")
    app = memory_app(names["app"])
    async with app:
        task = await app.submit("letters", {"notes": []})
        await drain(app)
        (ask,) = await app.asks()
        assert ask.text == "May it go out?"
        await app.answer(ask.id, "yes")
        assert await drain(app) == []
        assert await task.result() == {"notes": ["a draft", "yes", "sent"]}
    assert names["sent"] == [["a draft", "yes"]]


async def test_the_desk(url: str) -> None:
    names = code_of("langgraph.md", "desk.py")
    assert await names["main"](url) == ["a draft, friendly", "yes"]


@not_memory
def test_a_script(url: str) -> None:
    from langgraph.graph import END, START, StateGraph

    builder = StateGraph(code_of("langgraph.md", "desk.py")["State"])
    builder.add_node("only", lambda state: {"notes": ["done"]})
    builder.add_edge(START, "only")
    builder.add_edge("only", END)
    assert code_of("langgraph.md", "script.py")["run"](builder, url) == {"notes": ["done"]}
