"""Errors for a known key that has the scope but may not do this: it belongs to a tenant, or to an agent."""

from __future__ import annotations

from onward.errors import Forbidden, OnwardError


class OwnCall(Forbidden):
    """An agent used its own key to decide on a task in which it takes part."""

    code = "own_call"

    def __init__(self, task_id: str, agent: str, name: str) -> None:
        self.task_id, self.agent = task_id, agent
        OnwardError.__init__(
            self,
            f"the key {name!r} belongs to the agent {agent!r}, which takes part in task {task_id} or its tree: "
            "a person or another key has to decide; nothing was written",
        )


class NotForTenants(Forbidden):
    """A key of a tenant was used for something beyond that tenant."""

    code = "not_for_tenants"

    def __init__(self, subject: str, tenant: str, name: str) -> None:
        self.tenant = tenant
        OnwardError.__init__(
            self,
            f"the key {name!r} is for tenant {tenant!r}, and this is about {subject}, beyond that tenant; use a key without a tenant",
        )
