"""The watch: reads the store after every verb, and knows the changes that each verb may make.

It keeps its own picture of every task, made from nothing but the rows it saw before. A row that does not follow from that
picture and from the verb that was just carried out is a fault, reported at once.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from onward.core import record as r
from onward.store.port.core import SUSPECT_AFTER
from onward.store.sqlite.store import SqliteStore
from tests.sim.loop import Process, SimLoop
from tests.sim.picture import Entry, Picture, Row

RELEASES = {r.HANDED_BACK, r.RETRY, r.PARKED, r.QUARANTINED}
OUTSIDERS = {"submit": {r.SUBMITTED}, "cancel": {r.CANCEL, r.CANCELLED}, "resume": {r.RESUMED}}
READERS = {
    *("journal", "get", "version", "listing.list", "queues.depth", "workers.list", "workers.absent"),
    *("handlers.registered", "handlers.register", "health.census", "health.doctor"),
}


class Broken(Exception):
    """The watch or the verdict found a fault."""


class Watch:
    """Called before and after each verb; raises Broken."""

    def __init__(self, loop: SimLoop, store: SqliteStore, now: Callable[[], float]) -> None:
        self._loop, self._store, self._now = loop, store, now
        self.seen: Counter[str] = Counter()
        self.tasks: dict[str, Picture] = {}
        self.queue: dict[str, Row] = {}
        self.paused: set[str] = set()
        """Tasks with a confirmed pause and no resume since: no step of them may begin."""
        self.leases: dict[str, float] = {}
        self.outcomes: dict[str, tuple[str, int, int]] = {}
        self.workers_of: dict[Process, list[str]] = {}
        self.jumped_at = -1e9
        self.inputs: dict[str, bytes] = {}
        self.pruned: set[str] = set()
        self.fair = False
        self.taken_over: Callable[[Process], None] = lambda _process: None
        self.forgotten: Callable[[set[Process]], None] = lambda _processes: None
        self.verbs = 0
        self.faults: list[str] = []
        self.closed = False
        self.trace: list[str] | None = None
        self._hash = hashlib.blake2b(digest_size=8)
        self._rowid = self._changes = 0
        self._line = ""
        self._buried: set[str] = set()
        self._alone = False

    @property
    def connection(self) -> Any:
        return self._store._db.writer._connection  # type: ignore[union-attr]

    def digest(self) -> str:
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        """Adds a line to the history: always to its hash, to the trace only when there is one."""
        self._line = f"{self._loop.time():12.4f} {text}"
        self._hash.update(self._line.encode())
        if self.trace is not None:
            self.trace.append(self._line)

    def fault(self, sentence: str) -> NoReturn:
        """Keeps the fault, stops the loop and raises: the engine may swallow an exception, but not a stop of the loop."""
        if not self.closed:
            self.faults.append(f"{sentence} [at {self._line.strip()}]")
            self._loop.stop()
        raise Broken(sentence)

    # ── around each verb ─────────────────────────────────────────────────────────────────────────────────────────

    def before(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._alone = kwargs.get("alone", False)
        if verb == "workers.rescue":
            dead, lease = args[0], args[1] if len(args) > 1 else kwargs.get("lease")
            now = self._now()
            ended = {worker for worker, until in self.leases.items() if lease is not None and until < now}
            self._buried = ended | set(dead)

    def after(self, process: Process, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        self.verbs += 1
        if verb in READERS:
            self._hash.update(verb.encode())
            return
        changes = self.connection.total_changes()
        quiet = changes == self._changes
        self._changes = changes
        if quiet:
            self._hash.update(verb.encode())
            return
        if verb == "submit":
            self.inputs |= {new.id: new.input for new in args[0]}
        self.note(f"{process.name} {verb} {_brief(verb, args)} -> {_brief_answer(answer)}")
        if verb == "claim":
            self._judge_choice(args, answer)
        if verb == "pruning.prune":
            self._judge_prune(answer)
        if verb != "workers.heartbeat" or any(args[3:]):  # a heartbeat that confirms a pause
            for record in self._new_records():
                self._judge(process, verb, *record)
            self._compare_queue(verb, args, answer)
            self._compare_outcomes(verb)
        self._compare_workers(process, verb, args)

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────

    def _new_records(self) -> list[tuple[Any, ...]]:
        rows = list(
            self.connection.execute(
                "SELECT rowid, task_id, seq, shift, kind, key, data FROM onward_journal WHERE rowid > ? ORDER BY rowid",
                (self._rowid,),
            )
        )
        if rows:
            self._rowid = rows[-1][0]
        return [row[1:] for row in rows]

    def _judge(
        self, process: Process, verb: str, id_: str, seq: int, shift: int, kind: str, key: str, data: bytes
    ) -> None:
        task = self.tasks.setdefault(id_, Picture(id_))
        subject = f"{kind} {key} #{seq} of task {id_[-4:]}"
        if self.trace is not None:
            self.trace.append(f"{'':14}{subject} shift {shift} {data[:80]!r}")
        if seq != task.head + 1:
            self.fault(f"{subject} follows #{task.head}")
        if task.ended and not (task.ended == r.FAILED and kind == r.RESUMED):
            self.fault(f"{subject} comes after its end ({task.ended})")
        if verb in OUTSIDERS:
            if kind not in OUTSIDERS[verb] or shift != 0:
                self.fault(f"{subject} was written by {verb} for shift {shift}")
        elif verb == "claim":
            self._new_shift(task, process, seq, shift, kind, subject)
        elif verb != "save":
            self.fault(f"{subject} was written by {verb}")
        elif shift != task.shift or task.holder is not process:
            self.fault(
                f"{subject} was written by {process} for shift {shift}, but shift {task.shift} is {task.holder}'s"
            )
        task.records.append(Entry(seq, shift, kind, key, data))
        self._follow(task, kind, key, data, subject)

    def _new_shift(self, task: Picture, process: Process, seq: int, shift: int, kind: str, subject: str) -> None:
        if kind != r.SHIFT or shift != seq:
            self.fault(f"{subject} was written by claim for shift {shift}")
        if self.queue[task.id].worker is not None:
            self.fault(f"{subject} was claimed while {self.queue[task.id].worker} held it")
        if task.last_holder is not None and task.last_holder is not process:
            self.taken_over(task.last_holder)
        task.shift, task.holder, task.last_holder = seq, process, process
        task.holders.add(process)
        task.idle_shifts += 1

    def _follow(self, task: Picture, kind: str, key: str, data: bytes, subject: str) -> None:
        if kind not in r.NEWS and kind not in {r.SHIFT, r.QUARANTINED}:
            task.idle_shifts = 0
        match kind:
            case r.STEP_DONE:
                if key in task.done:
                    self.fault(f"{subject}: that step was completed before")
                task.done.add(key)
                task.failed.discard(key)
                task.retried.pop(key, None)
            case r.STEP_FAILED:
                task.failed.add(key)
                task.retried.pop(key, None)
            case r.STEP_RETRY:
                self._next_attempt(task, key, json.loads(data)["attempt"], subject)
            case r.MESSAGE:
                task.messages += 1
                if json.loads(data)["n"] != task.messages:
                    self.fault(f"{subject}: message {json.loads(data)['n']} is copied as number {task.messages}")
            case r.WAITED if (number := json.loads(data).get("n")) is not None:
                if number in task.taken:
                    self.fault(f"{subject}: message {number} was taken before")
                task.taken.add(number)
                self.seen["a wait beside others took a message"] += 1
            case r.RETRY:
                self._only_own_failures(data, subject)
                task.attempt += 1
                task.retried.clear()
            case r.RESUMED:
                task.attempt = 1 if task.ended else task.attempt
                task.ended = None
                task.retried.clear()
            case r.PARKED:
                self.fault(f"{subject}: {data.decode()}")
            case r.QUARANTINED if task.idle_shifts <= SUSPECT_AFTER + 1:
                self.fault(f"{subject} after {task.idle_shifts - 1} shifts that left nothing behind")
            case r.QUARANTINED:
                self.seen["a task was quarantined"] += 1
                if self.fair and b"poison" not in self.inputs[task.id]:
                    self.fault(f"{subject}, which never killed a process")
        if kind in r.ENDS:
            self._end(task, kind, data, subject)
        if kind in r.ENDS or kind in RELEASES:
            task.shift, task.holder = -1, None

    def _end(self, task: Picture, kind: str, data: bytes, subject: str) -> None:
        task.ended = kind
        task.endings.append((self._loop.time(), kind, data))
        if kind == r.FAILED:
            self._only_own_failures(data, subject)

    def _next_attempt(self, task: Picture, key: str, attempt: int, subject: str) -> None:
        if attempt != task.retried.get(key, 0) + 1:
            self.fault(f"{subject} is attempt {attempt} after {task.retried.get(key, 0)}")
        task.retried[key] = attempt

    def _only_own_failures(self, data: bytes, subject: str) -> None:
        error = json.loads(data)["error"]
        if error["type"] not in {"Flaky", "StepFailed", "Fatal", "DeadlineExceeded", "Expired"}:
            self.fault(f"{subject} for a reason that is not the task's own: {error}")
        self.seen[f"a task failed with {error['type']}"] += 1

    def _judge_prune(self, answer: Any) -> None:
        # SQLite uses freed rowids again
        ((self._rowid,),) = self.connection.execute("SELECT COALESCE(max(rowid), 0) FROM onward_journal")
        for id_ in answer.gone:
            if id_ not in self.tasks or self.tasks[id_].ended is None:
                self.fault(f"task {id_[-4:]} was pruned and has not ended")
            self.pruned.add(id_)
            self.seen["a task was pruned"] += 1
            self.forgotten(self.tasks[id_].holders)

    # ── the queue ────────────────────────────────────────────────────────────────────────────────────────────────

    def _compare_queue(self, verb: str, args: tuple[Any, ...], answer: Any) -> None:
        rows = {
            row[0]: Row(*row[1:])
            for row in self.connection.execute(
                "SELECT task_id, worker, due_at, reason, attempt, crashes, priority, position, queue, task FROM onward_queue"
            )
        }
        before, self.queue = self.queue, rows
        if verb == "workers.leave" and any(row.worker == args[0] for row in rows.values()):
            self.fault(f"worker {args[0]} left and still holds tasks")
        if verb == "save":
            for id_ in {wait.id for wait in args[1].waits} - answer:
                if id_ in rows and self.tasks[id_].shift < 0 and rows[id_].worker is not None:
                    self.fault(f"task {id_[-4:]} was let go and is still held by {rows[id_].worker}")
        for id_ in sorted(before.keys() | rows.keys()):
            old, new = before.get(id_), rows.get(id_)
            if old != new:
                self._judge_move(verb, args, answer, self.tasks[id_], old, new)

    def _judge_move(
        self, verb: str, args: tuple[Any, ...], answer: Any, task: Picture, old: Row | None, new: Row | None
    ) -> None:
        subject = f"the queue row of task {task.id[-4:]}"
        if old is None or new is None:
            if verb not in ({"submit", "resume"} if old is None else {"save", "cancel"}):
                self.fault(f"{subject} {'came' if old is None else 'went'} with {verb}")
            if new is None and not task.ended:
                self.fault(f"{subject} went although the task goes on")
            return
        if new.attempt != task.attempt:
            self.fault(f"{subject} says attempt {new.attempt}, the journal says {task.attempt}")
        if old.worker != new.worker:
            self._judge_owner(verb, args, task, old, new, subject)
        elif verb not in {"wake", "prioritize", "resume", "save", "release", "pause", "workers.heartbeat", "send"}:
            self.fault(f"{subject} was changed by {verb}: {old} -> {new}")
        if verb == "wake" and (old.due_at is None or old.due_at > self._now()):
            self.fault(f"{subject} was woken at {self._now()} although {old}")

    def _judge_choice(self, args: tuple[Any, ...], answer: Any) -> None:
        """A claim takes the most urgent ready tasks, in order of submission; none for a worker that has left or whose lease is over."""
        worker, queue, names, room = args
        if self.leases.get(worker, 0) <= self._now():
            room = 0
        ready = [
            (-row.priority, row.position, id_)
            for id_, row in self.queue.items()
            if (row.queue, row.worker, row.due_at) == (queue, None, None)
            and row.task in names
            and (row.crashes >= SUSPECT_AFTER) == self._alone
        ]
        wanted = [id_ for _, _, id_ in sorted(ready)[:room]]
        if wanted != [claimed.id for claimed in answer]:
            self.fault(f"a claim brought {[c.id[-4:] for c in answer]} and not {[id_[-4:] for id_ in wanted]}")

    def _judge_owner(self, verb: str, args: tuple[Any, ...], task: Picture, old: Row, new: Row, subject: str) -> None:
        if old.worker is not None and new.worker is not None:
            self.fault(f"{subject} went from {old.worker} to {new.worker} with {verb}")
        if new.worker is not None:
            if verb != "claim" or new.worker != args[0] or old.due_at is not None or task.ended:
                self.fault(f"{subject} was taken with {verb}: {old} -> {new}")
            if self.leases.get(new.worker, 0) <= self._now():
                self.fault(f"{subject} was claimed by {new.worker}, whose lease is over")
            if (old.crashes >= SUSPECT_AFTER) != self._alone:
                self.fault(
                    f"{subject} was claimed {'alone' if self._alone else 'among others'} after {old.crashes} crashes"
                )
            self.seen["a suspect ran alone"] += self._alone
        elif verb == "workers.rescue":
            self._judge_rescue(task, old, new, subject)
        elif verb in {"release", "workers.leave"} and old.worker != args[0]:
            self.fault(f"{subject} was freed by {verb} of another worker")
        elif verb == "release":
            self.seen["a stranger was given back"] += 1
        elif verb == "save" and task.records[-1].kind not in RELEASES:
            self.fault(f"{subject} was freed by a save that ends with {task.records[-1].kind}")
        elif verb not in {"save", "workers.leave"}:
            self.fault(f"{subject} was freed by {verb}")

    def _judge_rescue(self, task: Picture, old: Row, new: Row, subject: str) -> None:
        if old.worker in self.leases and old.worker not in self._buried:
            self.fault(f"{subject} was rescued from {old.worker}, whose lease holds")
        wanted = old.crashes + 1 if task.idle_shifts else 0
        if new.crashes != wanted:
            self.fault(f"{subject} has {new.crashes} crashes after a rescue, and should have {wanted}")
        self.seen["a task was rescued"] += 1
        if task.holder is not None and not task.holder.dead:
            self.seen["a task was rescued from a process that lives"] += 1

    # ── ends and workers ─────────────────────────────────────────────────────────────────────────────────────────

    def _compare_outcomes(self, verb: str) -> None:
        outcomes = {
            row[0]: row[1:]
            for row in self.connection.execute("SELECT task_id, state, attempt, seq FROM onward_outcomes")
        }
        before, self.outcomes = self.outcomes, outcomes
        for id_ in sorted(before.keys() | outcomes.keys()):
            old, new = before.get(id_), outcomes.get(id_)
            if old == new:
                continue
            task, subject = self.tasks[id_], f"the outcome of task {id_[-4:]}"
            pruned = verb == "pruning.prune" and new is None and id_ in self.pruned
            if old is not None and not (pruned or (new is None and old[0] == "failed" and verb == "resume")):
                self.fault(f"{subject} changed with {verb}: {old} -> {new}")
            if new is not None and (f"task.{new[0]}", new[1], new[2]) != (task.ended, task.attempt, task.head):
                self.fault(
                    f"{subject} is {new}, but the journal says {task.ended} at #{task.head}, attempt {task.attempt}"
                )
        for id_ in self.pruned:
            if id_ in self.queue or id_ in outcomes:
                self.fault(f"task {id_[-4:]} was pruned and is there")
        for id_, task in self.tasks.items():
            if id_ in self.pruned:
                continue
            if (id_ in self.queue) == (id_ in outcomes) or (task.ended is not None) != (id_ in outcomes):
                self.fault(
                    f"task {id_[-4:]} is in the queue: {id_ in self.queue}, has ended: {task.ended}, {id_ in outcomes}"
                )

    def _compare_workers(self, process: Process, verb: str, args: tuple[Any, ...]) -> None:
        if verb in {"workers.heartbeat", "workers.join", "workers.leave", "workers.rescue"}:
            self.leases = dict(self.connection.execute("SELECT id, lease_until FROM onward_workers"))
        if verb == "workers.join":
            mine = self.workers_of.setdefault(process, [])
            if args[0].id not in mine:
                mine.append(args[0].id)
                self.seen["a worker that was declared dead came back"] += len(mine) > 1

    def census(self) -> None:
        """Runs the census of the store; each finding is a fault."""
        faults = [f"{id_[-4:]} {problem}" for id_, problem in self.connection.execute(_census_sql(), ("", "~"))]
        if faults:
            self.fault("the census says: " + "; ".join(faults))


def _census_sql() -> str:
    from onward.store.sqlite.store import S

    return S["census"].sql


def _brief(verb: str, args: tuple[Any, ...]) -> str:
    match verb:
        case "save":
            return " ".join([args[0][-4:], *[f"{e[0][-4:]}#{e[1]}" for e in args[1].entries]])
        case "submit":
            return " ".join(f"{new.id[-4:]} {new.task} {new.input.decode()}" for new in args[0])
        case "workers.join":
            return args[0].id[-4:]
    return " ".join(
        arg[-4:] if isinstance(arg, str) else str([a[-4:] for a in arg]) if isinstance(arg, list) else str(arg)
        for arg in args
        if arg
    )


def _brief_answer(answer: Any) -> str:
    if isinstance(answer, list):
        return " ".join(f"{item.id[-4:]}" for item in answer if hasattr(item, "id"))
    if isinstance(answer, set):
        return str(sorted(answer))
    return type(answer).__name__ if hasattr(answer, "held") or hasattr(answer, "woken") else repr(answer)
