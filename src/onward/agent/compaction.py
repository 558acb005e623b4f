"""Compaction: when a conversation no longer fits, its older turns are told by a summary.

    turns 1 … 40 ─► transcript (an artifact, which the model can still search) ─► model (a step) ─► summary ─► turns 31 … 40

Half of the room is kept for the latest turns, and at most a quarter goes to the summary, so that the next compaction is some
turns away. A transcript is a text, not messages: any model can read it, and no provider finds a call without its result in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onward.agent.conversation import excerpt
from onward.agent.model import Message
from onward.core.slice import cut

PAUSE = 10
"""Turns before a compaction that failed is tried again."""

SUMMARISE = (
    "You are given the older part of a conversation of an agent that works towards a goal with tools. The agent will go on with "
    "your summary in its place. Keep what it needs: what was asked for and decided, what was done and what came of it, names, "
    "numbers, paths and ids to the letter, what failed and why, what is still open. Leave out everything else. Write only the "
    "summary."
)


def transcript(messages: Iterable[Message]) -> str:
    """What was said, as a text."""
    return "\n".join(line for message in messages for line in _lines(message))


def _lines(message: Message) -> Iterable[str]:
    who = "result" if message["role"] == "tool" else message["role"]
    if text := str(message.get("content") or ""):
        yield f"[{who}] {text}"
    for call in message.get("tool_calls", ()):
        yield f"[{who} calls] {call['function']['name']}({call['function']['arguments']})"


def question(text: str, most: int) -> dict[str, Any]:
    """The transcript as a model is asked to sum it up: both ends of it, where it is too long."""
    return {"role": "user", "content": excerpt(text, most)}


def summary(text: str, most: int, turns: int, artifact: str) -> dict[str, Any]:
    """What stands in the conversation from now on."""
    where = f"{turns} earlier turns were summed up; read_artifact({artifact!r}) has them to the letter"
    return {"role": "user", "content": f"({where}.)\n{cut(text.strip(), most)}"}
