"""Properties of every state, conversation and crash: never over budget, never an unpaired call, the same slice for the
same input, and a snapshot anywhere changes nothing. For each property a test plants a fault, which it must find."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from onward.agent import conversation, loop
from onward.agent.conversation import Conversation
from onward.agent.loop import STATE_BYTES, Agent
from onward.agent.model import ModelRefused, Request
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool, tools_by_name
from onward.core import slice as slices
from onward.core import wire
from onward.core.slice import MessageSize, Shown
from onward.core.state import AgentState, StatePatch, folded
from onward.testing import Killed, MemoryApp, drain, memory_app
from tests.agent import test_conversation, test_state
from tests.agent.pairing import badly_paired
from tests.agent.test_state import patches

ROOM_BYTES = 4_000
"""The size of the conversation in a request: a few turns."""

CHECKPOINT_EVERY = 3

FEW = 30
LIVES = (Phase.explicit, Phase.generate)
"""Without shrinking: each example runs a whole task, and shrinking would take minutes."""


def killed_at(number: int) -> MemoryApp:
    """An app in memory whose worker is killed at the point with this number, if the worker reaches it; 0 kills no worker."""
    app, passed = memory_app(), itertools.count(1)

    def point(name: str) -> None:
        if app.killed_at is None and next(passed) == number:
            app.killed_at, app._dead = name, True
        if app._dead:
            raise Killed(name)

    app._point = point
    return app


# ── a whole conversation ─────────────────────────────────────────────────────────────────────────────────────────────

looks = st.tuples(st.just("look"), st.fixed_dictionaries({"size": st.sampled_from([1, 80, 900, 3_000, 6_000])}))
plans = st.tuples(st.just("update_plan"), st.fixed_dictionaries({"plan": st.lists(st.text(max_size=20), max_size=3)}))
facts = st.tuples(
    st.just("record_fact"),
    st.fixed_dictionaries({"key": st.text(max_size=8), "value": st.text(max_size=200), "source": st.just("user")}),
)
writes = st.tuples(st.just("write"), st.fixed_dictionaries({"text": st.text(max_size=30)}))
strange = st.tuples(st.sampled_from(["look", "nothing"]), st.just({"wrong": 1}))
scripts = st.lists(st.lists(st.one_of(looks, plans, facts, writes, strange), min_size=1, max_size=3), max_size=12)


class Counting(ScriptedModel):
    """A model that goes on from the latest call in the request, however short the request is."""

    async def ask(self, request: Request, emit: Any) -> Any:
        self.asked.append(request)
        if len(self.asked) > 2 * len(self._script):
            raise ModelRefused(self.name, "the conversation goes round in circles")
        ids = [call["id"] for message in request.conversation for call in message.get("tool_calls", ())]
        turn = int(ids[-1].split("_")[1]) + 1 if ids else 0
        reply = await ScriptedModel([self._script[turn]]).ask(Request([]), emit)
        calls = tuple(
            type(call)(call.id.replace("_0_", f"_{turn}_"), call.name, call.arguments) for call in reply.calls
        )
        return type(reply)(reply.text, calls, reply.usage, reply.finish)


async def converse(script: Any, kill: int) -> list[Request]:
    """All requests of one task, with a kill somewhere."""

    @tool
    async def look(size: int) -> str:
        """Look."""
        return "x" * size

    @tool(risk="write_local", idempotent=True)
    async def write(text: str) -> str:
        """Write."""
        return text

    model = Counting([*script, "done"])
    agent = Agent(
        "talk", lambda: model, tools=tools_by_name([look, write]), context_bytes=ROOM_BYTES, instructions="Be brief."
    )
    app = killed_at(kill)
    async with app:
        app.task(name="talk")(_handler(agent))
        handle = await app.submit("talk", "Talk.")
        await drain(app)
        task = await app.get(handle.id)
        assert task.result == "done", task.error
    return model.asked


def _handler(agent: Agent) -> Callable[..., Any]:
    async def handler(ctx: Any, goal: str) -> Any:
        return await agent.handler(ctx, goal)

    return handler


CONVERSATIONS = (scripts, st.integers(1, 60))


@pytest.mark.slow
@settings(max_examples=FEW, phases=LIVES)
@given(*CONVERSATIONS)
def test_every_request_fits_is_paired_and_is_the_same_after_a_kill(script: Any, kill: int) -> None:
    _requests(script, kill)


def _requests(script: Any, kill: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_EVERY_TURNS", CHECKPOINT_EVERY)
        straight = asyncio.run(converse(script, 0))
        killed = asyncio.run(converse(script, kill))
    assert len(straight) == len(script) + 1
    for request in straight:
        assert not badly_paired(request.messages)
        assert len(str(request.messages[-1]["content"]).encode()) <= STATE_BYTES + 200
        sizes = [len(wire.encode(dict(message))) for message in request.conversation[1:]]
        last = max(at for at, message in enumerate(request.conversation[1:]) if message["role"] != "tool")
        assert sum(sizes) <= max(ROOM_BYTES, sum(sizes[last:]))
    shown = [list(request.messages) for request in killed]
    once = [messages for at, messages in enumerate(shown) if not at or messages != shown[at - 1]]
    assert once == [list(request.messages) for request in straight], "a kill changed a request to the model"
    assert len(shown) - len(once) <= 1, "at most the call whose answer died is made again"


# ── a state and its snapshots ────────────────────────────────────────────────────────────────────────────────────────


async def patched(goal: str, changes: list[StatePatch | str], kill: int) -> AgentState:
    """The state that a real task comes to by patches, checkpoints and sleeps, with a kill somewhere."""
    app, came = killed_at(kill), []
    async with app:

        @app.task
        async def change(ctx: Any) -> None:
            saved = ctx.restored or {"state": AgentState(goal=goal).model_dump(mode="json"), "at": 0}
            await ctx.patch(AgentState.model_validate(saved["state"]))
            for at in range(saved["at"], len(changes)):
                match changes[at]:
                    case "checkpoint":
                        state = ctx.state.model_dump(mode="json", exclude_defaults=True)
                        await ctx.checkpoint({"state": state, "at": at + 1})
                        await ctx.patch(ctx.state)
                    case "sleep":
                        await ctx.sleep("1m")
                    case patch:
                        await ctx.patch(patch)
            came.append(ctx.state)

        handle = await app.submit(change)
        await drain(app)
        await handle.result(timeout=1)
    return AgentState.model_validate(came[-1])


STATES = (
    *(st.text(max_size=20), st.lists(st.one_of(patches, st.sampled_from(["checkpoint", "sleep"])), max_size=8)),
    st.integers(1, 30),
)


@pytest.mark.slow
@settings(max_examples=FEW, phases=LIVES)
@given(*STATES)
def test_patches_commute_with_the_snapshots_of_a_task(goal: str, changes: list[Any], kill: int) -> None:
    _snapshots(goal, changes, kill)


def _snapshots(goal: str, changes: list[Any], kill: int) -> None:
    whole = folded(AgentState(goal=goal), [change for change in changes if isinstance(change, StatePatch)])
    assert asyncio.run(patched(goal, changes, kill)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("holds", ["requests", "snapshots"])
@pytest.mark.usefixtures("at_length")
def test_many_lives(holds: str) -> None:
    """The same properties for many more examples."""
    examples = settings(max_examples=1_000, phases=LIVES)
    (examples(given(*CONVERSATIONS)(_requests)) if holds == "requests" else examples(given(*STATES)(_snapshots)))()


# ── each of these properties finds a fault ───────────────────────────────────────────────────────────────────────────


def cut_through_turns(messages: Any, most: int) -> Shown:
    kept: list[MessageSize] = []
    for message in reversed(messages):
        if kept and sum(other.bytes for other in kept) + message.bytes > most:
            break
        kept.insert(0, message)
    return Shown(kept, len({message.turn for message in messages}) - len({message.turn for message in kept}))


def one_turn_too_many(messages: Any, most: int) -> Shown:
    return slices.conversation_slice(messages, most + ROOM_BYTES)


def drop_a_result(self: Conversation, most: int, *artifacts: Any) -> Any:
    refs, left_out = WHOLE(self, most, *artifacts)
    return refs[:-1] if self.turns and self.turns[-1].calls else refs, left_out


async def forget_a_turn(self: Any) -> None:
    await READ(self)
    del self._conversation.turns[:1]


def never_the_same(*args: Any, **kwargs: Any) -> str:
    return f"{STATE(*args, **kwargs)} {next(COUNT)}"


def lose_a_flag(self: AgentState, *args: Any, **kwargs: Any) -> Any:
    dumped = DUMP(self, *args, **kwargs)
    dumped.pop("risk_flags", None)
    return dumped


WHOLE, READ, STATE = Conversation.shown, loop._Run._read_pages, loop._state_text
DUMP, JSON, COUNT = AgentState.model_dump, AgentState.model_dump_json, itertools.count()
CONVERSATION = test_every_request_fits_is_paired_and_is_the_same_after_a_kill
PLANTED: dict[str, tuple[Any, str, Any, Any]] = {
    "a turn is cut": (conversation, "conversation_slice", cut_through_turns, CONVERSATION),
    "a turn too many": (conversation, "conversation_slice", one_turn_too_many, CONVERSATION),
    "a result is dropped": (Conversation, "shown", drop_a_result, CONVERSATION),
    "a turn is forgotten": (loop._Run, "_read_pages", forget_a_turn, CONVERSATION),
    "a slice that changes": (loop, "_state_text", never_the_same, CONVERSATION),
    "a snapshot without flags": (
        *(AgentState, "model_dump", lose_a_flag),
        test_patches_commute_with_the_snapshots_of_a_task,
    ),
    "letters are counted for bytes": (
        *(slices, "_size", len),
        test_state.test_a_slice_is_never_over_its_budget_and_always_the_same,
    ),
    "older turns pass for fresher": (
        *(test_state, "conversation_slice", cut_through_turns),
        test_state.test_a_conversation_is_shown_in_whole_turns_from_its_end,
    ),
    "a call without its results": (
        Conversation,
        "shown",
        drop_a_result,
        test_conversation.test_shown_messages_are_always_well_formed,
    ),
    "a snapshot on paper without flags": (
        *(AgentState, "model_dump_json", lambda self: JSON(self, exclude={"risk_flags"})),
        test_state.test_a_snapshot_anywhere_changes_nothing,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong, holds = PLANTED[fault]
    monkeypatch.setattr(owner, name, wrong)
    quick = settings(phases=LIVES, max_examples=2_000, report_multiple_bugs=False)(
        given(**holds.hypothesis._given_kwargs)(holds.hypothesis.inner_test)
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        quick()


def test_the_check_of_histories() -> None:
    def call(*ids: str) -> dict[str, Any]:
        return {"role": "assistant", "content": "", "tool_calls": [{"id": id_} for id_ in ids]}

    def result(id_: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": id_, "content": "x"}

    user = {"role": "user", "content": "x"}
    assert not badly_paired([user, call("a", "b"), result("b"), result("a"), user, call("a"), result("a")])
    assert badly_paired([user, call("a", "b"), result("a")])
    assert badly_paired([user, call("a"), user, result("a")])
    assert badly_paired([user, result("a")])
    assert badly_paired([user, call("a"), result("a"), result("a")])
