"""Telemetry of an agent's model and tool calls: spans by the GenAI conventions, and counters of tokens and money.

A replay takes the reply from the journal and makes no model call, so it makes no span and counts nothing. A span has the contents of
messages only where `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` allows it.
"""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from onward import telemetry
from onward.agent.model import Message, Model, Reply, Request
from onward.telemetry import NO_SPAN, Span, captures_content, counters, span

_OPENAI = "openai"


@contextlib.contextmanager
def chat_span(model: Model, request: Request) -> Iterator[Span]:
    """The span around a model call."""
    if telemetry.tracer() is None:
        with _count_call(model.name):
            yield NO_SPAN
        return
    address = urllib.parse.urlsplit(str(getattr(model, "base_url", "")))
    attributes = {
        telemetry.OPERATION: "chat",
        telemetry.MODEL: model.name,
        telemetry.PROVIDER: str(getattr(model, "provider", "") or (_OPENAI if address.hostname else "custom")),
        telemetry.MAX_TOKENS: request.max_tokens,
        "server.address": address.hostname,
        "server.port": address.port,
        **_task_attributes(),
    }
    with _count_call(model.name), span(f"chat {model.name}", attributes, kind="CLIENT") as chat:
        if captures_content():
            chat.set(_request_attributes(request))
        yield chat


def record_reply(chat: Span, model: Model, reply: Reply, cost: float | None) -> None:
    """Count the tokens and the cost of a reply, and add them to its span. They count even if the step around the call fails."""
    usage, name = reply.usage, model.name
    for kind, tokens in (("input", usage.input), ("cached", usage.cached), ("output", usage.output)):
        if tokens:
            counters.add(telemetry.MODEL_TOKENS, name, kind, by=tokens)
    if cost:
        counters.add(telemetry.MODEL_COST, name, by=cost)
    if not chat.on:
        return
    chat.set(
        {
            telemetry.ANSWERED_BY: reply.model or None,
            telemetry.FINISH: [reply.finish],
            telemetry.INPUT_TOKENS: usage.input,
            telemetry.OUTPUT_TOKENS: usage.output,
            telemetry.CACHED_TOKENS: usage.cached,
            telemetry.COST: cost,
        }
    )
    if captures_content():
        chat.set(
            {telemetry.OUTPUT_MESSAGES: json.dumps([_message_parts(reply.message) | {"finish_reason": reply.finish}])}
        )


def tool_span(name: str, call_id: str, arguments: Mapping[str, Any]) -> Span:
    """The span around a tool call."""
    if telemetry.tracer() is None:
        return NO_SPAN
    attributes = {
        telemetry.OPERATION: "execute_tool",
        telemetry.TOOL: name,
        telemetry.TOOL_CALL: call_id,
        **_task_attributes(),
    }
    call = span(f"execute_tool {name}", attributes)
    if captures_content():
        call.set({telemetry.ARGUMENTS: json.dumps(arguments, default=str)})
    return call


def record_output(call: Span, output: Any) -> None:
    """Add the output of a tool to its span."""
    if call.on and captures_content():
        call.set({telemetry.RESULT: output if isinstance(output, str) else json.dumps(output, default=repr)})


@contextlib.contextmanager
def _count_call(model: str) -> Iterator[None]:
    outcome = "left"
    try:
        yield
        outcome = "answered"
    except Exception:
        outcome = "failed"
        raise
    finally:
        counters.add(telemetry.MODEL_CALLS, model, outcome)


def _task_attributes() -> dict[str, Any]:
    claimed = telemetry.CURRENT_TASK.get(None)
    if claimed is None:
        return {}
    return {telemetry.CONVERSATION: claimed.id, telemetry.AGENT: claimed.task, telemetry.TASK_ID: claimed.id}


def _request_attributes(request: Request) -> dict[str, Any]:
    system = [_text_part(message) for message in request.messages if message["role"] == "system"]
    others = [_message_parts(message) for message in request.messages if message["role"] != "system"]
    return {
        telemetry.SYSTEM_INSTRUCTIONS: json.dumps(system) if system else None,
        telemetry.INPUT_MESSAGES: json.dumps(others),
    }


def _text_part(message: Message) -> dict[str, Any]:
    return {"type": "text", "content": message.get("content") or ""}


def _message_parts(message: Message) -> dict[str, Any]:
    """A message in the form of the conventions: a role, and parts."""
    if message["role"] == "tool":
        response = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": "tool", "parts": [response]}
    parts = [_text_part(message)] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        parts.append(
            {"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": function["arguments"]}
        )
    return {"role": message["role"], "parts": parts}
