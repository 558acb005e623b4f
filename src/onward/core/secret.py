"""Secrets by name: what travels in place of a value, and the errors about it.

In Python it is a `Secret` (`app.secret("STRIPE_KEY")`), in JSON `{"$secret": "STRIPE_KEY"}`. Both say the name and nothing else,
so they can stand in inputs, records and conversations. A worker puts the value in their place right before it calls a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from onward.core import mask
from onward.errors import Fatal, OnwardError, UsageError

KEY = "$secret"
MARK = b'"$secret"'
"""How JSON of ours shows that there may be a reference in it."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")

used = False
"""Whether there was ever a `Secret` in this process: until then no step looks for one among its arguments. (References in JSON
come from elsewhere, and are always looked for.)"""


class Secret:
    """A secret, by its name. `get_secret_value` (the word that pydantic has for it) gives the value, and makes it known to the
    masks."""

    __slots__ = ("_ask", "name")

    def __init__(self, name: str, ask: Callable[[str], str]) -> None:
        global used  # noqa: PLW0603 -- one for the process
        used = True
        self.name, self._ask = name, ask

    def get_secret_value(self) -> str:
        """The value. Raises SecretMissing."""
        return self._ask(self.name)

    def __repr__(self) -> str:
        return mask.marker(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class SecretMissing(OnwardError):
    """A secret that was named has no value where this process looks for it."""

    code = "secret_missing"
    status = 409

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        super().__init__(
            f"the secret {name!r} is not there ({where}); put it where the worker finds it, then `onward resume` the task"
        )


class UnknownSecret(UsageError):
    """A name that the app does not declare: whoever submits must not read what he likes."""

    code = "unknown_secret"
    status = 422

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"no secret is named {name!r:.130} here (declared: {listed}); check the spelling, or declare it: app.secret(NAME)"
        )


class UnfitSecret(Fatal):
    """A value that cannot be kept from being written."""

    code = "unfit_secret"

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        super().__init__(f"the secret {name!r} {why}")


def check_name(name: Any) -> str:
    """A name as a secret may have one: that of an environment variable, or of a file. Raises UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"a secret is named by up to 128 letters, digits, '_', '-' and '.', as in STRIPE_KEY, and not {name!r:.80}"
        )
    return name


def check_value(name: str, value: Any) -> str:
    """A value that masks can find again. Raises UnfitSecret."""
    if not isinstance(value, str):
        raise UnfitSecret(name, f"is of type {type(value).__name__}, and must be a text")
    if len(value.strip()) < mask.SHORTEST:
        raise UnfitSecret(
            name,
            f"has fewer than {mask.SHORTEST} characters: that is also part of other words, so it could not be masked; use a "
            "longer one",
        )
    return value


# ── in JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def reference(name: str) -> dict[str, str]:
    """A secret as JSON has it."""
    return {KEY: name}


def name_in(value: Any) -> str | None:
    """The name, where this is a reference and nothing else."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(name := value.get(KEY), str):
        return name
    return None


def names(value: Any) -> Iterator[str]:
    """The names of all secrets in a value: references in JSON, and `Secret`s."""
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


def replaced(value: Any, given: Callable[[Any], Any]) -> Any:
    """The value with another in place of each secret. `given` says which: None leaves things as they are."""
    if (other := given(value)) is not None:
        return other
    if type(value) is dict:
        return {key: replaced(item, given) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(replaced(item, given) for item in value)
    return value


def check_known(value: Any, known: Iterable[str]) -> None:
    """Raises UnknownSecret for a name that is not among these."""
    there = frozenset(known)
    for name in names(value):
        if name not in there:
            raise UnknownSecret(name, there)


# ── in schemas ───────────────────────────────────────────────────────────────────────────────────────────────────────

SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "a secret by its name",
    "properties": {KEY: {"type": "string"}},
    "required": [KEY],
    "additionalProperties": False,
}
"""What JSON schema says of a place for a secret."""


def in_schema(schema: Any) -> Any:
    """A schema in which what pydantic calls a password is a reference."""
    if isinstance(schema, dict):
        if schema.get("writeOnly") and schema.get("format") == "password":
            return SCHEMA
        return {key: in_schema(part) for key, part in schema.items()}
    return [in_schema(part) for part in schema] if isinstance(schema, list) else schema


def offered(schema: Any, known: list[str]) -> Any:
    """A schema that says which names there are."""
    if isinstance(schema, dict):
        if schema.get("properties", {}).keys() == {KEY}:
            return {**schema, "properties": {KEY: {"type": "string", **({"enum": known} if known else {})}}}
        return {key: offered(part, known) for key, part in schema.items()}
    return [offered(part, known) for part in schema] if isinstance(schema, list) else schema


def in_clear_text(place: str) -> str:
    """What is said about it."""
    return (
        f"the input for {place!r} has a secret in clear text; nothing was written. Name it instead, as in "
        f'{{"{KEY}": "NAME"}}; app.secret(NAME) declares the name'
    )


def in_clear(value: Any, schema: Any, root: Any = None) -> bool:
    """Whether something stands in clear where the schema has a reference."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or value is None:
        return False
    if schema.get("properties", {}).keys() == {KEY}:
        return name_in(value) is None
    if "$ref" in schema:
        return in_clear(value, root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2]), root)
    if ways := [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
        fits = isinstance(value, str) and any(isinstance(way, dict) and way.get("type") == "string" for way in ways)
        return not fits and any(in_clear(value, way, root) for way in ways if _may_be(value, way, root))
    if isinstance(value, list):
        return any(in_clear(item, schema.get("items"), root) for item in value)
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties")
        return any(in_clear(item, known.get(key, other), root) for key, item in value.items())
    return False


def _may_be(value: Any, way: Any, root: Any) -> bool:
    """Whether a value could be meant for this one of several ways: an object for an object."""
    if isinstance(way, dict) and "$ref" in way:
        way = root.get("$defs", {}).get(way["$ref"].rpartition("/")[2])
    if not isinstance(way, dict) or way.get("properties", {}).keys() == {KEY}:
        return not isinstance(value, dict | list)
    return True
