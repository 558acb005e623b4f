"""The mirror of tasks on Temporal: readers use a database, and it has what Temporal has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from onward import Budget, Onward, State
from onward.agent.models.scripted import ScriptedModel
from onward.core.record import Record
from onward.engines.copy import TaskCopy
from onward.errors import KeyConflict, UsageError
from onward.store.shared.minutes import Minute
from rig.postgres import Postgres
from rig.temporal import Temporal
from tests.engines.kit import Foreign, differences
from tests.kit import running

SETTINGS: dict[str, Any] = {"lease_s": 5.0, "heartbeat_s": 0.5}


@pytest.fixture(autouse=True)
def _plain(plain_payloads: None) -> None:
    """Encryption is refused on Temporal."""


@pytest.fixture
async def engine(temporal: Temporal, mirror_db: str, request: pytest.FixtureRequest) -> AsyncIterator[Foreign]:
    engine = Foreign(Onward(mirror_db, engine=f"{temporal.url}?queue={request.node.name}", **SETTINGS))
    async with engine.app:
        yield engine
        await engine.stop()


def add_handlers(app: Onward) -> Any:
    """A handler with each way through the workflow."""

    @app.task
    async def child(ctx: Any) -> str:
        return await ctx.step(lambda: "child", name="only")

    @app.task(retry=1)
    async def work(ctx: Any, way: str) -> Any:
        await ctx.step(lambda: way, name="first")
        if way == "fail":
            raise ValueError("no")
        if way == "child":
            return await (await ctx.submit(child))
        if way == "approve":
            await ctx.approve("Ship it?")
        if way in {"signal", "cancel"}:
            return await ctx.signal("go")
        return await ctx.step(lambda: "done", name="last")

    return work


@pytest.mark.slow
async def test_a_budget_is_read_without_a_worker_and_raised(engine: Foreign, caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> str:
        """Look around."""
        return "nothing new"

    script: Any = [[("look", {})], [("look", {})], "done"]
    agent = engine.app.agent("devops", model=ScriptedModel(script), tools=[look], budget=Budget(max_steps=2))
    handle = await engine.submit(agent, "go")
    await engine.waiting(handle, "budget")

    async def spent() -> bool:
        return (await engine.app.budget(handle.id)).waiting == (handle.id,)

    await engine.until(spent)
    await engine.stop()
    assert (await engine.app.budget(handle.id)).ledger.spent.steps == 2
    assert "no worker of" not in caplog.text, "it asked none"
    await engine.start()
    assert (await engine.app.raise_budget(handle.id, max_steps=3)).ledger.budget.max_steps == 3
    assert (await engine.app.budget(handle.id)).ledger.budget.max_steps == 3
    assert (await engine.ended(handle)).result == "done"
    assert await differences(engine.app, handle.id) == []


@pytest.mark.slow
async def test_readers_need_no_worker(engine: Foreign) -> None:
    app, work = engine.app, add_handlers(engine.app)
    ways = ("steps", "fail", "child", "approve", "signal", "cancel")
    handles = {way: await engine.submit(work, way, labels={"way": way}) for way in ways}
    assert {(await handle.get()).state for handle in handles.values()} <= set(State), "a submit writes the task at once"
    for way in ("steps", "fail", "child"):
        await engine.ended(handles[way])
    await engine.waiting(handles["signal"], "signal")
    await engine.waiting(handles["cancel"], "signal")
    await app.cancel(handles["cancel"].id)
    (approval,) = await engine.until(app.asks)
    (failed,), _ = await app.list(state=State.FAILED)
    assert failed.task_id == handles["fail"].id

    async def mirrored() -> bool:
        tasks, _ = await app.list(limit=100)
        return [await differences(app, task.task_id) for task in tasks] == [[]] * 7

    await engine.until(mirrored)
    assert [worker.names for worker in await app.store.workers.list()] == [("child", "work")]
    await engine.stop()

    tasks, _ = await app.list(limit=100)
    assert {task.labels["way"]: task.state for task in tasks if task.labels} == {
        "steps": State.COMPLETED,
        "fail": State.FAILED,
        "child": State.COMPLETED,
        "approve": State.WAITING,
        "signal": State.WAITING,
        "cancel": State.CANCELLED,
    }
    assert [record.kind async for record in handles["child"].tail()][-1] == "task.completed"
    assert await handles["steps"].result(1) == "done"
    assert await app.store.workers.list() == []

    await engine.start()
    await app.decide(approval.id, "approve", by="Ada")
    assert await handles["approve"].result(60) == "done"
    assert [entry.action for entry in await app.audit()] == ["approve"]
    await app.signal(handles["signal"].id, "go", 7)
    assert await handles["signal"].result(60) == 7


@pytest.mark.slow
async def test_followers_and_subscribers_hear_of_mirrored_records(engine: Foreign) -> None:
    app, ended = engine.app, asyncio.Event()
    heard: list[tuple[str, str]] = []

    @app.on("task.completed")
    async def listen(event: Any) -> None:
        heard.append((event.type, event.task_id))
        ended.set()

    work = add_handlers(app)
    news = asyncio.Event()
    stop = app.store.tails.follow(news.set)
    handle = await engine.submit(work, "signal")
    seen = [record.kind async for record in _tail_until_waiting(handle)]
    assert seen[0] == "task.submitted"
    assert news.is_set()
    await app.signal(handle.id, "go")
    await handle.result(60)
    await asyncio.wait_for(ended.wait(), 60)
    assert heard == [("task.completed", handle.id)]
    stop()


async def _tail_until_waiting(handle: Any) -> AsyncIterator[Any]:
    async for record in handle.tail():
        yield record
        if record.kind == "signal.awaited":
            return


@pytest.mark.slow
async def test_a_failed_task_is_resumed(engine: Foreign) -> None:
    app, good = engine.app, []

    @app.task(retry=1)
    async def work(ctx: Any) -> str:
        await ctx.step(lambda: 1, name="first")
        if not good:
            raise ValueError("not yet")
        return "good"

    handle = await engine.submit(work)
    assert (await engine.ended(handle)).state is State.FAILED
    good.append(1)
    await app.resume(handle.id)
    assert await handle.result(60) == "good"
    await engine.until(lambda: _equal(app, handle.id))


@pytest.mark.slow
async def test_a_key_counts_while_the_mirror_has_its_task(engine: Foreign) -> None:
    """Temporal deletes workflows after its retention. The same key is then the task that the mirror has, and no second one."""
    app, work = engine.app, add_handlers(engine.app)
    key = f"{app.settings.engine} {app.settings.db}"
    handle = await engine.submit(work, "steps", key=key)
    await engine.ended(handle)
    assert app._temporal is not None
    temporal = app._temporal
    client = await temporal.client()

    async def deleted() -> bool:
        execution = WorkflowExecution(workflow_id=handle.id)
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
        try:
            await client.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return False

    await engine.until(deleted)
    assert (await app.submit(work, "steps", key=key)).id == handle.id
    assert await temporal._view(handle.id, 0, 0) is None
    with pytest.raises(KeyConflict):
        await app.submit(work, "other", key=key)


async def _equal(app: Onward, task_id: str) -> bool:
    return not await differences(app, task_id)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that the test kills."""
    with running(Postgres()) as server:
        yield server


@pytest.mark.slow
@pytest.mark.postgres
async def test_a_mirror_that_is_away_delays_no_step(temporal: Temporal, own_postgres: Postgres) -> None:
    db = own_postgres.database("mirror")
    url = f"{temporal.url}?queue=away"
    engine, steps = Foreign(Onward(db, engine=url, **SETTINGS)), []

    @engine.app.task
    async def work(ctx: Any) -> str:
        for number in range(10):
            steps.append(await ctx.step(lambda number=number: number, name=f"step {number}"))
            await ctx.sleep(0.01)
        return "done"

    async with engine.app:
        handle = await engine.submit(work, delay=1)
        await asyncio.to_thread(own_postgres.kill)

        async def all_done() -> bool:
            return steps[-1:] == [9]

        await engine.until(all_done)
        await asyncio.to_thread(own_postgres.start)
        assert await handle.result(60) == "done"
        await engine.until(lambda: _equal(engine.app, handle.id))
        await engine.stop()


async def test_a_database_belongs_to_one_engine(mirror_db: str) -> None:
    """No server is needed: an own app opens no mirror, and an app on Temporal no database with own tasks."""
    engine = "temporal://localhost:7233/default?queue=one"
    async with Onward(mirror_db, engine=engine):
        pass
    async with Onward(mirror_db, engine=engine):
        pass
    with pytest.raises(UsageError, match="is the mirror of tasks on another engine; give engine="):
        await Onward(mirror_db).open()


async def test_a_database_with_own_tasks_is_no_mirror(mirror_db: str) -> None:
    app = Onward(mirror_db)
    app.task(_nothing)
    async with app:
        await app.submit("_nothing")
    with pytest.raises(UsageError, match="has tasks of Onward's own engine; a mirror needs a database of its own"):
        await Onward(mirror_db, engine="temporal://localhost").open()


async def _nothing(ctx: Any) -> None: ...


async def test_a_mirror_takes_no_older_state(mirror_db: str) -> None:
    """A process that stands still between its read and its write does not undo what another has written since."""
    app = Onward(mirror_db, engine="temporal://localhost")
    engine = app._temporal
    assert engine is not None
    async with app:
        new = _copy(1, "", "queued")
        older, newer = _copy(2, "", "running", worker="w"), _copy(3, "completed", "")
        for state in (new, newer, older):
            await engine.copier.write(state, {})
        task = await app.get(new.id)
        assert (task.state, task.result) == (State.COMPLETED, 3)
        records = await app.service.journal(new.id)
        assert [record.seq for record in records] == [1, 2, 3]


async def test_an_end_counts_once_in_the_charts_of_the_mirror(mirror_db: str) -> None:
    """Several processes copy the same end."""
    app = Onward(mirror_db, engine="temporal://localhost")
    engine = app._temporal
    assert engine is not None
    async with app:
        for state in (_copy(1, "", "queued"), _copy(3, "completed", ""), _copy(3, "completed", "")):
            await engine.copier.write(state, {})
        (minute,) = await app.store.minutes.since(0)
        assert minute == Minute(0, completed=1, seconds=2.0, slowest=2.0, cost=0.5)


def _copy(head: int, state: str, reason: str, worker: str | None = None) -> Any:
    kinds = ["task.submitted", "shift.started", "task.completed"]
    records = [
        Record(n, 0, kinds[n - 1], "", b'{"usage":{"cost_usd":0.5},"result":3}' if n == 3 else b"{}", float(n))
        for n in range(1, head + 1)
    ]
    return TaskCopy(
        id="0" * 26,
        task="work",
        input=b"null",
        options=b"{}",
        queue="default",
        priority=0,
        key=None,
        fingerprint="",
        parent=None,
        group=None,
        tenant=None,
        created_at=1.0,
        attempt=1,
        state=state,
        reason=reason,
        due_at=None,
        worker=worker,
        records=records,
        inbox=[],
        head=head,
        messages=0,
    )
