"""The conversation of an agent of the OpenAI Agents SDK in the form that Onward shows to people: messages of chat completions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from onward.agent.model import Message, ToolCall
from onward.integrations.model_steps import Content


@dataclasses.dataclass(frozen=True, slots=True)
class Instructions:
    """The instructions of a request, which are no item of its input."""

    text: str


def content(instructions: str | None, items: str | Sequence[Any], tools: Sequence[Any]) -> Content:
    """The content of a request."""
    first = [Instructions(instructions)] if instructions else []
    return Content([*first, *([items] if isinstance(items, str) else items)], _convert, lambda: _specs(tools))


def tool_calls(output: Sequence[Any]) -> tuple[ToolCall, ...]:
    """The calls of functions in a reply."""
    items = (item_fields(item) for item in output if _kind(item) == "function_call")
    return tuple(ToolCall(item["call_id"], item["name"], item["arguments"]) for item in items)


def reply_text(output: Sequence[Any]) -> str:
    """The text of a reply."""
    return "".join(_text(item_fields(item)) for item in output if _kind(item) == "message")


def _kind(item: Any) -> Any:
    return item.get("type") if isinstance(item, Mapping) else getattr(item, "type", None)


def item_fields(item: Any) -> Mapping[str, Any]:
    """The fields of an item, which is a model of pydantic or a dict."""
    fields: Mapping[str, Any] = item.model_dump(mode="json") if hasattr(item, "model_dump") else item
    return fields


def _convert(item: Any) -> list[Message]:
    if isinstance(item, Instructions):
        return [{"role": "system", "content": item.text}]
    if isinstance(item, str):
        return [{"role": "user", "content": item}]
    fields = item_fields(item)
    match fields.get("type"):
        case "function_call":
            function = {"name": fields["name"], "arguments": fields["arguments"]}
            calls = [{"id": fields["call_id"], "type": "function", "function": function}]
            return [{"role": "assistant", "content": "", "tool_calls": calls}]
        case "function_call_output":
            output = fields["output"]
            text = output if isinstance(output, str) else json.dumps(output)
            return [{"role": "tool", "tool_call_id": fields["call_id"], "content": text}]
        case "message" | None:
            return [{"role": str(fields.get("role", "user")), "content": _text(fields)}]
        case kind:
            return [{"role": "assistant", "content": f"({kind})"}]


def _text(fields: Mapping[str, Any]) -> str:
    content = fields.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content or ())


def _specs(tools: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": getattr(tool, "description", ""),
                "parameters": getattr(tool, "params_json_schema", {}),
            },
        }
        for tool in tools
    ]
