"""Calls to a Temporal server, and its errors."""

from __future__ import annotations

from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from onward.errors import StoreUnavailable


class NotFound(Exception):
    """There is no such workflow, or it has ended."""


async def rpc(call: Any) -> Any:
    """The answer of a call. Raises NotFound and StoreUnavailable."""
    try:
        return await call
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NotFound from error
        raise unavailable(error) from error


def unavailable(error: RPCError) -> StoreUnavailable:
    """The error for callers of Onward."""
    return StoreUnavailable(f"Temporal does not answer: {error.message}")


def is_late(error: BaseException | None) -> bool:
    """Whether an answer did not come within its time."""
    late = {RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}
    return isinstance(error, RPCError) and error.status in late
