"""Pydantic AI agents as durable tasks: `pip install 'onward[pydantic-ai]'`.

`OnwardDurability` makes an agent durable in any handler, and `app.pydantic_ai(agent)` registers an agent as a handler.
"""

from onward.integrations.versions import check_version

check_version("pydantic-ai-slim", "2.66", "3", "pydantic-ai")

from onward.integrations.pydantic_ai.durability import OnwardDurability  # noqa: E402 -- an older version fails here

__all__ = ["OnwardDurability"]
