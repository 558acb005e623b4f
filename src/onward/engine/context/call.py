"""The call of a step: a function with its arguments and options, as a context hands it to the host."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from onward.core import wire
from onward.core.lock import Fence, without_fences
from onward.core.retry import NO_RETRY, Retry
from onward.errors import InvalidInput

_NOTHING: Mapping[str, Any] = {}
UNDO_RETRY = Retry(attempts=6)


class Call:
    """A step that the host runs. Options that most steps do not use are defaults of the class, so that such a step costs nothing for them.

    A function may have an attribute `until`, in the database's time: the engine begins no attempt after it. With `cut` the engine
    cancels a running attempt at that time and does not repeat it; a step without a `timeout` is not cancelled.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    retry: Retry = NO_RETRY
    timeout: float | None = None
    mark: str = ""
    """A hash of the arguments; empty when they are not JSON."""
    undo: Callable[..., Any] | None = None
    effect: str | None = None
    reconcile: Callable[..., Any] | None = None

    def __init__(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = _NOTHING
    ) -> None:
        self.name, self.function, self.args, self.kwargs = name, function, args, kwargs

    def as_undo(self, result: Any) -> Call:
        """The call that undoes this one: with the same arguments, and the result where `undo` has a parameter of that name."""
        assert self.undo is not None
        kwargs = dict(self.kwargs) | ({"result": result} if takes_result(self.undo) else {})
        call = Call(self.name, self.undo, self.args, kwargs)
        call.retry = UNDO_RETRY
        return call

    def as_reconcile(self) -> Call:
        """The call that finds out whether this one happened."""
        assert self.reconcile is not None
        return Call(self.name, self.reconcile, self.args, self.kwargs)


def takes_result(function: Callable[..., Any]) -> bool:
    """Whether an undo has a parameter for the result of the step that it undoes."""
    try:
        return "result" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def mark_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A hash of the arguments of a call; empty when they are not JSON."""
    try:
        return wire.fingerprint(without_fences([args, kwargs]) if Fence.seen else [args, kwargs])
    except InvalidInput:  # arguments that are not JSON are allowed, and not compared in a replay
        return ""
