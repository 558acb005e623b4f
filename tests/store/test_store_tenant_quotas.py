"""Quotas of tenants in the tables, and the turns and counts of tasks by tenant."""

from __future__ import annotations

from typing import Any

import pytest

from onward.core.audit import AuditEvent
from onward.core.limit import Limit, LimitRow
from onward.core.task import NewTask
from onward.core.tenant_quota import turn_group, turn_groups
from onward.store.port.core import Store
from onward.store.shared import limits
from tests.kit import claim, completion, join, new, sql, submit

EVENT = AuditEvent("set_quota", "acme", "acme")


def of(tenant: str, group: str | None = None, **over: Any) -> NewTask:
    """A task of a tenant, as a submit makes it."""
    stored = tenant if group is None else f"{tenant}\n{group}"
    return new(tenant=tenant, group=stored, turn_group=turn_group(tenant, group), **over)


async def test_quotas_of_a_tenant_are_kept_until_they_are_reset(store: Store) -> None:
    assert await store.tenant_quotas.all() == {}
    await store.tenant_quotas.set("acme", b'{"requests":1}', EVENT)
    await store.tenant_quotas.set("acme", b'{"requests":2}', EVENT)
    await store.tenant_quotas.set("globex", b"{}", EVENT)
    assert await store.tenant_quotas.all() == {"acme": b'{"requests":2}', "globex": b"{}"}
    assert await store.tenant_quotas.tenants("", 10) == ["acme", "globex"]
    assert await store.tenant_quotas.tenants("", 1) == ["acme"]
    assert await store.tenant_quotas.tenants("acme", 10) == ["globex"]
    await store.tenant_quotas.set("acme", None, EVENT)
    assert await store.tenant_quotas.all() == {"globex": b"{}"}
    assert len(await store.audit.entries(0, 100)) == 4


async def test_tasks_of_a_tenant_are_counted_by_queue_and_not_those_that_are_held(store: Store) -> None:
    await join(store, "w1")
    tasks = [
        of("acme"),
        of("acme", "vip"),
        of("acme", "other", queue="slow", delay=60.0),
        of("globex"),
        new(group="acme"),
    ]
    await submit(store, *tasks)
    assert await store.tenant_quotas.depth(turn_groups("acme")) == {"default": 2, "slow": 1}
    assert await store.tenant_quotas.depth(turn_groups("globex")) == {"default": 1}
    held = await claim(store, "w1", 10)
    assert await store.tenant_quotas.depth(turn_groups("acme")) == {"slow": 1}
    await store.save("w1", completion(held[0]))
    assert await store.tenant_quotas.depth(turn_groups("nobody")) == {}


async def test_forks_and_reopened_tasks_belong_to_the_turns_of_their_tenant(store: Store) -> None:
    from onward.core.task import State

    await join(store, "w1")
    await submit(store, task := of("acme", "vip"))
    (held,) = await claim(store)
    await store.save("w1", completion(held, state=State.FAILED))
    assert await store.resume(task.id)
    await store.fork("fork", task.id, 1, input=b"1", inbox=0)
    assert await sql(store, "SELECT turn_group FROM onward_queue") == [("acme",), ("acme",)]


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_tenant_gets_few_turns_however_many_groups_it_names(store: Store, at_once: bool) -> None:
    await join(store, "w1")
    hostile = [of("evil", f"group {n}") for n in range(100)]
    if at_once:
        await submit(store, *hostile)
    else:
        for task in hostile:
            await submit(store, task)
    others = [of("good") for _ in range(3)]
    for task in others:
        await submit(store, task)
    order = [task.id for task in await claim(store, room=103)]
    for number, task in enumerate(others):
        assert order.index(task.id) <= 4 * (number + 1) + number, "four turns of the one for each of the other"


async def test_a_tenant_and_a_group_of_the_same_name_have_turns_of_their_own(store: Store) -> None:
    await join(store, "w1")
    await submit(store, *[of("acme") for _ in range(20)])
    await submit(store, group := new(group="acme"), of("acme"))
    assert (await sql(store, f"SELECT turn_group FROM onward_queue WHERE task_id = '{group.id}'")) == [(None,)]
    assert await store.tenant_quotas.depth(turn_groups("acme")) == {"default": 21}


@pytest.mark.parametrize("limited", [False, True])
async def test_a_claim_passes_over_tasks_of_some_tenants(store: Store, limited: bool) -> None:
    if limited:
        await store.queues.set_limits([LimitRow("task", "work", Limit(concurrency=100))])
    await join(store, "w1")
    await submit(store, *[of("evil", f"group {n}") for n in range(50)], *[of("evil") for _ in range(5)])
    await submit(store, theirs := of("good"), none := new(group="evil"))
    taken = await claim(store, room=20, without=["evil"])
    assert {task.id for task in taken} == {theirs.id, none.id}
    assert {task.tenant for task in taken} == {"good", None}
    assert await claim(store, room=20, without=["evil"]) == []
    assert {task.tenant for task in await claim(store, room=20)} == {"evil"}


async def test_a_claim_that_passes_over_a_tenant_looks_at_few_of_its_tasks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PASSED_OVER", 5)
    await join(store, "w1")
    await submit(store, *[of("evil") for _ in range(20)])
    await submit(store, of("good", priority=-1))
    assert await claim(store, room=1, without=["evil"]) == [], "it stands behind all of them by its priority"
    assert len(await claim(store, room=20)) == 20
    assert len(await claim(store, room=1, without=["evil"])) == 1
