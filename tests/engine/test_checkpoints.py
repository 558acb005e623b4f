"""Checkpoints and contents: after any kill, a long task goes on from its last checkpoint and still has its kept contents."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward, State
from onward.core import record as r
from onward.core.page import Page
from onward.core.wire import content_id
from onward.errors import StepFailed
from onward.store.port.core import Batch, Content, Store
from onward.testing import crashes, drain
from tests.kit import Lab, begun, entry, new, submit

ROUNDS = 4


def long_task(app: Onward, did: list[str]) -> Any:
    """Rounds of two steps, a checkpoint after each; the second step keeps a string and returns its name."""

    @app.task
    async def long(ctx: Any) -> Any:
        done = ctx.restored or {"round": 0, "names": []}
        for number in range(done["round"], ROUNDS):

            async def look(number: int = number) -> int:
                did.append(f"{ctx.key.partition(':')[2]} {number}")
                return number * 10

            async def write(value: int, number: int = number) -> str:
                did.append(f"{ctx.key.partition(':')[2]} {number}")
                return str(ctx.keep(f"text of {number}: {value}"))

            value = await ctx.step(look)
            name = await ctx.step(write, value)
            done = {"round": number + 1, "names": [*done["names"], name]}
            await ctx.checkpoint(done)
        return [text.decode() for text in await ctx.kept(*done["names"])]

    return long


WHOLE = [f"text of {number}: {number * 10}" for number in range(ROUNDS)]
KEYS = ["look 0", "write 0", "[@1]look 1", "[@1]write 1", "[@2]look 2", "[@2]write 2", "[@3]look 3", "[@3]write 3"]


async def test_killed_anywhere_it_goes_on_from_the_last_checkpoint() -> None:
    points = 0
    async for app in crashes():
        did: list[str] = []
        handle = await app.submit(long_task(app, did))
        await drain(app)
        assert await handle.result(timeout=1) == WHOLE, app.killed_at
        again = len(did) - len(KEYS)
        assert list(dict.fromkeys(did)) == KEYS, app.killed_at
        assert 0 <= again <= 1, "at most the step that was not recorded"
        points += 1
    assert points > 2 * len(KEYS)


async def test_what_came_before_a_checkpoint_is_not_read_again(lab: Lab) -> None:
    read: list[int | None] = []
    whole = lab.store.journal

    async def journal(task_id: str, *bounds: Any) -> Page[r.Record]:
        records = await whole(task_id, *bounds)
        read.append(len(records))
        return records

    @lab.app.task
    async def long(ctx: Any) -> Any:
        for number in range(ctx.restored or 0, 50):
            await ctx.step(lambda: "x", name="step")
            if number == 40:
                await ctx.sleep("1m")
            await ctx.checkpoint(number + 1)
        return ctx.restored

    task_id = await lab.submit(long)
    await lab.start()
    await lab.settled(task_id)
    lab.store.journal = journal  # type: ignore[method-assign]
    task = await lab.ended(task_id)
    assert task.result == 50
    assert max(count or 0 for count in read) < 10


async def test_a_signal_that_came_before_a_checkpoint_is_still_there(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> Any:
        if ctx.restored is None:
            await ctx.signal("go")
            await ctx.checkpoint({"n": 1})
        await ctx.sleep("1m")
        return [ctx.restored, await ctx.signal("late")]

    task_id = await lab.submit(work)
    await lab.start()
    await lab.settled(task_id)
    await lab.app.signal(task_id, "late", "early bird")
    await lab.app.signal(task_id, "go")
    assert (await lab.ended(task_id)).result == [{"n": 1}, "early bird"]


async def test_only_where_nothing_is_open(lab: Lab) -> None:
    refused: list[str] = []

    async def attempt(ctx: Any) -> None:
        try:
            await ctx.checkpoint(1)
        except Exception as error:
            refused.append(str(error))

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> None:
        await ctx.step(attempt, ctx)
        async with ctx.saga():
            await attempt(ctx)
        await ctx.gather(attempt(ctx))

    await lab.run(work)
    assert len(refused) == 3
    assert all("in the handler's own line" in sentence for sentence in refused)


@pytest.mark.slow
async def test_a_changed_handler_parks_before_it_makes_a_checkpoint(lab: Lab) -> None:
    steps = ["one", "two"]

    @lab.app.task
    async def work(ctx: Any) -> Any:
        if ctx.restored is None:
            for name in steps:
                await ctx.step(lambda: 1, name=name)
            await ctx.sleep("1m")
            await ctx.checkpoint("there")
        await ctx.sleep("2m", name="later")
        return ctx.restored

    before, after = await lab.submit(work), await lab.submit(work)
    await lab.start()
    await lab.settled(before)
    steps.clear()
    task = await lab.settled(before, no_more="asleep")
    assert (task.state, task.reason) == (State.WAITING, "parked")
    assert r.CHECKPOINT not in await lab.kinds(before)
    assert (await lab.settled(after, no_more="asleep")).reason == "parked"


async def test_what_came_before_a_checkpoint_may_change(lab: Lab) -> None:
    steps = ["one", "two"]

    @lab.app.task
    async def work(ctx: Any) -> Any:
        if ctx.restored is None:
            for name in steps:
                await ctx.step(lambda: 1, name=name)
            await ctx.checkpoint("there")
        await ctx.sleep("2m")
        return ctx.restored

    task_id = await lab.submit(work)
    await lab.start()
    await lab.settled(task_id)
    steps.clear()
    assert (await lab.ended(task_id)).result == "there"


async def test_plain_functions_have_checkpoints_too(app: Onward) -> None:
    @app.task
    def work(ctx: Any) -> Any:
        for _ in range(3):
            ctx.step(lambda: 1, name="step")
            ctx.checkpoint((ctx.restored or 0) + 1)
        return ctx.restored

    async with app.worker():
        handle = await app.submit(work)
        assert await handle.result(timeout=60) == 3
    keys = [record.key for record in await app.service.journal(handle.id) if record.kind == r.STEP_DONE]
    assert keys == ["step", "[@1]step", "[@2]step"]


async def test_many_threads_keep_contents(app: Onward) -> None:
    """The writer takes kept contents while threads keep more: no content may be lost between two commits."""

    def write(ctx: Any, number: int) -> Any:
        return ctx.keep(f"{number} " * 50)

    @app.task
    async def work(ctx: Any) -> int:
        names = await ctx.map(lambda number: write(ctx, number), range(100), name="write", limit=20)
        return len(await ctx.kept(*names))

    async with app.worker():
        handles = [await app.submit(work) for _ in range(5)]
        assert [await handle.result(timeout=60) for handle in handles] == [100] * 5


async def test_a_name_that_nothing_was_kept_under(lab: Lab) -> None:
    @lab.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        await ctx.kept("nothing")

    task = await lab.run(work)
    assert "keeps nothing under 'nothing'" in (task.error or {})["message"]


async def test_a_fork_has_the_kept_contents(app: Onward) -> None:
    @app.task(retry=1)
    async def work(ctx: Any) -> Any:
        name = await ctx.step(lambda: ctx.keep("text"), name="keep")
        try:
            await ctx.step(lambda: 1 / 0, name="fail")
        except StepFailed:
            return (await ctx.kept(name))[0].decode()

    async with app.worker():
        handle = await app.submit(work)
        assert await handle.result(timeout=60) == "text"
        fork = await app.fork(handle.id, at=3)
        assert await fork.result(timeout=60) == "text"


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_contents_come_with_their_records_or_not_at_all(store: Store) -> None:
    first, second = await begun(store), await begun(store)
    name = content_id(b"text")
    kept = Content(first.id, name, b"text")
    assert await store.save("w1", Batch([entry(first), entry(second)], contents=[kept, kept])) == set()
    assert await store.contents(first.id, [name, "no"]) == {name: b"text"}
    assert await store.contents(second.id, [name]) == {}, "it is that task's alone"
    assert await store.save("w1", Batch([entry(first, 2)], contents=[kept])) == set(), "the same again is the same"
    late = Content(first.id, "late", b"x")
    refused = await store.save("w1", Batch([entry(first, 2, kind=r.SLEEP), entry(second, 2)], contents=[late]))
    assert refused == {first.id}
    assert await store.contents(first.id, ["late"]) == {}, "a refused entry stores no content"


async def test_from_the_last_checkpoint_on(store: Store) -> None:
    claimed = await begun(store)
    kinds = [r.STEP_DONE, r.CHECKPOINT, r.STEP_DONE, r.CHECKPOINT, r.STEP_DONE]
    batch = Batch([entry(claimed, ahead, kind=kind) for ahead, kind in enumerate(kinds, 1)])
    assert await store.save("w1", batch) == set()
    assert [record.kind for record in await store.journal(claimed.id, None)] == [r.CHECKPOINT, r.STEP_DONE]
    assert len(await store.journal(claimed.id)) == 7
    (other,) = await submit(store, new())
    assert [record.kind for record in await store.journal(other, None)] == [r.SUBMITTED]


@pytest.mark.parametrize("data", [b"", b"\x00\xff", "ü".encode() * 100_000])
async def test_any_bytes(store: Store, data: bytes) -> None:
    claimed = await begun(store)
    await store.save("w1", Batch([entry(claimed)], contents=[Content(claimed.id, "c", data)]))
    assert await store.contents(claimed.id, ["c"]) == {"c": data}
