"""A journal as bars and marks: runs, waits and broken-off steps; also from journals of real tasks."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from onward import Onward, Retry
from onward.core import record as r
from onward.core.journal.waterfall import Bar, Waterfall
from onward.core.record import Record
from onward.errors import NotFound, StepFailed, TaskNotFound
from onward.service import timeline as timeline_module
from onward.service.serialize import timeline_json, whole_record_json
from tests.kit import eventually, only_memory


def fallen(*records: tuple[str, str, dict[str, Any], float]) -> Waterfall:
    fall = Waterfall()
    shift = 0
    for seq, (kind, key, value, at) in enumerate(records, 1):
        shift = seq if kind == r.SHIFT else shift
        fall.read(Record(seq, shift, kind, key, json.dumps(value).encode(), at))
    return fall


def summary(bars: list[Bar]) -> list[tuple[Any, ...]]:
    return [(bar.kind, bar.name, bar.start, bar.end, bar.state) for bar in sorted(bars, key=lambda b: (b.start, b.seq))]


SUBMITTED = (r.SUBMITTED, "", {}, 0.0)
SHIFT = (r.SHIFT, "", {"worker": "w"}, 1.0)


def test_the_bars_of_a_dead_worker_end_at_its_last_sign_of_life() -> None:
    fall = fallen(
        SUBMITTED,
        SHIFT,
        (r.STEP_DONE, "a", {"ms": 500, "result": 1}, 2.0),
        (r.STEP_STARTED, "b", {}, 3.0),
        (r.PROGRESS, "", {"message": "half"}, 5.0),
        (r.SHIFT, "", {"worker": "x"}, 9.0),
        (r.STEP_DONE, "b", {"ms": 1000, "result": 2}, 10.5),
        (r.COMPLETED, "", {"result": 3}, 11.0),
    )
    assert summary(fall.bars) == [
        ("queue", "", 0.0, 1.0, "ok"),
        ("shift", "w", 1.0, 5.0, "killed"),
        ("step", "a", 1.5, 2.0, "ok"),
        ("step", "b", 3.0, 5.0, "killed"),
        ("shift", "x", 9.0, 11.0, "ok"),
        ("step", "b", 9.5, 10.5, "ok"),
    ]
    assert [(mark.kind, mark.at) for mark in fall.marks] == [("crash", 9.0), ("completed", 11.0)]
    assert (fall.began, fall.ended, fall.seq) == (0.0, 11.0, 8)
    assert {bar.parent for bar in fall.bars if bar.kind == "step"} == {2, 6}


def test_a_step_recorded_late_begins_at_its_true_time() -> None:
    fall = fallen(SUBMITTED, SHIFT, (r.STEP_STARTED, "a", {}, 2.2), (r.STEP_DONE, "a", {"ms": 700, "result": 1}, 2.5))
    assert summary(fall.bars)[-1] == ("step", "a", 1.8, 2.5, "ok")


def test_turns_stand_side_by_side() -> None:
    def payload(turn: int) -> dict[str, Any]:
        return {"ms": 100, "result": {"turn": turn, "asked": {"model": "m"}, "id": "x", "bytes": 1}}

    fall = fallen(
        SUBMITTED,
        SHIFT,
        (r.STEP_STARTED, "model", {}, 2.0),
        (r.STEP_DONE, "model", payload(1), 2.1),
        (r.STEP_STARTED, "model#2", {}, 3.0),
        (r.STEP_DONE, "model#2", payload(2), 3.1),
    )
    turns = [(bar.name, bar.depth, bar.parent) for bar in fall.bars if bar.kind == "turn"]
    assert turns == [("1", 1, 2), ("2", 1, 2)]


def test_a_turn_ends_when_the_next_begins_although_it_was_recorded_late() -> None:
    def payload(turn: int, ms: int) -> dict[str, Any]:
        return {"ms": ms, "result": {"turn": turn, "asked": {"model": "m"}, "id": "x", "bytes": 1}}

    fall = fallen(
        SUBMITTED,
        SHIFT,
        (r.STEP_DONE, "model", payload(1, 500), 2.0),
        (r.STEP_STARTED, "model#2", {}, 3.25),
        (r.STEP_DONE, "model#2", payload(2, 1000), 4.0),
        (r.COMPLETED, "", {"result": 3}, 5.0),
    )
    turns = [(bar.name, bar.start, bar.end, bar.last) for bar in fall.bars if bar.kind == "turn"]
    assert turns == [("1", 1.5, 3.0, 5), ("2", 3.0, 5.0, 6)], "and a reader that has seen record 4 gets the bar again"


def test_attempts_of_a_step_and_the_pauses_between_them() -> None:
    error = {"error": {"type": "OSError", "message": "no"}}
    fall = fallen(
        SUBMITTED,
        SHIFT,
        (r.STEP_RETRY, "a", {**error, "attempt": 1, "due_at": 4.0}, 2.0),
        (r.STEP_RETRY, "a", {**error, "attempt": 2, "due_at": 9.0}, 5.0),
        (r.STEP_DONE, "a", {"ms": 9000, "result": 1, "attempts": 3}, 10.0),
        (r.RETRY, "", {**error, "attempt": 1, "due_at": 15.0}, 11.0),
    )
    steps = [(bar.kind, bar.start, bar.end, bar.state, bar.attempt) for bar in fall.bars if bar.name == "a"]
    assert steps == [
        ("step", 2.0, 2.0, "retried", 1),
        ("retry", 2.0, 4.0, "ok", 1),
        ("step", 5.0, 5.0, "retried", 2),
        ("retry", 5.0, 9.0, "ok", 2),
        ("step", 9.0, 10.0, "ok", 3),
    ]
    pause = fall.bars[-1]
    assert (pause.kind, pause.state, pause.until, pause.end, pause.text) == (
        "retry",
        "waiting",
        15.0,
        None,
        "OSError: no",
    )


def test_decisions_of_people_and_undone_steps_of_a_saga() -> None:
    fall = fallen(
        SUBMITTED,
        SHIFT,
        (r.SAGA, "saga", {}, 1.0),
        (r.STEP_DONE, "[saga]book", {"ms": 0, "result": 1}, 2.0),
        (r.APPROVAL, "[saga]approval", {"what": "pay 5", "data": {"tool": "pay"}}, 3.0),
        (r.MESSAGE, "", {"n": 1, "kind": "decision", "ref": 5, "value": {"decision": "deny", "by": "ada"}}, 7.0),
        (r.WAITED, "[saga]approval", {"n": 1}, 7.0),
        (r.QUESTION, "[saga]question", {"question": "how?"}, 7.5),
        (r.UNDOING, "saga", {"error": {"type": "Denied", "message": "no"}}, 8.0),
        (r.STEP_DONE, "[saga/undo]book", {"ms": 0, "result": None}, 9.0),
        (r.UNDONE, "saga", {"undone": ["[saga]book"], "not_undone": []}, 9.0),
        (r.ANNOUNCED, "charge", {}, 10.0),
        (r.DOUBTED, "", {"step": "charge", "reason": "lost"}, 11.0),
    )
    assert [(bar.kind, bar.name, bar.state) for bar in fall.bars[2:]] == [
        ("step", "book", "undone"),
        ("approval", "pay", "denied"),
        ("question", "", "retried"),
        ("undo", "book", "ok"),
        ("step", "charge", "in_doubt"),
    ]
    assert fall.bars[-1].end is None
    assert [bar.depth for bar in fall.bars] == [0, 0, 2, 2, 2, 3, 1]
    assert [(mark.kind, mark.text) for mark in fall.marks] == [("message", "denied by ada"), ("undo", "Denied: no")]


def test_unreadable_and_dropped_records_do_no_harm() -> None:
    fall = Waterfall()
    for seq, kind in enumerate(
        sorted(value for name, value in vars(r).items() if isinstance(value, str) and "." in value), 1
    ):
        for data in (
            b"{}",
            b"null",
            b"[1]",
            b"\x01",
            b'{"dropped":3}',
            b'{"result":{"turn":1},"ms":"x","error":5,"until":"y"}',
        ):
            fall.read(Record(seq, 1, kind, "[a/b]x", data, float(seq)))
    assert fall.bars


@only_memory
async def test_a_real_one_with_a_child_a_sleep_and_a_retry(app: Onward) -> None:
    tries: list[int] = []

    @app.task(retry=Retry(attempts=2, first=0.01))
    async def below(ctx: Any) -> str:
        return "below"

    @app.task
    async def above(ctx: Any) -> str:
        child = await ctx.submit("below")
        await ctx.sleep(0.01)

        async def shaky() -> int:
            tries.append(1)
            if len(tries) == 1:
                raise OSError("no")
            return 1

        await ctx.step(shaky, retry=Retry(attempts=2, first=0.01))
        return await child.result()

    async with app.worker():
        task = await app.submit(above)
        assert await task.result(timeout="20s") == "below"
    timeline = await app.service.timelines.timeline(task.id)
    kinds = {bar.kind: bar for bar in timeline.bars}
    assert {"queue", "shift", "child", "sleep", "step", "retry"} <= set(kinds)
    assert (kinds["child"].name, kinds["child"].state) == ("below", "ok")
    assert kinds["child"].child_id is not None
    assert (kinds["step"].name, kinds["step"].attempt) == ("shaky", 2)
    assert all(bar.end is not None and bar.end >= bar.start for bar in timeline.bars)
    assert timeline.ended is not None
    later = await app.service.timelines.timeline(task.id, after=timeline.seq)
    assert (later.bars, later.marks, later.seq) == ([], [], timeline.seq)
    half = await app.service.timelines.timeline(task.id, after=timeline.seq - 1)
    assert {bar.kind for bar in half.bars} == {"shift"}


@only_memory
async def test_a_child_without_a_wait_is_looked_up(app: Onward) -> None:
    @app.task
    async def below(ctx: Any) -> None: ...

    @app.task
    async def above(ctx: Any) -> str:
        await ctx.submit("below")
        return "done"

    async with app.worker():
        task = await app.submit(above)
        await task.result(timeout="20s")

        async def ended() -> bool:
            return all(child.ended for child in (await app.list(parent=task.id))[0])

        await eventually(ended, 60)
    (child,) = [bar for bar in (await app.service.timelines.timeline(task.id)).bars if bar.kind == "child"]
    assert (child.state, child.end is None) == ("ok", False)


@only_memory
async def test_one_record_whole_or_cut(app: Onward) -> None:
    @app.task(retry=1)
    async def work(ctx: Any, size: int) -> None:
        await ctx.step(lambda: "x" * size, name="make")
        await ctx.step(lambda: 1 / 0, name="break", retry=1)

    async with app.worker():
        task = await app.submit(work, 300_000)
        await app.service.wait(task.id, 20)
    look = app.service.timelines.record
    first, made, broke = [await look(task.id, seq) for seq in (1, 3, 4)]
    assert first.input == 300_000
    cut = whole_record_json(made)
    assert (cut["truncated"], cut["size"] > 300_000, cut["output"], cut["data"]) == (True, True, None, None)
    assert cut["text"].startswith('{"ms":')
    whole = whole_record_json(broke)
    assert (whole["error"]["type"], whole["attempts"], whole["truncated"]) == ("ZeroDivisionError", 1, False)
    assert whole["effect_key"] == f"{task.id}:break"
    for seq in (0, 99):
        with pytest.raises(NotFound):
            await look(task.id, seq)
    with pytest.raises(TaskNotFound):
        await app.service.timelines.timeline("nobody")


@only_memory
async def test_a_long_timeline_comes_in_parts_that_make_the_whole(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def below(ctx: Any) -> None: ...

    @app.task
    async def above(ctx: Any) -> None:
        child = await ctx.submit("below")
        for _ in range(5):
            await ctx.step(lambda: "x", name="early")
        with contextlib.suppress(StepFailed):
            async with ctx.saga("trip"):
                for _ in range(5):
                    await ctx.step(lambda: "x", name="book", undo=lambda: None)
                await ctx.sleep(0.01)
                await ctx.step(lambda: 1 / 0, name="break", retry=1)
        await child.result()
        for _ in range(5):
            await ctx.step(lambda: "x", name="late")

    async with app.worker():
        task = await app.submit(above)
        await task.result(timeout="20s")
    timelines = app.service.timelines
    whole = await timelines.timeline(task.id)
    assert not whole.more
    assert {"ok", "undone"} <= {bar.state for bar in whole.bars}
    for records, bars in ((1, 1), (3, 4), (7, 10)):
        monkeypatch.setattr(timeline_module, "PAGE_RECORDS", records)
        monkeypatch.setattr(timeline_module, "MAX_BARS", bars)
        read, parts = await timelines.timeline(task.id), 1
        while read.more:
            part = await timelines.timeline(task.id, after=read.seq)
            assert len(part.bars) + len(part.marks) <= bars + 4 * records + 5, "with those that are open"
            read, parts = read.then(part), parts + 1
        assert parts > 2
        assert read == whole


@only_memory
async def test_a_timeline_is_bounded_in_bytes(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def work(ctx: Any) -> None:
        for _ in range(50):
            await ctx.step(lambda: "x", name="é" * 200)

    async with app.worker():
        task = await app.submit(work)
        await task.result(timeout="20s")
    monkeypatch.setattr(timeline_module, "PAGE_RECORDS", 2)
    monkeypatch.setattr(timeline_module, "PAGE_BYTES", 10_000)
    first = await app.service.timelines.timeline(task.id)
    assert first.more
    assert 9_000 < len(json.dumps(timeline_json(first), ensure_ascii=False).encode()) < 13_000
