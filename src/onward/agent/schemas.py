"""Arguments of a call, judged by a schema that another program wrote.

The schema is not trusted, and it is judged in the event loop of a worker, at every replay again. So this judges by the keywords that
tools use (types, names, lengths, ranges, alternatives, patterns, references within the schema) and knows no others; and the work is
counted: after `STEPS` of it the arguments go on as they are. Whatever is not judged here, the program that wrote the schema judges.
The count is the same wherever a schema is judged; a clock would tell a replay something else than the first run.

A pattern is matched by the regular expressions of pydantic (Rust's `regex`, which take a time that is linear in the text), never by
Python's `re`. Patterns that it does not know (look-around, back references), that are too large, or that meet a text of more than
`TEXT` characters are not judged. No reference is fetched.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import StringConstraints, TypeAdapter, ValidationError

from onward.core import wire

STEPS = 20_000
"""Work for one call: keywords that are looked at, and values that they look at."""

DEEPEST = 100
"""Schemas within schemas, references followed."""

TEXT = 10_000
"""Characters of a text that is held against a pattern."""

LONGEST, HEAVIEST = 1_000, 3_000
"""Characters of a pattern, and what its repetitions come to: `x{9}` weighs nine, and a class of all letters a hundred."""

TOLD, SHOWN = 3, 80
"""Errors that are told, and characters that are shown of a value."""


def misfit(schema: Mapping[str, Any], arguments: dict[str, Any]) -> str:
    """What of the arguments does not fit a schema; nothing when too much would have to be looked at."""
    judge = _Judge(schema)
    try:
        return "; ".join(itertools.islice(judge.errors(schema, arguments, "", 0), TOLD))
    except (_Spent, RecursionError):
        return ""


class _Spent(Exception):
    """Too much work."""


class _Judge:
    """One schema, and what is left to spend on one call."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left, self._patterns = root, STEPS, set[str]()

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise _Spent

    def errors(self, schema: Any, value: Any, path: str, depth: int) -> Iterator[str]:
        """Sentences about what does not fit, in the order of the schema."""
        self.spend()
        if depth > DEEPEST:
            raise _Spent
        if schema is False:
            yield f"{path or 'they'}: nothing is allowed here"
        if not isinstance(schema, Mapping):
            return
        for name, wanted in schema.items():
            self.spend()
            if name in _BELOW:
                yield from _BELOW[name](self, wanted, value, path, depth + 1, schema)
            elif (why := _HERE[name](self, wanted, value) if name in _HERE else None) is not None:
                yield f"{path or 'they'}: {why}"

    def fits(self, schema: Any, value: Any, path: str, depth: int) -> bool:
        return next(self.errors(schema, value, path, depth), None) is None

    def size(self, value: Any) -> None:
        """Count a value that is compared as a whole."""
        self.spend()
        if isinstance(value, dict | list):
            for one in value.values() if isinstance(value, dict) else value:
                self.size(one)

    def found(self, pointer: Any) -> Any:
        """The part of the schema that a reference names; everything fits one that is not in it."""
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
        """Whether a pattern is found in a text; None where that is not judged."""
        if not isinstance(pattern, str) or len(pattern) > LONGEST or len(text) > TEXT:
            return None
        if pattern not in self._patterns:
            heavy = weight(pattern)
            # As if it were compiled now, whether it was or not: the count must not depend on what was judged before.
            self.spend(100 + 3 * min(heavy, HEAVIEST))
            if heavy > HEAVIEST:
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


# ── keywords that look at one value ──────────────────────────────────────────────────────────────────────────────────


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:SHOWN]) if len(value) <= SHOWN else f"{value[:SHOWN]!r}…"
    return f"a {_name(value)}" if isinstance(value, dict | list) else repr(value)[:SHOWN]


def _name(value: Any) -> str:
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


def _type(judge: _Judge, wanted: Any, value: Any) -> str | None:
    names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    judge.spend(len(names))
    known = [_TYPES[name] for name in names if isinstance(name, str) and name in _TYPES]
    if len(known) < len(names) or not known or any(fits(value) for fits in known):
        return None
    return f"{_shown(value)} is not of type {' or '.join(map(repr, names))}"


def _enum(judge: _Judge, wanted: Any, value: Any) -> str | None:
    if not isinstance(wanted, list):
        return None
    judge.size(wanted)
    judge.size(value)
    same = _same(value)
    return None if any(_same(one) == same for one in wanted) else f"{_shown(value)} is not one of {_few(wanted)}"


def _few(values: list[Any]) -> str:
    return ", ".join(map(_shown, values[:10])) + ("…" if len(values) > 10 else "")


def _same(value: Any) -> Any:
    """Equal for values that are equal in JSON: 1 and 1.0 are, 1 and true are not."""
    return wire.fingerprint(value) if isinstance(value, dict | list) else (isinstance(value, bool), value)


def _unique(judge: _Judge, wanted: Any, value: Any) -> str | None:
    if wanted is not True or not isinstance(value, list):
        return None
    judge.size(value)
    return "an item is there twice" if len({_same(one) for one in value}) != len(value) else None


def _required(judge: _Judge, wanted: Any, value: Any) -> str | None:
    if not isinstance(wanted, list) or not isinstance(value, dict):
        return None
    judge.spend(len(wanted))
    missing = [name for name in wanted if isinstance(name, str) and name not in value]
    return f"{missing[0][:SHOWN]!r} is a required property" if missing else None


def _pattern(judge: _Judge, wanted: Any, value: Any) -> str | None:
    wrong = isinstance(value, str) and judge.matches(wanted, value) is False
    return f"{_shown(value)} does not match {_shown(wanted)}" if wrong else None


def _bound(
    kinds: Callable[[Any], bool], measure: Callable[[Any], Any], bad: Callable[[Any, Any], bool], says: str
) -> Any:
    def keyword(_judge: _Judge, wanted: Any, value: Any) -> str | None:
        wrong = _is_number(wanted) and kinds(value) and bad(measure(value), wanted)
        return f"{_shown(value)} {says} {repr(wanted)[:SHOWN]}" if wrong else None

    return keyword


def _as_it_is(value: Any) -> Any:
    return value


_HERE: dict[str, Callable[[_Judge, Any, Any], str | None]] = {
    "type": _type,
    "enum": _enum,
    "const": lambda judge, wanted, value: _enum(judge, [wanted], value),
    "uniqueItems": _unique,
    "required": _required,
    "pattern": _pattern,
    "minLength": _bound(_TYPES["string"], len, lambda has, wanted: has < wanted, "is shorter than"),
    "maxLength": _bound(_TYPES["string"], len, lambda has, wanted: has > wanted, "is longer than"),
    "minItems": _bound(_TYPES["array"], len, lambda has, wanted: has < wanted, "has fewer items than"),
    "maxItems": _bound(_TYPES["array"], len, lambda has, wanted: has > wanted, "has more items than"),
    "minProperties": _bound(_TYPES["object"], len, lambda has, wanted: has < wanted, "has fewer names than"),
    "maxProperties": _bound(_TYPES["object"], len, lambda has, wanted: has > wanted, "has more names than"),
    "minimum": _bound(_is_number, _as_it_is, lambda has, wanted: has < wanted, "is less than"),
    "maximum": _bound(_is_number, _as_it_is, lambda has, wanted: has > wanted, "is more than"),
    "exclusiveMinimum": _bound(_is_number, _as_it_is, lambda has, wanted: has <= wanted, "is not more than"),
    "exclusiveMaximum": _bound(_is_number, _as_it_is, lambda has, wanted: has >= wanted, "is not less than"),
}


# ── keywords that look further ───────────────────────────────────────────────────────────────────────────────────────


def _joined(path: str, name: object) -> str:
    return f"{path}.{str(name)[:SHOWN]}" if path else str(name)[:SHOWN]


def _properties(judge: _Judge, wanted: Any, value: Any, path: str, depth: int, _schema: Any) -> Iterator[str]:
    if isinstance(wanted, Mapping) and isinstance(value, dict):
        for name, item in value.items():
            judge.spend()
            if name in wanted:
                yield from judge.errors(wanted[name], item, _joined(path, name), depth)


def _additional(judge: _Judge, wanted: Any, value: Any, path: str, depth: int, schema: Any) -> Iterator[str]:
    named = schema.get("properties", {})
    if not isinstance(value, dict) or not isinstance(named, Mapping) or "patternProperties" in schema:
        return
    for name, item in value.items():
        judge.spend()
        if name in named:
            continue
        if wanted is False:
            yield f"{path or 'they'}: there is no property {name[:SHOWN]!r}"
        else:
            yield from judge.errors(wanted, item, _joined(path, name), depth)


def _items(judge: _Judge, wanted: Any, value: Any, path: str, depth: int, schema: Any) -> Iterator[str]:
    if isinstance(wanted, Mapping) and isinstance(value, list) and "prefixItems" not in schema:
        for number, item in enumerate(value):
            yield from judge.errors(wanted, item, _joined(path, number), depth)


def _all(judge: _Judge, wanted: Any, value: Any, path: str, depth: int, _schema: Any) -> Iterator[str]:
    for one in wanted if isinstance(wanted, list) else ():
        yield from judge.errors(one, value, path, depth)


def _any(judge: _Judge, wanted: Any, value: Any, path: str, depth: int, _schema: Any) -> Iterator[str]:
    """Also for `oneOf`, as far as at least one has to fit."""
    if isinstance(wanted, list) and wanted and not any(judge.fits(one, value, path, depth) for one in wanted):
        told = next(judge.errors(wanted[0], value, path, depth), "")
        yield told if len(wanted) == 1 else f"{path or 'they'}: {_shown(value)} fits none of {len(wanted)} alternatives"


def _reference(judge: _Judge, wanted: Any, value: Any, path: str, depth: int, _schema: Any) -> Iterator[str]:
    yield from judge.errors(judge.found(wanted), value, path, depth)


_BELOW: dict[str, Callable[[_Judge, Any, Any, str, int, Any], Iterator[str]]] = {
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
    except Exception:  # what it does not know, and what is larger than it allows
        return None


_SIGN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?|\{(\d{1,9})(?:,(\d{0,9}))?\}|.", re.DOTALL)
_LARGE, _SMALL = re.compile(r"\\[wWpPbB]|[^\x00-\x7f]"), re.compile(r"\\[dDsS]|\[\^|\A\.\Z")


def weight(pattern: str) -> int:
    """How large a pattern is once its repetitions are written out, roughly."""
    groups, last = [0], 0
    for sign in _SIGN.finditer(pattern):
        text = sign[0]
        if sign[1] is not None:
            repeated = last * max(1, int(sign[1]), int(sign[2] or 0))
            groups[-1] += repeated - last
            last = repeated
        elif text == "(":
            groups.append(0)
        elif text == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        else:
            last = 100 if _LARGE.search(text) else 10 if _SMALL.search(text) else 1
            groups[-1] += last
    return sum(groups)
