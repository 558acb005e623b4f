"""Progress: makes updates for readers of the records of a task. Pure, and the same for HTTP, MCP and the command line.

An update says how far a task is (`step` of `total_step`; 0 is unknown) and what happens (`status`). Most records make one update, some make
none. `completed`, `error` and `cancelled` are ends; a step that fails is a `tool_result`, because the task may go on. The number of the
record is the cursor: a reader that has update n goes on after n.

The text that a model is writing comes in pieces between the updates, and has no cursor (`ModelText`). It is void when its attempt failed or
its shift ended. `offset` is the position of a piece, so that a reader that comes back gets the whole text so far in one piece. The number of
an attempt is used once in a task. A reader is told that an attempt is void only when it may have got some of its text.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from onward.core import record as r
from onward.core.record import Record
from onward.core.task import HEARS, Reason

THINKING: Final = "thinking"
TOOL_CALL: Final = "tool_call"
TOOL_RESULT: Final = "tool_result"
COMPLETED: Final = "completed"
ERROR: Final = "error"
WAITING: Final = "waiting"
UNDO: Final = "undo"
CANCELLED: Final = "cancelled"

STATUSES: Final = (THINKING, TOOL_CALL, TOOL_RESULT, COMPLETED, ERROR, WAITING, UNDO, CANCELLED)
TOLD_BEFORE: Final = HEARS | {Reason.ASLEEP, Reason.RETRYING, Reason.QUOTA}
"""Reasons for the end of a shift that the update of an earlier record has named."""

MAX_MESSAGE_CHARS = 500

_NUMBER = re.compile(r"#\d+$")
_MODEL = re.compile(r"(^|\])model(#\d+)?$")
_MAX_NUMBER = 2**53
"""The largest whole number that JSON readers agree on."""


class Update(NamedTuple):
    """One update of the progress of a task."""

    task_id: str
    seq: int
    step: int
    total_step: int
    status: str
    tool: str
    message: str
    time: float
    ask: str = ""
    """The id of a question or approval, for `answer` and `decide`."""


class ModelText(NamedTuple):
    """Text that a model is writing: `text` from character `offset` on. Withdrawn: all text of this turn and attempt is void."""

    task_id: str
    turn: int
    attempt: int
    offset: int
    text: str
    withdrawn: bool = False


class Lead(NamedTuple):
    """What a reader that begins after a record has to know: how many steps were completed until then, the last `progress` record, and the
    `progress` records since the last shift began or step ended."""

    steps: int = 0
    last: Record | None = None
    lately: tuple[Record, ...] = ()


@dataclasses.dataclass(slots=True)
class _Live:
    turn: int
    attempt: int
    shown: bool
    """Whether the reader has got, or may have got, some of its text."""
    length: int = 0


class Teller:
    """Makes the updates of one task, one record after the other."""

    def __init__(self, task_id: str, lead: Lead = Lead(), *, again: bool = False) -> None:  # noqa: B008 -- a value
        """`again` says that the reader comes back. Text has no cursor, so until the first update the reader may have got the text that
        comes."""
        self.task_id, self._steps, self._again = task_id, lead.steps, again
        self._step = self._total = 0
        self._live: _Live | None = None
        self._pieces: list[str] = []
        self._void: list[ModelText] = []
        if lead.last is not None:
            self._note(_payload(lead.last))
        for record in lead.lately:
            self._hear(record, _payload(record))
        self._void.clear()

    def tell(self, record: Record) -> Update | None:
        """The update of this record, or None when it makes none."""
        payload = _payload(record)
        if record.kind == r.STEP_DONE:
            self._steps += 1
        if record.kind == r.PROGRESS:
            self._note(payload)
        self._hear(record, payload)
        line = _TELLERS.get(record.kind, _nothing)(record, payload)
        if line is None:
            return None
        self._again = False
        status, tool, message = line
        if record.key.partition("]")[0].endswith("/undo"):
            status = UNDO
        asks = record.kind in {r.APPROVAL, r.QUESTION}
        return Update(
            self.task_id,
            record.seq,
            _turn(payload) or self._step or self._steps,
            self._total,
            status,
            _short(tool),
            _short(message),
            record.at,
            f"{self.task_id}.{record.seq}" if asks else "",
        )

    def withdrawn(self) -> list[ModelText]:
        """The texts that became void with the last record: to be sent before its update."""
        void, self._void = self._void, []
        return void

    def said(self) -> ModelText | None:
        """The text that a model wrote since the last call of this, if it is not void."""
        if self._live is None or not self._pieces:
            return None
        live, text, self._pieces = self._live, "".join(self._pieces), []
        live.shown = True
        return ModelText(self.task_id, live.turn, live.attempt, live.length - len(text), text)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _note(self, payload: dict[str, Any]) -> None:
        """Remember how far the task is, as its handler reports it."""
        if "dropped" not in payload:
            self._step, self._total = _count(payload.get("step")), _count(payload.get("total"))

    def _hear(self, record: Record, payload: dict[str, Any]) -> None:
        """Track the text that a model is writing."""
        text = payload.get("text")
        if record.kind == r.PROGRESS and isinstance(text, str):
            turn, attempt = _count(payload.get("turn")), _count(payload.get("attempt"))
            if payload.get("withdrawn") is True:
                self._withdraw()
                return
            if self._live is None or (self._live.turn, self._live.attempt) != (turn, attempt):
                self._live, self._pieces = _Live(turn, attempt, self._again), []
            self._live.length += len(text)
            self._pieces.append(text)
        elif record.kind in {r.STEP_DONE, r.STEP_FAILED}:  # the record has the whole text
            self._live, self._pieces = None, []
        elif record.kind in BREAKS:
            self._withdraw()

    def _withdraw(self) -> None:
        if self._live is not None and self._live.shown:
            self._void.append(ModelText(self.task_id, self._live.turn, self._live.attempt, 0, "", withdrawn=True))
        self._live, self._pieces = None, []


def lead(records: Iterable[Record]) -> Lead:
    """The lead after the last of these records. The store's verb of that name finds it without reading them all."""
    steps, last, lately = 0, None, list[Record]()
    for record in records:
        steps += record.kind == r.STEP_DONE
        if record.kind == r.PROGRESS:
            last = record
            lately.append(record)
        elif record.kind in BREAKS:
            lately.clear()
    return Lead(steps, last, tuple(lately))


BREAKS: Final = frozenset(
    {
        *(r.SHIFT, r.HANDED_BACK, r.STEP_DONE, r.STEP_FAILED, r.DOUBTED, r.RETRY, r.PARKED, r.QUARANTINED),
        *(r.CANCEL, r.DEADLINE, *r.ENDS),
    }
)
"""Kinds after which earlier text of a model is no longer live. The statement `lead_lately` has the same list."""


# ── one kind of record after the other ───────────────────────────────────────────────────────────────────────────────

_Line = tuple[str, str, str] | None
"""Status, tool, message."""


def _nothing(_record: Record, _: dict[str, Any]) -> _Line:
    return None


def _handed_back(_record: Record, payload: dict[str, Any]) -> _Line:
    reason = payload.get("reason")
    if isinstance(reason, str) and reason in TOLD_BEFORE:
        return None
    return WAITING, "", _text(reason) or "handed back; another worker goes on"


def _begun(record: Record, _: dict[str, Any]) -> _Line:
    if _MODEL.search(record.key):
        return THINKING, "", "asks the model"
    return TOOL_CALL, tool_of(record.key), ""


def _done(record: Record, payload: dict[str, Any]) -> _Line:
    result = payload.get("result")
    if isinstance(result, dict) and {"turn", "asked"} <= result.keys():
        return THINKING, "", _model_words(result)
    if "dropped" in payload and _MODEL.search(record.key):
        return THINKING, "", ""
    if isinstance(result, dict) and isinstance(size := result.get("bytes"), int) and "id" in result:
        return TOOL_RESULT, tool_of(record.key), f"{size:,} bytes for the model"
    return TOOL_RESULT, tool_of(record.key), "" if result is None else _words(result)


def _retried(record: Record, payload: dict[str, Any]) -> _Line:
    return TOOL_RESULT, tool_of(record.key), f"attempt {_count(payload.get('attempt'))} failed: {_error(payload)}"


def _failed_step(record: Record, payload: dict[str, Any]) -> _Line:
    return TOOL_RESULT, tool_of(record.key), f"failed: {_error(payload)}"


def _step_waits(record: Record, payload: dict[str, Any]) -> _Line:
    return WAITING, tool_of(record.key), _text(payload.get("why")) or _text(payload.get("reason"))


def _asked(_record: Record, payload: dict[str, Any]) -> _Line:
    data = payload.get("data")
    tool = data.get("tool") if isinstance(data, dict) else ""
    return WAITING, _text(tool), _text(payload.get("what")) or _text(payload.get("question"))


def _awaits(record: Record, payload: dict[str, Any]) -> _Line:
    what = (
        f"signal {_text(payload.get('signal'))}" if record.kind == r.SIGNAL else f"child {_text(payload.get('child'))}"
    )
    return WAITING, "", f"waits for {what}".strip()


def _received(_record: Record, payload: dict[str, Any]) -> _Line:
    kind, value = payload.get("kind"), payload.get("value")
    about = value if isinstance(value, dict) else {}
    match kind:
        case "signal":
            return THINKING, "", f"received signal {_text(payload.get('name'))}"
        case "decision":
            by = f" by {about['by']}" if about.get("by") else ""
            return THINKING, "", f"{_DECIDED.get(_text(about.get('decision')), 'decided')}{by}"
        case "child":
            return THINKING, "", f"child {_text(payload.get('name'))} {_text(about.get('state')) or 'ended'}"
        case "expired":
            return THINKING, "", "the time for an answer is up"
        case "message" if isinstance(value, str):
            return THINKING, "", f"was told: {value}"
        case "answer":
            return THINKING, "", "received an answer"
        case _:
            return THINKING, "", f"received {_text(kind) or 'a message'}"


_DECIDED = {"approve": "approved", "deny": "denied"}


def _undone(_record: Record, payload: dict[str, Any]) -> _Line:
    parts = []
    for name, word in (("undone", "undone"), ("not_undone", "NOT undone")):
        if isinstance(keys := payload.get(name), list) and keys:
            parts.append(f"{word}: {', '.join(tool_of(_text(key)) for key in keys)}")
    return UNDO, "", "; ".join(parts) or "there was nothing to undo"


def _progress(_record: Record, payload: dict[str, Any]) -> _Line:
    if isinstance(payload.get("text"), str) or "dropped" in payload:
        return None
    tools = payload.get("tools")
    if isinstance(tools, list) and tools:
        return TOOL_CALL, ", ".join(_text(tool) for tool in tools), _text(payload.get("message"))
    return THINKING, "", _text(payload.get("message"))


def _again(_record: Record, payload: dict[str, Any]) -> _Line:
    return WAITING, "", f"attempt {_count(payload.get('attempt'))} of the task failed: {_error(payload)}"


def _stands(record: Record, payload: dict[str, Any]) -> _Line:
    return WAITING, "", f"{record.kind.removeprefix('task.')}: {_text(payload.get('reason'))}"


_TELLERS: Final[dict[str, Callable[[Record, dict[str, Any]], _Line]]] = {
    r.SUBMITTED: lambda _record, _: (WAITING, "", "submitted"),
    r.FORKED: lambda _record, payload: (WAITING, "", f"forked from {_text(payload.get('from'))}"),
    r.SHIFT: lambda _record, _: (THINKING, "", "a worker goes on"),
    r.HANDED_BACK: _handed_back,
    r.STEP_STARTED: _begun,
    r.ANNOUNCED: _begun,
    r.STEP_DONE: _done,
    r.STEP_RETRY: _retried,
    r.STEP_FAILED: _failed_step,
    r.STEP_WAITS: _step_waits,
    r.SLEEP: lambda _record, _: (WAITING, "", "asleep"),
    r.SLEPT: lambda _record, _: (THINKING, "", "awake again"),
    r.QUESTION: _asked,
    r.APPROVAL: _asked,
    r.SIGNAL: _awaits,
    r.CHILD: _awaits,
    r.MESSAGE: _received,
    r.DOUBTED: lambda _record, payload: (
        WAITING,
        tool_of(_text(payload.get("step"))),
        f"in doubt: {_text(payload.get('reason'))}",
    ),
    r.UNDOING: lambda _record, payload: (UNDO, "", f"given up: {_error(payload)}"),
    r.UNDONE: _undone,
    r.ARTIFACT: lambda record, payload: (TOOL_RESULT, tool_of(record.key), f"left {_text(payload.get('summary'))}"),
    r.PROGRESS: _progress,
    r.RETRY: _again,
    r.PARKED: _stands,
    r.QUARANTINED: _stands,
    r.RESUMED: lambda _record, _: (WAITING, "", "resumed"),
    r.CANCEL: lambda _record, _: (UNDO, "", "cancel requested; what it did is undone first"),
    r.DEADLINE: lambda _record, _: (UNDO, "", "the deadline has passed"),
    r.COMPLETED: lambda _record, payload: (
        COMPLETED,
        "",
        "" if payload.get("result") is None else _words(payload["result"]),
    ),
    r.FAILED: lambda _record, payload: (ERROR, "", _error(payload)),
    r.CANCELLED: lambda _record, _: (CANCELLED, "", "cancelled"),
}


def tool_of(key: str) -> str:
    """The name of a step, without its path and its number."""
    name = key.partition("]")[2] if key.startswith("[") else key
    return _NUMBER.sub("", name)


def _turn(payload: dict[str, Any]) -> int:
    """The number of the turn, in the record of a model call; else 0."""
    result = payload.get("result")
    return _count(result.get("turn")) if isinstance(result, dict) and "asked" in result else 0


def _model_words(result: dict[str, Any]) -> str:
    usage = value if isinstance(value := result.get("usage"), dict) else {}
    counts = [(usage.get(name), unit) for name, unit in (("input", "tokens in"), ("output", "out"))]
    words = [f"turn {_count(result.get('turn'))}", *(f"{n:,} {unit}" for n, unit in counts if isinstance(n, int))]
    return ", ".join(words)


def _error(payload: dict[str, Any]) -> str:
    error = payload.get("error")
    if not isinstance(error, dict):
        return ""
    return f"{_text(error.get('type')) or 'Error'}: {_text(error.get('message'))}"


def _payload(record: Record) -> dict[str, Any]:
    try:
        value = record.value
    except Exception:  # of a later version, or damaged: its number and kind are still known
        return {}
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _MAX_NUMBER else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else _words(value)


def _words(value: Any) -> str:
    """A value in words for people."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(_top(value), ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "…"


def _top(value: Any) -> Any:
    """The part of a value that fits a message: a large value is not encoded as a whole only to be cut."""
    if isinstance(value, dict) and len(value) > 20:
        return {key: value[key] for key in list(value)[:20]}
    return value[:50] if isinstance(value, list) and len(value) > 50 else value


def _short(text: str) -> str:
    whole = text.encode("utf-8", "replace").decode()
    return whole if len(whole) <= MAX_MESSAGE_CHARS else f"{whole[: MAX_MESSAGE_CHARS - 1]}…"
