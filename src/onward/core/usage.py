"""Usage: sums up the model calls of an agent, from its records. Pure.

The record of each call has its tokens and its price, each checkpoint has the sum before it, and the last record of a task has the sum of
all. So no record is written only for this. A figure that a provider did not report is None, and so is every sum with it: unknown is never
zero. The sum of a fork leaves out the calls that it inherited.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from onward.core import record as r
from onward.core import wire

NAMES = ("calls", "input_tokens", "output_tokens", "cost_usd")
HEAD = b'{"usage":'
"""The beginning of the data of a last record with a usage."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Recorded calls of models, their tokens and their cost. None is unknown."""

    calls: int | None = 0
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cost_usd: float | None = 0.0
    with_children: Usage | None = None
    """The sum with all tasks below; None when it was not computed, or they are too many."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*[_sum(getattr(self, name), getattr(other, name)) for name in NAMES])

    def to_json(self) -> dict[str, Any]:
        """As JSON, without `with_children`."""
        return {name: getattr(self, name) for name in NAMES}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Usage:
        """The usage of which `to_json` made this document."""
        return cls(*[document.get(name) for name in NAMES])


UNKNOWN = Usage(None, None, None, None)


def of_call(result: Any, task_id: str) -> Usage:
    """The usage in the result of a model call; empty for any other step, and for calls that a fork inherited."""
    if (
        not isinstance(result, dict)
        or not str(result.get("call", "")).startswith(f"{task_id}:")
        or "usage" not in result
    ):
        return Usage()
    usage = result["usage"]
    return Usage(result.get("calls", 1), usage.get("input"), usage.get("output"), result.get("cost"))


def saved(usage: Usage, task_id: str) -> dict[str, Any]:
    """The usage as a checkpoint has it, with the id of its task."""
    return {"of": task_id, **usage.to_json()}


def restored(value: Any, task_id: str) -> Usage:
    """The sum in an agent's checkpoint."""
    document = value.get("usage") if isinstance(value, dict) else None
    if document is None:
        return UNKNOWN
    return Usage.from_json(document) if document["of"] == task_id else Usage()


def usage_in(records: Iterable[r.Record], task_id: str, before: Usage = Usage()) -> Usage:  # noqa: B008 -- it is frozen
    """The usage of a task, from its journal since its last checkpoint; `before` is that of the pages before these records."""
    usage = before
    for record in records:
        if record.kind == r.CHECKPOINT:
            usage = restored(record.value["value"], task_id)
        elif record.kind == r.STEP_DONE and not record.dropped:
            usage += of_call(record.value.get("result"), task_id)
    return usage


def usage_at(head: bytes) -> Usage | None:
    """The usage at the beginning of the data of a last record, of which `head` is the first bytes; None when it has none."""
    if not head.startswith(HEAD) or b"}" not in head:
        return None
    return Usage.from_json(wire.decode(head[len(HEAD) : head.index(b"}") + 1]))


def _sum(left: Any, right: Any) -> Any:
    return None if left is None or right is None else left + right
