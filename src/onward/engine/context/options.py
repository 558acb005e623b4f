"""Checks of the arguments and options of calls on a context, before anything runs."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn

from onward.engine.context.call import takes_result
from onward.engine.context.signatures import ChildOptions
from onward.errors import BadSetting, UsageError

EFFECTS = ("read", "idempotent", "once")


def function_name(function: Callable[..., Any]) -> str:
    """The name of a step that runs this function."""
    name = getattr(function, "__name__", None)
    if name is None:
        inner = function.func if isinstance(function, functools.partial) else function
        name = getattr(inner, "__name__", type(inner).__name__)
    return str(name)


def check_function(
    verb: str, function: Any, task_name: Callable[[Any], str | None], args: tuple[Any, ...] = ()
) -> None:
    """Raise UsageError when a step is to run something that is no function, or a handler. Each step calls this."""
    code = getattr(function, "__code__", None)
    if code is None:
        if not callable(function):
            refuse_value(verb, function)
    elif code.co_varnames[:1] == ("ctx",) and not (args and hasattr(args[0], "task_id")):
        refuse_handler(verb, function, task_name(function))


def refuse_handler(verb: str, function: Callable[..., Any], task: str | None) -> None:
    """Raise UsageError when the function of a step is the handler of tasks of this name."""
    if task is not None:
        instead = f"ctx.map({task!r}, items)" if verb == "map" else f"await ctx.submit({function_name(function)}, …)"
        raise UsageError(
            f"ctx.{verb} runs a function as a step, and {function_name(function)} is a handler, which is a task of its own; "
            f"for a child task write `{instead}`"
        )


def refuse_value(verb: str, value: Any) -> NoReturn:
    """Raise UsageError for a value that was given in the place of a function."""
    if inspect.iscoroutine(value):
        value.close()
        name = value.__name__
        raise UsageError(
            f"ctx.{verb} takes the function and its arguments, and got a call of {name}; write `ctx.{verb}({name}, …)` "
            f"and not `ctx.{verb}({name}(…))`"
        )
    takes = {
        "map": "a function, or the name of a handler, and then the items",
        "submit": "a handler, or the name of one, and then its input",
    }
    what = takes.get(verb, "a function, and then its arguments")
    raise UsageError(f"ctx.{verb} takes {what}, and got {value!r:.80} first")


def check_branches(work: Iterable[Any]) -> None:
    """Raise UsageError for an argument of `ctx.gather` that cannot be awaited."""
    for branch in work:
        if not hasattr(branch, "__await__") and not inspect.isawaitable(branch):
            hint = f"ctx.gather(ctx.step({function_name(branch)}, …), …)" if callable(branch) else "ctx.gather(*calls)"
            raise UsageError(f"ctx.gather takes calls that it awaits, and got {branch!r:.80}; write `{hint}`")


def check_arguments(
    verb: str, function: Callable[..., Any], kwargs: Mapping[str, Any], options: Collection[str]
) -> None:
    """Raise UsageError for an argument by name that is neither a parameter of the function nor an option."""
    code = getattr(function, "__code__", None)
    if code is not None:
        if code.co_flags & inspect.CO_VARKEYWORDS:
            return
        names: Collection[str] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    else:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return
        names = parameters
    for name in kwargs:
        if name not in names:
            meant = difflib.get_close_matches(name, [*options, *names], 1)
            hint = f"perhaps you meant {meant[0]!r}" if meant else f"the options are {', '.join(sorted(options))}"
            raise UsageError(
                f"{function_name(function)} has no parameter {name!r}, and ctx.{verb} has no such option; {hint}"
            )


def check_step_options(options: Mapping[str, Any]) -> None:
    """Raise BadSetting for an option of a step that has the wrong type. (`retry`, `timeout` and `effect` are checked where they are read.)"""
    for name in ("name", "makes"):
        if not isinstance(options[name], str | None):
            raise BadSetting(name, options[name], "a string")
    for name in ("undo", "reconcile"):
        if options[name] is not None and not callable(options[name]):
            if inspect.iscoroutine(options[name]):
                options[name].close()
            raise BadSetting(name, options[name], "a function, and not a call of one")


def check_effect(effect: str | None) -> str | None:
    """The effect, if it is one. Raises BadSetting."""
    if effect is not None and effect not in EFFECTS:
        raise BadSetting("effect", effect, f"one of {', '.join(EFFECTS)}")
    return effect


def check_counterpart(
    option: str, function: Callable[..., Any], step: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raise UsageError when the `undo` or `reconcile` of a step cannot take the arguments that it would get."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a wrapper may take other arguments
    except (TypeError, ValueError):
        return
    result = {"result": None} if option == "undo" and takes_result(function) else {}
    try:
        signature.bind(*args, **{**kwargs, **result})
    except TypeError as error:
        extra = ", and with `result` where it has a parameter of that name" if option == "undo" else ""
        raise UsageError(
            f"{option}={function_name(function)} of step {step!r} cannot be called: {error}. "
            f"It gets the arguments of the step{extra}"
        ) from None


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
