"""Why a door stays shut for a key that is known: beside its scopes, whose it is."""

from __future__ import annotations

from onward.errors import Forbidden, OnwardError


class OwnCall(Forbidden):
    """An agent's own key, for something in which that agent has a part."""

    code = "own_call"

    def __init__(self, task_id: str, agent: str, name: str) -> None:
        self.task_id, self.agent = task_id, agent
        OnwardError.__init__(
            self,
            f"the key {name!r} is the agent {agent!r}'s own, and {agent!r} has a part in task {task_id} or what belongs to it: "
            "somebody else has to decide; nothing was written",
        )


class NotForTenants(Forbidden):
    """What belongs to all is not for one of them."""

    code = "not_for_tenants"

    def __init__(self, what: str, tenant: str, name: str) -> None:
        self.tenant = tenant
        OnwardError.__init__(
            self,
            f"the key {name!r} is for tenant {tenant!r}, and this is about {what}, beyond that tenant; use a key without a tenant",
        )
