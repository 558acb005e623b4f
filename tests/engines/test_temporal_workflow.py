"""The workflow of Temporal: its histories replay, and long tasks go on in new runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.worker import Replayer

from onward import Onward, State
from onward.agent.model import Emit, Reply, Request, ToolCall, Usage
from onward.agent.tools import tool
from onward.core import record as r
from onward.engines.temporal.client import TemporalEngine
from onward.engines.temporal.worker import TemporalWorker, workflow_runner
from onward.engines.temporal.workflow import OnwardTask
from onward.errors import StoreUnavailable
from rig.temporal import Temporal
from tests.engines.kit import Foreign

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("temporal")]


@pytest.fixture
async def engine(temporal: Temporal, request: pytest.FixtureRequest) -> AsyncIterator[Foreign]:
    engine = Foreign(Onward(engine=f"{temporal.url}?queue={request.node.name}", lease_s=5.0, heartbeat_s=0.5))
    async with engine.app:
        yield engine
        await engine.stop()


def _temporal(engine: Foreign) -> TemporalEngine:
    assert engine.app._temporal is not None
    return engine.app._temporal


async def test_histories_replay(engine: Foreign) -> None:
    """A history of each way through the workflow: steps, a wait, a child, a failure, a cancel with and without a saga."""

    @engine.app.task
    async def child(ctx: Any) -> str:
        return "child"

    @engine.app.task(retry=1)
    async def work(ctx: Any, what: str) -> Any:
        await ctx.step(lambda: what, name="first")
        if what == "fail":
            raise ValueError("no")
        if what == "child":
            return await (await ctx.submit(child))
        if what == "saga":
            async with ctx.saga():
                await ctx.step(lambda: 1, name="do", undo=lambda: None)
                await ctx.signal("go")
        return await ctx.signal("go", timeout=30)

    handles = {what: await engine.submit(work, what) for what in ("signal", "fail", "child", "saga", "cancel")}
    for what in ("signal", "saga", "cancel"):
        await engine.waiting(handles[what], "signal")
    await engine.app.signal(handles["signal"].id, "go", 1)
    for what in ("saga", "cancel"):
        await engine.app.cancel(handles[what].id)
    states = {what: (await engine.ended(handle)).state for what, handle in handles.items()}
    assert states == {
        "signal": State.COMPLETED,
        "fail": State.FAILED,
        "child": State.COMPLETED,
        "saga": State.CANCELLED,
        "cancel": State.CANCELLED,
    }
    client = await _temporal(engine).client()
    replayer = Replayer(workflows=[OnwardTask], workflow_runner=workflow_runner())
    for handle in handles.values():
        await replayer.replay_workflow(await client.get_workflow_handle(handle.id).fetch_history())


async def test_a_long_task_goes_on_in_new_runs(engine: Foreign) -> None:
    ran: list[int] = []
    _temporal(engine).events = 60

    @engine.app.task
    async def work(ctx: Any) -> int:
        async def step(number: int) -> int:
            ran.append(number)
            return number

        total = sum([await ctx.step(step, number) for number in range(40)])
        return total + int(await ctx.signal("last"))

    handle = await engine.submit(work)
    await engine.waiting(handle, "signal")
    await engine.app.signal(handle.id, "last", 1)
    assert (await engine.ended(handle)).result == sum(range(40)) + 1
    assert ran == list(range(40)), "the shift went on in memory, and no step ran again"
    records = await engine.app.service.journal(handle.id)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert [record.kind for record in records].count(r.STEP_DONE) == 40
    client = await _temporal(engine).client()
    runs = [run async for run in client.list_workflows(f"WorkflowId = '{handle.id}'")]
    assert len(runs) > 2


async def test_a_worker_without_the_shift_says_so(engine: Foreign) -> None:
    """The next stretch finds no shift, neither by the shared task queue nor by the worker's own: a new shift replays the journal."""
    ran: list[int] = []

    @engine.app.task
    async def work(ctx: Any) -> int:
        async def step(number: int) -> int:
            ran.append(number)
            if number == 2 and isinstance(engine._worker, TemporalWorker):
                engine._worker._sessions.clear()
            return number

        return sum([await ctx.step(step, number) for number in range(5)])

    handle = await engine.submit(work)
    assert await handle.result(60) == 10
    assert ran == [0, 1, 2, 3, 4]
    assert (await engine.kinds(handle)).count(r.SHIFT) == 2


async def test_a_result_needs_no_worker(engine: Foreign) -> None:
    @engine.app.task
    async def work(ctx: Any) -> str:
        return "done"

    handle = await engine.submit(work)
    assert await handle.result(60) == "done"
    await engine.stop()
    assert await engine.app.handle(handle.id).result(60) == "done"


async def test_a_caller_waits_on_while_no_worker_answers(engine: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reads in between need a worker. One that is away or busy for longer than a read waits is no reason to give the result up."""
    monkeypatch.setattr("onward.service.waiting.DEAR_READ_PAUSE_S", 0.05)
    monkeypatch.setattr("onward.engines.temporal.client.QUERY_ATTEMPT_S", 0.2)
    monkeypatch.setattr("onward.engines.temporal.client.QUERY_TIMEOUT_S", 0.2)

    @engine.app.task
    async def work(ctx: Any) -> str:
        return "done"

    handle = await engine.app.submit(work)
    with pytest.raises(StoreUnavailable, match="check that one runs"):
        await handle.result(1)
    waiting = asyncio.create_task(handle.result(60))
    done, _ = await asyncio.wait({waiting}, timeout=2)
    assert not done
    await engine.start()
    assert await waiting == "done"


async def test_ten_thousand_steps(engine: Foreign, at_length: None) -> None:
    """With default settings: the journal is dense over all runs, and the replay after a crash at the end is bounded."""
    steps, ran = 10_000, 0

    @engine.app.task
    async def work(ctx: Any) -> int:
        async def step() -> None:
            nonlocal ran
            ran += 1

        for _ in range(steps):
            await ctx.step(step)
        return int(await ctx.signal("last"))

    began = time.monotonic()
    handle = await engine.submit(work)
    client = await _temporal(engine).client()
    while (await handle.get()).reason != "signal":  # noqa: ASYNC110
        await asyncio.sleep(5)
    worked = time.monotonic() - began
    await engine.crash()
    await engine.start()
    began = time.monotonic()
    await engine.app.signal(handle.id, "last", 1)
    assert (await engine.ended(handle)).result == 1
    replayed = time.monotonic() - began
    assert ran == steps, "no step ran again"
    records = await _temporal(engine).records(handle.id)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert [record.kind for record in records].count(r.STEP_DONE) == steps
    runs = [run async for run in client.list_workflows(f"WorkflowId = '{handle.id}'")]
    print(
        f"\n{steps} steps in {worked:.0f} s and {len(runs)} runs; from the signal to the end, with the replay, {replayed:.1f} s"
    )
    assert len(runs) > 2


@pytest.mark.parametrize("turns", [20, pytest.param(200, id="200-prove")])
async def test_an_agent_of_many_turns(engine: Foreign, turns: int, prove: bool) -> None:
    if turns > 20 and not prove:
        pytest.skip("tried with fewer turns; the whole of it is for `make prove`")
    calls: list[int] = []

    @tool
    def look(number: int) -> str:
        """Look at something."""
        calls.append(number)
        return f"seen {number}"

    class Model:
        """Calls the tool once for each turn, then answers."""

        name = "counting"

        async def ask(self, request: Request, emit: Emit) -> Reply:
            if len(calls) == turns:
                return Reply("done", usage=Usage(10, 1))
            arguments = json.dumps({"number": len(calls)})
            return Reply("", (ToolCall(f"call_{len(calls)}", "look", arguments),), Usage(10, 1), finish="tool_calls")

    agent = engine.app.agent("looker", model=Model(), tools=[look])
    began = time.monotonic()
    task = await engine.ended(await engine.submit(agent, "Look."), 60.0 + turns * 2)
    assert (task.state, task.error) == (State.COMPLETED, None)
    assert calls == list(range(turns))
    print(f"\n{turns} turns in {time.monotonic() - began:.0f} s")
