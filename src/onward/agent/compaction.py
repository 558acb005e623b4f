"""Compaction: when a conversation no longer fits, a summary takes the place of its older turns.

    turns 1 … 40 ─► transcript (an artifact, which the model can still search) ─► model (a step) ─► summary ─► turns 31 … 40

Half of the room is for the latest turns, and at most a quarter is for the summary, so that the next compaction is some turns away. A
transcript is one string, not messages: any model can read it, and no provider can refuse it for a call without a result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onward.agent.model import Message
from onward.core.slice import cut

RETRY_AFTER_TURNS = 10
"""Turns until a compaction that failed is tried again."""

SUMMARISE = (
    "You are given the older part of a conversation of an agent that works towards a goal with tools. The agent will go on with "
    "your summary in its place. Keep what it needs: what was asked for and decided, what was done and what came of it, names, "
    "numbers, paths and ids to the letter, what failed and why, what is still open. Leave out everything else. Write only the "
    "summary."
)


def transcript(messages: Iterable[Message]) -> str:
    """Messages as one string."""
    return "\n".join(line for message in messages for line in _lines(message))


def _lines(message: Message) -> Iterable[str]:
    role = "result" if message["role"] == "tool" else message["role"]
    if text := str(message.get("content") or ""):
        yield f"[{role}] {text}"
    for call in message.get("tool_calls", ()):
        yield f"[{role} calls] {call['function']['name']}({call['function']['arguments']})"


def summary_message(text: str, max_bytes: int, turns: int, artifact: str) -> dict[str, Any]:
    """The message that takes the place of the older turns."""
    where = f"{turns} earlier turns were summed up; read_artifact({artifact!r}) has them to the letter"
    return {"role": "user", "content": f"({where}.)\n{cut(text.strip(), max_bytes)}"}
