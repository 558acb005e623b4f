"""AgentState: what an agent knows. StatePatch: the only way to change it.

A state is the fold of the patches in a task's journal, so it is not saved at each step. A checkpoint has a snapshot of it, from which the
fold goes on. The JSON of both is stable and has a version; missing fields have defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from onward.core import wire
from onward.core.record import CHECKPOINT, MESSAGE, PATCHED, Record
from onward.core.task import Message

VERSION = 1

PATCH = "patch"
"""The kind of message that changes a state from outside."""

BUDGET_PRESSURE = "budget_pressure"
"""The flag of a state whose budget is nearly spent."""


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")


class HumanInTheLoop(_Part):
    """Which calls a person has to approve."""

    required_for_risk_levels: tuple[str, ...] = ()


class Constraints(_Part):
    """Rules for the agent."""

    human_in_the_loop: HumanInTheLoop = HumanInTheLoop()


class Limits(_Part):
    """The limits of the budget, as the state has them. None is no limit."""

    max_steps: int | None = Field(default=None, ge=0)
    max_wall_time_ms: int | None = Field(default=None, ge=0)
    max_llm_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    max_artifact_bytes_in_context: int | None = Field(default=None, ge=0)


class Fact(_Part):
    """Something that the agent knows, and its source. Of several facts with one key the last counts."""

    key: str
    value: Any
    source: str


class ArtifactRef(_Part):
    """A reference to an artifact; the bytes are in the store."""

    artifact_id: str
    type: str
    summary: str = ""
    bytes: int = Field(ge=0)
    step: str | None = None
    """The step that left it behind."""


class AnsweredQuestion(_Part):
    """An open question and its answer."""

    question: str
    answer: Any
    source: str = "user"


class StatePatch(_Part):
    """A change to a state. All fields are optional; an empty patch changes nothing."""

    append_facts: tuple[Fact, ...] = ()
    replace_plan: tuple[str, ...] | None = None
    add_questions: tuple[str, ...] = ()
    answer_questions: tuple[AnsweredQuestion, ...] = ()
    add_artifacts: tuple[ArtifactRef, ...] = ()
    flag_risks: tuple[str, ...] = ()
    unflag_risks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != _NO_CHANGE


_NO_CHANGE = StatePatch()


class AgentState(_Part):
    """Goal, constraints, budget, plan, facts, questions, artifacts, risk flags."""

    version: int = VERSION
    goal: str
    constraints: Constraints = Constraints()
    budget: Limits = Limits()
    plan: tuple[str, ...] = ()
    known_facts: tuple[Fact, ...] = ()
    open_questions: tuple[str, ...] = ()
    artifacts: tuple[ArtifactRef, ...] = ()
    risk_flags: tuple[str, ...] = ()

    def patched(self, patch: StatePatch) -> AgentState:
        """The state after a patch. A question, flag or artifact that is added twice is there once."""
        answered = {answer.question for answer in patch.answer_questions}
        facts = [
            Fact(key=answer.question, value=answer.answer, source=answer.source) for answer in patch.answer_questions
        ]
        still_open = [question for question in self.open_questions if question not in answered]
        flags = [flag for flag in self.risk_flags if flag not in patch.unflag_risks]
        return self.model_copy(
            update={
                "known_facts": (*self.known_facts, *patch.append_facts, *facts),
                "plan": self.plan if patch.replace_plan is None else patch.replace_plan,
                "open_questions": _once([*still_open, *patch.add_questions]),
                "artifacts": _artifacts_once([*self.artifacts, *patch.add_artifacts]),
                "risk_flags": _once([*flags, *patch.flag_risks]),
            }
        )

    def fact(self, key: str, default: Any = None) -> Any:
        """The value of the last fact of that key."""
        return next((fact.value for fact in reversed(self.known_facts) if fact.key == key), default)


def folded(state: AgentState, patches: Iterable[StatePatch]) -> AgentState:
    """The state after these patches, in order."""
    for patch in patches:
        state = state.patched(patch)
    return state


def state_in(records: Iterable[Record], inbox: Iterable[Message] = ()) -> AgentState | None:
    """The state in a journal, read from its beginning or from any checkpoint on; None when it has none. Patches from outside count from the
    moment they are in the inbox: those that the task has not applied yet, in its journal or in the rest of its `inbox`, are folded last."""
    reader = StateReader()
    for record in records:
        reader.read(record)
    for message in inbox:
        reader.hear(message)
    return reader.current()


class StateReader:
    """The same record by record, for a reader that does not keep the journal."""

    def __init__(self) -> None:
        self._state: AgentState | None = None
        self._sent: dict[int, Any] = {}
        self.last_message = 0
        """The number of the last message of the inbox that the journal has."""

    def read(self, record: Record) -> None:
        """Read the next record."""
        _note_sent(record, self._sent)
        self.last_message = last_message([record], self.last_message)
        if record.kind == CHECKPOINT:
            value = record.value["value"]
            snapshot = value.get("state") if isinstance(value, dict) else None
            self._state = self._state if snapshot is None else AgentState.model_validate(snapshot)
        elif record.kind == PATCHED:
            payload = record.value
            if "state" in payload:
                self._state = AgentState.model_validate(payload["state"])
            elif self._state is not None:
                self._state = self._state.patched(StatePatch.model_validate(payload["patch"]))

    def hear(self, message: Message) -> None:
        """Read a message of the inbox that is not in the journal yet."""
        if message.kind == PATCH:
            self._sent[message.number] = wire.decode(message.data)

    def current(self) -> AgentState | None:
        """The state; None when there is none."""
        if self._state is None:
            return None
        return folded(self._state, [StatePatch.model_validate(self._sent[n]["patch"]) for n in sorted(self._sent)])


def last_message(records: Iterable[Record], before: int = 0) -> int:
    """The number of the last message of the inbox that is in a journal, read from its beginning or from a checkpoint on; `before` is that
    of the records before these."""
    last = before
    for record in records:
        if record.kind == CHECKPOINT:
            last = int(record.value["inbox"])
        elif record.kind == MESSAGE:
            last = int(record.value["n"])
    return last


def _note_sent(record: Record, sent: dict[int, Any]) -> None:
    """Track the patches from outside that are in a journal and that its task has not applied yet."""
    if record.kind == MESSAGE:
        message = record.value
        if message["kind"] == PATCH:
            sent[message["n"]] = message["value"]
    elif record.kind == CHECKPOINT:
        sent.clear()
        messages = record.value["messages"]
        sent.update({message["n"]: message["value"] for message in messages if message["kind"] == PATCH})
    elif record.kind == PATCHED and sent:
        sent.pop(record.value.get("n"), None)


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _artifacts_once(artifacts: Iterable[ArtifactRef]) -> tuple[ArtifactRef, ...]:
    return tuple({artifact.artifact_id: artifact for artifact in artifacts}.values())
