"""Steps on every engine: each runs once, its result is the same in every replay, and its failures are retried."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from onward import Retry, State
from onward.core import record as r
from tests.engines.kit import Engine

SOON = Retry(attempts=3, first=0.05)


async def test_a_step_runs_once_whatever_happens_after_it(engine: Engine) -> None:
    calls: list[str] = []

    @engine.app.task(retry=SOON)
    async def work(ctx: Any, n: int) -> Any:
        first = await ctx.step(lambda: calls.append("first") or n + 1, name="first")
        second = await ctx.step(functools.partial(add, 10), first)
        if len(calls) == 2:
            calls.append("failure")
            raise ConnectionError("now")
        return [first, second, ctx.attempt]

    def add(a: int, b: int) -> int:
        calls.append("add")
        return a + b

    task = await engine.run(work, 1)
    assert task.result == [2, 12, 2]
    assert calls == ["first", "add", "failure"]


async def test_the_journal_is_numbered_without_a_gap(engine: Engine) -> None:
    @engine.app.task
    async def work(ctx: Any) -> int:
        return sum([await ctx.step(lambda n=n: n, name=f"step {n}") for n in range(5)])

    handle = await engine.submit(work)
    assert (await engine.ended(handle)).result == 10
    records = await engine.app.service.journal(handle.id)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    kinds = [record.kind for record in records if record.kind != r.STEP_STARTED]
    assert kinds == [r.SUBMITTED, r.SHIFT, *[r.STEP_DONE] * 5, r.COMPLETED]
    assert {record.shift for record in records[1:]} == {2}
    assert [record.at for record in records] == sorted(record.at for record in records)


async def test_steps_of_one_name_get_numbered_keys(engine: Engine) -> None:
    @engine.app.task(retry=SOON)
    async def work(ctx: Any) -> list[int]:
        results = [await ctx.step(number, n) for n in range(3)]
        results += [await ctx.step(number, 9, name="other"), await ctx.step(number, 3)]
        if ctx.attempt == 1:
            raise ConnectionError
        return results

    async def number(n: int) -> int:
        return n

    handle = await engine.submit(work)
    assert (await engine.ended(handle)).result == [0, 1, 2, 9, 3]
    keys = [record.key for record in await engine.app.service.journal(handle.id) if record.kind == r.STEP_DONE]
    assert keys == ["number", "number#2", "number#3", "other", "number#4"]


async def test_time_chance_and_names_are_the_same_in_every_replay(engine: Engine) -> None:
    seen: list[Any] = []

    @engine.app.task(retry=SOON)
    async def work(ctx: Any) -> int:
        seen.append([await ctx.now(), await ctx.random(), await ctx.uuid(), await ctx.now(), await ctx.random()])
        if ctx.attempt < 3:
            raise ConnectionError
        return len(seen)

    assert (await engine.run(work)).result == 3
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][1] != seen[0][4]


async def test_the_effect_key_is_the_same_in_every_attempt_and_of_no_other_step(engine: Engine) -> None:
    keys: list[str] = []

    @engine.app.task(retry=SOON)
    async def pay(ctx: Any) -> None:
        async def charge() -> None:
            keys.append(ctx.key)
            if len(keys) < 3:
                raise ConnectionError

        def sync_charge() -> None:
            keys.append(ctx.key)

        await ctx.step(charge, retry=Retry(attempts=2, first=0.05))
        await ctx.step(charge)
        await ctx.step(sync_charge)

    task = await engine.run(pay)
    assert task.state is State.COMPLETED
    first, second, third, *rest = keys
    assert first == second == third == f"{task.task_id}:charge"
    assert rest == [f"{task.task_id}:charge#2", f"{task.task_id}:sync_charge"]


async def test_a_step_is_retried_and_then_fails_the_task(engine: Engine) -> None:
    tries: list[int] = []

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> None:
        def fail() -> None:
            tries.append(1)
            raise OSError("the disk is away")

        await ctx.step(fail, retry=Retry(attempts=3, first=0.05))

    handle = await engine.submit(work)
    task = await engine.ended(handle)
    assert (task.state, len(tries)) == (State.FAILED, 3)
    assert task.error is not None
    assert (task.error["step"], task.error["cause"]["type"]) == ("fail", "OSError")
    assert (await engine.kinds(handle)).count(r.STEP_RETRY) == 2


async def test_a_plain_function_is_a_handler_too(engine: Engine) -> None:
    @engine.app.task
    def work(ctx: Any, n: int) -> int:
        doubled = ctx.step(lambda: n * 2, name="double")
        ctx.sleep(0.01)
        return int(doubled) + 1

    assert (await engine.run(work, 20)).result == 41


async def test_a_short_and_a_long_sleep(engine: Engine) -> None:
    """A long sleep leaves the worker; the journal says so."""

    @engine.app.task
    async def work(ctx: Any) -> str:
        await ctx.sleep(0.05)
        await ctx.sleep(1.5)
        return "awake"

    handle = await engine.submit(work)
    assert (await engine.ended(handle)).result == "awake"
    kinds = await engine.kinds(handle)
    assert kinds.count(r.SLEPT) == 2
    assert kinds.count(r.SHIFT) == 2


async def test_a_deadline_ends_the_task(engine: Engine) -> None:
    @engine.app.task(deadline=0.5)
    async def work(ctx: Any) -> None:
        await ctx.signal("never")

    task = await engine.run(work)
    assert task.state is State.FAILED
    assert task.error is not None
    assert task.error["type"] == "DeadlineExceeded"


async def test_branches_run_beside_each_other(engine: Engine) -> None:
    both = asyncio.Event()
    arrived: list[str] = []

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> Any:
        async def meet(name: str) -> str:
            arrived.append(name)
            if len(arrived) == 2:
                both.set()
            await both.wait()
            return name

        async def branch(name: str) -> str:
            return str(await ctx.step(meet, name, name=name)) + str(await ctx.step(lambda: name, name="again"))

        return await ctx.gather(branch("a"), branch("b"))

    assert (await engine.run(work)).result == ["aa", "bb"]


async def test_gather_waits_for_all_and_raises_the_first_in_order(engine: Engine) -> None:
    ran: list[str] = []

    @engine.app.task(retry=1)
    async def work(ctx: Any, quiet: bool) -> Any:
        async def step(name: str, delay: float) -> str:
            await asyncio.sleep(delay)
            ran.append(name)
            if name in {"b", "c"}:
                raise ValueError(name)
            return name

        jobs = [
            ctx.step(step, name, delay, name=name) for name, delay in (("a", 0), ("b", 0.02), ("c", 0), ("d", 0.03))
        ]
        answers = await ctx.gather(*jobs, return_exceptions=quiet)
        return [str(answer) for answer in answers]

    loud, quiet = await engine.submit(work, {"quiet": False}), await engine.submit(work, {"quiet": True})
    failed, completed = await engine.ended(loud), await engine.ended(quiet)
    assert sorted(ran) == ["a", "a", "b", "b", "c", "c", "d", "d"]
    assert failed.error is not None
    assert "step '[gather.1]b'" in failed.error["message"]
    assert [text[:1] for text in completed.result] == ["a", "s", "s", "d"]


async def test_a_crash_in_a_step_repeats_only_that_step(engine: Engine) -> None:
    ran: list[str] = []
    stuck = asyncio.Event()

    @engine.app.task
    async def work(ctx: Any) -> list[str]:
        async def step(name: str) -> str:
            ran.append(name)
            if name == "c" and not stuck.is_set():
                stuck.set()
                await asyncio.Event().wait()
            return name

        return [await ctx.step(step, name, name=name) for name in "abcd"]

    handle = await engine.submit(work)
    await stuck.wait()
    await engine.crash()
    await engine.start()
    assert (await engine.ended(handle)).result == ["a", "b", "c", "d"]
    assert ran == ["a", "b", "c", "c", "d"]


async def test_the_same_key_is_the_same_task(engine: Engine) -> None:
    ran: list[int] = []

    @engine.app.task
    async def work(ctx: Any, n: int) -> int:
        await ctx.step(lambda: ran.append(n), name="run")
        return n

    first, second = await engine.submit(work, 1, key="once"), await engine.submit(work, 1, key="once")
    assert first.id == second.id
    assert (await engine.ended(first)).result == 1
    assert (await engine.submit(work, 1, key="once")).id == first.id, "also after its end"
    assert ran == [1]


async def test_a_failed_task_is_resumed_at_the_step_that_failed(engine: Engine) -> None:
    ran: list[str] = []
    broken = True

    @engine.app.task(retry=1)
    async def work(ctx: Any) -> str:
        async def do(name: str) -> str:
            ran.append(name)
            if name == "b" and broken:
                raise ValueError("not yet")
            return name

        return str(await ctx.step(do, "a", name="a")) + str(await ctx.step(do, "b", name="b"))

    handle = await engine.submit(work)
    assert (await engine.ended(handle)).state is State.FAILED
    broken = False
    await engine.app.resume(handle.id)
    assert (await engine.ended(handle)).result == "ab"
    assert ran == ["a", "b", "b"]
