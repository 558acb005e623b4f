"""Writes the stored histories of `OnwardTask` anew, on a Temporal server that it starts: `python -m tests.engines.histories`.

Workflows that run while a new version of Onward is deployed are replayed by it. So the files keep what this version's workflow did. Write them anew
only before a release has them; afterwards add files beside them, and make the change of the workflow with `workflow.patched`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from onward import Onward
from onward.app.application import Handle
from onward.engines.temporal.client import TemporalEngine
from rig.temporal import Temporal
from tests.engines.kit import Foreign

FOLDER = Path(__file__).parent / "temporal_histories"

EVENTS_OF_A_RUN = 40
"""Events after which the task `continue_as_new` goes on in a new run."""

Play = Callable[[Foreign, Handle[Any]], Awaitable[None]]


def add_tasks(app: Onward) -> None:
    """The tasks whose histories are kept, by the names of the files."""

    @app.task
    async def small(ctx: Any) -> str:
        return "small"

    @app.task
    async def steps(ctx: Any) -> list[int]:
        return [await ctx.step(lambda number=number: number, name=f"step {number}") for number in range(3)]

    @app.task(retry=1)
    async def failure(ctx: Any) -> None:
        await ctx.step(lambda: 1, name="first")
        raise ValueError("no")

    @app.task
    async def wait(ctx: Any) -> Any:
        await ctx.sleep(0.2)
        return await ctx.signal("go", timeout=60)

    @app.task
    async def approval(ctx: Any) -> bool:
        return bool(await ctx.approve("May it?"))

    @app.task
    async def child(ctx: Any) -> Any:
        return await (await ctx.submit(small))

    @app.task(retry=1)
    async def saga(ctx: Any) -> None:
        async with ctx.saga():
            await ctx.step(lambda: 1, name="do", undo=lambda _: None)
            raise ValueError("no")

    @app.task
    async def cancel(ctx: Any) -> None:
        await ctx.signal("never")

    @app.task
    async def cancel_saga(ctx: Any) -> None:
        async with ctx.saga():
            await ctx.step(lambda: 1, name="do", undo=lambda _: None)
            await ctx.signal("never")

    @app.task
    async def continue_as_new(ctx: Any) -> Any:
        for number in range(10):
            await ctx.step(lambda number=number: number, name=f"step {number}")
        return await ctx.signal("go")


async def _signal(engine: Foreign, handle: Handle[Any]) -> None:
    await engine.waiting(handle, "signal")
    await engine.app.signal(handle.id, "go", 1)


async def _approve(engine: Foreign, handle: Handle[Any]) -> None:
    await engine.waiting(handle, "approval")
    (ask,) = await engine.until(lambda: engine.app.asks("approval"))
    await engine.app.decide(ask.id, "approve")


async def _cancel(engine: Foreign, handle: Handle[Any]) -> None:
    await engine.waiting(handle, "signal")
    await engine.app.cancel(handle.id)


PLAYS: dict[str, Play | None] = {
    "steps": None,
    "failure": None,
    "wait": _signal,
    "approval": _approve,
    "child": None,
    "saga": None,
    "cancel": _cancel,
    "cancel_saga": _cancel,
    "continue_as_new": _signal,
}


async def write(folder: Path, url: str) -> None:
    """Run the tasks on this server, and write a file for each run of their workflows."""
    engine = Foreign(Onward(engine=f"{url}?queue=histories"))
    add_tasks(engine.app)
    async with engine.app:
        temporal = engine.app._engine
        assert isinstance(temporal, TemporalEngine)
        await engine.start()
        for name, play in PLAYS.items():
            if name == "continue_as_new":
                temporal.events = EVENTS_OF_A_RUN
            handle = await engine.app.submit(name)
            first = (await (await temporal.client()).get_workflow_handle(handle.id).describe()).run_id
            if play is not None:
                await play(engine, handle)
            await engine.ended(handle)
            await _write_runs(folder, name, temporal, handle.id, first)
        await engine.stop()


async def _write_runs(folder: Path, name: str, engine: TemporalEngine, task_id: str, run: str) -> None:
    client = await engine.client()
    last = (await client.get_workflow_handle(task_id).describe()).run_id
    for number, run_id in enumerate(dict.fromkeys([run, last]), 1):
        history = await client.get_workflow_handle(task_id, run_id=run_id).fetch_history()
        document = {"id": task_id, "history": _without_names(json.loads(history.to_json()))}
        (folder / f"{name}-{number}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")


def _without_names(value: Any) -> Any:
    """A history without the names of machines and folders. A replay does not read them."""
    if isinstance(value, list):
        return [_without_names(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "TASK_QUEUE_KIND_STICKY":
        return {**value, "name": "sticky"}
    return {key: _without_names(item) for key, item in value.items() if key not in {"identity", "stackTrace"}}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    with Temporal() as server:
        asyncio.run(write(FOLDER, server.url))
    print(f"{len(list(FOLDER.glob('*.json')))} histories in {FOLDER}")


if __name__ == "__main__":
    main()
