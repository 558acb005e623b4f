"""Prunes ended tasks, by hand or when they are old enough. A part of the service.

A prune deletes a tree of tasks as a whole: journals, results, artifacts, conversations with models and their costs, deliveries. It also
frees the keys: a later submit with such a key starts a new task.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from onward.artifacts.keeper import Artifacts
from onward.core.clock import Clock
from onward.core.ids import first_id
from onward.errors import OnwardError, StateConflict, StoreUnavailable, TaskNotFound
from onward.service.intakes import LETTER_KEEP_S, DeadLetters
from onward.store.port.core import Store
from onward.store.port.pruning import CHILD, RECENT, UNFINISHED, UNKNOWN, UNTOLD, Pruned

log = logging.getLogger("onward.prune")

MIN_AGE_S = 60.0
"""Seconds for which an ended task is always kept: the worker that ended it may have lost the answer of the store, and asks again."""

BATCH_TREES = 100
"""Trees that are pruned in one transaction."""

INTERVAL_S = 60.0
"""Seconds between two searches for old tasks."""

ADVICE = {
    CHILD: "it goes with the task that started it: onward show {id} names that",
    UNFINISHED: "cancel it first, or wait until all of its tree has ended",
    RECENT: "its worker may still ask for it; try again in a minute",
    UNTOLD: "events of it are still to be delivered: onward deliveries --task {id}",
}
_STATES = {CHILD: "a child", UNFINISHED: "not ended", RECENT: "only just ended", UNTOLD: "not yet reported"}

Ids = Sequence[str]


class Pruner:
    """Prunes ended tasks."""

    def __init__(
        self, store: Store, artifacts: Artifacts, clock: Clock, intake_keep_s: float, letters: DeadLetters
    ) -> None:
        self._store, self._artifacts, self._clock, self._letters = store, artifacts, clock, letters
        self._intake_keep_s = intake_keep_s

    async def prune(self, task_id: str) -> int:
        """Prune an ended task and all that it started; how many tasks that were. Raises TaskNotFound, and StateConflict for a task that
        cannot be pruned now."""
        pruned = await self.prune_all([task_id])
        if why := pruned.kept.get(task_id):
            raise refusal(task_id, why)
        return len(pruned.gone)

    async def prune_all(self, ids: Ids, age: float = 0.0) -> Pruned:
        """Prune those of these tasks that ended at least `age` seconds ago, and at least a minute ago. The oldest first."""
        gone: list[str] = []
        kept: dict[str, str] = {}
        ordered = sorted(set(ids))
        for start in range(0, len(ordered), BATCH_TREES):
            batch = await self._store.pruning.prune(ordered[start : start + BATCH_TREES], max(age, MIN_AGE_S))
            gone += batch.gone
            kept |= batch.kept
            await self._drop_artifacts(batch.gone)
        deleted = set(gone)
        return Pruned(gone, {task_id: why for task_id, why in kept.items() if task_id not in deleted})

    async def _drop_artifacts(self, ids: Ids) -> None:
        """Delete their artifacts outside the database. The tasks are deleted already: the log names artifacts that cannot be deleted now,
        so that an operator can do it."""
        for task_id in ids:
            try:
                await self._artifacts.drop(task_id)
            except Exception as error:
                log.warning(
                    "task %s is pruned, but its artifacts outside the database are still there: %s", task_id, error
                )

    async def prune_old(self, age: float) -> int:
        """Prune all tasks that ended at least `age` seconds ago; how many tasks that were. Tasks of intakes are kept for longer, so that
        a message that comes again finds its task."""
        count, after, age = 0, "", max(age, MIN_AGE_S)
        until = first_id(self._clock.now() - age)
        while ids := await self._store.pruning.prunable(age, after, until, BATCH_TREES, intake_age=self._intake_keep_s):
            try:
                count += len((await self.prune_all(ids, age)).gone)
            except StoreUnavailable:
                # One tree may be too large for one transaction. It must not keep all others.
                for task_id in ids:
                    count += await self._prune_alone(task_id, age)
            after = ids[-1]
        return count

    async def _prune_alone(self, task_id: str, age: float) -> int:
        try:
            return len((await self.prune_all([task_id], age)).gone)
        except StoreUnavailable as error:
            log.warning("task %s could not be pruned: %s", task_id, error)
            return 0

    async def run(self, age: float, rng: random.Random) -> None:
        """The chore of a worker: about once a minute, prune old dead letters, and with an age also old tasks. Every worker does it; two at
        the same time do no harm."""
        while True:
            await self._clock.sleep(INTERVAL_S * rng.uniform(0.8, 1.2))
            try:
                if age and (count := await self.prune_old(age)):
                    log.info("pruned %d tasks that ended more than %g days ago", count, round(age / 86400, 2))
                if count := await self._letters.prune():
                    log.info("pruned %d dead letters that were older than %g days", count, LETTER_KEEP_S / 86400)
            except StoreUnavailable as error:
                log.info("could not search for old tasks: %s", error)
            except Exception:
                log.exception("pruning failed")


def refusal(task_id: str, why: str) -> OnwardError:
    """The error that says why a task cannot be pruned."""
    if why == UNKNOWN:
        return TaskNotFound(task_id)
    return StateConflict(task_id, _STATES[why], "pruned", ADVICE[why].format(id=task_id[-8:]))
