"""Reads and writes of a session of the OpenAI Agents SDK as steps: a replay sees the history that the run saw, and adds no item twice."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_core import to_jsonable_python

from onward.core import wire
from onward.engine.context.context import current
from onward.engine.shift.scope import SCOPE
from onward.integrations.openai_agents.errors import run_step
from onward.integrations.openai_agents.session import EFFECTS, OnwardSession
from onward.integrations.tool_rules import ONCE

METHODS = frozenset({"get_items", "add_items", "pop_item"})

Call = Callable[..., Awaitable[Any]]


async def call_session(call: Call, method: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a session, by the function of the SDK for that."""
    name, session = method.__name__, getattr(method, "__self__", None)

    async def work() -> str:
        if name == "add_items" and SCOPE.get().resumed and await added():
            return current().keep(b"null")
        effect = current().key
        token = EFFECTS.set(f"{effect}/{number}" for number in itertools.count())
        try:
            result = await call(method, *args, **kwargs)
        finally:
            EFFECTS.reset(token)
        return current().keep(wire.encode(to_jsonable_python(result), f"the result of session.{name}"))

    async def added() -> bool:
        """Whether an earlier shift added the items: then they are the last ones of the session. Ours knows its writes by their names."""
        items = to_jsonable_python(args[0])
        if session is None or isinstance(session, OnwardSession) or not items:
            return False
        return bool(to_jsonable_python(await call(session.get_items, limit=len(items), **kwargs)) == items)

    kept = await run_step(work, f"session {name}", retry=ONCE)
    (data,) = await current().kept(kept)
    return wire.decode(data)
