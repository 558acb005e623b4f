"""Callers: their tenant, their key and their scopes. Pure; `server/access/auth.py` makes a caller of a request."""

from __future__ import annotations

from typing import Final, NamedTuple

READ: Final = "read"
SUBMIT: Final = "submit"
DECIDE: Final = "decide"
ADMIN: Final = "admin"

SCOPES: Final = (READ, SUBMIT, DECIDE, ADMIN)
"""Read; submit and control tasks; decide approvals, questions and doubts; administrate. No scope includes another."""


ROLES: Final = {
    "viewer": frozenset({READ}),
    "operator": frozenset({READ, SUBMIT}),
    "approver": frozenset({READ, DECIDE}),
    "admin": frozenset(SCOPES),
}
"""The roles of people, and the scopes that each role gives."""


ANONYMOUS: Final = "anonymous"
"""The principal of a request without a key, to a server that has no keys."""

PERSON_PREFIX: Final = "person:"
"""What the id of a person begins with. The id of a key has no colon."""


class Caller(NamedTuple):
    """The caller of a request. Without keys, all programs on this machine are the same caller, with all scopes."""

    tenant: str | None = None
    """The tenant whose tasks it sees; tenants never see each other's tasks. None: it belongs to no tenant."""
    scopes: frozenset[str] = frozenset(SCOPES)
    key: str | None = None
    """The id of its key."""
    name: str = ""
    """The name of its key. Decisions are recorded under this name, in the journal and the audit log."""
    agent: str | None = None
    """The agent that the key belongs to. Such a caller cannot decide on anything that this agent takes part in."""
    person: str | None = None
    """The person who signed in, as the identity provider names them. None: the caller is a program with a key."""
    roles: frozenset[str] = frozenset()
    """The roles of the person."""
    owner: str | None = None
    """The principal that the key acts for: it created the key over HTTP and so has seen it, or was named as its owner."""
    session: str | None = None
    """The id of the person's session."""

    @property
    def id(self) -> str | None:
        """The stable id of the caller, for the audit log, for tasks and for quotas: the id of its key, or `person:` and the person.
        None: the caller has neither."""
        return self.key if self.person is None else f"{PERSON_PREFIX}{self.person}"

    @property
    def sees(self) -> str | None:
        """The tenant whose tasks it sees: its own; "" for tasks without a tenant; None for all tasks, with the scope admin."""
        if self.tenant is not None:
            return self.tenant
        return None if ADMIN in self.scopes else ""

    @property
    def principal(self) -> str:
        """Who acts: two callers with the same principal count as one under approval rules. A key acts for its owner, and an account
        of the machine is the same at the command line and behind `onward mcp`."""
        if self.person is not None:
            return f"{PERSON_PREFIX}{self.person}"
        if self.owner is not None:
            return self.owner
        if self.key is not None:
            return f"key:{self.key}"
        door, mark, account = self.name.partition(":")
        return f"cli:{account}" if mark and door == "mcp" else self.name or ANONYMOUS

    @property
    def in_python(self) -> bool:
        """Whether it is a program that calls methods of the app, and no person or key."""
        return self.person is None and self.key is None and self.name.partition(":")[0] == "python"

    @property
    def approver_names(self) -> frozenset[str]:
        """The names under which an approval rule may list this caller. A key is listed by its own id, and never as its creator: the
        creator has roles, and the key has none."""
        if self.person is not None:
            return frozenset({f"person:{self.person}", *(f"role:{role}" for role in self.roles)})
        if self.key is not None:
            return frozenset({f"key:{self.key}"})
        return frozenset({self.name} if self.name else ())

    @property
    def title(self) -> str:
        """The caller in a sentence."""
        if self.person is not None:
            return f"{self.name or self.person!s} (person:{self.person})"
        if self.key is not None:
            return f"the key {self.name!r} (key:{self.key})"
        return self.name or "a caller without a key"


ANYBODY: Final = Caller()


def in_python(by: str = "") -> Caller:
    """The caller of a method of the app, for a person whom the program names."""
    return Caller(name=f"python:{by}" if by else "python")


KEYLESS: Final = (
    "without a key (`onward keys create` makes one) every program on this machine may do everything over HTTP, and requests from "
    "other machines are refused"
)
"""The sentence that a server without keys prints when it starts."""
