"""The audit log: its events and their actors; many writers lose and fork nothing, and tampering is found."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from onward import Onward
from onward.core.audit import BEGINNING, AuditEvent
from onward.errors import OnwardError, UsageError
from onward.server.access.service import AuthorizedService
from onward.service.submission import SubmitRequest
from onward.store.port.core import Store
from onward.store.sqlite.store import SqliteStore
from tests.kit import not_memory, sql
from tests.server.tenants import caller, make_tenants


async def chain(store: Any) -> None:
    for n in range(12):
        await store.audit.append(AuditEvent("cancel", f"task{n}", "acme" if n % 2 else None, "k", "Ada", {"n": n}))


async def tamper(store: Any, statement: str) -> None:
    """Changes the tables as an owner of the database could."""
    if isinstance(store, SqliteStore):
        for name in ("update", "delete", "insert", "end_update", "end_delete", "end_insert"):
            await sql(store, f"DROP TRIGGER IF EXISTS onward_audit_{name}")
        await sql(store, statement)
        return
    async with store._db.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(statement)


async def forge_end(store: Any, number: int, seal: str = "NULL") -> None:
    """Moves the end that is written down beside the log, as an owner of the database could."""
    last = f"(SELECT hash FROM onward_audit WHERE number = {number})"
    await tamper(
        store, f"UPDATE onward_audit_end SET number = {number}, hash = COALESCE({last}, '{BEGINNING}'), seal = {seal}"
    )


async def test_every_change_of_a_caller_is_recorded_with_actor_and_subject(app: Onward) -> None:
    acme = (await make_tenants(app))["acme"]
    last = (await app.audit(limit=1000))[-1].number
    ada = AuthorizedService(app.service, caller("acme"))
    approval = await ada.ask(acme.approval)
    await ada.prioritize(acme.asker, 0)
    await ada.pause(acme.asker)
    await ada.resume(acme.asker)
    await ada.raise_budget(acme.fixer, max_llm_tokens=7_000_000, max_steps=None)
    await ada.decide(acme.approval, "approve", hash=approval.hash, arguments={"disk": "/dev/sdb"}, always=True)
    await ada.answer(acme.question, {"secret": "how"})
    await ada.resolve(acme.doubter, "happened", {"secret": "what"})
    await ada.fork(acme.asker, 1)
    await ada.cancel(acme.asker)
    await AuthorizedService(app.service, caller(None)).pause_schedule("nightly")
    made = await ada.create_key("more", ["read"])
    await ada.revoke_key(made.key.id)
    entries = await app.audit(after=last)
    assert [(entry.action, entry.subject, entry.tenant) for entry in entries] == [
        ("prioritize", acme.asker, "acme"),
        ("pause", acme.asker, "acme"),
        ("resume", acme.asker, "acme"),
        ("raise_budget", acme.fixer, "acme"),
        ("approve", acme.approval, "acme"),
        ("answer", acme.question, "acme"),
        ("resolve", acme.doubter, "acme"),
        ("fork", acme.asker, "acme"),
        ("cancel", acme.asker, "acme"),
        ("pause_schedule", "nightly", None),
        ("create_key", made.key.id, "acme"),
        ("revoke_key", made.key.id, "acme"),
    ]
    assert {(entry.key, entry.name) for entry in entries if entry.tenant} == {("key-of-acme", "somebody of acme")}
    data_of = {entry.action: entry.data for entry in entries}
    assert approval.hash is not None
    assert approval.hash.encode() in data_of["approve"]
    assert b'"priority":0' in data_of["prioritize"]
    assert b'"max_llm_tokens":7000000' in data_of["raise_budget"]
    assert not any(b"secret" in data or b"/dev" in data for data in data_of.values()), (
        "hashes of the texts, not the texts"
    )
    assert (await app.service.audit.verify()).sound


async def test_of_many_decisions_only_the_accepted_one_is_recorded(app: Onward) -> None:
    acme = (await make_tenants(app))["acme"]
    last = (await app.audit(limit=1000))[-1].number
    doors = [AuthorizedService(app.service, caller("acme")._replace(name=f"person {n}")) for n in range(8)]
    came = await asyncio.gather(
        *(door.decide(acme.approval, "approve" if n % 2 else "deny") for n, door in enumerate(doors)),
        return_exceptions=True,
    )
    (winner,) = [n for n, answer in enumerate(came) if not isinstance(answer, BaseException)]
    (entry,) = await app.audit(after=last)
    assert (entry.action, entry.name) == ("approve" if winner % 2 else "deny", f"person {winner}")


async def test_refused_changes_and_reads_are_not_recorded(app: Onward) -> None:
    acme = (await make_tenants(app))["acme"]
    before = await app.audit(limit=1000)
    ada = AuthorizedService(app.service, caller("acme"))
    with contextlib.suppress(OnwardError):
        await ada.decide(acme.approval, "approve", hash="another")
    for refused in (
        ada.decide(acme.approval, "maybe"),
        ada.answer("nothing.1", "x"),
        ada.raise_budget(acme.fixer),
        ada.resolve(acme.fixer, "happened"),
        AuthorizedService(app.service, caller("globex")).cancel(acme.asker),
    ):
        with pytest.raises(OnwardError):
            await refused
    await ada.list()
    await ada.submit([SubmitRequest("quick", {"goal": "on"})])
    await ada.signal(acme.asker, "go")
    assert await app.audit(limit=1000) == before


# ── the chain ────────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_many_writers_make_one_chain(store: Store, open_another: Any) -> None:
    stores = [store, *[await open_another() for _ in range(3)]]
    await asyncio.gather(
        *(
            opened.audit.append(AuditEvent("cancel", f"{n}.{m}", None))
            for n, opened in enumerate(stores)
            for m in range(25)
        )
    )
    entries = await store.audit.entries(0, 1000)
    assert [entry.number for entry in entries] == list(range(1, 101))
    assert entries[0].before == BEGINNING
    assert [entry.before for entry in entries[1:]] == [entry.hash for entry in entries[:-1]]
    assert all(entry.hash == entry.expected_hash for entry in entries)
    assert {entry.subject for entry in entries} == {f"{n}.{m}" for n in range(4) for m in range(25)}


async def test_the_table_refuses_to_be_changed(store: Store) -> None:
    await chain(store)
    before = await store.audit.entries(0, 100)
    columns = "number, at, name, action, subject, data, before, hash"
    eve = "12, 0.0, 'Eve', '', '', data, '', '' FROM onward_audit WHERE number = 12"
    statements = [
        "UPDATE onward_audit SET name = 'Eve'",
        "DELETE FROM onward_audit",
        "DELETE FROM onward_audit WHERE number = 3",
        f"INSERT INTO onward_audit ({columns}) SELECT {eve} ON CONFLICT (number) DO UPDATE SET name = 'Eve'",
        f"INSERT INTO onward_audit ({columns}) SELECT {eve.replace('12', '0', 1)}",
        "DELETE FROM onward_audit_end",
        "UPDATE onward_audit_end SET number = 3",
        "INSERT INTO onward_audit_end (id, number, hash) VALUES (1, 3, '')",
    ]
    if isinstance(store, SqliteStore):
        statements += [
            f"INSERT OR REPLACE INTO onward_audit ({columns}) SELECT {eve}",
            f"REPLACE INTO onward_audit ({columns}) SELECT {eve.replace('12', '3', 1)}",
            "REPLACE INTO onward_audit_end (id, number, hash) VALUES (1, 30, '')",
            "UPDATE OR REPLACE onward_audit SET number = 3 WHERE number = 4",
        ]
    else:
        statements += ["TRUNCATE onward_audit", "TRUNCATE onward_audit_end"]
    for statement in statements:
        with pytest.raises(Exception, match="only ever added to"):
            await sql(store, statement)
    assert await store.audit.entries(0, 100) == before


@pytest.mark.parametrize("column", ["at", "tenant", "key", "name", "action", "subject", "data", "before", "hash"])
async def test_a_changed_entry_is_found(app: Onward, column: str) -> None:
    await chain(app.store)
    changed = {"at": "at + 0.5", "data": "CAST('{}' AS BLOB)" if isinstance(app.store, SqliteStore) else "'{}'"}
    await tamper(app.store, f"UPDATE onward_audit SET {column} = {changed.get(column, repr('other'))} WHERE number = 7")
    verdict = await app.service.audit.verify()
    assert (verdict.sound, verdict.broken, verdict.entries) == (False, 7, 6)
    assert verdict.why


async def test_a_missing_entry_is_found_and_one_put_in_between(app: Onward) -> None:
    await chain(app.store)
    assert (await app.service.audit.verify()).sound
    await tamper(app.store, "DELETE FROM onward_audit WHERE number = 4")
    verdict = await app.service.audit.verify()
    assert (verdict.broken, verdict.why) == (4, "entry 4 is missing")
    last = (await app.audit())[-1]
    forged = last._replace(number=4, hash="")
    values = ", ".join(repr(value) for value in (forged.number, forged.at, forged.name, forged.action, forged.subject))
    data = "CAST('{}' AS BLOB)" if isinstance(app.store, SqliteStore) else "'{}'"
    await tamper(
        app.store,
        "INSERT INTO onward_audit (number, at, name, action, subject, data, before, hash) "
        f"VALUES ({values}, {data}, '{forged.before}', '{forged.expected_hash}')",
    )
    assert (await app.service.audit.verify()).broken == 4


async def test_a_noted_head_reveals_a_chain_that_was_cut_off_or_made_anew(app: Onward) -> None:
    await chain(app.store)
    head = (await app.service.audit.verify()).head
    assert (await app.service.audit.verify(head)).sound
    await app.store.audit.append(AuditEvent("cancel", "more"))
    assert (await app.service.audit.verify(head)).sound
    await tamper(app.store, "DELETE FROM onward_audit WHERE number > 5")
    verdict = await app.service.audit.verify()
    assert (verdict.broken, verdict.why) == (6, "entry 13 was the last one, and is gone")
    await forge_end(app.store, 5)
    verdict = await app.service.audit.verify()
    assert (verdict.sound, verdict.end) == (True, "unproven"), "without a key the end can be written anew"
    verdict = await app.service.audit.verify(head)
    assert (verdict.broken, verdict.why) == (6, "entry 12 was there, and is gone")
    for n in range(20):
        await app.store.audit.append(AuditEvent("cancel", f"anew{n}"))
    verdict = await app.service.audit.verify(head)
    assert (verdict.broken, verdict.why) == (12, "entry 12 is not the one that was noted")
    with pytest.raises(UsageError, match="NUMBER:HASH"):
        await app.service.audit.verify("12")


async def test_pages_and_tenants(app: Onward) -> None:
    await chain(app.store)
    assert [entry.number for entry in await app.audit(after=3, limit=4)] == [4, 5, 6, 7]
    own = await AuthorizedService(app.service, caller("acme")).audit(after=2)
    assert [entry.number for entry in own] == [4, 6, 8, 10, 12]
    newest = await app.service.audit.list(limit=3, before=2**53)
    assert [entry.number for entry in newest] == [12, 11, 10]
    assert [entry.number for entry in await app.service.audit.list(limit=3, before=10)] == [9, 8, 7]
    own = await AuthorizedService(app.service, caller("acme")).audit(before=9, limit=2)
    assert [entry.number for entry in own] == [8, 6]
    with pytest.raises(OnwardError, match="between 1 and 1000"):
        await app.audit(limit=0)
