"""Lists of tasks on Temporal without a mirror: by search attributes, and page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Onward, State
from rig.temporal import Temporal
from tests.engines.kit import Foreign

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _plain(plain_payloads: None) -> None:
    """Encryption is refused on Temporal."""


@pytest.fixture
async def engine(temporal: Temporal, request: pytest.FixtureRequest) -> AsyncIterator[Foreign]:
    engine = Foreign(Onward(engine=f"{temporal.url}?queue={request.node.name}", lease_s=5.0, heartbeat_s=0.5))
    async with engine.app:
        yield engine
        await engine.stop()


def add_handlers(app: Onward) -> None:
    @app.task(retry=1)
    async def work(ctx: Any, way: str) -> str:
        if way == "fail":
            raise ValueError("no")
        if way == "wait":
            await ctx.signal("go")
        if way == "parent":
            return str(await (await ctx.submit("other", "child")))
        return way

    @app.task
    async def other(ctx: Any, way: str) -> str:
        return way


async def test_lists_are_filtered_by_temporal(engine: Foreign) -> None:
    app = engine.app
    add_handlers(app)
    handles = {
        way: await engine.submit("work", way, labels={"way": way, "team": "it's ours"})
        for way in ("ok", "fail", "wait", "parent")
    }
    for way in ("ok", "fail", "parent"):
        await engine.ended(handles[way])
    await engine.waiting(handles["wait"], "signal")
    temporal = app._temporal
    assert temporal is not None

    async def visible() -> bool:
        listed = [await temporal._list({"task": "work"}), await temporal._list({"task": "other"})]
        failed = await temporal._list({"state": State.FAILED})
        return [len(ids) for ids in listed] == [4, 1] and failed == [handles["fail"].id]

    await engine.until(visible)
    assert await temporal._list({"label": b'"way":"ok"'}) == [handles["ok"].id]
    assert await temporal._list({"parent": handles["parent"].id}) == await temporal._list({"task": "other"})

    reader = Onward(engine=app.settings.engine)  # another process, which has no copy yet
    async with reader:
        for filters, ways in (
            ({"state": State.FAILED}, ["fail"]),
            ({"state": State.WAITING}, ["wait"]),
            ({"labels": {"way": "ok"}}, ["ok"]),
            ({"labels": {"team": "it's ours"}}, ["parent", "wait", "fail", "ok"]),
        ):
            tasks, _ = await reader.list(**filters)
            assert [task.task_id for task in tasks] == [handles[way].id for way in ways]


async def test_a_reader_pages_through_all_tasks(engine: Foreign) -> None:
    app = engine.app
    add_handlers(app)
    keyed = [
        await engine.submit("other", str(number), key=f"{engine.app.settings.engine}{number}") for number in range(3)
    ]
    handles = [*keyed, *[await engine.submit("other", str(number)) for number in range(9)]]
    for handle in handles:
        await engine.ended(handle)
    temporal = app._temporal
    assert temporal is not None

    async def visible() -> bool:
        return len(await temporal._list({})) == 12

    await engine.until(visible)
    reader = Onward(engine=app.settings.engine)
    async with reader:
        ids: list[str] = []
        cursor = None
        for _ in range(4):
            tasks, cursor = await reader.list(limit=5, cursor=cursor)
            ids += [task.task_id for task in tasks]
            if cursor is None:
                break
        assert ids == sorted((handle.id for handle in handles), reverse=True)
