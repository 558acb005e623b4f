"""Writes the stored histories of `OnwardTask` anew, on a Temporal server that it starts: `python -m tests.engines.histories`.

Workflows that run while a new version of Onward is deployed are replayed by it. So the files keep what this version's workflow did. Write them anew
only before a release has them; afterwards add files beside them, and make the change of the workflow with `workflow.patched`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from onward import Budget, Onward
from onward.agent.models.scripted import ScriptedModel
from onward.app.verbs import Handle
from onward.engines.temporal.client import TemporalEngine
from rig.temporal import Temporal
from tests.engines.kit import Foreign

FOLDER = Path(__file__).parent / "temporal_histories"

EVENTS_OF_A_RUN = 40
"""Events after which the tasks `continue_as_new` and `shelve` go on in a new run."""

LARGE_STEP_BYTES = 80_000
"""Bytes of a step of the task `shelve`: those of a run are too many for a new one."""

MAX_PLAIN_BYTES = 100_000
"""Bytes of a file that is not compressed."""

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
            await ctx.step(lambda: 1, name="do", undo=lambda: None)
            raise ValueError("no")

    @app.task
    async def cancel(ctx: Any) -> None:
        await ctx.signal("never")

    @app.task
    async def cancel_saga(ctx: Any) -> None:
        async with ctx.saga():
            await ctx.step(lambda: 1, name="do", undo=lambda: None)
            await ctx.signal("never")

    @app.task
    async def continue_as_new(ctx: Any) -> Any:
        for number in range(10):
            await ctx.step(lambda number=number: number, name=f"step {number}")
        return await ctx.signal("go")

    @app.task
    async def mirror(ctx: Any) -> Any:
        await ctx.step(lambda: 1, name="first")
        return await ctx.signal("go")

    @app.task
    async def shelve(ctx: Any) -> Any:
        for number in range(10):
            await ctx.step(lambda: "x" * LARGE_STEP_BYTES, name=f"step {number}")
        return await ctx.signal("go")

    async def look() -> str:
        """Look around."""
        return "nothing new"

    script: Any = [[("look", {})], "done"]
    app.agent("budget", model=ScriptedModel(script), tools=[look], budget=Budget(max_steps=1))


async def _raise(engine: Foreign, handle: Handle[Any]) -> None:
    await engine.waiting(handle, "budget")
    await engine.app.raise_budget(handle.id, max_steps=2)


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
    "mirror": _signal,
    "shelve": _signal,
    "budget": _raise,
}

INPUTS = {"budget": "go"}


async def write(folder: Path, url: str) -> None:
    """Run the tasks on this server, and write a file for each run of their workflows."""
    with tempfile.TemporaryDirectory(prefix="onward-histories-") as scratch:
        settings = {"mirror": {"db": f"sqlite:///{scratch}/mirror.db"}, "shelve": {"artifacts": f"{scratch}/artifacts"}}
        for name, play in PLAYS.items():
            app = Onward(engine=f"{url}?queue=histories-{name}", **settings.get(name, {}))
            add_tasks(app)
            await _write(folder, name, play, Foreign(app))


async def _write(folder: Path, name: str, play: Play | None, engine: Foreign) -> None:
    async with engine.app:
        temporal = engine.app._temporal
        assert temporal is not None
        if name in {"continue_as_new", "shelve"}:
            temporal.events = EVENTS_OF_A_RUN
        handle = await engine.submit(name, INPUTS.get(name))
        first = (await (await temporal.client()).get_workflow_handle(handle.id).describe()).run_id
        if play is not None:
            await play(engine, handle)
        await engine.ended(handle)
        await temporal.end(handle.id)  # with a mirror, the workflow ends after the task
        await _write_runs(folder, name, temporal, handle.id, first)
        await engine.stop()


async def _write_runs(folder: Path, name: str, engine: TemporalEngine, task_id: str, run: str) -> None:
    client = await engine.client()
    last = (await client.get_workflow_handle(task_id).describe()).run_id
    for number, run_id in enumerate(dict.fromkeys([run, last]), 1):
        history = await client.get_workflow_handle(task_id, run_id=run_id).fetch_history()
        document = {"id": task_id, "history": _without_names(json.loads(history.to_json()))}
        text = json.dumps(document, separators=(",", ":")) + "\n"
        file = folder / f"{name}-{number}.json"
        if len(text) <= MAX_PLAIN_BYTES:
            file.write_text(text)
        else:
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def read(file: Path) -> Any:
    """The id of the workflow of a file, and its history."""
    data = file.read_bytes()
    return json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)


def files() -> list[Path]:
    """The files of all histories."""
    return sorted(FOLDER.glob("*.json*"))


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
    for old in files():
        old.unlink()
    with Temporal() as server:
        asyncio.run(write(FOLDER, server.url))
    print(f"{len(files())} histories in {FOLDER}")


if __name__ == "__main__":
    main()
