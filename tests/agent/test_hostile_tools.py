"""A hostile tool server fails a call, but never the worker: schemas, pages, answers and times are bounded."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward import Onward
from onward.agent import mcp, schemas
from onward.agent.mcp import McpServer, OffersTooMuch, ServerAway, ToolSaidNo
from onward.agent.model import ModelUnavailable, Request, seconds_to_wait
from onward.agent.models.openai import OpenAIModel
from onward.agent.models.scripted import ScriptedModel
from tests.agent import hostile
from tests.kit import only_file

TEXT = "a" * 60 + "!"
MAX_CPU_S = 5.0


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = await asyncio.start_server(hostile.Server().serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()


def of_kind(address: str, kind: str, **options: Any) -> McpServer:
    return McpServer("evil", f"{address}/{kind.replace(' ', '%20')}", **{"timeout": 60, **options})


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────────

REF: dict[str, Any] = {"$ref": "#/$defs/x"}
SCHEMAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a pattern": ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": TEXT}),
    "a pattern of names": ({"patternProperties": {"^(a+)+$": False}, "additionalProperties": False}, {TEXT: 1}),
    "many patterns": (
        {"properties": {"a": {"allOf": [{"pattern": rf"\w{{1,{n}}}x"} for n in range(99)]}}},
        {"a": TEXT * 99},
    ),
    "a pattern that is a bomb": ({"properties": {"a": {"pattern": r"((\w{9}){9}){99}"}}}, {"a": TEXT}),
    "alternatives without an end": ({"$defs": {"x": {"anyOf": [REF, REF]}}, "properties": {"a": REF}}, {"a": 1}),
    "itself": ({"$ref": "#"}, {"a": 1}),
    "a tree of references": (
        {
            "$defs": {**{f"x{n}": {"anyOf": [{"$ref": f"#/$defs/x{n + 1}"}] * 9} for n in range(30)}, "x30": False},
            "properties": {"a": {"$ref": "#/$defs/x0"}},
        },
        {"a": 1},
    ),
    "a long enum": ({"properties": {"a": {"items": {"enum": list(range(10_000))}}}}, {"a": [-1] * 100_000}),
    "many items": (
        {"properties": {"a": {"uniqueItems": True, "items": {"type": "integer"}}}},
        {"a": list(range(500_000))},
    ),
    "many errors": ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": list(range(500_000))}),
    "a large value": ({"properties": {"a": {"anyOf": [{"type": "null"}] * 999}}}, {"a": list(range(500_000))}),
    "a pointer": ({"$ref": "#/" + "a/" * 30_000}, {"a": 1}),
    "no schema": (
        {"type": 7, "properties": 8, "required": "x", "anyOf": {}, "items": [1], "pattern": 5, "$ref": 9},
        {"a": 1},
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_hostile_schema_takes_little_time(name: str) -> None:
    schema, arguments = SCHEMAS[name]
    began = time.thread_time()
    errors = schemas.schema_errors(schema, arguments)
    assert time.thread_time() - began < MAX_CPU_S
    assert len(errors) < 2_000
    assert schemas.schema_errors(schema, arguments) == errors, "a replay says the same"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 2.0]) | st.text("ab1", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    number = st.integers(0, 3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True),
            "enum": st.lists(values, min_size=1, max_size=3),
            "const": values,
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "pattern": st.sampled_from(["^a", "b$", "[0-9]", "^(a|b)+$"]),
            "properties": by_name,
            "additionalProperties": inner | st.booleans(),
            "items": inner,
            "uniqueItems": st.booleans(),
            "allOf": some,
            "anyOf": some,
            "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y"]),
            **dict.fromkeys(
                ("minLength", "maxLength", "minItems", "maxItems", "minimum", "exclusiveMaximum", "maxProperties"),
                number,
            ),
        },
    )


shapes = st.recursive(st.booleans() | keywords(st.booleans()), keywords, max_leaves=5)


@pytest.mark.slow
@settings(max_examples=60)
@given(shapes, shapes, keywords(shapes), st.dictionaries(st.sampled_from("abc"), values, max_size=3))
def test_it_judges_as_jsonschema_does(x: Any, y: Any, schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    whole = {**schema, "$defs": {"x": x, "y": y}}
    try:
        wanted = jsonschema.Draft202012Validator(whole).is_valid(arguments)
    except RecursionError:  # a reference to itself
        return
    assert (schemas.schema_errors(whole, arguments) == "") == wanted, schemas.schema_errors(whole, arguments)


# ── offers and answers of a server ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["endless pages", "many tools", "a large schema", "a deep schema"])
async def test_an_offer_that_is_too_large_is_refused_with_the_fix(address: str, kind: str) -> None:
    server = of_kind(address, kind)
    with pytest.raises((OffersTooMuch, ServerAway), match=r"only=|does not say"):
        await server.manifest()
    await server.close()
    few = of_kind(address, kind, only=["work7"])
    if kind == "many tools":
        assert [tool_["name"] for tool_ in await few.manifest()] == ["work7"]
    await few.close()


async def called(server: McpServer) -> Any:
    (offered,) = await server.manifest()
    return await server._call(offered, {"text": TEXT}, "key")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "a bomb",
        "endless",
        "an endless event",
        "many values",
        "digits",
        "garbage",
        "elsewhere",
        "an error",
        "many parts",
        "deep",
    ],
)
async def test_a_hostile_answer_costs_the_call_and_no_more(address: str, kind: str) -> None:
    server = of_kind(address, kind)
    began = time.thread_time()
    try:
        for _ in range(2):  # the connection, or a new one, is good for the next call
            try:
                assert isinstance(await asyncio.wait_for(called(server), 60), str | dict)
                assert kind == "deep"
            except (ToolSaidNo, ConnectionError, ServerAway) as error:
                assert len(str(error)) < 3 * hostile.MIB  # noqa: PT017
    finally:
        await server.close()
    assert time.thread_time() - began < 20


async def test_an_endless_stream_ends(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "MAX_RESPONSE_BYTES", 200_000)
    server = of_kind(address, "an endless stream")
    with pytest.raises((ConnectionError, ToolSaidNo)):
        await asyncio.wait_for(called(server), 60)
    await server.close()


async def test_a_result_is_not_checked_by_a_pattern_of_its_server(address: str) -> None:
    server = of_kind(address, "a pattern of the output")
    assert await asyncio.wait_for(called(server), 60) == "done"
    await server.close()


async def test_a_server_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.01)

    monkeypatch.setattr(mcp, "CONNECT_TIMEOUT_S", 0.3)
    listening = await asyncio.start_server(drip, "127.0.0.1", 0)
    server = McpServer("slow", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp")
    with pytest.raises(ServerAway):
        await asyncio.wait_for(server.manifest(), 60)
    await server.close()
    listening.close()


@pytest.mark.slow
@pytest.mark.parametrize("writes", ["'x' * 65536", "'[],' * 20000"])
async def test_a_command_that_never_ends_its_line_is_given_up(writes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "MAX_LINE_CHARS", 1 << 20)
    monkeypatch.setattr(mcp, "CONNECT_TIMEOUT_S", 2.0)
    program = f"import sys\nwhile True: sys.stdout.write({writes})"
    server = McpServer("endless", [sys.executable, "-c", program])
    with pytest.raises(ServerAway):
        await asyncio.wait_for(server.manifest(), 60)
    await server.close()


@only_file
async def test_a_hostile_pattern_does_not_stop_a_worker(app: Onward, address: str) -> None:
    """The model gets an error for its wrong arguments, and the worker goes on."""
    model = ScriptedModel([[("evil_work", {"text": TEXT})], [("evil_work", {"text": "aaa"})], "done"])
    agent = app.agent("clerk", model=model, tools=[of_kind(address, "a pattern")])
    async with app.worker():
        handle = await app.submit(agent, "work")
        assert await handle.result(timeout=60) == "done"
    results = [part["content"] for part in model.asked[-1].conversation if part["role"] == "tool"]
    assert "does not match" in results[0]
    assert results[1] == "done"
    assert (await app.replay(handle.id)).agrees


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def model_said(head: str, piece: bytes, times: int | None) -> str:
    """The error for a model's answer of many pieces, or of endless pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head_bytes = await reader.readuntil(b"\r\n\r\n")
            assert b"accept-encoding: identity" in head_bytes.lower()
            writer.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n{head}\r\n\r\n".encode())
            while times is None:
                writer.write(piece)
                await writer.drain()
            for _ in range(times or 0):
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    model = OpenAIModel("m", base_url=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", api_key="k")
    try:
        with pytest.raises(ModelUnavailable) as error:
            await asyncio.wait_for(model.ask(Request([{"role": "user", "content": "hi"}]), lambda _: None), 120)
        return str(error.value)
    finally:
        await model.close()
        listening.close()


def chunk(**delta: Any) -> bytes:
    return (
        b"data: " + json.dumps({"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"
    )


@pytest.mark.slow
async def test_a_model_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.agent.models.openai.MAX_REPLY_BYTES", 2 << 20)
    stream = "Content-Type: text/event-stream"
    assert "more than" in await model_said(stream, chunk(content="word " * 1000), None)
    assert "more than" in await model_said(stream, b"data: [[],[]," + b"[]," * 30_000, None)
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": "[" * 100}}
    assert "more than" in await model_said(stream, chunk(tool_calls=[call]), None)
    calls = b"".join(chunk(tool_calls=[{"index": n, "id": f"c{n}", "function": {"name": "f"}}]) for n in range(1_100))
    assert "calls of tools" in await model_said(stream, calls, 1)
    assert "compressed" in await model_said(f"{stream}\r\nContent-Encoding: gzip", hostile.bomb(), 1)
    monkeypatch.setattr("onward.agent.models.openai.REPLY_TIMEOUT_S", 0.2)
    assert "gave no whole answer" in await model_said(stream, b": comment\n\n" * 99, None)


def test_a_header_with_a_time_is_parsed_quickly() -> None:
    rng = random.Random(1)
    began = time.thread_time()
    for name in ("retry-after", "retry-after-ms", "x-ratelimit-reset-tokens"):
        for text in ("1" * 60_000 + "x", "1h" * 30_000, " ," * 30_000, "(" * 60_000, rng.randbytes(30_000).hex()):
            seconds_to_wait({name: text, "x-ratelimit-remaining-tokens": "0"})
    assert time.thread_time() - began < MAX_CPU_S
    assert seconds_to_wait({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}) == 360
