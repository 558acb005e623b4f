"""Tools: their specification for the model, and the parsing of its arguments."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from onward import Onward
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import Tool, parse_arguments, tool, tools_by_name
from onward.errors import BadSetting, InvalidInput, UsageError


class Where(BaseModel):
    path: str
    deep: bool = False


@tool
def check_disk(path: str = "/") -> str:
    """How full is the disk?"""
    return f"{path}: 93 %"


@tool(risk="write_local", undo=lambda path: None, timeout="10s", name="clean")
def clean_logs(ctx: Any, path: str, older_than_days: int = 7, where: Where | None = None) -> str:
    """Delete old logs."""
    return f"{ctx}{path}{older_than_days}{where}"


def test_a_tool_is_still_a_function() -> None:
    assert check_disk("/var") == "/var: 93 %"
    assert check_disk.__doc__ == "How full is the disk?"


def test_the_specification_for_a_model() -> None:
    assert check_disk.spec() == {
        "type": "function",
        "function": {
            "name": "check_disk",
            "description": "How full is the disk?",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": [],
            },
        },
    }
    spec = clean_logs.spec()["function"]
    assert spec["name"] == "clean"
    assert list(spec["parameters"]["properties"]) == ["path", "older_than_days", "where"], "the context is ours"
    assert spec["parameters"]["required"] == ["path"]


@pytest.mark.parametrize(
    ("options", "effect"),
    [
        ({}, "read"),
        ({"risk": "write_local"}, "once"),
        ({"risk": "write_local", "idempotent": True}, "idempotent"),
        ({"risk": "external_action", "reconcile": print}, "idempotent"),
        ({"risk": "external_action", "undo": print}, "once"),
        ({"risk": "house_rule"}, "once"),
    ],
)
def test_the_effect_of_a_tool(options: dict[str, Any], effect: str) -> None:
    assert tool(**options)(check_disk.function).effect == effect


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"path": ', "not JSON"),
        ('{"path": NaN}', "not JSON"),
        ("[1]", "must be a JSON object, not list"),
        ("null", "must be a JSON object, not NoneType"),
        ('{"path": 7}', "the input for 'path' does not fit: Input should be a valid string (got 7)"),
        ('{"pfad": "/"}', "tool 'check_disk' has no 'pfad'; it takes an object with path: str"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_wrong_arguments_become_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        check_disk.arguments(text)


def test_an_argument_that_is_missing() -> None:
    with pytest.raises(InvalidInput, match="tool 'clean' needs 'path'; it takes an object with path: str"):
        clean_logs.arguments("{}")


def test_no_arguments_are_an_empty_object() -> None:
    assert check_disk.arguments("") == {}
    assert check_disk.arguments("  ") == {}


@given(st.text(max_size=200))
def test_any_arguments_give_an_object_or_a_sentence(text: str) -> None:
    arguments: Any = None
    with contextlib.suppress(InvalidInput):
        arguments = parse_arguments(text, "x")
    assert arguments is None or isinstance(arguments, dict)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4))
def test_an_object_comes_through_as_it_is(value: dict[str, Any]) -> None:
    assert parse_arguments(json.dumps(value), "x") == value


def test_a_box_of_tools() -> None:
    def plain(n: int) -> int:
        """Twice."""
        return 2 * n

    box = tools_by_name([check_disk, plain])
    assert {name: tool_.effect for name, tool_ in box.items()} == {"check_disk": "read", "plain": "read"}
    with pytest.raises(UsageError, match="two tools are named 'check_disk'"):
        tools_by_name([check_disk, check_disk])


@pytest.mark.parametrize("name", ["", "has blanks", "x" * 65, "ü"])
def test_names_that_no_provider_takes(name: str) -> None:
    with pytest.raises(BadSetting, match="tool name"):
        Tool(print, name, "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"model": "gpt-5"},
            "model is 'gpt-5', but must be \"openai:NAME\", or an object with a name and `ask`",
        ),
        ({"model": "openai:"}, "model is 'openai:', but must be"),
        ({"model": None}, "model is None, but must be"),
        ({"model": ScriptedModel}, 'but must be "openai:NAME", or an object with a name and `ask`'),
        ({"compact": "gpt-5"}, "model is 'gpt-5'"),
        (
            {"approve": "write_local"},
            "approve is 'write_local', but must be a list, such as approve=['write_local']",
        ),
        (
            {"approve": ["write-local"]},
            "approve is 'write-local', but must be a risk level: one of delicate, external",
        ),
        ({"tools": "janitor"}, "tools is 'janitor', but must be a list, such as tools=['janitor']"),
        ({"tools": [3]}, "tools is 3, but must be functions, agents, or the names of agents"),
        ({"budget": {"max_steps": 3}}, "but must be a Budget, such as Budget(max_steps=20)"),
    ],
)
def test_a_mistake_is_raised_where_the_agent_is_declared(options: dict[str, Any], sentence: str) -> None:
    @tool(risk="delicate")
    def touch() -> None:
        """Touch it."""

    app = Onward("sqlite://:memory:")
    app.agent("careful", model=ScriptedModel([]), tools=[touch], approve=["delicate", "external_action"])
    with pytest.raises(BadSetting, match=re.escape(sentence)):
        app.agent("sloppy", **{"model": ScriptedModel([]), "tools": [touch], **options})
    assert "sloppy" not in app.handlers
