"""Scopes: the place in a handler where code runs. The handler's own line is a scope, and so is each branch of a gather and
each saga. A branch has its number in the gather, or a name of its own (`ctx.branch`).

A scope names steps, and lets one step run at a time. The key of a step is the path of the scope, the name, and how often that
name came before in this scope: `charge`, `charge#2`, `[gather.0]charge`, `[saga@2/gather.1]charge#2`. So the same code gives
the same keys in every replay, in whatever order branches get their turns. A context variable carries the scope along with the
code, through tasks and threads.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from contextvars import ContextVar
from typing import Any, NoReturn

from onward.core import mask
from onward.errors import UsageError

_RESERVED_IN_STEP_NAMES = re.compile(r"^\[|#\d+$|[\x00-\x1f\ud800-\udfff]")
_RESERVED_IN_SAGA_NAMES = re.compile(r"[\]/@.#]")

MAX_BRANCH_NAME_LENGTH = 120
"""Characters of the name of a branch in keys of steps. A longer name is cut, and ends in a hash."""


class Scope:
    """One line of a handler, in which one step comes after the other."""

    __slots__ = (
        "_counts",
        "announced",
        "branches",
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
        self.branches: int = 0
        """How many named branches are open here: the scope waits for them, and begins nothing else meanwhile."""
        self._counts: dict[str, int] = {}

    @property
    def undoing(self) -> bool:
        """Whether a saga is undone in this scope."""
        return self.path.endswith("/undo")

    def next_name(self, name: str) -> str:
        """The name with its number, which makes it unique in this scope."""
        if self.branches:
            refuse_overlap(name, self.key or "")
        return self._number(name)

    def _number(self, name: str) -> str:
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

    def branch(self, name: str) -> Scope:
        """The scope of a branch with this name. Raises UsageError in a step, and without a name."""
        if not isinstance(name, str) or not name:
            raise UsageError(
                f"a branch needs a name, and {name!r} is none: give ctx.branch a string from your data, such as the id of a tool call"
            )
        if self.key is not None and not self.branches:
            refuse_overlap(f"branch {name}", self.key)
        return self.inner(self._number(f"branch.{_encode_branch_name(name)}"))


SCOPE: ContextVar[Scope] = ContextVar("onward_scope")

IN_STEP: ContextVar[bool] = ContextVar("onward_in_step", default=False)
"""Whether this is the code of a step, and not of the handler. Other code of the handler may run beside a step, in an asyncio task of its own."""


def _encode_branch_name(name: str) -> str:
    """The name as part of a path: any string, such as the id of a tool call."""
    encoded = urllib.parse.quote(name, safe=" ", errors="backslashreplace").replace(".", "%2E")
    if len(encoded) <= MAX_BRANCH_NAME_LENGTH:
        return encoded
    return f"{encoded[: MAX_BRANCH_NAME_LENGTH - 33]}~{hashlib.sha256(encoded.encode()).hexdigest()[:32]}"


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
