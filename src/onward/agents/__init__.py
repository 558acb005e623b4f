"""Public names for authors of agents: state and patches, policies, models, tools and MCP servers.

The code is in `onward.agent` and `onward.core`; import these names from here. A name is imported when it is first used:
`OpenAIModel` needs `onward[openai]`, and the other names work without it.
"""

from typing import TYPE_CHECKING

from onward.lazy import lazy

if TYPE_CHECKING:
    from onward.agent.mcp import McpServer, OffersTooMuch, ServerAway, ToolChanged, ToolSaidNo
    from onward.agent.model import (
        Emit,
        Message,
        Model,
        ModelBusy,
        ModelError,
        ModelRefused,
        ModelUnavailable,
        Reply,
        Request,
        ToolCall,
        Usage,
    )
    from onward.agent.models.openai import OpenAIModel
    from onward.agent.models.scripted import ScriptedModel
    from onward.agent.policy import Action, Answer, Ask, Do, Policy, Say, Seen, Stop, usual
    from onward.agent.prices import Prices
    from onward.agent.tools import Tool, tool
    from onward.core.state import (
        AgentState,
        AnsweredQuestion,
        ArtifactRef,
        Constraints,
        Fact,
        HumanInTheLoop,
        Limits,
        StatePatch,
    )
else:
    _NAMES_BY_MODULE = {
        "onward.agent.mcp": "McpServer OffersTooMuch ServerAway ToolChanged ToolSaidNo",
        "onward.agent.model": "Emit Message Model ModelBusy ModelError ModelRefused ModelUnavailable Reply Request ToolCall Usage",
        "onward.agent.models.openai": "OpenAIModel",
        "onward.agent.models.scripted": "ScriptedModel",
        "onward.agent.policy": "Action Answer Ask Do Policy Say Seen Stop usual",
        "onward.agent.prices": "Prices",
        "onward.agent.tools": "Tool tool",
        "onward.core.state": "AgentState AnsweredQuestion ArtifactRef Constraints Fact HumanInTheLoop Limits StatePatch",
    }
    __getattr__, __dir__ = lazy(
        globals(), {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}
    )

__all__ = [
    "Action",
    "AgentState",
    "Answer",
    "AnsweredQuestion",
    "ArtifactRef",
    "Ask",
    "Constraints",
    "Do",
    "Emit",
    "Fact",
    "HumanInTheLoop",
    "Limits",
    "McpServer",
    "Message",
    "Model",
    "ModelBusy",
    "ModelError",
    "ModelRefused",
    "ModelUnavailable",
    "OffersTooMuch",
    "OpenAIModel",
    "Policy",
    "Prices",
    "Reply",
    "Request",
    "Say",
    "ScriptedModel",
    "Seen",
    "ServerAway",
    "StatePatch",
    "Stop",
    "Tool",
    "ToolCall",
    "ToolChanged",
    "ToolSaidNo",
    "Usage",
    "tool",
    "usual",
]
