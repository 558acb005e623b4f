"""Replay: a journal that is read once, at the claim, and then answers for each call that the handler makes.

Within one scope the handler is sequential, so the records of a scope stand in the order in which the code will ask for them.
Another record than the next one there means that the code was changed under a living task. Replay never guesses then: the
task parks with both names. The same holds across scopes, except for branches of one gather, which run side by side: while the
journal has more records, in this scope or in one before, after or around it, no call can be new here.
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
from onward.core.epoch import Lost, joined, lost_from
from onward.core.journal import checkpoint
from onward.core.journal.cuts import ASKED_AGAIN
from onward.core.record import Record
from onward.engine.shift.mail import Mail
from onward.errors import Fatal, StepFailed

STEPS = frozenset({r.STEP_DONE, r.STEP_FAILED, r.ANNOUNCED})
QUESTION_FIELDS = {r.QUESTION: ("question", "choices"), r.APPROVAL: ("what", "risk", "data"), r.CHILD: ("child",)}
"""The fields of a question: an answer belongs to these, and to no other wait of the same name."""


NOTHING_HAPPENED = "nothing_happened"
"""The verdict of a person that neither an effect in doubt nor any effect after it happened before the restore."""

DID_NOT_HAPPEN = frozenset({"not_happened", NOTHING_HAPPENED})

_EMPTY: dict[Any, Any] = {}
"""The tables of a new task: workers start thousands in a second, and the garbage collector would look at each table of its own."""


@dataclasses.dataclass(slots=True)
class Known:
    """The records of one call of the handler."""

    key: str
    kind: str
    data: dict[str, Any]
    seq: int
    over: bool = True

    def failure(self) -> StepFailed:
        """The failure as it was raised at first, also for the retry policy of the task: a fatal one stays fatal."""
        return failure_of(self.key, self.data["error"])


def failure_of(key: str, error: dict[str, Any]) -> StepFailed:
    """A recorded error as an exception."""
    failed = StepFailed(key, error.get("attempts", 1), error["type"], error["message"], error.get("details"))
    failed.__cause__ = Fatal(error["message"]) if error.get("fatal") else None
    return failed


class Replay:
    """The records of a journal, scope by scope."""

    started_at: float | None = None
    unread: int = 0
    """How many records the handler has not asked for yet."""
    forked: int = 0
    """The number of the record that says that this task is a fork; 0 when it is none."""
    approvals: Sequence[int] = ()
    """The numbers of the approvals of the task that this one is a fork of."""
    undoing: int = 0
    """In a fork that only undoes an effect in doubt of a task that has ended: the number of the record that announced the effect."""
    origin: str = ""
    """The task whose effect such a fork undoes."""
    undone: str = ""
    """The step that such a fork has undone."""
    undo_error: Exception | None = None
    """Why such a fork could not undo it."""
    stop: str = ""
    """The kind of the record that asked for an end (a cancel, a deadline); empty when there is none."""
    versions: AbstractSet[str] = frozenset()
    """The keys of `ctx.version` calls that this task reached with the new code."""
    open_sagas: AbstractSet[str] = frozenset()
    checkpoint_seq: int = 0
    """The number of the record of the last checkpoint: the next shift reads on from there."""
    checkpoint: int = 0
    """The number of the last checkpoint; 0 when there is none."""
    restored: Any = None
    """The value of the last checkpoint."""
    fresh_at: float = 0.0
    """When the last checkpoint was saved, or a person resumed or forked the task after it."""
    lost: Lost | None = None
    """The time that a restore of the database took from this task; None where it took none."""
    certain: AbstractSet[str] = frozenset()
    """The effects that did not happen in that time, by the verdict of a person."""
    decided: Mapping[str, bool] = MappingProxyType({})
    """What `ctx.version` returned before the last checkpoint, by name."""

    def __init__(self, records: Sequence[Record] = (), lost: Lost | None = None) -> None:
        self.lost = lost
        self.mail: Mail = Mail()
        self._queues: dict[str, collections.deque[Known]] = {} if records else _EMPTY
        self._unread: dict[str, int] = {} if records else _EMPTY
        """How many records are unread in each scope with all below it, and in each gather."""
        self.asked_again: dict[str, Known] = {} if records else _EMPTY
        """The approvals that this fork asks for again, by the keys of their records."""
        self._retries: dict[str, int] = {} if records else _EMPTY
        self._rounds: dict[str, int] = {} if records else _EMPTY
        self._announced: dict[int, Known] = {} if records else _EMPTY
        """Effects whose end the journal does not have, by the number of the record that announced them."""
        self._locks: dict[str, Known] = {} if records else _EMPTY
        """Blocks under a lock that the journal does not leave, by their keys."""
        self._marks: dict[str, int] = {} if records else _EMPTY
        """Marks of `ctx.version` after which the journal has no call, with the numbers of their records. The code may not be the one that
        wrote them."""
        self._signal_waits: dict[str, collections.deque[Known]] | None = None
        """The waits for each signal that were open when the last shift ended, in their order; None until they are asked for."""
        for record in records:
            self._read(record)
        if self._marks:
            self._marks = {key: seq for key, seq in self._marks.items() if not self._has_call_after(path_of(key), seq)}

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def round(self, key: str) -> int:
        """The number of the current try of a saga."""
        return self._rounds.get(key, 1)

    def next(self, key: str, kinds: frozenset[str], mark: str = "") -> Known | None:
        """The record of the call that the code comes to now; None when the call is new. Parks when the journal has another call, or
        other arguments, in this place."""
        path = path_of(key)
        queue = self._queues.get(path)
        if not queue:
            return None
        known = queue.popleft()
        self._count(path, -1)
        if known.key != key:
            raise _code_changed(f"the code asks for step {key!r} where the journal has {known.key!r}")
        if known.kind not in kinds:
            raise _code_changed(f"the code asks for {key!r} as {min(kinds)} where the journal has {known.kind}")
        if known.data.get("args", "") != mark:
            raise _code_changed(f"the code calls step {key!r} with other arguments than the journal has")
        return known

    def check_last(self, key: str) -> None:
        """Check a call that is new, or still open: the journal may have nothing more, except in branches beside it. Parks when it
        has: the call was put into a line, a block or a branch that had gone past this place, or a call before it is gone."""
        path = path_of(key)
        queue = self._queues.get(path)
        if self.unread_ahead(path) > len(queue or ()):
            following = min(self._following(path), key=lambda known: known.seq)
            raise _code_changed(f"the code asks for step {key!r} where the journal has {following.key!r}")

    def check_question(self, known: Known, question: dict[str, Any]) -> None:
        """Parks when a wait asks another question than the one that was, or will be, answered."""
        for name in QUESTION_FIELDS.get(known.kind, ()):
            if known.data.get(name) != question.get(name):
                raise _code_changed(f"the code asks {known.key!r} with another {name!r} than the journal has")

    def check_over(self, path: str) -> None:
        """Check a scope that has come to its end. Parks when the journal has more of it."""
        if self._unread.get(path):
            raise self._unread_error(path, lambda at: _within(at, path))

    def check_branches(self, gather: str, count: int) -> None:
        """Check a gather (`gather.`, or `gather#2.` …) that begins with so many branches. Parks when the journal has more of them."""
        if self._unread.get(gather, 0) > sum(self._unread.get(f"{gather}{number}", 0) for number in range(count)):
            branches = [f"{gather}{number}" for number in range(count)]
            raise self._unread_error(
                gather, lambda at: at.startswith(gather) and not any(_within(at, branch) for branch in branches)
            )

    def _unread_error(self, path: str, fits: Callable[[str], bool]) -> Park:
        unread = min(
            (queue[0] for at, queue in self._queues.items() if queue and fits(at)), key=lambda known: known.seq
        )
        return _code_changed(f"{path.rstrip('.')} ended without asking for step {unread.key!r}, which the journal has")

    def peek(self, key: str) -> Known | None:
        """The next record in the scope of this key, which stays."""
        queue = self._queues.get(path_of(key))
        return queue[0] if queue else None

    @property
    def owes_undo(self) -> bool:
        """Whether a person wants an effect in doubt undone."""
        last = [queue[-1] for queue in self._queues.values() if queue]
        return any(known.kind == r.ANNOUNCED and known.data.get("verdict", {}).get("name") == "undo" for known in last)

    def checkpoint_data(self, number: int, value: Any) -> dict[str, Any]:
        """The payload of a checkpoint here."""
        data = {
            "form": checkpoint.FORM,
            "number": number,
            "value": value,
            "inbox": self.inbox,
            "messages": self.mail.all(),
            "started_at": self.started_at,
            "versions": self.decided,
        }
        return data if self.lost is None else data | {"lost": self.lost.to_json()}

    def may_have_happened(self, key: str) -> bool:
        """Whether a step without a record may have been done in the time that a restore took from this task."""
        return self.lost is not None and key not in self.certain

    def inherits(self, prefix: str | None = None) -> bool:
        """Whether the next record in this scope (with None, in any) was written by the task that this one is a fork of."""
        queues = self._queues.values() if prefix is None else [self._queues.get(path_of(prefix))]
        return any(queue and queue[0].seq < self.forked for queue in queues)

    def unread_in(self, path: str) -> int:
        """How many unread records are in this scope and below it."""
        return self._unread.get(path, 0)

    def unread_ahead(self, path: str) -> int:
        """How many unread records do not run beside this scope: they are in it, below it, around it, or after it."""
        count = self._unread.get
        return self.unread - sum(count(gather, 0) - count(scope, 0) for scope, gather in _ancestry(path) if gather)

    def _following(self, path: str) -> Iterable[Known]:
        for at, queue in self._queues.items():
            if queue and at != path and not _beside(path, at):
                yield queue[0]

    def _has_call_after(self, path: str, seq: int) -> bool:
        return any(queue and queue[-1].seq > seq and not _beside(path, at) for at, queue in self._queues.items())

    def takes_mark(self, key: str) -> bool:
        """Whether the journal has this mark of `ctx.version`, for which the code asks now."""
        self._marks.pop(key, None)
        return key in self.versions

    def pass_marks(self, path: str) -> Sequence[str]:
        """The marks that are void, now that the code makes a new call here without having asked for them. The code that wrote them would
        have made another call: it finds them gone, and does as for a task that had passed them before."""
        if not self._marks:
            return ()
        passed = [key for key in self._marks if not _beside(path_of(key), path)]
        for key in passed:
            del self._marks[key]
            self.versions = without_name(self.versions, key)
        return passed

    def waits_before(self, signal: str, seq: int) -> bool:
        """Whether a wait for this signal began before the one with this number, and the handler has not come to it again."""
        if not self.unread:
            return False
        if self._signal_waits is None:
            last = sorted((queue[-1] for queue in self._queues.values() if queue), key=lambda known: known.seq)
            self._signal_waits = {}
            for known in last:
                if known.kind == r.SIGNAL and not known.over:
                    self._signal_waits.setdefault(known.data["signal"], collections.deque()).append(known)
        waits = self._signal_waits.get(signal)
        while waits and not ((queue := self._queues.get(path_of(waits[0].key))) and queue[-1] is waits[0]):
            waits.popleft()
        return waits is not None and len(waits) > 0 and waits[0].seq < seq

    def take_failures(self, key: str) -> int:
        """The failed attempts of a step that was being retried when the last shift ended. They are counted once."""
        return self._retries.pop(key, 0)

    @property
    def inbox(self) -> int:
        """The number of the last message that was copied into the journal."""
        return self.mail.last

    @property
    def exhausted(self) -> bool:
        """Whether the handler has asked for all records: from here on each call is new, and no mark is open."""
        return not (self.unread or self._retries or self._marks)

    @property
    def in_lock(self) -> bool:
        """Whether the task was in a block under a lock, or waited for one, when the last shift ended."""
        return bool(self._locks)

    def first_unread(self) -> str | None:
        """The key of a record that the code has not asked for, now that the handler has ended."""
        return next((queue[0].key for queue in self._queues.values() if queue), None)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, record: Record) -> None:
        match record.kind:
            case r.STEP_DONE | r.STEP_FAILED | r.ANNOUNCED:
                self._add_step(record)
            case r.APPROVAL if record.key.startswith(ASKED_AGAIN):
                self.asked_again[record.key] = Known(record.key, record.kind, record.value, record.seq, over=False)
            case r.SLEEP | r.SIGNAL | r.QUESTION | r.APPROVAL | r.CHILD:
                self._add(record, over=False)
            case r.LOCK_AWAITED | r.LOCK_TAKEN:
                self._add_lock(record)
            case r.LOCK_LEFT:
                self._leave_lock(record)
            case r.SLEPT | r.WAITED:
                self._finish_wait(record)
            case r.VERSION if "void" in record.value:
                self.versions = without_name(self.versions, record.key)
                self._marks.pop(record.key, None)
            case r.VERSION:
                self.versions = with_name(self.versions, record.key)
                self._marks[record.key] = record.seq
            case r.CHECKPOINT:
                self._restore(record)
            case r.HEARD:
                self._add(record, {"messages": [self.mail.take(number) for number in record.value["n"]]})
            case r.PATCHED:
                self._add(record)
                if "n" in record.value:
                    self.mail.discard(record.value["n"])
            case r.SAGA | r.SAGA_DONE | r.UNDOING | r.UNDONE:
                self._add(record)
                if record.kind == r.SAGA:
                    self.open_sagas = with_name(self.open_sagas, record.key)
                elif record.kind in {r.SAGA_DONE, r.UNDONE}:
                    self.open_sagas = without_name(self.open_sagas, record.key)
            case r.MESSAGE:
                self.receive(record.value)
            case r.STEP_RETRY:
                self._drop_announcement(record.key)
                self._retries[record.key] = record.value["attempt"]
            case r.STEP_WAITS:
                self._drop_announcement(record.key)
            case r.RETRY | r.RESUMED:
                self._forget_failures(record.kind)
                if record.kind == r.RESUMED:
                    self.fresh_at = record.at
                    self.lost = joined(self.lost, lost_from(record.value.get("lost")))
            case r.FORKED:
                self._retries.clear()
                self.asked_again.clear()  # those belong to the task that this one is a fork of
                self.approvals = record.value.get("approvals", ())
                self.lost = None  # a person wants the steps of a fork to run
                self.undoing, self.undone = record.value.get("undo", 0), ""
                self.origin = record.value["from"] if self.undoing else ""
                stop = r.CANCEL if self.undoing else ""
                self.started_at, self.stop, self.forked, self.fresh_at = None, stop, record.seq, record.at
            case r.RESTORED:
                self._restart(record)
            case r.CANCEL | r.DEADLINE:
                self.stop = record.kind
            case r.SHIFT if self.started_at is None:
                self.started_at = record.at

    def _restart(self, record: Record) -> None:
        """The database was restored. The task may have acted since on verdicts that an effect did not happen: they are void."""
        self.lost, self.certain = joined(self.lost, lost_from(record.value)), frozenset()
        for known in self._announced.values():
            if known.data.get("verdict", {}).get("name") in DID_NOT_HAPPEN:
                del known.data["verdict"]

    def _restore(self, record: Record) -> None:
        """Begin anew at a checkpoint: it stands for all records before it."""
        saved, self.fresh_at = checkpoint.read(record), record.at
        for table in (
            self._queues,
            self._unread,
            self._retries,
            self._rounds,
            self._announced,
            self._locks,
            self._marks,
        ):
            table.clear()
        self.unread, self.open_sagas = 0, frozenset()
        self.checkpoint_seq = record.seq
        self.checkpoint, self.restored = saved["number"], saved["value"]
        self.mail = Mail(saved["messages"], saved["inbox"])
        self.started_at, self.decided = saved["started_at"], saved["versions"]
        self.lost = lost_from(saved.get("lost"))

    def _queue_of(self, key: str) -> collections.deque[Known]:
        return self._queues.setdefault(path_of(key), collections.deque())

    def _count(self, path: str, by: int) -> None:
        self.unread += by
        for scope, gather in _ancestry(path):
            for counted in (scope, gather) if gather else (scope,):
                self._unread[counted] = self._unread.get(counted, 0) + by

    def _add(self, record: Record, more: Mapping[str, Any] = MappingProxyType({}), *, over: bool = True) -> None:
        data = {**record.value, **more} if more else record.value
        self._queue_of(record.key).append(Known(record.key, record.kind, data, record.seq, over))
        self._count(path_of(record.key), 1)

    def _drop_last(self, path: str) -> Known:
        self._count(path, -1)
        known = self._queues[path].pop()
        self._announced.pop(known.seq, None)
        return known

    def _add_step(self, record: Record) -> None:
        queue = self._queue_of(record.key)
        if queue and queue[-1].kind == r.ANNOUNCED and queue[-1].key == record.key:
            self._drop_last(path_of(record.key))
        self._add(record, over=record.kind != r.ANNOUNCED)
        if record.kind == r.ANNOUNCED:
            self._announced[record.seq] = queue[-1]
        self._retries.pop(record.key, None)
        if self.undoing and record.kind == r.STEP_FAILED:  # the only record of a step that such a fork writes
            self.undone = record.key

    def _add_lock(self, record: Record) -> None:
        """A block begins, or a later shift has come into it again. Its last token counts."""
        if (known := self._locks.get(record.key)) is None:
            self._add(record, over=False)
            known = self._locks[record.key] = self._queue_of(record.key)[-1]
        known.data = {**known.data, **record.value}
        known.over = known.over or record.kind == r.LOCK_TAKEN

    def _leave_lock(self, record: Record) -> None:
        """A block was left, or (without a token) never entered."""
        if (known := self._locks.pop(record.key, None)) is None:
            return
        known.data, known.over = {**known.data, **record.value}, True
        if "token" in known.data:
            known.data["left"] = True
            self._add(record)

    def _reopen_lock(self, path: str, left: Known) -> None:
        """A block that an error left is entered again."""
        known = next(known for known in reversed(self._queues[path]) if known.key == left.key)
        known.data = {name: value for name, value in known.data.items() if name not in {"left", "failed"}}
        self._locks[known.key] = known

    def _drop_announcement(self, key: str) -> None:
        """An attempt ended without an effect: its announcement is not in doubt."""
        queue = self._queues.get(path_of(key))
        if queue and queue[-1].kind == r.ANNOUNCED and queue[-1].key == key:
            self._drop_last(path_of(key))

    def _finish_wait(self, record: Record) -> None:
        known, ending = self.asked_again.get(record.key) or self._queue_of(record.key)[-1], record.value
        known.over = True
        if "n" in ending:
            # The handler may ask for the result of an ended child again.
            find = self.mail.get if known.kind == r.CHILD else self.mail.take
            known.data = known.data | find(ending["n"])
        elif ending.get("expired") and (message := self.mail.first(known.seq)) is not None:
            self.mail.discard(message["n"])
        known.data = known.data | ending

    def receive(self, message: dict[str, Any]) -> None:
        """Take in a message, from the journal or on its way into it."""
        if message["kind"] == "resolve":
            self.mail.last = message["n"]
            if (known := self._announced.get(message["ref"])) is not None:
                known.data = known.data | {"verdict": message}
                if message["name"] in DID_NOT_HAPPEN:
                    self.certain = with_name(self.certain, known.key)
                if message["name"] == NOTHING_HAPPENED:
                    self.lost = None
        else:
            self.mail.add(message)

    def _forget_failures(self, kind: str) -> None:
        """The task is retried, or a person resumed it. Failures that the handler did not get over run again, and so do undone
        sagas, under new keys. A failure that the handler caught and continued after stays: the steps after it would lose their
        place."""
        self._retries.clear()
        if self.undoing:
            return
        if kind == r.RESUMED:  # its deadline begins anew
            self.started_at, self.stop = None, ""
        inner = self._last_seq_inside()
        for path in sorted(self._queues):  # a scope comes before its inner scopes
            queue = self._queues.get(path)
            while queue and _is_failure(queue[-1]) and not self._continued_after(path, queue[-1].seq, inner):
                known = self._drop_last(path)
                if known.kind == r.UNDONE:
                    self._drop_saga(known.key, path)
                elif known.kind == r.LOCK_LEFT:
                    self._reopen_lock(path, known)

    def _continued_after(self, path: str, seq: int, inner: Mapping[str, int]) -> bool:
        """Whether the handler went on after that record: in a scope around this one, or in a branch or saga in it."""
        return inner.get(path, 0) > seq or any(
            queue[-1].seq > seq for at in _enclosing(path) if (queue := self._queues.get(at))
        )

    def _last_seq_inside(self) -> dict[str, int]:
        """The number of the last record inside each scope, in its inner scopes."""
        last: dict[str, int] = {}
        for path, queue in self._queues.items():
            for at in _enclosing(path) if queue else ():
                last[at] = max(last.get(at, 0), queue[-1].seq)
        return last

    def _drop_saga(self, key: str, path: str) -> None:
        while (queue := self._queues[path]) and queue[-1].key == key:
            self._drop_last(path)
        gone = saga_path(key, self.round(key))
        for below in [below for below in self._queues if below == gone or below.startswith(f"{gone}/")]:
            self._count(below, -len(self._queues[below]))
            del self._queues[below]
        self._rounds[key] = self.round(key) + 1


def _is_failure(known: Known) -> bool:
    """Whether a call has failed: a retry of the task makes it again."""
    if known.kind == r.LOCK_LEFT:
        return "failed" in known.data
    if known.kind in {r.LOCK_AWAITED, r.LOCK_TAKEN}:
        return "expired" in known.data or "refused" in known.data
    return known.kind in {r.STEP_FAILED, r.UNDONE}


def with_name(names: AbstractSet[str], name: str) -> set[str]:
    """The set with one more name. Changes the set itself, unless it is the empty one that all new tasks share."""
    names = names if isinstance(names, set) else set(names)
    names.add(name)
    return names


def without_name(names: AbstractSet[str], name: str) -> AbstractSet[str]:
    """The set without that name."""
    if isinstance(names, set):
        names.discard(name)
    return names


def path_of(key: str) -> str:
    """The path of the scope of a key (`gather.1` of `[gather.1]name#2`); empty for the handler's own line."""
    return key[1 : key.index("]")] if key.startswith("[") else ""


def saga_path(key: str, round_: int) -> str:
    """The path of a saga's scope, from the saga's own key and the number of the try."""
    path, _, name = key[1:].partition("]") if key.startswith("[") else ("", "", key)
    return (f"{path}/{name}" if path else name) + (f"@{round_}" if round_ > 1 else "")


@functools.lru_cache(maxsize=4096)
def _ancestry(path: str) -> tuple[tuple[str, str], ...]:
    """The scopes from the outermost to this one; for each branch also the prefix of its gather (`gather.` of `gather.1`)."""
    parts = path.split("/") if path else []
    scopes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return tuple(
        (scope, scope[: scope.rindex(".") + 1] if "." in part else "")
        for scope, part in zip(scopes, parts, strict=True)
    )


def _enclosing(path: str) -> list[str]:
    """The paths of the scopes around a scope, the handler's own line first."""
    return ["", *(scope for scope, _ in _ancestry(path))][:-1] if path else []


def _beside(path: str, other: str) -> bool:
    """Whether two scopes are in different branches of one gather."""
    return any(gather and other.startswith(gather) and not _within(other, scope) for scope, gather in _ancestry(path))


def _within(path: str, scope: str) -> bool:
    return path == scope or path.startswith(f"{scope}/")


def _code_changed(how: str) -> Park:
    return Park(f"{how}; it was changed under this task")
