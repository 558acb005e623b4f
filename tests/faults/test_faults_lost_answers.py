"""The connection breaks between COMMIT and its answer: the database has committed, and the client gets no answer.

The tests lose the answer of each statement of Onward in turn. A repeated request takes effect once. No step runs
twice, no attempt is burned, and no task stays with a worker that does not know that it holds it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from onward import Onward
from onward.errors import StoreUnavailable
from onward.service.submission import SubmitRequest
from rig.proxy import Proxy
from tests.faults.band import Client, Place, until
from tests.faults.crew import Act
from tests.faults.statements import PARTS
from tests.kit import row

pytestmark = pytest.mark.slow

WORK = [verb for verb in PARTS if verb not in {"cancel", "resume", "join", "leave"}]
"""The statements of a worker that runs tasks; the others have tests of their own."""

STORY: list[Act] = [
    {"act": "step", "name": "a", "ms": 20},
    {"act": "trip", "times": 1},  # a second shift, which has to read the journal
    {"act": "flaky", "name": "b", "ms": 5, "times": 1},
    {"act": "thread", "name": "c", "ms": 20},
]


@pytest.fixture
def proxy(postgres_place: Place) -> Iterator[Proxy]:
    assert postgres_place.server is not None
    with Proxy("127.0.0.1", postgres_place.server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied_place(postgres_place: Place, proxy: Proxy) -> Place:
    """The same database through the proxy."""
    return Place("postgres", proxy.url_for(postgres_place.url), postgres_place.home, postgres_place.server)


@pytest.fixture
async def app(proxied_place: Place) -> AsyncIterator[Onward]:
    async with proxied_place.app(lease_s=2.0, heartbeat_s=0.2, poll_s=0.1) as app:
        yield app


@pytest.mark.parametrize("verb", WORK)
async def test_the_answer_of_a_statement_is_lost(
    app: Onward, proxied_place: Place, proxy: Proxy, verb: str, prove: bool, print_proof: Callable[..., None]
) -> None:
    client = Client(app, random.Random(6))
    lost = 0
    async with app.worker(slots=5) as worker:
        name = worker.id
        for _ in range(10 if prove else 2):
            proxy.cut_after_commit(1, matching=PARTS[verb], any=True)
            if verb in {"rescue", "workers"}:  # a dead worker, so that there is a task to rescue
                await app.store.workers.join(row(f"dead{lost}"), -1.0)
            await client.submit(STORY)
            await client.submit(STORY)
            for task_id in client.acked:
                await app.handle(task_id).result(timeout=60)
            for _ in range(1000):
                if proxy.fired > lost:
                    break
                await asyncio.sleep(0.01)
            proxy.disarm()
            lost = proxy.fired
        assert worker.id == name, "it was taken for dead"
    verdict = await proxied_place.judge(client.acked)
    print_proof(f"answer lost ({verb})", f"{lost} times", verdict)
    verdict.must_be_clean()
    assert lost, "VOID: no answer was lost"
    assert len(proxied_place.look().tasks) == len(client.acked), "a submit that was sent again made a second task"


async def test_the_answer_of_a_submit_of_many_is_lost(app: Onward, proxied_place: Place, proxy: Proxy) -> None:
    requests = [SubmitRequest("story", {"acts": STORY}, key=f"k{number}") for number in range(20)]
    proxy.cut_after_commit(1, matching=PARTS["submit"], any=True)
    with pytest.raises(StoreUnavailable):
        await app.service.submit(requests)
    ids = await app.service.submit(requests)
    assert proxy.fired == 1
    assert proxied_place.look().tasks == set(ids)


async def test_the_answer_of_a_cancel_is_lost(app: Onward, proxied_place: Place, proxy: Proxy) -> None:
    async with app.worker(slots=5):
        task_id = await Client(app, random.Random(7)).submit([{"act": "step", "name": "long", "ms": 60_000}])
        await until(proxied_place.ledger.read)
        proxy.cut_after_commit(1, matching=PARTS["cancel"])
        with pytest.raises(StoreUnavailable):
            await app.cancel(task_id)
        assert proxy.fired == 1
        assert (await app.cancel(task_id)).state == "cancelled"
        picture = proxied_place.look()
        assert [row.kind for row in picture.journals[task_id]][-2:] == ["cancel.requested", "task.cancelled"]
        assert not picture.queue


async def test_the_answer_of_a_resume_is_lost(app: Onward, proxied_place: Place, proxy: Proxy) -> None:
    client = Client(app, random.Random(8))
    async with app.worker(slots=5):
        task_id = await client.submit([{"act": "trip", "times": 1}], task="once")
        await app.service.wait(task_id, 10)
        proxy.cut_after_commit(1, matching=PARTS["resume"])
        with pytest.raises(StoreUnavailable):
            await app.resume(task_id)
        assert proxy.fired == 1
        await app.service.wait(task_id, 10)
    assert [row.kind for row in proxied_place.look().journals[task_id]].count("task.resumed") == 1


async def test_the_answers_of_joining_and_leaving_are_lost(app: Onward, proxied_place: Place, proxy: Proxy) -> None:
    """A worker that does not know whether it has joined does not start; its row ends with its lease."""
    client = Client(app, random.Random(9))
    proxy.cut_after_commit(1, matching=PARTS["join"])
    with pytest.raises(StoreUnavailable):
        async with app.worker():
            pass
    async with app.worker(slots=5):
        task_id = await client.submit(STORY)
        await app.handle(task_id).result(timeout=60)
        proxy.cut_after_commit(1, matching=PARTS["leave"])
    assert proxy.fired == 2
    (await proxied_place.judge(client.acked)).must_be_clean()
