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
