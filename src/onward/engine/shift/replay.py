"""Replay: a journal read once, at claim, and asked for each thing that the handler comes to.

Within one scope the handler is sequential, so what the journal has of a scope stands in the order in which the code will
ask for it. Something else than the next one there means that the code was changed under a living task: that is never
guessed at, the task parks with both names. The same holds across scopes, but for branches of one gather, which run side by
side: while the journal has anything further, in this scope or in one before, after or around it, nothing can be new here.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any

from onward.core import record as r
from onward.core.control import Park
from onward.core.journal import checkpoint
from onward.core.journal.cuts import ASKED_AGAIN
from onward.core.record import Record
from onward.engine.shift.mail import Mail
from onward.errors import Fatal, StepFailed

STEPS = frozenset({r.STEP_DONE, r.STEP_FAILED, r.ANNOUNCED})
SAID = {r.QUESTION: ("question", "choices"), r.APPROVAL: ("what", "risk", "data"), r.CHILD: ("child",)}
"""What a wait asks for: an answer belongs to this, and to nothing else of the same name."""


_NOTHING: dict[Any, Any] = {}
"""What a new task has: thousands are begun in a second, and each table of its own would be work for the collector."""


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


def grown(names: AbstractSet[str], name: str) -> set[str]:
    """The set with one more name in it: the same set, unless it was the empty one that all new tasks share."""
    names = names if isinstance(names, set) else set(names)
    names.add(name)
    return names


def shrunk(names: AbstractSet[str], name: str) -> AbstractSet[str]:
    """The set without that name."""
    if isinstance(names, set):
        names.discard(name)
    return names


def path_of(key: str) -> str:
    """The path of the scope that a key belongs to (`gather.1` of `[gather.1]name#2`); empty for the handler's own line."""
    return key[1 : key.index("]")] if key.startswith("[") else ""


def path_in(key: str, round_: int) -> str:
    """The path of the scope of a saga, from the saga's own key and the number of the try."""
    path, _, name = key[1:].partition("]") if key.startswith("[") else ("", "", key)
    return (f"{path}/{name}" if path else name) + (f"@{round_}" if round_ > 1 else "")


@functools.lru_cache(maxsize=4096)
def _ways(path: str) -> tuple[tuple[str, str], ...]:
    """The scopes from the outermost to this one; for each branch also the gather that it is one of (`gather.` of
    `gather.1`)."""
    parts = path.split("/") if path else []
    scopes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return tuple(
        (scope, scope[: scope.rindex(".") + 1] if "." in part else "")
        for scope, part in zip(scopes, parts, strict=True)
    )


def _around(path: str) -> list[str]:
    """The paths of the scopes around a scope, from the handler's own line on."""
    return ["", *(scope for scope, _ in _ways(path))][:-1] if path else []


class Replay:
    """What a journal has, scope by scope."""

    started_at: float | None = None
    unread: int = 0
    forked: int = 0
    """The number of the record that says that this task is a fork."""
    approvals: Sequence[int] = ()
    """The numbers of the approvals of the task that this one is a fork of."""
    undoing: int = 0
    """Of a fork that only undoes an effect in doubt of a task that has ended: the number of the record that announced it."""
    origin: str = ""
    """The task that such a fork undoes something of."""
    undone: str = ""
    """The step that it has undone."""
    undo_error: Exception | None = None
    """Why it could not."""
    stop: str = ""
    """The record that asked for an end (a cancel, a deadline), when there is one."""
    versions: AbstractSet[str] = frozenset()
    """Changes of the code that this task came to with the new code."""
    open_sagas: AbstractSet[str] = frozenset()
    begins: int = 0
    """The number of the record of the last checkpoint: the next shift reads on from there."""
    checkpoint: int = 0
    """The number of the last checkpoint; 0 when there is none."""
    restored: Any = None
    """What the last checkpoint holds."""
    fresh_at: float = 0.0
    """When the last checkpoint was saved, or somebody said after that to go on from it."""
    decided: Mapping[str, bool] = MappingProxyType({})
    """Which way the task went at changes of the code before its last checkpoint."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self.mail: Mail = Mail()
        self._lines: dict[str, collections.deque[Known]] = {} if records else _NOTHING
        self._unread: dict[str, int] = {} if records else _NOTHING
        """How much is unread in each scope with all below it, and in each gather."""
        self.asked_again: dict[str, Known] = {} if records else _NOTHING
        """What this fork has asked for again, by the keys of those records."""
        self._retries: dict[str, int] = {} if records else _NOTHING
        self._rounds: dict[str, int] = {} if records else _NOTHING
        self._announced: dict[int, Known] = {} if records else _NOTHING
        """Effects whose end the journal does not tell, by the number of the record that announced them."""
        for record in records:
            self._read(record)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, record: Record) -> None:
        match record.kind:
            case r.STEP_DONE | r.STEP_FAILED | r.ANNOUNCED:
                self._step(record)
            case r.APPROVAL if record.key.startswith(ASKED_AGAIN):
                self.asked_again[record.key] = Known(record.key, record.kind, record.value, record.seq, over=False)
            case r.SLEEP | r.SIGNAL | r.QUESTION | r.APPROVAL | r.CHILD:
                self._add(record, over=False)
            case r.SLEPT | r.WAITED:
                self._close(record)
            case r.VERSION:
                self.versions = grown(self.versions, record.key)
            case r.CHECKPOINT:
                self._restart(record)
            case r.HEARD:
                self._add(record, {"messages": [self.mail.take(number) for number in record.value["n"]]})
            case r.PATCHED:
                self._add(record)
                if "n" in record.value:
                    self.mail.discard(record.value["n"])
            case r.SAGA | r.SAGA_DONE | r.UNDOING | r.UNDONE:
                self._add(record)
                if record.kind == r.SAGA:
                    self.open_sagas = grown(self.open_sagas, record.key)
                elif record.kind in {r.SAGA_DONE, r.UNDONE}:
                    self.open_sagas = shrunk(self.open_sagas, record.key)
            case r.MESSAGE:
                self.receive(record.value)
            case r.STEP_RETRY:
                self._not_done(record.key)
                self._retries[record.key] = record.value["attempt"]
            case r.STEP_WAITS:
                self._not_done(record.key)
            case r.RETRY | r.RESUMED:
                self._again(record.kind)
                if record.kind == r.RESUMED:
                    self.fresh_at = record.at
            case r.FORKED:
                self._retries.clear()
                self.asked_again.clear()  # that was for the task that this one is a fork of
                self.approvals = record.value.get("approvals", ())
                self.undoing, self.undone = record.value.get("undo", 0), ""
                self.origin = record.value["from"] if self.undoing else ""
                stop = r.CANCEL if self.undoing else ""
                self.started_at, self.stop, self.forked, self.fresh_at = None, stop, record.seq, record.at
            case r.CANCEL | r.DEADLINE:
                self.stop = record.kind
            case r.SHIFT if self.started_at is None:
                self.started_at = record.at

    def _restart(self, record: Record) -> None:
        """A checkpoint stands for everything before it."""
        told, self.fresh_at = checkpoint.read(record), record.at
        for table in (self._lines, self._unread, self._retries, self._rounds, self._announced):
            table.clear()
        self.unread, self.open_sagas = 0, frozenset()
        self.begins = record.seq
        self.checkpoint, self.restored = told["number"], told["value"]
        self.mail = Mail(told["messages"], told["inbox"])
        self.started_at, self.decided = told["started_at"], told["versions"]

    def _line(self, key: str) -> collections.deque[Known]:
        return self._lines.setdefault(path_of(key), collections.deque())

    def _count(self, path: str, by: int) -> None:
        self.unread += by
        for scope, gather in _ways(path):
            for counted in (scope, gather) if gather else (scope,):
                self._unread[counted] = self._unread.get(counted, 0) + by

    def _add(self, record: Record, more: Mapping[str, Any] = MappingProxyType({}), *, over: bool = True) -> None:
        data = {**record.value, **more} if more else record.value
        self._line(record.key).append(Known(record.key, record.kind, data, record.seq, over))
        self._count(path_of(record.key), 1)

    def _drop_last(self, path: str) -> Known:
        self._count(path, -1)
        known = self._lines[path].pop()
        self._announced.pop(known.seq, None)
        return known

    def _step(self, record: Record) -> None:
        line = self._line(record.key)
        if line and line[-1].kind == r.ANNOUNCED and line[-1].key == record.key:
            self._drop_last(path_of(record.key))
        self._add(record, over=record.kind != r.ANNOUNCED)
        if record.kind == r.ANNOUNCED:
            self._announced[record.seq] = line[-1]
        self._retries.pop(record.key, None)
        if self.undoing and record.kind == r.STEP_FAILED:  # the only record of a step that such a fork writes
            self.undone = record.key

    def _not_done(self, key: str) -> None:
        """An attempt is over, and did nothing: what was announced for it is not in doubt."""
        line = self._lines.get(path_of(key))
        if line and line[-1].kind == r.ANNOUNCED and line[-1].key == key:
            self._drop_last(path_of(key))

    def _close(self, record: Record) -> None:
        known, told = self.asked_again.get(record.key) or self._line(record.key)[-1], record.value
        known.over = True
        if "n" in told:
            find = self.mail.get if known.kind == r.CHILD else self.mail.take  # an ended child may be asked again
            known.data = known.data | find(told["n"])
        elif told.get("expired") and (message := self.mail.first(known.seq)) is not None:
            self.mail.discard(message["n"])
        known.data = known.data | told

    def receive(self, message: dict[str, Any]) -> None:
        """A message, from the journal or on its way into it."""
        if message["kind"] == "resolve":
            self.mail.last = message["n"]
            if (known := self._announced.get(message["ref"])) is not None:
                known.data = known.data | {"verdict": message}
        else:
            self.mail.add(message)

    def _again(self, kind: str) -> None:
        """The task is tried again, or somebody wants it to go on. Failures that the handler had not got over run anew, and
        so do sagas that were undone, under new keys. What it caught, and went on from, stays as it was, or the steps after
        it would have lost their place."""
        self._retries.clear()
        if self.undoing:
            return
        if kind == r.RESUMED:  # the time that it may take starts anew
            self.started_at, self.stop = None, ""
        inner = self._last_inside()
        for path in sorted(self._lines):  # a scope comes before those in it
            line = self._lines.get(path)
            while line and line[-1].kind in {r.STEP_FAILED, r.UNDONE} and not self._got_over(path, line[-1].seq, inner):
                known = self._drop_last(path)
                if known.kind == r.UNDONE:
                    self._drop_saga(known.key, path)

    def _got_over(self, path: str, seq: int, inner: Mapping[str, int]) -> bool:
        """Whether a scope around this one, or a branch or saga in it, went on after that record."""
        return inner.get(path, 0) > seq or any(
            line[-1].seq > seq for at in _around(path) if (line := self._lines.get(at))
        )

    def _last_inside(self) -> dict[str, int]:
        """The number of the last record in the scopes inside each scope."""
        last: dict[str, int] = {}
        for path, line in self._lines.items():
            for at in _around(path) if line else ():
                last[at] = max(last.get(at, 0), line[-1].seq)
        return last

    def _drop_saga(self, key: str, path: str) -> None:
        while (line := self._lines[path]) and line[-1].key == key:
            self._drop_last(path)
        gone = path_in(key, self.round(key))
        for below in [below for below in self._lines if below == gone or below.startswith(f"{gone}/")]:
            self._count(below, -len(self._lines[below]))
            del self._lines[below]
        self._rounds[key] = self.round(key) + 1

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def round(self, key: str) -> int:
        """The number of the try of a saga."""
        return self._rounds.get(key, 1)

    def next(self, key: str, kinds: frozenset[str], mark: str = "") -> Known | None:
        """What is known of that which the code comes to now; None when it is new. Parks when the journal has another thing,
        or other arguments, in this place."""
        path = path_of(key)
        line = self._lines.get(path)
        if not line:
            return None
        known = line.popleft()
        self._count(path, -1)
        if known.key != key:
            raise _changed(f"the code asks for step {key!r} where the journal has {known.key!r}")
        if known.kind not in kinds:
            raise _changed(f"the code asks for {key!r} as {min(kinds)} where the journal has {known.kind}")
        if known.data.get("args", "") != mark:
            raise _changed(f"the code calls step {key!r} with other arguments than the journal has")
        return known

    def check_last(self, key: str) -> None:
        """Something new, or still open, comes after all that the journal has, but for what runs beside it. Parks when not:
        it was put into a line, a block or a branch that had gone past this place, or something before it is gone."""
        path = path_of(key)
        line = self._lines.get(path)
        if self.ahead(path) > len(line or ()):
            there = min((known for known in self._following(path)), key=lambda known: known.seq)
            raise _changed(f"the code asks for step {key!r} where the journal has {there.key!r}")

    def check_said(self, known: Known, said: dict[str, Any]) -> None:
        """Parks when a wait asks for another thing than the one that was, or will be, answered."""
        for name in SAID.get(known.kind, ()):
            if known.data.get(name) != said.get(name):
                raise _changed(f"the code asks {known.key!r} with another {name!r} than the journal has")

    def check_over(self, path: str) -> None:
        """A scope has come to its end. Parks when the journal has more of it."""
        if self._unread.get(path):
            raise self._unasked(path, lambda at: _within(at, path))

    def check_branches(self, gather: str, count: int) -> None:
        """A gather (`gather.`, or `gather#2.` …) begins with so many branches. Parks when the journal has more of them."""
        if self._unread.get(gather, 0) > sum(self._unread.get(f"{gather}{number}", 0) for number in range(count)):
            known = [f"{gather}{number}" for number in range(count)]
            raise self._unasked(gather, lambda at: at.startswith(gather) and not any(_within(at, one) for one in known))

    def _unasked(self, path: str, fits: Callable[[str], bool]) -> Park:
        there = min((line[0] for at, line in self._lines.items() if line and fits(at)), key=lambda known: known.seq)
        return _changed(f"{path.rstrip('.')} ended without asking for step {there.key!r}, which the journal has")

    def peek(self, key: str) -> Known | None:
        """The next thing that the journal has in the scope of this key."""
        line = self._lines.get(path_of(key))
        return line[0] if line else None

    @property
    def owes_undo(self) -> bool:
        """Whether a person wants an effect in doubt undone."""
        last = [line[-1] for line in self._lines.values() if line]
        return any(one.kind == r.ANNOUNCED and one.data.get("verdict", {}).get("name") == "undo" for one in last)

    def inherits(self, prefix: str | None = None) -> bool:
        """Whether what comes next in this scope (with None, in any) was done by the task that this one is a fork of."""
        lines = self._lines.values() if prefix is None else [self._lines.get(path_of(prefix))]
        return any(line and line[0].seq < self.forked for line in lines)

    def ahead(self, path: str) -> int:
        """How much the journal still has that does not run beside this scope: in it, below it, around it, or after it."""
        count = self._unread.get
        return self.unread - sum(count(gather, 0) - count(scope, 0) for scope, gather in _ways(path) if gather)

    def _following(self, path: str) -> Iterable[Known]:
        ways = _ways(path)
        for at, line in self._lines.items():
            beside = any(gather and at.startswith(gather) and not _within(at, scope) for scope, gather in ways)
            if line and at != path and not beside:
                yield line[0]

    def failures(self, key: str) -> int:
        """Failed attempts of a step that was being retried when the last shift ended."""
        return self._retries.pop(key, 0)

    @property
    def inbox(self) -> int:
        """The number of the last message that was copied into the journal."""
        return self.mail.last

    @property
    def told(self) -> bool:
        """Whether all that it has was handed out: from here on everything is new."""
        return not (self.unread or self._retries)

    def leftover(self) -> str | None:
        """Something recorded that the code never asked for, now that the handler has ended."""
        return next((line[0].key for line in self._lines.values() if line), None)


def _within(path: str, scope: str) -> bool:
    return path == scope or path.startswith(f"{scope}/")


def _changed(how: str) -> Park:
    return Park(f"{how}; it was changed under this task")
