"""Scopes: the place in a handler where code runs. The handler's own line is a scope, and so is each branch of a gather and
each saga.

A scope names steps, and lets one step run at a time. The key of a step is the path of the scope, the name, and how often that
name came before in this scope: `charge`, `charge#2`, `[gather.0]charge`, `[saga@2/gather.1]charge#2`. So the same code gives
the same keys in every replay, in whatever order branches get their turns. A context variable carries the scope along with the
code, through tasks and threads.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Any, NoReturn

from onward.core import mask
from onward.errors import UsageError

_RESERVED_IN_STEP_NAMES = re.compile(r"^\[|#\d+$|[\x00-\x1f\ud800-\udfff]")
_RESERVED_IN_SAGA_NAMES = re.compile(r"[\]/@.#]")


class Scope:
    """One line of a handler, in which one step comes after the other."""

    __slots__ = (
        "_counts",
        "announced",
        "key",
        "last_name",
        "locks",
        "outer",
        "path",
        "prefix",
        "reported",
        "resumed",
        "saga",
        "started_at",
    )

    def __init__(self, path: str = "", outer: Scope | None = None, saga: Any = None) -> None:
        self.path: str = path
        self.outer: Scope | None = outer
        self.saga: Any = saga
        """The innermost saga around it."""
        self.prefix: str = f"[{path}]" if path else ""
        self.key: str | None = None
        """The key of the step or wait that runs here now."""
        self.last_name: str = ""
        """The last name that the code asked for, with its number."""
        self.started_at: float = 0.0
        """When that step began, by the monotonic clock."""
        self.reported: bool = True
        """Whether watchers know that the step has started."""
        self.announced: bool = False
        """Whether the journal says that the running step was about to begin."""
        self.resumed: bool = False
        """Whether the next new step may have been begun by an earlier shift."""
        self.locks: tuple[str, ...] = ()
        """The names of the locks whose blocks are open here."""
        self._counts: dict[str, int] = {}

    @property
    def undoing(self) -> bool:
        """Whether a saga is undone in this scope."""
        return self.path.endswith("/undo")

    def next_name(self, name: str) -> str:
        """The name with its number, which makes it unique in this scope."""
        if mask.on:
            name = mask.text(name)
        count = self._counts.get(name, 0) + 1
        if count == 1 and (_RESERVED_IN_STEP_NAMES.search(name) or not name):
            raise UsageError(
                f"a step cannot be named {name!r}: names must not be empty, start with '[', end in '#' "
                "and a number, or hold control characters and halves of characters"
            )
        self._counts[name] = count
        self.last_name = name if count == 1 else f"{name}#{count}"
        return self.last_name

    def inner(self, part: str, saga: Any = None) -> Scope:
        """A scope inside this one."""
        scope = Scope(f"{self.path}/{part}" if self.path else part, self, saga or self.saga)
        scope.resumed = self.resumed
        return scope


SCOPE: ContextVar[Scope] = ContextVar("onward_scope")


def check_saga_name(name: str) -> str:
    """The name, if it can be part of a path. Raises UsageError."""
    if _RESERVED_IN_SAGA_NAMES.search(name) or name == "undo":
        raise UsageError(
            f"a saga cannot be named {name!r}: letters, digits, blanks, '-' and '_' are fine, ']/@.#' and 'undo' are not"
        )
    return name


def refuse_overlap(key: str, running: str) -> NoReturn:
    """Raise UsageError: two steps run at once in one scope."""
    raise UsageError(
        f"step {key!r} was started while step {running!r} of the same task was still running; "
        "await one before the next (ctx.gather runs several at once)"
    )
