"""Rolling deploys: a worker whose code does not fit a task hands the task back, as long as a worker with other code lives.

While old and new workers run side by side, an old one may claim a task that the new code began or continued. The record with which it hands
the task back names its version. The next worker that does not fit counts these records: when every living version has tried, the task is
parked for a person.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from onward.core import record as r
from onward.core.record import Record
from onward.core.task import Reason
from onward.engine.shift.services import WorkerServices
from onward.store.port.core import Claimed, End, Wait

log = logging.getLogger("onward.shift")

UNFIT_CODE = "unfit code"
"""The reason of a shift that ended because the worker's code does not fit the journal, and a worker with other code lives."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 10.0
"""Seconds before the task can be claimed again. The pause doubles with each try."""

MAX_TRIES = 1000
"""Tries in a row that brought the task no further. After that it is parked: the workers with other code may be unable to claim it."""

_WITHOUT_PROGRESS = r.NEWS | {r.SHIFT, r.MESSAGE}


def tried_versions(records: Sequence[Record]) -> list[str]:
    """The versions that could not go on with a task, one for each try, since the task came further or a person resumed it."""
    tried = []
    for record in reversed(records):
        if record.kind == r.HANDED_BACK:
            if (data := record.value).get("reason") == UNFIT_CODE:
                tried.append(data["version"])
        elif record.kind not in _WITHOUT_PROGRESS:
            break
    return tried


async def pass_on(
    services: WorkerServices, claimed: Claimed, attempt: int, tried: Sequence[str], why: str
) -> tuple[str, dict[str, str], End | Wait] | None:
    """How a shift ends whose code does not fit the journal, when a worker with other code may fit; None when the task is to be parked."""
    if len(tried) >= MAX_TRIES or not await services.others_may_fit(claimed.id, {*tried, services.version}):
        return None
    log.info("task %s is handed to a worker with other code: %s", claimed.id, why)
    pause = min(FIRST_PAUSE_S * 2.0 ** min(len(tried), 10), MAX_PAUSE_S) * services.rng.uniform(0.5, 1.5)
    wait = Wait(claimed.id, services.now() + pause, Reason.DELAYED, attempt)
    return r.HANDED_BACK, {"reason": UNFIT_CODE, "version": services.version}, wait
