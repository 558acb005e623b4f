"""Compaction: a conversation that outgrows its room is summed up in a recorded step, and nothing of it is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import Onward, State
from onward.agent import loop
from onward.agent.compaction import summary_message, transcript
from onward.agent.conversation import Conversation, Ref, decode_page, encode_page, turns_from_messages
from onward.agent.model import ModelBusy, ModelRefused, Reply, Request
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core import record as r
from onward.errors import BadSetting
from onward.testing import crashes, drain
from tests.agent.pairing import badly_paired
from tests.agent.test_conversation import built, sizes
from tests.kit import Lab

ROOM_BYTES = 3_000
TURNS = 9


@tool
def look(n: int) -> str:
    """Look at a number."""
    return f"{n}: {'x' * 500}"


class Walker:
    """A model that looks at one number after the other, and sums up when it is asked to."""

    name = "walker"

    def __init__(self, turns: int = TURNS, sum_up: Callable[[Request], Reply] | None = None) -> None:
        self.turns, self.sum_up = turns, sum_up or (lambda _: Reply("They looked at numbers."))
        self.asked: list[Request] = []
        self.summed: list[Request] = []

    async def ask(self, request: Request, emit: Any) -> Reply:
        if not request.tools:
            self.summed.append(request)
            return self.sum_up(request)
        self.asked.append(request)
        last = request.conversation[-1]
        number = int(last["content"].partition(":")[0]) + 1 if last["role"] == "tool" else 0
        line: Any = f"Looked at {number}." if number == self.turns else [("look", {"n": number})]
        reply = await ScriptedModel([line]).ask(Request(request.conversation[:1]), emit)
        calls = tuple(type(call)(f"c{number}", call.name, call.arguments) for call in reply.calls)
        return Reply(reply.text, calls, reply.usage, reply.finish)


def size(request: Request) -> int:
    """Bytes of a conversation, without the system message."""
    return sum(len(json.dumps(message, separators=(",", ":")).encode()) for message in request.conversation[1:])


async def steps(app: Onward, task_id: str, name: str) -> list[Any]:
    """The results of all steps of a name, in order."""
    records = await app.service.journal(task_id, limit=1000)
    return [
        record.value["result"]
        for record in records
        if record.kind == r.STEP_DONE and f"]{record.key}".split("]")[-1].split("#")[0] == name
    ]


async def test_older_turns_are_summed_up_and_can_still_be_opened(app: Onward) -> None:
    model = Walker()
    walker = app.agent("walker", model=model, tools=[look], context_bytes=ROOM_BYTES)
    async with app.worker():
        handle = await app.submit(walker, "Look at all numbers.")
        assert await handle.result(timeout=60) == f"Looked at {TURNS}."
    compacted = await steps(app, handle.id, "compact")
    assert len(compacted) == len(model.summed) >= 2
    assert all(badly_paired(request.messages) == [] for request in model.asked)
    assert max(map(size, model.asked)) <= ROOM_BYTES
    assert not any("not shown" in request.messages[-1]["content"] for request in model.asked)
    assert "They looked at numbers." in model.asked[-1].conversation[1]["content"]
    # the replaced parts: the page with its turns, each of their messages, and a transcript that the model can search
    for compaction in compacted:
        replaced = compaction["replaced"]
        (page,) = (await app.service.contents(handle.id, [replaced["page"]])).values()
        refs = [ref.id for turn in decode_page(page) for ref in turn.messages]
        assert set(await app.service.contents(handle.id, refs)) == set(refs)
    first = (await app.service.contents(handle.id, [compacted[0]["replaced"]["artifact"]["artifact_id"]])).popitem()[1]
    assert first.decode().startswith('[user] Look at all numbers.\n[assistant calls] look({"n": 0})\n[result] 0: xxx')
    known = [artifact.artifact_id for artifact in (await app.state(handle.id)).artifacts]
    assert known == [compaction["replaced"]["artifact"]["artifact_id"] for compaction in compacted]
    numbers = [result["turn"] for result in [*await steps(app, handle.id, "model"), *compacted]]
    assert sorted(numbers) == list(range(1, len(numbers) + 1)), "each question to a model has a number of its own"


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, 100], ids=["with checkpoints", "without"])
async def test_killed_anywhere_it_goes_on_with_the_same_conversation(every: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_TURNS", every)
    points, ends = 0, set()
    async for app in crashes():
        model = Walker()
        handle = await app.submit(app.agent("walker", model=model, tools=[look], context_bytes=ROOM_BYTES), "Look.")
        await drain(app)
        assert await handle.result(timeout=1) == f"Looked at {TURNS}.", app.killed_at
        assert all(badly_paired(request.messages) == [] for request in model.asked), app.killed_at
        assert max(map(size, model.asked)) <= ROOM_BYTES, app.killed_at
        ends |= {json.dumps(model.asked[-1].conversation), (await app.state(handle.id)).model_dump_json()}
        assert len(await steps(app, handle.id, "compact")) == 2, app.killed_at
        assert app.killed_at or (await app.replay(handle.id)).agrees
        points += 1
    assert len(ends) == 2, "one last request and one state, wherever it was killed"
    assert points > 20


@pytest.mark.parametrize("fails", ["refused", "empty"])
async def test_where_it_fails_older_turns_are_left_out_and_the_prompt_says_so(lab: Lab, fails: str) -> None:
    def sum_up(_: Request) -> Reply:
        if fails == "empty":
            return Reply(" ")
        raise ModelRefused("walker", "no")

    model = Walker(12, sum_up)
    lab.app.agent("walker", model=model, tools=[look], context_bytes=ROOM_BYTES)
    task = await lab.run("walker", "Look.")
    assert task.result == "Looked at 12."
    assert "(5 earlier turns of this conversation are not shown.)" in model.asked[8].messages[-1]["content"]
    assert all(badly_paired(request.messages) == [] for request in model.asked)
    assert len(model.summed) == 1, "it is not tried again at every turn"
    assert (await lab.app.replay(task.task_id)).agrees


async def test_it_can_be_switched_off_and_given_to_another_model(lab: Lab) -> None:
    model, other = Walker(), Walker()
    other.name = "small"
    lab.app.agent("plain", model=model, tools=[look], context_bytes=ROOM_BYTES, compact=False)
    assert (await lab.run("plain", "Look.")).state is State.COMPLETED
    assert (model.summed, "not shown" in model.asked[-1].messages[-1]["content"]) == ([], True)
    lab.app.agent("two", model=model, tools=[look], context_bytes=ROOM_BYTES, compact=other)
    task = await lab.run("two", "Look.")
    assert model.summed == []
    assert {result["asked"]["model"] for result in await steps(lab.app, task.task_id, "compact")} == {"small"}
    assert "The goal: Look." in other.summed[0].conversation[0]["content"]


def test_room_that_is_no_room_is_refused(app: Onward) -> None:
    with pytest.raises(BadSetting, match="context_bytes is 10, but must be 2,000 or more"):
        app.agent("x", model="openai:y", context_bytes=10)


async def test_left_out_turns_are_counted_after_a_restart_too(lab: Lab, monkeypatch: Any) -> None:
    """Pages that are too old to be shown are not read, and yet their turns are missing."""
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_TURNS", 2)

    class Busy(Walker):
        async def ask(self, request: Request, emit: Any) -> Reply:
            if len(self.asked) == 11:
                self.asked.append(request)
                raise ModelBusy("walker", "come back", 30.0)  # so long that the task leaves memory, and is replayed
            return await super().ask(request, emit)

    model = Busy(13)
    lab.app.agent("walker", model=model, tools=[look], context_bytes=ROOM_BYTES, compact=False)
    assert (await lab.run("walker", "Look.")).result == "Looked at 13."
    left_out = [request.messages[-1]["content"].splitlines()[-1] for request in model.asked[11:]]
    assert left_out == [f"({count} earlier turns of this conversation are not shown.)" for count in (8, 8, 9, 10)]


async def test_a_compaction_that_failed_is_remembered_after_a_restart_too(lab: Lab, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_TURNS", 2)
    lab.app.agent("walker", model=(model := Walker(12, lambda _: Reply(""))), tools=[look], context_bytes=ROOM_BYTES)
    before, pauses = model.ask, [30.0]

    async def ask(request: Request, emit: Any) -> Reply:
        if len(model.summed) == 1 and len(model.asked) == 8 and pauses:
            raise ModelBusy("walker", "come back", pauses.pop())
        return await before(request, emit)

    model.ask = ask  # type: ignore[method-assign]
    assert (await lab.run("walker", "Look.")).result == "Looked at 12."
    assert (len(model.summed), pauses) == (1, [])


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────────────────────

plans = st.lists(st.tuples(sizes, st.lists(sizes, max_size=3)), min_size=2, max_size=12)


@given(plans, st.integers(400, 4000), st.integers(1, 100))
def test_summing_up_never_unpairs_and_never_exceeds_the_room(
    plan: list[tuple[int, list[int]]], most: int, quarter: int
) -> None:
    talk, store = built(plan)
    whole = {id(turn): turn for turn in talk.turns}
    latest = talk.count_fitting(most // 2)
    assert 1 <= latest <= len(talk.turns)
    kept = talk.turns[-latest:]
    last = kept[-1].bytes
    store["summary"] = summary_message("so far", 100, 3, "a")
    talk.replace_older(latest, Ref("summary", min(quarter, most // 4)))
    assert talk.turns[1:] == kept
    assert all(id(turn) in whole for turn in talk.turns[1:])
    refs, left_out = talk.shown(most)
    assert badly_paired([store[ref.id] for ref in refs]) == []
    assert sum(ref.bytes for ref in refs) <= max(most, last)
    if last <= most // 2:
        assert (left_out, talk.bytes <= most) == (0, True), "there is room for all of it, and for more"


@given(plans)
def test_turns_come_back_from_pages_and_from_messages(plan: list[tuple[int, list[int]]]) -> None:
    talk, store = built(plan)
    assert decode_page(encode_page(talk.turns)) == talk.turns
    messages: Any = [(ref, store[ref.id]) for turn in talk.turns for ref in turn.messages]
    assert turns_from_messages(messages) == talk.turns
    assert Conversation(talk.turns).bytes == sum(size + sum(results) for size, results in plan)


def test_a_transcript_names_the_speakers() -> None:
    talk, store = built([(1, []), (1, [1, 1])])
    messages: Any = [store[ref.id] for turn in talk.turns for ref in turn.messages]
    assert transcript(messages).splitlines() == [
        "[assistant] x",
        "[assistant] x",
        "[assistant calls] look({})",
        "[assistant calls] look({})",
        "[result] y",
        "[result] y",
    ]
