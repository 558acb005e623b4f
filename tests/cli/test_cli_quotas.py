"""quotas: list, set, reset."""

from __future__ import annotations

from tests.cli.conftest import Run


def test_quotas_of_a_tenant_from_the_settings_to_its_own_and_back(onward: Run, db: str) -> None:
    assert "no tenants" in onward("quotas", "--db", db).err + onward("quotas", "--db", db).out
    onward("keys", "create", "--name", "shop", "--scope", "read", "--tenant", "acme", "--db", db)
    header, *rows = onward("quotas", "--db", db).out.splitlines()
    assert header.split() == ["TENANT", "QUOTA", "USED", "LIMIT", "FROM"]
    assert rows[0].split() == ["acme", "requests", "–", "200", "settings"]
    assert ["acme", "tasks", "0", "100,000", "settings"] in [row.split() for row in rows]
    changed = onward("quotas", "set", "acme", "--requests", "5", "--priority", "10", "--streams", "0", "--db", db)
    assert changed.status == 0
    assert changed.out.splitlines()[1].split() == ["acme", "requests", "–", "5", "its", "own"]
    listed = onward("quotas", "list", "--db", db, "--json").json["tenants"]
    quotas = {quota["name"]: quota for quota in listed[0]["quotas"]}
    assert quotas["priority"] == {"name": "priority", "limit": 10, "used": None, "own": True}
    assert quotas["tasks"] == {"name": "tasks", "limit": 100_000, "used": 0, "own": False}
    assert [row.split()[3] for row in onward("quotas", "--db", db).out.splitlines() if " streams " in row] == ["none"]
    actions = [entry["action"] for entry in onward("audit", "--db", db, "--json").json["entries"]]
    assert actions == ["create_key", "set_quota"]
    assert onward("quotas", "reset", "acme", "--db", db).status == 0
    (tenant,) = onward("quotas", "--db", db, "--json").json["tenants"]
    assert not any(quota["own"] for quota in tenant["quotas"])


def test_an_unknown_quota_is_refused_with_a_sentence(onward: Run, db: str) -> None:
    assert onward("quotas", "set", "acme", "--tasks", "5", "--db", db).status == 0, "it makes the file"
    nothing = onward("quotas", "set", "acme", "--db", db)
    assert (nothing.status, "name at least one quota" in nothing.sentence) == (2, True)
    wrong = onward("quotas", "set", "acme", "--queue-share", "101", "--db", db)
    assert (wrong.status, "a percentage" in wrong.sentence) == (2, True)
