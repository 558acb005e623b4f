"""Onward: a durable runtime for AI agents. You give it a goal, and it goes on until the goal is reached."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onward.agent.tools import tool
    from onward.app.application import VERSION as __version__
    from onward.app.application import Handle, Onward
    from onward.client.client import Client, SyncClient
    from onward.core.budget import Budget
    from onward.core.limit import Limit
    from onward.core.retry import Retry
    from onward.core.task import State, Task
    from onward.engine.context.context import Context
    from onward.errors import AlreadyDecided, Denied, Fatal, OnwardError, RetryLater, StepFailed, WaitTimeout
else:
    # Each name is imported when it is first asked for, so that `onward --help` does not wait for a database driver.
    _HOMES = {
        "AlreadyDecided": "onward.errors",
        "Budget": "onward.core.budget",
        "Client": "onward.client.client",
        "Context": "onward.engine.context.context",
        "Denied": "onward.errors",
        "Fatal": "onward.errors",
        "Handle": "onward.app.application",
        "Limit": "onward.core.limit",
        "Onward": "onward.app.application",
        "OnwardError": "onward.errors",
        "Retry": "onward.core.retry",
        "RetryLater": "onward.errors",
        "State": "onward.core.task",
        "StepFailed": "onward.errors",
        "SyncClient": "onward.client.client",
        "Task": "onward.core.task",
        "WaitTimeout": "onward.errors",
        "__version__": "onward.app.application",
        "tool": "onward.agent.tools",
    }

    def __getattr__(name):  # noqa: ANN001, ANN202 -- type checkers read the branch above
        if name not in _HOMES:
            raise AttributeError(f"module 'onward' has no attribute {name!r}")
        import importlib  # noqa: PLC0415 -- see above

        found = getattr(importlib.import_module(_HOMES[name]), "VERSION" if name == "__version__" else name)
        globals()[name] = found
        return found

    def __dir__():  # noqa: ANN202
        return sorted({*globals(), *__all__})


__all__ = [
    "AlreadyDecided",
    "Budget",
    "Client",
    "Context",
    "Denied",
    "Fatal",
    "Handle",
    "Limit",
    "Onward",
    "OnwardError",
    "Retry",
    "RetryLater",
    "State",
    "StepFailed",
    "SyncClient",
    "Task",
    "WaitTimeout",
    "__version__",
    "tool",
]
