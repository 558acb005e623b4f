"""Checks of the options of steps and children, before anything runs."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
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


def refuse_unknown(verb: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError for an option that the verb does not take, with the option that was probably meant."""
    names = sorted(known)
    for name in sorted(set(options).difference(names)):
        meant = difflib.get_close_matches(name, names, 1)
        hint = f"perhaps you meant {meant[0]!r}" if meant else f"it takes {', '.join(names)}"
        raise UsageError(f"{verb} has no option {name!r}; {hint}")


_NOT_FOR_CHILDREN = {
    "key": "a child has a key of its own, made of the task and the place in its code, so it is submitted once",
    "connection": "the engine submits a child in a transaction of its own; for a task in your transaction, which is no child, call "
    "app.submit(…, connection=…) in a step",
}


def check_child_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that `ctx.submit` does not take."""
    for name in options.keys() & _NOT_FOR_CHILDREN.keys():
        raise UsageError(f"ctx.submit takes no {name}=: {_NOT_FOR_CHILDREN[name]}")
    refuse_unknown("ctx.submit", options, ChildOptions.__optional_keys__)
