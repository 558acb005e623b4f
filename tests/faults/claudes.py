"""Clerks that run on the Claude Agent SDK. The program `claude` is played by `tests.faults.claude_program`: the real one takes seconds to start.

The SDK is the real one, with its protocol, its copy of the transcript and its `resume`.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import onward
from onward import Context, Onward, Retry
from onward.core import record as r
from onward.engine.shift.scope import SCOPE
from onward.integrations.claude import OnwardSessionStore, run_claude
from onward.integrations.claude import run as module
from rig.ledger import Ledger
from tests.faults.claude_program import ANSWER
from tests.integrations import suites

VERSION = "0.2.183"
GOAL = "Look around, and pay."
PAID = None
"""No effect of this program is in doubt: its tools are not steps."""

__all__ = ["ANSWER", "GOAL", "PAID", "add", "app_of"]

sys.path.append(str(suites.fetch_wheel("claude-agent-sdk", VERSION)))
importlib.invalidate_caches()
os.environ["CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK"] = "1"

from claude_agent_sdk import ClaudeAgentOptions, project_key_for_directory

_run = module._Stretch.run


def app_of(options: dict[str, Any], **settings: Any) -> Onward:
    """The app of a crew, and of the test."""
    app = Onward(options["db"], **settings)
    add(app, Ledger(options["ledger"]))
    return app


class Clerk:
    """The world of the agents of one process."""

    def __init__(self, app: Onward) -> None:
        self.app = app


class NotingSessions(OnwardSessionStore):
    """Notes in the ledger what the store has of a session: none of that may be done again."""

    def __init__(self, app: Onward, ledger: Ledger) -> None:
        super().__init__(app)
        self._ledger = ledger

    async def append(self, key: Any, entries: Any) -> None:
        await super().append(key, entries)
        for entry in entries:
            if entry["done"]:
                self._ledger.write("recorded", entry["task"], entry["done"], False, "")


def add(app: Onward, ledger: Ledger) -> Clerk:
    """Register the handler of the clerks."""
    home = Path(ledger.path).parent
    program = home / "claude"
    if not program.exists():
        draft = home / f"claude.{os.getpid()}"
        draft.write_text(f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__).with_name("claude_program.py")} "$@"\n')
        draft.chmod(0o755)
        draft.rename(program)
    clerk = Clerk(app)

    async def noting(self: Any) -> Any:
        key, task_id = SCOPE.get().key, onward.current().task_id
        records = await clerk.app.store.journal(task_id, 0, 1_000)
        again = any(record.kind == r.STEP_DONE and record.key == key for record in records)
        ledger.write("stretch", task_id, key, again, "")
        return await _run(self)

    module._Stretch.run = noting  # type: ignore[method-assign]

    @app.task(name="clerk", retry=Retry(attempts=3, first=0.01))
    async def run(ctx: Context, goal: str) -> str:
        return await run_claude(ctx, goal, options_of(clerk.app, ledger, home, ctx.task_id))

    return clerk


def options_of(app: Onward, ledger: Ledger, home: Path, task_id: str) -> Any:
    """The options of one run."""
    env = {
        "CLAUDE_CONFIG_DIR": str(home / "config"),
        "CLERK_LEDGER": str(ledger.path),
        "CLERK_TASK": task_id,
        "CLERK_PROJECT": project_key_for_directory(home),
    }
    return ClaudeAgentOptions(
        cli_path=home / "claude", cwd=home, env=env, setting_sources=[], session_store=NotingSessions(app, ledger)
    )
