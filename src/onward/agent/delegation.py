"""Several agents: an agent is a tool of another, reads the state of another, or goes on from where another ended.

An agent that is called as a tool is a child task: it has a journal, a state and approvals of its own. Several children work at once,
and the calling task holds no slot meanwhile. A task that goes on after another shares nothing with it: the state and the latest turns
are copied once, when the later task begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from onward.agent.calls import SHOWN_BYTES
from onward.agent.conversation import Ref, Turn, decode_page, encode_page, excerpt, result_message, turns_from_messages
from onward.agent.model import Message
from onward.agent.tools import Tool, tool
from onward.core import record as r
from onward.core import wire
from onward.core.journal.turns import is_output, model_call
from onward.core.record import Record
from onward.core.slice import state_slice
from onward.core.state import AgentState, ArtifactRef, StatePatch, state_in
from onward.core.task import Message as InboxMessage
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

MAX_DEPTH = 5
"""How often agents hand work on to agents. Without a limit, a model that calls itself would do so for ever."""

UNFINISHED = "What it had by then, which is not finished:"

INTERRUPTED = "interrupted: the task had ended before it was known what came of this"


# ── an agent as a tool ───────────────────────────────────────────────────────────────────────────────────────────────


def agents_as_tools(agents: Mapping[str, str], depth: int = 0) -> dict[str, Tool]:
    """A tool for each of these agents, by name; `agents` maps names to purposes."""
    return {name: _agent_tool(name, purpose, depth) for name, purpose in agents.items()}


def _agent_tool(name: str, purpose: str, depth: int) -> Tool:
    async def hand_on(ctx: Context, goal: str, after: str = "") -> Any:
        if depth >= MAX_DEPTH:
            raise TooDeep(name, MAX_DEPTH)
        child_input = {"goal": goal, "depth": depth + 1} | ({"after": after} if after else {})
        child = await ctx.submit(name, child_input)  # a budget of its own for the child would be an option here
        try:
            return await _format_answer(ctx, name, child.id, await child)
        except TaskFailed as failed:
            error = f"error: {name} (task {child.id}) failed: {failed.error.get('message')}"
            if failed.partial is None:
                return error
            patch, partial = await _format_answer(ctx, name, child.id, failed.partial)
            return patch, f"{error}\n{UNFINISHED}\n{partial}"
        except TaskCancelled:
            return f"error: {name} (task {child.id}) was cancelled"

    usage = f"Hand a goal on to the agent {name}, and get its answer. It knows nothing but the goal, unless you name the id of an earlier task of its kind to go on after."
    return Tool(hand_on, name, f"{usage} {purpose}".strip(), direct=True)


async def _format_answer(ctx: Context, name: str, task_id: str, answer: Any) -> tuple[StatePatch, str]:
    """An agent's answer with the id of its task. An answer that is too long to show becomes an artifact of the calling task."""
    text = answer if isinstance(answer, str) else wire.encode(answer).decode()
    labelled = f"(task {task_id})\n{text}"
    if len(labelled.encode("utf-8", "replace")) <= SHOWN_BYTES:
        return StatePatch(), labelled
    data = text.encode("utf-8", "backslashreplace")

    async def keep() -> dict[str, Any]:
        return await ctx.host.save_artifact(data, {"type": "answer", "summary": f"answer of {name}", "step": name})

    artifact = ArtifactRef.model_validate(await ctx.step(keep, name="artifact"))
    return StatePatch(add_artifacts=(artifact,)), excerpt(labelled, SHOWN_BYTES, artifact.artifact_id)


# ── reading the state of another agent ───────────────────────────────────────────────────────────────────────────────


def state_reader(ctx: Context, after: str | None) -> Tool:
    """The tool that reads the state of the agents that this one called, of its caller, and of the task it goes on after."""

    @tool
    async def read_state(task_id: str) -> str:
        """Read what another agent knows: one that you called, the one that called you, or the one that you go on after."""
        is_id = task_id.isascii() and task_id.isalnum()
        task, records, inbox = await ctx.host.read_task(task_id) if is_id else (None, [], [])
        if task is None or not (task.parent == ctx.task_id or task_id in {ctx.host.parent, after}):
            raise UsageError(
                f"you have nothing to do with a task {task_id!r}; you can read those that you called, and who called you"
            )
        return state_slice(_state(task, records, inbox), SHOWN_BYTES).text

    return read_state


def _state(task: Task, records: Sequence[Record], inbox: Sequence[InboxMessage]) -> AgentState:
    state = state_in(records, inbox)
    if state is None:
        raise NoState(task.task_id, task.task)
    return state


# ── going on after another task ──────────────────────────────────────────────────────────────────────────────────────


async def inherit(ctx: Context, after: str, max_bytes: int, *, delegated: bool) -> dict[str, Any]:
    """Copy the state and a page of the latest turns of the ended task `after` into this task, with all contents and artifacts that
    they refer to. Later changes to the other task (it may be pruned) do not matter any more."""
    task, records, inbox = await ctx.host.read_task(after)
    if task is None:
        raise TaskNotFound(after)
    if delegated and ctx.host.parent not in {task.parent, after}:
        raise UsageError(f"task {after} was not started by the agent that asks to go on from it")
    if not task.ended:
        raise StateConflict(after, task.state, "gone on from", "wait until it has ended, or cancel it")
    state = _state(task, records, inbox)
    turns = await _turns(ctx, after, records, max_bytes)
    for turn in turns[-1:]:
        for call in turn.open:
            data = wire.encode(result_message(call, INTERRUPTED))
            turn.results[call] = Ref(ctx.keep(data), len(data))
    refs = [ref for turn in turns for ref in turn.messages]
    names = [message.id for ref in refs for message in (ref, ref.brief) if message is not None]
    contents = await ctx.host.contents(list(dict.fromkeys(names)), of=after)
    if not contents and names:
        raise TaskNotFound(after)  # pruned just now
    for data in contents.values():
        ctx.keep(data)
    for artifact in state.artifacts:  # one at a time: an artifact may be large
        with contextlib.suppress(ArtifactNotFound):
            about = {"type": artifact.type, "summary": artifact.summary, "step": artifact.step}
            await ctx.host.save_artifact(await ctx.host.read_artifact(artifact.artifact_id, of=after), about)
    page = ctx.keep(encode_page(turns))
    return {"from": after, "state": state.model_dump(mode="json", exclude_defaults=True), "page": page}


async def _turns(ctx: Context, of: str, records: Sequence[Record], max_bytes: int) -> list[Turn]:
    """The latest turns of another task: those that its model was shown last, its reply, and the results of the calls in it; or the
    turns of its last checkpoint, when it has called no model since then."""
    # A compaction is a model call too, but does not move the conversation on.
    model_calls = [(record.seq, call) for record in records if (call := model_call(record)) and "replaced" not in call]
    if model_calls:
        last, call = model_calls[-1]
        names = [*call["asked"]["shown"], call["id"]]
        steps = [record.value.get("result") for record in records if record.seq > last and record.kind == r.STEP_DONE]
        results = [result["id"] for result in steps if is_output(result)]
        contents = await ctx.host.contents([*names, *results], of=of)
        if not contents.keys() >= set(names):
            raise UsageError(
                f"the conversation of task {of} is no longer there; submit the goal without going on after it"
            )
        messages = [
            (Ref(name, len(contents[name])), wire.decode(contents[name]))
            for name in [*names, *results]
            if name in contents
        ]
        return turns_from_messages((ref, message) for ref, message in messages if not _is_empty(message))
    turns: list[Turn] = []
    for page, *_ in reversed(_pages(records)):
        turns = decode_page((await ctx.host.contents([page], of=of))[page]) + turns
        if sum(turn.bytes for turn in turns) > max_bytes:
            break
    return turns


def _is_empty(message: Message) -> bool:
    if message["role"] == "tool":
        return False
    return not str(message.get("content") or "").strip() and not message.get("tool_calls")


def _pages(records: Sequence[Record]) -> list[list[Any]]:
    for record in records:
        if record.kind == r.CHECKPOINT:
            value = record.value["value"]
            return value.get("pages", []) if isinstance(value, dict) else []
    return []
