"""The host under a context: what an engine has to do for a handler, and a step as it is asked to run it."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from onward.core.retry import NO_RETRY, Retry
from onward.engine.shift.environment import TaskEnvironment

if TYPE_CHECKING:
    from onward.core.budget import Budget
    from onward.core.usage import Usage
    from onward.engine.context.secrets import Keyring
    from onward.engine.shift.spending import Spending

_NOTHING: Mapping[str, Any] = {}
UNDO_RETRY = Retry(attempts=6)


class Call:
    """A step as the host is asked to run it. What most steps leave alone stands in the class: they pay nothing for it.

    A function may have an attribute `until`, in the database's time: no attempt begins after it. With `cut` an attempt under way
    is cut off then, and not made again; a step without a `timeout` is not cut off.
    """

    retry: Retry = NO_RETRY
    timeout: float | None = None
    mark: str = ""
    """A hash of the arguments; empty when they are not JSON."""
    undo: Callable[..., Any] | None = None
    effect: str | None = None
    reconcile: Callable[..., Any] | None = None

    def __init__(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = _NOTHING
    ) -> None:
        self.name, self.function, self.args, self.kwargs = name, function, args, kwargs

    def as_undo(self, result: Any) -> Call:
        """The call that takes this one back: with the same arguments, and the result where it asks for it by name."""
        assert self.undo is not None
        kwargs = dict(self.kwargs) | ({"result": result} if takes_result(self.undo) else {})
        call = Call(self.name, self.undo, self.args, kwargs)
        call.retry = UNDO_RETRY
        return call

    def as_reconcile(self) -> Call:
        """The call that asks whether this one happened."""
        assert self.reconcile is not None
        return Call(self.name, self.reconcile, self.args, self.kwargs)


class Host(TaskEnvironment, Protocol):
    """The engine under a context."""

    task_id: str
    effects_of: str
    """Whose effects these are: the task's own, or those of the task of which it undoes something."""
    attempt: int
    rng: random.Random
    usage: Usage | None
    """What the task has taken of models so far: for its last record."""
    partial: Any
    """The best result so far: for its last record, should it fail."""

    async def run(self, call: Call) -> Any:
        """The recorded result of the step, or the result of running it now, recorded. Raises StepFailed."""
        ...

    async def wait(self, kind: str, name: str, data: dict[str, Any], timeout: float | None) -> dict[str, Any] | None:
        """The message that this waits for, with the slot free meanwhile; None when the time was up."""
        ...

    async def messages(self, *, last: bool = False) -> list[Any]:
        """What people said to this task since this was asked last; nothing is waited for."""
        ...

    async def child(self, name: str, value: Any, options: dict[str, Any]) -> str:
        """Submit a child task, once; its id."""
        ...

    async def gather(
        self, makers: Sequence[Callable[[], Awaitable[Any]]], *, limit: int | None, return_exceptions: bool
    ) -> list[Any]:
        """Run several lines at once, each in a scope of its own."""
        ...

    def inherits(self, *, anywhere: bool = False) -> bool:
        """Whether what comes next in this place (or anywhere) was done by the task that this one is a fork of."""
        ...

    @property
    def forked(self) -> bool:
        """Whether this task is a fork that has saved no checkpoint of its own."""
        ...

    def saga(self, name: str, *, whole: bool = False) -> Any:
        """A block that is undone when it fails. A `whole` one is completed by the task's completion, and by nothing else."""
        ...

    async def version(self, name: str) -> bool:
        """Whether this task came here with the new code."""
        ...

    def transaction(self, call: Call) -> Any:
        """A step in a transaction of the store's own database."""
        ...

    async def note(self, kind: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Write a record that belongs to this place of the code; what it says, now or from before."""
        ...

    async def patches(self) -> list[Any]:
        """What others want changed in the state and this task has not come to yet, each once; recorded in this place."""
        ...

    def keep(self, data: bytes) -> str:
        """Keep contents, with or before the next record; their name."""
        ...

    @property
    def restored(self) -> Any:
        """What the last checkpoint holds."""
        ...

    async def checkpoint(self, value: Any) -> None:
        """From now on the task goes on from here: what came before is not replayed again."""
        ...

    def spending(self, budget: Budget) -> Spending:
        """What this task may spend: by its own budget, and by those above it."""
        ...

    async def within_quota(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask something that has a quota, unless it is known to be used up. Raises NotNow."""
        ...

    async def flush(self) -> None:
        """Until all that was recorded is durable."""
        ...

    def mention(self, data: dict[str, Any]) -> None:
        """Tell those who watch; not part of the replay."""
        ...

    def now(self) -> float:
        """The database's time."""
        ...

    @property
    def keyring(self) -> Keyring:
        """The secrets that this task may use."""
        ...


def takes_result(function: Callable[..., Any]) -> bool:
    """Whether an undo asks for the result of what it takes back."""
    try:
        return "result" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
