"""Replay: a journal read once, at claim, and asked for each step that the handler comes to.

Within one branch the handler is sequential, so the recorded steps of a branch stand in the order in which the code will
ask for them. A step that is not the next one there means that the code was changed under a living task: that is never
guessed at, the task parks with both names.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

from onward.core import record as r
from onward.core.control import Park
from onward.core.record import Record
from onward.errors import Fatal, StepFailed


@dataclasses.dataclass(slots=True)
class Known:
    """What the journal knows of one step."""

    key: str
    kind: str
    data: dict[str, Any]
    over: bool = True

    def failure(self) -> StepFailed:
        """The failure as it was raised at first, also for the task's policy: what could not heal then cannot now."""
        error = self.data["error"]
        failed = StepFailed(self.key, error["attempts"], error["type"], error["message"])
        failed.__cause__ = Fatal(error["message"]) if error.get("fatal") else None
        return failed


def branch_of(key: str) -> str:
    """The part of a key that names its branch (`[0.1]name#2`); empty for the handler's own line."""
    return key[: key.index("]") + 1] if key.startswith("[") else ""


class Replay:
    """The steps of a journal, by branch."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._branches: dict[str, collections.deque[Known]] = {}
        self._retries: dict[str, int] = {}
        self.started_at: float | None = None
        self.unread = 0
        for record in records:
            self._read(record)

    def _read(self, record: Record) -> None:
        match record.kind:
            case r.STEP_DONE | r.STEP_FAILED:
                self._line(record.key).append(Known(record.key, record.kind, record.value))
                self.unread += 1
                self._retries.pop(record.key, None)
            case r.SLEEP:
                self._line(record.key).append(Known(record.key, record.kind, record.value, over=False))
                self.unread += 1
            case r.SLEPT:
                self._line(record.key)[-1].over = True
            case r.STEP_RETRY:
                self._retries[record.key] = record.value["attempt"]
            case r.RETRY:
                self._forget_failures()
            case r.RESUMED:  # somebody wants it to go on: the time it may take starts anew
                self._forget_failures()
                self.started_at = None
            case r.SHIFT if self.started_at is None:
                self.started_at = record.at

    def _line(self, key: str) -> collections.deque[Known]:
        return self._branches.setdefault(branch_of(key), collections.deque())

    def _forget_failures(self) -> None:
        """The task is tried again: failures that the handler had not got over run anew. One that it caught, and went on
        from, stays as it was, or the steps after it would have lost their place."""
        self._retries.clear()
        for line in self._branches.values():
            while line and line[-1].kind == r.STEP_FAILED:
                line.pop()
                self.unread -= 1

    def next(self, key: str, kind: str, mark: str) -> Known | None:
        """What is known of the step that the code comes to now; None when it is new. Parks when the journal has another
        step, or other arguments, in this place."""
        line = self._branches.get(branch_of(key))
        if not line:
            return None
        known = line.popleft()
        self.unread -= 1
        if known.key != key:
            raise Park(
                f"the code asks for step {key!r} where the journal has {known.key!r}; it was changed under this task"
            )
        if (kind == r.SLEEP) != (known.kind == r.SLEEP):
            raise Park(
                f"the code asks for {key!r} as {kind} where the journal has {known.kind}; it was changed under this task"
            )
        if known.data.get("args", "") != mark:
            raise Park(
                f"the code calls step {key!r} with other arguments than the journal has; it was changed under this task"
            )
        return known

    def failures(self, key: str) -> int:
        """Failed attempts of a step that was being retried when the last shift ended."""
        return self._retries.pop(key, 0) if self._retries else 0

    def leftover(self) -> str | None:
        """A recorded step that the code never asked for, now that the handler has returned."""
        return next((line[0].key for line in self._branches.values() if line), None)
