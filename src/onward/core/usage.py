"""Usage: what an agent's model calls came to. Pure: records in, sums out.

Every call has its tokens and its price in the record of its step, each checkpoint has the sum before it, and the record of a
task's end has the sum of all; so nothing is written for this alone. What a provider did not tell is None, and so is every sum
with it: unknown is never nothing. A fork has its own sum: what it inherited, the other has paid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from onward.core import record as r
from onward.core import wire

NAMES = ("calls", "input_tokens", "output_tokens", "cost_usd")
HEAD = b'{"usage":'
"""How the data of a last record begins that has it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Calls of models whose answers are recorded, what they took and gave, and what that cost. None is unknown."""

    calls: int | None = 0
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cost_usd: float | None = 0.0
    with_children: Usage | None = None
    """The same together with all that the task started; None when nobody has looked, or there are too many."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*[_sum(getattr(self, name), getattr(other, name)) for name in NAMES])

    def told(self) -> dict[str, Any]:
        """As JSON, without the children."""
        return {name: getattr(self, name) for name in NAMES}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Usage:
        """What `told` gave."""
        return cls(*[told.get(name) for name in NAMES])


UNKNOWN = Usage(None, None, None, None)


def of_call(result: Any, task_id: str) -> Usage:
    """What the record of a model call says of its price; nothing for any other step, and for calls of another task."""
    if (
        not isinstance(result, dict)
        or not str(result.get("call", "")).startswith(f"{task_id}:")
        or "usage" not in result
    ):
        return Usage()
    usage = result["usage"]
    return Usage(1, usage.get("input"), usage.get("output"), result.get("cost"))


def saved(usage: Usage, task_id: str) -> dict[str, Any]:
    """As a checkpoint holds it, with whose it is."""
    return {"of": task_id, **usage.to_json()}


def restored(value: Any, task_id: str) -> Usage:
    """The sum in an agent's checkpoint."""
    told = value.get("usage") if isinstance(value, dict) else None
    if told is None:
        return UNKNOWN
    return Usage.from_json(told) if told["of"] == task_id else Usage()


def usage_in(records: Iterable[r.Record], task_id: str) -> Usage:
    """The usage of a task, from its journal since its last checkpoint."""
    found = Usage()
    for record in records:
        if record.kind == r.CHECKPOINT:
            found = restored(record.value["value"], task_id)
        elif record.kind == r.STEP_DONE and not record.dropped:
            found += of_call(record.value.get("result"), task_id)
    return found


def usage_at(head: bytes) -> Usage | None:
    """The usage that the data of a last record begins with, of which only the beginning is here; None when it has none."""
    if not head.startswith(HEAD) or b"}" not in head:
        return None
    return Usage.from_json(wire.decode(head[len(HEAD) : head.index(b"}") + 1]))


def _sum(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one + other
