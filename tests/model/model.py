"""The protocol as a set of moves that the database, each worker and the outside may make in a given state.

A move is atomic where the database makes it so (one statement, or one transaction), and names the statement it stands for
(store/statements/*.sql). Anything that could happen in between is a move of its own: a worker may be slow for ever, so
there is no clock here, only leases that end. `planted` names one of FAULTS, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.values import (
    AGREED,
    AWAITED,
    CANCEL,
    CANCELLED,
    CLAIMED,
    CLOSED,
    COMPLETED,
    ENDS,
    FAILED,
    GONE,
    HANDED_BACK,
    LATER,
    MESSAGE,
    NEVER,
    NOW,
    PARKED,
    RESUMED,
    RETRY,
    SAGA,
    STEP,
    SUBMITTED,
    UNDOING,
    UNDONE,
    WAITED,
    WAITS,
    Backup,
    Entry,
    Known,
    Late,
    Record,
    State,
    Worker,
    awaits,
    due,
    freed,
    idle,
    left_behind,
    put,
    requeued,
    rested,
    same_round,
    settling,
)

NO_FENCE = "no fence"
ROW_BY_ROW = "row-by-row inserts"
NO_COUNTER = "settle without the counter"
NUMBERS_BACK = "pruned numbers come back"
BARE_RESCUE = "rescue without the fence"
EARLY_ACK = "ack before commit"
BARE_RELEASE = "release without the fence"
"""The seventh: a release that names the worker, but not the claim that it gives back."""
NO_PREDECESSOR = "append without its predecessor"
BARE_NUMBER = "predecessor without its time"
"""The ninth: a predecessor of the same number and shift counts, although another worker wrote it after the loss."""
FORGETFUL = (NO_PREDECESSOR, BARE_NUMBER)
"""Faults that show only where the database forgets."""
EARLY_PAUSE = "a pause answered at once"
"""The tenth: the pause waits neither for the worker that holds the task, nor for the end of its lease."""
SEVERAL_READERS = "several readers of one inbox"
FAULTS = (
    *(NO_FENCE, ROW_BY_ROW, NO_COUNTER, NUMBERS_BACK, BARE_RESCUE, EARLY_ACK, BARE_RELEASE),
    *(EARLY_PAUSE, SEVERAL_READERS),
)

PROGRAM = ("saga", "a", "wait", "b", "close", "c")
AN_EPOCH = 1_000
"""Added to the number of a shift for each loss before it."""
OUTSIDE = -1
"""The actor of a move that no worker makes."""


class Move(NamedTuple):
    """The actor, the verb, the state after it, and its fault, if any."""

    actor: int
    verb: str
    after: State
    wrong: str = ""
    helps: bool = True
    """Whether it may be needed for a task to end. Cancels are not: a task has to come to its end without them."""


def _begins(state: State, step: str) -> str:
    """The fault of a step that begins after a pause was answered, or ""."""
    return f"{step} begins, although the pause was answered" if state.paused == "answered" else ""


class Protocol(NamedTuple):
    """The model with its bounds: the handler's program, how many workers, how many messages that no wait has taken."""

    program: tuple[str, ...] = PROGRAM
    workers: int = 3
    messages: int = 2
    planted: str = ""
    fails: bool = True
    """Whether steps may fail, and code be changed."""
    forgets: int = 0
    """How often the database may lose its last commits."""
    longest: int = 0
    """Where a search has to end: records in the journal (0: it ends by itself)."""
    pauses: bool = False
    """Whether the task may be paused."""

    def begin(self) -> State:
        """Just submitted (submit_new)."""
        crew = (Worker(),) * self.workers
        return State((Record(0, SUBMITTED),), Known(), (NOW, "queued"), "", 0, crew, Late())

    def moves(self, state: State) -> Iterator[Move]:
        """All moves from this state, within the bounds of the search."""
        return (move for move in self._moves(state) if not self.longest or len(move.after.journal) <= self.longest)

    def _moves(self, state: State) -> Iterator[Move]:
        for actor, worker in enumerate(state.workers):
            yield from self._database(state, actor, worker)
            if worker.life == "gone":
                continue
            yield from self._process(state, actor, worker)
            if worker.view:
                yield from self._writer(state, actor, worker)
                yield from self._handler(state, actor, worker)
        yield from self._outside(state)

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────

    def learn(self, known: Known, number: int, record: Record) -> Known:
        """The knowledge after one more record (Replay._read, saga_state)."""
        match record.kind:
            case "shift.started":
                return known._replace(fence=record.shift or number)
            case "step.completed" if known.undo:
                return known._replace(owed=known.owed - 1)
            case "step.completed":
                return known._replace(at=known.at + 1, owed=known.owed + known.saga)
            case "signal.awaited":
                return known._replace(waiting=known.waiting + 1, begun=known.begun + 1)
            case "message.received":
                return known._replace(copied=known.copied + 1)
            case "wait.ended":
                after = known._replace(waiting=known.waiting - 1, taken=known.taken + 1)
                over = not after.waiting and after.begun == WAITS[self.program[known.at]]
                return after._replace(at=known.at + 1, begun=0) if over else after
            case "saga.started":
                return known._replace(saga=True, at=known.at + 1)
            case "saga.completed":
                return known._replace(saga=False, owed=0, at=known.at + 1)
            case "saga.undoing":
                return known._replace(undo=1)
            case "saga.undone":
                return known._replace(undo=2, saga=False)
            case "cancel.requested":
                return known._replace(stop=True, fence=0)
            case "task.resumed":
                return self._anew(known)._replace(stop=False, over="", fence=0)
            case "task.retry":
                return self._anew(known)._replace(fence=0)
            case _:
                return known._replace(over=ENDS.get(record.kind, ""), fence=0)

    def _anew(self, known: Known) -> Known:
        """A saga that was undone begins again, in a round of its own (Replay._again)."""
        if known.undo != 2:
            return known
        return known._replace(
            at=self.program.index("saga"), waiting=0, begun=0, owed=0, undo=0, saga=False, round=known.round + 1
        )

    def _due(self, known: Known) -> str:
        """The key of the step whose record may come next."""
        return f"undo {known.owed}" if known.undo else self.program[known.at] if known.at < len(self.program) else ""

    def _append(self, state: State, records: list[Record], at: int = 0) -> tuple[State, str]:
        """Puts records at the end of the journal (or, planted, `at` a number that was freed), and judges that."""
        journal, now, wrong = list(state.journal), state.now, ""
        for record in records:
            number = at or len(journal) + 1
            if record.shift and record.kind != CLAIMED and record.shift != now.fence:
                wrong = wrong or f"a stale record was taken: {record.kind} of shift {record.shift}, whose time is over"
            if now.over and record.kind != RESUMED:
                wrong = wrong or f"{record.kind} was written after the task had {now.over}"
            if record.kind == MESSAGE and record.key != str(now.copied + 1):
                wrong = wrong or f"message {record.key} was recorded again"
            if record.kind == STEP and record.key != self._due(now):
                wrong = wrong or f"step {record.key} was recorded again, or out of its place"
            if at:
                journal[at - 1], at = record, 0
            else:
                journal.append(record)
            now = self.learn(now, number, record)
        return state._replace(journal=tuple(journal), now=now), wrong

    def commit(self, state: State, shift: int, first: int, entries: tuple[Entry, ...]) -> tuple[State, str, str]:
        """save, settle, taker: the outcome of one commit ("written", "mine", "refused"), and its fault."""
        head = len(state.journal)
        records = [Record(shift, entry.kind, entry.key) for entry in entries]
        if first <= head and state.journal[first - 1] != GONE:
            taker = state.journal[first - 1]
            if (taker.shift, taker.kind) == (shift, entries[0].kind):
                return state, "mine", ""
            if self.planted == ROW_BY_ROW and (rest := records[head + 1 - first :]):
                after, wrong = self._append(state, rest)
                return after, "refused", wrong
            if self.planted != NO_FENCE:
                return state, "refused", ""
            first = head + 1
        if not self._has_predecessor(state, shift, first):
            return state, "refused", ""
        if first > head + 1:
            return state, "written", f"record {first} was written before record {head + 1}: the journal has a gap"
        after, wrong = self._append(state, records, first if first <= head else 0)
        ending = entries[-1].ending
        if ending and ending[0] == "end":
            wrong = wrong or (f"a second outcome: {ending[1]} after {state.outcome}" if state.outcome else "")
            after = freed(after)._replace(row=(), outcome=str(ending[1]), paused="")
        elif ending and after.row:
            _, when, reason, inbox = ending
            waits = inbox in {-1, state.inbox} or self.planted == NO_COUNTER
            after = freed(after)._replace(row=due(state, *((when, reason) if waits else (NOW, "queued"))))  # type: ignore[arg-type]
        return after, "written", wrong

    def _has_predecessor(self, state: State, shift: int, first: int) -> bool:
        """Whether the record before is there, and is this shift's own (records). It always is where nothing is ever lost, and the checker
        does not keep it there."""
        if not self.forgets or self.planted == NO_PREDECESSOR:
            return True
        return first - 1 <= len(state.journal) and state.journal[first - 2].shift == shift

    # ── statements in a worker's name, whether it lives or not ───────────────────────────────────────────────────

    def _database(self, state: State, actor: int, worker: Worker) -> Iterator[Move]:
        if worker.giving:  # release: it may come late, and again
            frees = worker.holds and (worker.giving == state.now.fence or self.planted == BARE_RELEASE)
            after = requeued(state, actor) if frees else state
            if frees:
                yield Move(actor, "the release runs, and another is under way", after)
            done = rested(after.workers[actor]._replace(giving=0))
            yield Move(actor, "the release runs", put(after, actor, done))
        if worker.row and (worker.life == "gone" or not worker.lease):
            if self.planted == BARE_RESCUE and worker.holds and not state.listed:
                yield Move(actor, "a slow rescue reads that it is dead and holds the task", state._replace(listed=True))
            after = requeued(state, actor) if worker.holds else state  # rescue (bury)
            why = "its process is gone" if worker.life == "gone" else "its lease has ended"
            buried = rested(after.workers[actor]._replace(row=False, giving=0))
            yield Move(actor, f"a rescue buries it: {why}", put(after, actor, buried))

    # ── the process ──────────────────────────────────────────────────────────────────────────────────────────────

    def _process(self, state: State, actor: int, worker: Worker) -> Iterator[Move]:
        ready = bool(state.row) and state.row[0] == NOW and not state.held
        if ready and worker.life == "idle" and worker.row and worker.lease:
            yield from self._claim(state, actor, worker)
        if worker.life == "idle" and not worker.holds:
            return  # it has nothing to lose
        if worker.lease:
            yield Move(actor, "its lease ends", put(state, actor, worker._replace(lease=False)))
        yield from self._beat(state, actor, worker)
        killed = rested(Worker("gone", worker.row, holds=worker.holds, giving=worker.giving))
        yield Move(actor, "dies", put(left_behind(state, worker), actor, killed))

    def _claim(self, state: State, actor: int, worker: Worker) -> Iterator[Move]:
        """claim (ready, take). Its answer may be lost: then no worker knows of the shift."""
        number = len(state.journal) + 1
        # Its time distinguishes a shift from a lost one of the same number.
        name = number if self.planted == BARE_NUMBER else number + AN_EPOCH * state.epoch
        after, wrong = self._append(state, [Record(name, CLAIMED)])
        after = after._replace(row=(NOW, "running"), confirmed=False)
        shift = worker._replace(
            life="shift", holds=True, shift=name, acked=number, view=after.now, unread=state.inbox > after.now.copied
        )
        yield Move(actor, "claims the task", put(after, actor, shift), wrong)
        yield Move(actor, "claims the task, but the answer is lost", put(after, actor, worker._replace(holds=True)))

    def _beat(self, state: State, actor: int, worker: Worker) -> Iterator[Move]:
        """beat (held), Worker._heard and _compare."""
        if not worker.row:
            after = put(left_behind(state, worker), actor, Worker())
            yield Move(actor, "learns that it was declared dead, and starts anew", after)
            return
        pause_seen = bool(state.paused) and worker.holds and worker.life == "shift"
        renewed = worker._replace(lease=True, halted=worker.halted or pause_seen)
        if pause_seen and worker.halted and not state.confirmed and state.paused == "asked":  # confirm_pause
            yield Move(actor, "confirms the pause", put(state._replace(confirmed=True), actor, renewed))
        if worker.life == "shift" and not worker.holds and not settling(worker):
            after = put(left_behind(state, worker), actor, rested(idle(renewed)))
            yield Move(actor, "learns from its heartbeat that the task is not its own", after)
        elif worker.life == "idle" and not worker.giving:  # really two heartbeats
            after = put(state, actor, renewed._replace(giving=state.now.fence))
            yield Move(actor, "learns that it holds the task, and gives it back", after)
        elif not worker.lease:
            yield Move(actor, "its heartbeat renews its lease", put(state, actor, renewed))
        elif pause_seen and not worker.halted:
            yield Move(actor, "learns from its heartbeat that the task is paused", put(state, actor, renewed))

    # ── the journal writer ───────────────────────────────────────────────────────────────────────────────────────

    def _writer(self, state: State, actor: int, worker: Worker) -> Iterator[Move]:
        if worker.line and not worker.sent:  # one commit at a time; it takes all that has gathered
            sent = worker._replace(sent=worker.line, line=())
            if self.planted == EARLY_ACK:
                informed, wrong = self._acknowledged(state, sent)
                yield Move(
                    actor,
                    "sends its records, and tells the handler that they are written",
                    put(state, actor, informed),
                    wrong,
                )
                return
            yield Move(actor, "sends its records", put(state, actor, sent))
        if not worker.sent:
            return
        after, verdict, wrong = self.commit(state, worker.shift, worker.acked + 1, worker.sent)
        if verdict == "refused":
            yield Move(
                actor,
                "its records are refused, it drops the work",
                put(after, actor, rested(idle(after.workers[actor]))),
                wrong,
            )
            return
        informed, lost = self._acknowledged(after, after.workers[actor])
        verb = "its records are written" if verdict == "written" else "asks again, and its records are there"
        yield Move(actor, verb, put(after, actor, informed), wrong or lost)
        if verdict == "written":
            yield Move(actor, "its records are written, but the answer is lost", after, wrong)

    def _acknowledged(self, state: State, worker: Worker) -> tuple[Worker, str]:
        """The writer acknowledges the sent records, and the handler goes on."""
        last = worker.acked + len(worker.sent)
        written = last <= len(state.journal) and state.journal[last - 1].shift == worker.shift
        wrong = "" if written or self.planted == NO_FENCE else f"record {last} was acknowledged, and it is not there"
        settled = bool(worker.sent[-1].ending)
        return rested(idle(worker)) if settled else worker._replace(acked=last, sent=()), wrong

    # ── the handler, through ctx ─────────────────────────────────────────────────────────────────────────────────

    def _handler(self, state: State, actor: int, worker: Worker) -> Iterator[Move]:
        view = worker.view
        if not view or awaits(worker):
            return
        for first, last in worker.reads:  # the answer of Waits.look has come
            news = [Entry(MESSAGE, str(number)) for number in range(first + 1, last + 1)]
            left = list(worker.reads)
            left.remove((first, last))
            after = put(state, actor, worker._replace(reads=tuple(left)))
            yield self._writes(after, actor, f"copies {len(news)} message(s) of its inbox", news)
        if worker.unread:  # Shift._read_journal: the messages until now
            yield Move(actor, "asks for its inbox", self._asks(state, actor, worker))
            return
        if worker.reads and not view.waiting:
            return
        if view.undo or view.stop:
            yield from self._undo(state, actor, worker, view)
            return
        op = self.program[view.at] if view.at < len(self.program) else "return"
        if op == "return":
            yield self._ends(state, actor, "returns", COMPLETED)
        elif op == "close":
            yield self._writes(state, actor, "leaves the saga", [Entry(CLOSED)])
        elif op in WAITS and view.waiting:
            yield from self._waits(state, actor, worker, view)
        else:
            yield from self._may_go_on(state, actor)
            if worker.lease and not worker.halted and op in AGREED:
                yield self._writes(state, actor, f"comes to its {op}", [Entry(SAGA if op == "saga" else AWAITED)])
            elif worker.lease and not worker.halted:
                yield from self._step(state, actor, view, op)

    def _asks(self, state: State, actor: int, worker: Worker) -> State:
        assert worker.view
        read = (worker.view.copied, state.inbox)
        return put(state, actor, worker._replace(unread=False, reads=(*worker.reads, read)))

    def _waits(self, state: State, actor: int, worker: Worker, view: Known) -> Iterator[Move]:
        """Waits: one branch after another comes to its wait, a message goes to one of them, and one look serves all. While
        something else is to be done, or messages come, the task stays in memory and looks again."""
        op = self.program[view.at]
        if view.begun < WAITS[op] and worker.lease:
            yield self._writes(state, actor, "comes to another wait", [Entry(AWAITED)])
        if view.copied > view.taken:
            yield self._writes(state, actor, "takes the message", [Entry(WAITED)])
        elif not worker.reads and view.begun == WAITS[op]:
            yield self._settles(
                state, actor, "lets go, to wait for a signal", HANDED_BACK, NEVER, "signal", view.copied
            )
        several = self.planted == SEVERAL_READERS and len(worker.reads) < view.waiting
        if op == "waits" and state.inbox > view.copied and (several or not worker.reads):
            yield Move(actor, "looks into its inbox", self._asks(state, actor, worker))

    def _may_go_on(self, state: State, actor: int) -> Iterator[Move]:
        """ShiftJournal.ensure_may_continue: a worker that stops hands its task back here; one without a lease goes no further."""
        yield self._settles(state, actor, "decides to hand the task back", HANDED_BACK, NOW, "queued")

    def _step(self, state: State, actor: int, view: Known, name: str) -> Iterator[Move]:
        ran = self._writes(state, actor, f"runs step {name}", [Entry(STEP, name)])
        known = self._may_know(state, actor) and same_round(state.now, view) and state.now.at > view.at
        wrong = f"step {name} is recorded, and is run again" if known else ""
        yield ran._replace(wrong=wrong or _begins(state, f"step {name}"))
        if not self.fails:
            return
        yield self._settles(state, actor, "finds that its code was changed", PARKED, NEVER, "parked")
        if view.saga:
            yield self._writes(state, actor, f"fails in step {name}, and gives the saga up", [Entry(UNDOING)])
        else:
            yield self._ends(state, actor, f"fails in step {name}", FAILED)
            yield self._settles(state, actor, f"fails in step {name}, to try again later", RETRY, LATER, "retrying")

    def _may_know(self, state: State, actor: int) -> bool:
        """Whether the journal has all records that this worker knows. A worker whose records the
        database has lost goes on until it writes, or until its heartbeat shows the loss: other workers begin its new steps again."""
        worker = state.workers[actor]
        return not self.forgets or self._has_predecessor(state, worker.shift, worker.acked + 1)

    def _undo(self, state: State, actor: int, worker: Worker, view: Known) -> Iterator[Move]:
        if view.undo == 0 and view.saga:
            yield self._writes(state, actor, "gives the saga up", [Entry(UNDOING)])
        elif view.undo == 1 and view.owed:
            yield from self._may_go_on(state, actor)
            if worker.lease and not worker.halted:
                ran = self._writes(state, actor, f"runs undo {view.owed}", [Entry(STEP, f"undo {view.owed}")])
                known = self._may_know(state, actor) and same_round(state.now, view)
                known = known and (state.now.undo, -state.now.owed) > (1, -view.owed)
                wrong = f"undo {view.owed} is recorded, and is run again" if known else ""
                yield ran._replace(wrong=wrong or _begins(state, f"undo {view.owed}"))
        elif view.undo == 1:
            yield self._writes(state, actor, "has undone the saga", [Entry(UNDONE)])
        elif view.stop:
            yield self._ends(state, actor, "ends as requested", CANCELLED)
        else:
            yield self._ends(state, actor, "fails", FAILED)
            yield self._settles(state, actor, "fails, to try again later", RETRY, LATER, "retrying")

    def _writes(self, state: State, actor: int, verb: str, entries: list[Entry]) -> Move:
        """Puts records into the writer's queue, and goes on as if they were written; the handler awaits durable ones (`awaits`)."""
        worker = state.workers[actor]
        view = worker.view
        for entry in entries:
            view = self.learn(view, 0, Record(worker.shift, entry.kind, entry.key))  # type: ignore[arg-type]
        writing = worker._replace(view=view, line=worker.line + tuple(entries))
        return Move(actor, verb, put(state, actor, writing))

    def _ends(self, state: State, actor: int, verb: str, kind: str) -> Move:
        return self._writes(state, actor, verb, [Entry(kind, "", ("end", ENDS[kind]))])

    def _settles(self, state: State, actor: int, verb: str, kind: str, due: str, reason: str, inbox: int = -1) -> Move:
        return self._writes(state, actor, verb, [Entry(kind, "", ("wait", due, reason, inbox))])

    # ── the outside, and time ────────────────────────────────────────────────────────────────────────────────────

    def _outside(self, state: State) -> Iterator[Move]:
        if state.late.entries:
            after, verdict, wrong = self.commit(state, *state.late)
            yield Move(OUTSIDE, f"an abandoned commit is {verdict}", after._replace(late=Late()), wrong)
            yield Move(OUTSIDE, "an abandoned commit is lost", state._replace(late=Late()))
        if state.row:
            yield from self._cancel(state)
            if state.row[0] == LATER and not state.held:  # wake
                yield Move(OUTSIDE, "its time has come", state._replace(row=(NOW, "queued")))
            if state.inbox - state.now.taken < self.messages:  # bump, post
                hears = state.row[1] == "signal" and not state.held  # a message does not wake a paused task
                after = state._replace(inbox=state.inbox + 1, row=(NOW, "queued") if hears else state.row)
                yield Move(OUTSIDE, "sends a message", after)
        if state.outcome == "failed" or (state.row and state.row[1] == "parked" and not state.held):
            after, wrong = self._append(state, [Record(0, RESUMED)])  # drop_outcome, reopen; unpark
            yield Move(OUTSIDE, "resumes the task", after._replace(outcome="", row=(NOW, "queued")), wrong)
        if self.pauses or self.planted == EARLY_PAUSE:
            yield from self._pause(state)
        if self.planted == BARE_RESCUE and state.listed:
            after = freed(state)._replace(listed=False, row=state.row and (state.row[0], "queued"))
            yield Move(OUTSIDE, "the slow rescue frees the task that it had read of", after)
        yield from self._prune(state)
        yield from self._forget(state)

    def _forget(self, state: State) -> Iterator[Move]:
        """A restore, or a failover to a replica that lagged behind, under living workers. The model does not follow the
        rows of the workers: a worker that the queue row names has one again, and is dead or alive like any other."""
        if state.epoch >= self.forgets:
            return
        if not state.backup:
            holder = state.now.fence if state.held else 0
            kept = Backup(state.journal, state.now, state.row, state.outcome, state.inbox, holder)
            yield Move(OUTSIDE, "keeps a backup", state._replace(backup=kept), helps=False)
            return
        journal, now, row, outcome, inbox, holder = state.backup
        back = state._replace(journal=journal, now=now, outcome=outcome, inbox=inbox, backup=(), epoch=state.epoch + 1)
        names = [worker.life == "shift" and bool(holder) and worker.shift == holder for worker in state.workers]
        crew = [
            rested(worker._replace(holds=named, row=worker.row or named, giving=0))
            for worker, named in zip(state.workers, names, strict=True)
        ]
        if holder and not any(names):
            row = (NOW, "queued")  # a dead worker held it, and a rescue has freed it
        yield Move(
            OUTSIDE, "the database forgets its last commits", back._replace(row=row, workers=tuple(crew)), helps=False
        )

    def _cancel(self, state: State) -> Iterator[Move]:
        """cancel: saga_state, outsider_record, then cancelling, or outsider_end and drop_queue."""
        now = state.now
        if now.saga and now.stop:
            return
        if now.saga:
            after, wrong = self._append(state, [Record(0, CANCEL)])
            after = freed(after)._replace(row=(NOW, "cancelling"), paused="")
            yield Move(OUTSIDE, "requests a cancel", after, wrong, helps=False)
            return
        after, wrong = self._append(state, [Record(0, CANCEL), Record(0, CANCELLED)])
        after = freed(after)._replace(row=(), outcome="cancelled", paused="")
        yield Move(OUTSIDE, "cancels the task", after, wrong, helps=False)

    def _pause(self, state: State) -> Iterator[Move]:
        """pause, unconfirmed_pauses, and a resume of a paused task (unpark)."""
        if state.row and not state.paused:
            after = state._replace(paused="asked")
            after = after if state.held else after._replace(row=(NEVER, "paused"))
            yield Move(OUTSIDE, "pauses the task", after, helps=False)
        if state.paused == "asked":
            holders = [worker for worker in state.workers if worker.holds]
            if not holders or state.confirmed or not holders[0].lease or self.planted == EARLY_PAUSE:
                yield Move(OUTSIDE, "the pause is answered", state._replace(paused="answered", confirmed=False))
        if state.paused:
            after = state._replace(paused="", confirmed=False)
            if state.held:
                yield Move(OUTSIDE, "lets the task go on, which its worker holds", after)
            else:
                after, wrong = self._append(after, [Record(0, RESUMED)])
                yield Move(OUTSIDE, "lets the task go on", after._replace(row=(NOW, "queued")), wrong)

    def _prune(self, state: State) -> Iterator[Move]:
        """Drops the contents of old records (no statement does yet). Their numbers, shifts and kinds stay."""
        old = state.journal[:-1]
        kept = [GONE if self.planted == NUMBERS_BACK else record._replace(key="") for record in old]
        if old and tuple(kept) != old:
            verb = "prunes the journal" + (", numbers and all" if self.planted == NUMBERS_BACK else "")
            yield Move(OUTSIDE, verb, state._replace(journal=(*kept, state.journal[-1])), helps=False)
