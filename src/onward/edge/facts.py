"""Calls that only tell: who asks, what can be asked for, and how a task came to where it is."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from pydantic import Field

from onward.edge.calls import Answer, Asked, Call, Shape


class Who(Shape):
    """Who asks, as the server sees it: what a console may show."""

    name: str = Field(description="What the key is called; empty where no key was shown.")
    key: str | None = Field(description="The id of the key; null where no key was shown.")
    scopes: list[str]
    tenant: str | None
    agent: str | None = Field(description="The agent whose own key it is.")
    version: str = Field(description="Of the server.")


class HandlerShape(Shape):
    """What does tasks of a name."""

    name: str
    doc: str
    schema_: dict[str, Any] = Field(serialization_alias="schema", description="JSON schema of the input.")
    kind: Literal["task", "agent"]
    queue: str
    here: bool = Field(description="Whether the process that answers has it.")
    workers: int = Field(description="Living workers that have it.")
    version: str | None = Field(description="Of Onward, as those workers have it.")


class Handlers(Shape):
    """All of them, by name."""

    handlers: list[HandlerShape]


async def whoami(asked: Asked) -> Answer:
    """`GET /api/whoami`: for whoever has a key, whatever it is good for."""
    caller = asked.door.caller
    told = {"name": caller.name, "key": caller.key, "tenant": caller.tenant, "agent": caller.agent}
    return Answer({**told, "scopes": sorted(caller.scopes), "version": asked.edge.version})


async def handlers(asked: Asked) -> Answer:
    """`GET /api/handlers`."""
    return Answer({"handlers": [dataclasses.asdict(one) for one in await asked.door.handlers()]})


CALLS = [
    Call("GET", "/api/whoami", "whoami", whoami, "Who asks, and what they may do.", {200: ("You.", Who)}, tag="access"),
    Call(
        "GET",
        "/api/handlers",
        "handlers",
        handlers,
        "What can be asked for, and what it takes.",
        {200: ("All handlers.", Handlers)},
        tag="place",
    ),
]
