"""What travels through a handler without being an error: a shift that ends before its handler does.

BaseExceptions, so that `except Exception` in a handler lets them pass. After one of them the context is dead, but for
Cancel, which the sagas on its way undo their work for.
"""

from __future__ import annotations


class Control(BaseException):
    """The shift is over; the handler is left."""


class Suspend(Control):
    """The task waits and gives its slot back; it returns through its journal. `inbox` is how many messages it has read:
    when there are more, it does not wait at all."""

    def __init__(self, due_at: float, reason: str, inbox: int | None = None) -> None:
        self.due_at, self.reason, self.inbox = due_at, reason, inbox
        super().__init__(reason)


class Fenced(Control):
    """The journal has moved on without this worker: whatever it does here no longer counts."""


class HandBack(Control):
    """The worker stops and gives the task to another."""


class Park(Control):
    """The code and the journal disagree; a person has to look."""


class Doubt(Control):
    """Nobody knows whether an effect happened; a person has to say."""

    def __init__(self, key: str, why: str, inbox: int) -> None:
        self.key, self.why, self.inbox = key, why, inbox
        super().__init__(why)


class Unheard(Exception):
    """A task that was about to complete has got a message that it has not read; nothing was written. It goes on."""


class NotNow(Exception):
    """Raised inside a step: it cannot begin yet, and nothing is wrong with it. The task waits until then, or until it is told,
    without a slot; then the step is tried again, and none of this counts as an attempt."""

    def __init__(self, reason: str, until: float, why: str, **said: object) -> None:
        self.reason, self.until, self.why, self.said = reason, until, why, said
        super().__init__(why)


class Cancel(Control):
    """Somebody cancelled the task: what is owed is undone on the way out."""
