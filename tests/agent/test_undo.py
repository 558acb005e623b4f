"""An agent with `undo`: the effects of its tools are undone, the last first, when it fails, is cancelled or runs out of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onward import Context, Onward, State, tool
from onward.agent.models.scripted import ScriptedModel
from onward.agent.policy import Stop, usual
from onward.core import record as r
from onward.core.event import type_of
from onward.errors import NoAnswer, TaskFailed
from onward.testing import crashes, drain
from tests.kit import Gate, Lab

STEPS = [[("book", {"name": "flight"})], [("book", {"name": "hotel"}), ("look", {})], [("book", {"name": "car"})]]
REVERSE = ["car", "hotel", "flight"]


class World:
    """The bookings, and the undone bookings, by the key of the effect."""

    def __init__(self) -> None:
        self.booked: dict[str, str] = {}
        self.undone: list[tuple[str, Any]] = []

    def tools(self, then: Callable[[], Any] | None = None) -> list[Any]:
        async def cancel(name: str, result: Any) -> str:
            self.undone.append((name, result))
            return f"{name} is cancelled"

        @tool(risk="external_action", idempotent=True, undo=cancel)
        async def book(ctx: Context, name: str) -> dict[str, str]:
            """Book it."""
            self.booked.setdefault(ctx.key, name)
            return {"number": f"no {name}"}

        @tool
        async def look() -> str:
            """Look."""
            if then is not None:
                await then()
            return "fine"

        return [book, look]

    @property
    def order(self) -> list[str]:
        return [name for name, _ in self.undone]


def gives_up(seen: Any) -> Any:
    """A policy that stops when all is booked."""
    return Stop("no money left") if seen.steps == 4 else usual(seen)


def trip(app: Onward, world: World, last: Any = "done", **options: Any) -> Any:
    return app.agent("trip", model=ScriptedModel([*STEPS, last]), tools=world.tools(), **{"undo": True, **options})


async def test_a_failure_undoes_its_calls_in_reverse(lab: Lab) -> None:
    world = World()
    task = await lab.run(trip(lab.app, world, policy=gives_up), "go")
    assert (task.state, (task.error or {})["type"]) == (State.FAILED, NoAnswer.__name__)
    assert world.undone == [(name, {"number": f"no {name}"}) for name in REVERSE], "with the result of the tool"
    assert [key.rpartition("]")[2] for key in (task.error or {})["undone"]] == ["book#3", "book#2", "book"]
    replayed = await lab.app.replay(task.task_id)
    assert replayed.agrees, replayed.detail


async def test_its_calls_are_tool_calls_in_the_timeline_and_in_events(lab: Lab) -> None:
    task = await lab.run(trip(lab.app, World()), "go")
    timeline = await lab.app.service.timelines.timeline(task.task_id)
    kinds = {bar.name: bar.kind for bar in timeline.bars}
    assert (kinds["book"], kinds["look"]) == ("tool", "tool")
    records = await lab.app.store.journal(task.task_id, 0, 100)
    executed = [record for record in records if type_of(["tool.executed"], record, first=False) is not None]
    assert len(executed) == 4


async def test_a_completed_agent_and_one_without_undo_undo_nothing(lab: Lab) -> None:
    world = World()
    task = await lab.run(trip(lab.app, world), "go")
    assert (task.result, world.undone) == ("done", [])
    assert list(world.booked.values()) == ["flight", "hotel", "car"]
    other = World()
    lab.app.agent("careless", model=ScriptedModel([*STEPS, "done"]), tools=other.tools(), policy=gives_up)
    task = await lab.run("careless", "go")
    assert (task.state, other.undone) == (State.FAILED, [])


@pytest.mark.parametrize("way", ["cancel", "deadline", "cancel while it waits", "deadline while it waits"])
async def test_a_cancel_and_a_deadline_undo_too(lab: Lab, way: str) -> None:
    world, gate = World(), Gate()

    async def hang() -> None:
        gate.reached.set()
        await lab.clock.sleep(10_000)

    waits = [("ask_user", {"question": "well?"})] if "waits" in way else [("look", {})]
    script = [[("book", {"name": "flight"})], [("book", {"name": "hotel"})], waits, "done"]
    tools = world.tools(hang)
    lab.app.agent(
        "trip", model=ScriptedModel(script), tools=tools, undo=True, deadline=100 if "deadline" in way else None
    )
    await lab.start()
    task_id = await lab.submit("trip", "go")
    if way == "cancel":
        await lab.clock.until(gate.reached.wait())
        await lab.app.cancel(task_id)
    elif way.startswith("cancel"):
        await lab.settled(task_id)
        await lab.app.cancel(task_id)
    elif "waits" in way:
        await lab.settled(task_id)
        await lab.stop()
        lab.clock.jump(1000)
        await lab.start()
    task = await lab.ended(task_id)
    if way == "deadline":  # the tool is cut off, and the script answers the last question
        assert (task.state, world.order) == (State.COMPLETED, [])
        return
    assert task.state is (State.CANCELLED if way.startswith("cancel") else State.FAILED)
    assert world.order == ["hotel", "flight"]


async def test_a_deadline_undoes_and_keeps_the_partial_result(lab: Lab) -> None:
    world = World()

    class Hanging(ScriptedModel):
        async def ask(self, request: Any, emit: Any) -> Any:
            if len(self.asked) >= 2:
                await lab.clock.sleep(10_000)
            return await super().ask(request, emit)

    tools = world.tools()
    lab.app.agent("trip", model=Hanging([STEPS[0], STEPS[1], "done"]), tools=tools, undo=True, deadline=100)
    task = await lab.run("trip", "go")
    assert (task.state, (task.error or {})["type"]) == (State.FAILED, "DeadlineExceeded")
    assert world.order == ["hotel", "flight"]


async def test_a_message_at_the_last_moment_is_read_before_it_completes(lab: Lab) -> None:
    """An undo stays owed until the task's result is written."""
    world = World()
    sent: list[str] = []

    def answer(request: Any) -> Any:
        return "done" if not sent else "really done"

    model = ScriptedModel([STEPS[0], answer, answer])
    app = lab.app
    app.agent("trip", model=model, tools=world.tools(), undo=True)
    save = app.store.save
    first = True

    async def late(worker: str, batch: Any) -> Any:
        nonlocal first
        if first and any(entry[3] == r.COMPLETED for entry in batch.entries):
            first = False
            await app.message(batch.ends[0].id, "one more thing")
            sent.append("x")
        return await save(worker, batch)

    app.store.save = late  # type: ignore[method-assign]
    task = await lab.run("trip", "go")
    assert task.result == "really done"
    assert "one more thing" in str(model.asked[-1].conversation)


@pytest.mark.slow
async def test_killed_anywhere_each_call_is_undone_in_reverse() -> None:
    points: set[str] = set()
    async for app in crashes():
        world = World()
        handle = await app.submit(trip(app, world, policy=gives_up), "go")
        await drain(app)
        with pytest.raises(TaskFailed, match="no money left"):
            await handle.result(timeout=1)
        assert list(dict.fromkeys(world.order)) == REVERSE, app.killed_at
        assert len(world.order) <= len(REVERSE) + 1, "only the one at which it was killed may have run twice"
        undone = [record for record in await app.service.journal(handle.id, limit=1000) if "/undo]" in record.key]
        assert sum(record.kind == r.STEP_DONE for record in undone) == len(REVERSE), "each is recorded once"
        points.add(str(app.killed_at))
    assert {"save.before", "save.after"} <= points
