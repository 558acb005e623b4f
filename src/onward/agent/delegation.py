"""Several agents: one is a tool of another, reads what another knows, and goes on from where another ended.

An agent that is called as a tool is a child task: it has a journal, a state and approvals of its own, several work at once, and
whoever called it holds no slot meanwhile. Agents that go on from each other share nothing: what the earlier one knew is copied
once, when the later one begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from onward.agent.conversation import Ref, Turn, excerpt, page_of, result_message, turns_of, turns_on
from onward.agent.model import Message
from onward.agent.tools import Tool, tool
from onward.core import record as r
from onward.core import wire
from onward.core.record import Record
from onward.core.slice import state_slice
from onward.core.state import AgentState, ArtifactRef, StatePatch, state_in
from onward.core.task import Message as Sent
from onward.core.task import Task
from onward.engine.context.context import Context
from onward.errors import (
    ArtifactNotFound,
    NoState,
    StateConflict,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    TooDeep,
    UsageError,
)

DEEPEST = 5
"""How often work is handed on, from agent to agent. A model that asks itself for help would do so for ever."""

SHOWN = 4_000
"""Bytes of another agent's answer, or state, that a model is shown."""

UNFINISHED = "What it had by then, which is not finished:"

INTERRUPTED = "interrupted: the task had ended before it was known what came of this"


# ── an agent as a tool ───────────────────────────────────────────────────────────────────────────────────────────────


def agents_as_tools(agents: Mapping[str, str], depth: int = 0) -> dict[str, Tool]:
    """A tool for each of these agents, by name; `agents` tells what each is for."""
    return {name: _as_tool(name, purpose, depth) for name, purpose in agents.items()}


def _as_tool(name: str, purpose: str, depth: int) -> Tool:
    async def hand_on(ctx: Context, goal: str, after: str = "") -> Any:
        if depth >= DEEPEST:
            raise TooDeep(name, DEEPEST)
        asked = {"goal": goal, "depth": depth + 1} | ({"after": after} if after else {})
        child = await ctx.submit(name, asked)  # its share of the budget, where it gets one, is said here
        try:
            return await _answer(ctx, name, child.id, await child)
        except TaskFailed as failed:
            said = f"error: {name} (task {child.id}) failed: {failed.error.get('message')}"
            if failed.partial is None:
                return said
            patch, had = await _answer(ctx, name, child.id, failed.partial)
            return patch, f"{said}\n{UNFINISHED}\n{had}"
        except TaskCancelled:
            return f"error: {name} (task {child.id}) was cancelled"

    told = f"Hand a goal on to the agent {name}, and get its answer. It knows nothing but the goal, unless you name the id of an earlier task of its kind to go on after."
    return Tool(hand_on, name, f"{told} {purpose}".strip(), direct=True)


async def _answer(ctx: Context, name: str, task_id: str, answer: Any) -> tuple[StatePatch, str]:
    """What an agent answered, with the id of its task; what is too long to be shown is an artifact of whoever asked."""
    text = answer if isinstance(answer, str) else wire.encode(answer).decode()
    said = f"(task {task_id})\n{text}"
    if len(said.encode("utf-8", "replace")) <= SHOWN:
        return StatePatch(), said
    data = text.encode("utf-8", "backslashreplace")

    async def keep() -> dict[str, Any]:
        return await ctx.host.leave(data, {"type": "answer", "summary": f"answer of {name}", "step": name})

    made = ArtifactRef.model_validate(await ctx.step(keep, name="artifact"))
    return StatePatch(add_artifacts=(made,)), excerpt(said, SHOWN, made.artifact_id)


# ── what another knows ───────────────────────────────────────────────────────────────────────────────────────────────


def state_reader(ctx: Context, after: str | None) -> Tool:
    """The tool with which an agent reads the state of those it has to do with, and of nobody else."""

    @tool
    async def read_state(task_id: str) -> str:
        """Read what another agent knows: one that you called, the one that called you, or the one that you go on after."""
        known = task_id.isascii() and task_id.isalnum()
        task, records, inbox = await ctx.host.other(task_id) if known else (None, [], [])
        if task is None or not (task.parent == ctx.task_id or task_id in {ctx.host.parent, after}):
            raise UsageError(
                f"you have nothing to do with a task {task_id!r}; you can read those that you called, and who called you"
            )
        return state_slice(_state(task, records, inbox), SHOWN).text

    return read_state


def _state(task: Task, records: Sequence[Record], inbox: Sequence[Sent]) -> AgentState:
    state = state_in(records, inbox)
    if state is None:
        raise NoState(task.task_id, task.task)
    return state


# ── going on from another ────────────────────────────────────────────────────────────────────────────────────────────


async def inherit(ctx: Context, after: str, most: int, *, delegated: bool) -> dict[str, Any]:
    """What a task that has ended leaves to one that goes on from it: its state, and a page of its latest turns. Whatever they
    refer to is copied, so that nothing that becomes of the other matters any more."""
    task, records, inbox = await ctx.host.other(after)
    if task is None:
        raise TaskNotFound(after)
    if delegated and ctx.host.parent not in {task.parent, after}:
        raise UsageError(f"task {after} was not started by the agent that asks to go on from it")
    if not task.ended:
        raise StateConflict(after, task.state, "gone on from", "wait until it has ended, or cancel it")
    state = _state(task, records, inbox)
    turns = await _turns(ctx, after, records, most)
    for turn in turns[-1:]:
        for call in turn.open:
            data = wire.encode(result_message(call, INTERRUPTED))
            turn.results[call] = Ref(ctx.keep(data), len(data))
    refs = [ref for turn in turns for ref in turn.messages]
    names = [one.id for ref in refs for one in (ref, ref.brief) if one is not None]
    found = await ctx.host.contents(list(dict.fromkeys(names)), of=after)
    if not found and names:
        raise TaskNotFound(after)  # pruned just now
    for data in found.values():
        ctx.keep(data)
    for one in state.artifacts:  # one by one: an artifact may be large
        with contextlib.suppress(ArtifactNotFound):
            told = {"type": one.type, "summary": one.summary, "step": one.step}
            await ctx.host.leave(await ctx.host.left(one.artifact_id, of=after), told)
    page = ctx.keep(page_of(turns))
    return {"from": after, "state": state.model_dump(mode="json", exclude_defaults=True), "page": page}


async def _turns(ctx: Context, of: str, records: Sequence[Record], most: int) -> list[Turn]:
    """The latest turns of another task: as its model saw them last, with its reply and what came of it; or those of its
    last checkpoint, when nothing was asked since."""
    asked = [(record.seq, said) for record in records if (said := _asked(record)) is not None]
    if asked:
        last, told = asked[-1]
        names = [*told["asked"]["shown"], told["id"]]
        done = [name for record in records if record.seq > last and (name := _result(record)) is not None]
        found = await ctx.host.contents([*names, *done], of=of)
        if not found.keys() >= set(names):
            raise UsageError(
                f"what was said in task {of} is no longer there; submit the goal without going on after it"
            )
        there = [(Ref(name, len(found[name])), wire.decode(found[name])) for name in [*names, *done] if name in found]
        return turns_of(one for one in there if _says_something(one[1]))
    turns: list[Turn] = []
    for page, *_ in reversed(_pages(records)):
        turns = turns_on((await ctx.host.contents([page], of=of))[page]) + turns
        if sum(turn.bytes for turn in turns) > most:
            break
    return turns


def _asked(record: Record) -> dict[str, Any] | None:
    """What a model call that moved the conversation on has recorded."""
    result = record.value.get("result") if record.kind == r.STEP_DONE else None
    fits = isinstance(result, dict) and "asked" in result and "replaced" not in result
    return result if fits else None


def _says_something(message: Message) -> bool:
    return message["role"] == "tool" or bool(str(message.get("content") or "").strip() or message.get("tool_calls"))


def _result(record: Record) -> str | None:
    """The name of what a call came to, as its record has it."""
    result = record.value.get("result") if record.kind == r.STEP_DONE else None
    if isinstance(result, dict) and {"id", "bytes"} <= result.keys() and "asked" not in result:
        return str(result["id"])
    return None


def _pages(records: Sequence[Record]) -> list[list[Any]]:
    for record in records:
        if record.kind == r.CHECKPOINT:
            value = record.value["value"]
            return value.get("pages", []) if isinstance(value, dict) else []
    return []
