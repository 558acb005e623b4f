"""Rolling deploys: old and new workers side by side."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Checkpoints, Onward
from onward.agent.model import Reply, Request, ToolCall
from onward.agent.models.scripted import ScriptedModel
from onward.core import record as r
from onward.engine.shift.rolling import UNFIT_CODE
from onward.engine.worker import code
from onward.engine.worker.presence import machine_id
from onward.engine.worker.worker import Worker
from onward.errors import OnwardError, TaskFailed
from onward.store.port.core import SUSPECT_AFTER, Batch
from tests.kit import claim, crashes, entry, eventually, join, not_memory, row, together, waiting

pytestmark = not_memory
"""Each app has a database in memory of its own."""

DONE: collections.Counter[tuple[str, str]] = collections.Counter()
"""How often each step of each task ran, in this process."""


async def _step(ctx: Any, name: str) -> str:
    def run() -> str:
        DONE[ctx.task_id, name] += 1
        return name

    return str(await ctx.step(run, name=name))


def old_app(url: str, **settings: Any) -> Onward:
    app = Onward(url, **{"lease_s": 5.0, "heartbeat_s": 0.2, "poll_s": 0.05, "grace_s": 5.0, "slots": 10, **settings})

    @app.task
    async def noop(ctx: Any) -> None:
        del ctx

    @app.task
    async def ship(ctx: Any, naps: int) -> list[str]:
        done = [await _step(ctx, "pack")]
        for number in range(naps):
            await (await ctx.submit(noop))  # frees the slot: any worker may go on
            done.append(await _step(ctx, f"carry {number}"))
        return [*done, await _step(ctx, "deliver")]

    return app


def new_app(url: str, **settings: Any) -> Onward:
    app = Onward(url, **{"lease_s": 5.0, "heartbeat_s": 0.2, "poll_s": 0.05, "grace_s": 5.0, "slots": 10, **settings})

    @app.task
    async def noop(ctx: Any) -> None:
        del ctx

    @app.task
    async def ship(ctx: Any, naps: int) -> list[str]:
        done = []
        if await ctx.version("weigh first"):
            done.append(await _step(ctx, "weigh"))
        done.append(await _step(ctx, "pack"))
        for number in range(naps):
            await (await ctx.submit(noop))  # frees the slot: any worker may go on
            done.append(await _step(ctx, f"carry {number}"))
        return [*done, await _step(ctx, "deliver")]

    return app


def test_the_version_of_the_code_is_the_same_for_the_same_code(url: str) -> None:
    old, again, new = old_app(url), old_app(url), new_app(url)
    assert code.code_version(old.handlers) == code.code_version(again.handlers)
    assert code.code_version(old.handlers) != code.code_version(new.handlers)


@contextlib.asynccontextmanager
async def workers(*apps: Onward) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app.worker())
        yield


async def _passed_on(app: Onward, task_id: str) -> int:
    records = await app.service.journal(task_id)
    return sum(record.kind == r.HANDED_BACK and record.value.get("reason") == UNFIT_CODE for record in records)


async def test_old_and_new_workers_side_by_side_park_nothing(url: str) -> None:
    old, new = old_app(url), new_app(url)
    async with workers(old, new):
        handles = await new.submit_many("ship", [5] * 40)
        results = [await handle.result(timeout=120) for handle in handles]
        assert {len(result) for result in results} <= {7, 8}
        assert all(count == 1 for (task, _), count in DONE.items() if task in {handle.id for handle in handles})
        assert sum([await _passed_on(new, handle.id) for handle in handles]) > 0, (
            "VOID: no task met code that did not fit"
        )


async def _has_steps(app: Onward, task_id: str, count: int) -> bool:
    async with app:
        return sum(record.kind == r.STEP_DONE for record in await app.service.journal(task_id)) >= count


async def test_a_task_that_no_living_version_fits_is_parked(url: str) -> None:
    old, new = old_app(url), new_app(url)
    async with new.worker():
        task = await new.submit("ship", 1000)
        await eventually(lambda: _has_steps(new, task.id, 3))
    async with old.worker():

        async def parked() -> bool:
            return (await old.get(task.id)).reason == "parked"

        await eventually(parked)
        assert await _passed_on(old, task.id) == 0, "no other version lived"
        async with new.worker():
            await old.resume(task.id)
            count = len(await old.service.journal(task.id))
            await eventually(lambda: _longer(old, task.id, count + 20))
        await old.cancel(task.id)


async def _longer(app: Onward, task_id: str, count: int) -> bool:
    return len(await app.service.journal(task_id)) >= count


async def test_without_the_hand_back_tasks_are_parked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the test above sees it."""

    async def never(*_: Any) -> bool:
        return False

    monkeypatch.setattr("onward.engine.worker.worker.Worker.others_may_fit", never)
    old, new = old_app(url), new_app(url)
    async with workers(old, new):
        handles = await new.submit_many("ship", [5] * 40)

        async def some_parked() -> bool:
            tasks = await asyncio.gather(*[new.get(handle.id) for handle in handles])
            return any(task.reason == "parked" for task in tasks)

        await eventually(some_parked)


async def test_versions_count_the_tasks_that_each_ran_last(url: str) -> None:
    old, new = old_app(url, code="old"), new_app(url, code="new")
    async with new:
        assert await new.versions() == []
        await new.submit("noop", delay="1d")  # it was never started, so it counts for no version
        async with new.worker():
            task = await new.submit("ship", 1000)
            await eventually(lambda: _has_steps(new, task.id, 3))
            (version,) = await new.versions()
            assert version.version.endswith("+new")
            assert (version.workers, version.parked) == (1, 0)
            assert version.running + version.waiting in {1, 2}, "the task, and maybe a child of it"
        async with old.worker():

            async def parked() -> bool:
                return (await old.get(task.id)).reason == "parked"

            await eventually(parked)
            versions = {version.version.partition("+")[2]: version for version in await old.versions()}
            assert (versions["new"].workers, versions["new"].parked) == (0, 1), "it parked for want of the new code"
            assert (versions["old"].workers, versions["old"].parked) == (1, 0)
            assert versions["new"].started_at is None, "its worker has left"
            assert versions["old"].started_at == min(worker.started_at for worker in await old.workers())
        await new.cancel(task.id)


async def test_a_checkpoint_that_no_version_accepts_is_parked(url: str) -> None:
    """The tries are counted also where the journal cannot be replayed at all."""

    def app_of(code: str) -> Onward:
        app = old_app(url, code=code)

        @app.task(checkpoint=Checkpoints(max_age=0.1))
        async def count(ctx: Any) -> None:
            if ctx.restored is None:
                await ctx.checkpoint(1)
            await ctx.signal("go")

        return app

    one, other = app_of("one"), app_of("other")
    async with one, other:
        async with one.worker():
            task = await one.submit("count")
            await eventually(lambda: _has_reason(one, task.id, "signal"))
        await asyncio.sleep(0.2)  # the checkpoint is too old now
        async with workers(one, other):
            await one.signal(task.id, "go")
            await eventually(lambda: _has_reason(one, task.id, "parked"), 10)
            assert await _passed_on(one, task.id) >= 1


async def test_an_input_that_only_new_code_takes_waits_for_new_code(url: str) -> None:
    """A client of the new code submits it, and an old worker claims it."""
    old, new = old_app(url), new_app(url, slots=1)

    @old.task(name="bill")
    async def old_bill(ctx: Any, amount: int) -> int:
        del ctx
        return amount

    @new.task(name="bill")
    async def new_bill(ctx: Any, amount: int, currency: str) -> str:
        del ctx
        return f"{amount} {currency}"

    async with workers(old, new):
        handles = await new.submit_many("bill", [{"amount": 1, "currency": "EUR"}] * 40)
        assert [await handle.result(timeout=120) for handle in handles] == ["1 EUR"] * 40
        assert sum([await _passed_on(new, handle.id) for handle in handles]) > 0, "VOID: the old worker claimed none"
    async with new, old.worker():
        handle = await new.submit("bill", {"amount": 1, "currency": "EUR"})
        with pytest.raises(OnwardError, match="does not fit"):
            await handle.result(timeout=60)


async def test_poison_is_quarantined_though_old_workers_hand_it_back(url: str) -> None:
    """New workers crash at it. Between two crashes an old worker claims it, and hands it back."""
    old = old_app(url)
    async with old:
        store = old.store
        new = row("new", machine=machine_id(), pid=os.getpid(), names=("ship",), version="new")
        await store.workers.join(new, 600)
        task = await old.submit("ship", 1)
        (held,) = await claim(store, "new", names=["ship"])
        weighed = entry(held, key="weigh", data=b'{"result":"weigh"}')
        await store.save("new", together(Batch([weighed]), waiting(held, None, "queued", ahead=2)))
        for number in range(SUSPECT_AFTER + 1):
            await join(store, f"crash {number}")
            suspect = {"alone": True} if number == SUSPECT_AFTER else {}
            assert await claim(store, f"crash {number}", names=["ship"], **suspect)
            await store.workers.rescue([f"crash {number}"])
            assert await crashes(store, task.id) == number + 1
            async with old.worker():
                wanted = "delayed" if number < SUSPECT_AFTER else "quarantined"
                await eventually(lambda wanted=wanted: _has_reason(old, task.id, wanted), 20)

            async def ready() -> bool:
                await store.wake()
                return await _has_reason(old, task.id, "queued")

            if number < SUSPECT_AFTER:
                await eventually(ready, 20)


async def test_the_partial_result_of_a_late_agent_waits_for_code_that_reads_it(url: str) -> None:
    """Old code has not the tool that the agent called, so it cannot read how far the agent came."""

    async def note() -> str:
        """Note."""
        return "noted"

    call, question = ToolCall("c1", "note", "{}"), ToolCall("c2", "ask_user", '{"question": "well?"}')

    def replies(request: Request) -> Reply:
        if len(request.messages) > 3:
            return Reply("", (question,), finish="tool_calls")
        return Reply("Halfway.", (call,), finish="tool_calls")

    def app_of(*, new: bool) -> Onward:
        app = old_app(url, code="new" if new else "old")
        app.agent("late", model=ScriptedModel([replies] * 100), tools=[note] if new else [], deadline=4)
        return app

    old, new = app_of(new=False), app_of(new=True)
    async with old, new:
        async with new.worker():
            task = await new.submit("late", "go")
            await eventually(lambda: _has_reason(new, task.id, "question"))
        await asyncio.sleep(4)  # the deadline has passed
        await old.store.workers.join(row("new", machine=machine_id(), pid=os.getpid(), names=("late",)), 600)
        async with old.worker():
            await eventually(lambda: _passed_on(old, task.id))
            async with new.worker():
                with pytest.raises(TaskFailed) as failed:
                    await task.result(timeout=60)
        assert failed.value.partial == "Halfway."


@pytest.mark.parametrize("beside", [False, True])
async def test_a_mark_that_old_code_passed_by_is_void(url: str, beside: bool) -> None:
    """New code marks a task, and stops in the step behind the mark. Old code goes on without that step, and new code takes over again."""
    hangs, hung = [True], asyncio.Event()

    async def weigh() -> None:
        hung.set()
        if hangs:
            await asyncio.sleep(3600)

    def app_of(*, new: bool) -> Onward:
        app = old_app(url, code="new" if new else "old", grace_s=0.1)

        async def line(ctx: Any) -> str:
            await _step(ctx, "pack")
            if new and await ctx.version("weigh"):
                await ctx.step(weigh)
            await _step(ctx, "carry")
            await ctx.signal("go")
            return await _step(ctx, "deliver")

        @app.task
        async def send(ctx: Any) -> Any:
            return (await ctx.gather(line(ctx), line(ctx)))[0] if beside else await line(ctx)

        return app

    old, new = app_of(new=False), app_of(new=True)
    async with old, new:
        async with new.worker():
            task = await new.submit("send")
            await asyncio.wait_for(hung.wait(), 60)
        async with old.worker():
            await eventually(lambda: _has_reason(old, task.id, "signal"))
        hangs.clear()
        async with new.worker():
            for _ in range(2):
                await new.signal(task.id, "go")
            assert await task.result(timeout=60) == "deliver"
        marks = [record.value for record in await new.service.journal(task.id) if record.kind == r.VERSION]
        assert 0 < marks.count({}) == marks.count({"void": True})


async def test_after_an_outage_other_workers_count_as_living(url: str) -> None:
    """The database was away for longer than a lease. The first worker that comes back finds only leases that have ended."""
    old = old_app(url)
    async with old, old.worker(slots=1) as worker:
        assert isinstance(worker, Worker)
        task = await old.submit("ship", 0, delay=60)
        new = row("new", machine=machine_id(), pid=os.getpid(), names=("ship",), version="new")
        for steady in (True, False):
            worker.lease._steady_since = -math.inf if steady else worker.clock.monotonic()
            await old.store.workers.join(new, -1)
            assert await worker.others_may_fit(task.id, {worker.version}) is not steady
            await old.store.workers.rescue(["new"])


async def _has_reason(app: Onward, task_id: str, reason: str) -> bool:
    return (await app.get(task_id)).reason == reason


@pytest.mark.slow
async def test_rounds_of_deploys_and_rollbacks_park_nothing(url: str, prove: bool, print_proof: Any) -> None:
    """Old workers, old and new ones, new ones, and back: the new ones go when all tasks that they began have ended."""
    rounds, tasks = (20, 500) if prove else (2, 60)
    passed = 0
    for _ in range(rounds):
        old, new, back = old_app(url, slots=50), new_app(url, slots=50), old_app(url, slots=50)
        async with new, contextlib.AsyncExitStack() as newer:
            async with old.worker():
                handles = await new.submit_many("ship", [3] * (tasks // 3))
                await newer.enter_async_context(new.worker())
                handles += await new.submit_many("ship", [3] * (tasks // 3))
                await asyncio.sleep(0.3)  # both claim
            handles += await new.submit_many("ship", [3] * (tasks - 2 * (tasks // 3)))
            async with back.worker():  # the rollback: the new ones go when all tasks have ended
                results = [await handle.result(timeout=600) for handle in handles]
            ids = {handle.id for handle in handles}
            assert len(results) == tasks
            assert all(count == 1 for (task, _), count in DONE.items() if task in ids), "a step ran again"
            passed += sum([await _passed_on(new, handle.id) for handle in handles])
    print_proof(
        "rolling deploys",
        f"{rounds} rounds",
        f"{rounds * tasks} tasks",
        f"{passed} handed on",
        "0 parked, lost or repeated",
    )
    assert passed, "VOID: no task met code that did not fit"
