"""The types of the model: a state of the database and of its workers, as plain tuples that can be compared and sorted.

One task is modelled, with its handler, its queue row, its journal, its outcome and its inbox, and a few workers. The
model leaves out: several tasks in one commit (they are split by task when one is refused), crash counts and quarantine
(a quarantined task waits for a person like a parked one), deadlines (a record of the holder, like a hand-back), timeouts
of waits (one more way to wake), and nudges (hints).
"""

from __future__ import annotations

from typing import NamedTuple

CLAIMED, HANDED_BACK, PARKED, RETRY = "shift.started", "shift.ended", "task.parked", "task.retry"
STEP, AWAITED, MESSAGE, WAITED = "step.completed", "signal.awaited", "message.received", "wait.ended"
SAGA, CLOSED, UNDOING, UNDONE = "saga.started", "saga.completed", "saga.undoing", "saga.undone"
SUBMITTED, CANCEL, RESUMED = "task.submitted", "cancel.requested", "task.resumed"
COMPLETED, FAILED, CANCELLED = "task.completed", "task.failed", "task.cancelled"
ENDS = {COMPLETED: "completed", FAILED: "failed", CANCELLED: "cancelled"}

NOW, LATER, NEVER = "now", "later", "never"
"""The due time of a task without a holder: due_at is null, a time, or infinity."""

AGREED = ("saga", "wait", "waits", "close")
"""The parts of a program besides steps: a saga begins, a signal is awaited (by two branches at once), the saga ends. Any other
name is a step."""

WAITS = {"wait": 1, "waits": 2}
"""How many branches wait."""


class Known(NamedTuple):
    """The knowledge of a replay from a journal (engine/shift/replay.py). `now` of a state is that of all its records; a worker's
    view is that of the records up to its shift, and of its own after that, written or not."""

    at: int = 0
    """The next part of the program."""
    waiting: int = 0
    """Waits that are open."""
    copied: int = 0
    """Messages that were copied into the journal."""
    taken: int = 0
    """Messages that a wait has taken."""
    saga: bool = False
    owed: int = 0
    """Steps of the open saga that are not undone."""
    undo: int = 0
    """1: the saga was given up, 2: it is undone."""
    stop: bool = False
    """A cancel was requested."""
    round: int = 0
    """How often the saga began again, after an undo."""
    over: str = ""
    fence: int = 0
    """The shift that may write; 0 when it has released the task, or a caller outside moved the fence."""
    begun: int = 0
    """Waits of this place of the program that have begun."""


class Record(NamedTuple):
    """One number of the journal. Shift 0 is that of submit, cancel and resume."""

    shift: int
    kind: str
    key: str = ""


GONE = Record(-(10**6), "", "")
"""A number that a prune freed: only with that fault planted."""


class Entry(NamedTuple):
    """A record on its way. `ending` goes with the last of a shift: ("end", state), or ("wait", due, reason, inbox) where an
    inbox of -1 compares nothing (store/port/core.py: End and Wait)."""

    kind: str
    key: str = ""
    ending: tuple[str, ...] | tuple[str, str, str, int] = ()


class Late(NamedTuple):
    """A statement whose sender has given up on it, or died; the database may still run it at any time."""

    shift: int = 0
    first: int = 0
    entries: tuple[Entry, ...] = ()


class Worker(NamedTuple):
    """A process, and its rows in the database (row, holds). An idle worker that holds nothing equals a new one."""

    life: str = "idle"
    """idle, shift (it does one), or gone (kill -9)."""
    row: bool = True
    """Whether it has a row in onward_workers; one that was declared dead has none, and learns it from its next heartbeat."""
    lease: bool = True
    """Whether its lease holds, by its own clock. That clock is always ahead of the one that judges it."""
    holds: bool = False
    """Whether the queue row names it."""
    giving: int = 0
    """The shift that a release under way names; 0: none is."""
    shift: int = 0
    acked: int = 0
    """The last acknowledged number. Its sent records, and then its line, have the numbers after it."""
    view: Known | tuple[()] = ()
    unread: bool = False
    """Whether the claim returned messages that the journal does not have."""
    sent: tuple[Entry, ...] = ()
    line: tuple[Entry, ...] = ()
    halted: bool = False
    """Whether its heartbeat returned that the task is paused: its shift begins nothing more."""
    reads: tuple[tuple[int, int], ...] = ()
    """Reads of the inbox that are under way: the last message that was copied then, and the last that there was."""


class Backup(NamedTuple):
    """The contents of a database at an earlier time, which a restore or a failover to a late replica brings back."""

    journal: tuple[Record, ...]
    now: Known
    row: tuple[str, str] | tuple[()]
    outcome: str
    inbox: int
    holder: int
    """The shift of the worker that held the task; 0: none did."""


class State(NamedTuple):
    """The state of the database and of all workers."""

    journal: tuple[Record, ...]
    now: Known
    row: tuple[str, str] | tuple[()]
    """The queue row: when it is due, and why it waits."""
    outcome: str
    inbox: int
    """Messages it has got: the counter on the queue row, and the rows of the inbox."""
    workers: tuple[Worker, ...]
    late: Late
    listed: bool = False
    """A rescue has read that the task is held by a dead worker, and has not freed it yet: only with that fault planted."""
    backup: tuple[()] | Backup = ()
    """The contents of the database after it forgets its last commits."""
    epoch: int = 0
    """How often it forgot."""
    paused: str = ""
    """"asked" as long as a pause waits for its holder, "answered" after that."""
    confirmed: bool = False
    """Whether the holder has confirmed the pause (its queue row says so)."""

    @property
    def held(self) -> bool:
        return any(worker.holds for worker in self.workers)


# ── small verbs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def put(state: State, actor: int, worker: Worker) -> State:
    return state._replace(workers=(*state.workers[:actor], worker, *state.workers[actor + 1 :]))


def freed(state: State) -> State:
    """The queue row names no worker."""
    workers = tuple(rested(worker._replace(holds=False)) for worker in state.workers)
    return state._replace(workers=workers, confirmed=False)


def due(state: State, when: str, reason: str) -> tuple[str, str]:
    """The queue row of a task without a holder: a paused one rests, whatever it waits for."""
    return (NEVER, "paused") if state.paused else (when, reason)


def requeued(state: State, actor: int) -> State:
    """worker = NULL, reason = 'queued'; due_at is left alone, except for a paused task."""
    worker = state.workers[actor]._replace(holds=False)
    row = state.row and due(state, state.row[0], "queued")
    return put(state, actor, worker)._replace(row=row, confirmed=False)


def idle(worker: Worker) -> Worker:
    return Worker("idle", worker.row, worker.lease, worker.holds, worker.giving)


def rested(worker: Worker) -> Worker:
    """A worker that does nothing and holds nothing equals a new one: it can make all moves of an idle worker. In the place
    of one that died and was declared dead, another starts."""
    if worker.life == "idle" and not worker.holds and not worker.giving:
        return Worker()
    return Worker() if worker.life == "gone" and not worker.row else worker


def same_round(now: Known, view: Known) -> bool:
    """Whether the journal and a worker are in the same round of steps. A worker that a cancel request has fenced may begin one more
    until its next heartbeat (ruling 18): that is known, and left out."""
    return now.round == view.round and now.stop == view.stop


def left_behind(state: State, worker: Worker) -> State:
    """The worker's sent records may still arrive. The model follows one such commit; more of them add nothing, as only the
    first to arrive can be written."""
    if not worker.sent or state.late.entries:
        return state
    return state._replace(late=Late(worker.shift, worker.acked + 1, worker.sent))


def awaits(worker: Worker) -> bool:
    """Whether the handler waits until its last record is written: a step, the giving up of a saga, a settle. The others
    are mentioned (Writer.mention), and it goes on."""
    last = (worker.sent + worker.line)[-1:]
    return bool(last) and (last[0].kind in {STEP, UNDOING} or bool(last[0].ending))


def settling(worker: Worker) -> bool:
    last = (worker.sent + worker.line)[-1:]
    return bool(last) and bool(last[0].ending)
