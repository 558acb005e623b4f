"""Types for the signatures of `Context` and `Onward`, which only type checkers use: options, and the types of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from onward.core.durations import Duration
from onward.core.retry import Retry

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from onward.core.budget import Budget

    T_co = TypeVar("T_co", covariant=True, default=Any)
    """The result of a task; a bare `Handle` is a `Handle[Any]`."""
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)  # typing of Python 3.11 has no defaults


Effect = Literal["read", "idempotent", "once"]


class StepOptions(TypedDict, total=False):
    """Options of `ctx.step` and `ctx.map`; see `ctx.step`."""

    name: str | None
    retry: Retry | int | None
    timeout: Duration | None
    undo: Callable[..., Any] | None
    effect: Effect | None
    reconcile: Callable[..., Any] | None


class TransactionOptions(TypedDict, total=False):
    """Options of `ctx.transaction`."""

    name: str | None
    retry: Retry | int | None


class _TaskOptions(TypedDict, total=False):
    priority: int
    queue: str | None
    deadline: Duration | None
    delay: Duration | None
    expires: Duration | None
    labels: Mapping[str, str] | None
    group: str | None
    budget: Budget | None
    webhook: str | None


class ChildOptions(_TaskOptions, total=False):
    """Options of `ctx.submit`; see `app.submit`."""

    after: str | None


class SubmitManyOptions(_TaskOptions, total=False):
    """Options of `app.submit_many`."""

    asker: str | None
    connection: Any


class SubmitOptions(SubmitManyOptions, total=False):
    """Options of `app.submit`."""

    key: str | None
    after: str | None
