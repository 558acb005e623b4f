"""Arguments: turns a JSON value into the arguments of a function and checks them against its annotations.

Handlers and tools are called this way.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from onward.core import call, mask, secret
from onward.core.annotations import adapter, bears_secrets, secret_str, secret_str_type
from onward.errors import InvalidInput

_UNCHECKED = (inspect.Parameter.empty, Any, object)


def with_placeholders(value: Any) -> Any:
    """The JSON value with a placeholder for each reference to a secret, so that annotations can be checked without the secrets."""
    return secret.replaced(
        value, lambda item: None if (name := secret.name_in(item)) is None else secret_str(f"[secret {name}]")
    )


def _has_clear_text(value: Any) -> bool:
    """Whether the value has a secret that was given as clear text and not as a reference."""
    if hasattr(value, "get_secret_value"):
        return not isinstance(value, (secret_str_type(), secret.Secret))
    if isinstance(value, list | tuple | set | frozenset):
        return any(_has_clear_text(item) for item in value)
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if extra := getattr(value, "__pydantic_extra__", None):
        fields = {**(fields or {}), **extra}
    if fields is None and dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return isinstance(fields, dict) and any(_has_clear_text(item) for item in fields.values())


_COROUTINE = inspect.CO_COROUTINE


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine. Looks at the flags of the code first, because each step calls this."""
    code = getattr(function, "__code__", None)
    if code is not None:
        return code.co_flags & _COROUTINE != 0  # type: ignore[no-any-return]
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class Arguments:
    """The parameters of a function, without its first `skipped` ones. `what` names the function in errors."""

    def __init__(self, function: Callable[..., Any], what: str, skipped: int = 0) -> None:
        self.function: Callable[..., Any] = function
        self.what: str = what
        parameters = list(inspect.signature(function).parameters.values())[skipped:]
        try:
            hints = typing.get_type_hints(function)
        except Exception:
            hints = {}
        self.parameters: list[inspect.Parameter] = [
            p.replace(annotation=hints.get(p.name, p.annotation)) for p in parameters
        ]
        self.secrets: dict[str, secret.Secret] = {
            p.name: p.default for p in self.parameters if isinstance(p.default, secret.Secret)
        }
        """Parameters that have a secret as their default. Callers cannot give them a value, and the schema does not show them."""
        self.parameters = [p for p in self.parameters if p.name not in self.secrets]
        self.named: dict[str, inspect.Parameter] = {
            p.name: p for p in self.parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }
        """Parameters that take a value of their own."""
        self.needed: frozenset[str] = frozenset(name for name, p in self.named.items() if p.default is p.empty)
        self.open_ended: bool = any(p.kind is p.VAR_KEYWORD for p in self.parameters)
        """Whether it takes any keyword argument (`**kwargs`)."""
        self._positional_only = [p for p in self.parameters if p.kind is p.POSITIONAL_ONLY]

    @property
    def first(self) -> str:
        """The parameter that gets an input that is not an object."""
        return call.first(self.named, self.needed)

    def of(self, value: Any) -> tuple[list[Any], dict[str, Any]]:
        """A JSON value as the arguments of the function (see `core/call.py`), checked against its annotations."""
        arguments = call.arrange(value, self.named, self.needed, open_ended=self.open_ended)
        if arguments is None:
            quiet = any(bears_secrets(p.annotation) for p in self.parameters if p.annotation not in _UNCHECKED)
            raise call.refusal(self.what, self._parts, value, quiet=quiet)
        return self._split({name: self._check(self.named.get(name), item) for name, item in arguments.items()})

    def whole(self, value: Any) -> dict[str, Any] | None:
        """See `core/call.py`."""
        return call.whole(value, self.named, self.needed, open_ended=self.open_ended)

    def by_name(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The same for an object that is always the keyword arguments."""
        unknown = [] if self.open_ended else sorted(values.keys() - self.named.keys())
        if missing := sorted(self.needed - values.keys()):
            raise InvalidInput(f"{self.what} needs {', '.join(map(repr, missing))}; it takes {self.usage}")
        if unknown:
            raise InvalidInput(f"{self.what} has no {', '.join(map(repr, unknown))}; it takes {self.usage}")
        return self.of(values)

    def _split(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional arguments for positional-only parameters, keyword arguments for the others."""
        return [values.pop(p.name, p.default) for p in self._positional_only], {**values, **self.secrets}

    @property
    def usage(self) -> str:
        """The arguments for an error message."""
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
            quiet = bears_secrets(parameter.annotation)
            raise InvalidInput(
                f"{self.what}: the input for {parameter.name!r} {_first_problem(error, quiet)}"
            ) from None
        if bears_secrets(parameter.annotation) and _has_clear_text(checked):
            raise InvalidInput(f"{self.what}: {secret.in_clear_text(parameter.name)}")
        return checked

    @functools.cached_property
    def _properties(self) -> Mapping[str, Any]:
        """Made once: a test starts a worker, and registers its handlers, for each crash of a task."""
        return {name: _property(p) for name, p in self.named.items()}

    def schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return {
            "type": "object",
            "properties": dict(self._properties),
            "required": [name for name in self.named if name in self.needed],
            "description": inspect.getdoc(self.function) or "",
        }


def _property(parameter: inspect.Parameter) -> dict[str, Any]:
    if parameter.annotation in _UNCHECKED:
        return {}
    try:
        return secret.in_schema(adapter(parameter.annotation).json_schema())  # type: ignore[no-any-return]
    except Exception:  # a type that JSON schema cannot describe
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
    return text if len(text) <= 60 else mask.cut(text, 57) + "…"
