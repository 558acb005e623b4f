"""Sessions in the store: how they are found, how they end, and how many there are."""

from __future__ import annotations

import hashlib

from onward.core import wire
from onward.core.audit import AuditEvent
from onward.core.page import FIRST, TimeCursor
from onward.core.session import MAX_PER_PERSON, SessionRow
from onward.store.port.core import Store
from tests.kit import Time, sql

EVENT = AuditEvent("sign_in", "s")


def session(id_: str, person: str = "a-1", tenant: str | None = None) -> SessionRow:
    return SessionRow(id_, hashlib.sha256(id_.encode()).digest(), person, "ada", "viewer", tenant, 0, 0, 600, 0, 0)


async def ids(store: Store, whose: str | None = None) -> list[str]:
    return [row.id for row in await store.sessions.list(whose)]


async def test_a_session_is_found_by_its_hash_and_ends_with_an_entry(store: Store) -> None:
    added = await store.sessions.add(session("s1", tenant="acme"), 3600, EVENT)
    assert added.valid
    assert await store.sessions.by_hash(added.hash) == await store.sessions.get("s1") == added
    assert (added.expires_at - added.created_at, added.until - added.created_at) == (3600, 600)
    assert await store.sessions.by_hash(b"x" * 32) is None
    assert (await ids(store), await ids(store, "acme"), await ids(store, ""), await ids(store, "globex")) == (
        ["s1"],
        ["s1"],
        [],
        [],
    )
    ended = EVENT._replace(action="sign_out")
    for whose in ("globex", ""):
        assert not await store.sessions.end("s1", ended, whose)
    assert await store.sessions.end("s1", ended, "acme")
    assert not await store.sessions.end("s1", ended)
    assert await store.sessions.by_hash(added.hash) is None
    assert [entry.action for entry in await store.audit.entries(0, 10)] == ["sign_in", "sign_out"]
    assert await store.tenant_quotas.tenants("", 10) == []


async def test_a_tenant_with_a_session_alone_is_a_tenant(store: Store) -> None:
    await store.sessions.add(session("s1", tenant="acme"), 3600, EVENT)
    await store.sessions.add(session("s2"), 3600, EVENT)
    assert await store.tenant_quotas.tenants("", 10) == ["acme"]


async def test_use_keeps_it_until_its_last_hour_and_no_use_ends_it(store: Store, time: Time) -> None:
    await store.sessions.add(session("s1"), 1500, EVENT)
    await store.sessions.add(session("idle"), 1500, EVENT)
    time.move(30)
    await store.sessions.mark_used("s1")
    row = await store.sessions.get("s1")
    assert row is not None
    assert row.last_used_at == row.created_at, "it is stored to the minute"
    for _ in range(2):
        time.move(560)
        await store.sessions.mark_used("s1")
    assert await ids(store) == ["s1"]
    await store.sessions.mark_used("idle")
    idle = await store.sessions.get("idle")
    assert idle is not None
    assert not idle.valid, "a session that has ended is not used any more"
    time.move(360)
    assert await ids(store) == [], "it was used, but its time is up"


async def test_ended_sessions_are_deleted_by_the_next_sign_in(store: Store, time: Time) -> None:
    for n in range(5):
        await store.sessions.add(session(f"s{n}", f"person {n}"), 3600, EVENT)
    time.move(601)
    await store.sessions.add(session("next"), 3600, EVENT)
    assert await sql(store, "SELECT id FROM onward_sessions") == [("next",)]


async def test_a_person_has_a_bounded_number_of_sessions(store: Store, time: Time) -> None:
    await store.sessions.add(session("other", "b-2"), 3600, EVENT)
    for n in range(MAX_PER_PERSON + 3):
        await store.sessions.add(session(f"s{n}"), 3600, EVENT)
        time.move(1)
    assert await ids(store) == ["other", *[f"s{n}" for n in range(3, MAX_PER_PERSON + 3)]]


async def test_a_session_that_another_one_displaces_is_in_the_audit(store: Store, time: Time) -> None:
    for n in range(MAX_PER_PERSON):
        await store.sessions.add(session(f"s{n}", tenant="acme"), 3600, EVENT)
        time.move(1)
    by = AuditEvent("sign_in", "new", None, "person:a-1", "ada", {"person": "a-1", "roles": "admin"})
    await store.sessions.add(session("new"), 3600, by)
    *_, signed_in, ended = await store.audit.entries(0, 100)
    assert (signed_in.action, signed_in.subject) == ("sign_in", "new")
    assert (ended.action, ended.subject, ended.tenant, ended.key) == ("displace_session", "s0", "acme", "person:a-1")
    assert wire.decode(ended.data) == {"person": "a-1", "roles": "viewer", "because_of": "new"}


async def test_sessions_come_in_pages(store: Store, time: Time) -> None:
    names = [f"s{n}" for n in range(5)]
    for n, name in enumerate(names):
        time.move(n % 2)  # some of the same moment
        await store.sessions.add(session(name, person=f"p{n}"), 3600, EVENT)
    pages, after = list[list[str]](), FIRST
    while page := await store.sessions.list(after=after, limit=2):
        pages.append([row.id for row in page])
        after = TimeCursor(page[-1].created_at, page[-1].id)
    assert pages == [names[:2], names[2:4], names[4:]]
