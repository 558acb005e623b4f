"""The work of `disk.py` as an agent of the Claude Agent SDK, whose transcript is in the database. It reads by itself, and asks before all else.

$ export ANTHROPIC_API_KEY=…
$ LOGS=/var/log/shop onward worker examples.disk_claude:app
$ onward submit devops "\\"I'm out of disk space. Delete rotated logs, but for the latest of each.\\"" --follow
$ onward approve
"""

from __future__ import annotations

from claude_agent_sdk import ClaudeAgentOptions

from examples import disk
from onward import Context, Onward
from onward.integrations.claude import OnwardSessionStore, run_claude

app = Onward()
sessions = OnwardSessionStore(app)


def options() -> ClaudeAgentOptions:
    """The options of each run."""
    return ClaudeAgentOptions(
        cwd=disk.folder(), allowed_tools=["Read", "Glob"], setting_sources=[], session_store=sessions
    )


@app.task
async def devops(ctx: Context, goal: str) -> str:
    return await run_claude(ctx, goal, options())
