"""The workflow of Temporal: its histories replay, and long tasks go on in new runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.worker import Replayer

from onward import Onward, State
from onward.core import record as r
from onward.engines.temporal.client import TemporalEngine
from onward.engines.temporal.worker import workflow_runner
from onward.engines.temporal.workflow import OnwardTask
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
    assert engine.app._engine is not None
    return engine.app._engine


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
                await ctx.step(lambda: 1, name="do", undo=lambda _: None)
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
