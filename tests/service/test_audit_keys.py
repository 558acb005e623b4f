"""An audit log with a key: an owner of the database without the key cannot write a chain of their own."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core.audit import BEGINNING, Entry, Head, parse_head, parse_keys
from onward.errors import AuditKeyMissing, BadSetting, UsageError
from onward.server.access.service import AuthorizedService
from onward.store.sqlite.store import SqliteStore
from tests.kit import not_memory
from tests.server.tenants import caller, make_tenants
from tests.service.test_audit import chain, forge_end, tamper

KEY = base64.b64encode(b"k" * 32).decode()
OTHER = base64.b64encode(b"o" * 32).decode()


def use(app: Onward, setting: str) -> None:
    """Give the process of this app other keys."""
    app.store.audit.keys = parse_keys(setting)


async def rewrite(store: Any, entries: list[Entry]) -> None:
    """Replace the whole log, as an owner of the database can."""
    columns = ", ".join(Entry._fields)
    rows = ", ".join(f"({', '.join(_literal(store, value) for value in entry)})" for entry in entries)
    for statement in ("DELETE FROM onward_audit", f"INSERT INTO onward_audit ({columns}) VALUES {rows}"):
        await tamper(store, statement)
    await forge_end(store, len(entries))


def _literal(store: Any, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        text = "'" + value.decode().replace("'", "''") + "'"
        return f"CAST({text} AS BLOB)" if isinstance(store, SqliteStore) else f"convert_to({text}, 'UTF8')"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def forged(entries: list[Entry], name: str = "Eve") -> list[Entry]:
    """The same entries under another name, in a chain without a key that is sound in itself."""
    result: list[Entry] = []
    for entry in entries:
        before = result[-1].hash if result else BEGINNING
        changed = entry._replace(name=name, before=before, hash="")
        result.append(changed._replace(hash=changed.expected_hash))
    return result


async def test_entries_are_keyed_from_the_one_on_that_has_a_key(app: Onward) -> None:
    await chain(app.store)
    use(app, KEY)
    before = await app.service.audit.verify()
    assert (before.cause, before.broken, before.keyed_from) == ("unkeyed", 1, None), "none was written with it yet"
    await chain(app.store)
    verdict = await app.service.audit.verify()
    assert (verdict.sound, verdict.entries, verdict.keyed_from) == (True, 24, 13)
    entries = await app.audit(limit=100)
    (key,) = app.store.audit.keys
    assert [entry.keyed_with for entry in entries] == [None] * 12 + [key.id] * 12
    assert KEY not in repr(key)


@pytest.mark.parametrize("number", [3, 12, 13, 20, 24])
async def test_a_changed_entry_is_found_also_with_a_hash_that_fits_it(app: Onward, number: int) -> None:
    """Whether it has a key or not: the first keyed entry covers those before it."""
    await chain(app.store)
    use(app, KEY)
    await chain(app.store)
    entries = await app.audit(limit=100)
    changed = entries[: number - 1] + forged_tail(entries, number)
    await rewrite(app.store, changed)
    verdict = await app.service.audit.verify()
    assert (verdict.sound, verdict.cause) == (False, "tampered")


def forged_tail(entries: list[Entry], number: int) -> list[Entry]:
    """The entries from a number on, of which the first was changed, with links and hashes that an attacker can compute."""
    tail: list[Entry] = []
    for position, entry in enumerate(entries[number - 1 :]):
        before = tail[-1].hash if tail else entry.before
        changed = entry._replace(name="Eve" if position == 0 else entry.name, before=before)
        tail.append(changed if changed.keyed_with else changed._replace(hash=changed.expected_hash))
    return tail


async def test_a_chain_that_was_replaced_by_one_without_a_key_is_found(app: Onward) -> None:
    """On an unkeyed log this cannot be noticed without a head."""
    use(app, KEY)
    await chain(app.store)
    entries = await app.audit(limit=100)
    await rewrite(app.store, forged(entries))
    verdict = await app.service.audit.verify()
    assert (verdict.sound, verdict.cause) == (False, "unkeyed")
    mixed = entries[:6] + forged(entries)[6:]
    await rewrite(app.store, [*mixed[:6], mixed[6]._replace(before=entries[5].hash), *mixed[7:]])
    verdict = await app.service.audit.verify()
    assert (verdict.sound, verdict.broken) == (False, 7)
    assert "is not keyed, and the entries from 1 on are" in verdict.why


async def test_a_chain_that_was_replaced_by_one_with_another_key_is_found(app: Onward) -> None:
    use(app, KEY)
    await chain(app.store)
    head = (await app.service.audit.verify()).head
    await tamper(app.store, "DELETE FROM onward_audit")
    await forge_end(app.store, 0)
    use(app, OTHER)
    await chain(app.store)
    use(app, KEY)
    verdict = await app.service.audit.verify()
    assert (verdict.sound, verdict.cause, verdict.broken) == (False, "no_key", 1)
    use(app, f"{KEY},{OTHER}")
    assert (await app.service.audit.verify()).sound, "with both keys it is sound in itself"
    assert (await app.service.audit.verify(head)).why == "entry 12 is not the one that was noted"


async def test_a_wrong_key_or_none_is_told_apart_from_a_changed_entry(app: Onward) -> None:
    await chain(app.store)
    use(app, KEY)
    await chain(app.store)
    id_ = app.store.audit.keys[0].id
    for setting, words in (("", "this process has none"), (OTHER, f"those of this process are {_id(OTHER)}")):
        use(app, setting)
        verdict = await app.service.audit.verify()
        assert (verdict.sound, verdict.cause, verdict.broken, verdict.entries) == (False, "no_key", 13, 12)
        assert f"was written with the key {id_}, and {words}" in verdict.why
    await tamper(app.store, "UPDATE onward_audit SET name = 'Eve' WHERE number = 20")
    use(app, KEY)
    changed = await app.service.audit.verify()
    assert (changed.cause, changed.broken) == ("tampered", 20)
    await tamper(app.store, "DELETE FROM onward_audit WHERE number = 22")
    use(app, "")
    missing = await app.service.audit.verify()
    assert (missing.cause, missing.broken) == ("tampered", 22), "links are checked without a key, too"


def _id(setting: str) -> str:
    return parse_keys(setting)[0].id


async def test_an_emptied_log_shows(app: Onward) -> None:
    """Whether the attacker leaves the end that is written down, moves it, or deletes it."""
    use(app, KEY)
    fresh = await app.service.audit.verify()
    assert (fresh.sound, fresh.cause) == (False, "unkeyed"), "nothing tells a new log from an emptied one"
    await chain(app.store)
    assert (await app.service.audit.verify()).end == "seal"
    await tamper(app.store, "DELETE FROM onward_audit")
    verdict = await app.service.audit.verify()
    assert (verdict.cause, verdict.why) == ("tampered", "entry 12 was the last one, and is gone")
    await forge_end(app.store, 0)
    assert (await app.service.audit.verify()).cause == "unkeyed"
    await tamper(app.store, "DELETE FROM onward_audit_end")
    assert (await app.service.audit.verify()).cause == "tampered"


async def test_a_log_that_was_cut_off_shows_until_its_end_is_sealed_anew(app: Onward) -> None:
    use(app, KEY)
    await chain(app.store)
    await tamper(app.store, "DELETE FROM onward_audit WHERE number > 9")
    verdict = await app.service.audit.verify()
    assert (verdict.cause, verdict.broken, verdict.why) == ("tampered", 10, "entry 12 was the last one, and is gone")
    await forge_end(app.store, 9)
    assert (await app.service.audit.verify()).cause == "unsealed"
    await forge_end(app.store, 9, f"'{app.store.audit.keys[0].seal_of(Head(8, BEGINNING))}'")
    assert (await app.service.audit.verify()).why == "the seal of its end was not made with the key of the log"
    head = str((await app.audit(limit=100))[-1].number) + ":" + (await app.audit(limit=100))[-1].hash
    await forge_end(app.store, 9)
    verdict = await app.service.audit.verify(head)
    assert (verdict.sound, verdict.end) == (True, "head"), "a head vouches for the end too"


async def test_entries_behind_a_cut_do_not_hide_it(app: Onward) -> None:
    """New entries do not move an end whose entry is gone, or is another one."""
    use(app, KEY)
    await chain(app.store)
    await tamper(app.store, "DELETE FROM onward_audit WHERE number > 9")
    for _ in range(2):
        await chain(app.store)
        assert (await app.service.audit.verify()).cause == "tampered"


async def test_an_end_that_older_programs_left_behind_is_sound(app: Onward) -> None:
    """They write entries, and no end."""
    use(app, KEY)
    await chain(app.store)
    end = await app.store.audit.end()
    await chain(app.store)
    assert end is not None
    await tamper(
        app.store, f"UPDATE onward_audit_end SET number = {end.number}, hash = '{end.hash}', seal = '{end.seal}'"
    )
    assert (await app.service.audit.verify()).sound
    await chain(app.store)
    end = await app.store.audit.end()
    assert end is not None
    assert end.number == 36


async def test_dropped_last_entries_show_only_with_a_head(app: Onward) -> None:
    """Where the attacker kept the end of that time, and puts it back too."""
    use(app, KEY)
    await chain(app.store)
    heads = [str(Head(entry.number, entry.hash)) for entry in await app.audit(limit=100)]
    assert (await app.service.audit.verify(heads)).sound
    await tamper(app.store, "DELETE FROM onward_audit WHERE number > 9")
    seal = app.store.audit.keys[0].seal_of(parse_head(heads[8]))
    await forge_end(app.store, 9, f"'{seal}'")
    assert (await app.service.audit.verify()).sound, "a database cannot tell of its own past, keyed or not"
    verdict = await app.service.audit.verify(heads)
    assert (verdict.cause, verdict.broken, verdict.why) == ("tampered", 10, "entry 12 was there, and is gone")
    await chain(app.store)
    verdict = await app.service.audit.verify(heads)
    assert (verdict.broken, verdict.why) == (10, "entry 10 is not the one that was noted")


async def test_a_process_without_the_key_writes_nothing_behind_a_keyed_entry(app: Onward) -> None:
    use(app, KEY)
    acme = (await make_tenants(app))["acme"]
    await chain(app.store)
    before = await app.audit(limit=1000)
    ada = AuthorizedService(app.service, caller("acme"))
    digest = (await ada.ask(acme.approval)).digest
    use(app, "")
    with pytest.raises(AuditKeyMissing, match="ONWARD_AUDIT_KEY") as missing:
        await ada.decide(acme.approval, "approve", digest=digest)
    assert missing.value.status == 503
    for refused in (
        ada.create_key("more", ["read"]),
        ada.raise_budget(acme.fixer, max_steps=9),
        ada.cancel(acme.asker),
    ):
        with pytest.raises(AuditKeyMissing):
            await refused
    assert await app.audit(limit=1000) == before
    assert acme.approval in {ask.id for ask in await ada.asks("approval")}, "the decision was rolled back"
    use(app, KEY)
    await ada.decide(acme.approval, "approve", digest=digest)
    assert (await app.service.audit.verify()).sound


async def test_keys_are_changed_one_after_the_other(app: Onward) -> None:
    use(app, OTHER)
    await chain(app.store)
    use(app, f"{KEY} {OTHER}")
    await chain(app.store)
    verdict = await app.service.audit.verify()
    assert (verdict.sound, verdict.entries, verdict.keyed_from) == (True, 24, 1)
    assert {entry.keyed_with for entry in await app.audit(limit=100)} == {_id(KEY), _id(OTHER)}
    use(app, KEY)
    assert (await app.service.audit.verify()).cause == "no_key", "entries of the old key need the old key"


@pytest.mark.parametrize("setting", ["short", base64.b64encode(b"k" * 31).decode(), "é" * 50, f"{KEY},x"])
def test_a_key_has_32_bytes(setting: str) -> None:
    with pytest.raises(BadSetting, match="32 bytes or more in base 64") as refused:
        parse_keys(setting)
    assert setting not in str(refused.value)


@not_memory
async def test_the_setting_may_name_a_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.key"
    file.write_text(f"{KEY}\n")
    async with Onward(url, audit_key=f"file://{file}") as app:
        assert app.store.audit.keys[0].id == _id(KEY)
        assert KEY not in repr(app.settings)
        await chain(app.store)
        assert (await app.service.audit.verify()).keyed_from == 1
    with pytest.raises(BadSetting, match="a readable file"):
        Onward(url, audit_key=f"file://{tmp_path}/nothing")


def test_a_head_is_a_number_and_a_hash() -> None:
    for text in (f"12:{'a' * 64}", f"7:hmac-0123abcd-{'b' * 64}"):
        assert str(parse_head(text)) == text
    for wrong in ("12", f"12:{'a' * 63}", f"-1:{'a' * 64}", f"1:hmac-{'b' * 64}", f"1:hmac-0123ABCD-{'b' * 64}", ""):
        with pytest.raises(UsageError, match="NUMBER:HASH"):
            parse_head(wrong)


async def test_the_decision_in_the_audit_has_the_digest(app: Onward) -> None:
    acme = (await make_tenants(app))["acme"]
    ada = AuthorizedService(app.service, caller("acme"))
    ask = await ada.ask(acme.approval)
    await ada.decide(acme.approval, "approve", digest=ask.digest, arguments={"disk": "/dev/sdb"})
    data = json.loads((await app.audit(limit=1000))[-1].data)
    assert (data["digest"], data["named"]) == (ask.digest, True)
    assert data["decided"] not in {None, ask.digest}, "other arguments were decided than were shown"
