"""The workflow of Cadence: long tasks go on in new runs, and a cancel before the first decision leaves no task behind."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Onward
from onward.core import record as r
from rig.cadence import Cadence
from tests.engines.kit import Foreign

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cadence")]


@pytest.fixture
async def engine(cadence: Cadence) -> AsyncIterator[Foreign]:
    url = f"{cadence.url}?tasklist=workflow-{uuid.uuid4().hex[:8]}"
    engine = Foreign(Onward(engine=url, lease_s=5.0, heartbeat_s=0.5))
    async with engine.app:
        yield engine
        await engine.stop()


async def test_a_long_task_goes_on_in_new_runs(engine: Foreign) -> None:
    ran: list[int] = []
    assert engine.app._engine is not None
    engine.app._engine.events = 60

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
    runs = await _runs(engine, handle.id)
    assert runs > 2


async def _runs(engine: Foreign, task_id: str) -> int:
    """How many runs the workflow had."""
    from cadence.api.v1.service_visibility_pb2 import ListClosedWorkflowExecutionsRequest
    from cadence.api.v1.service_visibility_pb2_grpc import VisibilityAPIStub
    from cadence.api.v1.visibility_pb2 import StartTimeFilter, WorkflowExecutionFilter

    assert engine.app._engine is not None
    client: Any = await engine.app._engine.client()
    times = StartTimeFilter()
    times.earliest_time.FromSeconds(0)
    times.latest_time.FromSeconds(2**32)
    request = ListClosedWorkflowExecutionsRequest(
        domain=client.domain,
        page_size=100,
        start_time_filter=times,
        execution_filter=WorkflowExecutionFilter(workflow_id=task_id),
    )

    async def ended() -> int:
        executions = (await VisibilityAPIStub(client._channel).ListClosedWorkflowExecutions(request)).executions
        return len(executions)

    return await engine.until(ended)


async def test_a_message_that_comes_with_the_end_is_read(engine: Foreign) -> None:
    """The server refuses the end of a workflow that has a new signal, and the next decision has both."""
    release = asyncio.Event()

    @engine.app.task
    async def work(ctx: Any) -> str:
        await ctx.step(release.wait, name="wait")
        return "done"

    handle = await engine.submit(work)

    async def begun() -> bool:
        return bool((await handle.get()).attempt and await engine.kinds(handle))

    await engine.until(begun)
    sends = [engine.app.signal(handle.id, "late", number) for number in range(5)]
    release.set()
    await asyncio.gather(*sends, return_exceptions=True)
    assert (await engine.ended(handle)).result == "done"
    records = await engine.app.service.journal(handle.id)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
