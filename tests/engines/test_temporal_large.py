"""Values that are too large for a payload of Temporal, and journals that are too large for a new run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward import Onward, State
from onward.core import record as r
from onward.errors import OnwardError
from rig.temporal import Temporal
from tests.engines.kit import Foreign

pytestmark = pytest.mark.slow

MB = 1_000_000


@pytest.fixture(autouse=True)
def _plain(plain_payloads: None) -> None:
    """Encryption is refused on Temporal."""


@pytest.fixture
async def engine(temporal: Temporal, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Foreign]:
    url = f"{temporal.url}?queue={request.node.name}"
    app = Onward(engine=url, artifacts=f"{tmp_path}/artifacts", lease_s=5.0, heartbeat_s=0.5)
    engine = Foreign(app)
    async with app:
        yield engine
        await engine.stop()


async def test_large_values_go_where_artifacts_are(engine: Foreign) -> None:
    """The input, the result of a step, a signal, the result of a child, and the result of the task have 5 MB each."""
    app = engine.app

    @app.task
    async def child(ctx: Any) -> str:
        return "c" * 5 * MB

    @app.task
    async def work(ctx: Any, text: str) -> list[Any]:
        step = await ctx.step(lambda: "s" * 5 * MB, name="large")
        signal = await ctx.signal("go")
        below = await (await ctx.submit(child))
        return [len(text), len(step), len(signal), len(below), "r" * 5 * MB]

    handle = await engine.submit(work, "i" * 5 * MB)
    await engine.waiting(handle, "signal")
    await engine.crash()  # another worker replays the task
    await app.signal(handle.id, "go", "g" * 5 * MB)
    await engine.start()
    *sizes, result = (await engine.ended(handle)).result
    assert sizes == [5 * MB] * 4
    assert result == "r" * 5 * MB
    assert (await handle.result(60))[-1] == result
    assert (await handle.get()).input == "i" * 5 * MB
    (done,) = [
        record
        for record in await app.service.journal(handle.id)
        if record.kind == r.STEP_DONE and "large" in record.key
    ]
    assert len(done.data) > 5 * MB


async def test_an_input_that_looks_like_a_reference_is_none(engine: Foreign) -> None:
    @engine.app.task
    async def work(ctx: Any, value: Any) -> Any:
        return value

    forged = {"$onward.shelf": ["0" * 26, "0" * 32], "bytes": 1}
    assert (await engine.run(work, forged)).result == forged
    assert (await engine.run(work, {"result": forged})).input == {"result": forged}
    assert await (await engine.submit(work, forged)).result(60) == forged


async def test_a_journal_that_is_too_large_for_a_new_run(engine: Foreign) -> None:
    app, ran = engine.app, []
    assert app._temporal is not None
    app._temporal.events = 60

    @app.task(retry=1)
    async def work(ctx: Any) -> int:
        async with ctx.saga():
            total = 0
            for number in range(40):

                async def step(number: int = number) -> str:
                    ran.append(number)
                    return "x" * 100_000

                total += len(await ctx.step(step, name=f"step {number}", undo=lambda: None))
        await ctx.signal("last")
        if len(ran) == 40:
            ran.append(-1)
            raise ValueError("once")
        return total

    handle = await engine.submit(work)
    await engine.waiting(handle, "signal")
    assert ran == list(range(40))
    await engine.crash()
    await engine.start()
    await app.signal(handle.id, "last")
    assert (await engine.ended(handle)).state is State.FAILED
    await app.resume(handle.id)
    assert (await engine.ended(handle)).result == 40 * 100_000
    assert ran == [*range(40), -1], "no step ran again"
    records = await app._temporal.records(handle.id)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert [record.kind for record in records].count(r.STEP_DONE) == 40
    raw = await app._temporal._query(handle.id, "view", 0, 0)
    assert raw["shelved"], "older records are stored outside of Temporal"


async def test_an_open_saga_is_undone_that_began_in_stored_records(engine: Foreign) -> None:
    app, undone = engine.app, []
    assert app._temporal is not None
    app._temporal.events = 60

    @app.task
    async def work(ctx: Any) -> None:
        async with ctx.saga():
            for number in range(30):
                await ctx.step(
                    lambda: "x" * 100_000, name=f"step {number}", undo=lambda *_, number=number: undone.append(number)
                )
            await ctx.signal("go")

    handle = await engine.submit(work)
    await engine.waiting(handle, "signal")
    assert (await app._temporal._query(handle.id, "view", 0, 0))["shelved"]
    await app.cancel(handle.id)
    assert (await engine.ended(handle)).state is State.CANCELLED
    assert undone == [*range(29, -1, -1)]


async def test_without_a_place_for_artifacts_large_values_are_refused(temporal: Temporal) -> None:
    engine = Foreign(Onward(engine=f"{temporal.url}?queue=no-shelf", lease_s=5.0, heartbeat_s=0.5))

    @engine.app.task(retry=1)
    async def work(ctx: Any, text: str) -> None:
        await ctx.step(lambda: text * 5 * MB, name="large", retry=1)

    async with engine.app:
        with pytest.raises(
            OnwardError, match=r"the input of 5,000,0.. bytes is more than the 1,500,000 .* give artifacts="
        ):
            await engine.app.submit(work, "i" * 5 * MB)
        task = await engine.run(work, "s")
        assert task.error is not None
        assert "give artifacts= a folder or a bucket" in task.error["message"]
        await engine.stop()
