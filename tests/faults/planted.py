"""Faults to plant into a worker, for the tests of the oracle: each acts as a bug in Onward would."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from onward.agent import calls, loop
from onward.agent.conversation import Conversation
from onward.agent.tools import Tool
from onward.core import record as r
from onward.engine.context.context import Context
from onward.engine.shift.replay import Replay


def a_replay_that_forgets() -> None:
    read = Replay._read

    def forgetful(self: Replay, record: Any) -> None:
        if record.kind not in {r.STEP_DONE, r.STEP_FAILED, r.PATCHED}:
            read(self, record)

    Replay._read = forgetful  # type: ignore[method-assign]


def a_history_without_a_result() -> None:
    shown = Conversation.shown

    def short(self: Conversation, max_bytes: int, *artifacts: Any) -> Any:
        refs, left_out = shown(self, max_bytes, *artifacts)
        return (refs[:-1] if self.turns[-1].calls else refs), left_out

    Conversation.shown = short  # type: ignore[method-assign]


def a_history_without_a_call() -> None:
    shown = Conversation.shown

    def short(self: Conversation, max_bytes: int, *artifacts: Any) -> Any:
        refs, left_out = shown(self, max_bytes, *artifacts)
        return [ref for ref in refs if ref is not self.turns[-1].message or not self.turns[-1].calls], left_out

    Conversation.shown = short  # type: ignore[method-assign]


def an_announcement_that_is_overlooked() -> None:
    read = Replay._read

    def blind(self: Replay, record: Any) -> None:
        if record.kind != r.ANNOUNCED:
            read(self, record)

    Replay._read = blind  # type: ignore[method-assign]


def an_effect_key_that_changes() -> None:
    key = Context.key.fget
    assert key is not None
    Context.key = property(lambda self: f"{key(self)} {os.getpid()}")  # type: ignore[method-assign, assignment]


def a_reconcile_that_is_never_called() -> None:
    made = Tool.__post_init__

    def deaf(self: Tool) -> None:
        made(self)
        if self.reconcile is not None:
            object.__setattr__(self, "reconcile", None)
            object.__setattr__(self, "idempotent", True)

    Tool.__post_init__ = deaf  # type: ignore[method-assign]


def an_approval_without_a_decision() -> None:
    async def approve(ctx: Context, what: str, **options: Any) -> dict[str, Any]:
        return {"decision": "approve"}

    calls.ask_approval = approve  # type: ignore[assignment]


def a_checkpoint_that_loses_a_result() -> None:
    read = loop._Run._read_pages

    async def short(self: Any) -> None:
        await read(self)
        self._conversation.turns[-1].results.clear()

    loop._Run._read_pages = short  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        a_replay_that_forgets,
        a_history_without_a_result,
        a_history_without_a_call,
        an_announcement_that_is_overlooked,
        an_effect_key_that_changes,
        a_reconcile_that_is_never_called,
        an_approval_without_a_decision,
        a_checkpoint_that_loses_a_result,
    )
}


def plant(fault: str) -> None:
    """Plants the fault into this process; an empty name plants nothing."""
    if fault:
        FAULTS[fault]()
