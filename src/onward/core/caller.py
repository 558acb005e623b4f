"""Callers: who asks, for whom, and what they may do. Pure; `server/access/auth.py` finds out who it is."""

from __future__ import annotations

from typing import Final, NamedTuple

READ: Final = "read"
SUBMIT: Final = "submit"
DECIDE: Final = "decide"
ADMIN: Final = "admin"

SCOPES: Final = (READ, SUBMIT, DECIDE, ADMIN)
"""To look; to ask for work and steer it; to decide what waits for people; to run the place. Each stands alone."""


class Caller(NamedTuple):
    """Somebody at a door. Without keys, everybody on this machine is the same caller, who may do everything."""

    tenant: str | None = None
    """Whose tasks these are; tenants never see each other's. None is the tenant of all who name none."""
    scopes: frozenset[str] = frozenset(SCOPES)
    key: str | None = None
    """The id of the key that was shown."""
    name: str = ""
    """What the key is called: this is who decided, in the journal and the audit."""
    agent: str | None = None
    """The agent whose own key it is: it decides on nothing that this agent asks."""

    @property
    def sees(self) -> str | None:
        """Whose tasks: those of this tenant; "" those without a tenant; None all, for whoever runs the place as a whole."""
        if self.tenant is not None:
            return self.tenant
        return None if ADMIN in self.scopes else ""


ANYBODY: Final = Caller()

KEYLESS: Final = (
    "without a key (`onward keys create` makes one) every program on this machine may do everything over HTTP, and nobody else is "
    "answered"
)
"""What a server says at its start that answers without a key."""
