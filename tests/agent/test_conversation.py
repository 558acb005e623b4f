"""Conversations: with any messages, and wherever they are cut, the request to a model is well formed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.agent.conversation import Conversation, Ref, excerpt, result_message
from onward.agent.model import Reply, ToolCall
from onward.errors import UsageError
from tests.agent.pairing import badly_paired

sizes = st.integers(1, 500)


def built(plan: list[tuple[int, list[int]]]) -> tuple[Conversation, dict[str, dict[str, object]]]:
    """A conversation and its messages by id: each turn has a size, and the sizes of its results."""
    talk, store = Conversation(), {}
    for number, (size, results) in enumerate(plan):
        calls = tuple(ToolCall(f"c{number}_{n}", "look", "{}") for n in range(len(results)))
        store[f"m{number}"] = Reply("x", calls).message
        talk.add(Ref(f"m{number}", size), calls)
        for call, result in zip(reversed(calls), results, strict=True):  # in the order in which they were done
            store[call.id] = result_message(call.id, "y")
            talk.add_result(call.id, Ref(call.id, result))
    return talk, store


@given(st.lists(st.tuples(sizes, st.lists(sizes, max_size=3)), max_size=12), st.integers(0, 4000))
def test_shown_messages_are_always_well_formed(plan: list[tuple[int, list[int]]], most: int) -> None:
    talk, store = built(plan)
    refs, left_out = talk.shown(most)
    assert badly_paired([store[ref.id] for ref in refs]) == []
    whole = sum(size + sum(results) for size, results in plan[-1:])
    assert sum(ref.bytes for ref in refs) <= max(most, whole)
    assert len(talk.turns) - left_out == sum(ref.id.startswith("m") for ref in refs)


def test_a_turn_is_finished_before_the_next_begins() -> None:
    talk = Conversation()
    talk.add(Ref("m", 1), [ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}")])
    talk.add_result("a", Ref("r", 1))
    assert talk.turns[-1].open == ("b",)
    with pytest.raises(UsageError, match="the calls b have no result yet"):
        talk.add(Ref("n", 1))
    with pytest.raises(UsageError, match="no call 'z'"):
        talk.add_result("z", Ref("r", 1))
    talk.add_result("b", Ref("first", 1))
    talk.add_result("b", Ref("second", 1))
    assert talk.turns[-1].results["b"].id == "first"
    talk.add(Ref("n", 1))


@given(st.text(max_size=3000), st.integers(120, 1500))
def test_an_excerpt_fits_and_names_the_missing_part(text: str, most: int) -> None:
    short = excerpt(text, most, "art_1")
    data = text.encode("utf-8", "replace")
    assert len(short.encode()) <= most
    if len(data) > most:
        assert f"{len(data):,} bytes" in short
        assert "read_artifact('art_1')" in short


def test_an_excerpt_shows_both_ends_in_whole_lines() -> None:
    text = "\n".join(f"line {number}" for number in range(1000))
    short = excerpt(text, 300)
    assert short.startswith("line 0\nline 1\n")
    assert short.endswith("line 998\nline 999")
    assert all(line.startswith(("line ", "…")) for line in short.splitlines() if line)
