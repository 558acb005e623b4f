"""Waits: for a time, a signal, an answer, a decision, a child. Each frees the slot, survives restarts, and ends once.

Messages from outside are in the task's inbox, in the order of their arrival. The worker that holds the task copies them into the
journal. A shift that can only wait is left, with the number of messages that it has read: when there are more by then, the
store makes the task ready at once. While another branch still works, a wait stays in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
import itertools
from collections.abc import Hashable
from typing import Any

from onward.core import asks, wire
from onward.core import record as r
from onward.core.approval import first_match
from onward.core.control import Control, Suspend
from onward.core.journal.cuts import ASKED_AGAIN
from onward.core.lock import MESSAGE as LOCK
from onward.core.record import Record
from onward.core.task import HEARS, NEVER, Reason
from onward.core.task import Message as InboxMessage
from onward.core.view_json import to_json
from onward.engine.background import spawn
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.mail import BUDGET, PATCH, SPOKEN, Message, address_of
from onward.engine.shift.replay import QUESTION_FIELDS
from onward.engine.shift.scope import SCOPE, refuse_overlap
from onward.engine.shift.services import WorkerServices
from onward.errors import TimeUp, UsageError

MAX_SLEEP_IN_MEMORY_S = 1.0
"""A sleep of up to this many seconds stays in memory: to leave and come back would cost more than the slot."""

POLL_INTERVAL_S = 0.25
"""Seconds between two reads of the inbox while waits stay in memory."""

REPLAY_S_PER_RECORD = 50e-6
"""About how long a replay takes for each record. Where a replay would take longer than POLL_INTERVAL_S, a task that gets messages
stays in memory for that long after the last of them, and then stays away for that long: so all of its replays together take no
longer than it waits."""

INBOX_PAGE_SIZE = 500
"""Messages in one read of the inbox."""

REASONS = {
    r.SLEEP: Reason.ASLEEP,
    r.SIGNAL: Reason.SIGNAL,
    r.QUESTION: Reason.QUESTION,
    r.APPROVAL: Reason.APPROVAL,
    r.CHILD: Reason.CHILD,
    r.LOCK_AWAITED: Reason.LOCK,
}
_REASON_PRIORITY = [
    *(Reason.APPROVAL, Reason.QUESTION, Reason.BUDGET, Reason.SIGNAL, Reason.LOCK, Reason.CHILD),
    *(Reason.QUOTA, Reason.ASLEEP, Reason.RETRYING),
]
"""Of several waits at once, the first of these is the reason that the task shows."""


@dataclasses.dataclass(slots=True)
class WaitRequest:
    """A wait as the handler asks for it."""

    kind: str
    name: str
    """Its name in the journal."""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the record of it says: the question, the name of the signal, the id of the child."""
    timeout: float | None = None


@dataclasses.dataclass(slots=True, eq=False)
class _OpenWait:
    """A wait that is not over."""

    request: WaitRequest
    seq: int
    until: float
    reason: Reason
    key: str = ""
    address: Hashable = None
    """The address of its message; None for a wait that is for a time alone."""
    message: Message | None = None
    rule: Any = None
    """The rule of an approval, as its record has it."""
    over: bool = False
    future: asyncio.Future[None] | None = None


_WaitQueue = list[tuple[int, int, _OpenWait]]
_TIE_BREAKER = itertools.count()
"""Orders entries of a heap that are equal otherwise, by the order in which they came."""

_EMPTY: dict[Any, Any] = {}
"""The tables of a shift that waits for nothing."""


class Waits:
    """The waits of one shift."""

    _read_lock: asyncio.Lock | None = None
    _poller: asyncio.Task[None] | None = None
    _caught_up = False
    """Whether all messages that were there at the claim were read."""
    _stay_until = 0.0
    """Until when the task stays in memory although all of its lines wait."""
    _last_at_start = 0
    """The number of the last message that the journal had when the shift began."""
    may_get_branches = False
    """Whether code outside of the engine starts branches: another one may begin although all lines wait."""
    _resting_for_message = 0
    """How many of the resting waits wait for a message."""

    def __init__(
        self, services: WorkerServices, journal: ShiftJournal, task_id: str, messages: int, handler: str = ""
    ) -> None:
        self._services, self._journal, self._task_id, self._handler = services, journal, task_id, handler
        self._messages_at_claim = messages
        """How many messages the task had when it was claimed."""
        self.deadline = NEVER
        self.cut_at = NEVER
        """When the waits of an agent are cut off: it needs the rest of its time for its last answer."""
        self._queues: dict[Hashable, _WaitQueue] = _EMPTY
        """The open waits for each address, as heaps: the wait that began first gets the first message."""
        self._resting: dict[_OpenWait, None] = _EMPTY
        """The waits that wait in memory now."""
        self._due: list[tuple[float, int, _OpenWait]] | None = None
        """Those of them that end at a time, as a heap; some of them are over."""
        self._held: set[Hashable] = set()
        """The addresses whose messages are kept for a wait of an earlier shift that the replay has not come to again."""
        self._raises_seen: dict[str, int] = _EMPTY
        """The last message about a raised budget that each step has seen, by the key of the step."""
        self._reads_begun = 0
        """How many reads of the inbox were begun."""
        self.last_read: int | None = None
        """How many messages there were when the handler read them for the last time; None when it may complete with unread ones."""
        self._polled_at = 0
        """The number of the last record when `messages` last read the inbox."""
        self.active: int = 1
        """How many lines of the handler do not wait. When there are none, the task leaves."""

    async def wait(self, request: WaitRequest) -> Message | None:
        """Wait; returns the message that ended the wait, or None when the time was up first."""
        scope, journal = SCOPE.get(), self._journal
        if scope.key is not None:
            raise UsageError(
                f"the handler waits for {request.name!r} while step {scope.key!r} of the same task is still running; "
                "await one before the next (ctx.gather runs several at once)"
            )
        key = scope.prefix + scope.next_name(request.name)
        known = journal.next(scope, key, frozenset({request.kind}))
        if known is not None and request.kind in QUESTION_FIELDS:
            journal.run_check(
                journal.replay.check_question, known, wire.decode(wire.encode(request.data, "the question"))
            )
        if known is not None and known.over:
            message = known.data if "n" in known.data and not known.data.get("expired") else None
            return _raise_if_cut(request, message, cut="cut" in known.data)
        open_wait: _OpenWait | None = None
        cut = known is not None and "cut" in known.data
        try:
            if known is not None:  # it is in its queue before any other branch continues
                open_wait = self._open(request, key, known.seq, known.data.get("until", NEVER), known.data.get("rule"))
            await journal.ensure_may_continue()
            if open_wait is None:
                until = NEVER if request.timeout is None else self._services.now() + request.timeout
                cut = self.cut_at < until and request.kind != r.SLEEP
                until = self.cut_at if cut else until
                data = request.data | ({} if until == NEVER else {"until": until}) | ({"cut": True} if cut else {})
                data |= self._rule_for(request.kind, request.data)
                if request.kind in asks.ASKS:
                    data = asks.ordered(data)
                seq = journal.enqueue(request.kind, key, data)
                open_wait = self._open(request, key, seq, until, data.get("rule"))
            scope.key, scope.reported = key, True
            await self._wait_until_over(open_wait)
        finally:
            scope.key = None
            if open_wait is not None:
                self._close(open_wait)
        scope.resumed = False
        if request.kind == r.SLEEP:
            journal.enqueue(r.SLEPT, key, {})
            return None
        return _raise_if_cut(request, self._finish(open_wait), cut=cut)

    async def ask_again(self, approval: Record) -> dict[str, Any] | None:
        """Ask again for an approval of the task that this one is a fork of. Returns the decision, or None when the time was up."""
        journal, data, key = self._journal, dict(approval.value), f"{ASKED_AGAIN}approval {approval.seq}"
        known = journal.replay.asked_again.get(key)
        if known is not None and known.over:
            return known.data if "n" in known.data and not known.data.get("expired") else None
        if known is None:
            until = NEVER if "until" not in data else self._services.now() + data["until"] - approval.at
            data.pop("rule", None)  # the rules of today hold, and not those of the origin
            data |= ({} if until == NEVER else {"until": until}) | self._rule_for(r.APPROVAL, data)
            seq = journal.enqueue(r.APPROVAL, key, asks.ordered(data))
            open_wait = self._open(WaitRequest(r.APPROVAL, key, data), key, seq, until, data.get("rule"))
        else:
            until = known.data.get("until", NEVER)
            open_wait = self._open(WaitRequest(r.APPROVAL, key, data), key, known.seq, until, known.data.get("rule"))
        try:
            await self._wait_until_over(open_wait)
        finally:
            self._close(open_wait)
        return self._finish(open_wait)

    def _finish(self, open_wait: _OpenWait) -> Message | None:
        """The message that ended a wait, or None when its time was up; writes the record of the latter."""
        if open_wait.message is None:
            self._journal.enqueue(r.WAITED, open_wait.key, {"expired": True})
        if open_wait.message is None or open_wait.message["kind"] == "expired":
            return None
        return open_wait.message if open_wait.rule is None else open_wait.message | {"rule": open_wait.rule}

    def _rule_for(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """The field of the rule, for an approval that is asked for now and that a rule matches."""
        if kind != r.APPROVAL:
            return {}
        rule = first_match(self._services.approval_rules, self._handler, wire.decode(wire.encode(data, "the approval")))
        return {} if rule is None else {"rule": to_json(rule)}

    async def messages(self, *, last: bool) -> list[Any]:
        """The messages of people since the last call. Where there are none nothing is recorded: a replay that has no record in this
        place, but others after it, knows that there were none."""
        scope, journal = SCOPE.get(), self._journal
        if scope.key is not None:
            refuse_overlap("messages", scope.key)
        replay, key = journal.replay, scope.prefix + scope.next_name("messages")
        known = replay.peek(key)
        if known is not None and known.key == key:
            messages = journal.next(scope, key, frozenset({r.HEARD})).data["messages"]  # type: ignore[union-attr]
        elif journal.ended_by is not None:
            raise journal.ended_by
        elif replay.unread_ahead(scope.path):
            return []
        else:
            messages = await self._take_spoken(key, last=last)
        return [message["value"] for message in messages]

    async def _take_spoken(self, key: str, *, last: bool) -> list[Message]:
        """Take the messages of people. Between the look at the mail and the record there is no await: another branch asks as well."""
        await self.poll_inbox()
        journal, mail = self._journal, self._journal.replay.mail
        if any(mail.first(address) for address in SPOKEN):
            await journal.ensure_may_continue()
        messages = mail.take_all(*SPOKEN)
        if messages:
            journal.enqueue(r.HEARD, key, {"n": [message["n"] for message in messages]})
        self.last_read = mail.last if last and not messages else None
        self._polled_at = journal.hold.seq
        return messages

    async def pause(self, until: float, reason: Reason) -> None:
        """Wait inside a step: between two attempts, or until it may begin. A message about a raised budget ends all waits for budget,
        and one that arrived since the step asked last ends this wait at once."""
        open_wait = _OpenWait(WaitRequest(r.STEP_WAITS if reason in HEARS else r.SLEEP, "pause"), 0, until, reason)
        if reason not in HEARS:
            await self._wait_until_over(open_wait)
            return
        key = SCOPE.get().key or ""
        last_raise = self._journal.replay.mail.last_raise
        if last_raise <= max(self._messages_at_claim, self._raises_seen.get(key, 0)):  # older ones came before
            open_wait.address = BUDGET
            self._enqueue(open_wait)
            try:
                await self._wait_until_over(open_wait)
            finally:
                self._close(open_wait)
        self._raises_seen = {} if self._raises_seen is _EMPTY else self._raises_seen
        self._raises_seen[key] = self._journal.replay.mail.last_raise

    async def until_called(self, seq: int, until: float, calls: int) -> None:
        """Wait until a message says that a lock may be free, or until that time. `calls` is the number of the last such message before
        the caller tried to take its lock: with a newer one it need not wait."""
        if self._journal.replay.mail.last_call > calls:
            return
        open_wait = _OpenWait(WaitRequest(r.LOCK_AWAITED, "lock"), seq, until, Reason.LOCK, address=LOCK)
        self._enqueue(open_wait)
        try:
            await self._wait_until_over(open_wait)
        finally:
            self._close(open_wait)

    # ── which wait gets which message ───────────────────────────────────────────────────────────────────────────

    def _open(self, request: WaitRequest, key: str, seq: int, until: float, rule: Any = None) -> _OpenWait:
        open_wait = _OpenWait(request, seq, until, REASONS[request.kind], key, _address(request, seq), rule=rule)
        if open_wait.address is not None:
            self._enqueue(open_wait)
        return open_wait

    def _enqueue(self, open_wait: _OpenWait) -> None:
        """Put a wait into the queue for its address."""
        self._queues = {} if self._queues is _EMPTY else self._queues
        heapq.heappush(self._queues.setdefault(open_wait.address, []), (open_wait.seq, next(_TIE_BREAKER), open_wait))

    def _close(self, open_wait: _OpenWait) -> None:
        """End a wait. It leaves its queue at once when it is the first, and otherwise when it becomes the first."""
        open_wait.over = True
        queue = self._queues.get(open_wait.address)
        while queue and queue[0][2].over:
            heapq.heappop(queue)
        if queue is not None and not queue:
            self._queues.pop(open_wait.address, None)

    def _deliver(self, address: Hashable, *, hold: bool = True) -> None:
        """Give the messages at an address to its open waits, in the order in which they began. The record of it is written here, so a
        crash leaves no message between two waits. A replay may come to a later wait first: with `hold`, the message is kept for the
        earlier one for a moment, until `_deliver_held`."""
        mail = self._journal.replay.mail
        while (queue := self._queues.get(address)) and (message := mail.first(address)) is not None:
            open_wait = queue[0][2]
            if hold and self._is_too_early(open_wait):
                self._held.add(address)
                return
            ending = {"expired": True} if message["kind"] == "expired" else {"n": message["n"]}
            self._journal.enqueue(r.WAITED, open_wait.key, ending)
            if open_wait.request.kind != r.CHILD:  # the handler may ask for the result of an ended child again
                mail.take(message["n"])
            open_wait.message = message
            self._close(open_wait)
            self._wake(open_wait)

    def _is_too_early(self, open_wait: _OpenWait) -> bool:
        request = open_wait.request
        return request.kind == r.SIGNAL and self._journal.replay.waits_before(request.data["signal"], open_wait.seq)

    def _deliver_held(self) -> bool:
        """Give messages that were kept for earlier waits to those that are there: the branch of an earlier wait may never come back.
        Returns whether there were addresses with such messages."""
        held, self._held = self._held, set()
        for address in held:
            self._deliver(address, hold=False)
        return bool(held)

    def _end_all(self, address: Hashable) -> None:
        """Wake all waits at an address: the steps that wait for budget when it was raised, the waits for locks when one may be free."""
        for _, _, open_wait in self._queues.pop(address, []):
            open_wait.over = True
            self._wake(open_wait)

    # ── reading the inbox ────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> bool:
        """Begin with the messages that the journal has; True when there were more at the claim, which the shift has to read first."""
        self._last_at_start = self._journal.replay.mail.last
        return self._last_at_start < self._messages_at_claim

    async def read_claimed_messages(self) -> bool:
        """Copy the messages that were there at the claim into the journal; True when the caller should look again."""
        if self._caught_up or self._journal.replay.mail.last >= self._messages_at_claim:
            return False
        return await self.poll_inbox()

    async def poll_inbox(self) -> bool:
        """Copy all new messages into the journal; True when there were some, or another branch copied them. One branch reads at a time:
        two at once would each record the same messages."""
        begun = self._reads_begun
        self._read_lock = self._read_lock or asyncio.Lock()
        async with self._read_lock:
            if self._reads_begun > begun:  # that read began after this call, so it has seen all messages there were
                return True
            self._reads_begun += 1
            return await self._read_inbox()

    async def _read_inbox(self) -> bool:
        journal, before = self._journal, self._journal.replay.mail.last
        more = True
        while more:
            page = await journal.retry_store(
                lambda: self._services.store.inbox(self._task_id, journal.replay.mail.last, INBOX_PAGE_SIZE)
            )
            if journal.transacting:  # the next number belongs to the transaction; the next poll reads the messages
                break
            for message in page:
                self._copy_to_journal(message)
            more = len(page) == INBOX_PAGE_SIZE
            if more:  # do not read faster than the writer writes
                await journal.flush()
        self._caught_up = self._caught_up or not more
        return journal.replay.mail.last > before

    def _copy_to_journal(self, message: InboxMessage) -> None:
        record = {"n": message.number, "kind": message.kind, "name": message.name, "ref": message.ref}
        record |= {"value": wire.decode(message.data)}
        self._journal.enqueue(r.MESSAGE, "", record)
        self._journal.replay.receive(record)
        self._stay_until = self._services.clock.monotonic() + self._replay_seconds()
        if self._queues:
            if message.kind in {BUDGET, LOCK}:
                self._end_all(message.kind)
            else:
                self._deliver(address_of(record))

    async def patches(self, *, poll: bool = True) -> list[Any]:
        """The patches of others to the agent's state that were not taken yet. Each is recorded here, under the number of its message, so
        that a replay takes it in the same place. Only where the journal has no more records may there be a new one."""
        journal, replay, path = self._journal, self._journal.replay, SCOPE.get().path
        taken: list[Any] = []
        while (known := replay.peek(SCOPE.get().prefix)) is not None and known.kind == r.PATCHED and "n" in known.data:
            taken.append(await journal.note(r.PATCHED, "sent", {}))
        if known is not None or replay.unread_ahead(path) or not poll:
            return taken
        if self._polled_at != journal.hold.seq:  # else the handler polled right before, and nothing was recorded since
            await self.poll_inbox()
        self._polled_at = 0
        for message in replay.mail.take_all(PATCH):
            taken.append(await journal.note(r.PATCHED, "sent", {**message["value"], "n": message["n"]}))
        return taken

    # ── waiting in memory ────────────────────────────────────────────────────────────────────────────────────────

    async def _wait_until_over(self, open_wait: _OpenWait) -> None:
        """Return when the wait has its message, or its time is up."""
        if open_wait.address is not None:
            self._deliver(open_wait.address)
        while not open_wait.over:
            if open_wait.until <= self._services.now():
                if self._deliver_held():
                    continue
                if open_wait.request.kind not in asks.ASKS:
                    return
                await self._expire(open_wait)
            elif not await self.read_claimed_messages() and not open_wait.over:
                await self._rest_until_due(open_wait)

    async def _expire(self, open_wait: _OpenWait) -> None:
        """End a question whose time is up. The inbox decides between that and an answer that arrives at this moment."""
        # A caller may have sent a signal with any id, so this one cannot be guessed.
        message_id = f"expired {open_wait.seq} {self._services.rng.getrandbits(64):x}"
        expired = InboxMessage(message_id, "expired", "", open_wait.seq, b"null")
        await self._journal.retry_store(lambda: self._services.store.send(self._task_id, expired))
        await self.poll_inbox()

    async def _rest_until_due(self, open_wait: _OpenWait) -> None:
        left = open_wait.until - self._services.now()
        if self.active == 1 and open_wait.request.kind == r.SLEEP and left <= MAX_SLEEP_IN_MEMORY_S:
            await self._services.clock.sleep(left)
            return
        self._resting = {} if self._resting is _EMPTY else self._resting
        self._resting[open_wait] = None
        self._resting_for_message += open_wait.request.kind != r.SLEEP
        self.active -= 1
        try:
            if self.active == 0:
                self._all_lines_wait()
            if not open_wait.over:
                await self._wait_in_memory(open_wait, left)
        finally:
            self._mark_active(open_wait)
            open_wait.future = None

    def _mark_active(self, open_wait: _OpenWait) -> None:
        """Count a wait as active from the moment when its end is known. Its branch continues later, and a task whose other branches
        wait must not leave before."""
        if open_wait in self._resting:
            del self._resting[open_wait]
            self._resting_for_message -= open_wait.request.kind != r.SLEEP
            self.active += 1

    def _wake(self, open_wait: _OpenWait) -> None:
        self._mark_active(open_wait)
        if open_wait.future is not None and not open_wait.future.done():
            open_wait.future.set_result(None)

    def _all_lines_wait(self) -> None:
        """All lines of the handler wait: the task leaves. Where a replay would take long and messages arrive, it stays in memory for
        that long first, and so does not come back for each of them. With named branches it stays for a moment: the framework
        that starts them may be about to start the next one."""
        if self._deliver_held() and self.active:
            return
        if self._replay_seconds() <= POLL_INTERVAL_S and not self.may_get_branches:
            self.suspend()
        self._stay_until = self._services.clock.monotonic() + self._replay_seconds()
        if self._poller is None:
            self._poller = spawn(self._poll_while_resting(), "onward-waits")

    def _replay_seconds(self) -> float:
        """About how many seconds a replay would take, for a task that gets messages; 0 for one that got none in this shift."""
        journal = self._journal
        if journal.replay.mail.last == self._last_at_start:
            return 0.0
        return (journal.hold.seq - journal.replay.checkpoint_seq) * REPLAY_S_PER_RECORD

    def suspend(self) -> None:
        """Give the slot back. A task that gets messages and has a long replay stays away for that long."""
        journal, mail = self._journal, self._journal.replay.mail
        due = min(itertools.chain((open_wait.until for open_wait in self._resting), (self.deadline,)))
        if (replay_s := self._replay_seconds()) > POLL_INTERVAL_S:
            suspend = journal.end(Suspend(min(due, self._services.now() + replay_s), Reason.ASLEEP))
        else:
            reason = min({open_wait.reason for open_wait in self._resting}, key=_REASON_PRIORITY.index)
            suspend = journal.end(Suspend(due, reason, mail.last))
        self._fail_resting(suspend)
        raise suspend

    def _fail_resting(self, error: BaseException) -> None:
        for open_wait in self._resting:
            if open_wait.future is not None and not open_wait.future.done():
                open_wait.future.set_exception(error)
                open_wait.future.exception()  # marks it as seen: a branch that is cancelled in this turn does not read it

    async def _wait_in_memory(self, open_wait: _OpenWait, left: float) -> None:
        """Wait while another branch works, until the polling task has a message. A wait that ends soon measures its time here."""
        open_wait.future = asyncio.get_running_loop().create_future()
        if left > POLL_INTERVAL_S:
            self._ensure_polled(open_wait)
            await open_wait.future
            return
        pause = asyncio.ensure_future(self._services.clock.sleep(left))
        if open_wait.request.kind != r.SLEEP:
            self._ensure_polled(open_wait)
        try:
            await asyncio.wait({open_wait.future, pause}, return_when=asyncio.FIRST_COMPLETED)
            if open_wait.future.done():
                open_wait.future.result()
        finally:
            pause.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                open_wait.future.cancel()

    def _ensure_polled(self, open_wait: _OpenWait) -> None:
        if open_wait.until < NEVER:
            self._due = self._due or []
            heapq.heappush(self._due, (open_wait.until, next(_TIE_BREAKER), open_wait))
        if self._poller is None:
            self._poller = spawn(self._poll_while_resting(), "onward-waits")

    async def _poll_while_resting(self) -> None:
        """Read the inbox, and check the time, for all waits in memory: one read however many they are."""
        try:
            while self._resting:
                await self._services.clock.sleep(POLL_INTERVAL_S)
                if self._resting_for_message:
                    await self.poll_inbox()
                    self._deliver_held()
                while self._due and self._due[0][0] <= self._services.now() + POLL_INTERVAL_S:
                    self._wake(heapq.heappop(self._due)[2])
                if self.active == 0 and (
                    self._journal.interruption or self._services.clock.monotonic() >= self._stay_until
                ):
                    self.suspend()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the waits raise it
            self._fail_resting(error)
        finally:
            self._poller = None

    def close(self) -> None:
        """Stop polling: the shift is over."""
        if self._poller is not None:
            self._poller.cancel()

    def branch_ended(self) -> None:
        """Count a branch that has ended; when all others wait, the task leaves."""
        self.active -= 1
        if self.active == 0 and self._resting:
            with contextlib.suppress(Control):  # the resting waits raise it
                self._all_lines_wait()


def _address(request: WaitRequest, seq: int) -> Hashable:
    """The address of the message that ends a wait."""
    match request.kind:
        case r.SIGNAL:
            return "signal", request.data["signal"]
        case r.CHILD:
            return "child", request.data["child"]
        case r.SLEEP:
            return None
        case _:
            return seq


def _raise_if_cut(request: WaitRequest, message: dict[str, Any] | None, *, cut: bool) -> dict[str, Any] | None:
    """The message that ended a wait. Raises TimeUp when the wait was cut off for the agent's last answer."""
    if message is None and cut:
        raise TimeUp(f"the wait for {request.name!r} was cut off")
    return message
