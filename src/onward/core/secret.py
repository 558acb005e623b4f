"""References to secrets, which take the place of their values.

In Python a reference is a `Secret` (`app.secret("STRIPE_KEY")`), in JSON `{"$secret": "STRIPE_KEY"}`. Both have only the name, so inputs,
records and conversations may contain them. A worker replaces them by the value right before it calls a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from onward.core import mask
from onward.errors import UnfitSecret, UnknownSecret, UsageError

KEY = "$secret"
MARK = b'"$secret"'
"""Bytes that JSON with a reference contains."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")

used: bool = False
"""Whether this process ever made a `Secret`. Until then no step searches its arguments for one. (References in JSON come from elsewhere,
and are always searched for.)"""


class Secret:
    """A secret, by its name. `get_secret_value` (the name that pydantic has for it) gives the value, and tells it to the masks."""

    __slots__ = ("_read", "name")

    def __init__(self, name: str, read: Callable[[str], str]) -> None:
        global used  # noqa: PLW0603 -- one for the process
        used = True
        self._read = read
        self.name: str = name

    def get_secret_value(self) -> str:
        """The value. Raises SecretMissing."""
        return self._read(self.name)

    def __repr__(self) -> str:
        return mask.marker(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def check_name(name: Any) -> str:
    """A valid name of a secret: the name of an environment variable, or of a file. Raises UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"a secret is named by up to 128 letters, digits, '_', '-' and '.', as in STRIPE_KEY, and not {name!r:.80}"
        )
    return name


def check_value(name: str, value: Any) -> str:
    """A value that masks can find. Raises UnfitSecret."""
    if not isinstance(value, str):
        raise UnfitSecret(name, f"is of type {type(value).__name__}, and must be a string")
    if len(value.strip()) < mask.MIN_CHARS:
        raise UnfitSecret(
            name,
            f"has fewer than {mask.MIN_CHARS} characters: that is also part of other words, so it could not be masked; use a "
            "longer one",
        )
    return value


# ── in JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def reference(name: str) -> dict[str, str]:
    """A reference to a secret, in JSON."""
    return {KEY: name}


def name_in(value: Any) -> str | None:
    """The name of the secret, if the value is a reference."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(name := value.get(KEY), str):
        return name
    return None


def names(value: Any) -> Iterator[str]:
    """The names of all secrets in a value: of references in JSON, and of `Secret` objects."""
    if isinstance(value, Secret):
        yield value.name
    elif (name := name_in(value)) is not None:
        yield name
    elif isinstance(value, dict):
        for item in value.values():
            yield from names(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from names(item)


def replaced(value: Any, replacement: Callable[[Any], Any]) -> Any:
    """The value with its parts replaced. `replacement` gives the new part, or None to keep a part."""
    if (other := replacement(value)) is not None:
        return other
    if type(value) is dict:
        return {key: replaced(item, replacement) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(replaced(item, replacement) for item in value)
    return value


def check_known(value: Any, known: Iterable[str]) -> None:
    """Raises UnknownSecret for a reference to a name that is not among these."""
    declared = frozenset(known)
    for name in names(value):
        if name not in declared:
            raise UnknownSecret(name, declared)


# ── in schemas ───────────────────────────────────────────────────────────────────────────────────────────────────────

SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "a secret by its name",
    "properties": {KEY: {"type": "string"}},
    "required": [KEY],
    "additionalProperties": False,
}
"""The JSON schema of a reference to a secret."""


def in_schema(schema: Any) -> Any:
    """The schema with references in place of the fields that pydantic calls passwords."""
    if isinstance(schema, dict):
        if schema.get("writeOnly") and schema.get("format") == "password":
            return SCHEMA
        return {key: in_schema(part) for key, part in schema.items()}
    return [in_schema(part) for part in schema] if isinstance(schema, list) else schema


def offered(schema: Any, known: list[str]) -> Any:
    """The schema with the known names in its references."""
    if isinstance(schema, dict):
        if schema.get("properties", {}).keys() == {KEY}:
            return {**schema, "properties": {KEY: {"type": "string", **({"enum": known} if known else {})}}}
        return {key: offered(part, known) for key, part in schema.items()}
    return [offered(part, known) for part in schema] if isinstance(schema, list) else schema


def in_clear_text(place: str) -> str:
    """The error sentence for a secret in clear text."""
    return (
        f"the input for {place!r} has a secret in clear text; nothing was written. Name it instead, as in "
        f'{{"{KEY}": "NAME"}}; app.secret(NAME) declares the name'
    )


def in_clear(value: Any, schema: Any, root: Any = None) -> bool:
    """Whether a value has another value where the schema has a reference."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or value is None:
        return False
    if schema.get("properties", {}).keys() == {KEY}:
        return name_in(value) is None
    if "$ref" in schema:
        return in_clear(value, root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2]), root)
    if options := [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
        fits = isinstance(value, str) and any(
            isinstance(option, dict) and option.get("type") == "string" for option in options
        )
        return not fits and any(in_clear(value, option, root) for option in options if _may_be(value, option, root))
    if isinstance(value, list):
        return any(in_clear(item, schema.get("items"), root) for item in value)
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties")
        return any(in_clear(item, known.get(key, other), root) for key, item in value.items())
    return False


def _may_be(value: Any, option: Any, root: Any) -> bool:
    """Whether a value could be meant for this option of several: an object or a list is never meant for a reference."""
    if isinstance(option, dict) and "$ref" in option:
        option = root.get("$defs", {}).get(option["$ref"].rpartition("/")[2])
    if not isinstance(option, dict) or option.get("properties", {}).keys() == {KEY}:
        return not isinstance(value, dict | list)
    return True
