"""Onward: a durable runtime for AI agents. You give it a goal, and it goes on until the goal is reached."""

from onward.app import VERSION as __version__
from onward.app import Handle, Onward
from onward.core.retry import Retry
from onward.core.task import State, Task
from onward.engine.context import Context
from onward.errors import Fatal, OnwardError, RetryLater, StepFailed

__all__ = [
    "Context",
    "Fatal",
    "Handle",
    "Onward",
    "OnwardError",
    "Retry",
    "RetryLater",
    "State",
    "StepFailed",
    "Task",
    "__version__",
]
