"""Onward: a durable runtime for AI agents. You give it a goal, and it goes on until the goal is reached.

Programs import from `onward`, `onward.agents`, `onward.client`, `onward.errors` and `onward.testing`. All other modules are internal.
"""

from typing import TYPE_CHECKING

from onward.lazy import lazy

if TYPE_CHECKING:
    from onward.agent.tools import tool
    from onward.app.application import VERSION as __version__
    from onward.app.application import Onward
    from onward.app.verbs import Handle
    from onward.client.client import Client, SyncClient
    from onward.core.approval import ApprovalRule
    from onward.core.budget import Budget
    from onward.core.journal.checkpoint import Checkpoints
    from onward.core.journal.progress import Update
    from onward.core.limit import Limit
    from onward.core.retry import Retry
    from onward.core.task import State, Task
    from onward.core.views import Ask
    from onward.engine.context.context import Context, current
    from onward.engine.context.sync_context import SyncContext
    from onward.engine.shift.quota import within_quota
    from onward.errors import AlreadyDecided, Denied, Fatal, OnwardError, RetryLater, StepFailed, WaitTimeout
    from onward.logging import JsonLines, LogContext
else:
    __getattr__, __dir__ = lazy(
        globals(),
        {
            "AlreadyDecided": "onward.errors",
            "ApprovalRule": "onward.core.approval",
            "Ask": "onward.core.views",
            "Budget": "onward.core.budget",
            "Checkpoints": "onward.core.journal.checkpoint",
            "Client": "onward.client.client",
            "Context": "onward.engine.context.context",
            "Denied": "onward.errors",
            "Fatal": "onward.errors",
            "Handle": "onward.app.verbs",
            "JsonLines": "onward.logging",
            "Limit": "onward.core.limit",
            "LogContext": "onward.logging",
            "Onward": "onward.app.application",
            "OnwardError": "onward.errors",
            "Retry": "onward.core.retry",
            "RetryLater": "onward.errors",
            "State": "onward.core.task",
            "StepFailed": "onward.errors",
            "SyncClient": "onward.client.client",
            "SyncContext": "onward.engine.context.sync_context",
            "Task": "onward.core.task",
            "Update": "onward.core.journal.progress",
            "WaitTimeout": "onward.errors",
            "__version__": "onward.app.application:VERSION",
            "current": "onward.engine.context.context",
            "tool": "onward.agent.tools",
            "within_quota": "onward.engine.shift.quota",
        },
    )

__all__ = [
    "AlreadyDecided",
    "ApprovalRule",
    "Ask",
    "Budget",
    "Checkpoints",
    "Client",
    "Context",
    "Denied",
    "Fatal",
    "Handle",
    "JsonLines",
    "Limit",
    "LogContext",
    "Onward",
    "OnwardError",
    "Retry",
    "RetryLater",
    "State",
    "StepFailed",
    "SyncClient",
    "SyncContext",
    "Task",
    "Update",
    "WaitTimeout",
    "__version__",
    "current",
    "tool",
    "within_quota",
]
