"""Waits: for a time, a signal, an answer, a decision, a child. Each frees the slot, survives restarts, and ends once.

What comes from outside lies in the task's inbox, in the order of its arrival, and is copied into the journal by whoever
holds the task. A shift that has nothing to do but wait is left, with the number of messages it has read: when there are
more by then, the store makes the task ready at once. While another branch still works, a wait stays in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
import itertools
from collections.abc import Hashable
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.control import Control, Suspend
from onward.core.journal.cuts import ASKED_AGAIN
from onward.core.record import Record
from onward.core.task import HEARS, NEVER, Reason
from onward.core.task import Message as Sent
from onward.engine.background import spawn
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.mail import BUDGET, PATCH, SPOKEN, Message, address_of
from onward.engine.shift.replay import SAID as ASKED
from onward.engine.shift.scope import SCOPE, refuse
from onward.engine.shift.services import WorkerServices
from onward.errors import TimeUp, UsageError

LINGER = 1.0
"""A pause of up to this many seconds is spent in memory: leaving and coming back would cost more than the slot."""

LOOK_EVERY = 0.25
"""Seconds between two looks into the inbox while waits stay in memory."""

PER_RECORD = 50e-6
"""Seconds that a replay takes for each record, about. Where a replay would take longer than LOOK_EVERY, a task that gets messages
stays in memory for as long after the last of them, and then away for as long: so all of its replays together take no longer
than it waits."""

PAGE = 500
"""Messages that are read at once."""

REASONS = {
    r.SLEEP: Reason.ASLEEP,
    r.SIGNAL: Reason.SIGNAL,
    r.QUESTION: Reason.QUESTION,
    r.APPROVAL: Reason.APPROVAL,
    r.CHILD: Reason.CHILD,
}
_ORDER = [
    *(Reason.APPROVAL, Reason.QUESTION, Reason.BUDGET, Reason.SIGNAL, Reason.CHILD),
    *(Reason.QUOTA, Reason.ASLEEP, Reason.RETRYING),
]
"""Of several waits at once, the reason that tells most."""


@dataclasses.dataclass(slots=True)
class Wait:
    """What the handler waits for."""

    kind: str
    name: str
    """What it is called in the journal."""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What others are told of it: the question, the name of the signal, the id of the child."""
    timeout: float | None = None


@dataclasses.dataclass(slots=True, eq=False)
class _Open:
    """A wait that is not over."""

    wait: Wait
    seq: int
    until: float
    reason: Reason
    key: str = ""
    address: Hashable = None
    """Where its message will come in; None for a wait that is for a time alone."""
    message: Message | None = None
    over: bool = False
    future: asyncio.Future[None] | None = None


_Line = list[tuple[int, int, _Open]]
_NUMBERS = itertools.count()
"""Keeps those apart that stand at one place of a heap, in the order in which they came."""

_NONE: dict[Any, Any] = {}
"""What a shift that waits for nothing has of each table."""


class Waits:
    """The waits of one shift."""

    _reading: asyncio.Lock | None = None
    _watcher: asyncio.Task[None] | None = None
    _caught_up = False
    """Whether all messages that the claim told of were read."""
    _stays_until = 0.0
    """Until when the task stays in memory though all of its lines wait."""
    _came_with = 0
    """The number of the last message that the journal had when the shift began."""
    _hearing = 0
    """How many of those that rest wait for a message."""

    def __init__(self, desk: WorkerServices, pen: ShiftJournal, task_id: str, messages: int) -> None:
        self._desk, self._pen, self._task_id = desk, pen, task_id
        self._there = messages
        """How many messages the task had got when it was claimed."""
        self.deadline = NEVER
        self.cut_at = NEVER
        """When the waits of an agent are cut off: it needs the rest of its time for its answer."""
        self._lines: dict[Hashable, _Line] = _NONE
        """The open waits for each address, as heaps: the one that began first has the first message."""
        self._resting: dict[_Open, None] = _NONE
        """The waits that have nothing to do."""
        self._due: list[tuple[float, int, _Open]] | None = None
        """Those of them that have a time, as a heap; some of them are over."""
        self._raised: dict[str, int] = _NONE
        """The last message about more budget that each step has heard of, by the key of the step."""
        self._reads = 0
        """How many reads of the inbox were begun."""
        self.heard: int | None = None
        """How many messages there were when the handler asked for the last time; None when it may complete without them."""
        self._looked = 0
        """The number of the last record when the inbox was looked into for messages."""
        self.active = 1
        """How many lines of the handler have something to do. When none has, the task leaves."""

    async def wait(self, wait: Wait) -> Message | None:
        """The message that ended it, or None when the time was up first."""
        scope, pen = SCOPE.get(), self._pen
        if scope.key is not None:
            raise UsageError(
                f"the handler waits for {wait.name!r} while step {scope.key!r} of the same task is still running; "
                "await one before the next (ctx.gather runs several at once)"
            )
        key = scope.prefix + scope.next(wait.name)
        known = pen.next(scope, key, frozenset({wait.kind}))
        if known is not None and wait.kind in ASKED:
            pen.check(pen.replay.check_said, known, wire.decode(wire.encode(wait.data, "the question")))
        if known is not None and known.over:
            found = known.data if "n" in known.data and not known.data.get("expired") else None
            return _unless_cut(wait, found, cut="cut" in known.data)
        open_: _Open | None = None
        cut = known is not None and "cut" in known.data
        try:
            if known is not None:  # it stands in its line before any other branch goes on
                open_ = self._begin(wait, key, known.seq, known.data.get("until", NEVER))
            await pen.may_go_on()
            if open_ is None:
                until = NEVER if wait.timeout is None else self._desk.now() + wait.timeout
                cut = self.cut_at < until and wait.kind != r.SLEEP
                until = self.cut_at if cut else until
                told = wait.data | ({} if until == NEVER else {"until": until}) | ({"cut": True} if cut else {})
                open_ = self._begin(wait, key, pen.mention(wait.kind, key, told), until)
            scope.key, scope.told = key, True
            await self._until(open_)
        finally:
            scope.key = None
            if open_ is not None:
                self._end(open_)
        scope.resumed = False
        if wait.kind == r.SLEEP:
            pen.mention(r.SLEPT, key, {})
            return None
        return _unless_cut(wait, self._answer(open_), cut=cut)

    async def ask_again(self, asked: Record) -> dict[str, Any] | None:
        """What a person says to an approval that another task had asked for, and this one, a fork of that, asks for again."""
        pen, said, key = self._pen, dict(asked.value), f"{ASKED_AGAIN}approval {asked.seq}"
        known = pen.replay.asked_again.get(key)
        if known is not None and known.over:
            return known.data if "n" in known.data and not known.data.get("expired") else None
        if known is None:
            until = NEVER if "until" not in said else self._desk.now() + said["until"] - asked.at
            said |= {} if until == NEVER else {"until": until}
            open_ = self._begin(Wait(r.APPROVAL, key, said), key, pen.mention(r.APPROVAL, key, said), until)
        else:
            open_ = self._begin(Wait(r.APPROVAL, key, said), key, known.seq, known.data.get("until", NEVER))
        try:
            await self._until(open_)
        finally:
            self._end(open_)
        return self._answer(open_)

    def _answer(self, open_: _Open) -> Message | None:
        """The message that ended a wait, or None when its time was up; the journal is told of the latter here."""
        if open_.message is None:
            self._pen.mention(r.WAITED, open_.key, {"expired": True})
        return None if open_.message is None or open_.message["kind"] == "expired" else open_.message

    async def messages(self, *, last: bool) -> list[Any]:
        """What people said since this was asked last. Where nobody did nothing is recorded: a replay that has no record in this
        place, and others after it, knows that there was nothing."""
        scope, pen = SCOPE.get(), self._pen
        if scope.key is not None:
            refuse("messages", scope.key)
        replay, key = pen.replay, scope.prefix + scope.next("messages")
        known = replay.peek(key)
        if known is not None and known.key == key:
            found = pen.next(scope, key, frozenset({r.HEARD})).data["messages"]  # type: ignore[union-attr]
        elif pen.ended_by is not None:
            raise pen.ended_by
        elif replay.ahead(scope.path):
            return []
        else:
            found = await self._heard(key, last=last)
        return [message["value"] for message in found]

    async def _heard(self, key: str, *, last: bool) -> list[Message]:
        """What people said by now. From the look at the mail to the record nothing is awaited: another branch asks as well."""
        await self.look()
        pen, mail = self._pen, self._pen.replay.mail
        if any(mail.first(address) for address in SPOKEN):
            await pen.may_go_on()
        found = mail.take_all(*SPOKEN)
        if found:
            pen.mention(r.HEARD, key, {"n": [message["n"] for message in found]})
        self.heard = mail.last if last and not found else None
        self._looked = pen.hold.seq
        return found

    async def pause(self, until: float, reason: Reason) -> None:
        """Wait inside a step: between two attempts, or until it may begin. A message about more budget ends all pauses that are
        for it, and one that was read while the step asked ends its pause at once."""
        open_ = _Open(Wait(r.STEP_WAITS if reason in HEARS else r.SLEEP, "pause"), 0, until, reason)
        if reason not in HEARS:
            await self._until(open_)
            return
        key = SCOPE.get().key or ""
        raised = self._pen.replay.mail.raised
        if raised <= max(
            self._there, self._raised.get(key, 0)
        ):  # older ones came before this shift, or the step, asked
            open_.address = BUDGET
            self._stand(open_)
            try:
                await self._until(open_)
            finally:
                self._end(open_)
        self._raised = {} if self._raised is _NONE else self._raised
        self._raised[key] = self._pen.replay.mail.raised

    # ── who gets what ────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, wait: Wait, key: str, seq: int, until: float) -> _Open:
        open_ = _Open(wait, seq, until, REASONS[wait.kind], key, _address(wait, seq))
        if open_.address is not None:
            self._stand(open_)
        return open_

    def _stand(self, open_: _Open) -> None:
        """Put a wait into the line for its address."""
        self._lines = {} if self._lines is _NONE else self._lines
        heapq.heappush(self._lines.setdefault(open_.address, []), (open_.seq, next(_NUMBERS), open_))

    def _end(self, open_: _Open) -> None:
        """A wait is over. Those that are leave the head of their line at once, and the middle of it when they come to its head."""
        open_.over = True
        line = self._lines.get(open_.address)
        while line and line[0][2].over:
            heapq.heappop(line)
        if line is not None and not line:
            self._lines.pop(open_.address, None)

    def _hand_out(self, address: Hashable) -> None:
        """Give the messages at an address to the waits that stand there, in the order in which they began. The record of it is
        written here: no message is between two waits when the process dies."""
        mail = self._pen.replay.mail
        while (line := self._lines.get(address)) and (message := mail.first(address)) is not None:
            open_ = line[0][2]
            ended = {"expired": True} if message["kind"] == "expired" else {"n": message["n"]}
            self._pen.mention(r.WAITED, open_.key, ended)
            if open_.wait.kind != r.CHILD:  # an ended child may be asked for its result again
                mail.take(message["n"])
            open_.message = message
            self._end(open_)
            self._wake(open_)

    def _end_pauses(self) -> None:
        """There is more budget: all steps that lack some ask again."""
        for _, _, open_ in self._lines.pop(BUDGET, []):
            open_.over = True
            self._wake(open_)

    # ── reading the inbox ────────────────────────────────────────────────────────────────────────────────────────

    async def read_first(self) -> None:
        """Read what the claim told of, at the beginning of the shift."""
        self._came_with = self._pen.replay.mail.last
        await self.read_inbox()

    async def read_inbox(self) -> bool:
        """Copy the messages that the claim told of into the journal; True when the caller should look again."""
        if self._caught_up or self._pen.replay.mail.last >= self._there:
            return False
        return await self.look()

    async def look(self) -> bool:
        """Copy all that has come in by now into the journal; True when there was something, or another branch did it. One branch
        reads at a time: two that read at once would each write the same messages down."""
        asked = self._reads
        self._reading = self._reading or asyncio.Lock()
        async with self._reading:
            if self._reads > asked:  # that read began after we asked, so it has seen what was there
                return True
            self._reads += 1
            return await self._read()

    async def _read(self) -> bool:
        pen, before = self._pen, self._pen.replay.mail.last
        more = True
        while more:
            page = await pen.patiently(lambda: self._desk.store.inbox(self._task_id, pen.replay.mail.last, PAGE))
            if pen.transacting:  # the next number belongs to the transaction; the messages are there for the next look
                break
            for message in page:
                self._copy(message)
            more = len(page) == PAGE
            if more:  # what is read goes no faster than what is written
                await pen.flushed()
        self._caught_up = self._caught_up or not more
        return pen.replay.mail.last > before

    def _copy(self, message: Sent) -> None:
        copied = {"n": message.number, "kind": message.kind, "name": message.name, "ref": message.ref}
        copied |= {"value": wire.decode(message.data)}
        self._pen.mention(r.MESSAGE, "", copied)
        self._pen.replay.receive(copied)
        self._stays_until = self._desk.clock.monotonic() + self._way_back()
        if self._lines:
            if message.kind == BUDGET:
                self._end_pauses()
            else:
                self._hand_out(address_of(copied))

    async def patches(self, *, look: bool = True) -> list[Any]:
        """What others want changed in the state and was not taken yet. It is recorded here, under the number of its message, so
        that a replay takes it in the same place; only where the journal has nothing further may there be something new."""
        pen, replay, path = self._pen, self._pen.replay, SCOPE.get().path
        taken: list[Any] = []
        while (known := replay.peek(SCOPE.get().prefix)) is not None and known.kind == r.PATCHED and "n" in known.data:
            taken.append(await pen.note(r.PATCHED, "sent", {}))
        if known is not None or replay.ahead(path) or not look:
            return taken
        if (
            self._looked != pen.hold.seq
        ):  # else somebody looked for messages right before, and nothing has happened since
            await self.look()
        self._looked = 0
        for message in replay.mail.take_all(PATCH):
            taken.append(await pen.note(r.PATCHED, "sent", {**message["value"], "n": message["n"]}))
        return taken

    # ── until something comes ────────────────────────────────────────────────────────────────────────────────────

    async def _until(self, open_: _Open) -> None:
        """Until the wait has its message, or its time is up."""
        if open_.address is not None:
            self._hand_out(open_.address)
        while not open_.over:
            if open_.until <= self._desk.now():
                if open_.wait.kind not in {r.QUESTION, r.APPROVAL}:
                    return
                await self._expire(open_)
            elif not await self.read_inbox() and not open_.over:
                await self._rest(open_)

    async def _expire(self, open_: _Open) -> None:
        """Nobody answered in time. The inbox decides between that and an answer that comes in this very moment."""
        expired = Sent(f"expired {open_.seq}", "expired", "", open_.seq, b"null")
        await self._pen.patiently(lambda: self._desk.store.send(self._task_id, expired))
        await self.look()

    async def _rest(self, open_: _Open) -> None:
        left = open_.until - self._desk.now()
        if self.active == 1 and open_.wait.kind == r.SLEEP and left <= LINGER:
            await self._desk.clock.sleep(left)
            return
        self._resting = {} if self._resting is _NONE else self._resting
        self._resting[open_] = None
        self._hearing += open_.wait.kind != r.SLEEP
        self.active -= 1
        try:
            if self.active == 0:
                self._idle()
            await self._in_memory(open_, left)
        finally:
            self._up(open_)
            open_.future = None

    def _up(self, open_: _Open) -> None:
        """A wait has something to do again. It counts from the moment in which that is known: its branch comes to it later, and
        a task whose other branches wait must not leave before."""
        if open_ in self._resting:
            del self._resting[open_]
            self._hearing -= open_.wait.kind != r.SLEEP
            self.active += 1

    def _wake(self, open_: _Open) -> None:
        if open_.future is not None and not open_.future.done():
            self._up(open_)
            open_.future.set_result(None)

    def _idle(self) -> None:
        """No line of the handler has anything to do but wait. The task leaves; where coming back would take long and messages
        come in, it stays for as long as that, and so does not come back for each of them."""
        if self._way_back() <= LOOK_EVERY:
            self.leave()
        self._stays_until = self._desk.clock.monotonic() + self._way_back()
        if self._watcher is None:
            self._watcher = spawn(self._watch(), "onward-waits")

    def _way_back(self) -> float:
        """Seconds that a replay would take, about, for a task that gets messages; 0 for one that got none in this shift."""
        pen = self._pen
        if pen.replay.mail.last == self._came_with:
            return 0.0
        return (pen.hold.seq - pen.replay.begins) * PER_RECORD

    def leave(self) -> None:
        """The task gives its slot back. One that gets messages and has a long way back stays away for as long."""
        pen, mail = self._pen, self._pen.replay.mail
        due = min(itertools.chain((one.until for one in self._resting), (self.deadline,)))
        if (back := self._way_back()) > LOOK_EVERY:
            suspend = pen.end(Suspend(min(due, self._desk.now() + back), Reason.ASLEEP))
        else:
            reason = min({one.reason for one in self._resting}, key=_ORDER.index)
            suspend = pen.end(Suspend(due, reason, mail.last))
        self._fail(suspend)
        raise suspend

    def _fail(self, error: BaseException) -> None:
        for one in self._resting:
            if one.future is not None and not one.future.done():
                one.future.set_exception(error)
                one.future.exception()  # a branch that is cancelled in this very turn does not ask for it

    async def _in_memory(self, open_: _Open, left: float) -> None:
        """Another branch works: stay, until the watcher has something for us. The last moment is measured here."""
        open_.future = asyncio.get_running_loop().create_future()
        if left > LOOK_EVERY:
            self._watch_for(open_)
            await open_.future
            return
        pause = asyncio.ensure_future(self._desk.clock.sleep(left))
        if open_.wait.kind != r.SLEEP:
            self._watch_for(open_)
        try:
            await asyncio.wait({open_.future, pause}, return_when=asyncio.FIRST_COMPLETED)
            if open_.future.done():
                open_.future.result()
        finally:
            pause.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                open_.future.cancel()

    def _watch_for(self, open_: _Open) -> None:
        if open_.until < NEVER:
            self._due = self._due or []
            heapq.heappush(self._due, (open_.until, next(_NUMBERS), open_))
        if self._watcher is None:
            self._watcher = spawn(self._watch(), "onward-waits")

    async def _watch(self) -> None:
        """Look into the inbox, and at the time, for all waits that rest in memory: one look however many they are."""
        try:
            while self._resting:
                await self._desk.clock.sleep(LOOK_EVERY)
                if self._hearing:
                    await self.look()
                while self._due and self._due[0][0] <= self._desk.now() + LOOK_EVERY:
                    self._wake(heapq.heappop(self._due)[2])
                if self.active == 0 and (self._pen.why or self._desk.clock.monotonic() >= self._stays_until):
                    self.leave()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # those who wait tell it
            self._fail(error)
        finally:
            self._watcher = None

    def close(self) -> None:
        """The shift is over."""
        if self._watcher is not None:
            self._watcher.cancel()

    def branch_over(self) -> None:
        """A branch has ended; when all others wait, the task leaves."""
        self.active -= 1
        if self.active == 0 and self._resting:
            with contextlib.suppress(Control):  # what ended the shift before, perhaps: those who rest are told of it
                self._idle()


def _address(wait: Wait, seq: int) -> Hashable:
    """Where the message that ends a wait comes in."""
    match wait.kind:
        case r.SIGNAL:
            return "signal", wait.data["signal"]
        case r.CHILD:
            return "child", wait.data["child"]
        case r.SLEEP:
            return None
        case _:
            return seq


def _unless_cut(wait: Wait, message: dict[str, Any] | None, *, cut: bool) -> dict[str, Any] | None:
    """What ended a wait. Raises TimeUp where that was the end of the time that an agent has for waiting."""
    if message is None and cut:
        raise TimeUp(f"the wait for {wait.name!r} was cut off")
    return message
