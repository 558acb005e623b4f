"""Tasks whose workflows an operator ends in Temporal itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Onward, State
from onward.engines.temporal import outside
from onward.errors import TaskFailed
from rig.temporal import Temporal
from tests.engines.kit import Foreign, differences

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("temporal")]

SETTINGS: dict[str, Any] = {"lease_s": 5.0, "heartbeat_s": 0.5}


@pytest.fixture(autouse=True)
def _plain(plain_payloads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "INTERVAL_S", 0.2)


@pytest.fixture(params=["mirror", "memory"])
async def engine(
    temporal: Temporal, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Foreign]:
    db = f"sqlite:///{tmp_path_factory.mktemp('mirror')}/mirror.db" if request.param == "mirror" else ""
    engine = Foreign(Onward(db, engine=f"{temporal.url}?queue={request.node.name}", **SETTINGS))
    async with engine.app:
        yield engine
        await engine.stop()


async def terminate(app: Onward, task_id: str) -> None:
    assert app._temporal is not None
    await (await app._temporal._handle(task_id)).terminate("by hand")


def add_work(app: Onward) -> Any:
    @app.task
    async def work(ctx: Any) -> Any:
        await ctx.step(lambda: 1, name="first")
        return await ctx.signal("go")

    return work


async def test_a_terminated_workflow_is_a_failed_task(engine: Foreign) -> None:
    app = engine.app
    handle = await engine.submit(add_work(app))
    await engine.waiting(handle, "signal")
    result = asyncio.create_task(handle.result(60))
    await asyncio.sleep(0)
    await terminate(app, handle.id)
    with pytest.raises(TaskFailed, match="its workflow was terminated in Temporal, and not by Onward"):
        await result
    (task,) = (await app.list(state=State.FAILED))[0]
    assert task.task_id == handle.id
    assert (await engine.kinds(handle))[-1] == "task.failed"
    await asyncio.sleep(outside.INTERVAL_S * 3)  # more rounds change nothing
    before = await engine.kinds(handle)
    assert before.count("task.failed") == 1

    await app.resume(handle.id)
    await app.signal(handle.id, "go", "went on")
    assert (await engine.ended(handle)).result == "went on"
    kinds = await engine.kinds(handle)
    assert kinds[: len(before) + 1] == [*before, "task.resumed"]
    if app._temporal is not None and app._temporal.mirror:
        assert await differences(app, handle.id) == []


async def test_the_parent_of_a_terminated_workflow_goes_on(engine: Foreign) -> None:
    app = engine.app
    work = add_work(app)

    @app.task
    async def parent(ctx: Any) -> str:
        try:
            return str(await (await ctx.submit(work)))
        except TaskFailed as error:
            return f"without it: {error}"

    handle = await engine.submit(parent)
    await engine.waiting(handle, "child")
    (child,) = (await app.list(parent=handle.id))[0]
    await engine.waiting(app.handle(child.task_id), "signal")
    await terminate(app, child.task_id)
    assert "without it" in str((await engine.ended(handle)).result)
