"""Waits: for a time, a signal, an answer, a decision, a child. Each frees the slot, survives restarts, and ends once.

What comes from outside lies in the task's inbox, in the order of its arrival, and is copied into the journal by whoever
holds the task. A shift that has nothing to do but wait is left, with the number of messages it has read: when there are
more by then, the store makes the task ready at once. While another branch still works, a wait stays in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.control import Suspend
from onward.core.task import HEARS, NEVER, SAID, Message, Reason
from onward.engine.desk import Desk
from onward.engine.pen import Pen
from onward.engine.replay import SAID as ASKED
from onward.engine.scope import SCOPE, refuse
from onward.errors import TimeUp, UsageError

LINGER = 1.0
"""A pause of up to this many seconds is spent in memory: leaving and coming back would cost more than the slot."""

LOOK_EVERY = 0.25
"""Seconds between two looks into the inbox while a wait stays in memory."""

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
    wait: Wait
    seq: int
    until: float
    reason: Reason
    future: asyncio.Future[None] | None = None


class Waits:
    """The waits of one shift."""

    def __init__(self, desk: Desk, pen: Pen, task_id: str, messages: int) -> None:
        self._desk, self._pen, self._task_id = desk, pen, task_id
        self._there = self._began = messages
        self.deadline = NEVER
        self.cut_at = NEVER
        """When the waits of an agent are cut off: it needs the rest of its time for its answer."""
        self._open: list[_Open] = []
        self.heard: int | None = None
        """How many messages there were when the handler asked for the last time; None when it may complete without them."""
        self._looked = 0
        """The number of the last record when the inbox was looked into for messages."""
        self.active = 1
        """How many lines of the handler have something to do. When none has, the task leaves."""

    async def wait(self, wait: Wait) -> dict[str, Any] | None:
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
        await pen.may_go_on()
        if known is None:
            until = NEVER if wait.timeout is None else self._desk.now() + wait.timeout
            cut = {"cut": True} if self.cut_at < until and wait.kind != r.SLEEP else {}
            until = self.cut_at if cut else until
            told = wait.data | ({} if until == NEVER else {"until": until}) | cut
            open_ = _Open(wait, pen.mention(wait.kind, key, told), until, REASONS[wait.kind])
        else:
            open_ = _Open(wait, known.seq, known.data.get("until", NEVER), REASONS[wait.kind])
            cut = {"cut": True} if "cut" in known.data else {}
        scope.key, scope.told = key, True
        try:
            message = await self._until(open_)
        finally:
            scope.key = None
        scope.resumed = False
        ended = {"expired": True} if message is None else {"n": message["n"]}
        pen.mention(r.SLEPT if wait.kind == r.SLEEP else r.WAITED, key, {} if wait.kind == r.SLEEP else ended)
        return _unless_cut(wait, message, cut=bool(cut))

    async def messages(self, *, last: bool) -> list[Any]:
        """What people said since this was asked last. Where nobody did nothing is recorded: a replay that has no record in this
        place, and others after it, knows that there was nothing."""
        scope, pen = SCOPE.get(), self._pen
        if scope.key is not None:
            refuse("messages", scope.key)
        replay, key = pen.replay, scope.prefix + scope.next("messages")
        known = replay.peek(key)
        if known is not None and known.key == key:
            numbers = pen.next(scope, key, frozenset({r.HEARD})).data["n"]  # type: ignore[union-attr]
        elif pen.ended_by is not None:
            raise pen.ended_by
        elif replay.ahead(scope.path):
            return []
        else:
            numbers = await self._heard(key, last=last)
        return [replay.messages.pop(number)["value"] for number in numbers]

    async def _heard(self, key: str, *, last: bool) -> list[int]:
        """The numbers of what people said by now."""
        self._look()
        await self.read_inbox()
        found = [number for number, message in self._pen.replay.messages.items() if _said(message)]
        if found:
            await self._pen.may_go_on()
            self._pen.mention(r.HEARD, key, {"n": found})
        self.heard = self._pen.replay.inbox if last and not found else None
        self._looked = self._pen.hold.seq
        return found

    async def pause(self, until: float, reason: Reason) -> None:
        """Wait inside a step: between two attempts, or until it may begin."""
        kind = r.STEP_WAITS if reason in HEARS else r.SLEEP
        await self._until(_Open(Wait(kind, "pause"), 0, until, reason))

    # ── until something comes ────────────────────────────────────────────────────────────────────────────────────

    async def _until(self, open_: _Open) -> dict[str, Any] | None:
        while True:
            found = self._taken(open_)
            if found is not None:
                return None if found["kind"] == "expired" else found
            if open_.until <= self._desk.now():
                if open_.wait.kind not in {r.QUESTION, r.APPROVAL}:
                    return None
                await self._expire(open_)
            elif not await self.read_inbox():
                await self._rest(open_)

    def _taken(self, open_: _Open) -> dict[str, Any] | None:
        """The first message that this wait is for."""
        kind, wait = open_.wait.kind, open_.wait
        messages = self._pen.replay.messages
        for number, message in messages.items():
            if kind == r.SIGNAL:
                fits = message["kind"] == "signal" and message["name"] == wait.data["signal"]
            elif kind == r.STEP_WAITS:
                fits = message["kind"] == "budget" and number > self._began  # older ones came before this shift looked
            elif kind == r.CHILD:
                fits = message["kind"] == "child" and message["name"] == wait.data["child"]
            else:
                fits = message["ref"] is not None and message["ref"] == open_.seq
            if fits:
                return message if kind == r.CHILD else messages.pop(number)
        return None

    async def read_inbox(self) -> bool:
        """Copy what has come in into the journal; True when there was something."""
        replay = self._pen.replay
        if replay.inbox >= self._there:
            return False
        messages = await self._pen.patiently(lambda: self._desk.store.inbox(self._task_id, replay.inbox))
        for message in messages:
            copied = {"n": message.number, "kind": message.kind, "name": message.name, "ref": message.ref}
            copied |= {"value": wire.decode(message.data)}
            self._pen.mention(r.MESSAGE, "", copied)
            replay.receive(copied)
        self._there = replay.inbox
        return bool(messages)

    async def patches(self, *, look: bool = True) -> list[Any]:
        """What others want changed in the state and was not taken yet. It is recorded here, under the number of its message, so
        that a replay takes it in the same place; only where the journal has nothing further may there be something new."""
        pen, replay, path = self._pen, self._pen.replay, SCOPE.get().path
        taken: list[Any] = []
        while (known := replay.peek(SCOPE.get().prefix)) is not None and known.kind == r.PATCHED and "n" in known.data:
            taken.append(await pen.note(r.PATCHED, "sent", {}))
            replay.messages.pop(taken[-1]["n"], None)
        if known is not None or replay.ahead(path) or not look:
            return taken
        if (
            self._looked != pen.hold.seq
        ):  # else somebody looked for messages right before, and nothing has happened since
            self._look()
            await self.read_inbox()
        self._looked = 0
        for number in [n for n, message in replay.messages.items() if message["kind"] == "patch"]:
            told = {**replay.messages.pop(number)["value"], "n": number}
            taken.append(await pen.note(r.PATCHED, "sent", told))
        return taken

    async def _expire(self, open_: _Open) -> None:
        """Nobody answered in time. The inbox decides between that and an answer that comes in this very moment."""
        expired = Message(f"expired {open_.seq}", "expired", "", open_.seq, b"null")
        await self._pen.patiently(lambda: self._desk.store.send(self._task_id, expired))
        self._look()
        await self.read_inbox()

    async def _rest(self, open_: _Open) -> None:
        left = open_.until - self._desk.now()
        if self.active == 1 and open_.wait.kind == r.SLEEP and left <= LINGER:
            await self._desk.clock.sleep(left)
            return
        self._open.append(open_)
        self.active -= 1
        try:
            if self.active == 0:
                self.leave()
            await self._in_memory(open_, left)
        finally:
            self.active += 1
            self._open.remove(open_)

    def leave(self) -> None:
        """Nobody has anything to do but wait: the task gives its slot back."""
        if not self._open:
            return
        due = min(*(one.until for one in self._open), self.deadline)
        reason = min((one.reason for one in self._open), key=_ORDER.index)
        suspend = self._pen.end(Suspend(due, reason, self._pen.replay.inbox))
        for one in self._open:
            if one.future is not None and not one.future.done():
                one.future.set_exception(suspend)
        raise suspend

    async def _in_memory(self, open_: _Open, left: float) -> None:
        """Another branch works: stay, and look now and then whether something came."""
        open_.future = asyncio.get_running_loop().create_future()
        pause = asyncio.ensure_future(self._desk.clock.sleep(min(left, LOOK_EVERY)))
        try:
            await asyncio.wait({open_.future, pause}, return_when=asyncio.FIRST_COMPLETED)
            if open_.future.done():
                open_.future.result()
        finally:
            pause.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                open_.future.cancel()
        if open_.wait.kind != r.SLEEP:
            self._look()

    def _look(self) -> None:
        """There may be more in the inbox than we know of."""
        self._there = self._pen.replay.inbox + 1

    def branch_over(self) -> None:
        """A branch has ended; when all others wait, the task leaves."""
        self.active -= 1
        if self.active == 0 and self._open:
            with contextlib.suppress(Suspend):
                self.leave()


def _unless_cut(wait: Wait, message: dict[str, Any] | None, *, cut: bool) -> dict[str, Any] | None:
    """What ended a wait. Raises TimeUp where that was the end of the time that an agent has for waiting."""
    if message is None and cut:
        raise TimeUp(f"the wait for {wait.name!r} was cut off")
    return message


def _said(message: dict[str, Any]) -> bool:
    """Whether somebody said this to the task; a signal of that name is the same."""
    return bool(message["kind"] == SAID or (message["kind"], message["name"]) == ("signal", SAID))
