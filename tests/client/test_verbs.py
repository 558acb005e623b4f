"""Every verb of both clients, against a real server, on every store: the same names, dataclasses and errors as the app's."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import time
from typing import Any

import pytest

from onward import Budget, Client, Onward, State, SyncClient, tool
from onward.agent.models.scripted import ScriptedModel
from onward.client.sending import BaseClient
from onward.client.verbs import Verbs
from onward.core.task import Task
from onward.errors import (
    AlreadyDecided,
    ArtifactNotFound,
    BadSetting,
    Fatal,
    Forbidden,
    InvalidInput,
    KeyConflict,
    NoState,
    NotFound,
    OnwardError,
    QueueFull,
    ResultTimeout,
    StaleDecision,
    StateConflict,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    Unauthorized,
    UnknownTask,
    Unreachable,
    UsageError,
)
from onward.service import queue_room
from tests.client.conftest import listed
from tests.server.conftest import serving


def same(left: Task, right: Task) -> bool:
    """Whether two tasks are the same, except for fractions of a millisecond."""
    seen, expected = dataclasses.asdict(left), dataclasses.asdict(right)
    times = {name for name in seen if name.endswith("_at") and seen[name] is not None}
    assert all(abs(seen[name] - expected[name]) < 0.002 for name in times)
    return all(seen[name] == expected[name] for name in seen.keys() - times)


async def opened(client: Any, kind: str) -> Any:
    for _ in range(500):
        if asks := await client.asks(kind):
            return asks[0]
        await asyncio.sleep(0.01)
    raise AssertionError(f"no {kind}")


async def test_a_task_from_submit_to_result(app: Onward, client: Any) -> None:
    @app.task
    async def greet(ctx: Any, name: str) -> str:
        return await ctx.step(lambda: f"hello {name}", name="say")

    async with app.worker():
        task = await client.submit("greet", "you", priority=3, labels={"a": "b"}, deadline="1m", expires="1h")
        assert await task.result(timeout="20s") == "hello you"
    read = await client.get(task.id)
    assert same(read, await app.get(task.id))
    assert (read.state, read.priority, read.labels) == (State.COMPLETED, 3, {"a": "b"})
    assert read.key is not None
    assert same(await task.get(), read)
    records = await app.service.journal(task.id)
    assert [(record.seq, record.kind, record.value) for record in await client.journal(task.id)] == [
        (record.seq, record.kind, record.value) for record in records
    ]
    assert [record.seq for record in await client.journal(task.id, 1, 1)] == [2]
    assert [record.seq for record in await listed(client.tail(task.id))] == [record.seq for record in records]
    assert [record.seq for record in await listed(task.tail(after=2))] == [record.seq for record in records[2:]]
    assert await listed(client.tail(task.id, after=1000)) == []


async def test_progress(app: Onward, client: Any) -> None:
    @app.task
    async def work(ctx: Any) -> str:
        ctx.progress("begins", 1, 2)
        await ctx.step(lambda: 7, name="count")
        await ctx.approve("go on?")
        return "done"

    task = await client.submit("work")
    following = asyncio.ensure_future(listed(task.follow()))
    async with app.worker():
        approval = await opened(client, "approval")
        await client.decide(approval.id, "approve")
        updates = await following
    assert {update.task_id for update in updates} == {task.id}
    assert [update.seq for update in updates] == sorted({update.seq for update in updates})
    assert ("thinking", "begins", 1, 2) in [
        (update.status, update.message, update.step, update.total_step) for update in updates
    ]
    assert [update.tool for update in updates if update.status == "tool_result"] == ["count"]
    assert [update.ask for update in updates if update.ask] == [approval.id]
    assert updates[-1].status == "completed"
    assert await listed(client.follow(task.id, after=updates[2].seq)) == updates[3:]
    assert await listed(client.follow(task.id, after=updates[-1].seq + 5)) == [], "it ends there too"
    own = await listed(task.follow(only="progress"))
    assert [(update.status, update.message) for update in own] == [("thinking", "begins"), ("completed", "")]
    with pytest.raises(TaskNotFound):
        await listed(client.follow("nothing"))


async def test_any_key_gives_the_same_task_again(app: Onward, client: Any) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    for key in ("k", 'quo"ted', "back\\slash", '"', "schlüssel ключ 鍵", "a, b; c"):
        task = await client.submit("work", 1, key=key)
        assert (await client.submit("work", 1, key=key)).id == task.id
        assert (await app.submit(work, 1, key=key)).id == task.id, "the same at every door"
        with pytest.raises(KeyConflict) as caught:
            await client.submit("work", 2, key=key)
        assert (caught.value.task_id, caught.value.key, caught.value.status) == (task.id, key, 422)
    with pytest.raises(UsageError):
        await client.submit("work", 1, key="line\nbreak")
    assert (await client.submit("work", 1)).id != (await client.submit("work", 1)).id


async def test_pages_and_all_of_them(app: Onward, client: Any) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    ids = sorted([task.id for task in await app.submit_many(work, list(range(7)))], reverse=True)
    page, cursor = await client.list(limit=3)
    more, end = await client.list(limit=100, cursor=cursor)
    assert [task.task_id for task in (*page, *more)] == ids
    assert end is None
    assert [task.task_id for task in await listed(client.tasks(state="pending", task="work"))] == ids
    assert await listed(client.tasks(state=State.FAILED)) == []
    with pytest.raises(OnwardError) as caught:
        await client.list(limit=0)
    assert (caught.value.code, caught.value.status) == ("invalid_request", 422)


async def test_the_same_errors(app: Onward, client: Any) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> int:
        raise Fatal("no")

    @app.task
    async def stays(ctx: Any) -> None:
        await ctx.signal("never")

    for wrong in ("nothing", "", "..", "a/b", "a?b#c", "ü"):
        with pytest.raises(NotFound) if "/" not in wrong else pytest.raises(OnwardError):
            await client.get(wrong)
    with pytest.raises(TaskNotFound) as missing:
        await client.result("nothing", 1)
    assert missing.value.task_id == "nothing"
    assert "there is no task 'nothing'" in str(missing.value)
    with pytest.raises(TaskNotFound):
        await listed(client.tail("nothing"))
    with pytest.raises(UnknownTask):
        await client.submit("nothing")
    with pytest.raises(InvalidInput):
        await client.submit("work", "text")
    with pytest.raises(InvalidInput):
        await client.submit("work", float("nan"))
    with pytest.raises(BadSetting):
        await client.submit("work", 1, deadline="soon")
    with pytest.raises(BadSetting):
        await client.asks("rumour")
    async with app.worker():
        failed = await client.submit("work", 1)
        with pytest.raises(TaskFailed) as caught:
            await failed.result(60)
        assert "no" in caught.value.error["message"]
        waits = await client.submit("stays")
        with pytest.raises(ResultTimeout):
            await waits.result(0.3)
        with pytest.raises(NoState):
            await client.state(waits.id)
        assert (await waits.cancel()).state is State.CANCELLED
        with pytest.raises(TaskCancelled):
            await waits.result(60)
    with pytest.raises(StateConflict) as conflict:
        await client.prioritize(waits.id, 3)
    assert conflict.value.state == "cancelled"
    with pytest.raises(ArtifactNotFound):
        await client.artifact(waits.id, "0" * 32)


async def test_an_ended_task_is_pruned(app: Onward, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def work(ctx: Any) -> None: ...

    task = await client.submit("work")
    with pytest.raises(StateConflict, match="cancel it first"):
        await client.prune(task.id)
    await task.cancel()
    monkeypatch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)
    assert await client.prune(task.id) == 1
    with pytest.raises(TaskNotFound):
        await client.get(task.id)


async def test_steering(app: Onward, client: Any) -> None:
    @app.task
    async def work(ctx: Any) -> Any:
        return await ctx.signal("go")

    task = await client.submit("work", delay="1h")
    assert (await client.prioritize(task.id, 9)).priority == 9
    assert (await client.pause(task.id)).reason == "paused"
    assert (await client.resume(task.id)).state is State.PENDING
    waits = await client.submit("work")
    async with app.worker():
        await client.signal(waits.id, "go", {"n": 1}, id="once")
        assert await waits.result(60) == {"n": 1}
        forked = await client.fork(waits.id, 1)
        await client.signal(forked.id, "go", 2)
        assert await forked.result(60) == 2
        assert forked.id != waits.id


async def test_people_decide_once(app: Onward, client: Any) -> None:
    @app.task
    async def work(ctx: Any) -> str:
        await ctx.approve("go on?", risk="external_action")
        return str(await ctx.ask("how?", choices=["fast", "slow"]))

    async with app.worker():
        task = await client.submit("work")
        approval = await opened(client, "approval")
        (ask,) = await app.asks()
        assert dataclasses.replace(approval, asked_at=ask.asked_at) == ask
        assert await client.approvals() == [approval]
        assert await client.questions() == []
        with pytest.raises(StaleDecision) as stale:
            await client.decide(approval.id, "approve", hash="other")
        assert stale.value.asked == approval.hash
        await client.decide(approval.id, "approve", reason="why not", hash=approval.hash)
        with pytest.raises(AlreadyDecided) as late:
            await client.decide(approval.id, "deny")
        assert late.value.said == "approve"
        question = await opened(client, "question")
        with pytest.raises(InvalidInput):
            await client.answer(question.id, "how")
        await client.answer(question.id, "slow")
        assert await task.result(60) == "slow"
    assert await client.asks() == []


async def test_the_cluster(app: Onward, client: Any) -> None:
    @app.task
    async def work(ctx: Any) -> Any:
        return await ctx.signal("message")

    first = await client.submit("work", labels={"team": "a"}, queue="gpu", key="first")
    before = time.time()
    assert (await client.pause_queue("gpu")).paused
    second = await client.submit("work", queue="gpu", delay="1h")
    (queue,), (seen,) = await app.queues(), await client.queues()
    assert dataclasses.replace(seen, oldest_s=queue.oldest_s) == queue
    assert (seen.name, seen.waiting, seen.paused) == ("gpu", 2, True)
    assert [task.task_id for task in await listed(client.tasks(labels={"team": "a"}))] == [first.id]
    assert [task.task_id for task in await listed(client.tasks(reason="delayed"))] == [second.id]
    assert [task.task_id for task in await listed(client.tasks(key="first"))] == [first.id]
    later = datetime.datetime.fromtimestamp(before + 60, datetime.UTC)
    assert await listed(client.tasks(created_after=later)) == []
    assert len(await listed(client.tasks(created_before=later, created_after=before - 60))) == 2
    assert await client.list(labels={"team": "a", "more": "b"}) == ([], None)
    assert [task.task_id for task in (await client.list(labels={"team": ["a", "b"]}, text="WORK"))[0]] == [first.id]
    assert await client.count(state=["pending", "running"], labels={"team": "a"}) == (1, False)
    acted = await client.act("priority", 1, priority=5, task="work", labels={"team": "a"})
    assert (acted.matched, acted.done, acted.refused) == (1, 1, ())
    assert (await client.get(first.id)).priority == 5
    async with app.worker():
        await client.message(first.id, "hurry", id="m1")
        await client.message(first.id, "hurry", id="m1")
        assert not (await client.unpause_queue("gpu")).paused
        assert await first.result(60) == "hurry"
        (worker,) = await client.workers()
        assert (worker.alive, worker.handlers) == (True, ("work",))
        stats, read = await app.stats(), await client.stats()
        assert dataclasses.replace(read, rate=stats.rate) == stats
        assert stats.states["completed"] == 1


async def test_events_on_their_way_out(url: str, either: Any) -> None:
    app = Onward(url, webhook_secret=f"whsec_{base64.b64encode(bytes(32)).decode()}")

    @app.task
    async def work(ctx: Any) -> str:
        return "done"

    async with app, serving(app) as address:
        client = either(address)
        # No worker runs, so no relay sends the event, and it stays visible.
        task = await client.submit("work", webhook="https://hooks.example.com/hook", delay="1h")
        assert await client.deliveries(task=task.id) == ([], None)
        await task.cancel()
        (delivery,), _ = await app.deliveries(task=task.id)
        (seen,), end = await client.deliveries(state="pending", task=task.id)
        assert dataclasses.replace(seen, at=delivery.at, due_at=delivery.due_at) == delivery
        assert end is None
        assert (await client.redeliver(seen.id)).id == seen.id
        with pytest.raises(NotFound):
            await client.redeliver("nothing")
        with pytest.raises(UsageError) as caught:
            await client.submit("work", webhook="https://127.0.0.1/hook")
        assert (caught.value.code, caught.value.status) == ("bad_webhook", 422)


async def test_a_key_allows_its_scopes_only(app: Onward, either: Any) -> None:
    @app.task
    async def work(ctx: Any) -> None: ...

    made = await app.keys.create("look", scopes=["read"])
    async with serving(app) as address:
        with pytest.raises(Unauthorized):
            await either(address).list()
        with pytest.raises(Unauthorized):
            await either(address, key="onw_wrong").list()
        client = either(address, key=made.token)
        assert await client.list() == ([], None)
        with pytest.raises(Forbidden) as caught:
            await client.submit("work")
        assert caught.value.scope == "submit"
        other = either(address, key=(await app.keys.create("other", scopes=["admin"], tenant="acme")).token)
        with pytest.raises(Forbidden) as shut:
            await other.pause_queue("default")
        assert shut.value.code == "not_for_tenants", "a code that clients need not know"


async def test_effects_in_doubt_and_schedules(app: Onward, client: Any) -> None:
    @app.task
    async def work(ctx: Any) -> None: ...

    app.schedule("nightly", work, cron="0 3 * * *", timezone="Europe/Berlin")
    await app.save_schedules()
    (schedule,), (seen,) = await app.schedules(), await client.schedules()
    assert dataclasses.replace(seen, next_at=schedule.next_at) == schedule
    task = await client.submit("work")
    assert await client.doubts(task.id) == []
    with pytest.raises(StateConflict):
        await client.resolve(task.id, "happened", 1)


async def test_an_agent_and_its_budget(app: Onward, client: Any) -> None:
    @tool
    def look() -> str:
        """Look around."""
        return "x" * 10_000

    app.agent("scout", model=ScriptedModel([[("look", {})], "seen"]), tools=[look])
    async with app.worker():
        task = await client.submit(
            "scout", "Look.", budget=Budget(max_steps=50, max_wall_time="1h", when_spent="finish")
        )
        assert await task.result(60) == "seen"
    spent, budget = await client.budget(task.id), await app.budget(task.id)
    assert spent.task_id == task.id
    assert {kind: meter for kind, meter in spent.meters.items() if kind != "wall_time"} == {
        kind: meter for kind, meter in budget.meters.items() if kind != "wall_time"
    }
    raised = await client.raise_budget(task.id, max_steps=99, max_wall_time="2h")
    assert (raised.meters["steps"]["limit"], raised.meters["wall_time"]["limit"]) == (99, 7200)
    assert (await app.budget(task.id)).ledger.budget.when_spent == "finish"
    assert await client.state(task.id) == await app.state(task.id)
    refs = await client.artifacts(task.id)
    assert refs == await app.artifacts(task.id)
    for ref in refs:
        assert await client.artifact(task.id, ref.artifact_id) == await app.artifact(task.id, ref.artifact_id)
    on = await client.submit("scout", "And now?", after=task.id)
    assert (await client.get(on.id)).input == {"goal": "And now?", "after": task.id}


@pytest.mark.slow
async def test_a_refused_client_comes_back_after_the_given_time(
    url: str, either: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # without the patch: 30 s, as long as no worker has finished a task
    monkeypatch.setattr(queue_room, "_retry_after", lambda limit, rate: 1.0)
    app = Onward(url, queue_limit=2, poll_s=0.05)

    @app.task
    async def work(ctx: Any, n: int) -> int:
        return n

    async with app, serving(app) as address:
        impatient, patient = either(address, patience=0.5), either(address, patience=60)
        for n in range(2):
            await impatient.submit("work", n)
        with pytest.raises(QueueFull) as full:
            await impatient.submit("work", 2)
        assert (full.value.queue, full.value.limit, full.value.retry_after) == ("default", 2, 1.0)
        coming = asyncio.ensure_future(patient.submit("work", 2))
        await asyncio.sleep(0.1)
        assert not coming.done()
        async with app.worker():
            assert await (await coming).result(60) == 2
        assert len(await listed(patient.tasks(task="work"))) == 3


async def test_a_server_that_does_not_answer(either: Any) -> None:
    client = either("http://127.0.0.1:9", patience=0.3)
    with pytest.raises(Unreachable) as caught:
        await client.submit("work", 1)
    assert caught.value.tries > 1
    assert not caught.value.in_doubt
    assert "http://127.0.0.1:9 was asked" in str(caught.value)


def test_a_key_is_never_shown() -> None:
    with pytest.raises(UsageError, match="no key has") as caught:
        Client("http://localhost", key="onw_sécret\n")
    assert "cret" not in str(caught.value)
    assert "onw_secret" not in repr(vars(SyncClient("http://localhost", key="onw_secret")))


def test_the_verbs_are_those_of_the_app() -> None:
    verbs = {verb for verb in set(dir(Verbs)) - set(dir(BaseClient)) if not verb.startswith("_")}
    own = {"tasks", "approvals", "approval", "questions", "question", "follow"} | {
        *("whoami", "timeline", "record", "turns", "turn", "count", "act"),  # for readers of streams
        *("handlers", "children", "fork_plan", "usage", "system", "drain_queue"),
        *("dead_letter", "redrive_letters", "drop_letters"),  # of the group `dead_letters`
        "result",
        "tail",
        "journal",
    }  # the last are a handle's, the service's
    assert verbs - own <= set(dir(Onward))
    for kind in (Client, SyncClient):
        assert [verb for verb in dir(Verbs) if not verb.startswith("_") and not getattr(kind, verb).__doc__] == []
