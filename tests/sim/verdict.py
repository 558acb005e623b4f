"""The verdict at the end of a life: the ledger, the journals and the answers to clients have to agree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from onward.core import record as r
from tests.sim.picture import Picture
from tests.sim.work import Op

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster


def verdict(cluster: Cluster) -> None:
    """Judges the facts that are final only at the end."""
    watch = cluster.watch
    for client in cluster.clients:
        for task_id, (name, ops) in client.acknowledged.items():
            picture = watch.tasks.get(task_id)
            if picture is None or picture.ended is None:
                watch.fault(f"task {task_id[-4:]} was acknowledged and has no end")
            if task_id in client.cancelled and picture.ended != r.CANCELLED:
                watch.fault(f"task {task_id[-4:]} was cancelled and ended as {picture.ended}")
            _same_story(cluster, picture, name, ops)
    for task_id, picture in watch.tasks.items():
        if picture.ended is None:
            watch.fault(f"task {task_id[-4:]} has no end")
        if len(picture.records) > 400:
            watch.fault(f"task {task_id[-4:]} has a journal of {len(picture.records)} records")
        _effects_behind_records(cluster, picture)


def _same_story(cluster: Cluster, picture: Picture, name: str, ops: list[Op]) -> None:
    """A completed task has done all of its program, in order, and its result agrees with its records."""
    if picture.ended != r.COMPLETED:
        return
    recorded = [
        json.loads(entry.data)["result"]
        for entry in picture.records
        if entry.kind == r.STEP_DONE
        and entry.key.partition("#")[0] not in {"random", "uuid"}
        and not entry.key.startswith("[")
    ]
    result = json.loads(picture.records[-1].data)["result"]
    returned = [value for value in result if value not in ("Flaky", "StepTimeout") and not isinstance(value, list)]
    if returned != recorded:
        cluster.watch.fault(f"task {picture.id[-4:]} ({name}) gave {returned}, and its journal has {recorded}")
    wanted = sum(op in {"step", "try", "now", "random", "gather"} for op, *_ in ops)
    if len(result) != wanted:
        cluster.watch.fault(f"task {picture.id[-4:]} ({name}) did {len(result)} of {wanted} steps: {ops}")


def _effects_behind_records(cluster: Cluster, picture: Picture) -> None:
    """Each recorded result comes from an effect of that very step."""
    for entry in picture.records:
        if entry.kind != r.STEP_DONE or entry.key.partition("#")[0] in {"now", "random", "uuid"}:
            continue
        tokens = {
            effect.token for effect in cluster.ledger.effects.get((picture.id, entry.key), []) if not effect.failed
        }
        if json.loads(entry.data)["result"] not in tokens:
            cluster.watch.fault(f"record {entry} of task {picture.id[-4:]} has no effect behind it: {tokens}")
