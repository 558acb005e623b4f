"""Agents of the OpenAI Agents SDK as durable tasks: `pip install 'onward[openai-agents]'`.

`app.openai_agent(agent)` registers an agent as a handler. In a handler of your own, `Runner.run(agent, …)` is durable as soon as this
module is imported: the SDK gives other programs one place for that, its default runner, which also runs agents that are tools.
"""

from onward.integrations.versions import check_version

check_version("openai-agents", "0.24", "0.25", "openai-agents")

from onward.integrations.openai_agents.runner import OnwardRunner, install  # noqa: E402 -- another version fails here
from onward.integrations.openai_agents.session import OnwardSession  # noqa: E402 -- as above

install()

__all__ = ["OnwardRunner", "OnwardSession"]
