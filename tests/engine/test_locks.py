"""`ctx.lock`: one task at a time in the block, a new token in every shift, and a lock that no crash, end or wait leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward, Retry
from onward.core import record as r
from onward.core.task import State
from onward.engine.check.deploy_check import Verdict
from onward.engine.shift.locks import LockBlock
from onward.errors import LockTimeout, UsageError
from onward.testing import MemoryApp, crashes, drain, memory_app
from tests.kit import eventually


class Resource:
    """A resource that refuses a token smaller than the largest that it has seen, and knows who is inside."""

    def __init__(self) -> None:
        self.largest = 0
        self.inside: str | None = None
        self.order: list[str] = []
        self.refused: list[int] = []
        self.tokens: list[int] = []

    def write(self, task: str, token: int) -> None:
        assert type(token) is not bool
        if token < self.largest:
            self.refused.append(token)
            raise RuntimeError(f"token {token} is smaller than {self.largest}")
        self.largest = token
        self.tokens.append(int(token))
        self.order.append(task)


def with_task(handler: Any, **options: Any) -> MemoryApp:
    app = memory_app()
    app.task(name="work", **{"retry": 1, **options})(handler)
    return app


async def kinds(app: MemoryApp, task_id: str) -> list[str]:
    return [record.kind for record in await app.store.journal(task_id) if record.kind.startswith("lock.")]


async def tokens(app: MemoryApp, task_id: str) -> list[int]:
    return [record.value["token"] for record in await app.store.journal(task_id) if record.kind == r.LOCK_TAKEN]


def deploying(resource: Resource, *, pause: float = 0.0) -> Any:
    """A handler that writes twice inside the block, and rests between the writes."""

    async def work(ctx: Any) -> str:
        async def write(what: str, fence: int) -> str:
            assert resource.inside in {None, ctx.task_id}
            resource.inside = ctx.task_id
            resource.write(ctx.task_id, fence)
            return what

        async with ctx.lock("deploy") as lock:
            await ctx.step(write, "first", fence=lock.token)
            if pause:
                await ctx.sleep(pause)
            await ctx.step(write, "second", fence=lock.token)
            resource.inside = None
        await ctx.step(len, "after")
        return "done"

    return work


# ── one after the other ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_tasks_take_turns_in_the_order_of_their_coming() -> None:
    resource = Resource()
    app = with_task(deploying(resource, pause=30.0))
    async with app:
        tasks = [await app.submit("work") for _ in range(5)]
        assert await drain(app) == []
        assert resource.order == [task.id for task in tasks for _ in range(2)]
        assert resource.tokens == sorted(resource.tokens)
        assert await app.store.locks.list(None, 10) == []
        assert await kinds(app, tasks[0].id) == ["lock.taken", "lock.taken", "lock.released"]
        assert (await kinds(app, tasks[1].id))[0] == "lock.awaited"


async def test_a_waiting_task_has_no_slot_and_says_what_it_waits_for() -> None:
    async def work(ctx: Any, wait: bool) -> None:
        async with ctx.lock("deploy"):
            await ctx.signal("go") if wait else None

    app = with_task(work)
    async with app:
        first, second = await app.submit("work", {"wait": True}), await app.submit("work", {"wait": False})
        left = {task.task_id: task for task in await drain(app)}
        assert (left[second.id].state, left[second.id].reason, left[second.id].worker) == (State.WAITING, "lock", None)
        explained = await app.service.explainer.of([left[second.id]])
        assert explained[second.id].text == f"waits for lock deploy, held by {first.id}"
        await app.signal(first.id, "go")
        assert await drain(app) == []


async def test_a_lock_that_is_not_free_in_time_names_its_holder() -> None:
    caught: list[LockTimeout] = []

    async def work(ctx: Any, wait: bool) -> str:
        if wait:
            async with ctx.lock("deploy"):
                await ctx.signal("go")
            return "held"
        try:
            async with ctx.lock("deploy", timeout="10m"):
                return "in"
        except LockTimeout as error:
            caught.append(error)
        await ctx.sleep("1m")
        return "late"

    app = with_task(work)
    async with app:
        first, second = await app.submit("work", {"wait": True}), await app.submit("work", {"wait": False})
        (left,) = await drain(app)
        assert left.task_id == first.id
        assert (await second.get()).result == "late"
        assert {str(error) for error in caught} == {str(caught[0])}
        assert len(caught) == 2, "a replay raises it again, from the record"
        assert first.id in str(caught[0])
        (lock,) = await app.store.locks.list(None, 10)
        assert lock.waiting == 0, "it has left the line"


async def test_without_time_to_wait_a_busy_lock_is_refused_at_once() -> None:
    async def work(ctx: Any, wait: bool) -> None:
        async with ctx.lock("deploy", timeout=0):
            await ctx.signal("go") if wait else None

    app = with_task(work)
    async with app:
        first = await app.submit("work", {"wait": True})
        await drain(app)
        second = await app.submit("work", {"wait": False})
        await drain(app)
        ended = await second.get()
        assert ended.error is not None
        assert ended.error["type"] == "LockTimeout"
        await app.cancel(first.id)
        assert await app.store.locks.list(None, 10) == []


# ── tokens and shifts ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_shift_in_the_block_has_a_new_token() -> None:
    resource = Resource()
    app = with_task(deploying(resource, pause=30.0))
    async with app:
        task = await app.submit("work")
        assert await drain(app) == []
        taken = await tokens(app, task.id)
        assert len(taken) == 2
        assert taken[0] < taken[1]
        assert resource.tokens == taken, "the write after the sleep has the token of its own shift"


async def test_a_shift_that_replays_past_a_block_takes_no_lock() -> None:
    async def work(ctx: Any) -> None:
        async with ctx.lock("deploy") as lock:
            await ctx.step(len, "x" * 3)
            assert lock.token
        await ctx.sleep("1m")
        await ctx.sleep("1m")

    app = with_task(work)
    async with app:
        task = await app.submit("work")
        await drain(app)
        assert (await task.get()).state is State.COMPLETED
        assert await kinds(app, task.id) == ["lock.taken", "lock.released"]


async def test_a_crash_at_every_point_leaves_no_lock_and_no_stale_token() -> None:
    points, resource = 0, Resource()
    async for app in crashes(with_task(deploying(resource))):
        resource.__init__()  # type: ignore[misc]
        tasks = [await app.submit("work") for _ in range(2)]
        assert await drain(app) == [], app.killed_at
        for task in tasks:
            assert (await task.get()).result == "done", app.killed_at
        assert resource.refused == [], app.killed_at
        assert sorted(set(resource.order), key=resource.order.index) == [task.id for task in tasks], app.killed_at
        assert await app.store.locks.list(None, 10) == [], app.killed_at
        for task in tasks:
            shifts = [record.shift for record in await app.store.journal(task.id) if record.kind == r.LOCK_TAKEN]
            assert len(shifts) == len(set(shifts)), "one token in each shift"
        points += 1
    assert points > 20


async def test_a_crash_of_a_task_that_fails_or_is_tried_again_in_the_block() -> None:
    attempts: list[int] = []

    async def work(ctx: Any) -> str:
        async def write(fence: int) -> int:
            attempts.append(int(fence))
            if len(attempts) < 2:
                raise RuntimeError("the first attempt fails")
            return 1

        async with ctx.lock("deploy") as lock:
            await ctx.step(len, "in")
            await ctx.step(write, fence=lock.token, retry=1)
        await ctx.step(len, "out")
        return "done"

    async for app in crashes(with_task(work, retry=Retry(3, first="10s"))):
        attempts.clear()
        task = await app.submit("work")
        assert await drain(app) == [], app.killed_at
        assert (await task.get()).result == "done", app.killed_at
        assert attempts == sorted(attempts), app.killed_at
        assert await app.store.locks.list(None, 10) == [], app.killed_at


async def test_a_task_that_waits_for_its_next_attempt_holds_no_lock() -> None:
    async def work(ctx: Any) -> None:
        async with ctx.lock("deploy"):
            raise RuntimeError("no")

    app = with_task(work, retry=Retry(2, first="1h", cap="1h"))
    async with app:
        task = await app.submit("work")
        with pytest.raises(UsageError):
            await drain(app, within="1m")
        assert (await task.get()).reason == "retrying"
        assert await app.store.locks.list(None, 10) == []
        await drain(app)
        assert (await task.get()).state is State.FAILED
        assert await app.store.locks.list(None, 10) == []
        assert len(await tokens(app, task.id)) == 2, "the second attempt took the lock again"


# ── ends, sagas, branches ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_deadline_inside_the_block_frees_the_lock() -> None:
    async def work(ctx: Any) -> None:
        async with ctx.lock("deploy"):
            await ctx.signal("never")

    app = with_task(work, deadline="1m")
    async with app:
        first, second = await app.submit("work"), await app.submit("work", deadline="1h")
        await drain(app)
        for task in (first, second):
            assert (await task.get()).state is State.FAILED
        assert len(await tokens(app, second.id)) > 0, "it got the lock after the deadline of the first"
        assert await app.store.locks.list(None, 10) == []


@pytest.mark.parametrize("saga_inside", [True, False])
async def test_a_saga_is_undone_and_the_lock_is_freed(saga_inside: bool) -> None:
    undone: list[int] = []

    async def work(ctx: Any) -> None:
        async def do(fence: int) -> int:
            return 1

        async def undo(fence: int) -> None:
            undone.append(int(fence))

        if saga_inside:
            async with ctx.lock("deploy") as lock, ctx.saga():
                await ctx.step(do, lock.token, undo=undo)
                await ctx.signal("never")
        else:
            async with ctx.saga(), ctx.lock("deploy") as lock:
                await ctx.step(do, lock.token, undo=undo)
                await ctx.signal("never")

    async for app in crashes(with_task(work)):
        undone.clear()
        task = await app.submit("work")
        await drain(app)
        await app.cancel(task.id)
        assert await drain(app) == [], app.killed_at
        assert (await task.get()).state is State.CANCELLED, app.killed_at
        assert undone, app.killed_at
        taken = await tokens(app, task.id)
        assert taken == sorted(set(taken))
        if saga_inside:
            assert undone[-1] in taken[1:], "the undo has the token of its own shift"
        assert await app.store.locks.list(None, 10) == [], app.killed_at


async def test_the_same_lock_twice_is_refused_with_a_sentence() -> None:
    async def work(ctx: Any) -> None:
        async with ctx.lock("deploy"):
            await ctx.gather(inner(ctx))

    async def inner(ctx: Any) -> None:
        async with ctx.lock("deploy"):
            pass

    app = with_task(work)
    async with app:
        task = await app.submit("work")
        await drain(app)
        ended = await task.get()
        assert ended.error is not None
        assert "is in a block of lock 'deploy' already" in ended.error["message"]


async def test_branches_take_turns_and_one_after_the_other_is_fine() -> None:
    inside: list[str] = []

    async def enter(name: str) -> None:
        assert inside == []
        inside.append(name)

    async def leave(name: str) -> None:
        inside.remove(name)

    async def work(ctx: Any) -> int:
        async def branch(name: str) -> int:
            async with ctx.lock("deploy"):
                await ctx.step(enter, name)
                await ctx.sleep(5)
                await ctx.step(leave, name)
            return 1

        first = sum(await ctx.gather(*[branch(str(number)) for number in range(3)]))
        async with ctx.lock("deploy"):
            pass
        return int(first)

    app = with_task(work)
    async with app:
        task = await app.submit("work")
        assert await drain(app) == []
        assert (await task.get()).result == 3
        assert await app.store.locks.list(None, 10) == []


async def test_two_tasks_that_wait_for_each_other_time_out_with_the_name_of_the_other() -> None:
    async def work(ctx: Any, first: str, second: str) -> str:
        async with ctx.lock(first):
            await ctx.sleep("1m")
            async with ctx.lock(second, timeout="5m"):
                return "both"

    app = with_task(work)
    async with app:
        tasks = [await app.submit("work", {"first": a, "second": b}) for a, b in (("a", "b"), ("b", "a"))]
        await drain(app)
        ended = [await task.get() for task in tasks]
        failed = [task for task in ended if task.error is not None]
        assert failed
        assert all(any(other.task_id in str(task.error) for other in ended if other is not task) for task in failed), (
            "the error names the other"
        )
        assert await app.store.locks.list(None, 10) == []


async def test_a_paused_holder_keeps_the_lock_and_a_resume_goes_on() -> None:
    resource = Resource()
    app = with_task(deploying(resource, pause=30.0))
    async with app:
        task = await app.submit("work")
        with pytest.raises(UsageError):
            await drain(app, within=10)
        await app.pause(task.id)
        await drain(app)
        (lock,) = await app.store.locks.list(None, 10)
        assert lock.holder is not None
        assert lock.holder.task_id == task.id
        await app.resume(task.id)
        assert await drain(app) == []
        assert (await task.get()).result == "done"


async def test_an_operator_takes_the_lock_away_and_the_task_comes_back_for_it() -> None:
    resource = Resource()
    app = with_task(deploying(resource, pause=30.0))
    async with app:
        first, second = await app.submit("work"), await app.submit("work")
        with pytest.raises(UsageError):
            await drain(app, within=10)
        await app.locks.release("deploy", reason="stuck")
        assert await drain(app) == []
        for task in (first, second):
            assert (await task.get()).state in {State.COMPLETED, State.FAILED}
        assert await app.store.locks.list(None, 10) == []


async def test_no_checkpoint_and_no_fork_inside_the_block() -> None:
    async def work(ctx: Any) -> str:
        async with ctx.lock("deploy"):
            await ctx.step(len, "x")
            try:
                await ctx.checkpoint(1)
            except UsageError as error:
                return str(error)
        return ""

    app = with_task(work)
    async with app:
        task = await app.submit("work")
        await drain(app)
        assert "locks" in (await task.get()).result
        records = await app.store.journal(task.id)
        (inside,) = [record.seq for record in records if record.kind == r.STEP_DONE]
        with pytest.raises(Exception, match="inside the block"):
            await app.fork(task.id, at=inside)


async def test_a_child_is_submitted_once_although_its_input_has_a_token() -> None:
    app = memory_app()

    @app.task
    async def child(ctx: Any, fence: int) -> int:
        return fence

    @app.task(retry=1)
    async def parent(ctx: Any) -> Any:
        async with ctx.lock("deploy") as lock:
            started = await ctx.submit("child", {"fence": lock.token})
            return await started.result()

    async with app:
        task = await app.submit("parent")
        assert await drain(app) == []
        taken = await tokens(app, task.id)
        assert (await task.get()).result == taken[0]
        assert len(taken) == 2


async def test_a_handler_that_is_a_plain_function_uses_with() -> None:
    app = memory_app()

    @app.task(retry=1)
    def work(ctx: Any) -> bool:
        with ctx.lock("deploy") as lock:
            return bool(ctx.step(lambda fence: fence > 0, lock.token, name="check"))

    async with app:
        task = await app.submit("work")
        assert await drain(app) == []
        assert (await task.get()).result is True


async def test_a_check_takes_no_lock_and_finds_a_block_that_is_gone() -> None:
    """The dry run of a task inside a block, of one that waits for the lock, and of a journal to its end."""
    versions: list[Any] = []

    async def before(ctx: Any) -> None:
        async with ctx.lock("deploy") as lock:
            await ctx.step(int, lock.token)
            await ctx.signal("go")

    async def after(ctx: Any) -> None:
        await ctx.step(int, 1)
        await ctx.signal("go")

    async def work(ctx: Any) -> None:
        await versions[-1](ctx)

    versions.append(before)
    app = with_task(work)
    async with app:
        first, second = await app.submit("work"), await app.submit("work")
        await drain(app)
        rows = await app.store.locks.list(None, 10)
        assert {finding.verdict for finding in await app.check()} == {Verdict.FINE}
        versions.append(after)
        assert {finding.verdict for finding in await app.check()} == {Verdict.PARKS}
        versions.append(before)
        assert await app.store.locks.list(None, 10) == rows, "a dry run takes nothing"
        for task in (first, second):
            await app.signal(task.id, "go")
        assert await drain(app) == []
        assert (await app.replay(first.id)).agrees
        assert await app.store.locks.list(None, 10) == []


# ── real workers, both stores ────────────────────────────────────────────────────────────────────────────────────────


async def test_on_every_store_workers_take_turns(url: str) -> None:
    resource = Resource()
    app = Onward(url, poll_s=0.05)
    app.task(name="work", retry=1)(deploying(resource))
    async with app, app.worker(slots=8):
        tasks = [await app.submit("work") for _ in range(12)]
        assert [await task.result(30) for task in tasks] == ["done"] * 12
        assert resource.refused == []
        assert len(resource.order) == 24
        assert all(first == second for first, second in zip(resource.order[::2], resource.order[1::2], strict=True))
        await eventually(lambda: _no_locks(app))


async def _no_locks(app: Onward) -> bool:
    return await app.store.locks.list(None, 10) == []


# ── the planted fault ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_planted_fault_a_token_per_holder_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that uses the token of its first shift again lets a frozen worker write beside its successor."""
    enter = LockBlock._enter

    async def token_per_holder(self: LockBlock, known: Any) -> int:
        if known is not None and "token" in known.data:
            return int(known.data["token"])
        return await enter(self, known)

    monkeypatch.setattr(LockBlock, "_enter", token_per_holder)
    with pytest.raises(AssertionError):
        await test_a_new_shift_in_the_block_has_a_new_token()
