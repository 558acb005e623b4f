"""Usage of a task's models: of the task alone and with its children, across crashes, checkpoints, forks and cancels."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward
from onward.agent.loop import CHECKPOINT_EVERY_TURNS
from onward.agent.model import Reply, ToolCall
from onward.agent.model import Usage as Used
from onward.agent.models.scripted import ScriptedModel
from onward.agent.prices import Prices
from onward.agent.tools import tool
from onward.core import record as r
from onward.core.journal.checkpoint import Checkpoints
from onward.core.usage import UNKNOWN, Usage, usage_at, usage_in
from onward.testing import crashes, drain, memory_app
from tests.kit import Lab, eventually

PRICES = Prices(1_000_000.0, 1_000_000.0)
"""A dollar for each token."""


def reply(text: str = "", *calls: tuple[str, str], taken: int | None = 10, given: int | None = 1) -> Reply:
    tool_calls = tuple(ToolCall(f"c{number}", name, arguments) for number, (name, arguments) in enumerate(calls))
    return Reply(text, tool_calls, usage=Used(taken, given))


@tool
async def look() -> str:
    """Look."""
    return "fine"


LOOK = ("look", "{}")


def model(script: Any, prices: Prices | None = PRICES) -> ScriptedModel:
    made = ScriptedModel(script)
    made.prices = prices  # type: ignore[attr-defined]
    return made


async def test_an_agent_that_has_ended(app: Onward) -> None:
    agent = app.agent("a", model=model([reply("", LOOK), reply("done")]), tools=[look])
    async with app.worker():
        handle = await app.submit(agent, "go")
        assert (await handle.get()).usage is not None
        await handle.result(timeout=60)
    own = Usage(2, 20, 2, pytest.approx(22.0))
    task = await handle.get()
    assert task.usage is not None
    assert (task.usage.to_json(), task.usage.with_children) == (own.to_json(), own)
    (listed,) = (await app.list())[0]
    assert listed.usage == own
    last = (await app.service.journal(handle.id))[-1]
    assert last.data.startswith(b'{"usage":{"calls":2,')
    assert (await app.replay(handle.id)).agrees


@pytest.mark.parametrize(
    ("taken", "given", "prices", "expected"),
    [
        (None, 1, PRICES, (1, None, 1, None)),
        (10, None, PRICES, (1, 10, None, None)),
        (10, 1, None, (1, 10, 1, None)),
        (0, 0, PRICES, (1, 0, 0, 0.0)),
    ],
)
async def test_missing_usage_is_unknown_and_never_zero(
    lab: Lab, taken: Any, given: Any, prices: Any, expected: Any
) -> None:
    lab.app.agent("a", model=model([reply("done", taken=taken, given=given)], prices))
    task_id = (await lab.run("a", "go")).task_id
    usage = (await lab.app.get(task_id)).usage
    assert usage is not None
    assert tuple(usage.to_json().values()) == expected


async def test_a_plain_task_has_none_and_pays_nothing(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> int:
        return await ctx.step(lambda: 7, name="seven")

    task = await lab.run(work)
    assert (await lab.app.get(task.task_id)).usage is None
    last = (await lab.app.service.journal(task.task_id))[-1]
    assert last.data == b'{"result":7}'


async def test_one_that_failed_or_is_under_way(lab: Lab) -> None:
    lab.app.agent("a", model=model([reply("", LOOK), RuntimeError("no")]), tools=[look], retry=1)
    lab.app.agent("b", model=model([reply("", ("ask_user", '{"question":"Which?"}')), reply("done")]))
    await lab.start()
    failed = await lab.submit("a", "go")
    assert (await lab.ended(failed)).usage == Usage(1, 10, 1, 11.0)
    waits = await lab.submit("b", "go")
    await lab.settled(waits)
    usage = (await lab.app.get(waits)).usage
    assert usage is not None
    assert usage.to_json() == Usage(1, 10, 1, 11.0).to_json()
    assert (await lab.app.list(state="waiting"))[0][0].usage is None, "a list reads no journals"
    await lab.app.cancel(waits)
    usage = (await lab.app.get(waits)).usage
    assert usage is not None
    assert usage.to_json() == Usage(1, 10, 1, 11.0).to_json(), "a cancel writes no sum, the journal has it"


async def test_with_children_in_any_state(app: Onward) -> None:
    """A parent that is no agent, an agent below it that has ended, and one below that which was cancelled in the middle."""
    app.agent("leaf", model=model([reply("", ("ask_user", '{"question":"Which?"}'))]), description="asks")
    app.agent("branch", model=model([reply("", ("leaf", '{"goal":"x"}')), reply("done")]), tools=["leaf"])

    @app.task
    async def root(ctx: Any) -> Any:
        return await (await ctx.submit("branch", "go"))

    async with app.worker():
        handle = await app.submit(root)
        await eventually(app.asks)
        task = await handle.get()
        assert task.usage is not None
        assert (task.usage.calls, task.usage.with_children) == (0, Usage(2, 20, 2, 22.0))
        leaf = (await app.asks())[0].task_id
        await app.cancel(leaf)
        assert await handle.result(timeout=60) == "done"
    task = await handle.get()
    assert task.usage is not None
    assert (task.usage.to_json(), task.usage.with_children) == (Usage().to_json(), Usage(3, 30, 3, 33.0))
    (branch,) = (await app.list(parent=handle.id))[0]
    assert branch.usage == Usage(2, 20, 2, 22.0)


async def test_too_many_to_look_at_are_unknown(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.service import usage as usages

    @lab.app.task
    async def child(ctx: Any, n: int) -> int:
        return n

    @lab.app.task
    async def parent(ctx: Any) -> Any:
        return await ctx.map("child", [1, 2, 3])

    task = await lab.run(parent)
    assert (await lab.app.get(task.task_id)).usage is None
    monkeypatch.setattr(usages, "MAX_DESCENDANTS", 2)
    usage = (await lab.app.get(task.task_id)).usage
    assert usage is not None
    assert usage.with_children is None


async def test_killed_anywhere_it_is_the_sum_of_the_records() -> None:
    points = 0
    async for app in crashes():
        script = [reply("", LOOK), reply("", LOOK, LOOK), reply("done")]
        agent = app.agent("a", model=model(script), tools=[look])
        handle = await app.submit(agent, "go")
        await drain(app)
        task = await app.get(handle.id)
        assert task.usage is not None
        assert task.usage.to_json() == Usage(3, 30, 3, 33.0).to_json(), app.killed_at
        assert usage_in(await app.service.journal(handle.id), handle.id) == Usage(3, 30, 3, 33.0), app.killed_at
        points += 1
    assert points > 8


@pytest.mark.parametrize("options", [{}, {"checkpoint": Checkpoints(keep=1)}], ids=["all kept", "rotated"])
async def test_across_checkpoints(options: dict[str, Any]) -> None:
    turns = 2 * CHECKPOINT_EVERY_TURNS + 3
    app = memory_app()
    async with app:
        script = [reply("", LOOK) for _ in range(turns)] + [reply("", ("ask_user", '{"question":"Which?"}'))]
        handle = await app.submit(app.agent("a", model=model(script), tools=[look], **options), "go")
        await drain(app)
        task = await app.get(handle.id)
        assert task.reason == "question"
        assert task.usage is not None
        assert (
            task.usage.to_json()
            == Usage(turns + 1, 10 * (turns + 1), turns + 1, pytest.approx(11.0 * (turns + 1))).to_json()
        )
        kinds = [record.kind for record in await app.service.journal(handle.id)]
        assert kinds.count(r.CHECKPOINT) == 2


async def test_a_fork_counts_its_own(lab: Lab) -> None:
    lab.app.agent("a", model=model([reply("", LOOK), reply("done")]), tools=[look])
    first = (await lab.run("a", "go")).task_id
    records = await lab.app.service.journal(first)
    last_call = [record.seq for record in records if record.key.startswith("model") and record.kind == r.STEP_DONE][-1]
    at = [place.seq for place in await lab.app.service.forks.places(first) if place.seq < last_call][-1]
    fork = await lab.app.fork(first, at)
    await lab.ended(fork.id)
    assert ((await fork.get()).usage or UNKNOWN).to_json() == Usage(1, 10, 1, 11.0).to_json()
    assert ((await lab.app.get(first)).usage or UNKNOWN).to_json() == Usage(2, 20, 2, 22.0).to_json()


async def test_the_usage_of_a_child_comes_with_its_end_to_its_parent(lab: Lab) -> None:
    """It is not mistaken for the child's result."""
    lab.app.agent("a", model=model([reply("done")]))

    @lab.app.task
    async def parent(ctx: Any) -> Any:
        return await (await ctx.submit("a", "go"))

    assert (await lab.run(parent)).result == "done"


def test_only_the_beginning_of_a_record_is_read() -> None:
    assert usage_at(b"") is None
    assert usage_at(b'{"result":{"usage":{"calls":1}}}') is None
    assert usage_at(b'{"usage":{"calls":1,"input_tok') is None
    head = b'{"usage":{"calls":1,"input_tokens":2,"output_tokens":null,"cost_usd":null},"result":"}'
    assert usage_at(head) == Usage(1, 2, None, None)
