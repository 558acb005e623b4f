"""Result types: the return annotation of a function decides how its results are recorded, and which type a reader gets back.

A result is recorded as JSON. JSON has no dates, sets, bytes or models, so a value of such a type is built from its JSON by its annotation
each time it is read: in the first run too, so that a handler sees the same value as in a replay. Plain JSON needs none of this: there
`encode_plain` only refuses an object that would come back as another type than the annotation says.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import inspect
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from onward.core import secret, wire
from onward.core.annotations import adapter, bears_secrets, secret_str
from onward.errors import InvalidInput, UsageError

_SCALARS = frozenset({type(None), None, bool, int, float, str})
_OPEN = frozenset({Any, object, inspect.Parameter.empty, typing.NoReturn, typing.Never})
"""Annotations that say nothing of the type."""
_LISTS = frozenset(
    {list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection}
    | {collections.abc.Iterable, collections.abc.Reversible}
)
_OBJECTS = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})
_UNIONS = frozenset({typing.Union, types.UnionType})
_ITERATORS = (collections.abc.Iterator, collections.abc.AsyncIterator)
_KEYS = frozenset({"string", "number", "bool", "value"})
"""Kinds that can be written as the name of a field, and read back."""
_AWAITED = frozenset({collections.abc.Awaitable, collections.abc.Coroutine})


class ResultType:
    """A return annotation whose values have to be built from their JSON."""

    def __init__(self, annotation: Any) -> None:
        self.annotation: Any = annotation
        self._adapter = adapter(_readable(annotation))
        self._bears_secrets = bears_secrets(annotation)
        self._compares = _has_object_union(annotation)

    def dump(self, value: Any) -> Any:
        """The JSON value of a result. Raises InvalidInput when it has none."""
        if self._bears_secrets:
            return value  # the encoder writes the names of its secrets
        try:
            return self._adapter.dump_python(value, mode="json", by_alias=False, round_trip=True, warnings=False)
        except (ValueError, TypeError) as error:
            raise InvalidInput(
                f"a {type(value).__name__} cannot be kept as the {_name(self.annotation)} that is declared ({error})"
            ) from None

    def load(self, value: Any, secret_value: Callable[[str], str] | None = None) -> Any:
        """A result from its JSON value; `secret_value` gives the values of secrets in it. Raises ValueError when it does not fit."""
        if value is None:
            return None
        if self._bears_secrets:
            return self._adapter.validate_python(_with_secrets(value, secret_value), by_alias=True, by_name=True)
        return self._adapter.validate_json(wire.encode(value), by_alias=True, by_name=True)

    def check_same(self, value: Any, loaded: Any) -> None:
        """Raise InvalidInput when the value of a union comes back as another member of the union."""
        if self._compares and type(loaded) is not type(value) and not isinstance(value, dict | list):
            raise InvalidInput(
                f"a {type(value).__name__} comes back from its record as a {type(loaded).__name__}: their fields do not tell them apart; "
                f'give each a field of its own, like kind: Literal["{type(value).__name__}"]'
            )


def _with_secrets(value: Any, secret_value: Callable[[str], str] | None) -> Any:
    def resolve(item: Any) -> Any:
        name = secret.name_in(item)
        if name is None:
            return None
        return secret_str(f"[secret {name}]" if secret_value is None else secret_value(name))

    return secret.replaced(value, resolve)


# ── the type of a function ───────────────────────────────────────────────────────────────────────────────────────────

_types: weakref.WeakKeyDictionary[Any, ResultType | None] = weakref.WeakKeyDictionary()
"""Weak, because a step is often a closure for one call: a strong reference would keep alive all that it captured."""


_NEW: Any = object()


def result_type(function: Callable[..., Any]) -> ResultType | None:
    """The result type of a function; None when its results are plain JSON, or when its annotation says nothing of them."""
    if type(function) is not types.FunctionType:
        function = _called(function)
    if not isinstance(function, type) and "return" not in getattr(function, "__annotations__", ()):
        return None
    if type(function) is types.FunctionType and function.__closure__ is not None:
        return _of_closure(function)
    try:
        known: ResultType | None = _types.get(function, _NEW)
        if known is _NEW:
            known = _types[function] = _result_type(function)
        return known
    except TypeError:  # not hashable, or without weak references
        return _result_type(function)


class _Closure(NamedTuple):
    """The result type that a closure was found to have."""

    annotation: Any
    names: Mapping[str, Any]
    """The global names by which its annotation was read."""
    result: ResultType | None


_closures: weakref.WeakKeyDictionary[types.CodeType, _Closure] = weakref.WeakKeyDictionary()
"""By their code: a handler makes a new function of the same code for each step, and its annotation takes longer to read than a step."""


def _of_closure(function: types.FunctionType) -> ResultType | None:
    code, annotation, names = function.__code__, function.__annotations__["return"], function.__globals__
    known = _closures.get(code)
    if known is not None and known.names is names and _is_same(known.annotation, annotation):
        return known.result
    result = _result_type(function)
    if not hasattr(function, "__wrapped__") and not _is_unknown(function):
        _closures[code] = _Closure(annotation, names, result)
    return result


def _is_same(annotation: Any, other: Any) -> bool:
    """Whether two annotations of one code mean the same type."""
    if annotation is other:
        return True
    return type(annotation) is type(other) and type(other) in {str, types.GenericAlias} and bool(annotation == other)


def _is_unknown(function: Any) -> bool:
    """Whether its annotation names a type that cannot be found. It may be there when the next function of this code is made."""
    try:
        typing.get_type_hints(function)
    except Exception:
        return True
    return False


def check_result_type(function: Callable[..., Any], what: str) -> None:
    """Raise UsageError when a function declares results that cannot be recorded. `what` names it."""
    annotation = _annotation(_called(function))
    if _is_plain(annotation):
        return
    reason = _obstacle(annotation)
    if reason is None:
        try:
            ResultType(annotation)
        except Exception as error:
            reason = f"{_name(annotation)} has no JSON form ({str(error).splitlines()[0]})"
    if reason is not None:
        raise UsageError(
            f"{what} declares a result that cannot be recorded: {reason}; return plain values, a dataclass or a pydantic model"
        )


def _result_type(function: Any) -> ResultType | None:
    annotation = _annotation(function)
    if _is_plain(annotation) or _obstacle(annotation) is not None:
        return None
    try:
        return _of_annotation(annotation)
    except Exception:  # a type that pydantic does not know
        return None


@functools.lru_cache(maxsize=2048)
def _of_hashable(annotation: Any) -> ResultType:
    return ResultType(annotation)


def _of_annotation(annotation: Any) -> ResultType:
    try:
        return _of_hashable(annotation)
    except TypeError:
        return ResultType(annotation)


def type_of(annotation: Any) -> ResultType | None:
    """The result type of an annotation; None when its values are plain JSON."""
    return None if _is_plain(annotation) else _of_annotation(annotation)


def _called(function: Any) -> Any:
    """The function or class behind a partial, a method, or an object that is called."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if isinstance(function, type | types.FunctionType) else type(function).__call__


def _annotation(function: Any) -> Any:
    """The return annotation; `Any` when there is none, or when it names a type that cannot be found."""
    if isinstance(function, type):
        return function
    try:
        annotation = typing.get_type_hints(function, include_extras=True).get("return", Any)
    except Exception:
        return Any
    if typing.get_origin(annotation) in _AWAITED:
        return typing.get_args(annotation)[-1]
    return annotation


# ── plain results ────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_plain(function: Callable[..., Any], value: Any, what: str = "its result") -> bytes:
    """JSON bytes of a result of a function whose annotation is plain, or says nothing. Raises InvalidInput when the value would come back
    as a type that the annotation does not have: a Decimal for `int` would be a string."""
    try:
        return wire.encode_plain(value, what)
    except wire.NotJson:
        forms = plain_forms(function)
        return wire.encode(value, what) if forms is None else wire.encode_in_forms(value, forms, what)


def plain_forms(function: Callable[..., Any]) -> frozenset[type] | None:
    """The types of JSON values that a function's plain annotation has; None when it leaves some open."""
    return _forms(_annotation(_called(function)))


def _forms(annotation: Any) -> frozenset[type] | None:
    """The types of JSON values that a plain annotation has; None when it leaves some open, like `list` and `dict[str, Any]`."""
    origin, items = _parts(annotation)
    if origin is typing.Literal:
        return frozenset(map(type, items))
    if origin is None or origin is type(None):
        return frozenset({type(None)})
    if origin in _SCALARS:
        return frozenset({origin})
    inside = tuple(_fields(origin).values()) if _is_typed_dict(origin) else items[1:] if origin in _OBJECTS else items
    parts = [_forms(item) for item in inside]
    if not parts or None in parts:
        return None
    own = {list} if origin in _LISTS else set() if origin in _UNIONS else {dict}
    return frozenset(own.union(*filter(None, parts)))


# ── annotations ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """The origin of an annotation and its arguments, without names for it."""
    while True:
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # `type X = …`, from Python 3.12
            annotation = annotation.__value__
        elif typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or Any
        else:
            return typing.get_origin(annotation) or annotation, typing.get_args(annotation)


def _is_plain(annotation: Any) -> bool:
    """Whether JSON keeps values of this annotation as they are."""
    origin, items = _parts(annotation)
    if origin is typing.Literal:
        return all(type(item) in _SCALARS for item in items)
    if _is_typed_dict(origin):
        return all(map(_is_plain, _fields(origin).values()))
    try:
        if origin in _SCALARS or origin in _OPEN:
            return True
        if origin in _OBJECTS:
            return not items or (_parts(items[0])[0] in {str, Any} and _is_plain(items[1]))
        return (origin in _LISTS or origin in _UNIONS) and all(map(_is_plain, items))
    except TypeError:  # not hashable
        return False


def _is_typed_dict(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__required_keys__")


def _fields(typed_dict: Any) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(typed_dict)
    except Exception:  # a name that cannot be found
        return {}


def _readable(annotation: Any) -> Any:
    """The annotation as pydantic reads it: of an Iterable it would make an iterator, which can be read once."""
    origin, items = _parts(annotation)
    if origin in {collections.abc.Iterable, collections.abc.Collection, collections.abc.Reversible}:
        return list[items[0]] if items else list  # type: ignore[valid-type]
    return annotation


def _obstacle(annotation: Any) -> str | None:
    """Why values of this annotation do not come back from JSON as they were; None when they do."""
    origin, items = _parts(annotation)
    if isinstance(origin, type):
        if origin in {collections.abc.Callable, type}:
            return f"{_name(annotation)} is code"
        if issubclass(origin, _ITERATORS):
            return f"{_name(annotation)} can be read only once"
        if issubclass(origin, enum.Enum) and not all(type(member.value) in _SCALARS for member in origin):
            return f"the values of {origin.__name__} are not all strings or numbers"
        if issubclass(origin, collections.abc.Mapping) and items and _json_kind(items[0]) not in _KEYS:
            return f"JSON has no {_name(items[0])} as the name of a field"
    if origin in _UNIONS:
        return _union_obstacle(items) or _first(map(_obstacle, items))
    if origin is typing.Literal:
        return None
    return _first(_obstacle(item) for item in items if item is not Ellipsis)


def _union_obstacle(members: tuple[Any, ...]) -> str | None:
    kinds: dict[str, list[Any]] = {}
    for member in members:
        kinds.setdefault(_json_kind(member), []).append(member)
    for kind, same in kinds.items():
        if kind != "object" and len(same) > 1 and not all(map(_is_plain, same)):
            return f"JSON has a {kind} for {' and for '.join(map(_name, same))}"
    objects = kinds.get("object", [])
    if any(_parts(member)[0] in _OBJECTS for member in objects) and not all(map(_is_plain, objects)):
        return f"JSON has an object for {' and for '.join(map(_name, objects))}"
    return None


def _json_kind(annotation: Any) -> str:
    """The kind of JSON value that stands for such a value."""
    origin, items = _parts(annotation)
    if origin is typing.Literal:
        return _json_kind(type(items[0]))
    if origin in _UNIONS:
        kinds = {_json_kind(item) for item in items}
        return kinds.pop() if len(kinds) == 1 else "union"
    if not isinstance(origin, type):
        return "object" if origin in _OBJECTS else "value"
    if issubclass(origin, enum.Enum):
        return _json_kind(type(next(iter(origin)).value)) if len(origin) else "value"
    if origin is type(None) or issubclass(origin, bool):
        return origin.__name__
    if issubclass(origin, int | float):
        return "number"
    if issubclass(origin, list | tuple | set | frozenset | collections.deque) or origin in _LISTS:
        return "list"
    if issubclass(origin, dict) or _is_object(origin):
        return "object"
    return "string"


def _is_object(kind: Any) -> bool:
    return kind in _OBJECTS or hasattr(kind, "model_validate") or dataclasses.is_dataclass(kind) or _is_typed_dict(kind)


def _has_object_union(annotation: Any) -> bool:
    origin, items = _parts(annotation)
    return origin in _UNIONS and sum(_json_kind(item) == "object" for item in items) > 1


def _first(reasons: collections.abc.Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
