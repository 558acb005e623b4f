"""Replay: a journal read once, at claim, and asked for each thing that the handler comes to.

Within one scope the handler is sequential, so what the journal has of a scope stands in the order in which the code will
ask for it. Something else than the next one there means that the code was changed under a living task: that is never
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

STEPS = frozenset({r.STEP_DONE, r.STEP_FAILED, r.ANNOUNCED})
WAITS = frozenset({r.SLEEP, r.SIGNAL, r.QUESTION, r.APPROVAL, r.CHILD})
MARKS = frozenset({r.SAGA, r.SAGA_DONE, r.UNDOING, r.UNDONE, r.VERSION})


@dataclasses.dataclass(slots=True)
class Known:
    """What the journal knows of one thing that the handler did."""

    key: str
    kind: str
    data: dict[str, Any]
    seq: int
    over: bool = True

    def failure(self) -> StepFailed:
        """The failure as it was raised at first, also for the task's policy: what could not heal then cannot now."""
        return failure_of(self.key, self.data["error"])


def failure_of(key: str, error: dict[str, Any]) -> StepFailed:
    """A recorded error as an exception."""
    failed = StepFailed(key, error.get("attempts", 1), error["type"], error["message"])
    failed.__cause__ = Fatal(error["message"]) if error.get("fatal") else None
    return failed


def path_of(key: str) -> str:
    """The path of the scope that a key belongs to (`gather.1` of `[gather.1]name#2`); empty for the handler's own line."""
    return key[1 : key.index("]")] if key.startswith("[") else ""


def path_in(key: str, round_: int) -> str:
    """The path of the scope of a saga, from the saga's own key and the number of the try."""
    path, _, name = key[1:].partition("]") if key.startswith("[") else ("", "", key)
    return (f"{path}/{name}" if path else name) + (f"@{round_}" if round_ > 1 else "")


class Replay:
    """What a journal has, scope by scope."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._lines: dict[str, collections.deque[Known]] = {}
        self._retries: dict[str, int] = {}
        self._rounds: dict[str, int] = {}
        self.messages: dict[int, dict[str, Any]] = {}
        """What came in, by number, as far as no wait has taken it."""
        self.inbox = 0
        """The number of the last message that was copied into the journal."""
        self.started_at: float | None = None
        self.unread = 0
        self.open_sagas: set[str] = set()
        self.stop = ""
        """The record that asked for an end (a cancel, a deadline), when there is one."""
        for record in records:
            self._read(record)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, record: Record) -> None:
        match record.kind:
            case r.STEP_DONE | r.STEP_FAILED | r.ANNOUNCED:
                self._step(record)
            case r.SLEEP | r.SIGNAL | r.QUESTION | r.APPROVAL | r.CHILD:
                self._add(record, over=False)
            case r.SLEPT | r.WAITED:
                self._close(record)
            case r.SAGA | r.SAGA_DONE | r.UNDOING | r.UNDONE | r.VERSION:
                self._add(record)
                if record.kind == r.SAGA:
                    self.open_sagas.add(record.key)
                elif record.kind in {r.SAGA_DONE, r.UNDONE}:
                    self.open_sagas.discard(record.key)
            case r.MESSAGE:
                self.receive(record.value)
            case r.STEP_RETRY:
                self._retries[record.key] = record.value["attempt"]
            case r.RETRY | r.RESUMED:
                self._again(record.kind)
            case r.CANCEL | r.DEADLINE:
                self.stop = record.kind
            case r.SHIFT if self.started_at is None:
                self.started_at = record.at

    def _line(self, key: str) -> collections.deque[Known]:
        return self._lines.setdefault(path_of(key), collections.deque())

    def _add(self, record: Record, *, over: bool = True) -> None:
        self._line(record.key).append(Known(record.key, record.kind, record.value, record.seq, over))
        self.unread += 1

    def _step(self, record: Record) -> None:
        line = self._line(record.key)
        if line and line[-1].kind == r.ANNOUNCED and line[-1].key == record.key:
            line.pop()
            self.unread -= 1
        self._add(record, over=record.kind != r.ANNOUNCED)
        self._retries.pop(record.key, None)

    def _close(self, record: Record) -> None:
        known, told = self._line(record.key)[-1], record.value
        known.over = True
        if "n" in told:
            known.data = known.data | self.messages[told["n"]]
            if known.kind != r.CHILD:  # an ended child may be asked for its result again
                del self.messages[told["n"]]
        known.data = known.data | told

    def receive(self, message: dict[str, Any]) -> None:
        """A message, from the journal or on its way into it."""
        self.inbox = message["n"]
        if message["kind"] == "resolve":
            for line in self._lines.values():
                if line and line[-1].kind == r.ANNOUNCED and line[-1].seq == message["ref"]:
                    line[-1].data = line[-1].data | {"verdict": message}
        else:
            self.messages[message["n"]] = message

    def _again(self, kind: str) -> None:
        """The task is tried again, or somebody wants it to go on. Failures that the handler had not got over run anew, and
        so do sagas that were undone, under new keys. What it caught, and went on from, stays as it was, or the steps after
        it would have lost their place."""
        self._retries.clear()
        if kind == r.RESUMED:  # the time that it may take starts anew
            self.started_at, self.stop = None, ""
        for path in list(self._lines):
            line = self._lines.get(path)
            while line and line[-1].kind in {r.STEP_FAILED, r.UNDONE}:
                known = line.pop()
                self.unread -= 1
                if known.kind == r.UNDONE:
                    self._drop_saga(known.key, line)

    def _drop_saga(self, key: str, line: collections.deque[Known]) -> None:
        while line and line[-1].key == key:
            line.pop()
            self.unread -= 1
        gone = path_in(key, self.round(key))
        for path in [path for path in self._lines if path == gone or path.startswith(f"{gone}/")]:
            self.unread -= len(self._lines.pop(path))
        self._rounds[key] = self.round(key) + 1

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def round(self, key: str) -> int:
        """The number of the try of a saga."""
        return self._rounds.get(key, 1)

    def next(self, key: str, kinds: frozenset[str], mark: str = "") -> Known | None:
        """What is known of that which the code comes to now; None when it is new. Parks when the journal has another thing,
        or other arguments, in this place."""
        line = self._lines.get(path_of(key))
        if not line:
            return None
        known = line.popleft()
        self.unread -= 1
        if known.key != key:
            raise Park(
                f"the code asks for step {key!r} where the journal has {known.key!r}; it was changed under this task"
            )
        if known.kind not in kinds:
            raise Park(
                f"the code asks for {key!r} as {min(kinds)} where the journal has {known.kind}; it was changed under this task"
            )
        if known.data.get("args", "") != mark:
            raise Park(
                f"the code calls step {key!r} with other arguments than the journal has; it was changed under this task"
            )
        return known

    def peek(self, key: str) -> Known | None:
        """The next thing that the journal has in the scope of this key."""
        line = self._lines.get(path_of(key))
        return line[0] if line else None

    def ahead(self, path: str) -> bool:
        """Whether the journal has anything more in the scope of this path, or below it."""
        return any(line for at, line in self._lines.items() if not path or at == path or at.startswith(f"{path}/"))

    def failures(self, key: str) -> int:
        """Failed attempts of a step that was being retried when the last shift ended."""
        return self._retries.pop(key, 0) if self._retries else 0

    def leftover(self) -> str | None:
        """Something recorded that the code never asked for, now that the handler has returned."""
        return next((line[0].key for line in self._lines.values() if line), None)
