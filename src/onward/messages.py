"""What people and programs say to a task: signals, answers, decisions, a word on an effect in doubt.

Part of the one door (service.py). Everything goes into the task's inbox; of several answers to one question the first
counts, and the others are told so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.ids import Ids
from onward.core.task import Message
from onward.errors import AlreadyDecided, BadSetting, InvalidInput, NotFound, StateConflict, TaskNotFound, UsageError
from onward.store.port import Sent, Store

VERDICTS = ("happened", "not_happened", "undo")


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


@dataclasses.dataclass(frozen=True, slots=True)
class Doubt:
    """An effect of which nobody knows whether it happened."""

    task_id: str
    seq: int
    step: str
    reason: str


class Messages:
    """All verbs that end in an inbox."""

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store, self._ids = store, ids

    async def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: A002
        """Send a signal. With `id`, the same signal sent twice is one."""
        data = wire.encode(value, f"the value of signal {name!r}")
        await self._send(task_id, Message(id or self._ids(), "signal", name, None, data))

    async def asks(self, kind: str | None = None) -> list[Ask]:
        """What waits for people, the oldest first."""
        found = [
            _ask(row.task_id, row.task, row.seq, row.kind, wire.decode(row.data), row.at)
            for row in await self._store.asks()
        ]
        return [ask for ask in found if kind in (None, ask.kind)]

    async def ask(self, ask_id: str) -> Ask:
        """One of them, answered or not."""
        task_id, _, seq = ask_id.rpartition(".")
        task = await self._store.get(task_id) if seq.isdecimal() else None
        records = await self._store.journal(task_id, int(seq) - 1, 1) if task is not None else []
        if task is None or not records or records[0].kind not in {r.QUESTION, r.APPROVAL}:
            raise NotFound(
                f"there is no question or approval {ask_id!r}; `onward approvals` and `onward questions` list them"
            )
        return _ask(task_id, task.task, int(seq), records[0].kind, records[0].value, records[0].at)

    async def answer(self, question_id: str, answer: Any) -> None:
        """Answer a question. Raises AlreadyDecided when somebody, or the time, was quicker."""
        ask = await self.ask(question_id)
        if ask.kind != "question":
            raise UsageError(f"{question_id} is an approval; `onward approve` and `onward deny` decide it")
        if ask.choices and answer not in ask.choices:
            raise InvalidInput(f"question {question_id} takes one of {', '.join(ask.choices)}, and not {answer!r:.80}")
        await self._reply(ask, "answer", answer, f"question {question_id}")

    async def decide(self, approval_id: str, decision: str, *, reason: str = "", by: str = "") -> None:
        """Approve or deny. Raises AlreadyDecided when somebody, or the time, was quicker."""
        if decision not in {"approve", "deny"}:
            raise BadSetting("decision", decision, "'approve' or 'deny'")
        ask = await self.ask(approval_id)
        if ask.kind != "approval":
            raise UsageError(f"{approval_id} is a question; `onward answer` answers it")
        said = {"decision": decision, "reason": reason, "by": by}
        said = {name: value for name, value in said.items() if value}
        await self._reply(ask, "decision", said, f"approval {approval_id}")

    async def _reply(self, ask: Ask, kind: str, value: Any, what: str) -> None:
        seq = int(ask.id.rpartition(".")[2])
        sent = await self._send(ask.task_id, Message(self._ids(), kind, "", seq, wire.encode(value, "the answer")))
        if not sent.first and sent.there is not None:
            raise AlreadyDecided(what, _said(sent.there))

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
                elif record.kind == r.DOUBTED and record.value["step"] in open_:
                    step = record.value["step"]
                    doubts[step] = Doubt(task_id, open_[step], step, record.value["reason"])
            after = page[-1].seq
        if not after:
            raise TaskNotFound(task_id)
        answered = {message.ref for message in await self._store.inbox(task_id)}
        return [doubt for doubt in doubts.values() if doubt.seq not in answered]

    async def resolve(self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None) -> None:
        """Say what became of an effect in doubt: it happened (with this result), it did not, or it is to be undone."""
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
        sent = await self._send(task_id, message)
        if not sent.first and sent.there is not None:
            raise AlreadyDecided(f"the effect {doubts[0].step!r} of task {task_id}", sent.there.name)

    async def _send(self, task_id: str, message: Message) -> Sent:
        sent = await self._store.send(task_id, message)
        if sent.number is None:
            task = await self._store.get(task_id)
            if task is None:
                raise TaskNotFound(task_id)
            raise StateConflict(task_id, task.state, "told anything", "it has ended")
        self._store.nudge("ready")
        return sent


def _ask(task_id: str, task: str, seq: int, kind: str, said: dict[str, Any], at: float) -> Ask:
    question = kind == r.QUESTION
    return Ask(
        id=f"{task_id}.{seq}",
        task_id=task_id,
        task=task,
        kind="question" if question else "approval",
        text=said["question" if question else "what"],
        asked_at=at,
        expires_at=said.get("until"),
        risk=said.get("risk"),
        data=said.get("data"),
        choices=tuple(said.get("choices", ())),
    )


def _said(message: Message) -> str:
    if message.kind == "expired":
        return "its time was up"
    value = wire.decode(message.data)
    return str(value["decision"] if isinstance(value, dict) and "decision" in value else value)
