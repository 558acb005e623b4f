"""The checker: every state that the moves of a protocol lead to, breadth first, each judged; and the shortest way to a fault.

States that no move can distinguish are one (`canonical`): the names of workers do not matter, nor do journal numbers that
no statement can refer to any more, nor the memory of a worker whose every write will be refused. So a task may be claimed,
dropped, cancelled, retried and resumed any number of times, and there is still an end to the search.
"""

from __future__ import annotations

import bisect
import dataclasses
import gc
from array import array

from tests.model.model import OUTSIDE, Move, Protocol
from tests.model.values import (
    GONE,
    HANDED_BACK,
    LATER,
    MESSAGE,
    NEVER,
    NOW,
    Entry,
    Known,
    Late,
    Record,
    State,
    Worker,
    awaits,
    settling,
)

TAKEN = Record(0, "taken")
"""A number whose details no move needs any more."""

MAX_AHEAD = 6
"""Numbers after its own that a worker may write to, when faults are planted."""


# ── invariants ───────────────────────────────────────────────────────────────────────────────────────────────────────


def broken(state: State) -> str:
    """The fault of a state, or ""; the census (store/statements/common.sql) and some more. Moves judge themselves."""
    row, now = state.row, state.now
    if state.outcome != now.over:
        return f"the outcome is {state.outcome!r} and the journal says {now.over!r}"
    if bool(row) == bool(state.outcome):
        return "it has ended and has a queue row" if row else "it has neither a queue row nor an outcome"
    if not row:
        return "a worker holds a task that has ended" if state.held else ""
    due, reason = row
    if state.held:
        holders = [worker for worker in state.workers if worker.holds]
        if len(holders) > 1 or not holders[0].row:
            return "it is held by two" if len(holders) > 1 else "it is held by a worker that no rescue will judge"
        return "it is held, and not due" if due != NOW else ""
    if state.paused:
        return "" if (due, reason) == (NEVER, "paused") else f"it is paused, and {reason}"
    if due == NEVER and reason not in {"signal", "parked"}:
        return f"it is {reason} for ever, and nothing will wake it"
    if due == NEVER and reason == "signal" and state.inbox > now.copied:
        return "it waits for a message that is there, and nothing will wake it"
    if reason == "signal" and now.copied > now.taken:
        return "it waits for a message that it has read"
    return "" if due in {NOW, LATER, NEVER} else f"due {due}?"


# ── states that no move can distinguish ──────────────────────────────────────────────────────────────────────────────


def canonical(state: State, *, planted: bool = False, lean: bool = True) -> State:
    """The state that stands for all like this one. `lean` also forgets the memory of a worker whose every write
    will be refused. That is right as long as numbers are never freed, which a planted fault may do."""
    workers = [_plain(state, worker, planted=planted, lean=lean) for worker in state.workers]
    late = state.late
    if late.entries and late.first <= len(state.journal) and not planted:
        late = _NEVER  # its number is taken for ever
    kept = _kept(state, workers, late, planted=planted)
    names = _names(state, workers, late)
    taken, round_ = state.now.taken, state.now.round
    for worker in workers:
        if worker.view:
            taken, round_ = min(taken, worker.view.taken), min(round_, worker.view.round)
    crew = [worker if worker == _FRESH else _alike(worker, names, kept, taken, round_) for worker in workers]
    crew.sort()
    if late.entries:
        first = bisect.bisect_right(kept, late.first - 1) + 1
        late = Late(names[late.shift], first, _counted(late.entries, taken))
    journal = tuple([_like(state.journal[number - 1], names) for number in kept])
    now = _since(state.now, taken, round_, names.get(state.now.fence, 0))
    return state._replace(journal=journal, now=now, inbox=state.inbox - taken, workers=tuple(crew), late=late)


_FRESH, _SETTLED, _NEVER = Worker(), Known(), Late()
_ANYTHING = (Entry(HANDED_BACK), Entry(HANDED_BACK, "", ("wait", NOW, "queued", -1)))


def _plain(state: State, worker: Worker, *, planted: bool, lean: bool) -> Worker:
    """The worker without parts that cannot matter any more: one that does nothing and holds nothing equals a new one."""
    if not planted and worker.giving and not (worker.holds and worker.giving == state.now.fence):
        worker = worker._replace(giving=0)  # the shift that it names is over for ever
    if not worker.view:
        return worker if worker.holds or worker.giving else _FRESH
    if settling(worker):
        worker = worker._replace(view=_SETTLED)
    return _doomed(state, worker) if lean and not planted else worker


def _fenced(state: State, worker: Worker) -> int:
    """The worker's next number when another has taken it, so that all its writes will be refused; 0 when it is free."""
    journal, last = state.journal, worker.acked
    if last < len(journal) and journal[last].shift == worker.shift:  # its records are written, but it has no answer yet
        last += len(worker.sent)
    return last + 1 if last < len(journal) and journal[last].shift != worker.shift else 0


def _doomed(state: State, worker: Worker) -> Worker:
    """A fenced worker equals a new one, unless it may still begin a step."""
    next_ = _fenced(state, worker)
    if not next_:
        return worker
    if next_ > worker.acked + 1:
        if worker.sent[-1].ending:
            return _FRESH
        worker = worker._replace(acked=next_ - 1, sent=())
    if not worker.lease or awaits(worker):
        return _FRESH
    return worker._replace(sent=(), line=()) if worker.sent or worker.line else worker


def _kept(state: State, workers: list[Worker], late: Late, *, planted: bool) -> list[int]:
    """The numbers of the journal that a statement may still refer to."""
    head, kept = len(state.journal), set[int]()
    for worker in workers:
        if worker.view and worker.acked < head:
            far = MAX_AHEAD if planted else len(worker.sent) + len(worker.line) + 1
            kept.update(range(worker.acked + 1, min(head, worker.acked + far) + 1))
    if planted and late.entries:
        kept.update(range(late.first, min(head, late.first + MAX_AHEAD) + 1))
    return sorted(kept)


def _names(state: State, workers: list[Worker], late: Late) -> dict[int, int]:
    """New names for the shifts that still matter: -1 for the newest, -2, …, and never a future number."""
    live = {late.shift}
    for worker in workers:
        live.add(worker.shift)
        live.add(worker.giving)
        if worker.holds:
            live.add(state.now.fence)
    live.discard(0)
    names = {shift: index - len(live) for index, shift in enumerate(sorted(live))}
    names[0] = 0
    return names


def _alike(worker: Worker, names: dict[int, int], kept: list[int], taken: int, round_: int) -> Worker:
    life, row, lease, holds, giving, shift, acked, view, unread, sent, line, halted, reads = worker
    if not view:
        return Worker(life, row, lease, holds, names[giving]) if giving else worker
    acked, view = bisect.bisect_right(kept, acked), _since(view, taken, round_, 0)
    sent, line = _counted(sent, taken), _counted(line, taken)
    reads = tuple(sorted((first - taken, last - taken) for first, last in reads)) if reads else reads
    shift = names[shift]
    return Worker(life, row, lease, holds, names[giving], shift, acked, view, unread, sent, line, halted, reads)


def _like(record: Record, names: dict[int, int]) -> Record:
    if record.shift in names and record.shift:
        return Record(names[record.shift], record.kind)
    return GONE if record == GONE else TAKEN


def _since(known: Known, taken: int, round_: int, fence: int) -> Known:
    if not taken and not round_ and known.fence == fence:
        return known
    at, waiting, copied, taken_messages, saga, owed, undo, stop, again, over, _, begun = known
    return Known(
        at, waiting, copied - taken, taken_messages - taken, saga, owed, undo, stop, again - round_, over, fence, begun
    )


def _counted(entries: tuple[Entry, ...], taken: int) -> tuple[Entry, ...]:
    """The count of messages that a wait compares, counted from the same start."""
    if not taken or not entries:
        return entries
    entries = tuple([e._replace(key=str(int(e.key) - taken)) if e.kind == MESSAGE else e for e in entries])
    ending = entries[-1].ending
    if not ending or ending[0] == "end" or ending[3] == -1:
        return entries
    return (*entries[:-1], entries[-1]._replace(ending=(*ending[:3], ending[3] - taken)))


# ── the search ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass
class Report:
    """The result of a search."""

    states: int
    moves: int
    depth: int
    wrong: str = ""
    trace: list[str] = dataclasses.field(default_factory=list)
    verbs: set[str] = dataclasses.field(default_factory=set)

    def __str__(self) -> str:
        if not self.wrong:
            return f"{self.states:,} states, {self.moves:,} moves, at most {self.depth} moves from the start: no error"
        return "\n".join([f"{self.wrong} ({len(self.trace)} moves)", *self.trace])


class Search:
    """One search through all states of a protocol."""

    def __init__(self, protocol: Protocol, *, lean: bool = True) -> None:
        self.protocol, self.lean = protocol, lean
        begin = self.canonical(protocol.begin())
        self.index_of = {begin: 0}
        self.states = [begin]
        self._from = array("l", [-1])
        self._depth = array("l", [0])
        self._edges = (array("l"), array("l"))
        self._moves = 0
        self._verbs: set[str] = set()

    def canonical(self, state: State) -> State:
        if self.protocol.forgets:  # numbers may come back: only the names of the workers are forgotten
            return state._replace(workers=tuple(sorted(state.workers)))
        return canonical(state, planted=bool(self.protocol.planted), lean=self.lean)

    def run(self, most: int = 10**9) -> Report:
        """Searches until all states are seen or one is wrong. There are no reference cycles, so the garbage collector is off:
        it would only scan millions of states again and again."""
        gc.disable()
        try:
            return self._run(most)
        finally:
            gc.enable()

    def _run(self, most: int) -> Report:
        at = 0
        while at < len(self.states):
            for move in self.protocol.moves(self.states[at]):
                self._moves += 1
                wrong = move.wrong or broken(move.after) or self._tried(move.after)
                if wrong:
                    return self._report(*self._describe(at, move))
                self._add(at, move)
            at += 1
            if at >= most:
                raise RuntimeError(f"more than {most} states")
        stuck = None if self.protocol.longest else self._stuck()
        if stuck is not None:
            return self._report("from here no end can be reached, but by a cancel", self._describe(stuck)[1])
        return self._report("", [])

    def _add(self, at: int, move: Move) -> None:
        self._verbs.add(move.verb)
        after = self.canonical(move.after)
        index = self.index_of.setdefault(after, len(self.states))
        if index == len(self.states):
            self.states.append(after)
            self._from.append(at)
            self._depth.append(self._depth[at] + 1)
        if move.helps:
            self._edges[0].append(at)
            self._edges[1].append(index)

    def _tried(self, state: State) -> str:
        """The search forgets a fenced worker. So check first that the database refuses all that it has, or could have."""
        if not self.lean or self.protocol.planted or self.protocol.forgets:
            return ""
        for worker in state.workers:
            if worker.view and (next_ := _fenced(state, worker)):
                entries = worker.line if next_ > worker.acked + 1 else worker.sent or worker.line
                tried = self.protocol.commit(state, worker.shift, next_, entries or _ANYTHING)
                self._verbs.add("its records are refused, it drops the work")
                if tried != (state, "refused", ""):
                    return f"a worker that was fenced still wrote: {tried[1:]}"
        return ""

    def _report(self, wrong: str, trace: list[str]) -> Report:
        return Report(len(self.states), self._moves, self._depth[-1], wrong, trace, self._verbs)

    def _stuck(self) -> int | None:
        """The first state from which no end can be reached, by a walk backwards from all ends."""
        before: list[list[int]] = [[] for _ in self.states]
        for source, target in zip(*self._edges, strict=True):
            before[target].append(source)
        fine = bytearray(len(self.states))
        todo = [index for index, state in enumerate(self.states) if state.outcome]
        for index in todo:
            fine[index] = 1
        while todo:
            for source in before[todo.pop()]:
                if not fine[source]:
                    fine[source] = 1
                    todo.append(source)
        stuck = fine.find(0)
        return None if stuck < 0 else stuck

    # ── the trace ────────────────────────────────────────────────────────────────────────────────────────────────

    def _describe(self, at: int, last: Move | None = None) -> tuple[str, list[str]]:
        """The moves to a state, and the wrong move there, with their real names and numbers."""
        way = []
        while at > 0:
            way.append(self.states[at])
            at = self._from[at]
        state, lines = self.protocol.begin(), []
        for aim in reversed(way):
            move = next(m for m in self.protocol.moves(state) if self.canonical(m.after) == aim)
            lines.append(_line(len(lines) + 1, state, move))
            state = move.after
        if last is None:
            return "", lines
        verb = last.verb
        matching = [m for m in self.protocol.moves(state) if m.verb == verb]
        ends = ((m.wrong or broken(m.after) or self._tried(m.after), m) for m in matching)
        wrong, move = next(pair for pair in ends if pair[0])
        return wrong, [*lines, _line(len(lines) + 1, state, move)]


def _line(number: int, before: State, move: Move) -> str:
    """One move as a line: the actor, the verb, and its changes in the database."""
    after = move.after
    actor = "outside" if move.actor == OUTSIDE else f"worker {move.actor + 1}"
    changes = []
    for seq, record in enumerate(after.journal, 1):
        if seq > len(before.journal) or record != before.journal[seq - 1]:
            shift = f" (shift {record.shift})" if record.shift and record.shift != seq else ""
            changes.append(
                f"{seq} free again" if record == GONE else f"{seq} {record.kind} {record.key}".rstrip() + shift
            )
    if (before.row, before.held, before.outcome) != (after.row, after.held, after.outcome):
        changes.append(f"outcome: {after.outcome}" if after.outcome else f"queue: {_row(after)}")
    if before.inbox != after.inbox:
        changes.append(f"inbox: {after.inbox}")
    return f"{number:3}  {actor:9} {move.verb}" + (f"  → {'; '.join(changes)}" if changes else "")


def _row(state: State) -> str:
    if state.held:
        return f"held by worker {[worker.holds for worker in state.workers].index(True) + 1}"
    return f"{state.row[1]}, due {state.row[0]}" if state.row else "no row"
