"""Messages and reports for users, from outside: with the public API and the command alone, on both stores."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import json
from typing import Any

import pytest

from onward import Context, Onward, Retry, State
from onward.agent.models.scripted import ScriptedModel
from onward.cli.main import main
from onward.core.state import AgentState, Fact
from onward.errors import InvalidInput, TaskFailed, TaskParked, UsageError
from tests.kit import eventually, not_memory

pytestmark = not_memory


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"lease_s": 2.0, "heartbeat_s": 0.3, "poll_s": 0.05, "grace_s": 1.0}


async def _command(*words: str) -> tuple[int, str]:
    """Runs an `onward` command in a thread; returns its exit status and output."""
    out = io.StringIO()

    def run() -> int:
        with contextlib.redirect_stdout(out):
            return main(list(words))

    return await asyncio.to_thread(run), out.getvalue()


async def _parked(url: str, settings: dict[str, Any], *, sleeps: float = 0.0) -> str:
    """Parks a task by a change of its code; returns its id."""
    before = Onward(url, **settings)

    @before.task(name="order")
    async def first(ctx: Context) -> None:
        await ctx.step(asyncio.sleep, 0, name="charge")
        await ctx.sleep(sleeps or "1h")

    async with before.worker():
        handle = await before.submit("order")
        await eventually(lambda: _is(handle, "asleep"))
    after = Onward(url, **settings)

    @after.task(name="order")
    async def second(ctx: Context) -> None:
        await ctx.step(asyncio.sleep, 0, name="book")

    async with after.worker():
        if not sleeps:
            await after.signal(handle.id, "anything")
        await eventually(lambda: _is(after.handle(handle.id), "parked"))
    return handle.id


async def _is(handle: Any, reason: str) -> bool:
    return (await handle.get()).reason == reason


async def test_a_parked_task_names_the_reason_in_python(url: str, settings: dict[str, Any]) -> None:
    task_id = await _parked(url, settings, sleeps=1.5)
    async with Onward(url) as app:
        task = await app.get(task_id)
        assert (task.state, task.reason) == (State.WAITING, "parked")
        assert task.error is not None
        assert task.error["type"] == "Parked"
        assert "'charge'" in task.error["message"]
        for timeout in (None, 3600):
            with pytest.raises(TaskParked, match=rf"parked: .*'charge'.*onward resume {task_id}") as raised:
                await asyncio.wait_for(app.handle(task_id).result(timeout), 60)  # at once, not after an hour
            assert raised.value.why == task.error["message"]


async def test_show_names_the_reason_of_a_parked_task_and_not_a_sleep(url: str, settings: dict[str, Any]) -> None:
    task_id = await _parked(url, settings, sleeps=1.5)
    status, text = await _command("show", task_id, "--db", url)
    assert status == 0
    head = text.partition("task.submitted")[0].partition("submitted")[0]
    assert "'charge'" in head
    assert "asleep" not in head
    status, text = await _command("show", task_id, "--db", url, "--json")
    shown = json.loads(text)
    assert shown["waits_for"] == []
    assert "'charge'" in shown["error"]["message"]


async def test_times_of_a_list_are_iso_times(url: str, settings: dict[str, Any]) -> None:
    await _parked(url, settings, sleeps=1.5)
    app = Onward(url, **settings)

    @app.task
    async def nap(ctx: Context) -> None:
        await ctx.sleep("1h")

    async with app.worker():
        handle = await app.submit(nap)
        await eventually(lambda: _is(handle, "asleep"))
    status, text = await _command("list", "--db", url, "--json")
    assert status == 0
    times = [time for task in json.loads(text)["tasks"] for time in _times(task)]
    assert len(times) >= 8
    for time in times:
        assert datetime.datetime.fromisoformat(time).tzinfo is not None


def _times(value: Any) -> list[Any]:
    """All values under names of times."""
    if isinstance(value, list):
        return [time for item in value for time in _times(item)]
    if not isinstance(value, dict):
        return []
    named = {name: item for name, item in value.items() if name in {"since", "until", "at"} or name.endswith("_at")}
    return [item for item in named.values() if item is not None] + [
        time for name, item in value.items() if name not in named for time in _times(item)
    ]


async def test_the_attempts_of_an_error_are_those_of_the_step(url: str, settings: dict[str, Any]) -> None:
    app = Onward(url, **settings)

    async def fails() -> None:
        raise ConnectionResetError("gone")

    @app.task(retry=1)
    async def work(ctx: Context) -> None:
        await ctx.step(fails, retry=Retry(attempts=4, first=0.01, cap=0.02))

    async with app.worker():
        handle = await app.submit(work)
        with pytest.raises(TaskFailed, match="4 times"):
            await handle.result(60)
        task = await handle.get()
        assert task.error is not None
        assert task.error["attempts"] == 4


async def test_a_transaction_is_tried_again(url: str, settings: dict[str, Any]) -> None:
    app, calls = Onward(url, **settings), []

    async def write(connection: Any, order: int) -> int:
        calls.append(order)
        if len(calls) < 3:
            raise ConnectionResetError("gone")
        return order

    @app.task(retry=1)
    async def work(ctx: Context) -> Any:
        return await ctx.transaction(write, 7, retry=Retry(attempts=4, first=0.01, cap=0.02))

    @app.task(retry=1)
    async def block(ctx: Context) -> None:
        with pytest.raises(UsageError, match="a block cannot be run again"):
            ctx.transaction(retry=3)

    async with app.worker():
        assert await (await app.submit(work)).result(60) == 7
        assert calls == [7, 7, 7]
        await (await app.submit(block)).result(60)


async def test_an_agent_takes_a_whole_state_as_its_input(url: str, settings: dict[str, Any]) -> None:
    app = Onward(url, **settings)
    app.agent("finder", model=ScriptedModel(["found"]), approve=["external_action"])
    given = AgentState(
        goal="find it", plan=("look", "tell"), known_facts=(Fact(key="where", value="attic", source="user"),)
    )
    async with app.worker():
        for value in (given, given.model_dump(mode="json"), {"goal": "find it", "plan": ["look", "tell"]}):
            handle = await app.submit("finder", value)
            assert await handle.result(60) == "found"
            state = await app.state(handle.id)
            assert (state.goal, state.plan) == ("find it", ("look", "tell"))
            assert state.constraints.human_in_the_loop.required_for_risk_levels == ("external_action",)
        for wrong in ({"goal": "find it", "plans": []}, {"goal": "find it", "known_facts": [{"k": 1}]}):
            with pytest.raises(InvalidInput):
                await app.submit("finder", wrong)
        assert await (await app.submit("finder", "find it")).result(60) == "found"
