"""Reading: the JSON of the server as the same dataclasses, and its problems as the same errors, that the app itself would give.
The other direction is in `onward.service.serialize`."""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from onward.artifacts import errors as _of_artifacts  # noqa: F401 -- so that they are known
from onward.client.script import Answer
from onward.core import wire
from onward.core.budget import KINDS, Amount, Budget, BudgetLedger
from onward.core.journal.progress import Update
from onward.core.journal.waterfall import Bar, Point
from onward.core.record import Record
from onward.core.task import State, Task
from onward.core.usage import Usage
from onward.errors import Forbidden, InvalidInput, NotFound, OnwardError, Unauthorized, UsageError
from onward.service.budgets import Spent
from onward.service.bulk import Acted, Refused
from onward.service.cluster import Queue, Stats, WorkerView
from onward.service.messages import Ask, Doubt
from onward.service.schedules import Schedule
from onward.service.subscriptions import Delivery
from onward.service.timeline import Timeline, TurnView

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef

T = TypeVar("T")
Said = dict[str, Any]
TIMES = frozenset(
    f"{what}_at"
    for what in (
        *("created", "updated", "finished", "deadline", "due"),
        *("asked", "expires"),
        *("next", "last"),
        *("started", "done"),
    )
) | {"at"}


def at(text: str | None) -> float | None:
    """Seconds since 1970 of a moment in ISO 8601."""
    return None if text is None else datetime.datetime.fromisoformat(text).timestamp()


def _timed(said: Said) -> Said:
    return {name: at(value) if name in TIMES else value for name, value in said.items()}


def _known(kind: type, said: Said) -> Said:
    """Without what a newer server says and this version does not know."""
    return {name: value for name, value in said.items() if name in kind.__dataclass_fields__}  # type: ignore[attr-defined]


def known(kind: type[T], said: Said) -> T:
    """One of these, of what the server says under the same names; times as they are kept here."""
    return kind(**_known(kind, _timed(said)))


def task_of(said: Said) -> Task:
    """A task."""
    state, usage = State(said["state"]), usage_of(said.get("usage"))
    left_out = tuple(said.get("left_out") or ())
    return Task(**_known(Task, _timed(said)) | {"state": state, "usage": usage, "left_out": left_out})


def usage_of(said: Said | None) -> Usage | None:
    """What models took."""
    if said is None:
        return None
    return dataclasses.replace(Usage.read(said), with_children=usage_of(said.get("with_children")))


def record_of(said: Said) -> Record:
    """A record."""
    data = wire.encode(said["data"], "the record")
    when = at(said["at"])
    assert when is not None
    return Record(said["seq"], said["shift"], said["kind"], said["key"], data, when)


def update_of(said: Said) -> Update:
    """A progress update."""
    when = at(said["time"])
    assert when is not None
    known = {name: said[name] for name in ("task_id", "seq", "step", "total_step", "status", "tool", "message")}
    return Update(**known, time=when, ask=said.get("ask_id", ""))


def timeline_of(said: Said) -> Timeline:
    """A waterfall."""
    bars, marks = [known(Bar, one) for one in said["bars"]], [Point(**one) for one in said["marks"]]
    return Timeline(said["task_id"], said["from"], said["until"], said["seq"], bars, marks)


def turn_of(said: Said) -> TurnView:
    """A turn of an agent."""
    return dataclasses.replace(known(TurnView, said), tools=tuple(said["tools"]))


def acted_of(said: Said) -> Acted:
    """What came of an action on many tasks."""
    return Acted(said["matched"], said["done"], tuple(known(Refused, one) for one in said["refused"]))


def ask_of(said: Said) -> Ask:
    """A question or an approval."""
    return Ask(**_known(Ask, _timed(said)) | {"choices": tuple(said["choices"])})


def doubt_of(said: Said) -> Doubt:
    """An effect in doubt."""
    return Doubt(**_known(Doubt, said))


def schedule_of(said: Said) -> Schedule:
    """A schedule."""
    upcoming = tuple(at(tick) for tick in said.get("upcoming", ()))
    return Schedule(**_known(Schedule, _timed(said)) | {"upcoming": upcoming})


def queue_of(said: Said) -> Queue:
    """A queue."""
    return Queue(**_known(Queue, said))


def worker_of(said: Said) -> WorkerView:
    """A worker."""
    lists = {name: tuple(said[name]) for name in ("queues", "handlers")}
    return WorkerView(**_known(WorkerView, _timed(said)) | lists)


def stats_of(said: Said) -> Stats:
    """The numbers of the place."""
    return Stats(**_known(Stats, said))


def delivery_of(said: Said) -> Delivery:
    """An event on its way out."""
    return Delivery(**_known(Delivery, _timed(said)))


def spent_of(said: Said) -> Spent:
    """A budget and what of it is gone; who reserved it is not told, only how much."""
    meters = said["meters"]
    limits = {f"max_{kind}": meter["limit"] for kind, meter in meters.items()}
    purse = BudgetLedger(
        Budget(**limits),
        spent=Amount(**{kind: meters[kind]["spent"] for kind in KINDS}),
        reserved={"all/1": Amount(**{kind: meters[kind]["reserved"] for kind in KINDS})},
        waiting={task_id: Amount(**said.get("needs", {}).get(task_id, {})) for task_id in said["waiting"]},
    )
    return Spent(said["task_id"], purse, meters["wall_time"]["spent"])


def state_of(said: Said) -> AgentState:
    """What an agent knows."""
    from onward.core.state import AgentState  # noqa: PLC0415 -- pydantic, which most programs do not need

    return AgentState.model_validate(said)


def artifact_of(said: Said) -> ArtifactRef:
    """What a step left behind."""
    from onward.core.state import ArtifactRef  # noqa: PLC0415 -- as above

    return ArtifactRef.model_validate({name: said[name] for name in ArtifactRef.model_fields if name in said})


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_OF_THE_DOCUMENT = frozenset({"type", "title", "detail", "retryable"})


def _below(kind: type[OnwardError]) -> Iterator[type[OnwardError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _kind(code: str, status: int) -> type[OnwardError]:
    for kind in _below(OnwardError):
        if vars(kind).get("code") == code and kind.__module__.startswith("onward."):
            return kind
    return BY_STATUS.get(status, OnwardError)


BY_STATUS: dict[int, type[OnwardError]] = {
    400: UsageError,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    422: UsageError,
}
"""Classes for codes that nobody here knows."""


def error_of(answer: Answer) -> OnwardError:
    """The error that a problem tells of: of the class that has its code, else of that of its status, with the code. It has the
    sentence that the server wrote, and whatever else the server tells."""
    said = _problem(answer)
    kind = _kind(said["code"], answer.status)
    error = kind.__new__(kind, said["detail"])  # its own sentence stands in the document already
    Exception.__init__(error, said["detail"])
    for name, value in said.items():
        if name not in _OF_THE_DOCUMENT:
            setattr(error, name, value)
    error.status = answer.status
    if (wait := retry_after(answer)) is not None:
        error.retry_after = wait  # type: ignore[attr-defined]
    return error


def _problem(answer: Answer) -> Said:
    try:
        said = answer.json
    except (InvalidInput, UnicodeDecodeError):
        said = None
    if isinstance(said, dict) and isinstance(said.get("code"), str) and isinstance(said.get("detail"), str):
        return said
    text = answer.body[:200].decode("utf-8", "replace")  # somebody between us and the server
    return {"code": f"http_{answer.status}", "detail": f"the answer was {answer.status}, not one of Onward's: {text!r}"}


def retry_after(answer: Answer) -> float | None:
    """Seconds after which to come back, where the server says so; in a header that may also have a date."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        then = email.utils.parsedate_to_datetime(text)
        now = email.utils.parsedate_to_datetime(answer.headers.get("date", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, (then - now).total_seconds())
