"""Progress: turns the records of a task into updates for its followers. Pure: records in, updates out.

An update holds the position of a task (`step` of `total_step`; 0 is unknown) and what happens (`status`). Most records give one
update, some give none. `completed`, `error` and `cancelled` are ends; a step that fails is a `tool_result`, because the task may
continue. The number of the record is the cursor: a follower that has seen update n continues after n.

The text of a model comes in pieces (`ModelText`), between the updates and without numbers of their own. It is void if the attempt
fails or its shift ends. `offset` is the place of a piece in the text, so that a follower who comes back gets all of the text so far
in one piece. The number of an attempt is used once in a task. A follower learns that an attempt is void only if it may have seen
some of its text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from onward.core import record as r
from onward.core.journal.reader import (
    SHIFT_ENDS,
    SHOWN_BEFORE,
    Event,
    JournalReader,
    as_count,
    as_string,
    fields,
    message_words,
    model_words,
    step_name,
    undone_keys,
)
from onward.core.journal.turns import asks_a_model
from onward.core.record import Record
from onward.errors import BadSetting

THINKING: Final = "thinking"
TOOL_CALL: Final = "tool_call"
TOOL_RESULT: Final = "tool_result"
COMPLETED: Final = "completed"
ERROR: Final = "error"
WAITING: Final = "waiting"
UNDO: Final = "undo"
CANCELLED: Final = "cancelled"

STATUSES: Final = (THINKING, TOOL_CALL, TOOL_RESULT, COMPLETED, ERROR, WAITING, UNDO, CANCELLED)

MAX_MESSAGE_CHARS = 500
"""Characters of a message."""

MAX_DATA_BYTES = 8 * 1024
"""Bytes of a progress record whose further values an update has. A larger record is in the journal only."""

Only = Literal["progress"]
"""The updates that a follower wants, where it does not want all: the values that the handler gave to `ctx.progress`, and the end of the task
without its result or error."""


def check_only(only: object) -> None:
    """Raises BadSetting for another value."""
    if only not in (None, "progress"):
        raise BadSetting("only", only, '"progress", or None for all updates')


_NO_DATA: Final[Mapping[str, Any]] = MappingProxyType({})
_OWN_FIELDS: Final = frozenset({"message", "step", "total", "tools", "turn", "attempt", "text", "withdrawn", "dropped"})


class Update(NamedTuple):
    """One thing that happened."""

    task_id: str
    seq: int
    step: int
    total_step: int
    status: str
    tool: str
    message: str
    time: float
    ask: str = ""
    """The id of the question or approval, as `answer` and `decide` take it."""
    data: Mapping[str, Any] = _NO_DATA
    """The further values that the handler gave to `ctx.progress`; none when the record is larger than `MAX_DATA_BYTES`."""

    def __hash__(self) -> int:
        return hash((self.task_id, self.seq))


class ModelText(NamedTuple):
    """A piece of the text of a model: `text` from character `offset` on. Withdrawn: all text of this turn and attempt is void."""

    task_id: str
    turn: int
    attempt: int
    offset: int
    text: str
    withdrawn: bool = False


class Lead(NamedTuple):
    """What a reader needs to start after a record: the number of steps completed until then, the last progress record, and the
    progress records since the last shift began or step ended."""

    steps: int = 0
    last: Record | None = None
    lately: tuple[Record, ...] = ()


@dataclasses.dataclass(slots=True)
class _Live:
    turn: int
    attempt: int
    shown: bool
    """Whether the follower has seen, or may have seen, some of it."""
    length: int = 0


class ProgressReader:
    """Reads the records of one task in order, and gives their updates."""

    def __init__(
        self,
        task_id: str,
        lead: Lead = Lead(),  # noqa: B008 -- a value
        *,
        again: bool = False,
        only: Only | None = None,
    ) -> None:
        """`again` says that the follower was here before. Text has no cursor, so the follower may have seen the text that comes
        before the first update. `only` says which updates it wants."""
        self._again, self._only = again, only
        self.task_id: str = task_id
        self._reader = JournalReader()
        self._reader.steps = lead.steps
        self._step = self._total = 0
        self._live: _Live | None = None
        self._pieces: list[str] = []
        self._void: list[ModelText] = []
        if lead.last is not None:
            self._note_position(Event(lead.last, fields(lead.last)))
        for record in lead.lately:
            self._note_text(Event(record, fields(record)))
        self._void.clear()

    def read(self, record: Record) -> Update | None:
        """The update of this record, or None if it gives none."""
        event = self._reader.read(record)
        if record.kind == r.PROGRESS:
            self._note_position(event)
        self._note_text(event)
        summary = _SUMMARIES.get(record.kind, _nothing)(event)
        if summary is None or (self._only is not None and not _is_own(event)):
            return None
        self._again = False
        status, tool, message = summary
        if self._only is not None and record.kind in r.ENDS:
            message = ""
        if record.key.partition("]")[0].endswith("/undo"):
            status = UNDO
        asks = record.kind in {r.APPROVAL, r.QUESTION}
        return Update(
            self.task_id,
            record.seq,
            _turn(event) or (self._step if self._step or self._total else self._reader.steps),
            self._total,
            status,
            _cut(tool),
            _cut(message),
            record.at,
            f"{self.task_id}.{record.seq}" if asks else "",
            _further_values(event),
        )

    def withdrawn(self) -> list[ModelText]:
        """The texts that became void with the last record. They belong before its update."""
        void, self._void = self._void, []
        return void if self._only is None else []

    def new_text(self) -> ModelText | None:
        """The text of the model since the last call of this method, if it still counts."""
        if self._live is None or not self._pieces or self._only is not None:
            return None
        live, text, self._pieces = self._live, "".join(self._pieces), []
        live.shown = True
        return ModelText(self.task_id, live.turn, live.attempt, live.length - len(text), text)

    def _note_position(self, event: Event) -> None:
        """Keep the position that the handler reports."""
        if "dropped" not in event.fields:
            self._step, self._total = event.count("step"), event.count("total")

    def _note_text(self, event: Event) -> None:
        """Keep the text of the model, as long as it counts."""
        text = event.fields.get("text")
        if event.kind == r.PROGRESS and isinstance(text, str):
            turn, attempt = event.count("turn"), event.count("attempt")
            if event.fields.get("withdrawn") is True:
                self._withdraw()
                return
            if self._live is None or (self._live.turn, self._live.attempt) != (turn, attempt):
                self._live, self._pieces = _Live(turn, attempt, self._again), []
            self._live.length += len(text)
            self._pieces.append(text)
        elif event.kind in {r.STEP_DONE, r.STEP_FAILED}:  # the record of the step has the whole text
            self._live, self._pieces = None, []
        elif event.kind in BREAKS:
            self._withdraw()

    def _withdraw(self) -> None:
        if self._live is not None and self._live.shown:
            self._void.append(ModelText(self.task_id, self._live.turn, self._live.attempt, 0, "", withdrawn=True))
        self._live, self._pieces = None, []


def lead(records: Iterable[Record]) -> Lead:
    """The lead of a reader that starts after these records. The store's verb of this name finds it without reading them all."""
    steps, last, lately = 0, None, list[Record]()
    for record in records:
        steps += record.kind == r.STEP_DONE
        if record.kind == r.PROGRESS:
            last = record
            lately.append(record)
        elif record.kind in BREAKS:
            lately.clear()
    return Lead(steps, last, tuple(lately))


BREAKS: Final = SHIFT_ENDS | {r.SHIFT, r.RESUMED, r.STEP_DONE, r.STEP_FAILED}
"""Records after which the text of a model before them is no longer live. The statement `lead_lately` has the same list."""


# ── the summary of each kind of record ───────────────────────────────────────────────────────────────────────────────

Summary = tuple[str, str, str] | None
"""Status, tool, message."""


def _nothing(_: Event) -> Summary:
    return None


def _handed_back(event: Event) -> Summary:
    reason = event.fields.get("reason")
    if isinstance(reason, str) and reason in SHOWN_BEFORE:
        return None
    return WAITING, "", as_string(reason) or "handed back; another worker goes on"


def _step_started(event: Event) -> Summary:
    if asks_a_model(event.key):
        return THINKING, "", "asks the model"
    return TOOL_CALL, step_name(event.key), ""


def _step_done(event: Event) -> Summary:
    result = event.object("result")
    if {"turn", "asked"} <= result.keys():
        return THINKING, "", model_words(result)
    if "dropped" in event.fields and asks_a_model(event.key):
        return THINKING, "", ""
    if isinstance(size := result.get("bytes"), int) and "id" in result:
        return TOOL_RESULT, step_name(event.key), f"{size:,} bytes for the model"
    return TOOL_RESULT, step_name(event.key), as_string(event.result)


def _step_retry(event: Event) -> Summary:
    return TOOL_RESULT, step_name(event.key), f"attempt {event.count('attempt')} failed: {event.error}"


def _step_failed(event: Event) -> Summary:
    return TOOL_RESULT, step_name(event.key), f"failed: {event.error}"


def _step_waits(event: Event) -> Summary:
    return WAITING, step_name(event.key), event.string("why") or event.string("reason")


def _asked(event: Event) -> Summary:
    tool = as_string(event.object("data").get("tool"))
    return WAITING, tool, event.string("what") or event.string("question")


def _awaited(event: Event) -> Summary:
    subject = f"signal {event.string('signal')}" if event.kind == r.SIGNAL else f"child {event.string('child')}"
    return WAITING, "", f"waits for {subject}".strip()


def _message(event: Event) -> Summary:
    value = event.fields.get("value")
    if event.fields.get("kind") == "message" and isinstance(value, str):
        return THINKING, "", f"was told: {value}"
    return THINKING, "", message_words(event)


def _undone(event: Event) -> Summary:
    parts = [f"{words}: {', '.join(map(step_name, keys))}" for words, keys in undone_keys(event.fields)]
    return UNDO, "", "; ".join(parts) or "there was nothing to undo"


def _progress(event: Event) -> Summary:
    if isinstance(event.fields.get("text"), str) or "dropped" in event.fields:
        return None
    tools = event.fields.get("tools")
    if isinstance(tools, list) and tools:
        return TOOL_CALL, ", ".join(map(as_string, tools)), event.string("message")
    return THINKING, "", event.string("message")


def _is_own(event: Event) -> bool:
    """Whether it is the end of the task, or progress that the handler reports with values of its own choice."""
    return event.kind in r.ENDS or (event.kind == r.PROGRESS and "tools" not in event.fields)


def _retry(event: Event) -> Summary:
    return WAITING, "", f"attempt {event.count('attempt')} of the task failed: {event.error}"


def _stopped(event: Event) -> Summary:
    return WAITING, "", f"{event.kind.removeprefix('task.')}: {event.string('reason')}"


_SUMMARIES: Final[dict[str, Callable[[Event], Summary]]] = {
    r.SUBMITTED: lambda _: (WAITING, "", "submitted"),
    r.FORKED: lambda event: (WAITING, "", f"forked from {event.string('from')}"),
    r.SHIFT: lambda _: (THINKING, "", "a worker goes on"),
    r.HANDED_BACK: _handed_back,
    r.STEP_STARTED: _step_started,
    r.ANNOUNCED: _step_started,
    r.STEP_DONE: _step_done,
    r.STEP_RETRY: _step_retry,
    r.STEP_FAILED: _step_failed,
    r.STEP_WAITS: _step_waits,
    r.SLEEP: lambda _: (WAITING, "", "asleep"),
    r.SLEPT: lambda _: (THINKING, "", "awake again"),
    r.QUESTION: _asked,
    r.APPROVAL: _asked,
    r.SIGNAL: _awaited,
    r.CHILD: _awaited,
    r.LOCK_AWAITED: lambda event: (WAITING, "", f"waits for lock {event.string('lock')}"),
    r.LOCK_TAKEN: lambda event: (THINKING, "", f"took lock {event.string('lock')}"),
    r.MESSAGE: _message,
    r.DOUBTED: lambda event: (WAITING, step_name(event.string("step")), f"in doubt: {event.string('reason')}"),
    r.UNDOING: lambda event: (UNDO, "", f"given up: {event.error}"),
    r.UNDONE: _undone,
    r.ARTIFACT: lambda event: (TOOL_RESULT, step_name(event.key), f"left {event.string('summary')}"),
    r.PROGRESS: _progress,
    r.RETRY: _retry,
    r.PARKED: _stopped,
    r.QUARANTINED: _stopped,
    r.RESUMED: lambda _: (WAITING, "", "resumed"),
    r.RESTORED: lambda _: (WAITING, "", "restored from a backup"),
    r.CANCEL: lambda _: (UNDO, "", "cancel requested; what it did is undone first"),
    r.DEADLINE: lambda _: (UNDO, "", "the deadline has passed"),
    r.COMPLETED: lambda event: (COMPLETED, "", as_string(event.result)),
    r.FAILED: lambda event: (ERROR, "", event.error),
    r.CANCELLED: lambda _: (CANCELLED, "", "cancelled"),
}


def _further_values(event: Event) -> Mapping[str, Any]:
    """The values that only the program knows. Names that agents use are left out."""
    if event.kind != r.PROGRESS or len(event.record.data) > MAX_DATA_BYTES:
        return _NO_DATA
    return {name: value for name, value in event.fields.items() if name not in _OWN_FIELDS} or _NO_DATA


def _turn(event: Event) -> int:
    """The number of the turn, if this is the record of a model call."""
    result = event.object("result")
    return as_count(result.get("turn")) if "asked" in result else 0


def _cut(text: str) -> str:
    encodable = text.encode("utf-8", "replace").decode()
    return encodable if len(encodable) <= MAX_MESSAGE_CHARS else f"{encodable[: MAX_MESSAGE_CHARS - 1]}…"
