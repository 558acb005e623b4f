"""A plugin of pytest for the tests of the OpenAI Agents SDK: every run of an agent is a task, whose model requests and tool calls are steps.

A run is in the handler of a task on a database of its own in SQLite. When the test is over, another worker replays all tasks of the test.
A replay that asks a model or calls a tool fails the test. A replay may stop before its end, where objects of the test (a saved state, a
context, a session) are not as they were before the run; `ONWARD_SUITE_REPORT` names a file for the ends of all replays.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import agents.run
import pytest
from agents.run import set_default_agent_runner

from onward import Onward
from onward.core.control import Control
from onward.engine.context.context import CURRENT
from onward.errors import TaskParked
from onward.integrations.openai_agents import OnwardRunner
from onward.integrations.openai_agents.model import RequestedModel
from onward.integrations.openai_agents.tools import ToolStep

REPLAY_TIMEOUT_S = 60.0
REPORT = os.environ.get("ONWARD_SUITE_REPORT", "")
"""A file that gets a line for each replay."""

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A folder in memory, for the databases."""

Body = Callable[[], Awaitable[Any]]


class Tasks:
    """The tasks of one test."""

    def __init__(self, folder: Path) -> None:
        self._url = f"sqlite:///{folder / 'test.db'}"
        self._replays: dict[str, tuple[str, Body | None]] = {}
        """The tasks and how they are replayed, by the names of their handlers."""
        self.calls: list[str] = []
        """The requests and the tool calls that were made."""
        self.ends: list[str] = []
        """How the replays ended."""

    async def run(self, body: Body, replay: Body) -> Any:
        """The result of a body, in the handler of a task."""
        app, begun = Onward(self._url), asyncio.get_running_loop().create_future()
        name = f"run-{len(self._replays)}"

        @app.task(name=name, retry=1)
        async def handler(ctx: Any) -> None:
            inner = asyncio.ensure_future(body())
            begun.set_result(inner)
            await asyncio.wait([inner])
            if not inner.cancelled() and isinstance(inner.exception(), Control):
                await inner
            await ctx.signal("again")

        async with app.worker():
            task = await app.submit(name)
            self._replays[name] = (task.id, replay)
            inner = await begun
            try:
                await asyncio.shield(inner)
            except asyncio.CancelledError:
                self._replays[name] = (task.id, None)  # a replay would not be cancelled
                inner.cancel()
                await asyncio.wait([inner])
            except BaseException:
                pass
        return await inner

    async def replay(self) -> None:
        """Replay all tasks with another worker. Raises AssertionError when one asks a model or calls a tool."""
        tasks = {name: (task_id, body) for name, (task_id, body) in self._replays.items() if body is not None}
        app, made = Onward(self._url), len(self.calls)
        for name, (_, body) in tasks.items():
            app.task(name=name, retry=1)(functools.partial(self._again, body))
        if not tasks:
            return
        async with app.worker():
            for task_id, _ in tasks.values():
                await app.signal(task_id, "again")
            for task_id, _ in tasks.values():
                try:
                    end = await app.service.result(task_id, REPLAY_TIMEOUT_S)
                except TaskParked as parked:  # objects of the test are not as they were before the run
                    end = str(parked)[:300]
                self.ends.append(end)
        assert self.calls[made:] == [], "a replay asked a model, or called a tool"

    async def _again(self, body: Body, ctx: Any) -> str:
        end = "done"
        try:
            await body()
        except Control:
            raise
        except BaseException as error:
            end = f"{type(error).__name__}: {error}"[:200]
        await ctx.signal("again")
        return end


TASKS: ContextVar[Tasks] = ContextVar("onward_suite_tasks")
STREAM: ContextVar[Body] = ContextVar("onward_suite_stream")
_start_streaming = agents.run.start_streaming


class SuiteRunner(OnwardRunner):
    """Makes a task of each run that does not belong to another one."""

    async def run(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002 -- the signature of the SDK
        run = functools.partial(super().run, starting_agent, input, **options)
        return await (run() if CURRENT.get() is not None else TASKS.get().run(run, run))

    def run_streamed(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002 -- as above
        run = functools.partial(super().run_streamed, starting_agent, input, **options)

        async def replay() -> None:
            async for _ in run().stream_events():
                pass

        token = STREAM.set(replay)
        try:
            return run()
        finally:
            STREAM.reset(token)


async def start_streaming(**options: Any) -> None:
    """The run behind a stream. The SDK starts it in an asyncio task of its own."""
    run = functools.partial(_start_streaming, **options)
    await (run() if CURRENT.get() is not None else TASKS.get().run(run, STREAM.get()))


agents.run.start_streaming = start_streaming


def _count(kind: type, method: str) -> None:
    original = getattr(kind, method)

    async def counted(self: Any, *args: Any) -> Any:
        if (tasks := TASKS.get(None)) is not None:
            tasks.calls.append(f"{kind.__name__}.{method}")
        return await original(self, *args)

    setattr(kind, method, counted)


_count(RequestedModel, "ask")
_count(ToolStep, "_work")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    set_default_agent_runner(SuiteRunner(asks=False))
    function, folder = item.obj, Path(tempfile.mkdtemp(prefix="onward-suite-", dir=MEMORY))
    tasks = Tasks(folder)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def test(*args: Any, **kwargs: Any) -> None:
            TASKS.set(tasks)
            await function(*args, **kwargs)
            await tasks.replay()

    else:

        @functools.wraps(function)
        def test(*args: Any, **kwargs: Any) -> None:
            TASKS.set(tasks)
            function(*args, **kwargs)
            asyncio.run(tasks.replay())

    item.obj = test
    try:
        yield
    finally:
        item.obj = function
        shutil.rmtree(folder, ignore_errors=True)
        if REPORT:
            with Path(REPORT).open("a") as file:
                file.writelines(f"{item.nodeid}\t{end}\n" for end in tasks.ends)
