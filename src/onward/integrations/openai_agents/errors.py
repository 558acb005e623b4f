"""Errors of models and tools in the journal: a replay raises them again with their type, so that an agent decides about them as it did."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import openai

from onward.agent.models.openai import OPENAI
from onward.core import wire
from onward.core.control import Control
from onward.engine.context.context import current
from onward.errors import StepFailed

MAX_MESSAGE_LENGTH = 500
"""Characters of the message of an error in a record."""


class RecordedError(Exception):
    """An error whose class is not loaded any more, or cannot be built from its record. It has the same message."""


async def run_step(work: Callable[[], Awaitable[Any]], name: str, **options: Any) -> Any:
    """The result of a step of this task. Raises the error of the step with its type, in replays too."""
    raised: list[BaseException] = []

    async def guarded() -> Any:
        try:
            return await work()
        except Exception as error:
            raised.append(error)
            with contextlib.suppress(AttributeError):  # its class has no room for it
                error.step_details = encode_error(error)  # type: ignore[attr-defined]
            raise
        except BaseException as error:
            if isinstance(error, Control) or _is_cancelled():
                raise
            raised.append(error)
            raise _Escaped(error) from error

    try:
        return await current().step(guarded, name=name, **options)
    except StepFailed as failed:
        failure = failed
    if not raised and failure.details is None and failure.kind != "CancelledError":
        raise failure
    raise raised[-1] if raised else _recorded(failure)  # here, so that its context is that of the caller


def _recorded(failure: StepFailed) -> BaseException:
    if failure.kind == "CancelledError":  # the SDK cancelled it, and decides about it
        return asyncio.CancelledError(failure.message)
    return decode_error(failure.details)


class _Escaped(Exception):
    """An exception that is no Exception, as the failure of a step."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.step_details = encode_error(error)


def _is_cancelled() -> bool:
    """Whether the asyncio task of this code is being cancelled. Otherwise a CancelledError comes from the code that it called."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def encode_error(error: BaseException) -> dict[str, Any]:
    """An error as JSON."""
    kind = type(error)
    recorded: dict[str, Any] = {
        "module": kind.__module__,
        "kind": kind.__qualname__,
        "message": str(error)[:MAX_MESSAGE_LENGTH],
    }
    if isinstance(error, openai.APIStatusError):
        return recorded | {"status": error.status_code, "body": error.body}
    if isinstance(error, openai.APIConnectionError):
        return recorded
    return recorded | {"args": _plain(_arguments(error))}


def decode_error(recorded: dict[str, Any]) -> BaseException:
    """The error of which `encode_error` made this."""
    kind = _find(recorded["module"], recorded["kind"])
    try:
        return _build(kind, recorded)
    except Exception:  # the class has changed since
        return RecordedError(recorded["message"])


def _arguments(error: BaseException) -> Any:
    """The arguments with which the error can be built again: by the names of its parameters where its attributes have them."""
    try:
        parameters = inspect.signature(type(error)).parameters.values()
    except (TypeError, ValueError):
        return list(error.args)
    names = [item.name for item in parameters if item.kind in {item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY}]
    if names and all(hasattr(error, name) for name in names):
        return {name: getattr(error, name) for name in names}
    return list(error.args)


def _plain(arguments: Any) -> Any:
    try:
        wire.encode(arguments)
    except Exception:
        return None
    return arguments


def _find(module: str, name: str) -> Any:
    """The class of an error, among the modules that are loaded and those of Python. None when there is none."""
    found: Any = sys.modules.get(module) or importlib.import_module("builtins")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception | asyncio.CancelledError) else None


def _build(kind: Any, recorded: dict[str, Any]) -> BaseException:
    request = httpx2.Request("POST", OPENAI)
    error: BaseException
    if "status" in recorded:
        response = httpx2.Response(recorded["status"], request=request)
        error = kind(recorded["message"], response=response, body=recorded["body"])
    elif issubclass(kind, openai.APITimeoutError):
        error = kind(request)
    elif issubclass(kind, openai.APIConnectionError):
        error = kind(message=recorded["message"], request=request)
    elif isinstance(recorded["args"], dict):
        error = kind(**recorded["args"])
    else:
        error = kind(*recorded["args"])
    return error
