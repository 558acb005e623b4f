"""The policy: it decides what an agent does next. Pure, and replaceable.

The loop carries out the policy's actions and decides nothing itself. A replay calls the policy again, so the same `Seen` must give
the same action: no clock, no random numbers, no I/O. A policy may act without the model: `Do` some calls first, `Answer` from the
state, `Stop` when a flag is set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from onward.agent.model import Reply, ToolCall
from onward.core.state import AgentState

MAX_REPEATED_TURNS = 3
"""After so many turns in a row with the very same calls, the policy tells the model so."""

MAX_USELESS_REPLIES = 3
"""After so many useless replies in a row, the agent gives up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """The facts on which a policy decides."""

    state: AgentState
    steps: int = 0
    """The number of model calls so far."""
    reply: Reply | None = None
    """The model's last reply, until an action has dealt with it."""
    answer: Any = None
    """The reply as the task's result, in the form that the agent's `result` asks for."""
    wrong: str = ""
    """Why the reply does not have that form."""
    useless: int = 0
    """The number of useless replies in a row before this one."""
    repeated: int = 0
    """The number of turns in a row with the very same calls."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """Call the model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Say:
    """Add a message for the model, before it is called again. This drops the last reply: its calls are not run."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Do:
    """Run these calls: those of the reply (calls of it that are not among them are not run), or calls of the policy's own."""

    calls: tuple[ToolCall, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """End the task with this result."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Fail the task. The reason says what to do about it."""

    why: str


Action = Ask | Say | Do | Answer | Stop
"""The next action of an agent, which its policy chooses."""

Policy = Callable[[Seen], Action]
"""Chooses the next action from the state that the agent sees. It is called again in a replay, so it must be deterministic."""

_REPEATED = (
    "You have asked for the very same calls {count} times in a row, and their results did not help. Do something else, or "
    "answer with what you have."
)
_CUT_OFF = (
    "Your last reply was longer than it may be and was cut off; nothing of it was done. Reply again, and shorter.",
    "allow it longer replies, ask for less at once, or use another model",
)
_WITHHELD = (
    "Your last reply was withheld by the provider's content filter. Put it another way.",
    "change the goal or the instructions, or use another model",
)
_EMPTY = (
    "Your last reply was empty. Call a tool, or answer.",
    "check the instructions, or use another model",
)
_FORM_ADVICE = "promise a simpler form, or use a model that keeps to it"


def usual(seen: Seen) -> Action:
    """Call the model and run its calls, until it answers. It drops a useless reply and tells the model why; after a few of them in a row
    the agent gives up."""
    reply = seen.reply
    if reply is None:
        return Say(_REPEATED.format(count=seen.repeated)) if seen.repeated >= MAX_REPEATED_TURNS else Ask()
    message, advice = _useless(reply) or ((seen.wrong, _FORM_ADVICE) if seen.wrong and not reply.calls else ("", ""))
    if not message:
        return Do(reply.calls) if reply.calls else Answer(seen.answer)
    if seen.useless + 1 < MAX_USELESS_REPLIES:
        return Say(message)
    return Stop(
        f"the model gave {MAX_USELESS_REPLIES} replies in a row that are of no use; the last message to it was: {message} Now {advice}"
    )


def _useless(reply: Reply) -> tuple[str, str] | None:
    """The message for the model and the advice for a person about a reply that cannot be used; None for one that can. The calls of a
    reply that was cut off never run, even if they look whole: a call without its last arguments is another call."""
    if reply.finish == "length":
        return _CUT_OFF
    if reply.finish == "content_filter":
        return _WITHHELD
    return None if reply.calls or reply.text.strip() else _EMPTY
