"""The Claude Agent SDK on Onward: sessions in the database of an app, and approvals of a task: `pip install 'onward[claude]'`."""

from onward.integrations.claude.run import ClaudeFailed, run_claude
from onward.integrations.claude.sessions import OnwardSessionStore

__all__ = ["ClaudeFailed", "OnwardSessionStore", "run_claude"]
