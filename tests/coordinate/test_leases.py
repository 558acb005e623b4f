"""`app.lock` and `app.leader`: leases, tokens, waiting and losing, with each coordinator."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward import Onward
from onward.core.lock import Busy, LockRequest, Taken
from onward.errors import BadSetting, CoordinatorUnavailable, LockTimeout, UsageError
from rig import server
from tests.kit import eventually


@pytest.fixture
async def app(url: str, coordinator: str) -> AsyncIterator[Onward]:
    app = Onward(url, coordinator=coordinator, poll_s=0.05)
    async with app:
        yield app


@pytest.fixture
def name() -> str:
    """A name of its own for each test: the servers outlive a test."""
    return f"deploy {uuid.uuid4()}"


async def test_tokens_grow_over_turns(app: Onward, name: str) -> None:
    tokens = []
    for _ in range(3):
        async with app.lock(name) as lock:
            tokens.append(lock.token)
            assert not lock.lost.is_set()
            assert lock.name == name
    assert tokens == sorted(set(tokens))


async def test_one_at_a_time(app: Onward, name: str) -> None:
    inside = 0

    async def turn() -> int:
        nonlocal inside
        async with app.lock(name) as lock:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.005)
            inside -= 1
            return lock.token

    tokens = await asyncio.gather(*[turn() for _ in range(6)])
    assert len(set(tokens)) == 6


async def test_a_lock_that_is_not_free_in_time_names_its_holder(app: Onward, name: str) -> None:
    async with app.lock(name):
        with pytest.raises(LockTimeout, match=r"has it; `onward locks`"):
            async with app.lock(name, timeout=0.05):
                pass
    async with app.lock(name, timeout=5):
        pass


async def test_a_lease_outlives_its_time_because_it_is_renewed(app: Onward, name: str) -> None:
    async with app.lock(name, ttl=1) as lock:
        await asyncio.sleep(1.5)
        assert not lock.lost.is_set()
        with pytest.raises(LockTimeout):
            async with app.lock(name, timeout=0):
                pass


async def test_a_lease_that_is_not_renewed_is_lost(app: Onward, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with app.lock(name, ttl=1) as first:
        block: Any = app.lock(name)
        monkeypatch.setattr(type(block._coordinator), "renew", _no_answer)
        async with asyncio.timeout(5):
            assert await first.lost
        monkeypatch.undo()
        async with app.lock(name, timeout=5) as second:
            assert second.token > first.token


async def _no_answer(*_: object) -> bool:
    raise CoordinatorUnavailable("no answer")


async def test_the_next_leader_leads_when_the_first_is_gone(app: Onward, name: str) -> None:
    order: list[tuple[str, int]] = []
    first_leads = asyncio.Event()

    async def lead(who: str, until: asyncio.Event) -> None:
        async with app.leader(name, ttl=1) as term:
            order.append((who, term.token))
            first_leads.set()
            await until.wait()

    end_first, end_second = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(lead("a", end_first))
    await first_leads.wait()
    second = asyncio.create_task(lead("b", end_second))
    await asyncio.sleep(0.1)
    assert [who for who, _ in order] == ["a"]
    end_first.set()
    await first
    await eventually(lambda: _served(order, 2))
    end_second.set()
    await second
    assert order[1][1] > order[0][1]


async def _served(order: list[tuple[str, int]], count: int) -> bool:
    return len(order) == count


async def test_a_task_and_a_program_share_a_lock(app: Onward, name: str) -> None:
    inside: list[str] = []

    @app.task(name="work", retry=1)
    async def work(ctx: Any) -> int:
        async def enter(fence: int) -> int:
            assert not inside
            return fence

        async with ctx.lock(name) as lock:
            return int(await ctx.step(enter, lock.token))

    async with app.worker(slots=2):
        async with app.lock(name) as lock:
            inside.append("program")
            task = await app.submit("work")
            await eventually(lambda: _reason_is(app, task.id, "lock"))
            inside.clear()
        token = await task.result(20)
        assert token > lock.token
        async with app.lock(name, timeout=10) as after:
            assert after.token > token, "the task has freed it"


async def _reason_is(app: Onward, task_id: str, reason: str) -> bool:
    return (await app.get(task_id)).reason == reason


async def test_the_owner_takes_it_again_and_others_do_not(app: Onward, name: str) -> None:
    block: Any = app.lock(name)
    coordinator, mine = block._coordinator, block._request
    other = LockRequest("", name, "another owner", "another")
    first = await coordinator.take(mine, 10.0)
    second = await coordinator.take(mine, 10.0)
    assert isinstance(first, Taken)
    assert isinstance(second, Taken)
    assert second.token > first.token
    busy = await coordinator.take(other, 10.0)
    assert isinstance(busy, Busy)
    assert busy.holder == mine.label
    assert not await coordinator.renew(mine, first.token, 10.0)
    assert await coordinator.renew(mine, second.token, 10.0)
    assert not await coordinator.renew(other, second.token, 10.0)
    await coordinator.free(other)
    assert await coordinator.renew(mine, second.token, 10.0), "another owner frees nothing"
    await coordinator.free(mine)
    await coordinator.free(mine)
    third = await coordinator.take(other, 10.0)
    assert isinstance(third, Taken)
    assert third.token > second.token


async def test_the_doctor_asks_the_coordinator(app: Onward, coordinator: str) -> None:
    checks = {check.name: check for check in await app.service.health.checks()}
    if coordinator == "store":
        assert "coordinator" not in checks
    else:
        assert checks["coordinator"].fine
        assert coordinator.partition("://")[0] in checks["coordinator"].detail


@pytest.mark.parametrize("scheme", ["redis", "etcd"])
async def test_a_coordinator_that_is_away_is_named(scheme: str) -> None:
    app = Onward("sqlite://:memory:", coordinator=f"{scheme}://127.0.0.1:{server.free_port()}")
    async with app:
        (check,) = await app.locks.checks()
        assert check.fine is False
        assert "does not answer" in check.detail
        with pytest.raises(CoordinatorUnavailable):
            async with app.lock("deploy", timeout=0):
                pass


async def test_wrong_values_are_refused() -> None:
    with pytest.raises(BadSetting, match="coordinator"):
        Onward("sqlite://:memory:", coordinator="zookeeper://x")
    app = Onward("sqlite://:memory:")
    with pytest.raises(UsageError, match="printable"):
        app.lock("")
    with pytest.raises(BadSetting, match="ttl"):
        app.leader("poller", ttl="0s")
