"""What people and programs say to a task: signals, answers, decisions, a word on an effect in doubt.

A part of the service. Everything goes into the task's inbox; of several answers to one question the first
counts, and the others are told so. What nobody waits for any more takes no answer.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.audit import AuditEvent
from onward.core.ids import Ids
from onward.core.task import SAID, Message, Reason, State, Task
from onward.errors import (
    AlreadyDecided,
    AskExpired,
    BadSetting,
    InvalidInput,
    NotFound,
    StaleDecision,
    StateConflict,
    TaskNotFound,
    UsageError,
    Withdrawn,
)
from onward.store.port import listing as port
from onward.store.port.core import Sent, Store

VERDICTS = ("happened", "not_happened", "undo")

MOST_BELOW = 100
"""Tasks below one that are looked at for what they ask of people."""
MOST_SAID = 64_000
"""Characters of one message: an agent's model is shown all of it."""

_AN_ID = re.compile(r"[!-~]+\.[0-9]{1,15}")
"""What can be looked up without an error of the database."""

CheckCall = Callable[[str, str, dict[str, Any]], object]
"""Whether arguments fit a tool of an agent: the task's name, the tool's, the arguments. Raises InvalidInput."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A question or an approval that waits for a person. Its id is that of the task and the number of its record."""

    id: str
    task_id: str
    task: str
    kind: str
    """"question" or "approval"."""
    text: str
    asked_at: float
    expires_at: float | None
    risk: str | None = None
    data: Any = None
    choices: tuple[str, ...] = ()
    default: str | None = None
    """What holds when nobody decides until it expires: "approve" or "deny"."""
    hash: str | None = None
    """Of the task, the record and all that is asked in it: a decision is for this and for nothing else."""

    @property
    def seq(self) -> int:
        """The number of its record."""
        return int(self.id.rpartition(".")[2])

    @property
    def tool(self) -> str | None:
        """The tool that an agent wants to call, where this is about one."""
        return str(self.data["tool"]) if _about_a_call(self.data) else None

    @property
    def arguments(self) -> dict[str, Any] | None:
        """What the agent wants to call it with."""
        return dict(self.data["arguments"]) if _about_a_call(self.data) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Doubt:
    """An effect of which nobody knows whether it happened."""

    task_id: str
    seq: int
    step: str
    reason: str


class Messages:
    """All verbs that end in an inbox."""

    def __init__(
        self, store: Store, ids: Ids, check_call: CheckCall, is_agent: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._store, self._ids, self._check_call, self._is_agent = store, ids, check_call, is_agent

    async def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: A002
        """Send a signal. With `id`, the same signal sent twice is one."""
        data = wire.encode(value, f"the value of signal {name!r}")
        await self._send(task_id, Message(id or self._ids(), "signal", name, None, data))

    async def message(self, task_id: str, text: str, *, id: str | None = None) -> None:  # noqa: A002
        """Say something to a task; see `Onward.message`."""
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput("a message is a text with something in it")
        if len(text) > MOST_SAID:
            raise InvalidInput(
                f"a message has at most {MOST_SAID:,} characters, and this one {len(text):,}; leave what is long elsewhere, and "
                "say where"
            )
        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        agent = await self._is_agent(task.task)
        message = Message(id or self._ids(), SAID if agent else "signal", SAID, None, wire.encode(text, "the message"))
        if task.ended or (await self._store.send(task_id, message)).number is None:
            task = await self._store.get(task_id) or task
            raise StateConflict(task_id, task.state, "told anything", _then(task, agent))
        if not agent:
            self._store.nudge("ready", [task_id])

    async def asks(self, kind: str | None = None, whose: str | None = None) -> list[Ask]:
        """What waits for people, the oldest first; `whose` as for `Service.get`."""
        found = _still_open(await self._store.listing.asks(whose=whose))
        return [ask for ask in found if kind in (None, ask.kind)]

    async def asks_of(self, task: Task) -> list[Ask]:
        """What a task asks of people, and, where it waits for its children, what those below it ask."""
        found, line, left = _still_open(await self._store.listing.asks(task.task_id)), [task], MOST_BELOW
        while line and left > 0:
            one = line.pop()
            if one.reason != Reason.CHILD:
                continue
            for child_id in (await self._store.children(one.task_id))[:left]:
                left -= 1
                found += _still_open(await self._store.listing.asks(child_id))
                line += [child] if (child := await self._store.get(child_id)) is not None else []
        return found

    async def ask(self, ask_id: str, whose: str | None = None) -> Ask:
        """One of them, answered or not. Raises NotFound, also where its task is not of this tenant."""
        task_id, _, seq = ask_id.rpartition(".") if _AN_ID.fullmatch(ask_id) else ("", "", "")
        task = await self._store.get(task_id, whose) if task_id else None
        records = await self._store.journal(task_id, int(seq) - 1, 1) if task is not None else []
        if task is None or not records or records[0].kind not in {r.QUESTION, r.APPROVAL}:
            raise NotFound(
                f"there is no question or approval {ask_id!r}; `onward approvals` and `onward questions` list them"
            )
        return _ask(task_id, task.task, int(seq), records[0].kind, records[0].value, records[0].at)

    async def answer(self, question_id: str, answer: Any, *, deed: AuditEvent | None = None) -> None:
        """Answer a question. Raises AlreadyDecided when somebody, or the time, was quicker. The deed, here and below, is
        written down with what counts, in one transaction."""
        ask = await self.ask(question_id)
        if ask.kind != "question":
            raise UsageError(f"{question_id} is an approval; `onward approve` and `onward deny` decide it")
        if ask.choices and answer not in ask.choices:
            raise InvalidInput(f"question {question_id} takes one of {', '.join(ask.choices)}, and not {answer!r:.80}")
        await self._reply(ask, "answer", answer, f"question {question_id}", deed)

    async def decide(
        self,
        approval_id: str,
        decision: str,
        *,
        reason: str = "",
        by: str = "",
        arguments: dict[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,  # noqa: A002 -- the word for it at every door
        deed: AuditEvent | None = None,
    ) -> None:
        """Approve or deny; see `Onward.decide`."""
        if decision not in {"approve", "deny"}:
            raise BadSetting("decision", decision, "'approve' or 'deny'")
        ask = await self.ask(approval_id)
        what = f"approval {approval_id}"
        if ask.kind != "approval":
            raise UsageError(f"{approval_id} is a question; `onward answer` answers it")
        if hash is not None and hash != ask.hash:
            raise StaleDecision(what, str(ask.hash), hash)
        if arguments is not None or always:
            self._check_changes(ask, decision, arguments)
        said = {"decision": decision, "reason": reason, "by": by, "always": always, "hash": ask.hash}
        said = {name: value for name, value in said.items() if value}
        given = {} if arguments is None else {"arguments": arguments}
        beside = await self._reply(ask, "decision", said | given, what, deed)
        if always:
            await self._release(ask, beside, said, deed)

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

    async def _release(self, ask: Ask, beside: list[Ask], said: dict[str, Any], deed: AuditEvent | None) -> None:
        """'Always' also answers what is asked for the same tool in the same task already, each for itself. One that somebody
        else decides in this moment stays as they say."""
        for other in beside:
            if other.kind == "approval" and other.tool == ask.tool:
                value = {**said, "hash": other.hash, "through": ask.id}
                message = Message(self._ids(), "decision", "", other.seq, wire.encode(value, "the answer"))
                also = deed and deed._replace(subject=other.id, data={"hash": other.hash, "through": ask.id})
                await self._store.send(ask.task_id, message, also)
        self._store.nudge("ready", [ask.task_id])

    async def _reply(self, ask: Ask, kind: str, value: Any, what: str, deed: AuditEvent | None) -> list[Ask]:
        """Answer it, if it is still open; what else the task asks."""
        rows = await self._store.listing.asks(ask.task_id)
        if ask.seq not in {row.seq for row in rows}:
            await self._tell_why(ask, what)
        open_ = _still_open(rows)
        if ask.seq not in {one.seq for one in open_}:
            raise AskExpired(what)
        message = Message(self._ids(), kind, "", ask.seq, wire.encode(value, "the answer"))
        sent = await self._send(ask.task_id, message, deed)
        if not sent.first and sent.there is not None:
            raise _decided(what, sent.there)
        return [one for one in open_ if one.seq != ask.seq]

    async def _tell_why(self, ask: Ask, what: str) -> None:
        """It is not open: because somebody was quicker, because its task has ended, or because it was given up."""
        for message in await self._store.inbox(ask.task_id):
            if message.ref == ask.seq:
                raise _decided(what, message)
        task = await self._store.get(ask.task_id)
        if task is not None and task.ended:
            raise StateConflict(ask.task_id, task.state, "told anything", "it has ended")
        raise Withdrawn(what, ask.task_id)

    async def doubts(self, task_id: str) -> list[Doubt]:
        """The effects of a task that are in doubt. Raises TaskNotFound."""
        open_: dict[str, int] = {}
        doubts: dict[str, Doubt] = {}
        after = 0
        while page := await self._store.journal(task_id, after):
            for record in page:
                if record.kind == r.ANNOUNCED:
                    open_[record.key] = record.seq
                elif record.kind in {r.STEP_DONE, r.STEP_FAILED}:
                    open_.pop(record.key, None)
                    doubts.pop(record.key, None)
                elif record.kind == r.FORKED:  # what was in doubt in another task is answered there
                    open_.clear()
                    doubts.clear()
                elif record.kind == r.DOUBTED and record.value["step"] in open_:
                    step = record.value["step"]
                    doubts[step] = Doubt(task_id, open_[step], step, record.value["reason"])
            after = page[-1].seq
        if not after:
            raise TaskNotFound(task_id)
        answered = {message.ref for message in await self._store.inbox(task_id)}
        return [doubt for doubt in doubts.values() if doubt.seq not in answered]

    async def resolve(
        self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None, deed: AuditEvent | None = None
    ) -> None:
        """Say what became of an effect in doubt: it happened (with this result), it did not, or it is to be undone. Of a task that has
        ended, the first two are only kept; the third starts a task that undoes the effect."""
        if verdict not in VERDICTS:
            raise BadSetting("verdict", verdict, f"one of {', '.join(VERDICTS)}")
        doubts = [doubt for doubt in await self.doubts(task_id) if step in (None, doubt.step)]
        if not doubts:
            task = await self._store.get(task_id)
            state = task.state if task else "unknown"
            raise StateConflict(task_id, state, "resolved", f"no effect {step or ''}".rstrip() + " of it is in doubt")
        if len(doubts) > 1:
            names = ", ".join(doubt.step for doubt in doubts)
            raise UsageError(f"several effects of task {task_id} are in doubt ({names}); say which, with step=")
        message = Message(self._ids(), "resolve", verdict, doubts[0].seq, wire.encode(result, "the result"))
        sent = await self._store.send(task_id, message, deed)
        if sent.number is None:
            sent = await self._resolve_ended(task_id, message, deed)
        self._store.nudge("ready")
        if not sent.first and sent.there is not None:
            raise AlreadyDecided(f"the effect {doubts[0].step!r} of task {task_id}", sent.there.name)

    async def _resolve_ended(self, task_id: str, message: Message, deed: AuditEvent | None) -> Sent:
        task = await self._store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)
        undo = self._ids() if message.name == "undo" else None
        data = wire.encode(task.input, f"the input of task {task.task!r}")
        sent = await self._store.resolve_ended(task_id, message, deed, undo=undo, input=data)
        if sent.number is None:
            raise StateConflict(task_id, task.state, "told anything", "it was just resumed; ask again")
        return sent

    async def _send(self, task_id: str, message: Message, deed: AuditEvent | None = None) -> Sent:
        sent = await self._store.send(task_id, message, deed)
        if sent.number is None:
            task = await self._store.get(task_id)
            if task is None:
                raise TaskNotFound(task_id)
            raise StateConflict(task_id, task.state, "told anything", "it has ended")
        self._store.nudge("ready", [task_id])
        return sent


def _ask(task_id: str, task: str, seq: int, kind: str, said: dict[str, Any], at: float) -> Ask:
    question, expires_at = kind == r.QUESTION, said.get("until")
    return Ask(
        id=f"{task_id}.{seq}",
        task_id=task_id,
        task=task,
        kind="question" if question else "approval",
        text=said["question" if question else "what"],
        asked_at=at,
        expires_at=expires_at,
        risk=said.get("risk"),
        data=said.get("data"),
        choices=tuple(said.get("choices", ())),
        default=None if question or expires_at is None else said.get("default", "deny"),
        hash=None
        if question
        else wire.fingerprint([task_id, seq, said.get("what"), said.get("risk"), said.get("data")]),
    )


def _still_open(rows: Sequence[port.Ask]) -> list[Ask]:
    """Without those whose time is up and whose task has not come to say so."""
    found = [(_ask(row.task_id, row.task, row.seq, row.kind, wire.decode(row.data), row.at), row.now) for row in rows]
    return [ask for ask, now in found if ask.expires_at is None or now < ask.expires_at]


def _about_a_call(data: Any) -> bool:
    return isinstance(data, dict) and data.keys() == {"tool", "call", "arguments"}


def _decided(what: str, message: Message) -> AlreadyDecided:
    if message.kind == "expired":
        return AskExpired(what)
    value = wire.decode(message.data)
    return AlreadyDecided(what, str(value["decision"] if isinstance(value, dict) and "decision" in value else value))


def _then(task: Task, agent: bool) -> str:
    """What to do for somebody who comes too late."""
    if task.state is State.FAILED:
        return "it has ended; `onward resume` lets it go on, and then it can be told"
    again = f"submit(…, after={task.task_id!r}) goes on where it ended" if agent else "submit it anew"
    return f"it has ended; {again}"
