"""The host under a context: the interface that an engine implements for a handler."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from onward.engine.context.call import Call
from onward.engine.shift.environment import TaskEnvironment

if TYPE_CHECKING:
    from onward.core.budget import Budget
    from onward.core.usage import Usage
    from onward.engine.context.secrets import Keyring
    from onward.engine.shift.spending import Spending


class Host(TaskEnvironment, Protocol):
    """The engine under a context."""

    task_id: str
    effects_of: str
    """The id of the task that the effect keys name: this task, or the task whose steps it undoes."""
    attempt: int
    rng: random.Random
    usage: Usage | None
    """Tokens and cost of models so far, for the last record of the task."""
    partial: Any
    """The best result so far, for the last record if the task fails."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the task."""
        ...

    @property
    def replaying(self) -> bool:
        """Whether the journal has records that the handler has not come to."""
        ...

    def next_recorded(self) -> str | None:
        """The key of the next record of this line or branch, if the journal has one that the handler has not come to."""
        ...

    def unread_in(self, path: str) -> int:
        """How many records of the scope with this path, and of all below it, the handler has not come to."""
        ...

    async def run(self, call: Call) -> Any:
        """Return the recorded result of the step; without one, run the step and record its result. Raises StepFailed."""
        ...

    async def wait(self, kind: str, name: str, data: dict[str, Any], timeout: float | None) -> dict[str, Any] | None:
        """Wait for a message and return it, or None when the time is up. The slot is free meanwhile."""
        ...

    async def messages(self, *, last: bool = False) -> list[Any]:
        """The messages of people since the last call of this. Does not wait."""
        ...

    def task_name(self, function: Callable[..., Any]) -> str | None:
        """The name of the tasks whose handler this function is; None when this app has no such handler."""
        ...

    def load_result(self, name: str, value: Any) -> Any:
        """The recorded result of a task of this name, in the type that its handler returns."""
        ...

    async def child(self, name: str, value: Any, options: dict[str, Any]) -> str:
        """Submit a child task, once, and return its id."""
        ...

    async def gather(
        self, makers: Sequence[Callable[[], Awaitable[Any]]], *, limit: int | None, return_exceptions: bool
    ) -> list[Any]:
        """Run several branches at once, each in a scope of its own."""
        ...

    def branch(self, name: str) -> Any:
        """A block that runs beside others of its kind, in a scope that this name identifies."""
        ...

    def inherits(self, *, anywhere: bool = False) -> bool:
        """Whether the next record in this place (or anywhere) comes from the task that this one is a fork of."""
        ...

    @property
    def forked(self) -> bool:
        """Whether this task is a fork that has saved no checkpoint of its own."""
        ...

    def lock(self, name: str, timeout: float | None) -> Any:
        """A block that one task at a time is in."""
        ...

    def saga(self, name: str, *, whole: bool = False) -> Any:
        """A block that is undone when it fails. Only the completion of the task completes a `whole` one."""
        ...

    async def version(self, name: str) -> bool:
        """Whether this task reached this line with the new code."""
        ...

    def transaction(self, call: Call) -> Any:
        """A step in a transaction of the store's own database."""
        ...

    async def note(self, kind: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Write a record that belongs to this place of the code, and return its data; in a replay, the data of the record from before."""
        ...

    async def patches(self) -> list[Any]:
        """The patches of other programs that this task has not applied yet, each once; recorded in this place."""
        ...

    def keep(self, data: bytes) -> str:
        """Keep contents, with or before the next record, and return their name."""
        ...

    @property
    def restored(self) -> Any:
        """The value of the last checkpoint."""
        ...

    async def checkpoint(self, value: Any) -> None:
        """Make this the place from which the task goes on: earlier records are not replayed again."""
        ...

    def spending(self, budget: Budget) -> Spending:
        """What this task may spend, by its own budget and by the budgets of the tasks above it."""
        ...

    async def within_quota(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Call `ask`, which has a quota, unless the quota is known to be used up. Raises NotNow."""
        ...

    async def flush(self) -> None:
        """Wait until all records so far are durable."""
        ...

    def mention(self, data: dict[str, Any]) -> None:
        """Write a record for watchers that is not part of the replay."""
        ...

    def now(self) -> float:
        """The database's time."""
        ...

    @property
    def keyring(self) -> Keyring:
        """The secrets that this task may use."""
        ...
