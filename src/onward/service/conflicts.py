"""Conflicts of idempotency keys: names the fields in which a request differs from the task that has its key. A part of the service.

An error has the names of fields and never their values: an input may be encrypted, and errors are logged.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from onward.core import secret, wire
from onward.core.task import NewTask, Task
from onward.errors import KeyConflict, OnwardError
from onward.service.submission import NOT_IN_FINGERPRINT
from onward.store.port.core import Store, Submitted

MAX_FIELDS = 5
"""Fields that an error names."""
MAX_COMPARED_BYTES = 256 * 1024
"""A larger input is not compared, so that a submit that is refused stays cheap."""
MAX_NAME = 40
"""Characters of one name in a path."""
MAX_LEVELS = 6
"""Levels of an input that are compared; a difference below them has the path of the value around it."""


async def check_conflict(store: Store, new: NewTask, submitted: Submitted) -> None:
    """Raises KeyConflict when the key of the new task belongs to a task with other content."""
    if submitted.created or submitted.fingerprint == new.fingerprint:
        return
    assert new.key is not None
    state, fields = "", []
    with contextlib.suppress(OnwardError):  # the conflict is certain, also when the task cannot be read
        task = await store.get(submitted.id, None, MAX_COMPARED_BYTES)
        if task is not None:
            options = [wire.decode(kin.options) for kin in await store.listing.kin([submitted.id])]
            state, fields = task.state, list(itertools.islice(_differences(new, task, options), MAX_FIELDS + 1))
    raise KeyConflict(new.key.rpartition("\n")[2], submitted.id, state, _bounded(fields))


def _bounded(fields: list[str]) -> list[str]:
    return fields if len(fields) <= MAX_FIELDS else [*fields[:MAX_FIELDS], "more fields"]


def _differences(new: NewTask, task: Task, options: list[dict[str, Any]]) -> Iterator[str]:
    """The fields that differ. Where none is known to: those that cannot be compared, or that may have been changed since."""
    found = False
    for field in _certain(new, task, options):
        found = True
        yield field
    if found:
        return
    if "input" in task.left_out:
        yield "input"
    elif new.priority != task.priority:
        yield "priority"
    else:
        yield "delay or webhook"


def _certain(new: NewTask, task: Task, options: list[dict[str, Any]]) -> Iterator[str]:
    if new.task != task.task:
        yield "task"
    if "input" not in task.left_out:
        yield from _paths("input", wire.decode(new.input), task.input)
    if new.queue != task.queue:
        yield "queue"
    if (new.group and new.group.rpartition("\n")[2]) != task.group:
        yield "group"
    for stored in options:
        mine, its = _own(wire.decode(new.options)), _own(stored)
        for name in sorted(mine.keys() | its.keys()):
            if name == "labels":
                yield from _paths(name, mine.get(name, {}), its.get(name, {}))
            elif mine.get(name) != its.get(name):
                yield name


def _own(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in NOT_IN_FINGERPRINT}


def _paths(path: str, one: Any, other: Any, level: int = 0) -> Iterator[str]:
    """The paths of the values that differ in two JSON values, without the value of anything."""
    if type(one) is not type(other) or secret.name_in(one) is not None or level == MAX_LEVELS:
        if type(one) is not type(other) or one != other:
            yield path
    elif isinstance(one, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            inner = f"{path}.{name}" if name.isidentifier() and len(name) <= MAX_NAME else f"{path}[{_short(name)}]"
            if name in one and name in other:
                yield from _paths(inner, one[name], other[name], level + 1)
            else:
                yield inner
    elif isinstance(one, list):
        for index, (item, its) in enumerate(zip(one, other, strict=False)):
            yield from _paths(f"{path}[{index}]", item, its, level + 1)
        if len(one) != len(other):
            yield f"the length of {path}"
    elif one != other:
        yield path


def _short(name: str) -> str:
    return repr(name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…")
