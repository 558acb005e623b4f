"""Progress: what a task's records tell whoever watches. Records in, updates out; pure, and the same at every door.

An update says where a task is (`step` of `total_step`; 0 is unknown) and what happens (`status`). Most records are one update,
some tell nobody anything. `completed`, `error` and `cancelled` are ends; a step that fails is a `tool_result`, because the task
may go on. The number of the record is the cursor: whoever has seen update n goes on after n.

What a model is saying comes in pieces, between the updates, and is not part of the count (`Said`): it is void when its attempt
came to nothing or its shift ended. `offset` says where a piece belongs, so that a reader who comes back can be told
everything so far in one. The number of an attempt is used once in a task, and a reader is told that an attempt is void only when
it may have been shown some of it.
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
"""Reasons for the end of a shift that the record before it has told."""

LONGEST = 500
"""Characters of a message."""

_NUMBER = re.compile(r"#\d+$")
_MODEL = re.compile(r"(^|\])model(#\d+)?$")
_LARGEST = 2**53


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
    """The id of the question or approval that this is, as `answer` and `decide` take it."""


class Said(NamedTuple):
    """What a model is saying: `text` from character `offset` on. Withdrawn: forget all of this turn and attempt."""

    task_id: str
    turn: int
    attempt: int
    offset: int
    text: str
    withdrawn: bool = False


class Lead(NamedTuple):
    """What a reader has to know who comes in after a record: how many steps were completed until then, the last news that were
    told, and the news since the last shift began or step ended."""

    steps: int = 0
    last: Record | None = None
    lately: tuple[Record, ...] = ()


@dataclasses.dataclass(slots=True)
class _Live:
    turn: int
    attempt: int
    shown: bool
    """Whether the reader has seen, or may have seen, some of it."""
    length: int = 0


class Teller:
    """Tells the updates of one task, one record after the other."""

    def __init__(self, task_id: str, lead: Lead = Lead(), *, again: bool = False) -> None:  # noqa: B008 -- a value
        """`again` says that the reader was here before. Text has no cursor, so until the first update the reader may have been
        shown what comes."""
        self.task_id, self._steps, self._again = task_id, lead.steps, again
        self._step = self._total = 0
        self._live: _Live | None = None
        self._pieces: list[str] = []
        self._void: list[Said] = []
        if lead.last is not None:
            self._note(_said(lead.last))
        for record in lead.lately:
            self._hear(record, _said(record))
        self._void.clear()

    def tell(self, record: Record) -> Update | None:
        """The update of this record, or None when it tells nobody anything."""
        said = _said(record)
        if record.kind == r.STEP_DONE:
            self._steps += 1
        if record.kind == r.PROGRESS:
            self._note(said)
        self._hear(record, said)
        told = _TELLERS.get(record.kind, _nothing)(record, said)
        if told is None:
            return None
        self._again = False
        status, tool, message = told
        if record.key.partition("]")[0].endswith("/undo"):
            status = UNDO
        asks = record.kind in {r.APPROVAL, r.QUESTION}
        return Update(
            self.task_id,
            record.seq,
            _turn(said) or self._step or self._steps,
            self._total,
            status,
            _short(tool),
            _short(message),
            record.at,
            f"{self.task_id}.{record.seq}" if asks else "",
        )

    def withdrawn(self) -> list[Said]:
        """What became void with the record that was told last: to be said before its update."""
        void, self._void = self._void, []
        return void

    def said(self) -> Said | None:
        """What a model said since this was last asked, if it still counts."""
        if self._live is None or not self._pieces:
            return None
        live, text, self._pieces = self._live, "".join(self._pieces), []
        live.shown = True
        return Said(self.task_id, live.turn, live.attempt, live.length - len(text), text)

    # ── what is remembered ───────────────────────────────────────────────────────────────────────────────────────

    def _note(self, said: dict[str, Any]) -> None:
        """How far it is, where the handler says so."""
        if "dropped" not in said:
            self._step, self._total = _count(said.get("step")), _count(said.get("total"))

    def _hear(self, record: Record, said: dict[str, Any]) -> None:
        """What a model says, as far as it counts."""
        text = said.get("text")
        if record.kind == r.PROGRESS and isinstance(text, str):
            turn, attempt = _count(said.get("turn")), _count(said.get("attempt"))
            if said.get("withdrawn") is True:
                self._withdraw()
                return
            if self._live is None or (self._live.turn, self._live.attempt) != (turn, attempt):
                self._live, self._pieces = _Live(turn, attempt, self._again), []
            self._live.length += len(text)
            self._pieces.append(text)
        elif record.kind in {r.STEP_DONE, r.STEP_FAILED}:  # its record has it all
            self._live, self._pieces = None, []
        elif record.kind in BREAKS:
            self._withdraw()

    def _withdraw(self) -> None:
        if self._live is not None and self._live.shown:
            self._void.append(Said(self.task_id, self._live.turn, self._live.attempt, 0, "", withdrawn=True))
        self._live, self._pieces = None, []


def lead(records: Iterable[Record]) -> Lead:
    """What the last of these leads up to: what the store's verb of that name finds without reading them all."""
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
"""After these, what a model said before is no longer live. The statement `lead_lately` has the same list."""


# ── one kind of record after the other ───────────────────────────────────────────────────────────────────────────────

_Told = tuple[str, str, str] | None
"""Status, tool, message."""


def _nothing(_record: Record, _: dict[str, Any]) -> _Told:
    return None


def _handed_back(_record: Record, said: dict[str, Any]) -> _Told:
    reason = said.get("reason")
    if isinstance(reason, str) and reason in TOLD_BEFORE:
        return None
    return WAITING, "", _text(reason) or "handed back; another worker goes on"


def _begun(record: Record, _: dict[str, Any]) -> _Told:
    if _MODEL.search(record.key):
        return THINKING, "", "asks the model"
    return TOOL_CALL, tool_of(record.key), ""


def _done(record: Record, said: dict[str, Any]) -> _Told:
    result = said.get("result")
    if isinstance(result, dict) and {"turn", "asked"} <= result.keys():
        return THINKING, "", _model_words(result)
    if "dropped" in said and _MODEL.search(record.key):
        return THINKING, "", ""
    if isinstance(result, dict) and isinstance(size := result.get("bytes"), int) and "id" in result:
        return TOOL_RESULT, tool_of(record.key), f"{size:,} bytes for the model"
    return TOOL_RESULT, tool_of(record.key), "" if result is None else _words(result)


def _retried(record: Record, said: dict[str, Any]) -> _Told:
    return TOOL_RESULT, tool_of(record.key), f"attempt {_count(said.get('attempt'))} failed: {_error(said)}"


def _failed_step(record: Record, said: dict[str, Any]) -> _Told:
    return TOOL_RESULT, tool_of(record.key), f"failed: {_error(said)}"


def _step_waits(record: Record, said: dict[str, Any]) -> _Told:
    return WAITING, tool_of(record.key), _text(said.get("why")) or _text(said.get("reason"))


def _asked(_record: Record, said: dict[str, Any]) -> _Told:
    data = said.get("data")
    tool = data.get("tool") if isinstance(data, dict) else ""
    return WAITING, _text(tool), _text(said.get("what")) or _text(said.get("question"))


def _awaits(record: Record, said: dict[str, Any]) -> _Told:
    what = f"signal {_text(said.get('signal'))}" if record.kind == r.SIGNAL else f"child {_text(said.get('child'))}"
    return WAITING, "", f"waits for {what}".strip()


def _received(_record: Record, said: dict[str, Any]) -> _Told:
    kind, value = said.get("kind"), said.get("value")
    about = value if isinstance(value, dict) else {}
    match kind:
        case "signal":
            return THINKING, "", f"received signal {_text(said.get('name'))}"
        case "decision":
            by = f" by {about['by']}" if about.get("by") else ""
            return THINKING, "", f"{_DECIDED.get(_text(about.get('decision')), 'decided')}{by}"
        case "child":
            return THINKING, "", f"child {_text(said.get('name'))} {_text(about.get('state')) or 'ended'}"
        case "expired":
            return THINKING, "", "the time for an answer is up"
        case "message" if isinstance(value, str):
            return THINKING, "", f"was told: {value}"
        case "answer":
            return THINKING, "", "received an answer"
        case _:
            return THINKING, "", f"received {_text(kind) or 'a message'}"


_DECIDED = {"approve": "approved", "deny": "denied"}


def _undone(_record: Record, said: dict[str, Any]) -> _Told:
    parts = []
    for name, word in (("undone", "undone"), ("not_undone", "NOT undone")):
        if isinstance(keys := said.get(name), list) and keys:
            parts.append(f"{word}: {', '.join(tool_of(_text(key)) for key in keys)}")
    return UNDO, "", "; ".join(parts) or "there was nothing to undo"


def _progress(_record: Record, said: dict[str, Any]) -> _Told:
    if isinstance(said.get("text"), str) or "dropped" in said:
        return None
    tools = said.get("tools")
    if isinstance(tools, list) and tools:
        return TOOL_CALL, ", ".join(_text(tool) for tool in tools), _text(said.get("message"))
    return THINKING, "", _text(said.get("message"))


def _again(_record: Record, said: dict[str, Any]) -> _Told:
    return WAITING, "", f"attempt {_count(said.get('attempt'))} of the task failed: {_error(said)}"


def _stands(record: Record, said: dict[str, Any]) -> _Told:
    return WAITING, "", f"{record.kind.removeprefix('task.')}: {_text(said.get('reason'))}"


_TELLERS: Final[dict[str, Callable[[Record, dict[str, Any]], _Told]]] = {
    r.SUBMITTED: lambda _record, _: (WAITING, "", "submitted"),
    r.FORKED: lambda _record, said: (WAITING, "", f"forked from {_text(said.get('from'))}"),
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
    r.DOUBTED: lambda _record, said: (
        WAITING,
        tool_of(_text(said.get("step"))),
        f"in doubt: {_text(said.get('reason'))}",
    ),
    r.UNDOING: lambda _record, said: (UNDO, "", f"given up: {_error(said)}"),
    r.UNDONE: _undone,
    r.ARTIFACT: lambda record, said: (TOOL_RESULT, tool_of(record.key), f"left {_text(said.get('summary'))}"),
    r.PROGRESS: _progress,
    r.RETRY: _again,
    r.PARKED: _stands,
    r.QUARANTINED: _stands,
    r.RESUMED: lambda _record, _: (WAITING, "", "resumed"),
    r.CANCEL: lambda _record, _: (UNDO, "", "cancel requested; what it did is undone first"),
    r.DEADLINE: lambda _record, _: (UNDO, "", "the deadline has passed"),
    r.COMPLETED: lambda _record, said: (COMPLETED, "", "" if said.get("result") is None else _words(said["result"])),
    r.FAILED: lambda _record, said: (ERROR, "", _error(said)),
    r.CANCELLED: lambda _record, _: (CANCELLED, "", "cancelled"),
}


def tool_of(key: str) -> str:
    """The name of a step, without where it was and how often it came before."""
    name = key.partition("]")[2] if key.startswith("[") else key
    return _NUMBER.sub("", name)


def _turn(said: dict[str, Any]) -> int:
    """The turn that a model call was, where this is the record of one."""
    result = said.get("result")
    return _count(result.get("turn")) if isinstance(result, dict) and "asked" in result else 0


def _model_words(result: dict[str, Any]) -> str:
    usage = found if isinstance(found := result.get("usage"), dict) else {}
    counts = [(usage.get(name), word) for name, word in (("input", "tokens in"), ("output", "out"))]
    told = [f"turn {_count(result.get('turn'))}", *(f"{n:,} {word}" for n, word in counts if isinstance(n, int))]
    return ", ".join(told)


def _error(said: dict[str, Any]) -> str:
    error = said.get("error")
    if not isinstance(error, dict):
        return ""
    return f"{_text(error.get('type')) or 'Error'}: {_text(error.get('message'))}"


def _said(record: Record) -> dict[str, Any]:
    try:
        value = record.value
    except Exception:  # of a later version, or damaged: it still has its number and its kind
        return {}
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _LARGEST else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else _words(value)


def _words(value: Any) -> str:
    """A value as people read it, as far as there is room."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(_top(value), ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "…"


def _top(value: Any) -> Any:
    """Enough of a value for a message: a large one is not written out to be cut off."""
    if isinstance(value, dict) and len(value) > 20:
        return {key: value[key] for key in list(value)[:20]}
    return value[:50] if isinstance(value, list) and len(value) > 50 else value


def _short(text: str) -> str:
    whole = text.encode("utf-8", "replace").decode()
    return whole if len(whole) <= LONGEST else f"{whole[: LONGEST - 1]}…"
