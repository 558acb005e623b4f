"""Scopes: where in a handler we are. The handler's own line is one, and so is each branch of a gather and each saga.

A scope names steps, and lets one run at a time. The key of a step is the scope's path, the name, and how often that name
came before in this scope: `charge`, `charge#2`, `[gather.0]charge`, `[saga@2/gather.1]charge#2`. So the same code gives
the same keys in every replay, in whatever order branches get their turns. The scope in which code runs travels with it in
a context variable, through tasks and threads.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Any, NoReturn

from onward.core import mask
from onward.errors import UsageError

_CLASHES = re.compile(r"^\[|#\d+$|[\x00-\x1f\ud800-\udfff]")
_UNFIT = re.compile(r"[\]/@.#]")


class Scope:
    """One line of a handler, in which one thing happens after the other."""

    __slots__ = ("_seen", "announced", "key", "last", "path", "prefix", "resumed", "saga", "since", "told", "up")

    def __init__(self, path: str = "", up: Scope | None = None, saga: Any = None) -> None:
        self.path: str = path
        self.up: Scope | None = up
        self.saga: Any = saga
        """The innermost saga around it."""
        self.prefix: str = f"[{path}]" if path else ""
        self.key: str | None = None
        """What runs here now."""
        self.last: str = ""
        """What the code asked for last."""
        self.since: float = 0.0
        self.told: bool = True
        """Whether those who watch know of it."""
        self.announced: bool = False
        """Whether the journal says that what runs here was about to begin."""
        self.resumed: bool = False
        """Whether the next new step may have been begun by an earlier shift."""
        self._seen: dict[str, int] = {}

    @property
    def undoing(self) -> bool:
        """Whether this is where a saga is undone."""
        return self.path.endswith("/undo")

    def next(self, name: str) -> str:
        """The name with its number in this scope: what makes it one of a kind here."""
        if mask.on:
            name = mask.text(name)
        count = self._seen.get(name, 0) + 1
        if count == 1 and (_CLASHES.search(name) or not name):
            raise UsageError(
                f"a step cannot be named {name!r}: names must not be empty, start with '[', end in '#' "
                "and a number, or hold control characters and halves of characters"
            )
        self._seen[name] = count
        self.last = name if count == 1 else f"{name}#{count}"
        return self.last

    def below(self, part: str, saga: Any = None) -> Scope:
        """A scope inside this one."""
        scope = Scope(f"{self.path}/{part}" if self.path else part, self, saga or self.saga)
        scope.resumed = self.resumed
        return scope


SCOPE: ContextVar[Scope] = ContextVar("onward_scope")


def part_name(name: str) -> str:
    """A name that can be part of a path."""
    if _UNFIT.search(name) or name == "undo":
        raise UsageError(
            f"a saga cannot be named {name!r}: letters, digits, blanks, '-' and '_' are fine, ']/@.#' and 'undo' are not"
        )
    return name


def refuse(key: str, running: str) -> NoReturn:
    """Two things at once in one scope."""
    raise UsageError(
        f"step {key!r} was started while step {running!r} of the same task was still running; "
        "await one before the next (ctx.gather runs several at once)"
    )
