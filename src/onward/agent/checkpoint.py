"""The value of an agent's checkpoint: how it is built, and whether this code can go on from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, ValidationError

from onward.core.state import VERSION, AgentState
from onward.errors import UnfitCheckpoint

PARTS = frozenset({"state", "pages", "steps", "counts", "always"})
"""The state, the pages of the conversation, the number of model calls, the counters of the loop, and the tools that need no
approval any more."""


def checkpoint_value(state: AgentState, **parts: Any) -> dict[str, Any]:
    """The value of a checkpoint."""
    return {"version": VERSION, "state": state.model_dump(mode="json", exclude_defaults=True), **parts}


def state_of_checkpoint(value: Any) -> AgentState:
    """The state in a checkpoint. Raises UnfitCheckpoint when it has another version, or cannot be read."""
    if not isinstance(value, dict) or not value.keys() >= PARTS:
        raise UnfitCheckpoint(
            None, "it is not an agent's", "the handler of this name was no agent then; bring that back"
        )
    if (version := value.get("version", VERSION)) != VERSION:
        raise UnfitCheckpoint(
            None,
            f"its state has version {version!r}, and this program knows {VERSION}",
            "start workers of the version that wrote it, then `onward resume`",
        )
    try:
        return AgentState.model_validate(value["state"])
    except ValidationError as error:
        raise UnfitCheckpoint(
            None, f"its state cannot be read ({error})", "bring back the code that wrote it, then `onward resume`"
        ) from None


def signature_with_state(handler: Callable[..., Any]) -> inspect.Signature:
    """The signature of an agent's handler, with the fields of an AgentState in place of `**state`."""
    signature = inspect.signature(handler)
    named = [
        parameter.replace(annotation=_TYPES.get(parameter.name, parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    fields = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=field.get_default(), annotation=field.annotation
        )
        for name, field in AgentState.model_fields.items()
        if name != "goal"
    ]
    return signature.replace(parameters=[*named, *fields])


_AFTER = "The id of a task of this agent that has ended: the new task begins with its state and its conversation."
_TYPES: dict[str, Any] = {"goal": str, "after": Annotated[str | None, Field(description=_AFTER)], "depth": int}
