"""Validates the arguments of a call by a JSON schema that another program wrote.

The schema is not trusted, and validation runs in the event loop of a worker, again at every replay. So the validator knows only the
keywords that tools use (types, names, lengths, ranges, alternatives, patterns, references within the schema), and counts its work: after
`MAX_WORK` units it accepts the arguments as they are. The program that wrote the schema checks the rest. The count is the same on every
machine; a time limit could give a replay another result than the first run.

Pydantic matches the patterns (Rust's `regex`, which takes time linear in the string), never Python's `re`. A pattern is ignored if
`regex` does not know it (look-around, back references), if it is too large, or if the string has more than `MAX_STRING_CHARS`
characters. No reference is fetched.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import StringConstraints, TypeAdapter, ValidationError

from onward.core import mask, wire

MAX_WORK = 20_000
"""Units of work for one call: each keyword, and each value that a keyword looks at, is one unit or more."""

MAX_DEPTH = 100
"""Schemas within schemas, with references followed."""

MAX_STRING_CHARS = 10_000
"""Characters of a string that is matched against a pattern."""

MAX_PATTERN_CHARS, MAX_PATTERN_WEIGHT = 1_000, 3_000
"""The size of a pattern: its characters, and its `weight` with repetitions written out (`x{9}` weighs nine, a class of all letters a
hundred)."""

MAX_ERRORS, MAX_VALUE_CHARS = 3, 80
"""Errors in one message, and characters of a value in it."""


def schema_errors(schema: Mapping[str, Any], arguments: dict[str, Any]) -> str:
    """Why the arguments do not fit a schema; empty when they fit, or when the check would be too much work."""
    validator = _Validator(schema)
    try:
        return "; ".join(itertools.islice(validator.errors(schema, arguments, "", 0), MAX_ERRORS))
    except (_TooMuchWork, RecursionError):
        return ""


class _TooMuchWork(Exception):
    """The units of work are spent."""


class _Validator:
    """One schema, and the work that is left for one call."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._work_left, self._patterns = root, MAX_WORK, set[str]()

    def spend(self, units: int = 1) -> None:
        self._work_left -= units
        if self._work_left < 0:
            raise _TooMuchWork

    def errors(self, schema: Any, value: Any, path: str, depth: int) -> Iterator[str]:
        """A sentence for each value that does not fit, in the order of the schema."""
        self.spend()
        if depth > MAX_DEPTH:
            raise _TooMuchWork
        if schema is False:
            yield f"{path or 'they'}: nothing is allowed here"
        if not isinstance(schema, Mapping):
            return
        for keyword, operand in schema.items():
            self.spend()
            if keyword in _NESTED_KEYWORDS:
                yield from _NESTED_KEYWORDS[keyword](self, operand, value, path, depth + 1, schema)
            elif (why := _KEYWORDS[keyword](self, operand, value) if keyword in _KEYWORDS else None) is not None:
                yield f"{path or 'they'}: {why}"

    def fits(self, schema: Any, value: Any, path: str, depth: int) -> bool:
        return next(self.errors(schema, value, path, depth), None) is None

    def spend_for(self, value: Any) -> None:
        """Count a value that is compared as a whole."""
        self.spend()
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                self.spend_for(item)

    def resolve(self, pointer: Any) -> Any:
        """The part of the schema that a reference names; for an unknown reference the schema `True`, which everything fits."""
        part: Any = self._root
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return True
        for name in pointer[1:].split("/")[1:]:
            self.spend()
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(part, list) and name.isascii() and name.isdecimal() and len(name) < 9:
                part = part[int(name)] if int(name) < len(part) else True
            elif isinstance(part, Mapping) and name in part:
                part = part[name]
            else:
                return True
        return part

    def matches(self, pattern: Any, text: str) -> bool | None:
        """Whether a string matches a pattern; None where the pattern is ignored."""
        if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS or len(text) > MAX_STRING_CHARS:
            return None
        if pattern not in self._patterns:
            pattern_weight = weight(pattern)
            # Count the compilation even if the cache has the pattern: the count must not depend on earlier calls.
            self.spend(100 + 3 * min(pattern_weight, MAX_PATTERN_WEIGHT))
            if pattern_weight > MAX_PATTERN_WEIGHT:
                return None
            self._patterns.add(pattern)
        self.spend(1 + len(text) // 50)
        if (compiled := _compiled(pattern)) is None:
            return None
        try:
            compiled.validate_python(text)
        except ValidationError:
            return False
        return True


# ── keywords about the value itself ──────────────────────────────────────────────────────────────────────────────────


def _format(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_VALUE_CHARS else f"{mask.cut(value, MAX_VALUE_CHARS)!r}…"
    return f"a {_type_name(value)}" if isinstance(value, dict | list) else repr(value)[:MAX_VALUE_CHARS]


def _type_name(value: Any) -> str:
    return next((name for name, fits in _TYPES.items() if fits(value)), type(value).__name__)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _type(validator: _Validator, operand: Any, value: Any) -> str | None:
    names = [operand] if isinstance(operand, str) else operand if isinstance(operand, list) else []
    validator.spend(len(names))
    known = [_TYPES[name] for name in names if isinstance(name, str) and name in _TYPES]
    if len(known) < len(names) or not known or any(fits(value) for fits in known):
        return None
    return f"{_format(value)} is not of type {' or '.join(map(repr, names))}"


def _enum(validator: _Validator, operand: Any, value: Any) -> str | None:
    if not isinstance(operand, list):
        return None
    validator.spend_for(operand)
    validator.spend_for(value)
    identity = _json_identity(value)
    if any(_json_identity(item) == identity for item in operand):
        return None
    return f"{_format(value)} is not one of {_format_list(operand)}"


def _format_list(values: list[Any]) -> str:
    return ", ".join(map(_format, values[:10])) + ("…" if len(values) > 10 else "")


def _json_identity(value: Any) -> Any:
    """Equal for values that are equal in JSON: 1 and 1.0 are, 1 and true are not."""
    return wire.fingerprint(value) if isinstance(value, dict | list) else (isinstance(value, bool), value)


def _unique(validator: _Validator, operand: Any, value: Any) -> str | None:
    if operand is not True or not isinstance(value, list):
        return None
    validator.spend_for(value)
    return "an item is there twice" if len({_json_identity(item) for item in value}) != len(value) else None


def _required(validator: _Validator, operand: Any, value: Any) -> str | None:
    if not isinstance(operand, list) or not isinstance(value, dict):
        return None
    validator.spend(len(operand))
    missing = [name for name in operand if isinstance(name, str) and name not in value]
    return f"{missing[0][:MAX_VALUE_CHARS]!r} is a required property" if missing else None


def _pattern(validator: _Validator, operand: Any, value: Any) -> str | None:
    wrong = isinstance(value, str) and validator.matches(operand, value) is False
    return f"{_format(value)} does not match {_format(operand)}" if wrong else None


def _bound(
    applies_to: Callable[[Any], bool],
    measure: Callable[[Any], Any],
    exceeds: Callable[[Any, Any], bool],
    complaint: str,
) -> Any:
    """A keyword that compares the measure of a value with a number."""

    def keyword(_validator: _Validator, bound: Any, value: Any) -> str | None:
        wrong = _is_number(bound) and applies_to(value) and exceeds(measure(value), bound)
        return f"{_format(value)} {complaint} {repr(bound)[:MAX_VALUE_CHARS]}" if wrong else None

    return keyword


def _identity(value: Any) -> Any:
    return value


_KEYWORDS: dict[str, Callable[[_Validator, Any, Any], str | None]] = {
    "type": _type,
    "enum": _enum,
    "const": lambda validator, operand, value: _enum(validator, [operand], value),
    "uniqueItems": _unique,
    "required": _required,
    "pattern": _pattern,
    "minLength": _bound(_TYPES["string"], len, lambda size, bound: size < bound, "is shorter than"),
    "maxLength": _bound(_TYPES["string"], len, lambda size, bound: size > bound, "is longer than"),
    "minItems": _bound(_TYPES["array"], len, lambda size, bound: size < bound, "has fewer items than"),
    "maxItems": _bound(_TYPES["array"], len, lambda size, bound: size > bound, "has more items than"),
    "minProperties": _bound(_TYPES["object"], len, lambda size, bound: size < bound, "has fewer names than"),
    "maxProperties": _bound(_TYPES["object"], len, lambda size, bound: size > bound, "has more names than"),
    "minimum": _bound(_is_number, _identity, lambda size, bound: size < bound, "is less than"),
    "maximum": _bound(_is_number, _identity, lambda size, bound: size > bound, "is more than"),
    "exclusiveMinimum": _bound(_is_number, _identity, lambda size, bound: size <= bound, "is not more than"),
    "exclusiveMaximum": _bound(_is_number, _identity, lambda size, bound: size >= bound, "is not less than"),
}


# ── keywords with schemas of their own ───────────────────────────────────────────────────────────────────────────────


def _join_path(path: str, name: object) -> str:
    return f"{path}.{str(name)[:MAX_VALUE_CHARS]}" if path else str(name)[:MAX_VALUE_CHARS]


def _properties(validator: _Validator, operand: Any, value: Any, path: str, depth: int, _schema: Any) -> Iterator[str]:
    if isinstance(operand, Mapping) and isinstance(value, dict):
        for name, item in value.items():
            validator.spend()
            if name in operand:
                yield from validator.errors(operand[name], item, _join_path(path, name), depth)


def _additional(validator: _Validator, operand: Any, value: Any, path: str, depth: int, schema: Any) -> Iterator[str]:
    named = schema.get("properties", {})
    if not isinstance(value, dict) or not isinstance(named, Mapping) or "patternProperties" in schema:
        return
    for name, item in value.items():
        validator.spend()
        if name in named:
            continue
        if operand is False:
            yield f"{path or 'they'}: there is no property {name[:MAX_VALUE_CHARS]!r}"
        else:
            yield from validator.errors(operand, item, _join_path(path, name), depth)


def _items(validator: _Validator, operand: Any, value: Any, path: str, depth: int, schema: Any) -> Iterator[str]:
    if isinstance(operand, Mapping) and isinstance(value, list) and "prefixItems" not in schema:
        for number, item in enumerate(value):
            yield from validator.errors(operand, item, _join_path(path, number), depth)


def _all(validator: _Validator, operand: Any, value: Any, path: str, depth: int, _schema: Any) -> Iterator[str]:
    for schema in operand if isinstance(operand, list) else ():
        yield from validator.errors(schema, value, path, depth)


def _any(validator: _Validator, operand: Any, value: Any, path: str, depth: int, _schema: Any) -> Iterator[str]:
    """For `anyOf`, and for `oneOf`, of which only "at least one fits" is checked."""
    if (
        isinstance(operand, list)
        and operand
        and not any(validator.fits(schema, value, path, depth) for schema in operand)
    ):
        first = next(validator.errors(operand[0], value, path, depth), "")
        none = f"{path or 'they'}: {_format(value)} fits none of {len(operand)} alternatives"
        yield first if len(operand) == 1 else none


def _reference(validator: _Validator, operand: Any, value: Any, path: str, depth: int, _schema: Any) -> Iterator[str]:
    yield from validator.errors(validator.resolve(operand), value, path, depth)


_NESTED_KEYWORDS: dict[str, Callable[[_Validator, Any, Any, str, int, Any], Iterator[str]]] = {
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "allOf": _all,
    "anyOf": _any,
    "oneOf": _any,
    "$ref": _reference,
}


# ── patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> TypeAdapter[str] | None:
    try:
        return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])
    except Exception:  # a pattern that `regex` does not know, or that is larger than it allows
        return None


_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?|\{(\d{1,9})(?:,(\d{0,9}))?\}|.", re.DOTALL)
_LARGE_CLASS, _SMALL_CLASS = re.compile(r"\\[wWpPbB]|[^\x00-\x7f]"), re.compile(r"\\[dDsS]|\[\^|\A\.\Z")


def weight(pattern: str) -> int:
    """The rough size of a pattern with its repetitions written out."""
    groups, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token[1] is not None:
            repeated = last * max(1, int(token[1]), int(token[2] or 0))
            groups[-1] += repeated - last
            last = repeated
        elif text == "(":
            groups.append(0)
        elif text == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        else:
            last = 100 if _LARGE_CLASS.search(text) else 10 if _SMALL_CLASS.search(text) else 1
            groups[-1] += last
    return sum(groups)
