"""Checks of the options of steps and children, before anything runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from onward.engine.context.signatures import ChildOptions
from onward.errors import UsageError


def function_name(function: Callable[..., Any]) -> str:
    """The name of a step that runs this function."""
    name = getattr(function, "__name__", None)
    if name is None:
        inner = function.func if isinstance(function, functools.partial) else function
        name = getattr(inner, "__name__", type(inner).__name__)
    return str(name)


def refuse_shadowed(
    verb: str, options: Mapping[str, Any], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise UsageError when an option got a value that may be meant for a parameter of the same name."""
    code = getattr(function, "__code__", None)
    if code is None or options.keys().isdisjoint(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        return
    signature = inspect.signature(function)
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:  # arguments that do not fit: the call itself raises
        return
    for name, parameter in signature.parameters.items():
        if options.get(name) is not None and name not in given and parameter.kind is not parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"{function_name(function)} has a parameter {name!r}, and {name}= is an option of ctx.{verb}; give the parameter its value by "
                f"position, or with functools.partial({function_name(function)}, {name}=…)"
            )


_NOT_FOR_CHILDREN = {
    "key": "a child has a key of its own, made of the task and the place in its code, so it is submitted once",
    "connection": "the engine submits a child in a transaction of its own; for a task in your transaction, which is no child, call "
    "app.submit(…, connection=…) in a step",
}


def check_child_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that `ctx.submit` does not take."""
    for name in options.keys() - ChildOptions.__optional_keys__:
        if name in _NOT_FOR_CHILDREN:
            raise UsageError(f"ctx.submit takes no {name}=: {_NOT_FOR_CHILDREN[name]}")
        raise UsageError(
            f"ctx.submit has no option {name!r}; it takes {', '.join(sorted(ChildOptions.__optional_keys__))}"
        )
