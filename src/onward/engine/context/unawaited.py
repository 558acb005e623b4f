"""Finds calls on a context that the handler forgot to await: Python only warns, and the task would complete without them.

A call that was not awaited is a coroutine that has not begun. The context keeps the last few of its coroutines, and forgets those that have
begun. Finished ones hold no frame, so that they keep nothing else in memory.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from onward.errors import UsageError

T = TypeVar("T")
C = TypeVar("C", bound=type)

KEPT = 8
"""Coroutines that a context keeps before it looks which of them have begun."""


class Unawaited:
    """The calls on one context that may not have begun."""

    __slots__ = ("_kept", "_room")

    def __init__(self) -> None:
        self._kept: list[tuple[Any, str, str]] = []
        self._room = KEPT

    def add(self, work: Coroutine[Any, Any, T], verb: str, step: str = "") -> Coroutine[Any, Any, T]:
        """Remember a call, and return it. `step` is the name of its step."""
        self._kept.append((work, verb, step))
        if len(self._kept) > self._room:
            self._kept = [kept for kept in self._kept if kept[0].cr_frame is not None and _not_begun(kept[0])]
            self._room = KEPT + 2 * len(self._kept)  # a gather of many steps is not searched for each of them
        return work

    def check(self) -> None:
        """Raise UsageError when a call has not begun. The handler has returned: nothing awaits it any more."""
        forgotten = [kept for kept in self._kept if _not_begun(kept[0])]
        self._kept = []
        for work, _, _ in forgotten:
            work.close()
        if forgotten:
            _, verb, step = forgotten[0]
            what = f"step {step!r}" if step else f"ctx.{verb}(…)"
            more = f", nor {len(forgotten) - 1} other calls on ctx" if len(forgotten) > 1 else ""
            raise UsageError(
                f"the handler returned, but {what} never ran{more}, because the handler did not await it; "
                f"await it: `await ctx.{verb}(…)`"
            )


def _not_begun(work: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(work) == inspect.CORO_CREATED


def notices_unawaited(context: C) -> C:
    """A class decorator: the coroutines of all public methods are remembered in `_unawaited`."""
    for name, method in list(vars(context).items()):
        if not name.startswith("_") and inspect.iscoroutinefunction(method):
            setattr(context, name, _noticed(name, method))
    return context


def _noticed(verb: str, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        unawaited: Unawaited = self._unawaited
        return unawaited.add(method(self, *args, **kwargs), verb)

    return call
