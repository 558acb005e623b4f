"""sessions: list and revoke."""

from __future__ import annotations

import asyncio

from onward import Onward
from onward.core.identity import Identity
from tests.cli.conftest import Run


def begin(db: str, *people: tuple[str, str]) -> list[str]:
    async def sign_in() -> list[str]:
        async with Onward(db) as app:
            identities = [Identity(person, name, frozenset({"viewer"}), "acme") for person, name in people]
            return [
                (await app.service.sessions.begin(identity, idle_s=600, max_s=600)).session.id
                for identity in identities
            ]

    return asyncio.run(sign_in())


def test_sessions_end_by_id_and_by_person(onward: Run, db: str) -> None:
    assert "no person is signed in" in onward("sessions", "--db", db).err + onward("sessions", "--db", db).out
    ids = begin(db, ("a-1", "ada@x"), ("a-1", "ada@x"), ("b-2", "bob@x"), ("b-3", "bob@x"))
    listed = onward("sessions", "--db", db, "--json").json["sessions"]
    assert {session["id"] for session in listed} == set(ids)
    ended = onward("sessions", "revoke", "ada@x", "--db", db, "--json").json["sessions"]
    assert {session["id"] for session in ended} == set(ids[:2])
    both = onward("sessions", "revoke", "bob@x", "--db", db)
    assert (both.status, "fits more than one person: b-2" in both.sentence) == (2, True)
    assert onward("sessions", "revoke", "b-2", "--db", db).status == 0
    assert onward("sessions", "revoke", ids[3][:8], "--db", db).status == 0
    gone = onward("sessions", "revoke", ids[3], "--db", db)
    assert "there is no session" in gone.sentence
    entries = onward("audit", "--db", db, "--json").json["entries"]
    assert [entry["action"] for entry in entries] == ["sign_in"] * 4 + ["revoke_session"] * 4
    assert {entry["name"].partition(":")[0] for entry in entries[4:]} == {"cli"}
