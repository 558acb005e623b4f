"""Turns of an agent in its journal: the records of its model calls. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.record import Record, payload

_MODEL = re.compile(r"(^|\])model(#\d+)?$")
"""The keys of steps that call a model."""

OUTPUT = frozenset({"id", "bytes", "artifacts", "brief", "native", "output", "patch"})
"""The fields of the result of a tool call."""


def model_call(record: Record) -> dict[str, Any] | None:
    """The result of a model call; empty where it was dropped, None for any other record."""
    if record.kind != r.STEP_DONE:
        return None
    if record.dropped:
        return {} if asks_a_model(record.key) else None
    value = payload(record)
    result = value.get("result") if isinstance(value, dict) else None
    return result if is_call(result) else None


def asks_a_model(key: str) -> bool:
    """Whether the step of this key is a model call of an agent."""
    return _MODEL.search(key) is not None


def is_call(result: Any) -> bool:
    """Whether the result of a step is that of a model call."""
    return isinstance(result, dict) and {"turn", "asked", "id"} <= result.keys()


def is_output(result: Any) -> bool:
    """Whether the result of a step of an agent is that of a tool call."""
    return isinstance(result, dict) and {"id", "bytes"} <= result.keys() and result.keys() <= OUTPUT


class CallReader:
    """Reads a journal record by record, and keeps the model calls of its first `most` turns after a number: the record of each, and its
    result. A later call of the same turn replaces an earlier one."""

    def __init__(self, after: int, most: int) -> None:
        self._after, self._most = after, most
        self.calls: dict[int, tuple[Record, dict[str, Any]]] = {}
        """By the number of the turn. There may be a few more than `most`."""
        self.lowest: int | None = None
        self.highest: int | None = None
        """The numbers of the first and the last turn that the journal has."""
        self.dropped = 0
        """The last checkpoint for which a call was dropped."""

    def read(self, record: Record) -> None:
        """Read one more record."""
        call = model_call(record)
        if call is None:
            return
        if number := record.dropped:
            self.dropped = max(self.dropped, number)
            return
        turn = call["turn"]
        self.lowest = turn if self.lowest is None else min(self.lowest, turn)
        self.highest = turn if self.highest is None else max(self.highest, turn)
        if turn > self._after:
            self.calls[turn] = record, call
            if len(self.calls) > 2 * self._most:
                self.calls = {number: self.calls[number] for number in sorted(self.calls)[: self._most]}

    def first(self) -> list[tuple[Record, dict[str, Any]]]:
        """The calls that it keeps, in order."""
        return [self.calls[number] for number in sorted(self.calls)[: self._most]]


def missing_turn(task_id: str, calls: CallReader, number: int) -> str:
    """The sentence that says why there is no turn of this number in a journal that was read."""
    if calls.dropped and (calls.lowest is None or number < calls.lowest):
        return f"turn {number} of task {task_id} was dropped: checkpoint {calls.dropped} stands for it"
    count = f"{calls.highest} turns" if calls.highest else "no turns: it is no agent, or its model was not asked yet"
    return f"task {task_id} has {count}; there is no turn {number}"


def content_ids(call: dict[str, Any]) -> list[str]:
    """The ids of the messages of a model call: those that the model got, in order, the state with which they ended, and the reply."""
    asked = call["asked"]
    return [asked["system"], *asked["shown"], *([asked["state"]] if "state" in asked else []), call["id"]]


def messages_of(call: dict[str, Any], contents: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The messages of a model call: those that the model got, in order, and last its reply."""
    return [
        wire.decode(contents[name]) if name in contents else {"role": "?", "content": "(gone)"}
        for name in content_ids(call)
    ]
