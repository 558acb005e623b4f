"""The door in front of a model server refuses what strict providers refuse, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from rig.strict import fault

USER = {"role": "user", "content": "hello"}


def said(*ids: str, name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    calls = [{"id": one, "type": "function", "function": {"name": name, "arguments": arguments}} for one in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def done(call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": "ok"}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "x"}, USER, {"role": "assistant", "content": "hi"}, USER],
        [USER, said("a"), done("a")],
        [USER, said("a", "b"), done("b"), done("a"), {"role": "assistant", "content": "hi"}],
        [USER, said("a"), done("a"), said("a"), done("a")],
    ],
)
def test_a_whole_history_goes_through(messages: list[dict[str, Any]]) -> None:
    assert fault({"messages": messages}) == ""


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "too short"),
        ([USER, said("a")], "have no results"),
        ([USER, said("a"), USER], "must be followed by"),
        ([USER, said("a", "b"), done("a")], "have no results"),
        ([USER, said("a", "b"), done("a"), {"role": "assistant", "content": "x"}], "must be followed by"),
        ([USER, done("a")], "must be a response to"),
        ([USER, said("a"), done("a"), done("a")], "must be a response to"),
        ([USER, said("a"), done("b")], "must be a response to"),
        ([USER, said("a"), done("a"), USER, done("a")], "must be a response to"),
        ([USER, said("a", "a"), done("a")], "one id"),
        ([USER, said(""), done("")], "is no id"),
        ([USER, said("x" * 41), done("x" * 41)], "is no id"),
        ([USER, said("a", name="functions.look"), done("a")], "does not match the pattern"),
        ([USER, said("a", name=""), done("a")], "does not match the pattern"),
        ([USER, said("a", arguments='{"n":'), done("a")], "not JSON"),
        ([USER, said()], "is empty"),
        ([{"role": "robot", "content": "x"}], "no role"),
        ([{"role": "user"}], "no content"),
    ],
)
def test_a_broken_one_does_not(messages: list[dict[str, Any]], why: str) -> None:
    assert why in fault({"messages": messages})
