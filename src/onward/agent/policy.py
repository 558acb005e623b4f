"""The policy: what an agent does next, from what it has seen. Pure, and replaceable.

The loop does what the policy says and decides nothing itself. A policy is asked again in every replay, so the same `Seen` has
to give the same action: no clock, no chance, no world. It may act without the model: `Do` some calls first, `Answer` from the
state, `Stop` when a flag is set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from onward.agent.model import Reply, ToolCall
from onward.core.state import AgentState

REPEATS = 3
"""Turns in a row with the very same calls after which the model is told so."""

USELESS = 3
"""Replies in a row that are of no use, after which the agent gives up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What there is to decide on."""

    state: AgentState
    steps: int = 0
    """How often a model was asked."""
    reply: Reply | None = None
    """What the model said, as long as nothing was done about it."""
    answer: Any = None
    """What it said as the task's result, in the form that was promised."""
    wrong: str = ""
    """Why what it said does not have that form."""
    useless: int = 0
    """Replies in a row, before this one, of which nothing was made."""
    repeated: int = 0
    """Turns in a row that asked for the very same calls."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """Ask the model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Say:
    """Tell the model something, before it is asked again. A reply that was not used is over with this; its calls are not
    done."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Do:
    """Do these calls: those of the reply (what is left out of them is not done), or some of the policy's own."""

    calls: tuple[ToolCall, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The task is done, and this is its result."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """The task fails, for a reason that says what to do about it."""

    why: str


Action = Ask | Say | Do | Answer | Stop
Policy = Callable[[Seen], Action]

_AGAIN = (
    "You have asked for the very same calls {count} times in a row, and their results did not help. Do something else, or "
    "answer with what you have."
)
_CUT = (
    "Your last reply was longer than it may be and was cut off; nothing of it was done. Reply again, and shorter.",
    "allow it longer replies, ask for less at once, or use another model",
)
_WITHHELD = (
    "Your last reply was withheld by the provider's content filter. Put it another way.",
    "change the goal or the instructions, or use another model",
)
_SILENT = (
    "Your last reply was empty. Call a tool, or answer.",
    "check the instructions, or use another model",
)
_FORM = "promise a simpler form, or use a model that keeps to it"


def usual(seen: Seen) -> Action:
    """Ask the model, do what it asks for, until it answers. A reply that is of no use is not used, and the model is told why;
    after a few of them in a row the agent gives up."""
    reply = seen.reply
    if reply is None:
        return Say(_AGAIN.format(count=seen.repeated)) if seen.repeated >= REPEATS else Ask()
    why, advice = _useless(reply) or ((seen.wrong, _FORM) if seen.wrong and not reply.calls else ("", ""))
    if not why:
        return Do(reply.calls) if reply.calls else Answer(seen.answer)
    if seen.useless + 1 < USELESS:
        return Say(why)
    return Stop(f"the model gave {USELESS} replies in a row that are of no use; it was told: {why} Now {advice}")


def _useless(reply: Reply) -> tuple[str, str] | None:
    """What to tell the model of a reply that cannot be used, and a person when it keeps coming. What was cut off is never
    done, whole as it may look: a call without its last arguments is another call."""
    if reply.finish == "length":
        return _CUT
    if reply.finish == "content_filter":
        return _WITHHELD
    return None if reply.calls or reply.text.strip() else _SILENT
