"""Sends messages to tasks: signals, answers, decisions, verdicts on effects in doubt. A part of the service.

Every message goes into the task's inbox. Of several answers to one question the first counts; the callers with the others get an error.
A question that its task no longer waits for takes no answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from onward.core import approval, wire
from onward.core import record as r
from onward.core.approval import ApprovalRule
from onward.core.audit import AuditEvent
from onward.core.caller import ANONYMOUS, Caller
from onward.core.doubts import Doubt, InDoubt, RestoredTask, TaskDoubt
from onward.core.ids import Ids
from onward.core.task import OWN_ID_PREFIX, SAID, Message, State, Task
from onward.core.view_json import to_json
from onward.core.views import Ask, Decided
from onward.errors import (
    AlreadyDecided,
    AskExpired,
    BadSetting,
    InvalidInput,
    NotApprover,
    StaleDecision,
    StateConflict,
    TaskNotFound,
    UsageError,
    Withdrawn,
)
from onward.service.asks import Asks
from onward.service.engine import Engine
from onward.service.forks import own_input
from onward.service.votes import Votes
from onward.store.port.core import Sent, Store
from onward.store.port.paging import journal_pages

VERDICTS = ("happened", "not_happened", "nothing_happened", "undo")

MAX_MESSAGE_CHARS = 64_000
"""Characters of one message: an agent shows all of it to its model."""

CheckCall = Callable[[str, str, dict[str, Any]], object]
"""Checks the arguments of a tool call: the name of the agent, the name of the tool, the arguments. Raises InvalidInput."""


class Messages:
    """Sends messages to tasks."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        ids: Ids,
        check_call: CheckCall,
        is_agent: Callable[[str], Awaitable[bool]],
        asks: Asks,
        votes: Votes,
    ) -> None:
        self._store, self._engine, self._ids = store, engine, ids
        self._check_call, self._is_agent = check_call, is_agent
        self._asks, self._votes = asks, votes

    async def signal(
        self,
        task_id: str,
        name: str,
        value: Any = None,
        *,
        id: str | None = None,  # noqa: A002 -- as in every interface
        asker: str | None = None,
    ) -> None:
        """Send a signal. With `id`, the same signal sent twice counts once. `asker`, here and below, is the principal that sends it:
        approval rules keep it from deciding on what the task does then."""
        data = wire.encode(value, f"the value of signal {name!r}")
        await self._send(task_id, Message(message_id(id) or self._ids(), "signal", name, None, data), asker=asker)

    async def message(
        self,
        task_id: str,
        text: str,
        *,
        id: str | None = None,  # noqa: A002 -- as for a signal
        asker: str | None = None,
    ) -> None:
        """Send a message of a person to a task; see `Onward.message`."""
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput("a message is a string that is not blank")
        if len(text) > MAX_MESSAGE_CHARS:
            raise InvalidInput(
                f"a message has at most {MAX_MESSAGE_CHARS:,} characters, and this one {len(text):,}; leave long content elsewhere, and "
                "say where"
            )
        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        agent = await self._is_agent(task.task)
        message = Message(
            message_id(id) or self._ids(), SAID if agent else "signal", SAID, None, wire.encode(text, "the message")
        )
        if task.ended or (await self._engine.send(task_id, message, asker=asker)).number is None:
            task = await self._store.get(task_id) or task
            raise StateConflict(task_id, task.state, "told anything", _advice(task, agent))
        if not agent:
            self._store.nudge("ready", [task_id])

    async def answer(self, question_id: str, answer: Any, *, caller: Caller) -> Decided:
        """Answer a question. Raises AlreadyDecided when it was answered before, and AskExpired when it has expired. The store writes the
        audit event, here and below, in the transaction that writes the message."""
        ask, task = await self._asks.with_task(question_id)
        if ask.kind != "question":
            raise UsageError(f"{question_id} is an approval; `onward approve` and `onward deny` decide it")
        if ask.choices and answer not in ask.choices:
            raise InvalidInput(f"question {question_id} takes one of {', '.join(ask.choices)}, and not {answer!r:.80}")
        event = audit_event(caller, "answer", ask.id, task.tenant, answer=wire.fingerprint(answer, "the answer"))
        await self._reply(ask, "answer", answer, f"question {question_id}", event, asker_of(caller))
        return Decided(ask.id, ask.task_id, True)

    async def decide(
        self,
        approval_id: str,
        decision: str,
        *,
        caller: Caller,
        by: str | None = None,
        reason: str = "",
        arguments: dict[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,  # noqa: A002 -- as in HTTP
        digest: str | None = None,
    ) -> Decided:
        """Approve or deny; see `Onward.decide`. The record names the caller, or `by` in its place. Where the approval has a rule, the
        decision is a vote. Raises NotApprover when the rule does not let this caller decide."""
        if decision not in {"approve", "deny"}:
            raise BadSetting("decision", decision, "'approve' or 'deny'")
        ask, task = await self._asks.with_task(approval_id)
        what = f"approval {approval_id}"
        if ask.kind != "approval":
            raise UsageError(f"{approval_id} is a question; `onward answer` answers it")
        if hash is not None and hash != ask.hash:
            raise StaleDecision(what, str(ask.hash), hash)
        if digest is not None and digest != ask.digest:
            raise StaleDecision(what, str(ask.digest), digest, "digest")
        if ask.rule is not None:
            try:
                await self._votes.check(ask, ask.rule, caller, arguments, always)
            except NotApprover:
                if any(vote.voter == caller.principal for vote in (await self._votes.read([ask]))[0].votes):
                    await self._check_open(ask, what)  # its own denial decided it, and made it an asker
                raise
        if arguments is not None or always:
            self._check_changes(ask, decision, arguments)
        who = (caller.name or ANONYMOUS) if by is None else by
        fields = {"decision": decision, "reason": reason, "by": who, "always": always}
        payload = {name: value for name, value in fields.items() if value}
        changes = {} if arguments is None else {"arguments": arguments}
        shown = shown_and_decided(ask, arguments, named=hash is not None or digest is not None)
        changed = None if arguments is None else wire.fingerprint(arguments, "the arguments")
        event = audit_event(caller, decision, ask.id, task.tenant, **shown, arguments=changed, always=always)
        if ask.rule is not None:
            return await self._vote(ask, ask.rule, caller, payload | shown | changes, event)
        await self._reply(ask, "decision", payload | shown | changes, what, event, steers(caller, payload))
        if always:
            await self._approve_others(ask, payload, event)
        return Decided(ask.id, ask.task_id, True)

    async def _vote(
        self, ask: Ask, rule: ApprovalRule, caller: Caller, value: dict[str, Any], event: AuditEvent
    ) -> Decided:
        what = f"approval {ask.id}"
        await self._check_open(ask, what)
        voted, votes = await self._votes.cast(ask, rule, caller, value, event, steers(caller, value))
        if not voted.open:
            await self._raise_ended(ask.task_id)
        if voted.there is not None:
            raise _decided(what, voted.there)
        self._store.nudge("ready", [ask.task_id])
        decided = voted.counted is not None and voted.counted.decision is not None
        return Decided(ask.id, ask.task_id, decided, approval.approving(votes), rule.votes)

    def _check_changes(self, ask: Ask, decision: str, arguments: dict[str, Any] | None) -> None:
        if decision != "approve":
            raise UsageError("a call that is denied has no other arguments, and no 'always'; give a reason instead")
        if ask.tool is None:
            raise UsageError(
                f"approval {ask.id} is for no tool call of an agent, so it has no arguments to change, and no 'always'; "
                "approve it as it is, or deny it with a reason"
            )
        if arguments is not None:
            if not isinstance(arguments, dict):
                raise InvalidInput(f"the arguments of {ask.tool!r} are an object, not {type(arguments).__name__}")
            self._check_call(ask.task, ask.tool, wire.decode(wire.encode(arguments, "the changed arguments")))

    async def _approve_others(self, ask: Ask, payload: dict[str, Any], event: AuditEvent | None) -> None:
        """'Always' also approves the other open calls of the same tool in the same task, each with a message of its own, but none that
        has a rule. Where another caller decides one of them first, that decision counts."""
        async for other in self._open_approvals(ask.task_id):
            if other.seq != ask.seq and other.tool == ask.tool and other.rule is None:
                through = {**shown_and_decided(other), "through": ask.id}
                message = Message(self._ids(), "decision", "", other.seq, wire.encode(payload | through, "the answer"))
                also = event and event._replace(subject=other.id, data=through)
                await self._engine.send(ask.task_id, message, also)
        self._store.nudge("ready", [ask.task_id])

    async def _open_approvals(self, task_id: str) -> AsyncIterator[Ask]:
        """The open approvals of a task, each in full."""
        cursor: str | None = f"{task_id}.0"
        while cursor is not None:
            page = await self._asks.of_one(task_id, "approval", cursor)
            for ask in page:
                yield ask if not ask.left_out else (await self._asks.with_task(ask.id))[0]
            cursor = page.next

    async def _reply(
        self, ask: Ask, kind: str, value: Any, what: str, event: AuditEvent, asker: str | None = None
    ) -> None:
        """Answer a question or an approval that is still open."""
        await self._check_open(ask, what)
        message = Message(self._ids(), kind, "", ask.seq, wire.encode(value, "the answer"))
        sent = await self._send(ask.task_id, message, event, asker)
        if not sent.first and sent.there is not None:
            raise _decided(what, sent.there)

    async def _check_open(self, ask: Ask, what: str) -> None:
        """Raises why a question or an approval is not open."""
        now = await self._store.listing.is_open(ask.task_id, ask.seq)
        if now is None:
            await self._raise_closed(ask, what)
        elif ask.expires_at is not None and now >= ask.expires_at:
            raise AskExpired(what)

    async def _raise_closed(self, ask: Ask, what: str) -> None:
        """Raises why it is not open: it was decided, its task has ended, or its task no longer waits for it."""
        if (message := await self._store.listing.reply(ask.task_id, ask.seq)) is not None:
            raise _decided(what, message)
        task = await self._store.get(ask.task_id)
        if task is not None and task.ended:
            raise StateConflict(ask.task_id, task.state, "told anything", "it has ended")
        raise Withdrawn(what, ask.task_id)

    async def doubts(self, task_id: str) -> list[Doubt]:
        """The effects of a task that are in doubt. Raises TaskNotFound."""
        announced: dict[str, int] = {}
        doubts: dict[str, Doubt] = {}
        empty = True
        async for page in journal_pages(self._store.journal, task_id):
            empty = False
            for record in page:
                if record.kind == r.ANNOUNCED:
                    announced[record.key] = record.seq
                elif record.kind in {r.STEP_DONE, r.STEP_FAILED}:
                    announced.pop(record.key, None)
                    doubts.pop(record.key, None)
                elif record.kind == r.FORKED:  # doubts of the origin are resolved there
                    announced.clear()
                    doubts.clear()
                elif record.kind == r.DOUBTED and record.value["step"] in announced:
                    step = record.value["step"]
                    doubts[step] = Doubt(task_id, announced[step], step, record.value["reason"])
        if empty:
            raise TaskNotFound(task_id)
        answered = await self._store.listing.replied(task_id, [doubt.seq for doubt in doubts.values()])
        return [doubt for doubt in doubts.values() if doubt.seq not in answered]

    async def in_doubt(self, limit: int, after: str = "") -> InDoubt:
        """Effects in doubt of all tasks, and unfinished tasks that the last restore took back: those of the tasks after an id, about `limit`
        of each. A page has everything of its tasks."""
        doubts: list[TaskDoubt] = []
        ends: list[str] = []
        last = after
        for task_id, task in await self._store.listing.doubts(limit + 1, after):
            if len(doubts) >= limit:
                ends.append(last)
                break
            doubts += [
                TaskDoubt(doubt.task_id, doubt.seq, doubt.step, doubt.reason, task)
                for doubt in await self.doubts(task_id)
            ]
            last = task_id
        restored = await self._restored(limit + 1, after)
        if len(restored) > limit:
            ends.append(restored[limit - 1].task_id)
        if not ends:
            return InDoubt(tuple(doubts), tuple(restored))
        end = min(ends)
        return InDoubt(
            tuple(doubt for doubt in doubts if doubt.task_id <= end),
            tuple(task for task in restored if task.task_id <= end),
            end,
        )

    async def _restored(self, limit: int, after: str) -> list[RestoredTask]:
        if self._store.epoch.restored_at is None:
            return []
        page = await self._store.listing.lost_tasks(after, limit)
        return [RestoredTask(id_, task, "running" if worker else reason) for id_, task, reason, worker in page]

    async def resolve(
        self,
        task_id: str,
        verdict: str,
        result: Any = None,
        *,
        step: str | None = None,
        caller: Caller,
    ) -> None:
        """Resolve an effect in doubt: it happened (with this result), it did not happen, or it is to be undone. For a task that has ended,
        the first two are only recorded; the third starts a task that undoes the effect."""
        if verdict not in VERDICTS:
            raise BadSetting("verdict", verdict, f"one of {', '.join(VERDICTS)}")
        doubts = [doubt for doubt in await self.doubts(task_id) if step in (None, doubt.step)]
        task = await self._store.get(task_id, None, 0)
        if not doubts:
            state = task.state if task else "unknown"
            raise StateConflict(task_id, state, "resolved", f"no effect {step or ''}".rstrip() + " of it is in doubt")
        if len(doubts) > 1:
            names = ", ".join(doubt.step for doubt in doubts)
            raise UsageError(f"several effects of task {task_id} are in doubt ({names}); say which, with step=")
        message = Message(self._ids(), "resolve", verdict, doubts[0].seq, wire.encode(result, "the result"))
        event = audit_event(
            caller, "resolve", task_id, None if task is None else task.tenant, verdict=verdict, step=step
        )
        sent = await self._engine.send(task_id, message, event, asker_of(caller))
        if sent.number is None:
            sent = await self._resolve_ended(task_id, message, event)
        self._store.nudge("ready")
        if not sent.first and sent.there is not None:
            raise AlreadyDecided(f"the effect {doubts[0].step!r} of task {task_id}", sent.there.name)

    async def _resolve_ended(self, task_id: str, message: Message, event: AuditEvent | None) -> Sent:
        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        undo = self._ids() if message.name == "undo" else None
        data = b"" if undo is None else wire.encode(own_input(task), f"the input of task {task.task!r}")
        sent = await self._engine.resolve_ended(task_id, message, event, undo=undo, input=data)
        if sent.number is None:
            raise StateConflict(task_id, task.state, "told anything", "it was just resumed; ask again")
        return sent

    async def _send(
        self, task_id: str, message: Message, event: AuditEvent | None = None, asker: str | None = None
    ) -> Sent:
        sent = await self._engine.send(task_id, message, event, asker)
        if sent.number is None:
            await self._raise_ended(task_id)
        self._store.nudge("ready", [task_id])
        return sent

    async def _raise_ended(self, task_id: str) -> None:
        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        raise StateConflict(task_id, task.state, "told anything", "it has ended")


def message_id(given: str | None) -> str | None:
    """The id that a caller gives to a message. Raises UsageError for one that only Onward itself gives."""
    if given is not None and given.startswith(OWN_ID_PREFIX):
        raise UsageError(f"ids of messages that begin with {OWN_ID_PREFIX!r} are Onward's own; give another id")
    return given


def steers(caller: Caller, decision: Mapping[str, Any]) -> str | None:
    """The principal of a caller that denies with a reason: the agent reads the reason, and may ask for what it says."""
    return asker_of(caller) if decision["decision"] == approval.DENY and decision.get("reason") else None


def asker_of(caller: Caller) -> str | None:
    """The principal of a caller that asks for something; None for a program that uses Onward in Python, which is no person."""
    return None if caller.in_python else caller.principal


def audit_event(caller: Caller, action: str, subject: str, tenant: str | None, **data: Any) -> AuditEvent:
    """The audit event of an action of this caller; data that is None or False is left out."""
    details = {name: value for name, value in data.items() if value is not None and value is not False}
    return AuditEvent(action, subject, tenant, caller.id, caller.name, details)


def shown_and_decided(
    ask: Ask, arguments: dict[str, Any] | None = None, *, named: bool = False
) -> dict[str, str | bool | None]:
    """The part of the record of a decision that says what it is for: the hash and the digest of the approval, whether the caller `named`
    one of them, and with changed arguments the digest of what was `decided` instead."""
    fields: dict[str, str | bool | None] = {"hash": ask.hash, "digest": ask.digest}
    if named:
        fields["named"] = True
    if isinstance(arguments, dict) and ask.tool is not None:
        payload = {"what": ask.text, "risk": ask.risk, "data": ask.data, "rule": ask.rule and to_json(ask.rule)}
        recorded = wire.decode(wire.encode(arguments, "the changed arguments"))  # without values of secrets
        fields["decided"] = approval.digest_with(ask.id, ask.task, payload, recorded)
    return fields


def _decided(what: str, message: Message) -> AlreadyDecided:
    if message.kind == "expired":
        return AskExpired(what)
    value = wire.decode(message.data)
    return AlreadyDecided(what, str(value["decision"] if isinstance(value, dict) and "decision" in value else value))


def _advice(task: Task, agent: bool) -> str:
    """The advice for a message that comes after the end of its task."""
    if task.state is State.FAILED:
        return "it has ended; `onward resume` lets it go on, and then it can be told"
    again = f"submit(…, after={task.task_id!r}) goes on where it ended" if agent else "submit it anew"
    return f"it has ended; {again}"
