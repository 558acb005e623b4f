"""Options that a verb does not take are refused, with the option that was meant."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Limit, Onward
from onward.agent.models.scripted import ScriptedModel
from onward.errors import UsageError
from onward.testing import memory_app


async def _submit(app: Onward) -> None:
    await app.submit("work", prio=3)  # type: ignore[call-overload]


async def _submit_many(app: Onward) -> None:
    await app.submit_many("work", [1], delai=3)  # type: ignore[call-overload]


async def _task(app: Onward) -> None:
    app.task(retries=3)  # type: ignore[call-overload]


async def _agent(app: Onward) -> None:
    app.agent("a", model="openai:x", instruction="Be kind.")


async def _nothing_like_it(app: Onward) -> None:
    await app.submit("work", zzz=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (_submit, "app.submit has no option 'prio'; perhaps you meant 'priority'"),
        (_submit_many, "app.submit_many has no option 'delai'; perhaps you meant 'delay'"),
        (_task, "app.task has no option 'retries'; perhaps you meant 'retry'"),
        (_agent, "app.agent has no option 'instruction'; perhaps you meant 'instructions'"),
        (_nothing_like_it, "app.submit has no option 'zzz'; it takes after, asker, budget"),
    ],
)
async def test_an_unknown_option_is_refused(call: Any, message: str) -> None:
    async with memory_app() as app:
        with pytest.raises(UsageError, match=message):
            await call(app)


def test_an_agent_takes_a_group_and_a_limit() -> None:
    app = memory_app()
    app.agent("a", model=ScriptedModel([]), group="goal", limit=Limit(concurrency=2))
    assert app.handlers["a"].grouping == ("goal", True)
    assert app.handlers["a"].limit == Limit(concurrency=2)
