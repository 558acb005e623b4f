"""Tools that every agent has: to keep its plan and its facts, to ask a person, and to read what it was shown only a part of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onward.agent.reader import LINES, page
from onward.agent.tools import Tool, tool
from onward.artifacts.keeper import beside
from onward.core.state import Answer, Fact, StatePatch
from onward.engine.context.context import Context
from onward.errors import ArtifactNotFound


def builtin(ctx: Context, most: int) -> Mapping[str, Tool]:
    """The built-in tools of one task. What they change they return as a patch, beside what the model reads, in `most` bytes."""

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
        artifact_id: str, start: int = 1, lines: int = LINES, search: str = "", column: int = 1
    ) -> str:
        """Read lines of an artifact, from a line number on, or only those that contain a text. Of very long lines, the part
        from a column on."""
        known = [] if ctx.state is None else [one.artifact_id for one in ctx.state.artifacts]
        if artifact_id not in known:
            raise ArtifactNotFound(ctx.task_id, artifact_id, known)
        data = await ctx.read_artifact(artifact_id)
        return await beside(
            len(data), lambda: page(data, start=start, lines=lines, search=search, column=column, most=most)
        )

    return {one.name: one for one in (update_plan, record_fact, read_artifact)}


async def ask_user(ctx: Context, question: str) -> tuple[StatePatch, str]:
    """Ask the person for whom you work, and wait for the answer."""
    await ctx.patch(StatePatch(add_questions=(question,)))
    answer = await ctx.ask(question)
    return StatePatch(answer_questions=(Answer(question=question, answer=answer),)), str(answer)


ASK_USER = dataclasses.replace(tool(approve=False)(ask_user), direct=True, risk="question")
"""A question to a person is a wait, not a step, and never asked beside other calls."""
