"""What others are told of an agent's questions and calls: spans by the GenAI conventions, and the count of tokens and money.

A question that a replay hands out is not asked, so nothing of this happens for it. What was said is in a span only where
`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` allows it.
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
def chat(model: Model, request: Request) -> Iterator[Span]:
    """Around a question to a model."""
    if telemetry.tracer() is None:
        with _counted(model.name):
            yield NO_SPAN
        return
    where = urllib.parse.urlsplit(str(getattr(model, "base_url", "")))
    said = {
        telemetry.OPERATION: "chat",
        telemetry.MODEL: model.name,
        telemetry.PROVIDER: str(getattr(model, "provider", "") or (_OPENAI if where.hostname else "custom")),
        telemetry.MAX_TOKENS: request.max_tokens,
        "server.address": where.hostname,
        "server.port": where.port,
        **_about(),
    }
    with _counted(model.name), span(f"chat {model.name}", said, kind="CLIENT") as asked:
        if captures_content():
            asked.set(_asked(request))
        yield asked


def answered(asked: Span, model: Model, reply: Reply, cost: float | None) -> None:
    """The model has answered: that was real, and is paid, whatever becomes of the step around it."""
    usage, name = reply.usage, model.name
    for kind, tokens in (("input", usage.input), ("cached", usage.cached), ("output", usage.output)):
        if tokens:
            counters.add(telemetry.MODEL_TOKENS, name, kind, by=tokens)
    if cost:
        counters.add(telemetry.MODEL_COST, name, by=cost)
    if not asked.on:
        return
    asked.set(
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
        asked.set({telemetry.OUTPUT_MESSAGES: json.dumps([_message(reply.message) | {"finish_reason": reply.finish}])})


def tool(name: str, call_id: str, arguments: Mapping[str, Any]) -> Span:
    """Around a call of a tool."""
    if telemetry.tracer() is None:
        return NO_SPAN
    said = {telemetry.OPERATION: "execute_tool", telemetry.TOOL: name, telemetry.TOOL_CALL: call_id, **_about()}
    called = span(f"execute_tool {name}", said)
    if captures_content():
        called.set({telemetry.ARGUMENTS: json.dumps(arguments, default=str)})
    return called


def returned(called: Span, output: Any) -> None:
    """The tool has returned."""
    if called.on and captures_content():
        called.set({telemetry.RESULT: output if isinstance(output, str) else json.dumps(output, default=repr)})


@contextlib.contextmanager
def _counted(model: str) -> Iterator[None]:
    outcome = "left"
    try:
        yield
        outcome = "answered"
    except Exception:
        outcome = "failed"
        raise
    finally:
        counters.add(telemetry.MODEL_CALLS, model, outcome)


def _about() -> dict[str, Any]:
    claimed = telemetry.CURRENT_TASK.get(None)
    if claimed is None:
        return {}
    return {telemetry.CONVERSATION: claimed.id, telemetry.AGENT: claimed.task, telemetry.TASK_ID: claimed.id}


def _asked(request: Request) -> dict[str, Any]:
    system = [_part(one) for one in request.messages if one["role"] == "system"]
    others = [_message(one) for one in request.messages if one["role"] != "system"]
    return {
        telemetry.SYSTEM_INSTRUCTIONS: json.dumps(system) if system else None,
        telemetry.INPUT_MESSAGES: json.dumps(others),
    }


def _part(message: Message) -> dict[str, Any]:
    return {"type": "text", "content": message.get("content") or ""}


def _message(message: Message) -> dict[str, Any]:
    """A message in the form of the conventions: a role, and parts."""
    if message["role"] == "tool":
        response = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": "tool", "parts": [response]}
    parts = [_part(message)] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        asked = call["function"]
        parts.append({"type": "tool_call", "id": call["id"], "name": asked["name"], "arguments": asked["arguments"]})
    return {"role": message["role"], "parts": parts}
