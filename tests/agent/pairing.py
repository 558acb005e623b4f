"""The faults for which strict providers refuse a history, written independently of `onward.agent.conversation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def badly_paired(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """An assistant's calls must be followed by exactly their results, each once, before any other message."""
    faults, at = [], 0
    while at < len(messages):
        message, at = messages[at], at + 1
        if message["role"] == "tool":
            faults.append(f"message {at - 1}: a result that follows no call")
            continue
        wanted = [call["id"] for call in message.get("tool_calls") or ()]
        got = []
        while wanted and at < len(messages) and messages[at]["role"] == "tool":
            got.append(messages[at]["tool_call_id"])
            at += 1
        if sorted(wanted) != sorted(got):
            faults.append(f"message {at}: the calls {wanted} have the results {got}")
    return faults
