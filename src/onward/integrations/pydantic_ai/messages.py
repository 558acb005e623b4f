"""The conversation of a Pydantic AI agent in the form that Onward shows to people: messages of OpenAI's chat completions.

The framework's own messages stay the ones that its models get. These are read by the console, the command line and the estimate of tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    FileUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters

from onward.agent.model import Message, ToolCall
from onward.core import wire
from onward.integrations.model_steps import Content

FINISH = {"length": "length", "content_filter": "content_filter", "tool_call": "tool_calls", "error": "error"}


def content(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> Content:
    """The content of a request. The instructions of the latest message come first."""
    latest = next((message for message in reversed(messages) if isinstance(message, ModelRequest)), None)
    instructions = None if latest is None else latest.instructions
    return Content(
        [instructions, *messages] if instructions else messages, _convert, functools.partial(tool_specs, parameters)
    )


def _convert(message: ModelMessage | str) -> list[Message]:
    if isinstance(message, str):
        return [{"role": "system", "content": message}]
    return [reply_message(message)] if isinstance(message, ModelResponse) else _request(message)


def reply_message(response: ModelResponse) -> Message:
    """A reply of a model as a message of the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": reply_text(response)}
    if calls := tool_calls(response):
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def reply_text(response: ModelResponse) -> str:
    """The text of a reply, without the model's thoughts."""
    pieces = []
    for part in response.parts:
        if isinstance(part, TextPart):
            pieces.append(part.content)
        elif isinstance(part, FilePart):
            pieces.append(_describe(part.content))
    return "".join(pieces)


def tool_calls(response: ModelResponse) -> tuple[ToolCall, ...]:
    """The calls in a reply that the agent runs. The provider runs those of its own tools."""
    return tuple(
        ToolCall(part.tool_call_id, part.tool_name, part.args_as_json_str())
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )


def tool_specs(parameters: ModelRequestParameters) -> list[dict[str, Any]]:
    """The tools of a request, in the form of chat completions."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters_json_schema,
            },
        }
        for tool in [*parameters.function_tools, *parameters.output_tools]
    ]


def result_text(recorded: Any) -> str:
    """The recorded result of a tool as text: its output, or the message with which it refused."""
    fields = recorded if isinstance(recorded, dict) else {}
    output = fields.get("result", fields.get("message", recorded))
    return output if isinstance(output, str) else wire.encode(output).decode()


def _request(request: ModelRequest) -> list[Message]:
    messages: list[Message] = []
    for part in request.parts:
        if isinstance(part, SystemPromptPart):
            messages.append({"role": "system", "content": part.content})
        elif isinstance(part, UserPromptPart):
            messages.append({"role": "user", "content": _text(part.content)})
        elif isinstance(part, ToolReturnPart):
            messages.append(_tool_message(part.tool_call_id, part.model_response_str()))
        elif isinstance(part, RetryFeedbackPart):
            messages.append({"role": "user", "content": part.model_response()})
        elif (text := getattr(part, "content", None)) is not None:
            messages.append({"role": "user", "content": str(text)})
    return messages


def _tool_message(call_id: str, text: str) -> Mapping[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _text(content: str | Iterable[Any]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        _describe(item) for item in content if isinstance(item, str | TextContent | FileUrl | BinaryContent)
    )


def _describe(item: str | TextContent | FileUrl | BinaryContent) -> str:
    """A piece of content as text; of a file only its kind and its size or address."""
    if isinstance(item, str):
        return item
    if isinstance(item, TextContent):
        return item.content
    if isinstance(item, BinaryContent):
        return f"({item.media_type}, {len(item.data):,} bytes)"
    return f"({type(item).__name__}: {item.url})"
