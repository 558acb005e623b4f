"""Parses the JSON of the server: into the dataclasses that the app itself returns, and its problems into the errors that the app itself
raises. `onward.service.serialize` writes that JSON."""

from __future__ import annotations

import email.utils
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onward.client.script import Response
from onward.core import secret as _secret_errors  # noqa: F401 -- so that the error classes are defined
from onward.core import wire
from onward.core.budget import KINDS, Amount, Budget, BudgetLedger
from onward.core.journal.progress import Update
from onward.core.journal.waterfall import Bar, Point
from onward.core.record import Record
from onward.core.task import Task
from onward.core.view_json import from_json, parse_time
from onward.core.views import Spent, Timeline
from onward.errors import Forbidden, InvalidInput, NotFound, OnwardError, Unauthorized, UsageError

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef

Json = dict[str, Any]


def parse_task(document: Json) -> Task:
    """A task."""
    return from_json(Task, document)


def parse_record(document: Json) -> Record:
    """A record."""
    return Record(
        seq=document["seq"],
        shift=document["shift"],
        kind=document["kind"],
        key=document["key"],
        data=wire.encode(document["data"], "the record"),
        at=parse_time(document["at"]),
    )


def parse_update(document: Json) -> Update:
    """A progress update."""
    names = ("task_id", "seq", "step", "total_step", "status", "tool", "message")
    fields = {name: document[name] for name in names}
    more = {"data": document["data"]} if "data" in document else {}
    return Update(**fields, time=parse_time(document["time"]), ask=document.get("ask_id", ""), **more)


def parse_timeline(document: Json) -> Timeline:
    """A waterfall."""
    return Timeline(
        task_id=document["task_id"],
        began=document["from"],
        ended=document["until"],
        seq=document["seq"],
        bars=[from_json(Bar, bar) for bar in document["bars"]],
        marks=[from_json(Point, mark) for mark in document["marks"]],
        more=document.get("more", False),
    )


def parse_budget(document: Json) -> Spent:
    """A budget and how much of it is spent. The server sends only the sum of the reservations, so that sum is one reservation here."""
    meters = document["meters"]
    needs = document.get("needs", {})
    ledger = BudgetLedger(
        Budget(**{f"max_{kind}": meter["limit"] for kind, meter in meters.items()}),
        spent=Amount(**{kind: meters[kind]["spent"] for kind in KINDS}),
        reserved={"all/1": Amount(**{kind: meters[kind]["reserved"] for kind in KINDS})},
        waiting={task_id: Amount(**needs.get(task_id, {})) for task_id in document["waiting"]},
    )
    return Spent(document["task_id"], ledger, meters["wall_time"]["spent"])


def parse_state(document: Json) -> AgentState:
    """The state of an agent."""
    from onward.core.state import AgentState  # noqa: PLC0415 -- pydantic, which most programs do not need

    return AgentState.model_validate(document)


def parse_artifact(document: Json) -> ArtifactRef:
    """The reference to an artifact."""
    from onward.core.state import ArtifactRef  # noqa: PLC0415 -- as above

    return ArtifactRef.model_validate({name: document[name] for name in ArtifactRef.model_fields if name in document})


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_NOT_COPIED = frozenset({"type", "title", "detail", "retryable"})
"""Members of a problem that do not become attributes of its error."""

BY_STATUS: dict[int, type[OnwardError]] = {
    400: UsageError,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    422: UsageError,
}
"""Error classes for codes that this version does not know."""


def parse_error(response: Response) -> OnwardError:
    """The error of a problem document: of the class that has its code, else of the class for its status, with the code. It has the
    server's sentence, and all other members of the document as attributes."""
    problem = _problem(response)
    kind = _error_class(problem["code"], response.status)
    error = kind.__new__(kind, problem["detail"])  # without __init__: the document has the sentence already
    Exception.__init__(error, problem["detail"])
    for name, value in problem.items():
        if name not in _NOT_COPIED:
            setattr(error, name, value)
    error.status = response.status
    if (wait := retry_after(response)) is not None:
        error.retry_after = wait  # type: ignore[attr-defined]
    return error


def _error_class(code: str, status: int) -> type[OnwardError]:
    for kind in _subclasses(OnwardError):
        if vars(kind).get("code") == code and kind.__module__.startswith("onward."):
            return kind
    return BY_STATUS.get(status, OnwardError)


def _subclasses(kind: type[OnwardError]) -> Iterator[type[OnwardError]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _problem(response: Response) -> Json:
    try:
        document = response.json
    except (InvalidInput, UnicodeDecodeError):
        document = None
    if isinstance(document, dict) and isinstance(document.get("code"), str) and isinstance(document.get("detail"), str):
        return document
    body = response.body[:200].decode("utf-8", "replace")  # of a proxy between the client and the server
    return {
        "code": f"http_{response.status}",
        "detail": f"the answer was {response.status}, not one of Onward's: {body!r}",
    }


def retry_after(response: Response) -> float | None:
    """The seconds of the header `Retry-After`, which may also be a date; None where there is none."""
    header = response.headers.get("retry-after", "").strip()
    if header.isdecimal():
        return float(header)
    try:
        then = email.utils.parsedate_to_datetime(header)
        now = email.utils.parsedate_to_datetime(response.headers.get("date", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, (then - now).total_seconds())
