"""Quotas of model providers in the store: the time until which they are used up, for all processes, by the database's clock."""

from __future__ import annotations

import asyncio
from typing import Any

from onward.core.quota import FIRST_PAUSE_S, MAX_PAUSE_S
from onward.store.port.core import Store
from tests.kit import Time, not_memory


async def test_a_quota_is_shut_until_its_time(store: Store, time: Time) -> None:
    assert await store.quotas.get("m") is None
    shut = await store.quotas.shut("m", 60.0, "429")
    assert (round(shut.left, 6), shut.why) == (60.0, "429")
    time.move(59)
    quota = await store.quotas.get("m")
    assert quota is not None
    assert (quota.until, round(quota.left, 6), quota.why) == (shut.until, 1.0, "429")
    time.move(2)
    quota = await store.quotas.get("m")
    assert quota is not None
    assert round(quota.left, 6) == -1.0, "it may be asked again, and is known to have been used up"
    assert await store.quotas.get("another") is None


async def test_a_quota_opens_again_unless_its_time_was_changed(store: Store, time: Time) -> None:
    shut = await store.quotas.shut("m", 60.0, "429")
    time.move(61)
    again = await store.quotas.shut("m", 30.0, "429 again")
    await store.quotas.reopen("m", shut.until)
    assert await store.quotas.get("m") is not None, "this answer was to a question from before"
    await store.quotas.reopen("m", again.until)
    assert await store.quotas.get("m") is None
    await store.quotas.reopen("m", again.until)


async def test_of_several_times_the_longest_counts(store: Store, time: Time) -> None:
    until = (await store.quotas.shut("m", 60.0, "a")).until
    assert (await store.quotas.shut("m", 5.0, "b")).until == until
    assert (await store.quotas.shut("m", None, "c")).until == until
    assert (await store.quotas.shut("m", 90.0, "d")).until == until + 30
    time.move(91)
    assert round((await store.quotas.shut("m", 5.0, "e")).left, 6) == 5.0, "a time that has passed does not count"


async def test_without_a_time_the_pauses_grow(store: Store, time: Time) -> None:
    pauses = []
    for _ in range(14):
        shut = await store.quotas.shut("m", None, "429")
        for _ in range(3):  # other workers that got the refusal at the same time
            assert (await store.quotas.shut("m", None, "429")).until == shut.until
        pauses.append(round(shut.left, 3))
        time.move(shut.left + 0.01)
    assert pauses == [min(FIRST_PAUSE_S * 2**number, MAX_PAUSE_S) for number in range(14)]
    quota = await store.quotas.get("m")
    assert quota is not None
    await store.quotas.reopen("m", quota.until)
    assert round((await store.quotas.shut("m", None, "429")).left, 3) == FIRST_PAUSE_S, "it had answered since"


@not_memory
async def test_every_process_knows(store: Store, open_another: Any, time: Time) -> None:
    other: Store = await open_another()
    answers = await asyncio.gather(*[item.quotas.shut("m", None, "429") for item in (store, other) * 4])
    assert len({item.until for item in answers}) == 1
    assert await other.quotas.get("m") == await store.quotas.get("m")
