"""Wishes: what somebody asks for, checked and put into the form in which the store takes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from onward.core import call, mask, secret, wire
from onward.core.budget import Budget
from onward.core.durations import Duration, seconds
from onward.core.schedule import Rhythm
from onward.core.task import NewTask, Task
from onward.errors import BadSetting, InvalidInput, UsageError

PRIORITY_LIMIT = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class HandlerSpec:
    """What the door knows of a handler: enough to check a submit."""

    check: Callable[[Any], object]
    queue: str = "default"
    deadline: float | None = None
    grouping: tuple[str, bool] | None = None
    """The argument whose value is the group, and whether an input that is no object is that argument."""
    tools: Mapping[str, Callable[[dict[str, Any]], object]] = dataclasses.field(default_factory=dict)
    """What checks the arguments of each tool, where the handler is an agent."""
    agent: bool = False
    secrets: Collection[str] | None = None
    """The secrets that an input may name; None when nobody knows."""
    said: Callable[[], Mapping[str, Any]] | None = None
    """What the handler says of itself, where this process has it."""

    def check_input(self, value: Any, what: str) -> bytes:
        """An input as the store takes it. Raises InvalidInput, and UnknownSecret."""
        data = wire.encode(value, what)
        if (name := wire.secret_in(value)) is not None:
            named = wire.encode(secret.reference(name)).decode()
            raise InvalidInput(f"{what} has the value of secret {name!r} in clear text; name it instead: {named}")
        plain = wire.decode(data)
        if secret.MARK in data and self.secrets is not None:
            secret.check_known(plain, self.secrets)
        self.check(plain)
        return data


class SubmitRequest(NamedTuple):
    """One task that somebody wants done."""

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
    """When the parent's deadline is."""
    group: str | None = None
    budget: Budget | None = None
    purses: Mapping[str, Any] | None = None
    """The budgets above it."""
    webhook: str | None = None
    """Where its ends are told."""
    tenant: str | None = None
    """Whose it is: tenants never see each other's tasks, and their keys are their own."""
    agent: str | None = None
    """The agent that asks, with its own key."""
    by: str | None = None
    """The id of the key with which it was asked for."""
    trace: Mapping[str, str] | None = None
    """The trace of whoever asks (`telemetry.incoming`); it is no part of what is asked."""


class ScheduleSpec(NamedTuple):
    """A schedule as code declares it."""

    name: str
    wish: SubmitRequest
    rhythm: Rhythm
    missed: str


def anything(_value: Any) -> None:
    """The worker that has the handler will check it."""


UNKNOWN = HandlerSpec(anything)


def from_registration(name: str, said: Mapping[str, Any]) -> HandlerSpec:
    """What a worker once said of a handler that this process does not have."""

    def check(value: Any) -> None:
        call.check(value, said.get("input", {}), f"task {name!r}")

    agent, secrets = said.get("agent", False), said.get("secrets")
    return HandlerSpec(check, said["queue"], said["deadline"], said.get("group"), agent=agent, secrets=secrets)


def to_new_task(wish: SubmitRequest, offer: HandlerSpec, task_id: str) -> NewTask:
    """A wish as the store takes it. Raises what is wrong with it."""
    data = offer.check_input(wish.input, f"the input of task {wish.task!r}")
    options = _options(wish, offer)
    queue = named("queue", wish.queue or offer.queue)
    check_priority(wish.priority)
    delay = 0.0 if wish.delay is None else seconds(wish.delay, "delay")
    group = _group(wish, offer)
    key, fingerprint = None, ""
    if wish.key is not None:
        own = {name: said for name, said in options.items() if name not in _BESIDE}
        said = {"task": wish.task, "options": own, "queue": queue, "priority": wish.priority, "delay": delay}
        said |= {"group": group} if group is not None else {}
        said |= {"webhook": wish.webhook} if wish.webhook is not None else {}
        key, fingerprint = stored_key(wish), wire.fingerprint([said, wire.decode(data)])
    spoken = wire.encode(options, "the labels") if options else b"{}"
    name = named("task", wish.task)
    return NewTask(
        task_id,
        name,
        data,
        spoken,
        queue,
        wish.priority,
        delay,
        key,
        fingerprint,
        wish.parent,
        _stored_group(wish, group),
        wish.tenant,
    )


_BESIDE = frozenset({"purses", "tenant", "agent", "by", "trace"})
"""Options that a task with the same key may have otherwise: they change with the code, or with who asks."""


def stored_key(wish: SubmitRequest) -> str:
    """An idempotency key as the store has it: behind its tenant, and a line break that no name has, so that the same key of two
    tenants is two keys. (That of a child has the id of its parent in it.)"""
    key = named("key", wish.key)
    return key if wish.tenant is None or wish.parent is not None else f"{wish.tenant}\n{key}"


def _stored_group(wish: SubmitRequest, group: str | None) -> str | None:
    """A group as the store has it: behind its tenant, so that nobody stands in the line of another tenant, nor takes a place behind
    its limits. Where nobody names a group, tenants get their turns."""
    return group if wish.tenant is None else wish.tenant if group is None else f"{wish.tenant}\n{group}"


def _options(wish: SubmitRequest, offer: HandlerSpec) -> dict[str, Any]:
    """What a submit says beside its input: times in seconds, and labels."""
    said: dict[str, Any] = {}
    if wish.deadline is not None or offer.deadline is not None:
        said["deadline"] = offer.deadline if wish.deadline is None else seconds(wish.deadline, "deadline")
    if wish.expires is not None:
        said["expires"] = seconds(wish.expires, "expires")
    if wish.until is not None:
        said["until"] = wish.until
    if wish.budget is not None:
        said["budget"] = wish.budget.told()
    if wish.purses:
        said["purses"] = dict(wish.purses)
    if wish.trace:
        said["trace"] = dict(wish.trace)
    if wish.tenant is not None:
        said["tenant"] = named(
            "tenant", wish.tenant
        )  # for the worker, which has its children submitted for the same one
    if wish.agent is not None:
        said["agent"] = wish.agent
    if wish.by is not None:
        said["by"] = wish.by
    if wish.labels:
        said["labels"] = _labels(wish.labels)  # last: whoever looks for a text in them reads from there to the end
    return said


def _group(wish: SubmitRequest, offer: HandlerSpec) -> str | None:
    """The group that was given, or the value of the argument that the handler's tasks are grouped by."""
    if wish.group is not None or offer.grouping is None:
        return None if wish.group is None else named("group", wish.group)
    argument, bare = offer.grouping
    value = wish.input.get(argument) if isinstance(wish.input, dict) else wish.input if bare else None
    if isinstance(value, int | float):
        return wire.encode(value).decode()
    return None if value is None else named(f"the group ({argument})", value)


def named(what: str, value: Any) -> str:
    """A name as one may be. Raises UsageError."""
    if mask.on and isinstance(value, str) and mask.text(value) != value:
        raise UsageError(
            f"{what} has the value of a secret in it: {mask.text(value)!r:.200}; names are for everybody to read"
        )
    if not isinstance(value, str) or not 0 < len(value) <= 512 or not value.isprintable():
        raise UsageError(f"{what} must be a text of 1 to 512 printable characters, not {value!r:.80}")
    return value


def check_priority(value: Any) -> None:
    """Raises BadSetting."""
    if not isinstance(value, int) or abs(value) > PRIORITY_LIMIT:
        raise BadSetting("priority", value, f"a whole number between -{PRIORITY_LIMIT} and {PRIORITY_LIMIT}")


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in labels.items()):
        raise InvalidInput("labels must be texts with texts as values")
    return dict(labels)


def label_in(labels: Mapping[str, str]) -> bytes:
    """How the first of these labels stands in the options of a task. (Something else may read the same.)"""
    return wire.encode(dict([next(iter(_labels(labels).items()))]), "the label")[1:-1]


def has_labels(task: Task, labels: Mapping[str, str] | None) -> bool:
    """Whether a task has all of these."""
    return not labels or labels.items() <= task.labels.items()
