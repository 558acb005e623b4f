"""Conversions between rows of the database and values of the port, the same on both stores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from onward.core import wire
from onward.core.encryption import input_place, record_place
from onward.core.record import ENDS_BY_STATE
from onward.core.sealed import ERASED, UNREADABLE, is_sealed
from onward.core.task import OWN_ID_PREFIX, NewTask, State, Task, open_state
from onward.core.usage import Usage
from onward.store.port.values import Batch, ChildEnd
from onward.store.port.workers import WorkerRow
from onward.store.shared.codec import Codec, Item


async def opened(codec: Codec | None, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Rows of the section `columns` with their inputs and last records opened."""
    if codec is None:
        return rows
    places: list[tuple[int, str]] = []
    items: list[Item] = []
    for number, row in enumerate(rows):
        task_id = row["id"]
        if row["input"] is not None:
            places.append((number, "input"))
            items.append(Item(task_id, input_place(task_id, row["task"]), row["input"]))
        if row["ending"] is not None:
            kind = ENDS_BY_STATE[row["state"]]
            places.append((number, "ending"))
            items.append(Item(task_id, record_place(task_id, row["end_seq"], kind, ""), row["ending"], kind))
    whole = [dict(row) for row in rows]
    for (number, column), data in zip(places, await codec.open(items), strict=True):
        whole[number][column] = data
    return whole


def task(row: Mapping[str, Any]) -> Task:
    """A task from the columns of the section `columns`, opened. A value that this process cannot open is left out."""
    options = wire.decode(row["options"])
    ended = row["state"] is not None
    state = State(row["state"]) if ended else open_state(row["worker"], row["reason"])
    erased = ERASED in {row["input"], row["ending"]}
    data, last = (None if _is_unreadable(row[name]) else row[name] for name in ("input", "ending"))
    ending = wire.decode(last) if last else {}
    left_out: tuple[str, ...] = () if data is not None else ("input",)
    if ended and last is None:
        left_out += ("error",) if state is State.FAILED else ("result",)
    deadline, started = options.get("deadline"), row["started_at"]
    return Task(
        task_id=row["id"],
        task=row["task"],
        state=state,
        reason=None if ended else row["reason"],
        input=None if data is None else wire.decode(data),
        result=ending.get("result"),
        error=ending.get("error"),
        priority=row["priority"],
        queue=row["queue"],
        attempt=row["attempt"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        finished_at=row["finished_at"],
        # The first shifts of a fork are those of another task: its deadline counts from the time of the fork, at the earliest.
        deadline_at=None if deadline is None or started is None else max(started, row["created_at"]) + deadline,
        due_at=row["due_at"],
        # A tenant's keys and groups stand behind its name; see `service/submission.py`.
        key=row["key"] and row["key"].rpartition("\n")[2],
        labels=options.get("labels", {}),
        worker=row["worker"],
        parent=row["parent"],
        group=row["grp"] and row["grp"].rpartition("\n")[2],
        tenant=row["tenant"],
        usage=Usage.from_json(ending["usage"]) if "usage" in ending else None,
        by=options.get("by"),
        partial=ending.get("partial"),
        left_out=left_out,
        erased=erased,
    )


def _is_unreadable(data: bytes | None) -> bool:
    """Whether a process without the key must leave a payload out."""
    return data is not None and (data[:1] == UNREADABLE or is_sealed(data))


def child_ends(batch: Batch) -> list[ChildEnd]:
    """The messages of a batch to the parents of children that end in it."""
    if batch.child_ends is not None:
        return batch.child_ends
    children = [end for end in batch.ends if end.parent is not None]
    if not children:
        return []
    datas = {(entry[0], entry[1]): entry[5] for entry in batch.entries}
    return [
        (str(end.parent), child_end_id(end.id, end.seq), end.id, child_end(end.state, datas[end.id, end.seq]))
        for end in children
    ]


def child_end_id(task_id: str, seq: int) -> str:
    """The id of the message that tells a parent that a task has ended with this record."""
    return f"{OWN_ID_PREFIX}child {task_id}.{seq}"


def child_end(state: State, ending: bytes) -> bytes:
    """The data of the last record of a task as the data of a message to its parent."""
    return b'{"state":"%b"%b' % (state.encode(), b"}" if ending == b"{}" else b"," + ending[1:])


def worker(row: Mapping[str, Any]) -> WorkerRow:
    """A worker from the section `workers`."""
    values = dict(row)
    return WorkerRow(
        **values | {"names": tuple(json.loads(values["names"])), "queues": tuple(json.loads(values["queues"]))}
    )


def worker_values(row: WorkerRow) -> dict[str, Any]:
    """The parameters of the section `join`."""
    return dataclasses.asdict(row) | {"names": json.dumps(row.names), "queues": json.dumps(row.queues)}


def submit_values(new: Sequence[NewTask]) -> dict[str, Any]:
    """The parameters of PostgreSQL's sections `submit` and `submit_grouped`: tasks as columns."""
    return {
        "ids": [n.id for n in new],
        "tasks": [n.task for n in new],
        "queues": [n.queue for n in new],
        "priorities": [n.priority for n in new],
        "inputs": [n.input for n in new],
        "options": [n.options for n in new],
        "keys": [n.key for n in new],
        "fingerprints": [n.fingerprint for n in new],
        "delays": [n.delay for n in new],
        "parents": [n.parent for n in new],
        "groups": [n.group for n in new],
        "tenants": [n.tenant for n in new],
        "turn_groups": [n.turn_group for n in new],
    }
