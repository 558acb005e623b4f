"""Many tasks at once: cancel, resume, pause, prioritize or prune all that a filter finds. A part of the service.

Whoever asks says how many they have seen. When far more match by now, nothing is done: it was not what they meant.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from onward.core.task import Task
from onward.errors import BadSetting, OnwardError, UsageError
from onward.service.listing import ASKED, COUNTED, Ids
from onward.service.pruning import Pruner, refusal
from onward.service.submission import check_priority
from onward.store.port.pruning import UNKNOWN

AT_ONCE = 20
"""Tasks that are acted on at the same time."""
TOLD = 20
"""Refusals that are told one by one."""
ACTIONS = ("cancel", "resume", "pause", "priority", "prune")


class MoreMatch(OnwardError):
    """Far more tasks match than whoever asks has seen."""

    code = "more_match"
    status = 409
    exit_status = 2

    def __init__(self, matched: int, count: int, more: bool) -> None:
        self.matched, self.count = matched, count
        some = f"{matched:,} or more tasks match" if more else f"{matched:,} tasks match"
        super().__init__(f"{some} by now, and not {count:,}; nothing was done: look again, and say how many are meant")


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """A task that could not be acted on, and why."""

    task_id: str
    code: str
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class Acted:
    """What came of it."""

    matched: int
    done: int
    refused: tuple[Refused, ...]
    """The first of them; how many there are in all is what is missing in `done`."""


class Steers(Protocol):
    """What this takes of the service."""

    async def matching(self, most: int, **which: Any) -> tuple[Ids, bool]:
        """See `Lists.matching`."""
        ...

    async def cancel(self, task_id: str) -> Task:
        """See `Service.cancel`."""
        ...

    async def resume(self, task_id: str) -> Task:
        """See `Service.resume`."""
        ...

    async def pause(self, task_id: str) -> Task:
        """See `Service.pause`."""
        ...

    async def prioritize(self, task_id: str, priority: int) -> Task:
        """See `Service.prioritize`."""
        ...


class Bulk:
    """Verbs about many tasks."""

    def __init__(self, service: Steers, prunes: Pruner) -> None:
        self._service, self._prunes = service, prunes

    async def found(self, action: str, count: int, *, priority: int | None = None, **which: Any) -> Ids:
        """The ids of all that match, 10,000 at most, the newest first. Raises MoreMatch when they are far more than `count`, and
        UsageError for a filter that leaves nothing out."""
        if action not in ACTIONS:
            raise BadSetting("action", action, f"one of {', '.join(ACTIONS)}")
        if action == "priority":
            check_priority(priority)
        said = {name: value.strip() if isinstance(value, str) else value for name, value in which.items()}
        if not any(said.get(name) for name in ASKED if name != "whose"):
            raise UsageError("an empty filter would mean every task there is; say which ones are meant")
        ids, more = await self._service.matching(COUNTED, **which)
        if len(ids) > bound(count):
            raise MoreMatch(len(ids), count, more)
        return ids

    async def act(self, action: str, ids: Ids, priority: int | None = None) -> Acted:
        """Do it to each of these, some at a time."""
        if action == "prune":
            kept = (await self._prunes.all_of(ids)).kept
            errors = [(task_id, refusal(task_id, why)) for task_id, why in kept.items() if why != UNKNOWN]
            told = [Refused(task_id, error.code, str(error)) for task_id, error in errors]
            return Acted(len(ids), len(ids) - len(told), tuple(told[:TOLD]))
        verbs: Mapping[str, Callable[[str], Awaitable[Task]]] = {
            "cancel": self._service.cancel,
            "resume": self._service.resume,
            "pause": self._service.pause,
            "priority": lambda task_id: self._service.prioritize(task_id, priority or 0),
        }
        refused: list[Refused] = []

        async def one(task_id: str) -> None:
            try:
                await verbs[action](task_id)
            except OnwardError as error:
                refused.append(Refused(task_id, error.code, str(error)))

        for start in range(0, len(ids), AT_ONCE):
            await asyncio.gather(*[one(task_id) for task_id in ids[start : start + AT_ONCE]])
        return Acted(len(ids), len(ids) - len(refused), tuple(refused[:TOLD]))


def bound(count: int) -> int:
    """How many may match where so many were seen: some come while a person reads."""
    return count + max(5, count // 10)
