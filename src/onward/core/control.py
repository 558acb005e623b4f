"""What travels through a handler without being an error: a shift that ends before its handler does.

BaseExceptions, so that `except Exception` in a handler lets them pass. After one of them the context is dead.
"""

from __future__ import annotations


class Control(BaseException):
    """The shift is over; the handler is left."""


class Suspend(Control):
    """The task waits and gives its slot back; it returns through its journal."""

    def __init__(self, due_at: float, reason: str) -> None:
        self.due_at, self.reason = due_at, reason
        super().__init__(reason)


class Fenced(Control):
    """The journal has moved on without this worker: whatever it does here no longer counts."""


class HandBack(Control):
    """The worker stops and gives the task to another."""


class Park(Control):
    """The code and the journal disagree; a person has to look."""
