"""Arguments: how a JSON value becomes the arguments of a function, and what its annotations have to say about that.

Also how its result comes back from JSON. Handlers and tools are called this way.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
import weakref
from collections.abc import Callable
from typing import Any

from onward.core import call, secret
from onward.errors import InvalidInput

_UNCHECKED = (inspect.Parameter.empty, Any, object)


@functools.lru_cache(maxsize=2048)
def adapter(annotation: Any) -> Any:
    """Pydantic's checker for a type. Imported here because it takes as long as all the rest of Onward to load, and a
    process that only submits plain values never needs it."""
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter(annotation)


@functools.cache
def _lent() -> Any:
    from pydantic import SecretStr  # noqa: PLC0415 -- as above

    class Lent(SecretStr):
        """A SecretStr that was made of a reference, and not of a clear text. Pydantic lets it through as it is."""

    Lent.__name__ = "SecretStr"
    return Lent


def lent(value: str) -> Any:
    """The value of a secret as functions are given it."""
    return _lent()(value)


def standing_in(value: Any) -> Any:
    """JSON with something in the place of each reference that its annotations can be compared with."""
    return secret.replaced(
        value, lambda one: None if (name := secret.name_in(one)) is None else lent(f"[secret {name}]")
    )


@functools.lru_cache(maxsize=2048)
def _bears_secrets(annotation: Any) -> bool:
    return "Secret" in repr(adapter(annotation).core_schema)


def _clear(value: Any) -> bool:
    """Whether there is a secret in it that was given as a clear text."""
    if hasattr(value, "get_secret_value"):
        return not isinstance(value, (_lent(), secret.Secret))
    if isinstance(value, list | tuple | set | frozenset):
        return any(_clear(item) for item in value)
    inside = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if extra := getattr(value, "__pydantic_extra__", None):
        inside = {**(inside or {}), **extra}
    if inside is None and dataclasses.is_dataclass(value):
        inside = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return isinstance(inside, dict) and any(_clear(item) for item in inside.values())


_COROUTINE = inspect.CO_COROUTINE


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine. Looks at the code's flags first: this is asked once for every step."""
    code = getattr(function, "__code__", None)
    if code is not None:
        return code.co_flags & _COROUTINE != 0  # type: ignore[no-any-return]
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


_kinds: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Weak, because a step is often a closure made for the occasion, and would keep alive all that it captured."""


def rich_return(function: Callable[..., Any]) -> Any:
    """The return type that turns JSON back into a value of its own (a pydantic model, a dataclass), or None."""
    if "return" not in getattr(function, "__annotations__", ()):
        return None
    key = getattr(function, "__func__", function)
    try:
        if key not in _kinds:
            _kinds[key] = _rich_return(function)
        return _kinds[key]
    except TypeError:  # not hashable, or without weak references
        return _rich_return(function)


def revived(function: Callable[..., Any], value: Any, ask: Callable[[str], str]) -> Any:
    """A JSON value as the function would return it; `ask` gives the values of secrets in it."""
    kind = rich_return(function)
    if kind is None or value is None:
        return value
    if _bears_secrets(kind):
        value = secret.replaced(value, lambda one: None if (name := secret.name_in(one)) is None else lent(ask(name)))
    return adapter(kind).validate_python(value)


def _rich_return(function: Callable[..., Any]) -> Any:
    try:
        kind = typing.get_type_hints(function).get("return")
    except Exception:
        return None
    return kind if hasattr(kind, "model_validate") or dataclasses.is_dataclass(kind) else None


class Arguments:
    """What a function takes, without its first `skipped` parameters. `what` names it in errors."""

    def __init__(self, function: Callable[..., Any], what: str, skipped: int = 0) -> None:
        self.function, self.what = function, what
        found = list(inspect.signature(function).parameters.values())[skipped:]
        try:
            hints = typing.get_type_hints(function)
        except Exception:
            hints = {}
        self.parameters = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in found]
        self.secrets = {p.name: p.default for p in self.parameters if isinstance(p.default, secret.Secret)}
        """Parameters that have a secret as their default. Nobody else may say what they are, or sees them."""
        self.parameters = [p for p in self.parameters if p.name not in self.secrets]
        self.named = {p.name: p for p in self.parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        """Parameters that take a value of their own."""
        self.needed = frozenset(name for name, p in self.named.items() if p.default is p.empty)
        self.open_ended = any(p.kind is p.VAR_KEYWORD for p in self.parameters)
        """Whether it takes names that it does not name."""
        self._placeful = [p for p in self.parameters if p.kind is p.POSITIONAL_ONLY]

    @property
    def first(self) -> str:
        """The parameter that gets an input which is no object."""
        return call.first(self.named, self.needed)

    def of(self, value: Any) -> tuple[list[Any], dict[str, Any]]:
        """A JSON value as the arguments of the function (see `core/call.py`), checked against its annotations."""
        given = call.arrange(value, self.named, self.needed, open_ended=self.open_ended)
        if given is None:
            quiet = any(_bears_secrets(p.annotation) for p in self.parameters if p.annotation not in _UNCHECKED)
            raise call.refusal(self.what, self._parts, value, quiet=quiet)
        return self._placed({name: self._check(self.named.get(name), item) for name, item in given.items()})

    def by_name(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The same for an object that can be nothing but keyword arguments."""
        strange = [] if self.open_ended else sorted(values.keys() - self.named.keys())
        if missing := sorted(self.needed - values.keys()):
            raise InvalidInput(f"{self.what} needs {', '.join(map(repr, missing))}; it takes {self.usage}")
        if strange:
            raise InvalidInput(f"{self.what} has no {', '.join(map(repr, strange))}; it takes {self.usage}")
        return self.of(values)

    def _placed(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """By name, but for parameters that have only a place."""
        return [values.pop(p.name, p.default) for p in self._placeful], {**values, **self.secrets}

    @property
    def usage(self) -> str:
        """The arguments as a person would write them."""
        return call.usage(self._parts)

    @property
    def _parts(self) -> list[str]:
        return [p.name if p.annotation is p.empty else f"{p.name}: {_type_name(p.annotation)}" for p in self.parameters]

    def _check(self, parameter: inspect.Parameter | None, value: Any) -> Any:
        if parameter is None or parameter.annotation in _UNCHECKED:
            return value
        if type(value) is parameter.annotation and type(value) in {str, int, float, bool}:
            return value
        try:
            checked = adapter(parameter.annotation).validate_python(value)
        except ValueError as error:
            quiet = _bears_secrets(parameter.annotation)
            raise InvalidInput(
                f"{self.what}: the input for {parameter.name!r} {_first_problem(error, quiet)}"
            ) from None
        if _bears_secrets(parameter.annotation) and _clear(checked):
            raise InvalidInput(f"{self.what}: {secret.in_clear_text(parameter.name)}")
        return checked

    def schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return {
            "type": "object",
            "properties": {name: _property(p) for name, p in self.named.items()},
            "required": [name for name in self.named if name in self.needed],
            "description": inspect.getdoc(self.function) or "",
        }


def _property(parameter: inspect.Parameter) -> dict[str, Any]:
    if parameter.annotation in _UNCHECKED:
        return {}
    try:
        return secret.in_schema(adapter(parameter.annotation).json_schema())  # type: ignore[no-any-return]
    except Exception:  # a type that JSON schema has no words for
        return {}


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")


def _first_problem(error: ValueError, quiet: bool) -> str:
    problems = error.errors() if hasattr(error, "errors") else []
    if not problems:
        return "does not fit" if quiet else f"does not fit ({error})"
    where = ".".join(str(part) for part in problems[0]["loc"])
    got = "" if quiet else f" (got {_short_repr(problems[0]['input'])})"
    return f"does not fit{f' at {where}' if where else ''}: {problems[0]['msg']}{got}"


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
