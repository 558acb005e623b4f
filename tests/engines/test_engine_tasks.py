"""Children, cancel, changed code and agents on every engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Onward, Retry, State
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core import record as r
from onward.errors import StateConflict, TaskFailed
from tests.engines.kit import Engine

# ── children ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_family(app: Onward) -> None:
    """The handlers `child`, `parent` and `mapped`."""

    @app.task(retry=1)
    async def child(ctx: Any, n: int) -> int:
        await ctx.sleep(n / 100)
        if n == 13:
            raise ValueError("unlucky")
        return n * 2

    @app.task(retry=1)
    async def parent(ctx: Any, numbers: list[int]) -> Any:
        children = [await ctx.submit(child, n) for n in numbers]
        return await ctx.gather(*children)

    @app.task(retry=1)
    async def mapped(ctx: Any, numbers: list[int]) -> Any:
        return await ctx.map("child", numbers, limit=2)


@pytest.mark.parametrize("name", ["parent", "mapped"])
async def test_children_give_their_results_in_order(engine: Engine, name: str) -> None:
    add_family(engine.app)
    handle = await engine.submit(name, {"numbers": [3, 1, 2]})
    assert (await engine.ended(handle)).result == [6, 2, 4]


async def test_a_child_that_fails(engine: Engine) -> None:
    add_family(engine.app)
    ended = await engine.run("parent", {"numbers": [1, 13]})
    assert ended.error is not None
    assert ended.error["type"] == TaskFailed.__name__
    assert "unlucky" in ended.error["message"]


async def test_a_child_shares_the_deadline_of_its_parent(engine: Engine) -> None:
    started: list[str] = []

    @engine.app.task(retry=1)
    async def child(ctx: Any) -> None:
        started.append(ctx.task_id)
        await ctx.sleep("10d")

    @engine.app.task(retry=1, deadline=4)
    async def parent(ctx: Any) -> None:
        await (await ctx.submit(child))

    task = await engine.run(parent)
    assert task.error is not None
    assert task.error["type"] == "DeadlineExceeded"

    async def child_ended() -> Any:
        below = await engine.app.get(started[0])
        return below if below.ended else None

    below = await engine.until(child_ended)
    assert below.error["type"] == "DeadlineExceeded"
    assert below.parent == task.task_id


async def test_a_crash_after_the_submit_of_a_child_submits_no_second_one(engine: Engine) -> None:
    started: list[str] = []
    stuck = asyncio.Event()

    @engine.app.task
    async def child(ctx: Any) -> str:
        started.append(ctx.task_id)
        return "child"

    @engine.app.task
    async def parent(ctx: Any) -> list[Any]:
        async def wait() -> None:
            if not stuck.is_set():
                stuck.set()
                await asyncio.Event().wait()

        below = await ctx.submit(child)
        await ctx.step(wait)
        return [await below]

    handle = await engine.submit(parent)
    await stuck.wait()
    await engine.crash()
    await engine.start()
    assert (await engine.ended(handle)).result == ["child"]
    assert len(set(started)) == 1


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_waiting_task_is_cancelled(engine: Engine) -> None:
    @engine.app.task
    async def work(ctx: Any) -> None:
        await ctx.signal("never")

    handle = await engine.submit(work)
    await engine.waiting(handle, "signal")
    await engine.app.cancel(handle.id)
    assert (await engine.ended(handle)).state is State.CANCELLED
    assert (await engine.app.cancel(handle.id)).state is State.CANCELLED, "twice is once"
    assert (await engine.kinds(handle))[-1] == r.CANCELLED


async def test_a_running_task_is_cancelled_in_its_step(engine: Engine) -> None:
    begun, after = asyncio.Event(), []

    @engine.app.task
    async def work(ctx: Any) -> None:
        async def stuck() -> None:
            begun.set()
            await asyncio.Event().wait()

        await ctx.step(stuck)
        after.append("after")

    handle = await engine.submit(work)
    await begun.wait()
    await engine.app.cancel(handle.id)
    assert (await engine.ended(handle)).state is State.CANCELLED
    assert after == []


async def test_an_ended_task_cannot_be_cancelled(engine: Engine) -> None:
    @engine.app.task
    async def work(ctx: Any) -> None: ...

    task = await engine.run(work)
    with pytest.raises(StateConflict, match="cannot be cancelled"):
        await engine.app.cancel(task.task_id)


# ── changed code ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_old_tasks_keep_the_old_way_and_new_ones_go_the_new(engine: Engine) -> None:
    happened: list[tuple[str, str]] = []
    changed = False

    @engine.app.task
    async def work(ctx: Any, version: str) -> str:
        async def do(name: str) -> None:
            happened.append((version, name))

        await ctx.step(do, "a", name="a")
        if changed and await ctx.version("second factor"):
            await ctx.step(do, "new", name="new")
        else:
            await ctx.step(do, "old", name="old")
        await ctx.signal("go")
        again = changed and await ctx.version("second factor")
        await ctx.step(do, "last", name="last")
        return "new" if again else "old"

    old = await engine.submit(work, "old")
    await engine.waiting(old, "signal")
    changed = True
    new = await engine.submit(work, "new")
    await engine.waiting(new, "signal")
    for handle in (old, new):
        await engine.app.signal(handle.id, "go")
    assert ((await engine.ended(old)).result, (await engine.ended(new)).result) == ("old", "new")
    assert [name for version, name in happened if version == "old"] == ["a", "old", "last"]
    assert [name for version, name in happened if version == "new"] == ["a", "new", "last"]
    assert [(await engine.kinds(handle)).count(r.VERSION) for handle in (old, new)] == [0, 1]


async def test_code_that_no_longer_fits_the_journal_is_parked_until_it_does(engine: Engine) -> None:
    name = "first"

    @engine.app.task
    async def work(ctx: Any) -> str:
        await ctx.step(lambda: 1, name=name)
        await ctx.signal("go")
        return "done"

    handle = await engine.submit(work)
    await engine.waiting(handle, "signal")
    name = "other"
    await engine.app.signal(handle.id, "go")
    await engine.waiting(handle, "parked")
    name = "first"
    await engine.app.resume(handle.id)
    assert (await engine.ended(handle)).result == "done"


async def test_a_failure_in_a_branch_that_the_handler_caught_stays_as_it_was(engine: Engine) -> None:
    happened: list[str] = []

    @engine.app.task(retry=Retry(attempts=3, first=0.05))
    async def work(ctx: Any) -> str:
        async def branch() -> None:
            happened.append("branch")
            if happened.count("branch") == 1:
                raise ValueError("no")

        async def last() -> str:
            happened.append("last")
            if happened.count("last") == 1:
                raise OSError("not yet")
            return "done"

        (answer,) = await ctx.gather(ctx.step(branch), return_exceptions=True)
        if isinstance(answer, Exception):
            await ctx.step(lambda: happened.append("instead"), name="instead")
        return str(await ctx.step(last))

    task = await engine.run(work)
    assert (task.state, task.result) == (State.COMPLETED, "done")
    assert happened == ["branch", "instead", "last", "last"]


# ── agents ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SCRIPT: Any = [
    [("update_plan", {"plan": ["look", "clean"]}), ("record_fact", {"key": "os", "value": "linux", "source": "user"})],
    [("check_disk", {"path": "/"}), ("check_disk", {"path": "/var"})],
    [("clean_logs", {"path": "/var/log"})],
    "Done: 1.2 GB are free.",
]


def add_agent(app: Onward, **options: Any) -> tuple[Any, list[str]]:
    """An agent that cleans a disk, and the calls of its tools."""
    calls: list[str] = []

    @tool
    async def check_disk(path: str = "/") -> str:
        """How full is the disk?"""
        calls.append(f"check {path}")
        return f"{path}: 93 %"

    @tool(risk="write_local", idempotent=True)
    async def clean_logs(path: str) -> str:
        """Delete old logs."""
        calls.append(f"clean {path}")
        return "1.2 GB are free"

    agent = app.agent("devops", model=ScriptedModel(SCRIPT), tools=[check_disk, clean_logs], **options)
    return agent, calls


async def test_an_agent_comes_to_its_answer(engine: Engine) -> None:
    agent, calls = add_agent(engine.app)
    handle = await engine.submit(agent, "I'm out of disk space. Fix it.")
    assert (await engine.ended(handle)).result == "Done: 1.2 GB are free."
    assert sorted(calls) == ["check /", "check /var", "clean /var/log"]
    state = await engine.app.state(handle.id)
    assert state.plan == ("look", "clean")


async def test_an_agent_asks_before_it_writes(engine: Engine) -> None:
    agent, calls = add_agent(engine.app, approve=["write_local"])
    handle = await engine.submit(agent, "Fix it.")
    (ask,) = await engine.until(lambda: engine.app.asks("approval"))
    assert (ask.tool, ask.arguments) == ("clean_logs", {"path": "/var/log"})
    assert "clean /var/log" not in calls
    await engine.app.decide(ask.id, "approve")
    assert (await engine.ended(handle)).result == "Done: 1.2 GB are free."
    assert calls.count("clean /var/log") == 1
