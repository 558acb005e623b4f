"""The proxy in front of a model server refuses the requests that strict providers refuse, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from rig.strict import fault

USER = {"role": "user", "content": "hello"}


def calls_message(*ids: str, name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    calls = [{"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}} for id_ in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def done(call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": "ok"}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "x"}, USER, {"role": "assistant", "content": "hi"}, USER],
        [USER, calls_message("a"), done("a")],
        [USER, calls_message("a", "b"), done("b"), done("a"), {"role": "assistant", "content": "hi"}],
        [USER, calls_message("a"), done("a"), calls_message("a"), done("a")],
    ],
)
def test_a_whole_history_goes_through(messages: list[dict[str, Any]]) -> None:
    assert fault({"messages": messages}) == ""


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "too short"),
        ([USER, calls_message("a")], "have no results"),
        ([USER, calls_message("a"), USER], "must be followed by"),
        ([USER, calls_message("a", "b"), done("a")], "have no results"),
        ([USER, calls_message("a", "b"), done("a"), {"role": "assistant", "content": "x"}], "must be followed by"),
        ([USER, done("a")], "must be a response to"),
        ([USER, calls_message("a"), done("a"), done("a")], "must be a response to"),
        ([USER, calls_message("a"), done("b")], "must be a response to"),
        ([USER, calls_message("a"), done("a"), USER, done("a")], "must be a response to"),
        ([USER, calls_message("a", "a"), done("a")], "one id"),
        ([USER, calls_message(""), done("")], "is no id"),
        ([USER, calls_message("x" * 41), done("x" * 41)], "is no id"),
        ([USER, calls_message("a", name="functions.look"), done("a")], "does not match the pattern"),
        ([USER, calls_message("a", name=""), done("a")], "does not match the pattern"),
        ([USER, calls_message("a", arguments='{"n":'), done("a")], "not JSON"),
        ([USER, calls_message()], "is empty"),
        ([{"role": "robot", "content": "x"}], "no role"),
        ([{"role": "user"}], "no content"),
    ],
)
def test_a_broken_one_does_not(messages: list[dict[str, Any]], why: str) -> None:
    assert why in fault({"messages": messages})
