"""Access keys in the store: those that have been invalid for long are deleted, in slices, and never all."""

from __future__ import annotations

import pytest

from onward.core.audit import AuditEvent
from onward.core.key import KeyRow
from onward.core.page import FIRST, TimeCursor
from onward.store.port.core import Store
from onward.store.shared import keys as shared_keys
from onward.store.shared.keys import KEPT_S
from tests.kit import Time

EVENT = AuditEvent("create_key", "k")
DAY_S = 86400.0


async def add(store: Store, id_: str, seconds: float | None = None) -> None:
    key = KeyRow(id_, b"h" * 32, id_, None, "read", None, 0, None, None, None, None, 0)
    await store.keys.add(key, seconds, EVENT._replace(subject=id_))


async def ids(store: Store) -> set[str]:
    return {row.id for row in await store.keys.list()}


async def test_keys_that_have_been_invalid_for_long_are_deleted_by_the_next_one(store: Store, time: Time) -> None:
    for id_, seconds in (("revoked", None), ("expired", DAY_S), ("valid", None), ("lasting", KEPT_S * 3)):
        await add(store, id_, seconds)
    await store.keys.revoke("revoked", EVENT._replace(action="revoke_key", subject="revoked"))
    time.move(KEPT_S - DAY_S)
    await add(store, "early")
    assert await ids(store) == {"revoked", "expired", "valid", "lasting", "early"}
    time.move(2 * DAY_S + 1)
    await add(store, "next")
    assert await ids(store) == {"valid", "lasting", "early", "next"}
    entries = await store.audit.entries(0, 100)
    assert ("revoke_key", "revoked") in {(entry.action, entry.subject) for entry in entries}, "the audit has the trace"


async def test_they_are_deleted_in_slices(store: Store, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_keys, "MAX_PRUNED", 2)
    for n in range(5):
        await add(store, f"k{n}", DAY_S)
    time.move(KEPT_S + 2 * DAY_S)
    await add(store, "a")
    assert await ids(store) == {"k2", "k3", "k4", "a"}
    await add(store, "b")
    assert await ids(store) == {"k4", "a", "b"}


async def test_there_is_always_a_key_where_there_was_one(store: Store, time: Time) -> None:
    """A server without keys takes requests without one."""
    await add(store, "first", DAY_S)
    await add(store, "last", DAY_S)
    for n in range(3):
        time.move(KEPT_S + 2 * DAY_S)
        await add(store, f"later{n}", 1.0)
        assert await store.keys.exist()
    assert len(await ids(store)) == 1


async def test_keys_come_in_pages(store: Store, time: Time) -> None:
    names = [f"k{n}" for n in range(7)]
    for n, name in enumerate(names):
        time.move(n % 2)  # some of the same moment
        await add(store, name)
    pages, after = list[list[str]](), FIRST
    while page := await store.keys.list(after=after, limit=3):
        pages.append([key.id for key in page])
        after = TimeCursor(page[-1].created_at, page[-1].id)
    assert pages == [names[:3], names[3:6], names[6:]]
    assert await store.keys.names(["k1", "k5", "nobody"]) == {"k1": "k1", "k5": "k5"}
    assert await store.keys.names(["k1"], "acme") == {}


async def test_valid_keys_of_a_tenant_are_counted_up_to_a_number(store: Store, time: Time) -> None:
    for id_, tenant, seconds in (("a", "acme", None), ("b", "acme", DAY_S), ("c", "acme", None), ("d", "globex", None)):
        key = KeyRow(id_, b"h" * 32, id_, tenant, "read", None, 0, None, None, None, None, 0)
        await store.keys.add(key, seconds, EVENT._replace(subject=id_))
    assert await store.keys.count_valid("acme", 100) == 3
    assert await store.keys.count_valid("acme", 2) == 2
    time.move(DAY_S + 1)
    await store.keys.revoke("a", EVENT._replace(action="revoke_key", subject="a"))
    assert await store.keys.count_valid("acme", 100) == 1
    assert await store.keys.count_valid("nobody", 100) == 0
