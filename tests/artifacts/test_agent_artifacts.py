"""What an agent's tools leave behind: the model sees an excerpt and an id, and reads more of it; in every place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onward import Onward
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.artifacts.keeper import MAX_ARTIFACT_BYTES
from onward.core import record as r
from onward.core import wire
from onward.errors import BadSetting
from onward.testing import crashes, drain, memory_app
from tests.artifacts.conftest import in_one_database

HARD = {
    "no UTF-8": bytes(range(256)) * 2,
    "NUL": b"a\0b",
    "an image": b"\x89PNG\r\n\x1a\n" + bytes(100),
}


def shown(model: ScriptedModel, turn: int = -1) -> str:
    return str(model.asked[turn].conversation[-1]["content"])


def ask_for(name: str, **more: Any) -> Any:
    """The model reads the artifact that the last message names."""
    return lambda request: [
        (name, {"artifact_id": request.conversation[-1]["content"].partition("('")[2].partition("'")[0], **more})
    ]


@tool
def logs() -> str:
    """All logs."""
    return "\n".join(f"line {number} {'error' if number == 700 else 'ok'}" for number in range(1, 1001))


async def test_a_model_reads_more_of_what_it_saw_an_excerpt_of(app: Onward) -> None:
    model = ScriptedModel([[("logs", {})], ask_for("read_artifact", search="error"), "found it"])
    app.agent("reader", model=model, tools=[logs])
    async with app.worker():
        task = await app.submit("reader", "What is wrong?")
        assert await task.result(timeout=60) == "found it"
    assert f"{len(logs()):,} bytes in 1,000 lines" in shown(model, 1)
    assert len(shown(model, 1)) <= 4000
    assert shown(model) == "700: line 700 error"
    (ref,) = await app.artifacts(task.id)
    assert ref.model_dump() == {
        "artifact_id": wire.content_id(logs().encode()),
        "type": "tool_result.text",
        "summary": "output of logs, 1,000 lines",
        "bytes": len(logs()),
        "step": "logs",
    }
    assert await app.artifact(task.id, ref.artifact_id) == logs().encode()
    assert f"[{ref.artifact_id}] tool_result.text, {len(logs()):,} bytes" in model.asked[-1].state


@pytest.mark.slow
@in_one_database
async def test_killed_anywhere_it_goes_on(place: str) -> None:
    points = 0
    async for app in crashes(artifacts=place):
        model = ScriptedModel([[("logs", {})], ask_for("read_artifact", search="error"), "found it"])
        app.agent("reader", model=model, tools=[logs])
        task = await app.submit("reader", "What is wrong?")
        await drain(app)
        assert await task.result(timeout=1) == "found it", app.killed_at
        assert shown(model) == "700: line 700 error"
        (ref,) = await app.artifacts(task.id)
        assert await app.artifact(task.id, ref.artifact_id) == logs().encode()
        points += 1
    assert points > 8


@pytest.mark.parametrize("what", HARD)
@in_one_database
async def test_what_is_no_text_is_kept_to_the_byte(app: Onward, what: str) -> None:
    @tool
    def fetch() -> bytes:
        """Some bytes."""
        return HARD[what]

    name = wire.content_id(HARD[what])
    model = ScriptedModel([[("fetch", {})], [("read_artifact", {"artifact_id": name})], "no text"])
    app.agent("fetcher", model=model, tools=[fetch])
    async with app.worker():
        task = await app.submit("fetcher", "Get it.")
        assert await task.result(timeout=60) == "no text"
    assert shown(model, 1) == f"({len(HARD[what]):,} bytes, binary, kept as {name})"
    assert shown(model) in {
        f"(binary, {len(HARD[what]):,} bytes: it cannot be read as text)",
        "(no such lines; it has 0)",
    }
    assert await app.artifact(task.id, name) == HARD[what]


@pytest.mark.parametrize(
    ("output", "seen"),
    [
        ("\x1b[31mred\x1b[0m\0 ä", "\x1b[31mred\x1b[0m\0 ä"),
        ("plain ä".encode(), "plain ä"),
        (bytearray(b"plain"), "plain"),
        (b"", ""),
        ("half \ud800", "half \\ud800"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
    ],
)
async def test_a_short_output_is_seen_whole(output: Any, seen: str) -> None:
    app = memory_app()
    async with app:

        @tool
        async def give() -> Any:
            """Something."""
            return output

        model = ScriptedModel([[("give", {})], "thanks"])
        task = await app.submit(app.agent("taker", model=model, tools=[give]), "Take it.")
        await drain(app)
        assert await task.result(timeout=1) == "thanks"
        assert shown(model) == seen
        assert await app.artifacts(task.id) == []


async def test_an_output_that_no_record_could_hold_is_an_artifact() -> None:
    app = memory_app()
    async with app:
        rows = [{"row": "x" * 1_000_000}] * 18

        @tool
        def table() -> Any:
            """A table."""
            return rows

        model = ScriptedModel([[("table", {})], ask_for("read_artifact"), "large"])
        task = await app.submit(app.agent("taker", model=model, tools=[table]), "Take it.")
        await drain(app)
        assert await task.result(timeout=1) == "large"
        (ref,) = await app.artifacts(task.id)
        assert ref.type == "tool_result.json"
        assert json.loads(await app.artifact(task.id, ref.artifact_id)) == rows
        assert len(shown(model).encode()) < 4000
        assert "in this line; column=1001 goes on)" in shown(model)


async def test_an_output_that_is_too_large_is_told_and_its_effect_is_not_repeated() -> None:
    app = memory_app()
    runs: list[int] = []
    async with app:

        @tool(risk="external_action")
        def export() -> bytes:
            """All of it."""
            runs.append(1)
            return bytes(MAX_ARTIFACT_BYTES + 1)

        model = ScriptedModel([[("export", {})], "too much"])
        task = await app.submit(app.agent("taker", model=model, tools=[export]), "Export it.")
        await drain(app)
        assert await task.result(timeout=1) == "too much"
    assert shown(model).startswith(
        "error: export has run, but its output is lost: ArtifactTooLarge: an artifact may have 100,000,000 bytes, this has"
    )
    assert runs == [1]


async def test_how_much_is_shown_is_for_the_agent_to_say() -> None:
    app = memory_app()
    async with app:
        model = ScriptedModel([[("logs", {})], ask_for("read_artifact", start=2), "short"])
        task = await app.submit(app.agent("terse", model=model, tools=[logs], shown_bytes=1_000), "Look.")
        await drain(app)
        assert await task.result(timeout=1) == "short"
        assert 500 < len(shown(model, 1).encode()) <= 1000
        assert 500 < len(shown(model, 2).encode()) <= 1000
        assert len(await app.artifacts(task.id)) == 1, "what was read is no artifact again"
        wide = ScriptedModel([[("logs", {})], "long"])
        task = await app.submit(app.agent("wide", model=wide, tools=[logs], shown_bytes=100_000), "Look.")
        await drain(app)
        assert shown(wide) == logs()
        assert await app.artifacts(task.id) == []
    with pytest.raises(BadSetting, match="shown_bytes is 10, but must be 1000 or more"):
        app.agent("mute", model=wide, shown_bytes=10)


@in_one_database
async def test_what_a_tool_leaves_behind_by_itself_is_in_the_state(app: Onward) -> None:
    @tool
    async def draw(ctx: Any) -> Any:
        """Draw it."""
        return await ctx.artifact("<svg/>", type="image/svg+xml", summary="the picture")

    @tool
    def write(ctx: Any) -> str:
        """Write it."""
        return str(ctx.artifact("a text\nof two lines", summary="the text").artifact_id)

    def read(request: Any) -> Any:
        return [("read_artifact", {"artifact_id": request.conversation[-1]["content"], "start": 2})]

    model = ScriptedModel([[("draw", {}), ("write", {})], read, "done"])
    app.agent("artist", model=model, tools=[draw, write])
    async with app.worker():
        task = await app.submit("artist", "Draw.")
        assert await task.result(timeout=60) == "done"
    assert shown(model) == "2: of two lines"
    told = {one.summary: one for one in await app.artifacts(task.id)}
    assert told.keys() == {"the picture", "the text"}
    assert told["the picture"].type == "image/svg+xml"
    state = model.asked[-1].state
    assert all(f"[{one.artifact_id}]" in state for one in told.values())


@in_one_database
async def test_a_model_reads_nothing_of_another_task(app: Onward) -> None:
    first = ScriptedModel([[("logs", {})], "done"])
    app.agent("first", model=first, tools=[logs])
    name = wire.content_id(logs().encode())
    spy = ScriptedModel([[("read_artifact", {"artifact_id": name})], "caught"])
    app.agent("spy", model=spy)
    async with app.worker():
        await (await app.submit("first", "Look.")).result(timeout=60)
        task = await app.submit("spy", "Read what is not yours.")
        assert await task.result(timeout=60) == "caught"
    sentence = f"error: ArtifactNotFound: task {task.id} has no artifact '{name}'; it has none so far"
    assert shown(spy) == sentence
    failures = [one for one in await app.service.journal(task.id) if one.kind == r.STEP_RETRY]
    assert failures == [], "nobody asks for it again"


async def test_a_message_of_the_conversation_is_no_artifact() -> None:
    """In the database both are contents of the task."""
    app = memory_app()
    async with app:

        def peek(request: Any) -> Any:
            name = wire.content_id(wire.encode({"role": "user", "content": "Hello."}))
            return [("read_artifact", {"artifact_id": name})]

        model = ScriptedModel([peek, "no"])
        task = await app.submit(app.agent("spy", model=model), "Hello.")
        await drain(app)
        assert await task.result(timeout=1) == "no"
        name = wire.content_id(wire.encode({"role": "user", "content": "Hello."}))
        assert await app.service.contents(task.id, [name])
        assert shown(model).startswith("error: ArtifactNotFound")
