"""A handler that blocks the event loop: the worker logs its line, suspects the task, then quarantines it; other tasks go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from onward import Context, Onward
from onward.core.clock import SystemClock
from onward.core.task import Reason, State
from onward.engine.worker.watchdog import Watchdog
from tests.kit import crashes, eventually, kinds, not_memory

LEASE_S = 0.8


class Workers:
    """Workers in threads, each with a loop of its own that a handler can block."""

    def __init__(self, url: str) -> None:
        self.url, self.release, self.blocked = url, threading.Event(), []
        self._over, self._threads = threading.Event(), []

    def app(self) -> Onward:
        app = Onward(self.url, lease_s=LEASE_S, heartbeat_s=0.1, poll_s=0.05, grace_s=0.5, slots=4)

        @app.task
        async def bad(ctx: Context) -> str:
            await ctx.step(asyncio.sleep, 0, name="before")
            self.blocked.append(ctx.task_id)
            self.release.wait(60)  # the line that blocks
            return "done"

        @app.task
        async def good(ctx: Context) -> str:
            for number in range(3):
                await ctx.step(asyncio.sleep, 0.02, name=f"s{number}")
            return "done"

        return app

    def start(self) -> None:
        thread = threading.Thread(target=lambda: asyncio.run(self._work()), daemon=True)
        self._threads.append(thread)
        thread.start()

    async def _work(self) -> None:
        async with self.app().worker():
            while not self._over.is_set():  # noqa: ASYNC110 -- another thread says so
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        self.release.set()
        self._over.set()
        for thread in self._threads:
            thread.join(60)


@pytest.fixture
def workers(url: str) -> Iterator[Workers]:
    workers_in_threads = Workers(url)
    yield workers_in_threads
    workers_in_threads.stop()


@pytest.mark.slow
@not_memory
async def test_a_handler_that_blocks_is_quarantined_and_named(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler blocks both workers. The verdict needs neither a third worker nor a restart."""
    caplog.set_level(logging.ERROR)
    async with workers.app() as app:
        bad = await app.submit("bad")
        goods = [await app.submit("good") for _ in range(4)]
        workers.start()
        workers.start()

        async def judged() -> bool:
            return (await bad.get()).reason == Reason.QUARANTINED

        await eventually(judged)
        assert workers.blocked == [bad.id, bad.id]
        last = (await app.store.journal(bad.id))[-1]
        reason = last.value["reason"]
        assert "'bad'" in reason
        assert f"{__file__}:" in reason
        assert "in bad" in reason
        suspected, quarantined = [line for line in caplog.messages if bad.id in line]
        assert "suspected" in suspected
        assert "quarantined" in quarantined
        for line in (suspected, quarantined):
            assert "'bad'" in line
            assert "test_blocked.py:" in line
        for good in goods:
            with contextlib.suppress(Exception):
                assert await crashes(app.store, good.id) == 0
        workers.release.set()  # the loops go on, and the store refuses their late records of that task
        assert [await good.result(60) for good in goods] == ["done"] * 4
        task = await bad.get()
        assert (task.state, task.reason) == (State.WAITING, Reason.QUARANTINED)
        assert (await kinds(app.store, bad.id))[-1] == "task.quarantined"
        await app.resume(bad.id)
        assert await bad.result(60) == "done"


async def test_a_process_that_was_suspended_as_a_whole_is_not_taken_for_stuck(clock: Any) -> None:
    watchdog = Watchdog(clock, 1.0)
    watchdog.watch()
    watchdog.turned()
    assert watchdog.look() == 0
    clock.jump(3600)  # neither the loop nor the watchdog ran
    assert watchdog.look() <= 2
    clock.jump(1)
    assert 2 <= watchdog.look() <= 3
    watchdog.turned()
    assert watchdog.look() == 0


@pytest.mark.parametrize("how", ["handler", "deadline", "step", "timeout", "branch"])
def test_the_task_is_found_wherever_its_code_blocks(how: str) -> None:
    """In the handler, under a deadline, in a step, in one with a timeout, and in a branch."""
    app, locations = Onward("sqlite://:memory:", poll_s=0.02), []

    async def run() -> None:
        watchdog = Watchdog(SystemClock(), 1.0)
        watchdog.watch()
        release = threading.Event()

        async def block() -> None:
            def look() -> None:
                locations.append(watchdog.locate())
                release.set()

            threading.Timer(0.05, look).start()
            release.wait(60)

        async def handler(ctx: Context) -> None:
            if how == "step":
                await ctx.step(block)
            elif how == "timeout":
                await ctx.step(block, timeout=60)
            elif how == "branch":
                await ctx.gather(block(), ctx.sleep(0))
            else:
                await block()

        app.task(name="work", **({"deadline": 60} if how == "deadline" else {}))(handler)
        async with app.worker():
            handle = await app.submit("work")
            await handle.result(60)
            assert [location.task_id for location in locations] == [handle.id]

    asyncio.run(run())
    assert f"{__file__}:" in locations[0].where
    assert "block" in locations[0].where
