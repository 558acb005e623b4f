"""The slots of a worker that one tenant may hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Limit, Onward
from onward.core.caller import SCOPES, Caller
from onward.engine.worker.shares import TenantShares
from onward.server.access.service import AuthorizedService
from onward.service.submission import SubmitRequest
from tests.kit import eventually, not_memory

HOSTILE, OTHER = "evil", "good"


async def _half(tenant: str | None, slots: int) -> int:
    return slots if tenant == "large" else slots // 2


async def test_a_claim_is_bounded_by_the_slots_that_each_tenant_has_left() -> None:
    shares = TenantShares(10, _half)
    assert await shares.bound(10) == (5, []), "all could be tasks of one tenant"
    for _ in range(3):
        shares.take(HOSTILE)
    shares.take(None)
    assert await shares.bound(6) == (2, [])
    for _ in range(2):
        shares.take(HOSTILE)
    assert await shares.bound(4) == (4, [HOSTILE])
    assert shares.free(None) is False
    assert shares.free(HOSTILE) is True, "claims passed it over, so the worker claims again"
    assert await shares.bound(5) == (1, [])
    for _ in range(6):
        shares.take("large")
    assert await shares.bound(2) == (1, [])


def _service(app: Onward, tenant: str) -> AuthorizedService:
    return AuthorizedService(app.service, Caller(tenant, frozenset(SCOPES), tenant, tenant))


@not_memory
@pytest.mark.parametrize("limit", [None, Limit(concurrency=1, rate="1/h")], ids=["no limit", "a limit for each group"])
async def test_long_tasks_of_one_tenant_leave_slots_for_the_others(url: str, limit: Limit | None) -> None:
    """A tenant that names ever new groups passes a limit for each group. The quota of slots bounds all of its groups together."""
    app, gate, running = Onward(url, quota_running=50), asyncio.Event(), set[int]()

    @app.task(limit=limit)
    async def long(ctx: Any, number: int) -> int:
        running.add(number)
        await gate.wait()
        return number

    @app.task
    async def short(ctx: Any) -> str:
        return "done"

    async with app:
        evil, good = _service(app, HOSTILE), _service(app, OTHER)
        ids = await evil.submit([SubmitRequest("long", n, queue=f"q{n % 3}", group=f"g{n}") for n in range(8)])
        async with app.worker(slots=4):

            async def two_run() -> bool:
                return len(running) == 2

            await eventually(two_run)
            for _ in range(3):
                (task_id,) = await good.submit([SubmitRequest("short")])
                assert (await app.service.wait(task_id, 60)).result == "done"
            assert len(running) == 2
            gate.set()
            for task_id in ids:
                await app.service.wait(task_id, 60)
        assert running == set(range(8))


@not_memory
async def test_a_worker_claims_from_a_nudged_queue_before_many_others(url: str) -> None:
    app, gate = Onward(url, quota_queues=0), asyncio.Event()
    order: list[str] = []

    @app.task
    async def work(ctx: Any, name: str) -> None:
        order.append(name)
        await gate.wait()

    async with app:
        async with app.worker(slots=10) as worker:
            claim, named = app.store.claim, list[str]()

            async def slow_claim(me: str, queue: str, *args: Any, **options: Any) -> Any:
                named.append(queue)
                if len(named) == 2:
                    await app.submit("work", "urgent", queue="urgent")
                    worker._claiming.wake("urgent")
                return await claim(me, queue, *args, **options)

            app.store.claim = slow_claim  # type: ignore[method-assign]
            worker._claiming._learn_queues([f"q{n}" for n in range(30)])
            worker._claiming.wake()

            async def begun() -> bool:
                return "urgent" in order

            await eventually(begun)
            assert named.index("urgent") == 2
            gate.set()

            async def forgotten() -> bool:
                return len(worker._claiming._known) <= 2

            await eventually(forgotten)
