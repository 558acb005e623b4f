"""`app.sync`: the verbs as blocking calls, from any thread."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onward import Onward
from onward.app.sync import SyncOnward
from onward.errors import TaskNotFound, UsageError

ASYNC_ONLY = {"open", "close"}
"""Methods of an app that `SyncOnward` has with another meaning."""


def test_every_verb_of_an_app_is_there() -> None:
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}

    verbs = {name for name in public(Onward) if inspect.iscoroutinefunction(getattr(Onward, name))} | {"handle"}
    assert public(SyncOnward) == verbs | ASYNC_ONLY


def make_app(url: str) -> Onward:
    app = Onward(url, lease_s=5.0, poll_s=0.05)

    @app.task
    def double(ctx: Any, number: int) -> int:
        return int(ctx.step(lambda: number * 2, name="double"))

    @app.task
    def ask(ctx: Any) -> str:
        ctx.approve("go on")
        return str(ctx.signal("word"))

    return app


def in_thread(work: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(60)


async def test_threads_submit_and_wait_while_a_worker_runs_elsewhere(url: str) -> None:
    async with make_app(url).worker(slots=20):
        app = make_app(url)

        def work() -> None:
            with ThreadPoolExecutor(8) as pool:
                results = list(pool.map(lambda n: app.sync.submit("double", n).result(60), range(40)))
            assert results == [number * 2 for number in range(40)]
            many = app.sync.submit_many("double", [1, 2, 3])
            assert [handle.result(60) for handle in many] == [2, 4, 6]
            assert [update.status for update in many[0].follow()][-1] == "completed"
            assert [record.kind for record in app.sync.handle(many[0].id).tail()][-1] == "task.completed"
            with pytest.raises(TaskNotFound):
                app.sync.get("0" * 26)
            waits = app.sync.submit("ask")
            while not (asks := app.sync.approvals()):
                pass
            assert app.sync.decide(asks[0].id, "approve", by="ada")
            app.sync.signal(waits.id, "word", "yes")
            assert waits.result(60) == "yes"
            assert {bar.kind for bar in app.sync.timeline(waits.id).bars} >= {"wait"}
            app.sync.close()
            assert app.sync.get(waits.id).result == "yes"  # a later call opens it again
            app.sync.close()

        await asyncio.to_thread(work)


async def test_an_app_that_is_open_is_used_in_its_own_loop(url: str) -> None:
    app = make_app(url)
    async with app.worker():
        with pytest.raises(UsageError, match="would block the event loop of the app"):
            app.sync.submit("double", 1)
        assert await asyncio.to_thread(lambda: app.sync.submit("double", 4).result(60)) == 8
        app.sync.close()  # it did not open the app, so this changes nothing
        assert await (await app.submit("double", 5)).result(60) == 10


def test_a_call_that_waits_ends_when_the_app_is_closed(url: str) -> None:
    app = make_app(url)
    app.sync.open()
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(app.sync._run, wait)
        assert begun.wait(60)
        app.sync.close()
        with pytest.raises(UsageError, match="closed while this call waited"):
            waiting.result(60)
    assert not [thread for thread in threading.enumerate() if thread.name == "onward"]


def test_a_process_that_forked_after_the_first_call_is_told_so(url: str) -> None:
    app = make_app(url)
    app.sync.stats()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            app.sync.stats()
        except UsageError as error:
            os._exit(0 if "before this process was forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    app.sync.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "onward"]


def answer_of_child(work: Any) -> str:
    """The error of `work` in a forked process; an empty string without one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # kills a child that hangs
        try:
            work()
        except UsageError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        said = answer.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the forked process hangs"
    return said


async def test_a_process_that_was_forked_from_an_open_app_is_told_so(url: str) -> None:
    """Its first call of `app.sync` is made after the fork."""
    app = make_app(url)
    async with app:
        assert "before this process was forked" in answer_of_child(app.sync.stats)
    assert answer_of_child(make_app(url).sync.stats) == ""


def test_an_app_whose_loop_has_ended_is_told_so(url: str) -> None:
    app = make_app(url)
    asyncio.run(app.open())
    with pytest.raises(UsageError, match="the event loop in which the app was opened has ended"):
        app.sync.stats()


def test_a_call_that_is_interrupted_waits_no_longer_in_the_loop(url: str) -> None:
    """Ctrl-C while the main thread waits for a result."""
    app = make_app(url)
    waits = app.sync.submit("ask")
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        waits.result(60)
    assert app.sync.get(waits.id).state == "pending"
    assert not [task for task in asyncio.all_tasks(app._loop) if "result" in repr(task.get_coro())]
    app.sync.close()


def test_a_stream_does_not_end_silently_when_the_app_is_closed(url: str) -> None:
    """Its end means that the task has ended."""
    app = make_app(url)
    waits = app.sync.submit("ask")
    stream = waits.follow()
    assert next(stream).status == "waiting"
    app.sync.close()
    with pytest.raises(UsageError, match="was closed while this call waited"):
        next(stream)
