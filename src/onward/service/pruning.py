"""Prunes: ended tasks are forgotten, by hand or when they are old enough. A part of the service.

What is forgotten is gone: journal, result, artifacts, what models were asked and what it cost, deliveries. So is its key: whoever
submits with it again starts a new task.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from onward.artifacts.keeper import Artifacts
from onward.core.clock import Clock
from onward.core.ids import first_id
from onward.errors import OnwardError, StateConflict, StoreUnavailable, TaskNotFound
from onward.store.port.core import Store
from onward.store.port.pruning import CHILD, RECENT, UNFINISHED, UNKNOWN, UNTOLD, Pruned

log = logging.getLogger("onward.prune")

LEAST = 60.0
"""Seconds for which an ended task is kept in any case: the worker that ended it may not have got its answer, and ask again."""

AT_ONCE = 100
"""Trees that are forgotten in one transaction."""

EVERY = 60.0
"""Seconds between two looks for what is old enough."""

ADVICE = {
    CHILD: "it goes with the task that started it: onward show {id} names that",
    UNFINISHED: "cancel it first, or wait until all of its tree has ended",
    RECENT: "its worker may still ask for it; try again in a minute",
    UNTOLD: "somebody has yet to be told of it: onward deliveries --task {id}",
}
_STATES = {CHILD: "a child", UNFINISHED: "not ended", RECENT: "only just ended", UNTOLD: "not yet reported"}

Ids = Sequence[str]


class Pruner:
    """Verbs that forget."""

    def __init__(self, store: Store, artifacts: Artifacts, clock: Clock) -> None:
        self._store, self._artifacts, self._clock = store, artifacts, clock

    async def prune(self, task_id: str) -> int:
        """Forget an ended task and all that it started; how many tasks that were. Raises TaskNotFound, and StateConflict for one that
        has to stay."""
        found = await self.all_of([task_id])
        if why := found.kept.get(task_id):
            raise refusal(task_id, why)
        return len(found.gone)

    async def all_of(self, ids: Ids, age: float = 0.0) -> Pruned:
        """Forget all of these that may go: that ended so many seconds ago, a minute at least. The oldest first."""
        gone: list[str] = []
        kept: dict[str, str] = {}
        line = sorted(set(ids))
        for start in range(0, len(line), AT_ONCE):
            found = await self._store.pruning.prune(line[start : start + AT_ONCE], max(age, LEAST))
            gone += found.gone
            kept |= found.kept
            await self._drop(found.gone)
        away = set(gone)
        return Pruned(gone, {one: why for one, why in kept.items() if one not in away})

    async def _drop(self, ids: Ids) -> None:
        """What they have on a shelf. The tasks are gone already: what cannot be dropped now is named, so that somebody can do it."""
        for one in ids:
            try:
                await self._artifacts.drop(one)
            except Exception as error:
                log.warning(
                    "task %s is forgotten, but what it kept outside the database is still there: %s", one, error
                )

    async def old(self, age: float) -> int:
        """Forget all that ended so many seconds ago; how many tasks that were."""
        many, after, age = 0, "", max(age, LEAST)
        until = first_id(self._clock.now() - age)
        while ids := await self._store.pruning.prunable(age, after, until, AT_ONCE):
            try:
                many += len((await self.all_of(ids, age)).gone)
            except StoreUnavailable:
                # One of them may be too large for its time, and must not be in the way of all others.
                for one in ids:
                    many += await self._one_alone(one, age)
            after = ids[-1]
        return many

    async def _one_alone(self, task_id: str, age: float) -> int:
        try:
            return len((await self.all_of([task_id], age)).gone)
        except StoreUnavailable as error:
            log.warning("task %s could not be forgotten: %s", task_id, error)
            return 0

    async def forever(self, age: float, rng: random.Random) -> None:
        """The chore of a worker: what is old enough is forgotten, now and then. Every worker does it, and twice does no harm."""
        while True:
            await self._clock.sleep(EVERY * rng.uniform(0.8, 1.2))
            try:
                if many := await self.old(age):
                    log.info("forgot %d tasks that ended more than %g days ago", many, round(age / 86400, 2))
            except StoreUnavailable as error:
                log.info("could not look for old tasks: %s", error)
            except Exception:
                log.exception("pruning failed")


def refusal(task_id: str, why: str) -> OnwardError:
    """Why a task stays, as an error."""
    if why == UNKNOWN:
        return TaskNotFound(task_id)
    return StateConflict(task_id, _STATES[why], "pruned", ADVICE[why].format(id=task_id[-8:]))
