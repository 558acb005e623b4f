"""Tools that every agent has: they keep its plan and its facts, ask a person, and read artifacts that the model saw only a part of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onward.agent.reader import MAX_LINES, page
from onward.agent.tools import Tool, tool
from onward.artifacts.keeper import run_off_loop
from onward.core.state import AnsweredQuestion, Fact, StatePatch
from onward.engine.context.context import Context
from onward.errors import ArtifactNotFound


def builtin_tools(ctx: Context, max_bytes: int) -> Mapping[str, Tool]:
    """The built-in tools of one task. They return their changes as a patch, beside a result of at most `max_bytes` for the model."""

    @tool
    def update_plan(plan: list[str]) -> Any:
        """Replace your plan: the steps that are left, in order."""
        return StatePatch(replace_plan=tuple(plan)), "the plan is kept"

    @tool
    def record_fact(key: str, value: Any, source: str) -> Any:
        """Keep a fact that you will need later, and where you have it from."""
        return StatePatch(append_facts=(Fact(key=key, value=value, source=source),)), "the fact is kept"

    @tool(retry=1)
    async def read_artifact(
        artifact_id: str, start: int = 1, lines: int = MAX_LINES, search: str = "", column: int = 1
    ) -> str:
        """Read lines of an artifact, from a line number on, or only those that contain a text. Of very long lines, the part
        from a column on."""
        known = [] if ctx.state is None else [artifact.artifact_id for artifact in ctx.state.artifacts]
        if artifact_id not in known:
            raise ArtifactNotFound(ctx.task_id, artifact_id, known)
        data = await ctx.read_artifact(artifact_id)
        return await run_off_loop(
            len(data), lambda: page(data, start=start, lines=lines, search=search, column=column, max_bytes=max_bytes)
        )

    return {made.name: made for made in (update_plan, record_fact, read_artifact)}


async def ask_user(ctx: Context, question: str) -> tuple[StatePatch, str]:
    """Ask the person for whom you work, and wait for the answer."""
    await ctx.patch(StatePatch(add_questions=(question,)))
    answer = await ctx.ask(question)
    return StatePatch(answer_questions=(AnsweredQuestion(question=question, answer=answer),)), str(answer)


ASK_USER = dataclasses.replace(tool(approve=False)(ask_user), direct=True, risk="question")
"""A question to a person is a wait, not a step, so it never runs beside other calls."""
