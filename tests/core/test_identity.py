"""The claims of a provider as a person with roles and a tenant."""

from __future__ import annotations

from typing import Any

import pytest

from onward.config import Settings
from onward.core.identity import ClaimRules, SignInRefused, claim, parse_role_map
from onward.core.session import SessionRow, full_name, new_token, token_hash
from onward.errors import BadSetting

ADA: dict[str, Any] = {"sub": "a-1", "email": "ada@example.com", "email_verified": True, "groups": ["ops", "other"]}
MAPPED = ClaimRules(role_map={"ops": "operator", "chiefs": "admin", "leads": "approver"})


def refused(rules: ClaimRules, claims: dict[str, Any]) -> SignInRefused:
    with pytest.raises(SignInRefused) as refusal:
        rules.identity(claims)
    return refusal.value


def test_groups_become_roles_by_the_map_and_without_one_by_their_names() -> None:
    ada = MAPPED.identity(ADA)
    assert (ada.person, ada.name, ada.roles, ada.tenant) == ("a-1", "ada@example.com", {"operator"}, None)
    assert MAPPED.identity({**ADA, "groups": ["ops", "leads"]}).roles == {"operator", "approver"}
    assert MAPPED.identity({**ADA, "groups": "chiefs"}).roles == {"admin"}
    assert ClaimRules().identity({**ADA, "groups": ["viewer", "ops"]}).roles == {"viewer"}
    assert refused(MAPPED, {**ADA, "groups": ["admin"]}).cause == "no_role", "with a map, a name of a role is no role"


@pytest.mark.parametrize("groups", [None, [], ["nobody"], [1, {"a": 1}], {"ops": True}, 7, "Ops", "ops,chiefs"])
def test_a_person_without_a_role_is_refused_with_a_sentence(groups: Any) -> None:
    refusal = refused(MAPPED, {**ADA, "groups": groups})
    assert (refusal.cause, refusal.person) == ("no_role", "a-1")
    assert "ada@example.com has no role here" in str(refusal)
    assert "ask your administrator" in str(refusal)


def test_a_claim_may_stand_in_an_object_and_may_have_dots_in_its_name() -> None:
    rules = ClaimRules(roles_claim="realm_access.roles")
    assert rules.identity({"sub": "a", "realm_access": {"roles": ["viewer"]}}).roles == {"viewer"}
    assert ClaimRules(roles_claim="https://x.example/roles").identity(
        {"sub": "a", "https://x.example/roles": ["admin"]}
    )
    assert rules.incomplete({"sub": "a", "name": "A", "realm_access": 5})
    assert rules.incomplete({"sub": "a", "realm_access": {"roles": []}}), "it has no readable name"
    assert not rules.incomplete({"sub": "a", "name": "A", "realm_access": {"roles": []}})
    assert claim({"a": {"b": None}}, "a.b") is None


def test_with_a_tenant_claim_nobody_is_without_a_tenant_unless_the_operator_says_so() -> None:
    rules = MAPPED._replace(tenant_claim="org", no_tenant="example-ops")
    assert rules.identity({**ADA, "org": "acme"}).tenant == "acme"
    assert rules.identity({**ADA, "org": "example-ops"}).tenant is None
    for org in (
        {},
        {"org": ""},
        {"org": None},
        {"org": ["acme"]},
        {"org": "a\nb"},
        {"org": " acme"},
        {"org": "x" * 513},
    ):
        assert refused(rules, {**ADA, "groups": ["chiefs"], **org}).cause == "no_tenant", "not even an admin"
    assert refused(MAPPED._replace(tenant_claim="org"), ADA).cause == "no_tenant"
    assert MAPPED.identity({**ADA, "org": "acme"}).tenant is None, "no claim of tenants was named"


def test_the_id_is_stable_and_the_name_is_readable() -> None:
    assert MAPPED.identity({**ADA, "email_verified": False, "name": "Ada L."}).name == "Ada L."
    assert MAPPED.identity({"sub": "a-1", "groups": ["ops"]}).name == "a-1"
    assert MAPPED.identity({**ADA, "email": "x\u202e\n" + "y" * 500}).name.isprintable()
    assert len(MAPPED.identity({**ADA, "email": "y" * 500}).name) <= 200
    assert MAPPED._replace(person_claim="oid").identity({**ADA, "oid": "o-7"}).person == "o-7"
    for sub in (None, "", 5, "a\n", "x" * 256, ["a"]):
        assert refused(MAPPED, {**ADA, "sub": sub}).cause == "no_person"
    by_email = MAPPED._replace(person_claim="email")
    assert by_email.identity(ADA).person == "ada@example.com"
    for verified in (False, None, "true"):
        assert refused(by_email, {**ADA, "email_verified": verified}).cause == "no_person"


def test_nobody_can_take_the_id_of_another_by_a_name() -> None:
    assert full_name("bob (a-1)", "b-2") == "bob (a-1) (b-2)"
    assert full_name("a-1", "a-1") == "a-1"


def test_a_session_gives_the_scopes_of_its_roles() -> None:
    row = SessionRow("s1", b"", "a-1", "ada@example.com", "operator approver", "acme", 0, 0, 10, 100, 5)
    caller = row.caller
    assert caller.scopes == {"read", "submit", "decide"}
    assert (caller.id, caller.key, caller.session) == ("person:a-1", None, "s1")
    assert caller.name == "ada@example.com (a-1)"
    assert row._replace(roles="former").caller.scopes == frozenset(), "a role that this version does not know"
    assert row.valid
    assert not row._replace(now=10).valid
    assert not row._replace(last_used_at=99, now=100).valid


def test_a_token_has_256_bits_and_nothing_else_is_one() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 43 and token_hash(token) for token in tokens)
    assert [text for text in ("", "x" * 42, "x" * 44, "é" * 43, "x" * 42 + "\n") if token_hash(text)] == []


@pytest.mark.parametrize("setting", ["ops", "ops=", "=admin", "ops=root", "ops=viewer,ops=admin"])
def test_a_map_that_makes_no_sense_is_refused(setting: str) -> None:
    with pytest.raises(BadSetting):
        parse_role_map(setting)


def test_a_map() -> None:
    assert parse_role_map("") is None
    assert parse_role_map(" /team/a=b=viewer , leads=approver,") == {"/team/a=b": "viewer", "leads": "approver"}


GOOD = {"oidc_issuer": "https://id.example.com", "oidc_client_id": "onward", "public_url": "https://onward.example.com"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"oidc_issuer": "http://id.example.com"},
        {"oidc_issuer": "https://id.example.com/?a=1"},
        {"oidc_issuer": "id.example.com"},
        {"oidc_client_id": ""},
        {"public_url": ""},
        {"public_url": "http://onward.example.com"},
        {"public_url": "https://user:pass@onward.example.com"},
        {"public_url": "https://onward.example.com:no"},
        {"oidc_scopes": "email"},
        {"oidc_roles": "ops=root"},
        {"oidc_no_tenant": "ops"},
        {"session_idle_s": 10.0},
        {"session_max_s": 600.0},
    ],
)
def test_settings_that_would_not_be_safe_are_refused(wrong: dict[str, Any]) -> None:
    assert Settings(**GOOD)
    with pytest.raises(BadSetting):
        Settings(**{**GOOD, **wrong})
