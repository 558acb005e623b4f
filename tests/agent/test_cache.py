"""The cache of tools that only read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onward import Context, Onward, tool
from onward.agent.cache import MAX_ENTRY_BYTES, MemoryCache
from onward.agent.models.scripted import ScriptedModel
from onward.core import wire
from onward.errors import BadSetting, UsageError
from onward.service.submission import SubmitRequest
from rig.server import Unavailable
from rig.valkey import Valkey
from tests.kit import HandClock, Lab


def weather(app: Onward, calls: list[str], *, plain: bool = False, **options: Any) -> Any:
    """An agent that asks for the weather of its goal twice."""

    async def look(city: str) -> dict[str, str]:
        """The weather of a city."""
        calls.append(city)
        return {"city": city, "sky": "clear"}

    def look_plainly(city: str) -> dict[str, str]:
        """The weather of a city."""
        calls.append(city)
        return {"city": city, "sky": "clear"}

    cached = tool(name="look", cache="10m", **options)(look_plainly if plain else look)
    script = [[("look", {"city": "Oslo"})], [("look", {"city": "Rome"})], [("look", {"city": "Oslo"})], "clear"]
    return app.agent("weather", model=ScriptedModel(script), tools=[cached])


async def recorded(app: Onward, task_id: str) -> list[Any]:
    """The records of the calls of the tool."""
    records = await app.store.journal(task_id, 0, 1000)
    return [
        wire.decode(record.data)["result"]
        for record in records
        if record.kind == "step.completed" and "look" in record.key
    ]


@pytest.mark.parametrize("plain", [False, True])
async def test_the_same_arguments_are_read_once(lab: Lab, plain: bool) -> None:
    calls: list[str] = []
    agent = weather(lab.app, calls, plain=plain)
    first = await lab.run(agent, "go")
    second = await lab.run(agent, "go")
    assert (first.result, second.result) == ("clear", "clear")
    assert calls == ["Oslo", "Rome"]
    assert ["cached" in output for output in await recorded(lab.app, first.task_id)] == [False, False, True]
    outputs = await recorded(lab.app, second.task_id)
    assert [output["cached"]["in"] for output in outputs] == ["memory"] * 3
    replayed = await lab.app.replay(second.task_id)
    assert replayed.agrees, replayed.detail


async def test_an_output_is_read_again_after_its_time(lab: Lab) -> None:
    calls: list[str] = []
    agent = weather(lab.app, calls)
    await lab.run(agent, "go")
    lab.clock.jump(601)
    await lab.run(agent, "go")
    assert calls == ["Oslo", "Rome", "Oslo", "Rome"]


async def test_tenants_do_not_share_outputs(lab: Lab) -> None:
    calls: list[str] = []
    agent = weather(lab.app, calls)
    await lab.run(agent, "go")
    (task_id,) = await lab.app.service.submit([SubmitRequest("weather", {"goal": "go"}, tenant="acme")])
    await lab.app.handle(task_id).result("10s")
    assert calls == ["Oslo", "Rome", "Oslo", "Rome"]
    assert agent is not None


def test_only_tools_that_read_alone_are_cached() -> None:
    with pytest.raises(UsageError, match="cannot be cached"):
        tool(name="pay", risk="external_action", cache="1m")(lambda: 1)
    with pytest.raises(UsageError, match="cannot be cached"):

        @tool(cache="1m")
        async def with_context(ctx: Context) -> None: ...

    app = Onward("sqlite://:memory:", cache="nowhere")
    with pytest.raises(BadSetting, match="redis"):
        app._open_tool_cache()


async def test_memory_is_bounded(clock: HandClock) -> None:
    cache = MemoryCache(clock, most=1000)
    for number in range(20):
        await cache.put(str(number), bytes(100), 60)
    assert await cache.get("0") is None
    assert await cache.get("19") is not None
    assert cache._size <= 1000
    assert MAX_ENTRY_BYTES < 1 << 20


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    try:
        broker = Valkey().start()
    except Unavailable as why:
        pytest.skip(str(why))
    yield broker
    broker.close()


@pytest.mark.parametrize("away", [False, True])
async def test_redis_is_shared_and_may_be_away(valkey: Valkey, away: bool) -> None:
    calls: list[str] = []
    for _ in range(2):
        app = Onward("sqlite://:memory:", brokers={"shared": valkey.url}, cache="shared")
        agent = weather(app, calls)
        async with app.worker():
            handle = await app.submit(agent, "go")
            assert await handle.result("20s") == "clear"
        if away:
            valkey.kill()
    assert calls == (["Oslo", "Rome", "Oslo", "Rome", "Oslo"] if away else ["Oslo", "Rome"])
