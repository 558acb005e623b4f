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
    __getattr__, __dir__ = lazy(
        globals(),
        {
            "Action": "onward.agent.policy",
            "AgentState": "onward.core.state",
            "Answer": "onward.agent.policy",
            "AnsweredQuestion": "onward.core.state",
            "ArtifactRef": "onward.core.state",
            "Ask": "onward.agent.policy",
            "Constraints": "onward.core.state",
            "Do": "onward.agent.policy",
            "Emit": "onward.agent.model",
            "Fact": "onward.core.state",
            "HumanInTheLoop": "onward.core.state",
            "Limits": "onward.core.state",
            "McpServer": "onward.agent.mcp",
            "Message": "onward.agent.model",
            "Model": "onward.agent.model",
            "ModelBusy": "onward.agent.model",
            "ModelError": "onward.agent.model",
            "ModelRefused": "onward.agent.model",
            "ModelUnavailable": "onward.agent.model",
            "OffersTooMuch": "onward.agent.mcp",
            "OpenAIModel": "onward.agent.models.openai",
            "Policy": "onward.agent.policy",
            "Prices": "onward.agent.prices",
            "Reply": "onward.agent.model",
            "Request": "onward.agent.model",
            "Say": "onward.agent.policy",
            "ScriptedModel": "onward.agent.models.scripted",
            "Seen": "onward.agent.policy",
            "ServerAway": "onward.agent.mcp",
            "StatePatch": "onward.core.state",
            "Stop": "onward.agent.policy",
            "Tool": "onward.agent.tools",
            "ToolCall": "onward.agent.model",
            "ToolChanged": "onward.agent.mcp",
            "ToolSaidNo": "onward.agent.mcp",
            "Usage": "onward.agent.model",
            "tool": "onward.agent.tools",
            "usual": "onward.agent.policy",
        },
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
