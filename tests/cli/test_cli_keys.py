"""keys: create, list, revoke; audit: the list, and verify."""

from __future__ import annotations

import asyncio
import base64
import os
import pwd
import re
import socket
from pathlib import Path

import apsw
import pytest

from onward import Onward
from onward.core import key as keys
from onward.core.audit import parse_head, parse_keys
from tests.cli.conftest import Run


def test_a_key_is_printed_once_and_works(onward: Run, db: str) -> None:
    made = onward("keys", "create", "--name", "ada", "--scope", "read,submit", "--scope", "admin", "--db", db)
    assert made.status == 0
    token = made.out.strip()
    key = keys.parse(token)
    assert key is not None
    assert f"this is key {key.id}, shown only now" in made.err
    listed = onward("keys", "list", "--db", db)
    assert token not in listed.out
    header, row = listed.out.splitlines()
    assert header.split() == ["ID", "NAME", "TENANT", "SCOPES", "AGENT", "USED", "UNTIL"]
    assert row.split() == [key.id, "ada", "read", "submit", "admin", "never"]
    assert onward("keys", "--db", db).out == listed.out


def test_a_key_with_all_options(onward: Run, db: str) -> None:
    words = [
        "--name",
        "bot",
        "--scope",
        "decide",
        "--tenant",
        "acme",
        "--agent",
        "fixer",
        "--owner",
        "person:lin",
        "--expires",
        "90d",
    ]
    key = onward("keys", "create", *words, "--db", db, "--json").json
    assert keys.parse(key.pop("token")) is not None
    assert key.pop("webhook_secret") is None
    assert (key["name"], key["tenant"], key["scopes"], key["agent"]) == ("bot", "acme", ["decide"], "fixer")
    assert key["owner"] == "person:lin"
    assert onward("keys", "--db", db, "--json").json == {"keys": [key]}


def test_the_key_of_a_tenant_shows_its_webhook_secret(onward: Run, db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    words = ["keys", "create", "--name", "bot", "--scope", "submit", "--db", db]
    assert onward(*words, "--json").json["webhook_secret"] is None
    secret = onward(*words, "--tenant", "acme", "--json").json["webhook_secret"]
    assert secret.startswith("whsec_")
    assert secret != "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert secret in onward(*words, "--tenant", "acme").err


def test_revoke_by_id_by_its_beginning_and_by_name(onward: Run, db: str) -> None:
    ids = [
        onward("keys", "create", "--name", name, "--scope", "read", "--db", db, "--json").json["id"]
        for name in ("anna", "bill", "cleo", "cleo")
    ]
    output = onward("keys", "revoke", ids[0], "--db", db)
    assert output.out.startswith(f"key {ids[0]} (anna) is revoked")
    assert onward("keys", "revoke", ids[1][:8], "--db", db, "--json").json["valid"] is False
    two = onward("keys", "revoke", "cleo", "--db", db)
    assert (two.status, "fits more than one key" in two.sentence) == (2, True)
    none = onward("keys", "revoke", "nobody", "--db", db)
    assert (none.status, "there is no key" in none.sentence) == (4, True)
    assert onward("keys", "revoke", ids[0], "--db", db).status == 0
    assert [key["valid"] for key in onward("keys", "--db", db, "--json").json["keys"]] == [False, False, True, True]
    assert "revoked" in onward("keys", "--db", db).out


def test_invalid_options(onward: Run, db: str) -> None:
    wrong = onward("keys", "create", "--name", "a", "--scope", "all", "--db", db)
    assert (wrong.status, "one of read, submit, decide, admin" in wrong.sentence) == (2, True)
    assert onward("keys", "create", "--scope", "read", "--db", db).status == 2
    assert onward("keys", "create", "--name", "a", "--db", db).status == 2
    agent = onward("keys", "create", "--name", "a", "--scope", "admin", "--agent", "x", "--db", db)
    assert "cannot have the scope admin" in agent.sentence
    assert "no keys, so the server accepts requests from this machine only" in onward("keys", "--db", db).err


def test_the_audit_lists_callers_and_actions(onward: Run, db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "grace")  # any user can say so
    account = f"cli:{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"
    assert "the audit log is empty" in onward("audit", "--db", db).err
    key = onward("keys", "create", "--name", "ada [red]", "--scope", "read", "--db", db, "--json").json["id"]
    onward("keys", "revoke", key, "--db", db)
    header, made, gone = onward("audit", "--db", db).out.splitlines()
    assert header.split() == ["NO", "AT", "WHO", "DID", "TO", "MORE"]
    assert re.match(rf"1 .* {re.escape(account)} +create_key +{key} +.*ada \[red\]", made)
    assert re.match(rf"2 .* {re.escape(account)} +revoke_key +{key} ", gone)
    entries = onward("audit", "--db", db, "--json").json["entries"]
    assert {entry["name"] for entry in entries} == {account}
    assert [entry["action"] for entry in entries] == ["create_key", "revoke_key"]
    assert entries[1]["before"] == entries[0]["hash"]
    assert [e["number"] for e in onward("audit", "--limit", "1", "--db", db, "--json").json["entries"]] == [2]
    assert onward("audit", "--after", "2", "--db", db, "--json").json == {"entries": []}


def test_verify_names_the_first_break(onward: Run, db: str, tmp_path: Path) -> None:
    for name in "abc":
        onward("keys", "create", "--name", name, "--scope", "read", "--db", db)
    sound = onward("audit", "verify", "--db", db)
    assert sound.status == 0
    first, *end, head = sound.out.splitlines()
    assert first == "all 3 entries are as they were written"
    assert " ".join(end).startswith("this does not prove the end of the log")
    assert onward("audit", "verify", "--seen", head, "--db", db, "--json").json == {
        "sound": True,
        "entries": 3,
        "head": head,
        "broken": None,
        "cause": None,
        "why": None,
        "keyed_from": None,
        "end": "head",
    }
    connection = apsw.Connection(str(tmp_path / "onward.db"))
    connection.execute("DROP TRIGGER onward_audit_update; DROP TRIGGER onward_audit_delete")
    connection.execute("DELETE FROM onward_audit WHERE number = 3")
    beside = onward("audit", "verify", "--db", db)
    assert (beside.status, "entry 3 was the last one, and is gone" in beside.out) == (1, True)
    connection.execute("DROP TRIGGER onward_audit_end_update")
    connection.execute(
        "UPDATE onward_audit_end SET (number, hash) = (SELECT number, hash FROM onward_audit WHERE number = 2)"
    )
    unproven = onward("audit", "verify", "--db", db, "--json")
    assert (unproven.status, unproven.json["end"]) == (0, "unproven")
    cut = onward("audit", "verify", "--seen", head, "--db", db)
    assert (cut.status, cut.out.strip()) == (1, "the audit log is broken at entry 3: entry 3 was there, and is gone")
    connection.execute("UPDATE onward_audit SET name = 'Eve' WHERE number = 2")
    connection.close()
    broken = onward("audit", "verify", "--db", db)
    assert (broken.status, "broken at entry 2: entry 2 was changed after it was written" in broken.out) == (1, True)


def test_verify_with_a_key_and_with_exported_heads(
    onward: Run, db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_AUDIT_KEY", base64.b64encode(b"k" * 32).decode())
    heads = tmp_path / "heads"
    for name in "abc":
        onward("keys", "create", "--name", name, "--scope", "read", "--db", db)
        head = onward("audit", "verify", "--db", db, "--json").json["head"]
        heads.write_text(f"{heads.read_text() if heads.exists() else ''}2026-11-17T08:00:00.000Z {head}\n\n")
    first_head = heads.read_text().split()[1]
    sound = onward("audit", "verify", "--head", f"@{heads}", "--head", head, "--db", db)
    assert (sound.status, sound.out.splitlines()[0]) == (
        0,
        "all 3 entries are as they were written; they are keyed from entry 1 on",
    )
    monkeypatch.delenv("ONWARD_AUDIT_KEY")
    blind = onward("audit", "verify", "--db", db, "--json")
    assert (blind.status, blind.json["cause"], blind.json["broken"]) == (1, "no_key", 1)
    assert "cannot be vouched for from entry 1 on" in onward("audit", "verify", "--db", db).out
    refused = onward("keys", "create", "--name", "d", "--scope", "read", "--db", db)
    assert (refused.status, "this process has none; nothing was written" in refused.sentence) == (2, True)
    assert len(onward("keys", "--db", db, "--json").json["keys"]) == 3
    monkeypatch.setenv("ONWARD_AUDIT_KEY", base64.b64encode(b"k" * 32).decode())
    connection = apsw.Connection(str(tmp_path / "onward.db"))
    connection.execute("DROP TRIGGER onward_audit_update; DROP TRIGGER onward_audit_delete")
    connection.execute("DELETE FROM onward_audit WHERE number > 1")
    connection.execute("DROP TRIGGER onward_audit_end_update")
    seal = parse_keys(base64.b64encode(b"k" * 32).decode())[0].seal_of(parse_head(first_head))
    number, hash_ = parse_head(first_head)
    connection.execute("UPDATE onward_audit_end SET number = ?, hash = ?, seal = ?", (number, hash_, seal))
    connection.close()
    old = onward("audit", "verify", "--db", db)
    assert (old.status, "unless a whole older state of the database was put back" in " ".join(old.out.split())) == (
        0,
        True,
    )
    cut = onward("audit", "verify", "--head", f"@{heads}", "--db", db)
    assert (cut.status, cut.out.strip()) == (1, "the audit log is broken at entry 2: entry 3 was there, and is gone")
    monkeypatch.setenv("ONWARD_AUDIT_HEADS", f"syslog {heads}")
    known = onward("audit", "verify", "--db", db)
    assert (known.status, known.out) == (1, cut.out), "the file of the setting is read by itself"
    monkeypatch.delenv("ONWARD_AUDIT_HEADS")
    for wrong in ("@/no/such/file", "3", f"@{tmp_path / 'onward.db'}"):
        assert onward("audit", "verify", "--head", wrong, "--db", db).status == 2


def test_a_server_for_others_needs_a_key(onward: Run, db: str) -> None:
    output = onward("serve", "tests.cli.shop:app", "--host", "0.0.0.0", "--port", "0", "--db", db)
    assert (output.status, "onward keys create --name ME" in output.sentence) == (2, True)


def test_an_app_makes_keys_too(db: str) -> None:
    async def make() -> str:
        async with Onward(db) as app:
            return (await app.keys.create("ada", ["read"])).key.name

    assert asyncio.run(make()) == "ada"
