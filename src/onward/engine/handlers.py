"""Handlers: the functions that do tasks, with the options that they were registered with."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from onward.core.journal.checkpoint import DEFAULT, Checkpoints
from onward.core.limit import Limit
from onward.core.result_types import ResultType, encode_plain, plain_forms, result_type
from onward.core.retry import Retry
from onward.engine.context.arguments import Arguments, with_placeholders
from onward.errors import InvalidInput, UsageError

DEFAULT_RETRY = Retry(attempts=4)
_JSON_SCALARS = frozenset({type(None), bool, int, float, str})


@dataclasses.dataclass(frozen=True)
class Handler:
    """A registered function and its options."""

    name: str
    function: Callable[..., Any]
    retry: Retry = DEFAULT_RETRY
    deadline: float | None = None
    queue: str = "default"
    group: str | None = None
    limit: Limit | None = None
    checkpoint: Checkpoints = DEFAULT
    agent: bool = False
    """Whether it is an agent: a model decides its steps."""
    framework: str = ""
    """The framework whose agent it is. Such a handler is listed as an agent, and the engine runs it like any other handler."""
    secrets: Collection[str] = ()
    """The secrets that may be named in an input."""
    doc: str | None = None
    """Its description, where that is not the docstring of its function."""

    siblings: Mapping[str, Handler] = dataclasses.field(default_factory=dict, repr=False)
    """All handlers of the app, by name."""

    @functools.cached_property
    def takes(self) -> Arguments:
        """The arguments of the function, without the context."""
        if not inspect.signature(self.function).parameters:
            raise UsageError(
                f"the handler {self.name!r} takes no context; write `def {self.function.__name__}(ctx, …)`"
            )
        return Arguments(self.function, f"task {self.name!r}", skipped=1)

    def arguments(self, value: Any) -> tuple[list[Any], dict[str, Any]]:
        """See `Arguments.of`."""
        return self.takes.of(value)

    def check(self, value: Any) -> None:
        """Raises InvalidInput when the handler does not take it, whatever the secrets that it names may be."""
        self.takes.of(with_placeholders(value) if self.secrets else value)

    @functools.cached_property
    def grouping(self) -> tuple[str, bool] | None:
        """The argument that names a task's group, and whether an input that is no object is that argument."""
        if self.group is None:
            return None
        if self.group not in self.takes.named:
            raise UsageError(f"the handler {self.name!r} has no argument {self.group!r} to group its tasks by")
        return self.group, self.group == self.takes.first

    @functools.cached_property
    def result_type(self) -> ResultType | None:
        """The declared type of its results; None when they are plain JSON."""
        return result_type(self.function)

    def dump_result(self, result: Any) -> Any:
        """The result as it is recorded. Raises InvalidInput."""
        if self.result_type is not None:
            return self.result_type.dump(result)
        if self._checks_plain and type(result) not in _JSON_SCALARS:
            encode_plain(self.function, result, "the result of the task")
        return result

    @functools.cached_property
    def _checks_plain(self) -> bool:
        return plain_forms(self.function) is not None

    def load_result(self, value: Any, secret_value: Callable[[str], str] | None = None) -> Any:
        """The result of a task from its JSON value, in the type that the function returns. Raises InvalidInput."""
        if self.result_type is None:
            return value
        try:
            return self.result_type.load(value, secret_value)
        except ValueError as error:
            raise InvalidInput(
                f"the result of a task {self.name!r} does not fit the type that the handler declares now ({error}); "
                "`await app.get(task_id)` shows the result as it was recorded"
            ) from None

    def registration(self) -> dict[str, Any]:
        """What other processes need to know of it: its queue, deadline and grouping for their submits, its schema for forms."""
        registration: dict[str, Any] = {
            "queue": self.queue,
            "deadline": self.deadline,
            "group": self.grouping,
            "attempts": self.retry.attempts,
            "input": self.takes.schema() | {"additionalProperties": self.takes.open_ended},
            "secrets": sorted(self.secrets),
        }
        registration |= {} if self.doc is None else {"doc": self.doc}
        return registration | ({"agent": True} if self.agent or self.framework else {})
