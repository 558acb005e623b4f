"""Exceptions that are no errors: they end a shift before its handler returns.

They are BaseExceptions, so that `except Exception` in a handler does not catch them. After one of them the context refuses further
calls, except after Cancel: then open sagas undo their steps.
"""

from __future__ import annotations


class Control(BaseException):
    """Ends the shift."""


class Suspend(Control):
    """The task waits and frees its slot; a later shift goes on from its journal. `inbox` is how many messages it has read: when there are
    more, it does not wait."""

    def __init__(self, due_at: float, reason: str, inbox: int | None = None) -> None:
        self.due_at, self.reason, self.inbox = due_at, reason, inbox
        super().__init__(reason)


class Fenced(Control):
    """Another worker has written to the journal: the store refuses all further records of this shift."""


class HandBack(Control):
    """The worker stops, and another one goes on with the task."""


class Park(Control):
    """The code does not fit the journal; a person has to decide."""


class Doubt(Control):
    """An effect is in doubt; a person has to say whether it happened."""

    def __init__(self, key: str, why: str, inbox: int) -> None:
        self.key, self.why, self.inbox = key, why, inbox
        super().__init__(why)


class Unheard(Exception):
    """A task that was about to complete has an unread message. Its end was not written; the task goes on."""


class NotNow(Exception):
    """Raised inside a step that cannot begin yet, for example because a quota is used up. The task waits without a slot until that time, or
    until a message wakes it; then the step is tried again. This does not count as an attempt. `details` go into the record."""

    def __init__(self, reason: str, until: float, why: str, **details: object) -> None:
        self.reason, self.until, self.why, self.details = reason, until, why, details
        super().__init__(why)


class Cancel(Control):
    """The task was cancelled: open sagas undo their steps before the shift ends."""
