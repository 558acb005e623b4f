"""`handle.sse()`: the progress of a task as server-sent events, for endpoints of other web applications."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onward import Onward
from onward.errors import BadSetting, TaskNotFound, TooManyStreams, UsageError
from onward.server.live import feed as feeds
from onward.server.live import pump
from onward.testing import memory_app
from tests.kit import eventually, only_memory
from tests.server.sse import Event, Parser, all_events, served


@pytest.fixture
def steps(app: Onward) -> Onward:
    @app.task
    async def walk(ctx: Any, n: int = 5) -> int:
        for number in range(n):
            await ctx.step(lambda number=number: number, name="step")
            ctx.progress("on the way", step=number + 1, total=n)
        return n

    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    return app


def parse(pieces: Iterable[bytes], last: str = "") -> tuple[list[Event], Parser]:
    """The events of these pieces, by a parser of the tests."""
    parser = Parser(last)
    lines = b"".join(pieces).decode().split("\n")
    return [event for line in lines if (event := parser.line(line)) is not None], parser


async def read(app: Onward, task_id: str, after: str | int | None = None) -> list[Event]:
    return parse([piece async for piece in app.handle(task_id).sse(after)])[0]


def followers(app: Onward) -> int:
    return 0 if app._feed is None else len(app._feed.followers)


async def followed(app: Onward, count: int) -> None:
    """Wait until so many streams are open."""

    async def right() -> bool:
        return followers(app) == count

    await eventually(right)


# ── the events ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_it_is_the_stream_of_the_server(steps: Onward) -> None:
    async with served(steps) as (client, _, _), steps.worker():
        task = await steps.submit("walk")
        pieces = [piece async for piece in task.sse()]  # live, from the first record to the end
        received, parser = parse(pieces)
        assert received == await all_events(client, "/api/progress", task_id=task.id)
    assert pieces[0] == b"retry: 1000\n\n"
    assert parser.retry == 1000
    assert [event.data["status"] for event in received][-1] == "completed"
    assert [int(event.id) for event in received] == [update.seq async for update in task.follow()]


async def test_a_client_goes_on_after_any_update(steps: Onward) -> None:
    async with steps.worker():
        task = await steps.submit("walk")
        await task.result(60)
    whole = await read(steps, task.id)
    last = int(whole[-1].id)
    for cut in range(last):
        rest = [event.data for event in whole if int(event.id) > cut]
        assert [event.data for event in await read(steps, task.id, str(cut))] == rest, cut
        assert [event.data for event in await read(steps, task.id, cut)] == rest, cut
    over, parser = parse([piece async for piece in task.sse(last)])
    assert over == []
    assert parser.retry is not None
    assert parser.retry > 60_000, "a page that does not close its EventSource comes back seldom"


async def test_a_client_that_is_cut_off_at_any_place_misses_nothing(steps: Onward) -> None:
    """While the task runs, a client leaves after each piece and comes back with the last id that it has seen."""
    seen, last = list[Event](), None
    async with steps.worker():
        task = await steps.submit("walk", 20)
        while not seen or seen[-1].data["status"] != "completed":
            async with contextlib.aclosing(task.sse(last)) as stream:
                async for piece in stream:
                    if piece.startswith(b"retry"):
                        continue
                    seen += (events := parse([piece])[0])
                    last = events[-1].id
                    break
    assert seen == await read(steps, task.id)
    assert followers(steps) == 0


@only_memory
async def test_a_cursor_that_is_not_of_this_task_begins_anew(steps: Onward) -> None:
    task = await steps.submit("waits")
    for cursor, reason in (("x" * 5000, "unknown"), ("1,2", "unknown"), ("-1", "unknown"), (99, "ahead")):
        async with contextlib.aclosing(task.sse(cursor)) as stream:
            events, _ = parse([await anext(stream) for _ in range(3)])
        assert [(event.name, event.data.get("reason")) for event in events] == [("reset", reason), ("message", None)]


async def test_a_cursor_beyond_the_end_begins_anew(steps: Onward) -> None:
    async with steps.worker():
        task = await steps.submit("walk", {"n": 1})
        await task.result(60)
    whole = await read(steps, task.id)
    first, *rest = await read(steps, task.id, int(whole[-1].id) + 1)
    assert (first.name, first.data, first.id) == ("reset", {"reason": "ahead"}, "0")
    assert rest == whole
    assert await read(steps, task.id, whole[-1].id) == []


@only_memory
async def test_a_silent_stream_sends_comments(steps: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pump.PACE.heartbeat <= 15
    monkeypatch.setattr(pump.PACE, "heartbeat", 0.02)
    task = await steps.submit("waits")
    async with contextlib.aclosing(task.sse()) as stream:
        received = [await anext(stream) for _ in range(4)]
    assert received[2:] == [b": still here\n\n"] * 2
    events, parser = parse(received)
    assert (len(events), parser.comments) == (1, 2)


@only_memory
async def test_unknown_tasks_and_too_many_streams(steps: Onward) -> None:
    with pytest.raises(TaskNotFound):
        await read(steps, "0" * 26)
    few = Onward("sqlite://:memory:", streams=1)
    few.handlers |= steps.handlers
    few._handler_specs |= steps._handler_specs
    async with few:
        task = await few.submit("waits")
        async with contextlib.aclosing(task.sse()) as stream:
            await anext(stream)
            with pytest.raises(TooManyStreams, match="1 streams are open"):
                task.sse()
        task.sse()


# ── its end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_client_that_leaves_is_released(steps: Onward) -> None:
    task = await steps.submit("waits")

    async def listen(stream: AsyncIterator[bytes]) -> None:
        async for _ in stream:
            pass

    closed, cancelled, dropped = task.sse(), task.sse(), task.sse()
    for stream in (closed, dropped):
        await anext(stream)
    listening = asyncio.create_task(listen(cancelled))
    await followed(steps, 3)
    await closed.aclose()
    assert followers(steps) == 2
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert followers(steps) == 1
    del stream, dropped
    gc.collect()
    await followed(steps, 0)


async def test_streams_end_when_the_app_is_closed(url: str, steps: Onward) -> None:
    app = Onward(url)
    app.handlers |= steps.handlers
    app._handler_specs |= steps._handler_specs
    async with app:
        task = await app.submit("waits")
        waiting = asyncio.create_task(read(app, task.id))
        slow = task.sse()
        await anext(slow)
        await followed(app, 2)
    assert [event.data["message"] for event in await asyncio.wait_for(waiting, 60)] == ["submitted"]
    assert [piece async for piece in slow] == []
    async with app:  # opened again, it streams again
        await app.cancel(task.id)
        assert [event.data["status"] for event in await read(app, task.id)][-1] == "cancelled"


@only_memory
async def test_a_slow_client_costs_little_memory_and_gets_all(steps: Onward) -> None:
    @steps.task
    async def chatter(ctx: Any) -> None:
        for number in range(2000):
            ctx.progress(f"{number} " + "x" * 400)

    task = await steps.submit("chatter")
    stream = task.sse()
    pieces = [await anext(stream), await anext(stream)]  # from here on the feed fills its buffer
    async with steps.worker():
        await task.result(60)
    assert steps._feed is not None
    (follower,) = steps._feed.followers
    assert 0 < follower.buffered[0] <= feeds.MAX_BUFFERED_RECORDS
    assert follower.buffered[1] <= 2 * feeds.MAX_BUFFERED_BYTES
    async for piece in stream:
        assert len(piece) < 200_000
        pieces.append(piece)
    messages = [event.data["message"] for event in parse(pieces)[0] if "x" * 400 in event.data["message"]]
    assert [message.split()[0] for message in messages] == [str(number) for number in range(2000)]


async def test_a_clock_that_a_test_moves_does_not_stop_a_stream(steps: Onward) -> None:
    async with memory_app(steps) as app:
        task = await app.submit("waits")
        reading = asyncio.create_task(read(app, task.id))

        async def looked() -> bool:
            return app._feed is not None and app._feed.looks > 0

        await eventually(looked)
        await app.cancel(task.id)  # nothing moves the clock
        assert (await asyncio.wait_for(reading, 20))[-1].data["status"] == "cancelled"


# ── for threads ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_threads_read_the_same_stream(steps: Onward) -> None:
    async with steps.worker():
        task = await steps.submit("walk")

        def listen() -> list[bytes]:
            return list(steps.sync.handle(task.id).sse())

        pieces = await asyncio.to_thread(listen)
        assert parse(pieces)[0] == await read(steps, task.id)
        second = parse(await asyncio.to_thread(lambda: list(steps.sync.handle(task.id).sse("2"))))[0]
        assert second == await read(steps, task.id, 2)
        with pytest.raises(UsageError, match="would block the event loop"):
            next(steps.sync.handle(task.id).sse())


async def test_a_thread_that_leaves_is_released(steps: Onward) -> None:
    task = await steps.submit("waits")

    def listen() -> None:
        streams = [steps.sync.handle(task.id).sse() for _ in range(2)]
        for stream in streams:
            next(stream)
        assert followers(steps) == 2
        streams[0].close()  # as WSGI servers do; the other one is left to the garbage collector

    await asyncio.to_thread(listen)
    gc.collect()
    await followed(steps, 0)


def test_streams_of_threads_end_when_the_app_is_closed(url: str) -> None:
    app = Onward(url)

    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    task = app.sync.submit("waits")
    begun, slow = threading.Barrier(3), task.sse()
    next(slow)

    def listen() -> list[bytes]:
        stream = task.sse()
        pieces = [next(stream), next(stream)]
        begun.wait(60)
        return pieces + list(stream)

    with ThreadPoolExecutor(2) as pool:
        listening = [pool.submit(listen) for _ in range(2)]
        begun.wait(60)
        app.sync.close()
        assert [len(pieces.result(60)) for pieces in listening] == [2, 2]
    assert list(slow) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "onward"], "nothing opened the app again"


def test_it_needs_no_web_framework() -> None:
    """A Flask application has no Starlette."""
    code = "import sys, onward.app.application as a; a.Onward.handle; print('starlette' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "False"


# ── only what the handler reports ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def private(app: Onward) -> Onward:
    """An app whose steps have results that a browser must not see."""

    @app.task
    async def invoice(ctx: Any, lines: int = 3) -> dict[str, str]:
        for line in range(lines):
            await ctx.step(lambda: {"customer": "Ada Secret"}, name="customer")
            ctx.progress("lines", line + 1, lines, page=line)
        ctx.progress("calls tools", tools=["secret_tool"])
        ctx.progress(text="Secret text", turn=1, attempt=1)
        return {"file": "/srv/secret.pdf"}

    @app.task(retry=1)
    async def broken(ctx: Any) -> None:
        ctx.progress("begins")
        raise ValueError("Secret password")

    return app


LINES = [("thinking", "lines", step, 3, {"page": step - 1}) for step in (1, 2, 3)]


async def test_a_stream_of_what_the_handler_reports_has_nothing_else(private: Onward) -> None:
    async with served(private) as (client, _, _), private.worker():
        task = await private.submit("invoice")
        pieces = [piece async for piece in task.sse(only="progress")]  # live
        received, _ = parse(pieces)
        over_http = await all_events(client, "/api/progress", task_id=task.id, only="progress")
        assert received == over_http
        refused = await client.get("/api/progress", params={"task_id": task.id, "only": "steps"})
        assert refused.status_code == 422
        everything = await all_events(client, "/api/progress", task_id=task.id)
    shown = [event.data for event in received]
    assert [
        (data["status"], data["message"], data["step"], data["total_step"], data.get("data")) for data in shown[:-1]
    ] == LINES
    assert (shown[-1]["status"], shown[-1]["message"], shown[-1]["tool"]) == ("completed", "", "")
    assert b"ecret" not in b"".join(pieces)
    assert "Ada Secret" in str(everything), "the whole stream has the results of steps"
    for number, event in enumerate(received):
        assert parse([piece async for piece in task.sse(event.id, only="progress")])[0] == received[number + 1 :]
    assert [update.seq async for update in task.follow(only="progress")] == [int(event.id) for event in received]


async def test_an_error_is_not_shown_either(private: Onward) -> None:
    async with private.worker():
        task = await private.submit("broken")
        updates = [update async for update in task.follow(only="progress")]
    assert [(update.status, update.message) for update in updates] == [("thinking", "begins"), ("error", "")]


async def test_it_refuses_another_choice(private: Onward) -> None:
    task = await private.submit("invoice")
    with pytest.raises(BadSetting, match="only"):
        task.sse(only="steps")  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="only"):
        [update async for update in task.follow(only="steps")]  # type: ignore[arg-type]


async def test_signs_of_life_move_the_cursor_past_what_is_not_shown(
    app: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump.PACE, "heartbeat", 0.2)

    @app.task
    async def quiet(ctx: Any) -> None:
        await ctx.step(lambda: 1, name="one")
        await ctx.signal("go")
        ctx.progress("goes on")

    async with app.worker():
        task = await app.submit("quiet")
        parser = Parser()
        async with contextlib.aclosing(task.sse(only="progress")) as stream:
            async for piece in stream:
                assert not [event for line in piece.decode().split("\n") if (event := parser.line(line)) is not None]
                if parser.last and int(parser.last) >= 4:
                    break
        await app.signal(task.id, "go")
        rest = parse([piece async for piece in task.sse(parser.last, only="progress")])[0]
    assert [event.data["message"] for event in rest] == ["goes on", ""]
