"""Streams over a real socket, on every store: a reader gets the whole journal once, from any position, and then the end."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.agent.model import ModelUnavailable, Reply, Request
from onward.core.caller import ANYBODY, Caller
from onward.core.record import ENDS
from onward.errors import StoreUnavailable, Unauthorized
from onward.server.http import sending
from onward.server.live import pump
from onward.server.live import sse as stream
from rig.processes import Child
from tests.docs.test_guides import code_of
from tests.kit import eventually, only_file, only_memory, sql
from tests.server.sse import Event, Parser, Refused, all_events, events, served

Client = httpx2.AsyncClient
PROGRESS = "/api/progress"


@pytest.fixture
def steps(app: Onward) -> Onward:
    @app.task
    async def walk(ctx: Any, n: int = 5, pause: float = 0.0) -> int:
        for number in range(n):
            await ctx.step(_give, number, name="step")
            ctx.progress("on the way", step=number + 1, total=n)
            if pause:
                await asyncio.sleep(pause)
        return n

    tried = []

    @app.task(retry=1)
    async def fails_once(ctx: Any) -> str:
        await ctx.step(_give, 1, name="first")
        tried.append(ctx.task_id)
        if len(tried) == 1:
            raise ValueError("as it should")
        await ctx.signal("again")
        return "fine"

    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("go")

    return app


async def _give(value: Any) -> Any:
    return value


def numbers(received: list[Event]) -> list[int]:
    return [int(event.id) for event in received if event.own]


async def journal(app: Onward, task_id: str) -> list[int]:
    return [record.seq for record in await app.service.journal(task_id)]


# ── the whole of it ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_progress_from_the_first_record_to_the_end(steps: Onward) -> None:
    async with served(steps) as (client, _, _), steps.worker():
        task = await steps.submit("walk", {"n": 5, "pause": 0.02})
        received = await all_events(client, PROGRESS, task_id=task.id)
    assert [event.data["status"] for event in received][:2] == ["waiting", "thinking"]
    assert received[-1].data["status"] == "completed"
    assert (received[-1].data["step"], received[-1].data["total_step"]) == (5, 5)
    assert received[-1].data["task_id"] == task.id
    assert received[-1].data["time"].endswith("Z")
    tool_results = [event for event in received if event.data["status"] == "tool_result"]
    assert [event.data["message"] for event in tool_results] == list("01234")
    assert numbers(received) == sorted(set(numbers(received)))
    assert numbers(received)[-1] == (await journal(steps, task.id))[-1]


async def test_all_records_as_they_come(steps: Onward) -> None:
    async with served(steps) as (client, _, _), steps.worker():
        task = await steps.submit("walk", {"n": 5, "pause": 0.02})
        received = await all_events(client, f"/api/tasks/{task.id}/events")
        page = (await client.get(f"/api/tasks/{task.id}/events")).json()["records"]
        tail = await all_events(client, f"/api/tasks/{task.id}/events", after=4)
    assert [{k: v for k, v in event.data.items() if k != "task_id"} for event in received] == page
    assert numbers(received) == [record["seq"] for record in page]
    assert [event.data for event in tail] == [event.data for event in received[4:]]


async def test_a_reader_goes_on_after_any_record(steps: Onward) -> None:
    async with served(steps) as (client, _, _), steps.worker():
        task = await steps.submit("walk", {"n": 6})
        await task.result(60)
        whole = await all_events(client, PROGRESS, task_id=task.id)
        last = (await journal(steps, task.id))[-1]
        for cut in range(last):
            rest = [event.data for event in whole if int(event.id) > cut]
            assert [event.data for event in await all_events(client, PROGRESS, str(cut), task_id=task.id)] == rest, cut
            assert [event.data for event in await all_events(client, PROGRESS, task_id=task.id, after=cut)] == rest, cut


# ── the edges of a cursor ────────────────────────────────────────────────────────────────────────────────────────────


async def test_after_the_end_an_eventsource_gets_204(steps: Onward) -> None:
    async with served(steps) as (client, _, _), steps.worker():
        task = await steps.submit("walk", {"n": 1})
        await task.result(60)
        last = (await journal(steps, task.id))[-1]
        for path in (f"{PROGRESS}?task_id={task.id}", f"/api/tasks/{task.id}/events"):
            for cursor, status in ((last - 1, 200), (last, 204)):
                headers = {"Last-Event-ID": str(cursor), "Accept": "text/event-stream"}
                assert (await client.get(path, headers=headers)).status_code == status


async def test_a_cursor_beyond_the_journal_of_an_ended_task_begins_anew(steps: Onward) -> None:
    """A restore took the records that the client has seen; the task has ended since."""
    async with served(steps) as (client, _, _), steps.worker():
        task, other = await steps.submit("walk", {"n": 1}), await steps.submit("walk", {"n": 2})
        await task.result(60)
        await other.result(60)
        last, last_of_other = [(await journal(steps, each.id))[-1] for each in (task, other)]
        for path, query in ((PROGRESS, {"task_id": task.id}), (f"/api/tasks/{task.id}/events", {})):
            first, *rest = await all_events(client, path, str(last + 5), **query)
            assert (first.name, first.data, first.id) == ("reset", {"reason": "ahead"}, "0")
            assert rest == await all_events(client, path, **query)
            assert int(rest[-1].id) == last
        both = {"task_id": [task.id, other.id]}
        first, *rest = await all_events(client, PROGRESS, f"{last},{last_of_other + 1}", **both)
        assert (first.name, first.data, first.id) == ("reset", {"reason": "ahead"}, "0,0")
        assert {event.data["status"] for event in rest if event.data["task_id"] == task.id} >= {"completed"}


async def test_invalid_requests_for_a_stream(steps: Onward) -> None:
    async with served(steps) as (client, _, _):
        assert (await client.get(PROGRESS)).status_code == 400
        assert (await client.get(PROGRESS, params={"task_id": ""})).status_code == 422
        assert (await client.get(PROGRESS, params={"task_id": "nobody"})).status_code == 404
        assert (
            await client.get("/api/tasks/nobody/events", headers={"Accept": "text/event-stream"})
        ).status_code == 404
        task = await steps.submit("waits")
        assert (await client.get(PROGRESS, params={"task_id": [task.id, "nobody"]})).status_code == 404
        assert (await client.get(PROGRESS, params={"task_id": task.id, "after": "x"})).status_code == 422
        many = [task.id, *(f"t{number}" for number in range(100))]
        assert (await client.get(PROGRESS, params={"task_id": many})).status_code == 422
        head = await client.head(PROGRESS, params={"task_id": task.id})
        assert head.status_code == 200
        assert head.headers["cache-control"] == "no-cache"
        assert head.headers["x-accel-buffering"] == "no"


@pytest.mark.slow
@only_memory
@pytest.mark.parametrize("cursor", ["999", "garbage", "-1", "1,2", "1e9", "9" * 30, "١", "5;DROP", "0x5"])
async def test_an_unknown_cursor_starts_again_with_a_reset(steps: Onward, cursor: str) -> None:
    async with served(steps) as (client, _, _), steps.worker():
        task = await steps.submit("waits")
        received: list[Event] = []
        headers = {"Last-Event-ID": cursor.encode(), "Accept": "text/event-stream"}
        async with client.stream("GET", PROGRESS, params={"task_id": task.id}, headers=headers) as answer:
            assert answer.status_code == 200
            parser = Parser()
            async for line in answer.aiter_lines():
                if (event := parser.line(line)) is not None:
                    received.append(event)
                if len(received) == 2:
                    await steps.signal(task.id, "go", 1)
        assert received[0].name == "reset"
        assert received[0].data["reason"] in {"ahead", "unknown"}
        assert received[0].id == "0"
        assert received[1].id == "1"
        assert received[-1].data["status"] == "completed"


async def test_a_checkpoint_names_the_records_that_it_replaces(app: Onward) -> None:
    @app.task
    async def long(ctx: Any) -> str:
        for number in range(3):
            await ctx.step(_give, number, name="step")
            ctx.progress(f"at {number}")
            await ctx.checkpoint({"n": number})
        return "done"

    async with served(app) as (client, _, _), app.worker():
        task = await app.submit(long)
        await task.result(60)
        assert await app.store.pruning.trim(task.id, 1, 4e9) > 0  # type: ignore[attr-defined]
        progress = await all_events(client, PROGRESS, task_id=task.id)
        records = await all_events(client, f"/api/tasks/{task.id}/events")
        late = await all_events(client, PROGRESS, str(int(records[-1].id) - 1), task_id=task.id)
    for received in (progress, records):
        (reset,) = [event for event in received if event.name == "reset"]
        assert reset.data["reason"] == "dropped"
        assert reset.data["checkpoint"] >= 1
        assert reset.data["task_id"] == task.id
        assert int(reset.id) == reset.data["after"]
    assert [int(event.id) for event in records if event.name != "reset"] == await journal(app, task.id)
    assert progress[-1].data["status"] == "completed"
    assert "reset" not in {event.name for event in late}, "a reader past the checkpoint does not get it"


async def test_a_failed_task_that_is_resumed_streams_on(steps: Onward) -> None:
    async with served(steps) as (client, _, _), steps.worker():
        task = await steps.submit("fails_once")
        first = await all_events(client, PROGRESS, task_id=task.id)
        assert first[-1].data["status"] == "error"
        with pytest.raises(Refused, match="204"):
            await all_events(client, PROGRESS, first[-1].id, task_id=task.id)
        await steps.resume(task.id)
        await steps.signal(task.id, "again", 1)
        second = await all_events(client, PROGRESS, first[-1].id, task_id=task.id)
        whole = await all_events(client, PROGRESS, task_id=task.id)
    assert [event.data for event in whole] == [event.data for event in (*first, *second)]
    assert [event.data["status"] for event in (first[-1], second[-1])] == ["error", "completed"]


@only_memory
async def test_the_reader_of_the_guide_gets_all_records(steps: Onward) -> None:
    watch = code_of("progress.md", "watch.py")["watch"]
    async with served(steps) as (client, _, _), steps.worker():
        task = await steps.submit("walk", {"n": 5, "pause": 0.02})
        seen = await asyncio.wait_for(watch(client, task.id), 60)
        assert seen == [event.data for event in await all_events(client, PROGRESS, task_id=task.id)]


async def test_a_cancel_is_streamed_at_once(steps: Onward) -> None:
    async with served(steps) as (client, _, _), steps.worker():
        task = await steps.submit("waits")
        seen: list[str] = []
        async for event in events(client, PROGRESS, task_id=task.id):
            seen.append(event.data["status"])
            if event.data["message"].startswith("waits for signal"):
                await steps.cancel(task.id)
    assert seen[-1] == "cancelled"


async def test_the_update_of_a_question_has_its_id(app: Onward) -> None:
    @app.task
    async def asks(ctx: Any) -> str:
        return str(await ctx.ask("how?"))

    async with served(app) as (client, _, _), app.worker():
        task = await app.submit(asks)
        async for event in events(client, PROGRESS, task_id=task.id):
            if "ask_id" in event.data:
                assert event.data["message"] == "how?"
                await app.answer(event.data["ask_id"], "well")
        assert event.data["message"] == "well"


# ── several at once ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_several_tasks_in_one_stream(steps: Onward) -> None:
    async with served(steps) as (client, _, _), steps.worker():
        tasks = [await steps.submit("walk", {"n": n, "pause": 0.01}) for n in (2, 5, 3)]
        ids = [task.id for task in tasks]
        whole = await all_events(client, PROGRESS, task_id=ids)
        alone = {task_id: [e.data for e in await all_events(client, PROGRESS, task_id=task_id)] for task_id in ids}
        assert {i: [e.data for e in whole if e.data["task_id"] == i] for i in ids} == alone
        for cut, event in enumerate(whole[:-1]):
            rest = await all_events(client, PROGRESS, event.id, task_id=ids)
            for task_id in ids:
                expected = [e.data for e in whole[cut + 1 :] if e.data["task_id"] == task_id]
                assert [e.data for e in rest if e.data["task_id"] == task_id] == expected, cut
        with pytest.raises(Refused, match="204"):
            await all_events(client, PROGRESS, whole[-1].id, task_id=ids)


async def test_all_tasks_in_one_stream(steps: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump.PACE, "look", 0.05)
    async with served(steps) as (client, _, _), steps.worker():
        before = await steps.submit("waits")
        over = await steps.submit("walk", {"n": 1})
        await over.result(60)
        received: list[Event] = []
        later = None
        async for event in events(client, PROGRESS, all="true"):
            received.append(event)
            assert not event.own
            if event.name == "reset":
                assert set(event.data["tasks"]) == {before.id, over.id}
                later = await steps.submit("walk", {"n": 3})
            elif event.data["task_id"] == getattr(later, "id", None) and event.data["status"] == "completed":
                await steps.cancel(before.id)
            elif event.data["status"] == "cancelled":
                break
        assert later is not None
        ours = [event.data for event in received[1:] if event.data["task_id"] == later.id]
        alone = [event.data for event in await all_events(client, PROGRESS, task_id=later.id)]
        assert [{k: v for k, v in update.items() if k != "seq"} for update in ours] == alone
        assert over.id not in {event.data["task_id"] for event in received[1:]}, "tasks that had ended have no updates"


async def test_a_resumed_task_is_in_the_stream_of_all_tasks(steps: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump.PACE, "look", 0.05)
    broken = [True, True]

    @steps.task(retry=1)
    async def breaks(ctx: Any) -> str:
        if broken.pop():
            raise ValueError("not yet")
        return "well"

    async with served(steps) as (client, _, _), steps.worker():
        before, within = await steps.submit("breaks"), None
        await steps.service.wait(before.id, 30)
        broken.append(False)
        statuses: dict[str, list[str]] = {}
        async for event in events(client, PROGRESS, all="true"):
            if event.name == "reset":
                await steps.resume(before.id)
                continue
            statuses.setdefault(event.data["task_id"], []).append(event.data["status"])
            if event.data["task_id"] == before.id and event.data["status"] == "completed":
                within = await steps.submit("breaks")
            elif event.data["status"] == "error":
                broken.append(False)
                await steps.resume(event.data["task_id"])
            elif within is not None and statuses.get(within.id, [])[-1:] == ["completed"]:
                break
        assert within is not None
        whole = [event.data["status"] for event in await all_events(client, PROGRESS, task_id=within.id)]
        assert statuses[within.id] == whole, "a task that ended and was resumed during the stream"
        whole = [event.data["status"] for event in await all_events(client, PROGRESS, task_id=before.id)]
        assert statuses[before.id] == whole[whole.index("error") + 1 :], "a task that had ended before the stream"


async def test_the_stream_of_all_tasks_includes_older_tasks_that_are_named(
    steps: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_TASKS", 1)
    async with served(steps) as (client, _, _):
        old, new = await steps.submit("waits"), await steps.submit("waits")
        async for event in events(client, PROGRESS, all="true"):
            assert set(event.data["tasks"]) == {new.id}
            break
        async for event in events(client, PROGRESS, all="true", task_id=old.id):
            if event.name == "reset":
                assert set(event.data["tasks"]) == {new.id, old.id}
                await steps.cancel(old.id)
            elif event.data["status"] == "cancelled":
                assert event.data["task_id"] == old.id
                break
        with pytest.raises(Refused, match="404"):
            await all_events(client, PROGRESS, all="true", task_id="nobody")
        with pytest.raises(Refused, match="422"):
            await all_events(client, PROGRESS, all="true", task_id=[old.id, new.id])


# ── live text ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Talker:
    """Writes a word whenever the test lets it, fails once, and ends at the signal of the test."""

    name = "talker"

    def __init__(self) -> None:
        self.go, self.breaks = asyncio.Event(), 1

    async def ask(self, request: Request, emit: Any) -> Reply:
        number = 0
        while not self.go.is_set():
            number += 1
            emit(f"word{number} ")
            await asyncio.sleep(0.05)
            if self.breaks and number == 30:
                self.breaks -= 1
                raise ModelUnavailable("talker", "it broke off")
        return Reply("that is all")


def heard(received: list[Event], shown: str = "") -> str:
    """The text that a reader shows after these pieces of one attempt."""
    for event in received:
        shown = shown[: event.data["offset"]] + event.data["text"]
    return shown


@pytest.mark.slow
@only_memory
async def test_the_text_of_a_model_is_streamed_live_and_again_after_a_reconnect(app: Onward) -> None:
    talker = Talker()
    app.agent("talk", model=talker)
    async with served(app) as (client, _, _), app.worker():
        task = await app.submit("talk", "speak")
        received: list[Event] = []
        numbers: list[int] = []
        async for event in events(client, PROGRESS, task_id=task.id):
            received.append(event)
            if event.name == "text" and event.data["attempt"] not in numbers:
                numbers.append(event.data["attempt"])
            if event.name == "text" and len(numbers) == 2 and event.data["offset"] > 0:
                break
        assert numbers == sorted(numbers)
        texts = [event for event in received if event.name == "text"]
        assert not [event for event in texts if event.own], "it has no number"
        first = [event for event in texts if event.data["attempt"] == numbers[0]]
        assert [event.data.get("withdrawn", False) for event in first] == [False] * (len(first) - 1) + [True]
        assert len(first) > 2
        second = heard([event for event in texts if event.data["attempt"] == numbers[1]])
        assert second.split() == [f"word{n}" for n in range(1, len(second.split()) + 1)]
        again: list[Event] = []
        async for event in events(client, PROGRESS, received[-1].id, task_id=task.id):
            again.append(event)
            if event.name == "text":
                talker.go.set()
        assert again[0].name == "text", "the first event has the text so far"
        assert again[0].data["offset"] == 0
        assert again[0].data["text"].startswith(second)
        assert again[-1].data["status"] == "completed"
        assert again[-1].data["message"] == "that is all"
        late = await all_events(client, PROGRESS, task_id=task.id)
        assert [e for e in late if e.name == "text"] == [], (
            "an ended attempt has no more text, and a text that was never sent is not withdrawn"
        )


# ── how it ends ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_silent_stream_sends_keep_alives(steps: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump.PACE, "heartbeat", 0.05)
    async with served(steps) as (client, _, _):
        task = await steps.submit("waits")
        async with client.stream("GET", PROGRESS, params={"task_id": task.id}) as answer:
            comments = 0
            async for line in answer.aiter_lines():
                comments += line.startswith(":")
                if comments == 3:
                    break
    assert comments == 3
    assert pump.Pace().heartbeat <= 15


@only_memory
async def test_a_stream_ends_when_its_key_is_no_longer_valid(steps: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump.PACE, "check", 0.05)

    class Gate:
        revoked = away = False

        async def caller(self, authorization: str | None, outside: str | None = None) -> Caller:
            if authorization != "Bearer good" or self.revoked:
                raise Unauthorized
            return ANYBODY

        async def still_valid(self, caller: Caller) -> bool:
            return not self.revoked

    async with served(steps) as (client, edge, _):
        edge.authenticator = gate = Gate()
        task = await steps.submit("waits")
        assert (await client.get(PROGRESS, params={"task_id": task.id})).status_code == 401
        client.headers["authorization"] = "Bearer good"
        seen = 0
        async for _ in events(client, PROGRESS, task_id=task.id):
            seen += 1
            gate.revoked = True
        assert seen == 1
        with pytest.raises(Refused, match="401"):
            await all_events(client, PROGRESS, task_id=task.id)


async def test_a_stream_ends_when_its_task_is_gone(steps: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a task that was pruned before a slow reader came to its end."""
    monkeypatch.setattr(pump.PACE, "check", 0.05)
    monkeypatch.setattr(pump.PACE, "exists", 0.1)
    async with served(steps) as (client, edge, _):
        task, other = await steps.submit("waits"), await steps.submit("waits")
        seen = 0
        async for _ in events(client, PROGRESS, task_id=task.id):
            seen += 1
            for table, column in (("journal", "task_id"), ("queue", "task_id"), ("tasks", "id")):
                await sql(steps.store, f"DELETE FROM onward_{table} WHERE {column} = '{task.id}'")
        assert seen == 1
        await eventually(lambda: _count(edge.feed.followers, 0))
        with pytest.raises(Refused, match="404"):
            await all_events(client, PROGRESS, task_id=task.id)
        still = events(client, PROGRESS, task_id=other.id)
        await anext(still)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(still), 0.5)


@only_memory
async def test_streams_are_limited(app: Onward, steps: Onward) -> None:
    async with served(steps) as (client, edge, _):
        edge.feed._max_streams = 2
        task = await steps.submit("waits")
        opened = [events(client, PROGRESS, task_id=task.id) for _ in range(2)]
        for stream in opened:
            await anext(stream)
        refused = await client.get(PROGRESS, params={"task_id": task.id})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["code"] == "too_many_streams"
        await opened[0].aclose()
        await eventually(lambda: _count(edge.feed.followers, 1))
        await anext(again := events(client, PROGRESS, task_id=task.id))
        for stream in (opened[1], again):
            await stream.aclose()
        await eventually(lambda: _count(edge.feed.followers, 0))


async def _count(received: Any, wanted: int) -> bool:
    return len(received) == wanted


@only_memory
async def test_a_server_that_stops_ends_its_streams(steps: Onward) -> None:
    async with served(steps) as (client, _, server):
        task = await steps.submit("waits")
        seen = []
        async for event in events(client, PROGRESS, task_id=task.id):
            seen.append(event)
            server.stop_gracefully()
    assert len(seen) == 1, "ended in good order, and may go on elsewhere"


@pytest.mark.slow
@only_file
async def test_a_client_that_reads_nothing_is_disconnected_and_may_reconnect(
    steps: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of records that are large, so that the line is full soon; the task and the neighbour do not notice."""
    monkeypatch.setattr(sending, "SEND_TIMEOUT_S", 0.3)

    @steps.task
    async def large(ctx: Any, n: int) -> int:
        for number in range(n):
            await ctx.step(_give, f"{number}" * 40_000, name="step")
        return n

    async with served(steps) as (client, edge, _), steps.worker():
        task = await steps.submit(large, 200)
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect((client.base_url.host, client.base_url.port))
            lazy.sendall(
                f"GET /api/tasks/{task.id}/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode()
            )
            neighbour = await all_events(client, f"/api/tasks/{task.id}/events")
            assert neighbour[-1].data["kind"] in ENDS
            await eventually(lambda: _count(edge.feed.followers, 0))
            lazy.setblocking(False)
            with pytest.raises(ConnectionResetError):
                for _ in range(10_000):
                    if not await asyncio.get_running_loop().sock_recv(lazy, 65536):
                        raise ConnectionResetError
        rest = await all_events(client, f"/api/tasks/{task.id}/events", "3")
        assert [int(event.id) for event in rest] == list(range(4, int(neighbour[-1].id) + 1))


@only_memory
async def test_a_stream_survives_an_unreachable_database(steps: Onward) -> None:
    async with served(steps) as (client, edge, _), steps.worker():
        whole, away = steps.store.tails.read, 3

        async def sometimes(*args: Any) -> Any:
            nonlocal away
            if away:
                away -= 1
                raise StoreUnavailable("it is away")
            return await whole(*args)

        edge.feed.store.read = sometimes  # type: ignore[method-assign]
        task = await steps.submit("walk", {"n": 2})
        received = await all_events(client, PROGRESS, task_id=task.id)
        assert received[-1].data["status"] == "completed"
        assert away == 0


# ── mounted in another server─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_an_open_stream_does_not_keep_a_host_server_from_stopping(tmp_path: Path) -> None:
    database = {"ONWARD_DB": f"sqlite:///{tmp_path / 'onward.db'}"}
    with Child.module("tests.server.mounted", cwd=Path(__file__).parents[2], env=database) as child:
        port = await asyncio.to_thread(child.line, 30)
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port.strip()}/onward", timeout=60) as client:
            task = (await client.post("/api/tasks", json={"task": "waits"})).json()
            async for event in events(client, PROGRESS, task_id=task["task_id"]):
                if event.data["message"] == "submitted":
                    child.terminate()
        assert await asyncio.to_thread(child.wait, 20) is not None
