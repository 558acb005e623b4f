"""Submissions: checks requests, and makes the rows that the store takes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from onward.core import call, mask, secret, wire
from onward.core.budget import Budget
from onward.core.durations import Duration, seconds
from onward.core.epoch import CAUSE
from onward.core.schedule import Rhythm
from onward.core.task import INTAKE_MARK, NewTask, Task
from onward.core.tenant_quota import turn_group
from onward.errors import BadSetting, InvalidInput, UsageError

PRIORITY_LIMIT = 1_000_000


def no_whole(_value: Any) -> None:
    """For a handler whose arguments this process does not know."""


@dataclasses.dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A handler as the service knows it: enough to check a submit."""

    check: Callable[[Any], object]
    queue: str = "default"
    deadline: float | None = None
    grouping: tuple[str, bool] | None = None
    """The argument whose value is the group, and whether an input that is no object is the value of that argument."""
    tools: Mapping[str, Callable[[dict[str, Any]], object]] = dataclasses.field(default_factory=dict)
    """For an agent: the functions that check the arguments of its tools."""
    agent: bool = False
    secrets: Collection[str] | None = None
    """The secrets that an input may name; None when that is unknown."""
    registration: Callable[[], Mapping[str, Any]] | None = None
    """Gives the registration of the handler, where this process has it."""
    whole: Callable[[Any], dict[str, Any] | None] = no_whole
    """Gives the input that makes an object the value of one argument, where the handler would take its keys for names."""

    def checked_input(self, value: Any, what: str) -> tuple[bytes, bytes]:
        """The bytes of an input that the handler takes, and those of the value as the caller gave it. They differ for a model or a dataclass
        whose fields have the names of arguments: it is the value of one argument, if that argument takes it. Raises InvalidInput, and
        UnknownSecret."""
        data = wire.encode(value, what)
        if (name := wire.secret_in(value)) is not None:
            reference = wire.encode(secret.reference(name)).decode()
            raise InvalidInput(f"{what} has the value of secret {name!r} in clear text; name it instead: {reference}")
        decoded = wire.decode(data)
        if secret.MARK in data and self.secrets is not None:
            secret.check_known(decoded, self.secrets)
        as_argument = None if isinstance(value, dict) else self.whole(decoded)
        if as_argument is not None and self._takes(as_argument):
            return wire.encode(as_argument, what), data
        self.check(decoded)
        return data, data

    def _takes(self, value: Any) -> bool:
        try:
            self.check(value)
        except InvalidInput:
            return False
        return True


class SubmitRequest(NamedTuple):
    """A request to submit one task."""

    task: str
    input: Any = None
    key: str | None = None
    priority: int = 0
    queue: str | None = None
    deadline: Duration | None = None
    delay: Duration | None = None
    expires: Duration | None = None
    labels: Mapping[str, str] | None = None
    parent: str | None = None
    until: float | None = None
    """The deadline of its parent."""
    group: str | None = None
    budget: Budget | None = None
    inherited_budgets: Mapping[str, Any] | None = None
    """The budgets of the tasks above it."""
    webhook: str | None = None
    """The URL that its ends are sent to."""
    tenant: str | None = None
    """The tenant that owns it. Tenants never see each other's tasks, and each has idempotency keys of its own."""
    agent: str | None = None
    """The agent that submits it with its own key."""
    by: str | None = None
    """The id of the caller that submits it: of its key, or `person:` and the person."""
    askers: tuple[str, ...] = ()
    """The principals that ask for it (`service/askers.py`): approval rules keep them from deciding."""
    intake: str | None = None
    """The intake that received it. `key` is then the identity of its message: keys of callers and of other intakes are apart from it."""
    lost: Mapping[str, Any] | None = None
    """The time that a restore took from its parent (`core/epoch.py`)."""
    trace: Mapping[str, str] | None = None
    """The trace of the caller (`telemetry.incoming`). The fingerprint of the request leaves it out."""


class ScheduleSpec(NamedTuple):
    """A schedule as code declares it."""

    name: str
    request: SubmitRequest
    rhythm: Rhythm
    missed: str


def accept_any(_value: Any) -> None:
    """No check: the worker that has the handler checks the input."""


UNKNOWN = HandlerSpec(accept_any)


def from_registration(name: str, registration: Mapping[str, Any]) -> HandlerSpec:
    """The spec of a handler that this process does not have, from the registration that a worker wrote."""

    def check(value: Any) -> None:
        call.check(value, registration.get("input", {}), f"task {name!r}")

    return HandlerSpec(
        check,
        registration["queue"],
        registration["deadline"],
        registration.get("group"),
        agent=registration.get("agent", False),
        secrets=registration.get("secrets"),
        whole=lambda value: call.whole_for(value, registration.get("input", {})),
    )


def to_new_task(request: SubmitRequest, spec: HandlerSpec, task_id: str) -> NewTask:
    """The row that the store takes for a request. Raises the fault of the request."""
    data, given = spec.checked_input(request.input, f"the input of task {request.task!r}")
    options = _options(request, spec)
    queue = named("queue", request.queue or spec.queue)
    check_priority(request.priority)
    delay = 0.0 if request.delay is None else seconds(request.delay, "delay")
    group = _group(request, spec)
    key, fingerprint = None, ""
    if request.intake is not None:
        key, fingerprint = stored_key(request), INTAKE_FINGERPRINT
    elif request.key is not None:
        own = {name: value for name, value in options.items() if name not in NOT_IN_FINGERPRINT}
        content = {"task": request.task, "options": own, "queue": queue, "priority": request.priority, "delay": delay}
        content |= {"group": group} if group is not None else {}
        content |= {"webhook": request.webhook} if request.webhook is not None else {}
        key, fingerprint = stored_key(request), wire.fingerprint([content, wire.decode(given)])
    return NewTask(
        id=task_id,
        task=named("task", request.task),
        input=data,
        options=wire.encode(options, "the labels") if options else b"{}",
        queue=queue,
        priority=request.priority,
        delay=delay,
        key=key,
        fingerprint=fingerprint,
        parent=request.parent,
        group=_stored_group(request, group),
        tenant=request.tenant,
        turn_group=turn_group(request.tenant, group),
    )


INTAKE_FINGERPRINT = "intake"
"""The fingerprint of every task of an intake: a message that comes again has its task, also after a deploy changed the queue, the priority
or the deadline of the handler."""

NOT_IN_FINGERPRINT = frozenset({"purses", "tenant", "agent", "by", "askers", "trace", "lost"})
"""Options that may differ for the same key: they change with the code, or with the caller."""


def stored_key(request: SubmitRequest) -> str:
    """An idempotency key as the store has it: the tenant, a line break, which no name has, and the key. So the same key of two tenants is
    two keys. (The key of a child contains the id of its parent.)"""
    key = named("key", request.key)
    if request.intake is not None:
        return f"{request.tenant or ''}{INTAKE_MARK}{request.intake}:{key}"
    return key if request.tenant is None or request.parent is not None else f"{request.tenant}\n{key}"


def _stored_group(request: SubmitRequest, group: str | None) -> str | None:
    """A group as the store has it: with its tenant in front, so that tenants share neither groups nor limits. The tasks of a tenant that
    name no group are one group."""
    return group if request.tenant is None else request.tenant if group is None else f"{request.tenant}\n{group}"


def _options(request: SubmitRequest, spec: HandlerSpec) -> dict[str, Any]:
    """The options of a request: times in seconds, and labels."""
    options: dict[str, Any] = {}
    if request.deadline is not None or spec.deadline is not None:
        options["deadline"] = spec.deadline if request.deadline is None else seconds(request.deadline, "deadline")
    if request.expires is not None:
        options["expires"] = seconds(request.expires, "expires")
    if request.until is not None:
        options["until"] = request.until
    if request.budget is not None:
        options["budget"] = request.budget.to_json()
    if request.inherited_budgets:
        options["purses"] = dict(request.inherited_budgets)
    if request.lost is not None:
        options["lost"] = dict(request.lost)
    elif (lost := CAUSE.get()) is not None:
        options["lost"] = lost.to_json()
    if request.trace:
        options["trace"] = dict(request.trace)
    if request.tenant is not None:
        options["tenant"] = named("tenant", request.tenant)  # the worker submits children for the same tenant
    if request.agent is not None:
        options["agent"] = request.agent
    if request.by is not None:
        options["by"] = request.by
    if request.askers:
        options["askers"] = list(request.askers)
    if request.labels:
        options["labels"] = _labels(
            request.labels
        )  # last: the search for a string in labels reads from there to the end
    return options


def _group(request: SubmitRequest, spec: HandlerSpec) -> str | None:
    """The group of the request, else the value of the argument by which the handler groups its tasks."""
    if request.group is not None or spec.grouping is None:
        return None if request.group is None else named("group", request.group)
    argument, bare = spec.grouping
    value = request.input.get(argument) if isinstance(request.input, dict) else request.input if bare else None
    if isinstance(value, int | float):
        return wire.encode(value).decode()
    return None if value is None else named(f"the group ({argument})", value)


def named(what: str, value: Any) -> str:
    """The value, if it is a valid name. Raises UsageError."""
    if mask.on and isinstance(value, str) and mask.text(value) != value:
        raise UsageError(
            f"{what} has the value of a secret in it: {mask.text(value)!r:.200}; names are for everybody to read"
        )
    if not isinstance(value, str) or not 0 < len(value) <= 512 or not value.isprintable():
        raise UsageError(f"{what} must be a string of 1 to 512 printable characters, not {value!r:.80}")
    return value


def check_priority(value: Any) -> None:
    """Raises BadSetting for a priority that is out of bounds."""
    if not isinstance(value, int) or abs(value) > PRIORITY_LIMIT:
        raise BadSetting("priority", value, f"a whole number between -{PRIORITY_LIMIT} and {PRIORITY_LIMIT}")


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in labels.items()):
        raise InvalidInput("labels must be strings with strings as values")
    return dict(labels)


def label_in(labels: Mapping[str, str]) -> bytes:
    """The bytes of the first of these labels in the options of a task. (Other options may contain the same bytes.)"""
    return wire.encode(dict([next(iter(_labels(labels).items()))]), "the label")[1:-1]


def has_labels(task: Task, labels: Mapping[str, str] | None) -> bool:
    """Whether a task has all of these labels."""
    return not labels or labels.items() <= task.labels.items()
