"""encryption and erase: keys, rotation, and the data of a person."""

from __future__ import annotations

import pytest

from onward.service import encryption
from tests.cli.conftest import Run


def test_keys_rotation_and_erasure(onward: Run, db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (onward("encryption", "new-key", name).out.strip() for name in ("old", "new"))
    assert old.startswith("old=")
    assert old != onward("encryption", "new-key", "old").out.strip(), "each key is random"
    monkeypatch.setattr(encryption, "TTL_S", 0.0)
    monkeypatch.setenv("ONWARD_ENCRYPTION_LABEL", "person")
    monkeypatch.setenv("ONWARD_ENCRYPTION_KEYS", old)
    submitted = onward("submit", "work", '"a word"', "--label", "person=ann", "--db", db, "--anyway", "--json")
    task_id = submitted.json["task_id"]
    assert onward("show", task_id, "--db", db, "--json").json["input"] == "a word"
    monkeypatch.setenv("ONWARD_ENCRYPTION_KEYS", f"{new},{old}")
    rotated = onward("encryption", "rotate", "--db", db, "--json")
    assert rotated.json == {"wrapped": 1, "master": "new"}
    assert onward("encryption", "--db", db, "--json").json["masters"] == {"new": 1}
    assert onward("encryption", "status", "--db", db, "--json").json["masters"] == {"new": 1}
    monkeypatch.setenv("ONWARD_ENCRYPTION_KEYS", new)
    refused = onward("erase", "--label", "person=ann", "--db", db)
    assert (refused.status, "1 unfinished task" in refused.sentence) == (2, True)
    erased = onward("erase", "--label", "person=ann", "--force", "--db", db)
    assert "destroyed 1 data key" in erased.out
    shown = onward("show", task_id, "--db", db)
    assert "erased: the key that encrypted them was destroyed" in shown.out
    assert "a word" not in shown.out
    assert onward("show", task_id, "--db", db, "--json").json["erased"] is True
    assert onward("doctor", "--db", db).status == 0
    nothing = onward("erase", "--tenant", "acme", "--db", db)
    assert "has no data key" in nothing.sentence
    unnamed = onward("erase", "--tenant", "", "--db", db)
    assert (unnamed.status, "needs the name of a tenant" in unnamed.sentence) == (2, True)


def test_sealing_of_what_was_written_before(onward: Run, db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONWARD_ENCRYPTION_KEYS", raising=False)
    for number in range(3):
        onward("submit", "work", f'"word {number}"', "--db", db, "--anyway")
    refused = onward("encryption", "seal", "--db", db)
    assert refused.status == 2
    assert "set ONWARD_ENCRYPTION_KEYS" in refused.sentence
    monkeypatch.setenv("ONWARD_ENCRYPTION_KEYS", onward("encryption", "new-key", "k1").out.strip())
    assert onward("encryption", "--db", db, "--json").json["plain_tasks"] == 3
    sealed = onward("encryption", "seal", "--db", db)
    assert "encrypted 3 payloads of 3 tasks" in sealed.out
    again = onward("encryption", "seal", "--db", db, "--json").json
    assert (again["tasks"], again["payloads"], again["plain_tasks"]) == (3, 0, 0)
    assert onward("encryption", "seal", "--after", again["last"], "--db", db, "--json").json["tasks"] == 0
