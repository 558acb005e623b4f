"""Quotas of others in the store: until when they are used up, for everybody, by the database's time."""

from __future__ import annotations

import asyncio
from typing import Any

from onward.core.quota import FIRST_PAUSE_S, MAX_PAUSE_S
from onward.store.port.core import Store
from tests.kit import Time, not_memory


async def test_what_is_used_up_is_shut_until_its_time(store: Store, time: Time) -> None:
    assert await store.quotas.get("m") is None
    told = await store.quotas.shut("m", 60.0, "429")
    assert (round(told.left, 6), told.why) == (60.0, "429")
    time.move(59)
    found = await store.quotas.get("m")
    assert found is not None
    assert (found.until, round(found.left, 6), found.why) == (told.until, 1.0, "429")
    time.move(2)
    found = await store.quotas.get("m")
    assert found is not None
    assert round(found.left, 6) == -1.0, "it may be asked again, and is known to have been used up"
    assert await store.quotas.get("another") is None


async def test_it_opens_again_unless_somebody_was_told_another_time(store: Store, time: Time) -> None:
    told = await store.quotas.shut("m", 60.0, "429")
    time.move(61)
    again = await store.quotas.shut("m", 30.0, "429 again")
    await store.quotas.reopen("m", told.until)
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
    assert round((await store.quotas.shut("m", 5.0, "e")).left, 6) == 5.0, "what is over does not count"


async def test_where_nobody_says_when_the_pauses_grow(store: Store, time: Time) -> None:
    pauses = []
    for _ in range(14):
        told = await store.quotas.shut("m", None, "429")
        for _ in range(3):  # others who were told at the same time
            assert (await store.quotas.shut("m", None, "429")).until == told.until
        pauses.append(round(told.left, 3))
        time.move(told.left + 0.01)
    assert pauses == [min(FIRST_PAUSE_S * 2**number, MAX_PAUSE_S) for number in range(14)]
    found = await store.quotas.get("m")
    assert found is not None
    await store.quotas.reopen("m", found.until)
    assert round((await store.quotas.shut("m", None, "429")).left, 3) == FIRST_PAUSE_S, "it had answered since"


@not_memory
async def test_every_process_knows(store: Store, open_another: Any, time: Time) -> None:
    other: Store = await open_another()
    told = await asyncio.gather(*[one.quotas.shut("m", None, "429") for one in (store, other) * 4])
    assert len({one.until for one in told}) == 1
    assert await other.quotas.get("m") == await store.quotas.get("m")
