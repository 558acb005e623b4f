"""AgentState, StatePatch and slices: the published contract, and properties of every state and budget."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from onward.core.slice import MIN_SLICE_BYTES, MessageSize, conversation_slice, cut, state_slice
from onward.core.state import AgentState, AnsweredQuestion, ArtifactRef, Fact, StatePatch, folded

SEED = {
    "goal": "Deploy service X to staging",
    "constraints": {"human_in_the_loop": {"required_for_risk_levels": ["write_local", "external_action"]}},
    "budget": {
        "max_steps": 20,
        "max_wall_time_ms": 300000,
        "max_llm_tokens": 200000,
        "max_artifact_bytes_in_context": 8000,
    },
    "plan": ["Check current status", "Collect config", "Apply changes", "Verify again"],
    "known_facts": [{"key": "service", "value": "X", "source": "user"}],
    "open_questions": ["Which namespace should we deploy to?"],
    "artifacts": [{"artifact_id": "log_123", "type": "tool_result.logs", "summary": "nginx error log", "bytes": 48231}],
    "risk_flags": ["budget_pressure"],
}

texts = st.text(max_size=40)
json_values = st.one_of(st.none(), st.booleans(), st.integers(), texts, st.lists(texts, max_size=3))
facts = st.builds(Fact, key=texts, value=json_values, source=texts)
artifacts = st.builds(
    ArtifactRef,
    artifact_id=st.sampled_from(["a1", "a2", "a3", "a4"]),
    type=texts,
    summary=texts,
    bytes=st.integers(0, 10**9),
    step=st.sampled_from([None, "look", "clean"]),
)
questions = st.sampled_from(["which?", "when?", "who?", "how long is a very long question that goes on and on?"])
patches = st.builds(
    StatePatch,
    append_facts=st.lists(facts, max_size=3).map(tuple),
    replace_plan=st.none() | st.lists(texts, max_size=4).map(tuple),
    add_questions=st.lists(questions, max_size=2).map(tuple),
    answer_questions=st.lists(st.builds(AnsweredQuestion, question=questions, answer=json_values), max_size=2).map(
        tuple
    ),
    add_artifacts=st.lists(artifacts, max_size=3).map(tuple),
    flag_risks=st.lists(st.sampled_from(["r1", "r2"]), max_size=2).map(tuple),
    unflag_risks=st.lists(st.sampled_from(["r1", "r2"]), max_size=1).map(tuple),
)
goals = st.text(max_size=2000)


def test_the_json_of_the_contract_loads_and_comes_back_as_it_was() -> None:
    state = AgentState.model_validate_json(json.dumps(SEED))
    dumped = json.loads(state.model_dump_json(exclude_none=True))
    assert dumped == SEED | {"version": 1}
    assert state.constraints.human_in_the_loop.required_for_risk_levels == ("write_local", "external_action")


def test_it_has_a_schema_and_refuses_unknown_fields() -> None:
    assert AgentState.model_json_schema()["required"] == ["goal"]
    with pytest.raises(ValidationError, match="gaol"):
        AgentState.model_validate({"goal": "x", "gaol": "y"})
    with pytest.raises(ValidationError, match="bytes"):
        ArtifactRef(artifact_id="a", type="t", bytes=-1)


def test_a_patch_does_what_it_says() -> None:
    state = AgentState.model_validate(SEED)
    after = state.patched(
        StatePatch(
            append_facts=(Fact(key="service", value="Y", source="tool"),),
            replace_plan=("Verify again",),
            add_questions=("Which port?",),
            answer_questions=(AnsweredQuestion(question="Which namespace should we deploy to?", answer="blue"),),
            flag_risks=("prod", "prod"),
            unflag_risks=("budget_pressure",),
        )
    )
    assert after.plan == ("Verify again",)
    assert after.open_questions == ("Which port?",)
    assert after.risk_flags == ("prod",)
    assert after.fact("service") == "Y"
    assert after.fact("Which namespace should we deploy to?") == "blue"
    assert state.plan[0] == "Check current status", "a state is never changed in place"


def test_an_empty_patch_changes_nothing() -> None:
    state = AgentState.model_validate(SEED)
    assert not StatePatch()
    assert state.patched(StatePatch()) == state


@given(goals, st.lists(patches, max_size=6), st.integers(0, 6))
def test_a_snapshot_anywhere_changes_nothing(goal: str, changes: list[StatePatch], at: int) -> None:
    """Folded from the start, or from JSON of the state in between: the same."""
    whole = folded(AgentState(goal=goal), changes)
    snapshot = folded(AgentState(goal=goal), changes[:at]).model_dump_json()
    kept = [StatePatch.model_validate_json(change.model_dump_json()) for change in changes[at:]]
    assert folded(AgentState.model_validate_json(snapshot), kept) == whole


# ── slices ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@given(goals, st.lists(patches, max_size=6), st.integers(0, 5000), st.sampled_from([None, "look", "clean"]))
def test_a_slice_is_never_over_its_budget_and_always_the_same(
    goal: str, changes: list[StatePatch], most: int, step: str | None
) -> None:
    state = folded(AgentState(goal=goal), changes)
    slice_ = state_slice(state, most, step)
    assert len(slice_.text.encode()) <= max(most, MIN_SLICE_BYTES)
    assert slice_ == state_slice(AgentState.model_validate_json(state.model_dump_json()), most, step)
    assert slice_.text.startswith("Goal: ")
    assert all(question in slice_.text for question in state.open_questions)
    heads = tuple(f"- [{artifact.artifact_id}] " for artifact in state.artifacts)
    shown = sum(line.startswith(heads) for line in slice_.text.split("\n")) if heads else 0
    assert shown + slice_.left_out.get("artifacts", 0) == len(state.artifacts)


def test_the_most_important_parts_come_first() -> None:
    state = AgentState(
        goal="g",
        artifacts=tuple(
            ArtifactRef(artifact_id=f"{step}{n}", type="t", summary="s" * 30, bytes=1, step=step)
            for step in ("old", "now")
            for n in range(2)
        ),
        known_facts=tuple(Fact(key=f"k{n}", value="v" * 20, source="tool") for n in range(20)),
    )
    slice_ = state_slice(state, 600, "now")
    assert "[now0]" in slice_.text
    assert "[now1]" in slice_.text
    assert "k19" in slice_.text
    assert "k0 " not in slice_.text
    assert slice_.left_out["facts"] > 0
    assert f"{slice_.left_out['facts']} facts" in slice_.text, "the slice names the left out parts"


@pytest.mark.parametrize("step", [None, "look", "clean"])
def test_artifacts_are_not_compared_with_each_other(step: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hundreds of one step that would take longer than all the rest of a turn."""
    made = [ArtifactRef(artifact_id=f"a{number}", type="t", bytes=1, step="look") for number in range(300)]
    compared = []
    monkeypatch.setattr(ArtifactRef, "__eq__", lambda self, other: compared.append(other) or self is other)
    slice_ = state_slice(AgentState(goal="g", artifacts=tuple(made)), 8_000, step)
    assert slice_.text.count("- [") + slice_.left_out.get("artifacts", 0) == 300
    assert not compared


@given(st.text(max_size=50), st.integers(0, 60))
def test_cut(text: str, most: int) -> None:
    short = cut(text, most)
    assert len(short.encode()) <= most
    assert short in {text, ""} or short.endswith("…")


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 2)), max_size=40), st.integers(0, 20_000))
def test_a_conversation_is_shown_in_whole_turns_from_its_end(steps: list[tuple[int, int]], most: int) -> None:
    messages: list[MessageSize] = []
    turn = 0
    for number, (size, further) in enumerate(steps):
        turn += further
        messages.append(MessageSize(number, size, turn))
    shown, left_out = conversation_slice(messages, most)
    assert shown == messages[len(messages) - len(shown) :], "the latest, in order"
    cut_off: set[Any] = {message.turn for message in messages[: len(messages) - len(shown)]}
    assert not cut_off & {message.turn for message in shown}, "a turn is there whole or not at all"
    assert len(cut_off) == left_out
    last = {message.turn for message in messages[-1:]}
    assert last <= {message.turn for message in shown}
    if {message.turn for message in shown} != last:
        assert sum(message.bytes for message in shown) <= most
