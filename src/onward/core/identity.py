"""The claims of an identity provider as a person with roles and a tenant. Pure; `server/access/oidc.py` verifies the claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from onward.core.caller import ROLES
from onward.core.text import safe, short
from onward.errors import BadSetting, OnwardError

MAX_PERSON_CHARS: Final = 255
"""Characters of the id of a person; OpenID Connect allows no longer `sub`."""

MAX_NAME_CHARS: Final = 200
MAX_TENANT_CHARS: Final = 512

NAME_CLAIMS: Final = ("email", "preferred_username", "name")
"""Claims with a readable name, the best one first."""

MISSING: Final = object()
"""The value of a claim that is not there."""


class SignInRefused(OnwardError):
    """A person, or a browser, is not signed in. `cause` is a word for programs, and for the bound of entries in the audit log."""

    code = "sign_in_refused"
    status = 403
    exit_status = 2

    def __init__(self, cause: str, sentence: str, person: str = "") -> None:
        self.cause, self.person = cause, person
        super().__init__(sentence)


class Identity(NamedTuple):
    """A person who may sign in."""

    person: str
    """The stable id."""
    name: str
    """For people: an email address or a name. Not unique, and it may change."""
    roles: frozenset[str]
    tenant: str | None


class ClaimRules(NamedTuple):
    """Which claims say who a person is, and what they may do. `docs/guides/sign-in.md` explains each."""

    person_claim: str = "sub"
    roles_claim: str = "groups"
    role_map: Mapping[str, str] | None = None
    """Roles by values of the claim. None: the values are names of roles."""
    tenant_claim: str = ""
    no_tenant: str = ""
    """The value of the tenant claim for people who belong to no tenant."""

    def incomplete(self, claims: Mapping[str, Any]) -> bool:
        """Whether one of these claims is missing, or a readable name."""
        if not any(claims.get(name) for name in NAME_CLAIMS):
            return True
        names = [self.person_claim, self.roles_claim, *([self.tenant_claim] if self.tenant_claim else [])]
        return any(claim(claims, name) is MISSING for name in names)

    def identity(self, claims: Mapping[str, Any]) -> Identity:
        """The person of verified claims. Raises SignInRefused for a person without a role, or without the tenant that the rules ask for."""
        person = self._person(claims)
        name = _name(claims, person)
        roles = self._roles(claims)
        if not roles:
            wanted = ", ".join(sorted(self.role_map) if self.role_map else ROLES)
            raise SignInRefused(
                "no_role",
                f"the person {name} has no role here: the claim {self.roles_claim!r} has none of {short(wanted, 200)}; ask your administrator "
                "for one, then sign in again",
                person,
            )
        return Identity(person, name, roles, self._tenant(claims, name, person))

    def _person(self, claims: Mapping[str, Any]) -> str:
        person = claim(claims, self.person_claim)
        if not is_name(person, MAX_PERSON_CHARS):
            raise SignInRefused(
                "no_person",
                f"the claim {self.person_claim!r}, which identifies a person here, is missing or is not a string of 1 to "
                f"{MAX_PERSON_CHARS} printable characters; the administrator can name another claim (ONWARD_OIDC_PERSON_CLAIM)",
            )
        if self.person_claim == "email" and claims.get("email_verified") is not True:
            raise SignInRefused(
                "no_person",
                "the identity provider has not verified this email address, and it identifies a person here",
            )
        return str(person)

    def _roles(self, claims: Mapping[str, Any]) -> frozenset[str]:
        value = claim(claims, self.roles_claim)
        values = value if isinstance(value, list) else [value]
        words = [word for word in values if isinstance(word, str)]
        if self.role_map is None:
            return frozenset(word for word in words if word in ROLES)
        return frozenset(self.role_map[word] for word in words if word in self.role_map)

    def _tenant(self, claims: Mapping[str, Any], name: str, person: str) -> str | None:
        if not self.tenant_claim:
            return None
        tenant = claim(claims, self.tenant_claim)
        if not is_name(tenant, MAX_TENANT_CHARS):
            raise SignInRefused(
                "no_tenant",
                f"the person {name} has no tenant: the claim {self.tenant_claim!r} is missing, or is not one string of printable characters; ask "
                "your administrator for it, then sign in again",
                person,
            )
        return None if self.no_tenant and tenant == self.no_tenant else str(tenant)


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """The value of a claim, or MISSING. A name with dots also names a claim in an object, as `realm_access.roles` does."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def parse_role_map(setting: str) -> dict[str, str] | None:
    """The roles by groups of `GROUP=ROLE,…`; None for an empty setting. Raises BadSetting."""
    pairs = [pair.strip() for pair in setting.split(",") if pair.strip()]
    roles: dict[str, str] = {}
    for pair in pairs:
        group, _, role = (word.strip() for word in pair.rpartition("="))
        if not group or role not in ROLES:
            raise BadSetting("oidc_roles", pair, f"GROUP=ROLE with one of the roles {', '.join(ROLES)}")
        if roles.setdefault(group, role) != role:
            raise BadSetting("oidc_roles", pair, f"one role for each group; {group!r} has {roles[group]!r} already")
    return roles or None


def _name(claims: Mapping[str, Any], person: str) -> str:
    """A readable name: the email address unless the provider calls it unverified, else a name, else the id."""
    email = claims.get("email") if claims.get("email_verified") is not False else None
    for name in (email, *(claims.get(name) for name in NAME_CLAIMS[1:])):
        if isinstance(name, str) and name.strip():
            return short(name.strip(), MAX_NAME_CHARS)
    return safe(person)


def is_name(value: Any, most: int) -> bool:
    """Whether a value can be the id of a person, or the name of a tenant, in a claim."""
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable() and value == value.strip()
